"""Certification: does a writeset, at its place in the total order, commit or abort?

The first committer in the total order wins. For each key the index remembers the last GID that
touched it, per row-lock mode; a writeset aborts if a mode incompatible with its own was taken on
one of its keys after the group's base GID, the newest GID that the transaction had seen when it
locked the row (C7, C15). Table and schema keys are keys like any other (C16).

The four modes are ordered by strength, and PostgreSQL's conflict matrix has a staircase shape:
mode ``m`` conflicts with every mode ``>= 3 - m``. So one stamp per key, its newest GID with that
GID's mode, answers nearly every question; only where a weaker mode followed a stronger one is the
stronger one's GID kept beside it.

Pruning is deterministic and costs nothing per key (C17): keys are recorded in the young one of two
generations. When the young one is full, or when all members have published bases above the old
one, the old one is dropped as a whole and the horizon becomes its end: a writeset with a base
below the horizon aborts on every member. Verdicts are therefore a function of the log alone.

Invariants: the index holds every key committed above the horizon; a key's stamp in the young
generation is newer than its stamp in the old one; at most ``index_limit`` stamps are held, plus
the keys of one writeset. A stamp takes about 130 bytes.

Called by ``state`` for delivered writesets, and through it by the agent for those still waiting
to be ordered. Knows neither SQL nor origins. Survives a restart through ``dump`` and ``load``. No
dynamic tricks, so that mypyc can compile it.
"""

from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

INDEX_LIMIT: Final = 1_000_000
"""Stamps the index may hold: part of the format, since verdicts depend on it."""


class LockMode(IntEnum):
    """The low two bits of a certification key: PostgreSQL's row-lock modes, weakest first."""

    KEY_SHARE = 0
    SHARE = 1
    NO_KEY_UPDATE = 2
    UPDATE = 3


