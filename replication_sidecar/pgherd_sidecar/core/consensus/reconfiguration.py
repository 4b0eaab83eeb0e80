"""The next membership: the proposer's plan, one entry at a time.

A change of voters takes two entries [V2]. The first installs the old and the new view together;
when it is committed, the second installs the new view alone. A change of learners only takes one.
Every entry is decided here, from the membership in the log and from what the proposer sees; so a
new proposer finishes what its predecessor has begun.

Requests are lost with its term; whoever asked asks again.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from pgherd_sidecar.core.consensus.model.messages import Change
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership, View


@dataclass(frozen=True, slots=True)
class Sight:
    """The proposer's sight of the others.

    Attributes:
        live: members heard of lately, itself among them.
        useless: members that were silent, or flushed nothing of what there is, for so long that
            they are to be evicted.
        caught_up: learners that hold what the proposer had a heartbeat ago.
    """

    live: frozenset[str]
    useless: frozenset[str]
    caught_up: frozenset[str]


class Reconfiguration:
    """Requests waiting for their entry."""

    def __init__(self) -> None:
        self._joining: dict[str, Member] = {}
        self._leaving: set[tuple[str, str]] = set()

    def request(self, change: Change) -> None:
        """Note a request; it is dropped when it can't or need not be fulfilled."""
        self._leaving.update(change.leave)
        if change.join is not None:
            self._joining[change.join.name] = change.join

    def next(self, now: Membership, position: int, sight: Sight) -> Membership | None:
        """Return the membership to be installed at `position`, None if all is well.

        Args:
            now: the membership in the log, one view; see `finished` for two.
            position: of the entry to come.
            sight: what the proposer sees.
        """
        leaving, self._leaving = frozenset(self._leaving), set()
        joining, self._joining = list(self._joining.values()), {}
        for step in (
            without(now, leaving, position, sight.live, demote=True),
            with_learners(now, joining, position),
            with_disks(now, joining, position),
            promoted(now, sight.caught_up, position, sight.live),
            without(now, _of_any_disk(sight.useless), position, sight.live, demote=False),
        ):
            if step is not None:
                return step
        return None

    def shrunk(self, now: Membership, position: int, sight: Sight) -> Membership | None:
        """Return the half of the view that is left, if it is exactly that [Q2]."""
        smaller = without(now, _of_any_disk(sight.useless), position, sight.live, demote=False)
        if smaller is None or not smaller.joint or not smaller.views[0].halves_to(smaller.views[1]):
            return None
        return smaller


def finished(now: Membership, position: int) -> Membership:
    """Return the new view alone, once both have agreed to it."""
    return Membership(now.views[-1:], now.learners, position)


def with_learners(now: Membership, joining: list[Member], position: int) -> Membership | None:
    """Return a membership with a new learner; a voter's name with another disk is refused [V6].

    A reader that asks to be none any more is a learner like others from then on, and will vote.
    One in an entry: whoever judges requests by the membership sees each before the next.
    """
    known = {learner.name: learner for learner in now.learners}
    for member in joining:
        learner = replace(member, since=0)
        if member.name not in now.voters and known.get(member.name) != learner:
            return Membership(now.views, _sorted(known | {member.name: learner}), position)
    return None


def with_disks(now: Membership, joining: list[Member], position: int) -> Membership | None:
    """Return a membership in which voters that ask for it have the disk they say they have."""
    asked = {member.name: member for member in joining}
    view = now.views[-1]
    members = tuple(
        replace(member, disk=asked[member.name].disk, info=asked[member.name].info)
        if member.name in asked and member.has_disk(asked[member.name].disk)
        else member
        for member in view.members
    )
    if members == view.members:
        return None
    new = View(view.generation + 1, members)
    return Membership((view, new), now.learners, position)


def promoted(
    now: Membership, caught_up: Collection[str], position: int, live: Collection[str]
) -> Membership | None:
    """Return a membership in which learners that have caught up vote, unless they are readers."""
    view = now.views[-1]
    ready = [m for m in now.learners if m.name in caught_up and not m.reader]
    # witnesses last: there may have to be more databases first
    ready.sort(key=lambda member: member.witness)
    voters = list(view.members)
    for member in ready:
        witnesses = member.witness + sum(voter.witness for voter in voters)
        if 2 * witnesses < len(voters) + 1:
            voters.append(replace(member, since=position))
    new = _view(view, voters)
    if len(voters) == len(view.members) or not new.has_majority(live):
        return None
    learners = {m.name: m for m in now.learners if m.name not in new.voters}
    return Membership((view, new), _sorted(learners), position)


def without(
    now: Membership,
    leaving: Collection[tuple[str, str]],
    position: int,
    live: Collection[str],
    *,
    demote: bool,
) -> Membership | None:
    """Return a membership without some members, if those who are left can go on alone.

    Args:
        now: the membership in the log.
        leaving: names and disks of who has to go; an empty disk stands for any.
        position: of the entry to come.
        live: members heard of lately.
        demote: witnesses that would be too many become learners; otherwise nobody goes.
    """
    view = now.views[-1]
    learners = {m.name: m for m in now.learners if not _among(m, leaving)}
    voters = [m for m in view.members if not _among(m, leaving)]
    if len(voters) == len(view.members):
        if len(learners) == len(now.learners):
            return None
        return Membership(now.views, _sorted(learners), position)
    for witness in [m for m in voters if m.witness]:
        if 2 * sum(m.witness for m in voters) < len(voters):
            break
        if not demote:
            return None
        voters.remove(witness)
        learners[witness.name] = replace(witness, since=0)
    if not voters:
        return None
    new = _view(view, voters)
    if not new.has_majority(live) or not (view.has_majority(live) or _half(view, new, live)):
        return None
    return Membership((view, new), _sorted(learners), position)


def _among(member: Member, leaving: Collection[tuple[str, str]]) -> bool:
    return any(name == member.name and member.has_disk(disk) for name, disk in leaving)


def _of_any_disk(names: Collection[str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, "") for name in names)


def _half(view: View, new: View, live: Collection[str]) -> bool:
    return view.halves_to(new) and all(voter in live for voter in new.voters)


def _view(old: View, voters: list[Member]) -> View:
    return View(old.generation + 1, tuple(sorted(voters, key=lambda member: member.name)))


def _sorted(members: dict[str, Member]) -> tuple[Member, ...]:
    return tuple(member for _, member in sorted(members.items()))
