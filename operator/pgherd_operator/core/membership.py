"""Changes of who belongs to the herd: one member, one step at a time.

The operator knows how many members are wanted and which volumes there are; the sidecars know the
view. A member that joins does so by itself, once it has a copy of the database; the operator only
ever asks to let one go, or to give up on one whose volume is gone.

A look at the view is old when it is acted upon: who was in no view may have joined meanwhile. So a
volume is not deleted by one look. By the first it is marked, so that its pod is not made again, and
the pod is deleted. When that has ended, nobody can come to vote on that disk any more, for a member
votes only after it has taken what was logged since it was let in. By a look that is taken then, the
proposer and a majority have to say that they do not know it; whoever has joined in time is started
again, and leaves as any other.
"""

from collections.abc import Iterator
from functools import partial

from pgherd_operator.core import founding
from pgherd_operator.core.actions import (
    Action,
    AskEvict,
    AskLeave,
    Create,
    Delete,
    Kind,
    Reason,
    RetireVolume,
    Step,
)  # fmt: skip
from pgherd_operator.core.group import Authority, Group, Member
from pgherd_operator.core.observed import Observed, last_view, numbers_of
from pgherd_operator.objects import config, names, pod
from pgherd_operator.objects.model import Origin, Retired, Role, Seat, wanted


def step(observed: Observed, group: Group) -> Step | None:
    """The next step towards the wanted members; None when there is none to take."""
    fewer = founding.fewer_founders(observed) if group.authority is None else None
    if fewer is not None:
        return fewer
    first, surplus = _unwanted(observed, group), _surplus(observed, group)
    if first is None and surplus is None and _complete(observed, group):
        return None
    authority = group.authority
    if authority is None:
        text = "nobody is in a primary component: who belongs to the herd is not changed"
        return Step(Reason.NO_PRIMARY, text)
    if first is None and surplus is not None and not _votes(surplus):
        first = surplus, Reason.MEMBER_LEAVING  # it costs nothing
    if first is not None:
        return _remove(observed, group, authority, *first)
    # First those who are to come, so that nobody leaves a herd that is too small already.
    growth = _awaited(observed, group, surplus) or _make_room(observed, group, authority)
    if growth is not None or surplus is None:
        return growth
    return _remove(observed, group, authority, surplus, Reason.MEMBER_LEAVING)


def returning(observed: Observed, group: Group) -> list[Step]:
    """Take those for members again that have joined before they could be removed.

    The herd may have no quorum without them, so the newest view that anybody knows counts.
    """
    view = group.authority.view if group.authority is not None else last_view(observed)
    herd = observed.cluster.name
    found = [
        (names.member(herd, number), RetireVolume(names.volume(herd, number), volume.uid, None))
        for number, volume in sorted(observed.volumes.items())
        if volume.retired and not volume.deleting and view is not None and view.find(number)
    ]
    text = "has joined before it could be removed: it is started again, and leaves properly"
    return [Step(Reason.MEMBER_STARTING, f"{name} {text}", (action,)) for name, action in found]


def doomed_volumes(observed: Observed, group: Group) -> list[Step]:
    """Delete the volumes of those who are no members, and have ended before this look."""
    authority, herd = group.authority, observed.cluster.name
    if authority is None or not authority.confirmed:
        return []
    if names.number_of(herd, authority.proposer or "") not in authority.speakers:
        return []  # it may have let somebody in, and a majority has yet to hear of it
    return [
        Step(
            Reason.MEMBER_REMOVED,
            f"deleting the volume of {names.member(herd, number)}, which has ended",
            (Delete(Kind.VOLUME, names.volume(herd, number), volume.uid, volume.version),),
        )
        for number, volume in sorted(observed.volumes.items())
        if volume.retired is Retired.DOOMED
        and not volume.deleting
        and number not in observed.pods
        and authority.view.find(number) is None
    ]


