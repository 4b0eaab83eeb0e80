"""Kubernetes quantities, as far as volumes need them."""

import re
from fractions import Fraction

_SUFFIXES = {
    "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3), "K": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30),
    "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip

_FORM = re.compile(r"([0-9]+(?:\.[0-9]*)?)([A-Za-z]*)")


def parse(text: str) -> Fraction:
    """The value of a quantity.

    Raises:
        ValueError: it is none.
    """
    match = _FORM.fullmatch(text)
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {text}")
    return Fraction(match[1]) * _SUFFIXES[match[2]]
