"""Who votes: members, views, and quorum arithmetic.

A `Membership` is what an entry of the log installs: the view in force, or two of them while one
takes over from the other (then both must agree), and the learners, which are fed and don't vote.
It counts from the moment it is in a member's log, committed or not, so that which quorums a
member needs is a function of its log alone [V1].

Any two quorums of one view share a voter. That is all that the log's safety needs of this module:

* *majority*: more than half of the voters. Nothing becomes durable with less [Q1].
* *quorum*: a majority, or exactly half of the voters with the tie-breaker among them. Enough to
  elect, and to order one thing: the view that consists of that half [Q2].

Pure values and functions. What changes a membership is in reconfiguration.py.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from pgherd_sidecar.core.consensus.model.errors import RemoteProtocolError

#: A position that no log reaches.
_EVERYTHING = 1 << 64


@dataclass(frozen=True, slots=True)
class Member:
    """A voter or learner.

    Attributes:
        name: unique in the cluster.
        disk: identity of the disk that holds its log, empty while it is not known. A member with
            another disk is another member: what the old one promised is not on it [V6].
        since: position of the entry that made it a voter; 0 for a learner.
        witness: holds a log and votes, and has no database.
        info: for the caller, how to reach the member, say.
        reader: a learner for good: it is fed, and never votes.
    """

    name: str
    disk: str = ""
    since: int = 0
    witness: bool = False
    info: str = ""
    reader: bool = False

    def has_disk(self, disk: str) -> bool:
        """Tell whether `disk` may be this member's; one that is not known may be any."""
        return disk == self.disk or not (disk and self.disk)

    @property
    def row(self) -> tuple[str | int | bool, ...]:
        """This member as a row of JSON; only that of a reader says so."""
        found = self.name, self.disk, self.since, self.witness, self.info
        return (*found, True) if self.reader else found

    @classmethod
    def of(cls, row: object) -> "Member":
        """Return the member in a row.

        Raises:
            ValueError: it is none.
        """
        match row:
            case [str(name), str(disk), int(since), bool(witness), str(info)]:
                return cls(name, disk, since, witness, info)
            case [str(name), str(disk), int(since), bool(witness), str(info), True]:
                return cls(name, disk, since, witness, info, reader=True)
        raise ValueError(f"{row!r} is no member")


