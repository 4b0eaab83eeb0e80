"""Certification: does a writeset, at its place in the total order, commit or abort?

The first committer in the total order wins. For each key the index remembers the last GID that
took it, per row-lock mode; a writeset aborts if a mode incompatible with its own was taken on one
of its keys after the group's base GID, the newest GID that the transaction had seen when it
locked the row (C7, C15). Table and schema keys are keys like any other (C16).

The modes are ordered by strength, and PostgreSQL's conflict matrix has the shape of a staircase:
mode ``m`` conflicts with every mode ``>= 3 - m``. So one *stamp* per key answers nearly every
question: its newest GID, that GID's mode, and the strongest mode ever. Only where a weaker mode
followed a stronger one is the stronger one's GID kept beside it.

The index is a queue of *generations*, each the keys of an interval of GIDs. A writeset looks only
into those that end above its base, nearly always the newest, which fits the processor's cache.
Pruning drops the oldest generation as a whole and raises the horizon to its end: a writeset with
a base below the horizon aborts on every member. When that happens depends on the log alone: on
the bases the members publish in it, and on the number of stamps held (C17).

Invariants: the index holds every key committed above the horizon. It holds at most ``index_limit``
stamps, or those of the newest full generation if a single writeset exceeds the limit. A stamp
takes about 80 bytes (130 where modes mix), and 16 more once it was in a checkpoint.

The keys of a transaction that came in pieces are checked in steps by an ``examination``; if there
are very many they become a generation of their own (``bulk``).

Called by ``state`` for delivered writesets, and through it by the agent for those still waiting
to be ordered. Knows neither SQL nor origins. Survives a restart through ``dump`` and ``load``. No
dynamic tricks, so that mypyc can compile it.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pgherd_sidecar.core.certification.bulk import BulkGeneration, KeyCollector, in_steps

INDEX_LIMIT: Final = 1_000_000
"""Stamps the index may hold: part of the format, since verdicts depend on it."""

BASE_MAX: Final = (1 << 59) - 1
"""A stamp has 63 bits: GID, strongest mode, newest mode."""

_GENERATIONS: Final = 64


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
    INTENDED = 4
    HELD = 5  # the herd takes no writes: see ``databases``


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a writeset aborts.

    Attributes:
        reason: what was found.
        key: the certification key it was found on (mode bits included); 0 if there is none.
        winner: GID of the newest commit, or of the intention, that excludes this one; the horizon
            if too old; since when the herd is held, if it is; else 0.
    """

    reason: AbortReason
    key: int
    winner: int


MALFORMED: Final = Conflict(AbortReason.MALFORMED, 0, 0)


class _Generation:
    """The keys committed in an interval of GIDs that ends at ``end`` (0 while it grows)."""

    __slots__ = ("_dumped", "end", "newest", "stronger")

    def __init__(self) -> None:
        self.end = 0
        self._dumped: list[array[int]] = []
        # key without mode -> newest GID << 4 | strongest mode << 2 | mode of the newest GID
        self.newest: dict[int, int] = {}
        # key with mode -> last GID in this mode, where a weaker mode came after it
        self.stronger: dict[int, int] = {}

    def size(self) -> int:
        return len(self.newest) + len(self.stronger)

    def conflict(self, keys: "array[int]", base: int) -> Conflict | None:
        """The first of the keys that was taken in an incompatible mode after ``base``."""
        newest = self.newest
        seen = base << 4 | 15
        for key in keys:
            stamp = newest.get(key >> 2, 0)
            if stamp > seen and (stamp >> 2 & 3) + (key & 3) >= 3:
                winner = self._last_in_modes(key >> 2, stamp, 3 - (key & 3))
                if winner > base:
                    return Conflict(AbortReason.CONFLICT, key, winner)
        return None

    def modes_since(self, base: int, modes: dict[int, int]) -> Iterator[None]:
        """Raise, in steps, the mode of each slot taken after ``base`` to the strongest one here."""
        seen = base << 4 | 15
        for step in in_steps(self.newest.items()):
            for slot, stamp in step:
                if stamp > seen and modes.get(slot, -1) < stamp >> 2 & 3:
                    modes[slot] = stamp >> 2 & 3
            yield

    def record(self, keys: "array[int]", gid: int) -> None:
        """Note that the keys were taken at ``gid``, the highest one so far."""
        newest = self.newest
        fresh = (gid << 4, gid << 4 | 5, gid << 4 | 10, gid << 4 | 15)
        for key in keys:
            slot, mode = key >> 2, key & 3
            stamp = newest.get(slot)
            if stamp is None or stamp & 15 == mode * 5:
                newest[slot] = fresh[mode]
            else:
                newest[slot] = gid << 4 | max(stamp & 12, mode << 2) | mode
                if stamp & 3 > mode:
                    self.stronger[slot << 2 | stamp & 3] = stamp >> 4

    def dump(self) -> "list[array[int]]":
        """The stamps as int64 arrays; made once for a generation that no longer grows."""
        if self._dumped:
            return self._dumped
        arrays = [array("q", [self.end])]
        for stamps in (self.newest, self.stronger):
            arrays += [array("q", stamps.keys()), array("q", stamps.values())]
        if self.end:
            self._dumped = arrays
        return arrays

    def _last_in_modes(self, slot: int, stamp: int, weakest: int) -> int:
        """The newest GID that took the slot in the mode ``weakest`` or a stronger one, or 0."""
        if stamp & 3 >= weakest:
            return stamp >> 4
        last = 0
        for mode in range(weakest, 4):
            last = max(last, self.stronger.get(slot << 2 | mode, 0))
        return last