def remains(observed: Observed, group: Group) -> list[Step]:
    """Remove what those had who have left for good: certificates, services and files.

    By the files it is known that something is left, so they go last. A member that comes back on a
    volume that was kept gets all of it anew.
    """
    authority, herd = group.authority, observed.cluster.name
    if authority is None or not authority.confirmed:
        return []
    there = {seat.number for seat in observed.seats()} | observed.pods.keys()
    there |= {member.number for member in authority.view.members}
    left = {n: tuple(_belongings(observed, n)) for n in numbers_of(herd, observed.objects) - there}
    return [
        Step(
            Reason.MEMBER_REMOVED,
            f"removing what {names.member(herd, number)} has left behind",
            left[number],
            quiet=True,
        )
        for number in sorted(left)
        if left[number]
    ]


def _belongings(observed: Observed, number: int) -> Iterator[Delete]:
    """The objects of a member, in the order to remove them: cert-manager makes a missing secret.

    One that is going already may wait for somebody else.
    """
    name = names.member(observed.cluster.name, number)
    certificate = names.certificate(observed.cluster.name, number)
    secret = observed.secrets.get(certificate)
    for kind, one in (
        (Kind.CERTIFICATE, certificate),
        (Kind.SECRET, certificate),
        (Kind.SERVICE, name),
        (Kind.CONFIG_MAP, name),
    ):
        if kind is Kind.SECRET and secret is not None and secret.ours:
            yield Delete(kind, one, secret.uid)
        elif (kind, one) in observed.objects:
            metadata = observed.objects[kind, one]["metadata"]
            if "deletionTimestamp" not in metadata:
                yield Delete(kind, one, metadata["uid"])


def _complete(observed: Observed, group: Group) -> bool:
    """Every place is taken, by a voter as far as anybody can say."""
    spec = observed.cluster.spec
    if any(len(group.of_role(role)) != wanted(spec, role) for role in Role):
        return False
    return group.authority is None or all(member.arrived for member in group.members)


def _unwanted(observed: Observed, group: Group) -> tuple[Member, Reason] | None:
    """The first member that has to go whatever the numbers, and why."""
    for member in group.members:
        if member.lost or member.emptied:
            return member, Reason.MEMBER_LOST
    for member in group.members:
        if member.departed or (member.going and member.in_view is None):
            return member, Reason.MEMBER_LEAVING
    # While writes are held the database of one that has diverged is among what can be chosen.
    if observed.cluster.spec.maintenance.rebuild_diverged and group.held is None:
        for member in group.members:
            if member.report is not None and member.report.diverged:
                return member, Reason.MEMBER_DIVERGED
    return None


def _surplus(observed: Observed, group: Group) -> Member | None:
    """A member that can go: without a vote, or that does not work, or one of too many on a node.

    Else it is the youngest. All others have to be well, so none goes beside one that is not.

    Two that are left on one node could not both be made anew there, where their volumes keep them
    on it and ``spread`` is required. Whose volume is being deleted under it always can go; but as
    all others only when those are there that take its place, for it may hold the last copy.
    """
    going = [member for member in group.members if member.going and member.in_view is not None]
    if going:
        return min(going, key=_votes)
    for role in Role:
        members = group.of_role(role)
        if len(members) > wanted(observed.cluster.spec, role):
            return max(members, key=partial(_dispensable, group=group))
    return None


def _dispensable(member: Member, group: Group) -> tuple[bool, bool, int, int]:
    unfit = not (member.healthy or member.maintained)
    return not _votes(member), unfit, _company(member, group), member.number


def _company(member: Member, group: Group) -> int:
    """How many others have their pods on the member's node."""
    if member.pod is None or not member.pod.node:
        return 0
    pods = [other.pod for other in group.members if other.number != member.number]
    return sum(pod is not None and pod.node == member.pod.node for pod in pods)


def _votes(member: Member) -> bool:
    return member.in_view is not None and member.in_view.voter


def _remove(
    observed: Observed, group: Group, authority: Authority, member: Member, reason: Reason
) -> Step:
    """The next step in the removal of a member: out of the view, then its pod.

    Its volume is marked first; what then becomes of it see ``doomed_volumes``.
    """
    name = names.member(observed.cluster.name, member.number)
    if member.in_view is not None:
        return _out_of_view(group, authority, member, name, reason)
    if not authority.confirmed:
        return Step(Reason.WAITING, f"a majority has yet to confirm that {name} is not a member")
    if member.volume is not None and member.volume.usable:
        keep = observed.cluster.spec.storage.on_scale_down == "Retain"
        retired = Retired.KEPT if keep and reason is Reason.MEMBER_LEAVING else Retired.DOOMED
        claim = names.volume(observed.cluster.name, member.number)
        marked = RetireVolume(claim, member.volume.uid, retired)
        return Step(Reason.MEMBER_REMOVED, f"{name} is no member: removing it", (marked,))
    if member.pod is not None and not member.pod.deleting:
        stopped = Delete(Kind.POD, name, member.pod.uid)
        return Step(Reason.MEMBER_REMOVED, f"stopping what is left of {name}", (stopped,))
    return Step(Reason.WAITING, f"{name} is being removed")


