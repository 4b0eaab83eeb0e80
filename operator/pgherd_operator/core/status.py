"""Says how a herd is: the status of the resource, from what was observed and the step at hand."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from pgherd_operator.api.quantity import parse_quantity
from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.status import ClusterStatus, Condition, ConditionType, MemberStatus, Truth
from pgherd_operator.core.actions import Event, Reason, Step
from pgherd_operator.core.authority import find_succession
from pgherd_operator.core.group import Group, Member
from pgherd_operator.core.observed import Observed, Phase, last_view
from pgherd_operator.objects import names, pod
from pgherd_operator.objects.model import Release, Role, wanted

_BESIDES = (
    Reason.UPGRADING,
    Reason.PAUSED,
    Reason.VOLUME_GROWING,
    Reason.FOREIGN_VOLUMES,
    Reason.NAME_TAKEN,
    Reason.IMPORTING,
    Reason.IMPORTED,
    Reason.IMPORT_ABORTED,
)
"""Steps that say nothing about how well the members are."""
_FOR_A_HUMAN = (
    Reason.ACTION_FAILED,
    Reason.CAPTURE_OFF,
    Reason.CERTIFICATE_EXPIRING,
    Reason.CUT_OVER_FAILED,
    Reason.IMPORT_REFUSED,
    Reason.IMPORT_STOPPED,
    Reason.KIND_UNREADABLE,
    Reason.MEMBERS_DIFFER,
    Reason.VOLUME_REFUSED,
    Reason.WRITES_HELD,
)
Verdict = tuple[ConditionType, Truth, Reason, str]
_EVENT_MAX = 1024
_INCIDENT_MAX = 900

_ROLES: Final[Mapping[Role, Literal["Database", "Witness", "Reader"]]] = {
    Role.DATABASE: "Database",
    Role.WITNESS: "Witness",
    Role.READER: "Reader",
}


def describe(
    observed: Observed, group: Group, step: Step | None, outdated: set[int], now: datetime
) -> ClusterStatus:
    """The whole status.

    Args:
        step: what is being done or waited for.
        outdated: numbers of the members whose pod is not what the spec asks for.
    """
    cluster, authority = observed.cluster, group.authority
    expected = sum(wanted(cluster.spec, role) for role in Role)
    ready = sum(member.healthy for member in group.members)
    gids = [report.gid for report in observed.reports.values() if report.gid is not None]
    return ClusterStatus(
        observed_generation=cluster.generation,
        cluster_id=observed.ledger.cluster_id
        if observed.ledger is not None
        else cluster.status.cluster_id,  # garbage collection may take the ledger before us
        component="Primary" if authority else "None" if observed.reports else "Unknown",
        view=authority.view.id if authority else None,
        term=authority.term if authority else None,
        proposer=authority.proposer if authority else None,
        gid=max(gids, default=None),
        members=tuple(_member(observed, group, member, outdated) for member in group.members),
        members_ready=f"{ready}/{expected}",
        instances=sum(seat.role is Role.DATABASE for seat in observed.seats()),
        selector=f"{names.CLUSTER}={cluster.name},{names.ROLE}={Role.DATABASE}",
        step=_told(cluster, step),
        conditions=tuple(
            condition(cluster, verdict, now)
            for verdict in (
                _ready(observed, step, ready, expected),
                _primary(observed, group),
                _progressing(cluster, step),
                _blocked(observed, group),
                _certificates(observed, now),
                _capture(observed, group),
                _agreement(group),
                _databases(group),
                _volumes(observed),
            )
        ),
    )


def news(before: ClusterStatus, described: ClusterStatus) -> Iterator[Event]:
    """What nothing is done about, and a human has to see to; told when it is new, or another."""
    told = {one.message for one in before.conditions}
    for one in described.conditions:
        if one.reason in _FOR_A_HUMAN and one.message not in told:
            yield Event(Reason(one.reason), one.message, "Warning")
    known = {(one.number, one.last_incident) for one in before.members}
    for member in described.members:
        if member.last_incident is not None and (member.number, member.last_incident) not in known:
            text = f"{member.name}: {member.last_incident}"
            yield Event(Reason.MEMBER_INCIDENT, text[:_EVENT_MAX], "Warning")


def reconciled(
    described: ClusterStatus,
    observed: Observed,
    failures: Sequence[tuple[Step, str]],
    now: datetime,
) -> ClusterStatus:
    """The status after the steps were taken: what was refused, in the words of who refused it.

    Args:
        failures: steps that could not be done, and why.
    """
    cluster = observed.cluster
    others = [one for one in failures if one[0].reason is not Reason.VOLUME_GROWING]
    refused = [f"{step.text}: {why}" for step, why in others]
    refused += [
        f"{kind} objects cannot be read, so none is made: {why}"
        for kind, why in sorted(observed.unreadable.items())
    ]
    verdict: Verdict = (ConditionType.RECONCILED, "True", Reason.AS_WANTED, "")
    if refused:
        reason = Reason.ACTION_FAILED if others else Reason.KIND_UNREADABLE
        verdict = (ConditionType.RECONCILED, "False", reason, "; ".join(refused))
    described = replaced(described, condition(cluster, verdict, now))
    for step, why in failures:
        described = described.model_copy(update={"step": why[:1024]})
        if step.reason is Reason.VOLUME_GROWING:
            text = f"{step.text}: {why}"
            verdict = (ConditionType.VOLUMES_SIZED, "False", Reason.VOLUME_REFUSED, text)
            described = replaced(described, condition(cluster, verdict, now))
    return described


def upgraded(
    described: ClusterStatus, cluster: Cluster, release: Release, why: str, now: datetime
) -> ClusterStatus:
    """The status with what is to be told of the operator's release.

    Args:
        why: the herd has not taken it over; empty if it has.
    """
    verdict: Verdict = (ConditionType.UPGRADED, "True", Reason.AS_WANTED, release.version)
    if why:
        text = f"release {release.version} waits, and members go on with their images: {why}"
        verdict = (ConditionType.UPGRADED, "False", Reason.UPGRADE_WAITS, text)
    return replaced(described, condition(cluster, verdict, now))


def replaced(described: ClusterStatus, one: Condition) -> ClusterStatus:
    """The status with this condition in place of the one of its type."""
    others = (other for other in described.conditions if other.type is not one.type)
    return described.model_copy(update={"conditions": (*others, one)})


def unobserved(cluster: Cluster, why: str, now: datetime) -> ClusterStatus:
    """The status of a herd that cannot be looked at: as it was last seen, and nobody knows."""
    text = f"the herd cannot be looked at, so nothing is done: {why}"
    unknown: Verdict = (ConditionType.READY, "Unknown", Reason.ACTION_FAILED, text)
    failed: Verdict = (ConditionType.RECONCILED, "False", Reason.ACTION_FAILED, text)
    shown = replaced(cluster.status, condition(cluster, unknown, now))
    shown = replaced(shown, condition(cluster, failed, now))
    return shown.model_copy(update={"step": text[:1024]})


def refused(cluster: Cluster, why: str, now: datetime, shown: ClusterStatus) -> ClusterStatus:
    """The status of a herd whose spec cannot be used: as it is, but not ready.

    Args:
        cluster: with another spec in place of the one that is refused.
        shown: how it is, or as it was last seen.
    """
    ready = condition(cluster, (ConditionType.READY, "False", Reason.INVALID_SPEC, why), now)
    return replaced(shown, ready).model_copy(
        update={
            "observed_generation": cluster.generation,
            "step": f"{Reason.INVALID_SPEC}: {why}",
        }
    )


def _member(observed: Observed, group: Group, member: Member, outdated: set[int]) -> MemberStatus:
    report, in_view = member.report, member.in_view
    of_another = observed.reports.get(member.number) if report is None else None
    trouble = member.pod.trouble or None if member.pod is not None else None
    reason = trouble or (report.reason if report is not None else None)
    if of_another is not None:
        reason = f"it is of cluster {of_another.cluster_id}"
    incidents, last_incident = _incidents(observed, member)
    return MemberStatus(
        name=names.member(observed.cluster.name, member.number),
        number=member.number,
        role=_ROLES[member.role],
        state=report.state if report is not None else "Silent",
        reason=reason,
        in_view="Unknown" if group.authority is None
        else "No" if in_view is None
        else "Voter" if in_view.voter
        else "Reader" if in_view.reader
        else "Learner",
        gid=report.gid if report is not None else None,
        lag_bytes=report.lag_bytes if report is not None else None,
        incidents=incidents,
        last_incident=last_incident,
        up_to_date=member.number not in outdated,
    )  # fmt: skip


def _incidents(observed: Observed, member: Member) -> tuple[int, str | None]:
    """How many incidents a member has had, and the newest; as it was last told if it is silent."""
    if member.report is None:
        shown = observed.cluster.status.members
        before = next((one for one in shown if one.number == member.number), None)
        return (before.incidents, before.last_incident) if before is not None else (0, None)
    newest = member.report.incident
    return (newest.number, newest.text[:_INCIDENT_MAX]) if newest is not None else (0, None)


def condition(cluster: Cluster, verdict: Verdict, now: datetime) -> Condition:
    """Make a condition of a herd."""
    return Condition.of(cluster, now, *verdict)


def is_paused(cluster: Cluster) -> bool:
    """Whether nothing is done but what may not wait."""
    return cluster.spec.maintenance.paused and not cluster.deleting


def _told(cluster: Cluster, step: Step | None) -> str:
    """A step in words; while the herd is paused, that it is not taken."""
    text = step.text if step is not None else ""
    if not is_paused(cluster):
        return text
    if step is not None and step.actions:
        return f"paused by the spec, so this is not done: {text}"
    return f"paused by the spec; {text}" if text else "paused by the spec"


def _ready(observed: Observed, step: Step | None, ready: int, expected: int) -> Verdict:
    kind, cluster = ConditionType.READY, observed.cluster
    paused = step is not None and bool(step.actions) and is_paused(cluster)
    if cluster.spec.hibernated and not paused:
        return kind, "False", Reason.HIBERNATED, "the herd sleeps; its volumes are kept"
    if ready == expected and (step is None or step.reason in _BESIDES):
        return kind, "True", Reason.WRITABLE, f"{ready} of {expected} members, all up to date"
    reason = step.reason if step is not None else Reason.WAITING
    reason = Reason.PAUSED if paused else reason
    why = _told(cluster, step) if step is not None else "a member is not well"
    return kind, "False", reason, f"{ready} of {expected} members: {why}"


def _primary(observed: Observed, group: Group) -> Verdict:
    kind, authority = ConditionType.PRIMARY_COMPONENT, group.authority
    if authority is not None:
        voters = len(authority.view.voters)
        return kind, "True", Reason.WRITABLE, f"view {authority.view.id} of {voters} voters"
    if observed.reports:
        return kind, "False", Reason.NO_PRIMARY, "members answer; none is in a primary component"
    return kind, "Unknown", Reason.WAITING, "no sidecar answers"


def _progressing(cluster: Cluster, step: Step | None) -> Verdict:
    kind = ConditionType.PROGRESSING
    if is_paused(cluster):
        return kind, "False", Reason.PAUSED, _told(cluster, step)
    if step is None:
        return kind, "False", Reason.AS_WANTED, "everything is as wanted"
    if step.awaits_human:
        return kind, "False", step.reason, step.text
    return kind, "True", step.reason, step.text


def _blocked(observed: Observed, group: Group) -> Verdict:
    """No quorum of the last known view can come back: say who is missing and what that costs."""
    kind, ledger = ConditionType.RECOVERY_BLOCKED, observed.ledger
    if group.authority is not None or ledger is None or ledger.phase is not Phase.FOUNDED:
        return kind, "False", Reason.AS_WANTED, ""
    view = last_view(observed)
    if view is None:
        if observed.volumes:
            return kind, "Unknown", Reason.WAITING, "no member tells of a view"
        return kind, "True", Reason.RECOVERY_BLOCKED, "no member has a volume: the data are gone"
    missing = [voter.name for voter in view.voters if voter.number not in observed.volumes]
    if len(view.voters) - len(missing) >= view.majority:
        return kind, "False", Reason.AS_WANTED, ""
    known = [r.gid for r in observed.reports.values() if r.gid is not None]
    return (
        kind, "True", Reason.RECOVERY_BLOCKED,
        f"view {view.id} has lost its quorum for good: the volumes of {', '.join(missing)} are "
        f"missing. Restore them; going on without them by force may lose commits after GID "
        f"{max(known, default='unknown')}",
    )  # fmt: skip


def _certificates(observed: Observed, now: datetime) -> Verdict:
    kind, cluster = ConditionType.CERTIFICATES_VALID, observed.cluster
    authority = names.authority(cluster.name)
    wanted = {names.certificate(cluster.name, number) for number in observed.certified()}
    if wanted:
        wanted.add(names.operator_certificate(cluster.name))
    missing = sorted(wanted - observed.secrets.keys())
    if missing:
        return kind, "False", Reason.CERTIFICATE_MISSING, f"missing: {', '.join(missing)}"
    late = [
        f"{one.name} {'ran' if one.not_after < now else 'runs'} out on {one.not_after:%Y-%m-%d}"
        for one in sorted(observed.secrets.values(), key=lambda one: one.name)
        if one.not_after is not None
        and one.runs_out(now, by_hand=cluster.spec.tls.mode == "Provided" or one.name == authority)
    ]
    if late:
        return kind, "False", Reason.CERTIFICATE_EXPIRING, ", ".join(late)
    succession = find_succession(observed)
    unusable = cluster.spec.tls.mode == "SelfSigned" and succession is None
    if unusable:
        wanted |= {authority} & observed.secrets.keys()
    unread = sorted(one for one in wanted if observed.secrets[one].not_after is None)
    if unread:
        text = f"no certificate can be read in {', '.join(unread)}"
        return kind, "False", Reason.CERTIFICATE_MISSING, text
    if unusable and authority in wanted:
        text = f"nobody would accept what {authority} signs: tls.crt has to be an authority's, and "
        text += "to lead with ca.crt to one that has signed itself"
        return kind, "False", Reason.CERTIFICATE_MISSING, text
    if succession is not None and succession.text:
        return kind, "False", Reason.AUTHORITY_REPLACED, succession.text
    return kind, "True", Reason.AS_WANTED, ""


def _capture(observed: Observed, group: Group) -> Verdict:
    """Whether the servers are set to let us see all changes, as far as their sidecars say."""
    kind, herd = ConditionType.CAPTURE_ON, observed.cluster.name
    reports = [member.report for member in group.members if member.report is not None]
    off = [
        f"{names.member(herd, one.number)}: {text}" for one in reports for text in one.capture_off
    ]
    if off:
        return kind, "False", Reason.CAPTURE_OFF, "; ".join(off)
    if not reports:
        return kind, "Unknown", Reason.WAITING, "no sidecar answers"
    return kind, "True", Reason.AS_WANTED, ""


def _agreement(group: Group) -> Verdict:
    """Whether members' tables are equal, as far as their scrub has come. Nothing is done about it.

    Each of them knows what it has heard of.
    """
    kind = ConditionType.MEMBERS_AGREE
    told = [
        member.report.differences
        for member in group.members
        if member.report is not None and member.report.differences is not None
    ]
    if not told:
        return kind, "Unknown", Reason.WAITING, "no sidecar tells of a scrub"
    found = sorted({text for differences in told for text in differences})
    if found:
        return kind, "False", Reason.MEMBERS_DIFFER, "; ".join(found)
    return kind, "True", Reason.AS_WANTED, ""


def _databases(group: Group) -> Verdict:
    """Whether more than one database holds what is acknowledged, or is about to."""
    kind = ConditionType.DATABASES_SUFFICE
    held, known = (
        group.held,
        any(one.report and one.report.knows_databases for one in group.members),
    )
    if held is not None:
        return kind, "False", Reason.WRITES_HELD, held
    if not known:
        return kind, "Unknown", Reason.WAITING, "no sidecar of a database answers"
    return kind, "True", Reason.AS_WANTED, ""


def _volumes(observed: Observed) -> Verdict:
    """Whether all volumes are as large, and of the class, that they are to be, if anybody says."""
    kind, cluster = ConditionType.VOLUMES_SIZED, observed.cluster
    behind: list[str] = []
    others: list[str] = []
    wanted_class = cluster.spec.storage.class_name
    for number, volume in sorted(observed.volumes.items()):
        name, wanted = names.volume(cluster.name, number), pod.size(cluster, volume.role)
        if not volume.usable:
            continue
        if wanted_class and volume.class_name not in ("", wanted_class):
            others.append(f"{name} is of class {volume.class_name}, not {wanted_class}")
        if parse_quantity(volume.requested) < parse_quantity(wanted):
            behind.append(f"{name} is to grow from {volume.requested} to {wanted}")
        elif volume.capacity and parse_quantity(volume.capacity) < parse_quantity(volume.requested):
            said = f" ({volume.growth})" if volume.growth else ""
            behind.append(f"{name} has {volume.capacity} of {volume.requested}{said}")
    if behind or others:
        reason = Reason.VOLUME_GROWING if behind else Reason.VOLUME_CLASS
        return kind, "False", reason, ", ".join(behind + others)
    return kind, "True", Reason.AS_WANTED, ""
