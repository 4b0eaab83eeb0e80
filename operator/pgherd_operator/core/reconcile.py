"""The reconciler: from what is observed to what is to be done. Pure and level-triggered.

It remembers nothing. What it must know across its own death lies in the ledger, on the volumes and
in the herd's view; so it may be killed between any two actions, run twice, or see a state that is a
little old, and goes on from what it finds.

The order is that of the risk: founding first, then what disturbs nobody, then at most one step that
touches a member that works.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.status import ClusterStatus
from pgherd_operator.core import (
    founding,
    imports,
    membership,
    rollout,
    status,
    taken,
    upgrade,
    upkeep,
    users,
)
from pgherd_operator.core.actions import (
    Action,
    AddFinalizer,
    Delete,
    Kind,
    Reason,
    RememberSpec,
    RemoveFinalizer,
    Step,
)
from pgherd_operator.core.group import Group, Member, assemble_group
from pgherd_operator.core.observed import Observed
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Release


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome: what to do, in order, and the status to show.

    Attributes:
        users_via: the members to ask for the users of the spec, whether or not they are there.
        watched: something goes on beside it that is to be shown.
    """

    steps: tuple[Step, ...]
    status: ClusterStatus
    users_via: tuple[int, ...] = ()
    watched: bool = False

    @property
    def idle(self) -> bool:
        """There is nothing to do, but perhaps something to wait for."""
        return not any(step.actions for step in self.steps)

    @property
    def settled(self) -> bool:
        """There is nothing to do, and nothing to wait for but a human."""
        waits = not all(step.awaits_human for step in self.steps)
        return self.idle and not waits and not self.watched


class Care(StrEnum):
    """How much of the spec can be relied on."""

    FULL = "Full"
    NO_REPLACING = "NoReplacing"
    """It is not the user's own: pods that are gone are made, and none that is there is replaced."""
    CERTIFICATES = "Certificates"
    """Nothing but what it says of certificates."""


def reconcile(
    observed: Observed,
    now: datetime,
    release: Release,
    *,
    turn: str = "",
    care: Care = Care.FULL,
) -> Plan:
    """Decide what to do next for one herd.

    Args:
        turn: why it may not take over another release, see ``upgrade``; empty if it may.
    """
    group, stage = assemble_group(observed), upgrade.stage(observed, release)
    unadopted = stage is upgrade.Stage.WAITING
    if care is Care.CERTIFICATES:
        described = observed.cluster.status  # nobody knows more without its spec
        if stage is not upgrade.Stage.DONE:
            why = upgrade.why_waiting(observed, group, turn, usable=False)
            described = status.upgraded(described, observed.cluster, release, why, now)
        return Plan(tuple(upkeep.certificates(observed, now)), described)
    made_by = upgrade.pinned(observed.ledger, release)
    outdated = rollout.outdated(observed, made_by, by_user=unadopted)
    usable = care is Care.FULL
    begun = upgrade.step(observed, group, release, turn, usable=usable, outdated=bool(outdated))
    replaced = outdated if usable else set()
    steps = _steps(observed, group, now, made_by, replaced)
    steps = [*_importing(observed, group, made_by), *steps]
    if not observed.cluster.deleting:
        upgrading = [begun] if begun is not None else []
        steps = [*(_remembering(observed) if usable else ()), *upgrading, *steps]
    told = taken.step(observed)
    acting = any(step.actions for step in steps if step.reason is not Reason.VOLUME_GROWING)
    if told is not None and told not in steps and not acting and not observed.cluster.deleting:
        steps.append(told)
    if not steps and observed.foreign:  # told when there is nothing that matters more
        steps = [Step(Reason.FOREIGN_VOLUMES, founding.foreign_volumes(observed), warning=True)]
    # The one that a human waits for is the last: the others are done along the way. Nobody waits
    # for larger volumes: they may be refused for ever.
    paused = status.is_paused(observed.cluster)
    told_of = [
        step
        for step in steps
        if not step.quiet and not (paused and step.reason is Reason.CERTIFICATE_ISSUED)
    ]
    awaited = [step for step in told_of if step.reason is not Reason.VOLUME_GROWING] or told_of
    shown = _with_troubles(awaited[-1], group) if awaited else None
    described = status.describe(observed, group, shown, outdated, now)
    why, under_way = "", stage is upgrade.Stage.UNDER_WAY
    stopped = under_way and (not usable or bool(upgrade.rests(observed)))
    if begun is None and (unadopted or stopped):
        why = upgrade.why_waiting(observed, group, turn, usable=usable)
    described = status.upgraded(described, observed.cluster, release, why, now)
    described = users.shown(described, observed.cluster, None, now)
    described = imports.shown(described, observed, group, now)
    if paused:
        # They run out whatever is paused, and cert-manager renews its own.
        own = observed.cluster.spec.tls.mode == "SelfSigned"
        return Plan(tuple(upkeep.certificates(observed, now)) if own else (), described)
    asked = users.whom_to_ask(observed, group)
    return Plan(tuple(steps), described, asked, imports.is_watched(observed))


