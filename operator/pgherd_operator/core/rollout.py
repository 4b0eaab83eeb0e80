"""Replaces pods that are not what the spec asks for: one at a time, and never one too many.

A member that does no work is replaced first and at once: it is likely to be the victim of the
change before this one, and the wait for it to get well would never end. A member that works is
replaced only while all others do. One in maintenance is at work, and nobody is replaced meanwhile.
A pod that is to have ended long ago, on a dead node, is not waited for.

Before a pod is deleted the API server is asked whether it would take the new one. A pod that it
refuses (limits below requests, a policy, a missing priority class) costs no member.
"""

from datetime import datetime

from pgherd_operator.core import upkeep
from pgherd_operator.core.actions import Admit, Delete, Kind, Reason, Step
from pgherd_operator.core.group import Group, Member
from pgherd_operator.core.observed import Observed
from pgherd_operator.objects import names, pod
from pgherd_operator.objects.model import Release


def outdated(observed: Observed, release: Release, *, by_user: bool = False) -> set[int]:
    """Numbers of the pods that were made from something else than today's spec.

    Args:
        by_user: only those that a change of the spec has made so, not the operator's release.
    """
    ledger = observed.ledger
    if ledger is None:
        return set()
    return {
        seat.number
        for seat in observed.seats()
        if seat.number in observed.pods
        and not (by_user and observed.pods[seat.number].wish in ("", pod.wish(observed.cluster)))
        and upkeep.can_start(observed, seat.number)
        and observed.pods[seat.number].revision
        != pod.pod(observed.cluster, ledger.cluster_id, seat, release)["metadata"]["annotations"][
            names.REVISION
        ]
    }


def step(
    observed: Observed, group: Group, release: Release, numbers: set[int], now: datetime
) -> Step | None:
    """Replace the next of these pods, or wait until it can be; None when there are none."""
    members = [member for member in group.members if member.number in numbers]
    if not members:
        return None
    if any(member.pod is not None and member.pod.ends(now) for member in group.members):
        return Step(Reason.WAITING, "a pod is being replaced")
    for member in members:
        stays = member.healthy or member.maintained or (member.pod and member.pod.deleting)
        if not stays and _is_no_loss(observed, group, member):
            return _replace(observed, member, release)
    proposer = group.authority.proposer if group.authority is not None else None
    for member in sorted(
        members, key=lambda m: names.member(observed.cluster.name, m.number) == proposer
    ):
        if member.healthy and not group.maintained and group.others_are_well(member.number):
            return _replace(observed, member, release)
    why = group.maintained or "others are not well yet"
    return Step(Reason.WAITING, f"{len(members)} pods are out of date; {why}")


def _is_no_loss(observed: Observed, group: Group, member: Member) -> bool:
    """Nothing works through this member.

    When no sidecar tells of a primary component, the kubelet's opinion may hold us back: if any pod
    is ready, perhaps it is only we who cannot hear them.
    """
    if group.authority is not None:
        return group.majority_without(member.number)
    return not any(live.ready for live in observed.pods.values())


def _replace(observed: Observed, member: Member, release: Release) -> Step:
    assert member.pod is not None and member.volume is not None and observed.ledger is not None
    seat, cluster_id = member.volume.seat(), observed.ledger.cluster_id
    successor = pod.pod(observed.cluster, cluster_id, seat, release)
    name = names.member(observed.cluster.name, member.number)
    text = f"{name} is out of date: replacing its pod"
    actions = (Admit(successor), Delete(Kind.POD, name, member.pod.uid))
    return Step(Reason.MEMBER_RESTARTING, text, actions)
