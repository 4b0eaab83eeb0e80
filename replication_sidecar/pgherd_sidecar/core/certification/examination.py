"""Certification, in steps of milliseconds, of a writeset with very many keys.

To look for each key in each generation of the index takes long if there are millions of them, and
all commits wait. But of what the index holds only what came after the lowest base matters, and
hardly ever it is one of these keys. So the keys are collected and sorted, and compared as if each
had that base with one table of all that is newer; with bulks, which are sorted as well, range by
range. What is in both is a *suspect*. Only if there is one the keys are gone through once more,
each group with its own base.

It survives no restart: it is begun again.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from pgherd_sidecar.core.certification.bulk import KeyCollector, in_steps
from pgherd_sidecar.core.certification.certifier import BASE_MAX, MALFORMED, Certifier, Conflict

_MANY_KEYS: Final = 4096
_STEP_KEYS: Final = 1024
_STAMPS_PER_KEY: Final = 32
"""In so many stamps at least a key is looked up in less time than it takes to make the table."""
_SUSPECTS_MAX: Final = 1 << 18
_NO_MODE: Final = -3  # compatible with all


class Examination:
    """The verdict on a writeset whose keys come in parts; nothing is recorded.

    Args:
        certifier: the index, which must not change meanwhile.
        gid: position of the writeset.

    Attributes:
        conflict: what it loses against, as far as is known: the same on every member.
        collected: its keys.
    """

    __slots__ = ("_certifier", "_gid", "_lowest_base", "_parts", "collected", "conflict")

    def __init__(self, certifier: Certifier, gid: int) -> None:
        self.conflict: Conflict | None = None
        self.collected = KeyCollector()
        self._certifier = certifier
        self._gid = gid
        self._lowest_base = BASE_MAX
        self._parts: list[array[int]] = []

    def take_groups(self, keys: "array[int]") -> Iterator[None]:
        """Collect the next groups ``base, n, key1 .. keyn``, in steps."""
        position, end = 0, len(keys)
        flat = array("q")
        while position < end:
            first = position + 2
            if first > end or not 0 <= keys[position + 1] <= end - first:
                self.conflict = MALFORMED
                return
            base = keys[position]
            position = first + keys[position + 1]
            group = keys[first:position]
            if not self._certifier.horizon <= base < self._gid:
                self.conflict = self._certifier.outside(base, group)
                return
            self._lowest_base = min(self._lowest_base, base)
            flat.extend(group)
        self._parts.append(keys)
        for step in in_steps(flat):
            self.collected.add(step)
            yield

    def find_verdict(self) -> Iterator[None]:
        """Find the verdict, in steps, after the last keys."""
        if self.conflict is None:
            yield from self.collected.sort()
            few = self.collected.count * _STAMPS_PER_KEY <= len(self._certifier)
            yield from self._judge() if few else self._search()
        self._parts.clear()

    def _search(self) -> Iterator[None]:
        suspects: set[int] = set()
        for found in self._suspects():
            suspects.update(found)
            if len(suspects) > _SUSPECTS_MAX:
                yield from self._judge(suspects)
                suspects.clear()
            if self.conflict is not None:
                return
            yield
        if suspects:
            yield from self._judge(suspects)

    def _suspects(self) -> Iterator[list[int]]:
        """Slots, in steps, in which a key of the lowest base would have lost."""
        modes: dict[int, int] = {}
        for _ in self._certifier.modes_since(self._lowest_base, modes):
            yield []
        bulks = self._certifier.bulks_since(self._lowest_base)
        for part in self.collected.parts():
            yield _clashes(part, modes)
            mine = {key >> 2: key & 3 for key in part} if bulks else {}  # the strongest is last
            for bulk in bulks:
                yield _clashes(bulk.between(part[0] & ~3, part[-1] | 3), mine)

    def _judge(self, suspects: set[int] | None = None) -> Iterator[None]:
        """Check the keys of some slots, or all, each against its own base; in steps."""
        checked = 0
        for base, group in self._groups():
            hits = group
            if suspects is not None:
                hits = array("q", [key for key in group if key >> 2 in suspects])
            if hits:
                self.conflict = self._certifier.lost(hits, base)
            if self.conflict is not None:
                return
            checked += len(group)
            if checked >= _STEP_KEYS:
                checked = 0
                yield

    def _groups(self) -> "Iterator[tuple[int, array[int]]]":
        """Bases with keys, not too many at a time."""
        for keys in self._parts:
            position = 0
            while position < len(keys):
                base, first = keys[position], position + 2
                position = first + keys[position + 1]
                for start in range(first, position, _STEP_KEYS):
                    yield base, keys[start : min(start + _STEP_KEYS, position)]


def _clashes(keys: "array[int]", modes: dict[int, int]) -> list[int]:
    """The slots of keys that are not compatible with the mode of the same slot."""
    return [key >> 2 for key in keys if modes.get(key >> 2, _NO_MODE) + (key & 3) >= 3]


def preview(certifier: Certifier, keys: "array[int]") -> Conflict | None:
    """Say whether a writeset that is not ordered yet has already lost.

    None promises nothing; a conflict is final, because what is recorded only grows.
    """
    if len(keys) < _MANY_KEYS:
        return certifier.preview(keys)
    examination = Examination(certifier, BASE_MAX + 1)
    for steps in (examination.take_groups(keys), examination.find_verdict()):
        for _ in steps:
            pass
    return examination.conflict