class AbortReason(IntEnum):
    """Why a writeset may not commit; the number is kept in checkpoints."""

    CONFLICT = 1
    TOO_OLD = 2
    MALFORMED = 3


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a writeset aborts.

    Attributes:
        reason: what was found.
        key: the certification key it was found on (mode bits included); 0 if malformed.
        winner: GID of the newest commit that excludes this one; the horizon if too old.
    """

    reason: AbortReason
    key: int
    winner: int


_MALFORMED: Final = Conflict(AbortReason.MALFORMED, 0, 0)


class _Generation:
    """The keys committed in an interval of GIDs that ends at ``end`` (0 while it grows)."""

    __slots__ = ("end", "newest", "stronger")

    def __init__(self) -> None:
        self.end = 0
        # key without mode -> newest GID << 2 | mode of that GID
        self.newest: dict[int, int] = {}
        # key with mode -> last GID in this mode, if a weaker mode came after it
        self.stronger: dict[int, int] = {}

    def size(self) -> int:
        return len(self.newest) + len(self.stronger)

    def last_in_modes(self, slot: int, weakest: int) -> int:
        """The newest GID that took ``slot`` in the mode ``weakest`` or a stronger one, or 0."""
        last = 0
        stamp = self.newest.get(slot, 0)
        if stamp & 3 >= weakest:
            last = stamp >> 2
        elif stamp and self.stronger:
            for mode in range(weakest, 4):
                last = max(last, self.stronger.get(slot << 2 | mode, 0))
        return last


class Certifier:
    """The certification index of one member.

    Args:
        index_limit: stamps to hold at most; the same on every member.
    """

    __slots__ = ("_generation_limit", "_old", "_young", "horizon", "index_limit")

    def __init__(self, index_limit: int = INDEX_LIMIT) -> None:
        self.index_limit = index_limit
        self.horizon = 0
        self._generation_limit = max(1, index_limit // 2)
        self._old = _Generation()
        self._young = _Generation()

    def __len__(self) -> int:
        """The number of stamps held."""
        return self._old.size() + self._young.size()

    def certify(self, gid: int, keys: "array[int]") -> Conflict | None:
        """Decide the writeset ordered at ``gid`` and, if it commits, record its keys.

        Args:
            gid: position in the log, above every position certified before.
            keys: groups ``base, n, key1 .. keyn``.

        Returns:
            None if it commits, else what it lost against.
        """
        conflict = self._check(keys, gid - 1)
        if conflict is None:
            self._record(keys, gid)
        return conflict

    def preview(self, keys: "array[int]") -> Conflict | None:
        """Say whether a writeset that is not ordered yet has already lost.

        None promises nothing; a conflict is final, because what is recorded only grows.
        """
        return self._check(keys, (1 << 61) - 1)

    def release(self, gid: int, oldest_base: int) -> None:
        """Drop what no transaction can ask for any more.

        Args:
            gid: position of the entry that says so.
            oldest_base: minimum over the members of their published bases.
        """
        if oldest_base >= self._old.end and self._young.newest:
            self._rotate(gid)

    def _check(self, keys: "array[int]", newest_base: int) -> Conflict | None:
        young, old = self._young.newest, self._old.newest
        position, end = 0, len(keys)
        while position < end:
            first = position + 2
            if first > end or not 0 <= keys[position + 1] <= end - first:
                return _MALFORMED
            base = keys[position]
            position = first + keys[position + 1]
            if not self.horizon <= base <= newest_base:
                return self._outside(base, keys[first:position])
            seen = base << 2 | 3
            for key in keys[first:position]:
                slot = key >> 2
                if (young.get(slot) or old.get(slot, 0)) > seen:
                    winner = self._winner(key)
                    if winner > base:
                        return Conflict(AbortReason.CONFLICT, key, winner)
        return None

    def _outside(self, base: int, keys: "array[int]") -> Conflict:
        """A base that cannot be checked: below the horizon, or not before the writeset itself."""
        if 0 <= base < self.horizon:
            return Conflict(AbortReason.TOO_OLD, keys[0] if keys else 0, self.horizon)
        return _MALFORMED

    def _winner(self, key: int) -> int:
        """The newest GID that took the key in a mode incompatible with the key's own, or 0."""
        slot, weakest = key >> 2, 3 - (key & 3)
        return self._young.last_in_modes(slot, weakest) or self._old.last_in_modes(slot, weakest)

    def _record(self, keys: "array[int]", gid: int) -> None:
        newest, stronger = self._young.newest, self._young.stronger
        position, end, stamp = 0, len(keys), gid << 2
        while position < end:
            first = position + 2
            position = first + keys[position + 1]
            for key in keys[first:position]:
                slot, mode = key >> 2, key & 3
                last = newest.get(slot, 0)
                newest[slot] = stamp | mode
                if last & 3 > mode:
                    stronger[slot << 2 | last & 3] = last >> 2
        if self._young.size() >= self._generation_limit:
            self._rotate(gid)

    def _rotate(self, gid: int) -> None:
        self.horizon = self._old.end
        self._old = self._young
        self._old.end = gid
        self._young = _Generation()

    def dump(self) -> "list[array[int]]":
        """The whole index as int64 arrays, for a checkpoint (equal state, equal arrays)."""
        arrays = [array("q", [self.index_limit, self.horizon, self._old.end])]
        for generation in (self._old, self._young):
            for stamps in (generation.newest, generation.stronger):
                arrays += [array("q", stamps.keys()), array("q", stamps.values())]
        return arrays

    @classmethod
    def load(cls, arrays: "list[array[int]]") -> "Certifier":
        """Rebuild the index from what ``dump`` returned.

        Raises:
            ValueError: the arrays have another shape.
        """
        limits, *stamps = arrays
        index_limit, horizon, old_end = limits
        certifier = cls(index_limit)
        certifier.horizon = horizon
        old, young = certifier._old, certifier._young
        old.end = old_end
        old.newest, old.stronger, young.newest, young.stronger = (
            dict(zip(stamps[i], stamps[i + 1], strict=True)) for i in range(0, len(stamps), 2)
        )
        return certifier