def _importing(observed: Observed, group: Group, release: Release) -> list[Step]:
    """What to do about an import online, which is in nobody's way."""
    return [] if observed.cluster.deleting else imports.steps(observed, group, release)


def _remembering(observed: Observed) -> list[Step]:
    """Keep the spec where it is found when there is one that cannot be used.

    What the one before wanted, and this one does not, is removed before it is forgotten.
    """
    cluster, ledger, spec = observed.cluster, observed.ledger, kept(observed.cluster)
    if ledger is None or ledger.spec == spec:
        return []
    monitor = observed.objects.get((Kind.POD_MONITOR, cluster.name))
    if monitor is not None and not cluster.spec.monitoring.pod_monitor:
        text = f"removing PodMonitor {cluster.name}, which is not wanted any more"
        gone = Delete(Kind.POD_MONITOR, cluster.name, monitor["metadata"]["uid"])
        return [Step(Reason.OBJECTS_APPLIED, text, (gone, RememberSpec(spec)))]
    return [Step(Reason.WAITING, "keeping the spec", (RememberSpec(spec),), quiet=True)]


def kept(cluster: Cluster) -> str:
    """The spec as it is kept."""
    return cluster.spec.model_dump_json(by_alias=True, exclude_none=True)


def _steps(
    observed: Observed, group: Group, now: datetime, release: Release, outdated: set[int]
) -> list[Step]:
    cluster = observed.cluster
    if cluster.deleting:
        return _let_go(observed)
    unclaimed = bool(release.operator) and cluster.operator != release.operator
    if names.FINALIZER not in cluster.finalizers or unclaimed:
        return [Step(Reason.FOUNDING, "taking charge", (AddFinalizer(release.operator),))]
    shared = upkeep.shared_objects(observed, group, release)
    steps = [upkeep.applying(shared)] if shared else []
    certificates = upkeep.certificates(observed, now)
    first = founding.found(observed, release)
    lacking = [first] if first is not None and first.reason is Reason.CREDENTIALS_MISSING else []
    if first is not None and not lacking:  # which may wait for a human for long
        return [*steps, *certificates, first]
    steps += certificates  # also while it sleeps: they would be told of as running out
    if cluster.spec.hibernated:
        return [*steps, *lacking, *_sleep(observed), *upkeep.growing_volumes(observed)]
    steps += upkeep.settled_founders(observed, group)
    steps += membership.returning(observed, group)
    steps += upkeep.members(observed, group, release)
    if lacking:  # who is there goes on; a new one may not come up, so nobody is replaced
        return [*steps, *lacking]
    steps += membership.doomed_volumes(observed, group)
    one = membership.step(observed, group)
    if one is None:  # else a number may be given out again at once
        steps += membership.remains(observed, group)
    growing = one is not None and one.reason is Reason.MEMBER_JOINING
    # Waiting for one member must not keep another from being repaired by a newer spec; nor may a
    # volume that is refused for ever, which touches nobody, or a member that may never leave.
    replacing = rollout.step(observed, group, release, outdated, now)
    if replacing is not None and (one is None or replacing.actions):
        if one is None or not one.actions or growing:
            steps += [one] if one is not None and growing else []
            one = replacing
        else:
            one = replace(one, instead=replacing)
    if one is None:
        one = _unwell(group)
    if one is not None:
        steps.append(one)
    # A class of volumes that cannot grow refuses for ever; nothing else shall wait for it.
    return steps + upkeep.growing_volumes(observed)


