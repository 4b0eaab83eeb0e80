"""What the sidecars say, taken together: who is in the herd, and who is well.

The operator believes a member in the primary component, the newest one if several answer; for what
destroys something it wants a majority of the view's voters to say the same. It never fills a gap in
this knowledge with what Kubernetes shows of a pod.
"""

from dataclasses import dataclass

from pgherd_operator.core.observed import Observed, ObservedVolume, Pod, Report, View, ViewMember
from pgherd_operator.objects.model import Role

_AT_WORK = ("primary", "witness")
"""States of a member that does what it is there for, if it votes."""
_READS = "reader"


@dataclass(frozen=True, slots=True)
class Authority:
    """The view in force and a member to speak to.

    Attributes:
        confirmed: a majority of its voters report this view, and nothing is taking over from it, so
            no other can be in force.
    """

    view: View
    term: int
    proposer: str | None
    speakers: tuple[int, ...]
    confirmed: bool

    def via(self, *, other_than: int) -> int | None:
        """A member to ask; never the one that the question is about."""
        return next((number for number in self.speakers if number != other_than), None)


@dataclass(frozen=True, slots=True)
class Member:
    """One number, from all sides."""

    number: int
    volume: ObservedVolume | None
    pod: Pod | None
    report: Report | None
    in_view: ViewMember | None
    voting: bool
    """By its own word it has a vote in the view in force, on the disk that the view knows."""
    healthy: bool
    """It votes and takes writes, or is a reader and follows: all that it is there for."""
    departed: bool
    """It was a member on this disk, which never is one again."""
    maintained: bool = False
    """It does what a restart would break off, such as VACUUM FULL, whether or not it is drained."""

    @property
    def lost(self) -> bool:
        """In the view, and there is nothing that it could come back from."""
        return self.in_view is not None and self.volume is None and self.pod is None

    @property
    def emptied(self) -> bool:
        """In the view, but the disk that it runs on is not the one that the view knows."""
        known = self.in_view.disk_id if self.in_view is not None else ""
        mine = self.report.disk_id if self.report is not None else ""
        return "" not in (known, mine) and known != mine

    @property
    def going(self) -> bool:
        """Its volume is to be used no more, or its pod runs on one that is no more."""
        return not self.lost and (self.volume is None or not self.volume.usable)

    @property
    def gone(self) -> bool:
        """Nothing is left of it that it could come back with, or that we could remove."""
        return (
            self.in_view is None
            and (self.volume is None or not self.volume.usable)
            and (self.pod is None or self.pod.deleting)
        )

    @property
    def role(self) -> Role:
        """What it is there for."""
        if self.volume is not None:
            return self.volume.role
        if self.in_view is not None:
            return self.in_view.role
        assert self.pod is not None
        return self.pod.role

    @property
    def awaited(self) -> bool:
        """It does not do its work, and is worth waiting for.

        A reader without a node is not: it may never get one, and nobody's vote depends on it.
        """
        unplaced = self.role is Role.READER and self.pod is not None and self.pod.unplaced
        return not (self.healthy or unplaced)

    @property
    def arrived(self) -> bool:
        """It is in the view as what it is to be: a voter, or a reader."""
        return self.in_view is not None and (self.in_view.voter or self.in_view.reader)


