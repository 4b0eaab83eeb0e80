"""Kubernetes quantities, in every form that the API server lets pass."""

import re
from fractions import Fraction

_SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30),
    "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip

_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([A-Za-z]*))")
_MAX_EXPONENT = 99
"""Where it is larger the number is more than any volume has; it need not be written out."""


def parse_quantity(text: str) -> Fraction:
    """The value of a quantity.

    Raises:
        ValueError: it is none.
    """
    match = _FORM.fullmatch(text)
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"not a quantity: {text}")
    exponent = max(-_MAX_EXPONENT, min(int(match[2] or 0), _MAX_EXPONENT))
    return Fraction(match[1]) * Fraction(10) ** exponent * _SUFFIXES[match[3] or ""]