class Certifier:
    """The certification index of one member.

    Args:
        index_limit: stamps to hold at most; the same on every member.
    """

    __slots__ = ("_closed", "_closed_stamps", "_young", "horizon", "index_limit")

    def __init__(self, index_limit: int = INDEX_LIMIT) -> None:
        self.index_limit = index_limit
        self.horizon = 0
        self._young = _Generation()
        self._closed: deque[_Generation | BulkGeneration] = deque()  # oldest first
        self._closed_stamps = 0

    def __len__(self) -> int:
        """The number of stamps held."""
        return self._closed_stamps + self._young.size()

    def certify(self, gid: int, keys: "array[int]") -> Conflict | None:
        """Decide the writeset ordered at ``gid`` and, if it commits, record its keys.

        Args:
            gid: position in the log, above every position certified before.
            keys: groups ``base, n, key1 .. keyn``.

        Returns:
            None if it commits, else what it lost against.
        """
        conflict = self.check(gid, keys)
        if conflict is None:
            self._record(keys, gid)
        return conflict

    def check(self, gid: int, keys: "array[int]") -> Conflict | None:
        """Say what the writeset ordered at ``gid`` loses against, and record nothing."""
        return self._check(keys, gid - 1)

    def preview(self, keys: "array[int]") -> Conflict | None:
        """Say whether a writeset that is not ordered yet has already lost.

        None promises nothing; a conflict is final, because what is recorded only grows.
        """
        return self._check(keys, BASE_MAX)

    def release(self, oldest_base: int) -> None:
        """Drop what no transaction asks for any more.

        Args:
            oldest_base: minimum over the members of their published bases.
        """
        while self._closed and self._closed[0].end <= oldest_base:
            self._drop_oldest()

    def _check(self, keys: "array[int]", newest_base: int) -> Conflict | None:
        position, end = 0, len(keys)
        while position < end:
            first = position + 2
            if first > end or not 0 <= keys[position + 1] <= end - first:
                return MALFORMED
            base = keys[position]
            position = first + keys[position + 1]
            group = keys[first:position]
            if not self.horizon <= base <= newest_base:
                return self.outside(base, group)
            conflict = self.lost(group, base)
            if conflict is not None:
                return conflict
        return None

    def lost(self, keys: "array[int]", base: int) -> Conflict | None:
        """What the first of the keys loses against, all of them of one base; None if none does."""
        conflict = self._young.conflict(keys, base)
        if conflict is None and self._closed and self._closed[-1].end > base:
            conflict = self._closed_conflict(keys, base)
        return conflict

    def outside(self, base: int, keys: "array[int]") -> Conflict:
        """A base that cannot be checked: below the horizon, or not before the writeset itself."""
        if 0 <= base < self.horizon:
            return Conflict(AbortReason.TOO_OLD, keys[0] if keys else 0, self.horizon)
        return MALFORMED

    def _closed_conflict(self, keys: "array[int]", base: int) -> Conflict | None:
        for generation in reversed(self._closed):
            if generation.end <= base:
                break
            if isinstance(generation, BulkGeneration):
                key = generation.conflict(keys)
                conflict = _lost(key, generation.end) if key is not None else None
            else:
                conflict = generation.conflict(keys, base)
            if conflict is not None:
                return conflict
        return None

    def modes_since(self, base: int, modes: dict[int, int]) -> Iterator[None]:
        """Note, in steps, the slots taken after ``base`` but by bulks, with a mode.

        It is the strongest one in their generations, perhaps before ``base``: a key that is
        compatible with it has not lost.
        """
        for generation in (self._young, *self._closed):
            if isinstance(generation, _Generation) and not 0 < generation.end <= base:
                yield from generation.modes_since(base, modes)

    def bulks_since(self, base: int) -> list[BulkGeneration]:
        """The bulks that were taken after ``base``."""
        bulks = [one for one in self._closed if isinstance(one, BulkGeneration)]
        return [bulk for bulk in bulks if bulk.end > base]

    def record_many(self, collector: KeyCollector, gid: int) -> None:
        """Note that the collected and sorted keys were taken at ``gid``."""
        if collector.count * _GENERATIONS <= self.index_limit:
            self._young.record(collector.keys(), gid)
            self._close_full(gid)
            return
        if self._young.size():
            self._close_young(gid - 1)
        bulk = BulkGeneration(gid, collector.keys())
        self._closed.append(bulk)
        self._closed_stamps += bulk.size()
        self._shrink()

    def _record(self, keys: "array[int]", gid: int) -> None:
        position, end = 0, len(keys)
        while position < end:
            first = position + 2
            position = first + keys[position + 1]
            self._young.record(keys[first:position], gid)
        self._close_full(gid)

    def _close_full(self, gid: int) -> None:
        if self._young.size() * _GENERATIONS >= self.index_limit:
            self._close_young(gid)
            self._shrink()

    def _close_young(self, gid: int) -> None:
        self._young.end = gid
        self._closed.append(self._young)
        self._closed_stamps += self._young.size()
        self._young = _Generation()

    def _shrink(self) -> None:
        limit = self.index_limit - self.index_limit // _GENERATIONS  # room for the young one
        while self._closed_stamps > limit and len(self._closed) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        dropped = self._closed.popleft()
        self._closed_stamps -= dropped.size()
        self.horizon = dropped.end

    def dump(self) -> "list[array[int]]":
        """The whole index as int64 arrays, for a checkpoint (equal state, equal arrays)."""
        arrays = [array("q", [self.index_limit, self.horizon])]
        for generation in (*self._closed, self._young):
            parts = generation.dump()
            arrays += [array("q", [len(parts)]), *parts]
        return arrays

    @classmethod
    def load(cls, arrays: "list[array[int]]") -> "Certifier":
        """Rebuild the index from what ``dump`` returned.

        Raises:
            ValueError: the arrays have another shape.
        """
        index_limit, horizon = arrays[0]
        certifier = cls(index_limit)
        certifier.horizon = horizon
        parts = iter(arrays[1:])
        for (count,) in parts:
            generation = _load_generation([next(parts) for _ in range(count)])
            certifier._closed.append(generation)
        young = certifier._closed.pop()
        if isinstance(young, BulkGeneration):
            raise ValueError("a bulk can't be the youngest generation")
        certifier._young = young
        certifier._closed_stamps = sum(generation.size() for generation in certifier._closed)
        return certifier


def _load_generation(arrays: "list[array[int]]") -> "_Generation | BulkGeneration":
    if len(arrays) == 2:
        (end,), keys = arrays
        return BulkGeneration(end, keys)
    (end,), slots, stamps, stronger, gids = arrays
    generation = _Generation()
    generation.end = end
    generation.newest = dict(zip(slots, stamps, strict=True))
    generation.stronger = dict(zip(stronger, gids, strict=True))
    return generation


def _lost(key: int, winner: int) -> Conflict:
    return Conflict(AbortReason.CONFLICT, key, winner)