def _out_of_view(
    group: Group, authority: Authority, member: Member, name: str, reason: Reason
) -> Step:
    assert member.in_view is not None
    via = authority.via(other_than=member.number)
    if via is None:
        return Step(Reason.WAITING, f"{name} cannot go: nobody else is in the primary component")
    if reason is Reason.MEMBER_LOST:
        what = "has lost its content" if member.emptied else "is gone"
        text = f"the volume of {name} {what}: asking the others to give up on it"
        ask: Action = AskEvict(via, name, member.in_view.disk_id)
        return Step(reason, text, (ask,), warning=True)
    diverged = reason is Reason.MEMBER_DIVERGED
    spared = group.can_spare_copy if diverged else group.others_are_well
    if member.role is not Role.READER and not spared(member.number):
        return Step(Reason.WAITING, f"{name} has to go, once all others are well")
    if diverged:
        why = member.report.reason if member.report is not None else None
        text = f"{name} has diverged and is made anew: {why or 'it does not say why'}"
        ask = AskEvict(via, name, member.in_view.disk_id)
        return Step(reason, text, (ask,), warning=True)
    return Step(reason, f"{name} leaves the view", (AskLeave(via, name, member.in_view.disk_id),))


def _awaited(observed: Observed, group: Group, surplus: Member | None) -> Step | None:
    """Wait for a member that is on its way: it asks the others itself, when it has its copy.

    Witnesses have to stay under half of the voters: one without a vote may get it only when there
    is another database. A reader holds up nobody but readers, for it may never come up.
    """
    spec = observed.cluster.spec
    short, few = (
        len(group.of_role(role)) < wanted(spec, role) for role in (Role.DATABASE, Role.WITNESS)
    )
    voters_first = short or few or (surplus is not None and surplus.role is not Role.READER)
    for member in group.members:
        if member.arrived or member.volume is None or not member.volume.usable:
            continue
        if short and member.role is Role.WITNESS and member.in_view is not None:
            continue
        if voters_first and member.role is Role.READER:
            continue
        name = names.member(observed.cluster.name, member.number)
        if member.in_view is not None:
            return Step(Reason.WAITING, f"{name} is catching up")
        if member.report is None:
            return Step(Reason.WAITING, f"{name} has yet to answer before it can join")
        why = member.report.reason or member.report.state
        return Step(Reason.WAITING, f"{name} has yet to join: {why}")
    return None


def _make_room(observed: Observed, group: Group, authority: Authority) -> Step | None:
    """Create the volume of one more member, when the ones before it have arrived."""
    ledger = observed.ledger
    assert ledger is not None
    for role in Role:
        if len(group.of_role(role)) >= wanted(observed.cluster.spec, role):
            continue
        if not authority.confirmed:
            return Step(Reason.WAITING, "a majority has yet to confirm the view")
        taken = observed.volumes.keys() | observed.foreign.keys() | observed.pods.keys()
        taken |= {member.number for member in authority.view.members}
        free = [n for n in config.numbers(role) if n not in taken]
        herd = observed.cluster.name
        number = next(
            (n for n in free if observed.is_free(Kind.VOLUME, names.volume(herd, n))), None
        )
        if number is None:
            last = config.numbers(role)[-1]
            text = f"no number up to {last} is free: delete retained volumes"
            return Step(Reason.WAITING, text, warning=True)
        seat = Seat(number, role, Origin.JOINER)
        text = f"a volume for {names.member(observed.cluster.name, number)}, which will join"
        volume = pod.volume(observed.cluster, ledger.cluster_id, seat)
        return Step(Reason.MEMBER_JOINING, text, (Create(volume),))
    return None