@dataclass(frozen=True, slots=True)
class Group:
    """The herd as it is known at this moment."""

    authority: Authority | None
    members: tuple[Member, ...]

    @property
    def held(self) -> str | None:
        """Why the herd takes no writes until an administrator has chosen; None if it does.

        Whoever is in the primary component knows best; one that is not may be behind.
        """
        reports = [one.report for one in self.members if one.report is not None]
        knowing = [one for one in reports if one.knows_databases]
        best = max(knowing, key=lambda one: (one.primary, one.gid or 0), default=None)
        return None if best is None else best.held

    @property
    def maintained(self) -> str:
        """The members in maintenance, in words; empty if there are none."""
        numbers = [str(one.number) for one in self.members if one.maintained]
        return f"member {', '.join(numbers)} is in maintenance" if numbers else ""

    def others_are_well(self, number: int) -> bool:
        """Whether everybody else does its work, so that this one can be spared.

        A member that is about to be removed or made anew does not count, except as a voter: while
        it has a vote, it has to be well. A reader counts for other readers only.
        """
        reads = any(one.number == number and one.role is Role.READER for one in self.members)
        return not any(
            member.awaited
            for member in self.members
            if member.number != number
            and (member.in_view is not None or not member.going)
            and (reads or member.role is not Role.READER)
        )

    def can_spare_copy(self, number: int) -> bool:
        """Whether the others hold the log together, and one of them a database to copy."""
        others = [member for member in self.members if member.number != number]
        return all(
            member.voting
            for member in others
            if member.in_view is not None and member.in_view.voter
        ) and any(member.healthy and member.role is Role.DATABASE for member in others)

    def majority_without(self, number: int) -> bool:
        """Whether the others alone are well enough to go on committing."""
        if self.authority is None:
            return False
        well = sum(
            member.healthy and member.in_view is not None and member.in_view.voter
            for member in self.members
            if member.number != number
        )
        return well >= self.authority.view.majority

    def of_role(self, role: Role) -> list[Member]:
        """Members that hold a place of that role, and can keep it."""
        return [
            member
            for member in self.members
            if member.role is role and not (member.lost or member.going)
        ]


def assemble_group(observed: Observed) -> Group:
    """Put together what is known."""
    ledger = observed.ledger
    cluster_id = ledger.cluster_id if ledger is not None else ""
    reports = {n: r for n, r in observed.reports.items() if r.cluster_id == cluster_id}
    authority = find_authority(list(reports.values()))
    view = authority.view if authority is not None else None
    numbers = observed.volumes.keys() | observed.pods.keys()
    if view is not None:
        numbers |= {member.number for member in view.members}
    members = []
    for number in sorted(numbers):
        report, in_view = reports.get(number), view.find(number) if view else None
        known = _known(report, in_view, view)
        voting = known and in_view is not None and in_view.voter
        state = report.state if report is not None else ""
        members.append(
            Member(
                number=number,
                volume=observed.volumes.get(number),
                pod=observed.pods.get(number),
                report=report,
                in_view=in_view,
                voting=voting,
                healthy=known and (state in _AT_WORK if voting else state == _READS),
                departed=in_view is None and _has_left(report, view),
                maintained=known and report is not None and report.maintained,
            )
        )
    return Group(authority, tuple(member for member in members if not member.gone))


def find_authority(reports: list[Report]) -> Authority | None:
    """The newest view that a member of a primary component tells of, if two do not contradict."""
    primary = [report for report in reports if report.primary and report.view is not None]
    if not primary:
        return None
    newest = max(primary, key=lambda report: (_view(report).id, report.term))
    view = _view(newest)
    same_id = [report for report in primary if _view(report).id == view.id]
    if any(set(_view(report).members) != set(view.members) for report in same_id):
        return None  # impossible; so nothing is known
    voters = {(voter.number, voter.disk_id) for voter in view.voters}
    saying_so = [report.number for report in same_id if (report.number, report.disk_id) in voters]
    if not saying_so:
        return None
    return Authority(
        view=view,
        term=newest.term,
        proposer=newest.proposer,
        speakers=tuple(sorted(saying_so)),
        confirmed=len(saying_so) >= view.majority and not view.joint,
    )


def _view(report: Report) -> View:
    assert report.view is not None
    return report.view


def _has_left(report: Report | None, view: View | None) -> bool:
    """It says so, or takes itself for a member by an older view than the one in force."""
    if report is None or view is None:
        return False
    if report.departed or report.view is None or report.view.id >= view.id:
        return report.departed
    known = report.view.find(report.number)
    return known is not None and known.disk_id == report.disk_id


def _known(report: Report | None, in_view: ViewMember | None, view: View | None) -> bool:
    """It is the member that the view in force knows, by its own word."""
    if report is None or in_view is None or view is None or report.view is None:
        return False
    return report.primary and report.view.id == view.id and in_view.disk_id == report.disk_id
