"""Certification keys on their way from ``certify()`` into the log. Free of IO.

``certify()`` sends them as text, in groups of one base GID. The certifier and the outbox use them
as groups ``base, n, key1 .. keyn`` of numbers; the log has these in its own byte order.
"""

import sys
from array import array


def parse_keys(text: bytes) -> "array[int]":
    """Turn ``base:k1,k2;base:...`` into groups ``base, n, k1 .. kn``.

    Raises:
        ValueError: not of that form.
    """
    keys = array("q")
    for group in text.split(b";"):
        base, _, numbers = group.partition(b":")
        values = [int(number) for number in numbers.split(b",")]
        keys.append(int(base))
        keys.append(len(values))
        keys.extend(values)
    return keys


def wire_keys(keys: "array[int]") -> "array[int]":
    """A copy of the keys in the byte order of the log."""
    copy = keys[:]
    if sys.byteorder == "little":
        copy.byteswap()
    return copy


def key_slots(keys: "array[int]") -> frozenset[int]:
    """The keys of all groups without their modes."""
    slots: list[int] = []
    position = 0
    while position < len(keys):
        first = position + 2
        position = first + keys[position + 1]
        slots += [key >> 2 for key in keys[first:position]]
    return frozenset(slots)


def newest_base(keys: "array[int]") -> int:
    """The newest base GID of all groups."""
    newest, position = 0, 0
    while position < len(keys):
        newest = max(newest, keys[position])
        position += 2 + keys[position + 1]
    return newest
