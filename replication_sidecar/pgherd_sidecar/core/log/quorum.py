"""Quorum arithmetic: pure functions of a membership.

A `Membership` holds the views in force: one, or two while one takes over from the other; then
both must agree (joint quorums). Any two quorums of the same view share a member, which is all
that the log's safety needs of this module. Tie-breaker and witnesses will be decided here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """A numbered, immutable list of voters."""

    generation: int
    voters: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.voters or len(set(self.voters)) != len(self.voters):
            raise ValueError("a view needs voters, each of them once")


@dataclass(frozen=True, slots=True)
class Membership:
    """The views that must agree, oldest first."""

    views: tuple[View, ...]

    @classmethod
    def fixed(cls, *voters: str) -> "Membership":
        """Return a membership of one view that never changes."""
        return cls((View(1, tuple(sorted(voters))),))

    @property
    def members(self) -> tuple[str, ...]:
        """Every voter of any view, sorted."""
        return tuple(sorted({voter for view in self.views for voter in view.voters}))

    def has_quorum(self, who: Collection[str]) -> bool:
        """Tell whether `who` holds more than half of the votes of each view."""
        return all(
            2 * sum(voter in who for voter in view.voters) > len(view.voters) for view in self.views
        )

    def flushed_by_quorum(self, flushed: Mapping[str, int], assume: str | None = None) -> int:
        """Return the highest position that a quorum of each view has flushed.

        Args:
            flushed: position flushed by each member; a missing member counts as 0.
            assume: a member taken to have flushed everything. The result then is what will be
                committed as soon as that member has it, which it can judge alone.
        """
        lowest = _EVERYTHING
        for view in self.views:
            voters = view.voters
            positions = [flushed.get(voter, 0) for voter in voters]
            if assume in voters:
                positions[voters.index(assume)] = _EVERYTHING
            positions.sort()
            lowest = min(lowest, positions[(len(positions) - 1) // 2])
        return lowest


#: A position that no log reaches.
_EVERYTHING = 1 << 64
