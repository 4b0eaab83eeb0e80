"""Ordered twice, decided once: what became of each writeset of one origin member.

An origin sends a writeset again when the proposer changes, so the log may hold copies. The
identity of a writeset is (member, incarnation, sequence); the first copy is decided, later ones
are no-ops that repeat the first verdict (C11). An incarnation supersedes all older ones (C12).

This is part of the deterministic state: it changes only with delivered entries. It is bounded by
the origin's low-water mark, and where an origin does not move its mark, by ``VERDICTS_LIMIT``:
then the mark is raised for it, which excludes still unordered writesets below it.

It survives a restart through ``dump`` and ``load``.
"""

from array import array
from itertools import islice
from typing import Final, NamedTuple

from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict

VERDICTS_LIMIT: Final = 65_536
"""Verdicts remembered per origin: part of the format, since decisions depend on it."""


_NEVER: Final = (1 << 63) - 1
"""More than any sequence number."""


class FirstVerdict(NamedTuple):
    """The verdict on the first copy of a writeset: its GID, and what it lost against, if it did."""

    gid: int
    conflict: Conflict | None


class Origin:
    """What the log has said so far about one member as an origin of writesets."""

    __slots__ = ("_verdicts", "incarnation", "low_water", "published")

    def __init__(self) -> None:
        self.incarnation = 0
        self.low_water = 1
        self.published = 0
        self._verdicts: dict[int, FirstVerdict] = {}  # by sequence, in log order

    @classmethod
    def succeeding(cls, incarnation: int, position: int) -> "Origin":
        """A member that begins at a position, under a number that has had these incarnations.

        Whatever a former member of this number still has under way is excluded, and none of its
        identities comes again: the new one begins an incarnation beyond them.
        """
        origin = cls()
        origin.incarnation = incarnation
        origin.low_water = _NEVER
        origin.published = position
        return origin

    def start_incarnation(self, incarnation: int) -> None:
        """Supersede the older incarnations; a late copy of an old announcement does nothing."""
        if incarnation > self.incarnation:
            self.incarnation = incarnation
            self.low_water = 1
            self._verdicts.clear()

    @property
    def begun(self) -> bool:
        """Whether the newest incarnation is one of this member, not of who had its number."""
        return self.low_water < _NEVER

    def excludes(self, incarnation: int, sequence: int) -> bool:
        """Whether the log rules out that this writeset commits at any later position."""
        return incarnation != self.incarnation or sequence < self.low_water

    def first_verdict(self, sequence: int) -> FirstVerdict | None:
        """The verdict on an earlier copy in this incarnation, if it is still remembered."""
        return self._verdicts.get(sequence)

    def decided(self, sequence: int, verdict: FirstVerdict) -> None:
        """Remember the verdict on a first copy."""
        self._verdicts[sequence] = verdict
        if len(self._verdicts) > VERDICTS_LIMIT:
            kept = VERDICTS_LIMIT // 2
            self.raise_low_water(sorted(self._verdicts)[-kept])

    def raise_low_water(self, low_water: int) -> None:
        """Forget everything below the mark, which never moves back."""
        if low_water <= self.low_water:
            return
        if low_water - self.low_water <= len(self._verdicts):
            for sequence in range(self.low_water, low_water):
                self._verdicts.pop(sequence, None)
        else:
            self._verdicts = {s: v for s, v in self._verdicts.items() if s >= low_water}
        self.low_water = low_water

    def dump(self) -> "array[int]":
        """Everything as int64, for a checkpoint (equal state, equal array)."""
        numbers = array("q", [self.incarnation, self.low_water, self.published])
        for sequence, verdict in self._verdicts.items():
            lost = verdict.conflict
            loss = (lost.reason, lost.key, lost.winner) if lost else (0, 0, 0)
            numbers.extend((sequence, verdict.gid, *loss))
        return numbers

    @classmethod
    def load(cls, numbers: "array[int]") -> "Origin":
        """Rebuild what ``dump`` returned.

        Raises:
            ValueError: the numbers have another shape.
        """
        origin = cls()
        origin.incarnation, origin.low_water, origin.published = numbers[:3]
        fields = islice(numbers, 3, None)
        for sequence, gid, reason, key, winner in zip(*[fields] * 5, strict=True):
            conflict = Conflict(AbortReason(reason), key, winner) if reason else None
            origin._verdicts[sequence] = FirstVerdict(gid, conflict)
        return origin
