"""Very many keys of one writeset: collected in steps, kept in eight bytes a key.

What a transaction that came in pieces has taken is one generation of the certification index: a
sorted array, in which a key is found by bisection. It is made in steps of some milliseconds, so
that the caller can do other things in between.

It survives a restart as part of the index.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

BULK_SHARE: Final = 16
"""So many keys of a bulk count as one stamp of the index: part of the format."""

_STEP_KEYS: Final = 4096
_T = TypeVar("_T")
_BUCKETS: Final = 256
_BUCKET_SHIFT: Final = 56  # a key has 64 bits


def in_steps(things: Iterable[_T]) -> Iterator[list[_T]]:
    """Some thousands at a time: what is done with them takes milliseconds."""
    rest = iter(things)
    while step := list(islice(rest, _STEP_KEYS)):
        yield step


class BulkGeneration:
    """The keys, in order, that one writeset took at the GID ``end``."""

    __slots__ = ("_keys", "end")

    def __init__(self, end: int, keys: "array[int]") -> None:
        self.end = end
        self._keys = keys

    def size(self) -> int:
        """What it counts for in the index, in stamps."""
        return len(self._keys) // BULK_SHARE

    def conflict(self, keys: Iterable[int]) -> int | None:
        """The first of the keys whose mode is incompatible with one in which it was taken."""
        taken, end = self._keys, len(self._keys)
        for key in keys:
            place = bisect_left(taken, (key | 3) - (key & 3))  # its slot in mode 3 - m or above
            if place < end and taken[place] <= key | 3:
                return key
        return None

    def between(self, lowest: int, highest: int) -> "array[int]":
        """The keys from one to another one."""
        first = bisect_left(self._keys, lowest)
        return self._keys[first : bisect_right(self._keys, highest, first)]

    def dump(self) -> "list[array[int]]":
        """Everything as int64 arrays, for a checkpoint."""
        return [array("q", [self.end]), self._keys]


class KeyCollector:
    """Keys in the making of a `BulkGeneration`; duplicates stay."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: list[array[int]] = [array("q") for _ in range(_BUCKETS)]

    def add(self, keys: Sequence[int]) -> None:
        """Add some thousand keys, in any order."""
        self.count += len(keys)
        ordered = array("q", sorted(keys))
        first, end = 0, len(ordered)
        while first < end:
            bucket = ordered[first] >> _BUCKET_SHIFT
            beyond = (bucket + 1) << _BUCKET_SHIFT
            after = bisect_left(ordered, beyond, first) if beyond <= ordered[-1] else end
            self._buckets[bucket + _BUCKETS // 2].extend(ordered[first:after])
            first = after

    def sort(self) -> Iterator[None]:
        """Sort what was collected, in steps."""
        for number, bucket in enumerate(self._buckets):
            self._buckets[number] = array("q", sorted(bucket))
            yield

    def parts(self) -> "Iterator[array[int]]":
        """Parts of the keys, of some thousands each if there are very many; not all are empty."""
        return filter(None, self._buckets)

    def keys(self) -> "array[int]":
        """All keys, in order if they were sorted."""
        keys = array("q")
        for bucket in self._buckets:
            keys.extend(bucket)
        return keys