@dataclass(frozen=True, slots=True)
class View:
    """A numbered, immutable list of voters.

    Raises:
        ValueError: no voters, a reader, a name twice, or so many witnesses that a majority might
            hold no database.
    """

    generation: int
    members: tuple[Member, ...]
    #: names of the members
    voters: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        voters = tuple(member.name for member in self.members)
        if not voters or len(set(voters)) != len(voters):
            raise ValueError("a view needs voters, each of them once")
        if any(member.reader for member in self.members):
            raise ValueError("readers do not vote")
        if 2 * sum(member.witness for member in self.members) >= len(voters):
            raise ValueError("witnesses must be fewer than half of the voters")
        object.__setattr__(self, "voters", voters)

    @property
    def tie_breaker(self) -> str:
        """The voter that joined last, never a witness; among those of one entry the last name."""
        databases = (member for member in self.members if not member.witness)
        return max(databases, key=lambda member: (member.since, member.name)).name

    def has_majority(self, who: Collection[str]) -> bool:
        """Tell whether `who` holds more than half of the votes."""
        return 2 * sum(voter in who for voter in self.voters) > len(self.voters)

    def has_quorum(self, who: Collection[str]) -> bool:
        """Tell whether `who` holds more than half of the votes, or half with the tie-breaker."""
        present = 2 * sum(voter in who for voter in self.voters)
        return present > len(self.voters) or (
            present == len(self.voters) and self.tie_breaker in who
        )

    def halves_to(self, new: "View") -> bool:
        """Tell whether `new` is half of this view with the tie-breaker."""
        return (
            2 * len(new.voters) == len(self.voters)
            and set(new.voters) < set(self.voters)
            and self.tie_breaker in new.voters
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """The views that must agree, oldest first; none at a learner that has not been fed yet.

    Attributes:
        views: one, or two while the second takes over.
        learners: members that are fed and don't vote.
        position: of the entry that installs this; 0 for the first of a cluster.
    """

    views: tuple[View, ...] = ()
    learners: tuple[Member, ...] = ()
    position: int = 0

    @classmethod
    def fixed(cls, *voters: str) -> "Membership":
        """Return the first membership of a cluster of these voters."""
        return cls.founded(Member(name) for name in voters)

    @classmethod
    def founded(cls, members: Iterable[Member]) -> "Membership":
        """Return the first membership of a cluster."""
        return cls((View(1, tuple(sorted(members, key=lambda member: member.name))),))

    @property
    def view(self) -> View | None:
        """The newest view."""
        return self.views[-1] if self.views else None

    @property
    def joint(self) -> bool:
        """Whether one view is taking over from another."""
        return len(self.views) > 1

    @property
    def voters(self) -> tuple[str, ...]:
        """Every voter of any view, sorted."""
        return tuple(sorted({voter for view in self.views for voter in view.voters}))

    @property
    def names(self) -> tuple[str, ...]:
        """Every voter and learner, sorted."""
        return tuple(sorted(member.name for member in self.members))

    @property
    def members(self) -> tuple[Member, ...]:
        """Every voter and learner, by what the newest view says of it."""
        found = {learner.name: learner for learner in self.learners}
        for view in self.views:
            found |= {member.name: member for member in view.members}
        return tuple(found.values())

    def knows(self, name: str, disk: str) -> bool:
        """Tell whether a member of this name has this disk [V6]."""
        return any(m.name == name and m.has_disk(disk) for m in self.members)

    def has_majority(self, who: Collection[str]) -> bool:
        """Tell whether `who` is more than half of each view: enough for durability."""
        return bool(self.views) and all(view.has_majority(who) for view in self.views)

    def has_quorum(self, who: Collection[str]) -> bool:
        """Tell whether `who` is a quorum of each view: enough for an election."""
        return bool(self.views) and all(view.has_quorum(who) for view in self.views)

    def flushed_by_quorum(self, flushed: Mapping[str, int], assume: str | None = None) -> int:
        """Return the highest position that a majority of each view has flushed.

        While a view shrinks to its half with the tie-breaker, all of that half are enough, but
        only from the entry that says so on [Q2].

        Args:
            flushed: position flushed by each member; a missing member counts as 0.
            assume: a member taken to have flushed everything. The result then is what will be
                committed as soon as that member has it, which it can judge alone.
        """
        lowest = _EVERYTHING if self.views else 0
        for view in self.views:
            voters = view.voters
            positions = [flushed.get(voter, 0) for voter in voters]
            if assume in voters:
                positions[voters.index(assume)] = _EVERYTHING
            positions.sort()
            lowest = min(lowest, positions[(len(positions) - 1) // 2])
        if len(self.views) == 2 and self.views[0].halves_to(self.views[1]):
            half = self.views[1].voters
            alone = min(flushed.get(voter, 0) for voter in half)  # nothing is assumed here
            if alone >= self.position:
                return max(lowest, alone)
        return lowest

    # ---- as bytes --------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the data of the entry that installs this."""
        views = [[view.generation, [m.row for m in view.members]] for view in self.views]
        learners = [member.row for member in self.learners]
        return json.dumps([self.position, views, learners], separators=(",", ":")).encode()

    @staticmethod
    @lru_cache(maxsize=128)  # each segment holds the same few again
    def decode(data: bytes) -> "Membership":
        """Return the membership in an entry's data.

        Raises:
            RemoteProtocolError: nobody can have encoded this.
        """
        try:
            position, views, learners = json.loads(data)
            membership = Membership(
                tuple(View(int(n), tuple(map(Member.of, members))) for n, members in views),
                tuple(map(Member.of, learners)),
                int(position),
            )
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RemoteProtocolError(f"not a membership: {error}") from error
        if len(membership.views) > 2 or membership.encode() != data:
            raise RemoteProtocolError("not a membership as members encode it")
        return membership