def _with_troubles(step: Step, group: Group) -> Step:
    """A step to wait for, with the words about pods that do not run: they may be the cause."""
    silent = [member for member in group.members if member.report is None]
    troubles = [_why_unwell(member) for member in silent if member.pod and member.pod.trouble]
    unsaid = [one for one in troubles if one not in step.text]
    if step.actions or not unsaid:
        return step
    return replace(step, text=f"{step.text}; {'; '.join(unsaid)}")


def _unwell(group: Group) -> Step | None:
    """What to wait for when there is nothing to do."""
    silent = [member for member in group.members if not member.healthy]
    if not silent:
        return None
    return Step(Reason.WAITING, f"not well yet: {'; '.join(map(_why_unwell, silent))}")


def _why_unwell(member: Member) -> str:
    """A member and what keeps it from working, in the words of its pod's keeper and in its own."""
    said = [
        member.pod.trouble if member.pod is not None else "",
        member.report.reason if member.report is not None else "",
    ]
    why = "; ".join(filter(None, said))
    if member.report is None and member.pod is None:
        why = "it has no pod"
    return f"member {member.number} ({why})" if why else f"member {member.number}"


def _sleep(observed: Observed) -> list[Step]:
    """Stop all pods, for the log lets them find each other again; but none that keeps its volume.

    A volume claim that was deleted under a pod goes with it, and there may be no other copy.
    """
    running = {number: live for number, live in observed.pods.items() if not live.deleting}
    doomed = sorted(n for n in running.keys() & observed.volumes if observed.volumes[n].deleting)
    herd = observed.cluster.name
    actions = tuple(
        Delete(Kind.POD, names.member(herd, number), running[number].uid)
        for number in sorted(running)
        if number not in doomed
    )
    if doomed:
        claims = ", ".join(names.volume(herd, number) for number in doomed)
        text = f"not stopping who runs on {claims}: deleted, it would go with the pod. Wake the "
        text += "herd (hibernated: false) until others have taken their places"
        return [Step(Reason.HIBERNATED, text, actions, warning=True)]
    return [Step(Reason.HIBERNATED, "stopping all members", actions)] if actions else []


def is_of_another(cluster: Cluster, release: Release) -> bool:
    """Whether another release of the operator looks after this herd.

    Two that do would replace each other's pods for ever: what they render is each one's own.
    """
    return bool(cluster.operator and release.operator) and cluster.operator != release.operator


def _let_go(observed: Observed) -> list[Step]:
    """Settle what happens to the volumes, then let the resource go.

    Retain is the default and needs nothing: volumes and passwords have no owner. A resource that
    was never ours is let go as it is. Garbage collection may have taken the ledger: then those
    volumes are ours that have the id which the resource itself tells.
    """
    cluster = observed.cluster
    own = {cluster.status.cluster_id, founding.born_id(cluster)}
    if observed.ledger is not None:
        own = {observed.ledger.cluster_id}
    doubtful: list[str] = []
    if names.FINALIZER not in cluster.finalizers:
        return []
    if cluster.spec.deletion_policy == "Delete":
        left: list[Action] = [
            Delete(Kind.VOLUME, names.volume(cluster.name, number), volume.uid)
            for number, volume in sorted(observed.volumes.items())
            if not volume.deleting and volume.cluster_id in own
        ]
        doubtful = [
            f"{names.volume(cluster.name, number)} (of herd {volume.cluster_id or 'unknown'})"
            for number, volume in sorted(observed.volumes.items())
            if volume.cluster_id not in own
        ]
        left += [
            Delete(Kind.SECRET, name, observed.secrets[name].uid)
            for name in users.lasting_secrets(cluster)
            if name in observed.secrets and observed.secrets[name].ours
        ]
        if left:
            return [Step(Reason.DELETING, "deleting volumes and passwords", tuple(left))]
    if doubtful:
        text = f"done with it; not deleted, as nobody can tell whose it is: {', '.join(doubtful)}"
        return [Step(Reason.DELETING, text, (RemoveFinalizer(),), warning=True)]
    return [Step(Reason.DELETING, "done with it", (RemoveFinalizer(),))]
