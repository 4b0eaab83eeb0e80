"""What may be done at any time and to all members at once, for it takes nobody out of service.

Services and other shared objects, certificates, the pods of members that have a volume, growing
volumes. A pod is made for every usable volume, whoever is in the view: identity lies on the volume,
and what the member may do there its sidecar asks the others, not us.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pgherd_operator.api.quantity import parse_quantity
from pgherd_operator.core import imports
from pgherd_operator.core.actions import (
    Apply,
    Create,
    Delete,
    Event,
    GrowVolume,
    IssueCertificate,
    Kind,
    Reason,
    SettleVolume,
    Step,
    TrustAuthorities,
)  # fmt: skip
from pgherd_operator.core.authority import Succession, find_succession
from pgherd_operator.core.group import Group
from pgherd_operator.core.observed import Ledger, Observed, Phase, Secret
from pgherd_operator.objects import config, names, network, pod
from pgherd_operator.objects.model import Manifest, Origin, Release, Seat, digest

_KEYS = {"ca.crt", "tls.crt", "tls.key"}


def differs(wanted: Manifest, live: Mapping[str, Any] | None) -> bool:
    """Whether to apply an object (again).

    It is there as we applied it: the hash is the one of today, and no field that we set has been
    changed since. Fields that we do not set belong to others, defaults of the server included.
    What a web hook makes of our fields it would make of them again: that is left, once noted.
    """
    if live is None:
        return True
    noted = (live["metadata"].get("annotations") or {}).get(names.ADMITTED)
    return not _contains(live, wanted) and noted != _admitted(wanted, live)


def altered(wanted: Manifest, made: Mapping[str, Any]) -> str:
    """Note what has become of an object while it was applied; empty if it is as it was wanted."""
    return "" if _contains(made, wanted) else _admitted(wanted, made)


def told_of(wanted: Manifest) -> Event:
    """What to tell when that has been noted: whoever did it, it is left as it is."""
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    text = f"{kind} {name} is not as it was applied: a web hook or another writer changes it, and "
    text += "it is left so. To have it applied once more: "
    text += f"kubectl annotate {kind.lower()} {name} {names.ADMITTED}-"
    return Event(Reason.OBJECT_ALTERED, text, "Warning")


def _admitted(wanted: Manifest, live: Mapping[str, Any]) -> str:
    return digest([wanted, _of_ours(live, wanted)])


def _of_ours(live: Any, wanted: Any) -> Any:
    """What the fields hold that we set; of a list all, as nobody can tell whose an item is."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return {key: _of_ours(live.get(key), value) for key, value in wanted.items()}
    return live


def _contains(live: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            _contains(live.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(map(_contains, live, wanted))
        )
    # Of a field that is false the API server may keep nothing.
    return bool(live == wanted) or (wanted is False and live is None)


def applying(actions: Sequence[Apply]) -> Step:
    """Make or change objects that are missing or not as they should be, and name them."""
    made = [f"{one.manifest['kind']} {one.manifest['metadata']['name']}" for one in actions]
    return Step(Reason.OBJECTS_APPLIED, f"making or changing {', '.join(made)}", tuple(actions))


def shared_objects(observed: Observed, group: Group, release: Release) -> list[Apply]:
    """Apply those objects of the herd that are missing or not as they should be."""
    voters = len(group.authority.view.voters) if group.authority is not None else 0
    wanted = network.shared(observed.cluster, release.operator_namespace, voters)
    return _apply(observed, wanted)


def _apply(observed: Observed, manifests: Iterable[Manifest]) -> list[Apply]:
    found: list[Apply] = []
    for wanted in manifests:
        key = wanted["kind"], wanted["metadata"]["name"]
        if wanted["kind"] in observed.unreadable:
            continue
        live = observed.objects.get(key)
        if differs(wanted, live) and observed.is_free(*key):
            found.append(Apply(wanted, live["metadata"]["uid"] if live is not None else ""))
    return found


def certificates(observed: Observed, now: datetime) -> list[Step]:
    """Issue and renew what is signed by the herd's own CA; have cert-manager do so with its own.

    Not before the herd is founded, nor without its CA, whose loss is told as that of a credential.
    One that somebody has put in its place takes over as ``authority`` has it.
    """
    cluster, ledger = observed.cluster, observed.ledger
    if ledger is None or ledger.phase is not Phase.FOUNDED or cluster.spec.tls.mode == "Provided":
        return []
    succession = find_succession(observed)
    if cluster.spec.tls.mode == "SelfSigned" and (succession is None or succession.ends <= now):
        return []
    wanted = [
        (names.certificate(cluster.name, number), names.member(cluster.name, number),
         _dns_names(observed, ledger, number))
        for number in observed.certified()
    ]  # fmt: skip
    operator = f"operator.{ledger.cluster_id}.pgherd"
    wanted.append((names.operator_certificate(cluster.name), "operator", (operator,)))
    jobs = f"jobs.{ledger.cluster_id}.pgherd"
    wanted.append((names.jobs_certificate(cluster.name), jobs, (jobs,)))
    if imports.is_open(cluster, ledger):
        importer = names.import_name(ledger.cluster_id)
        wanted.append((names.import_certificate(cluster.name), importer, (importer,)))
    secrets = observed.secrets
    wanted = [one for one in wanted if one[0] not in secrets or secrets[one[0]].ours]
    if succession is None:
        asked = [network.certificate(cluster, ledger.cluster_id, *one) for one in wanted]
        applied = _apply(observed, asked)
        text = "asking cert-manager for certificates"
        return [Step(Reason.CERTIFICATE_ISSUED, text, tuple(applied))] if applied else []
    steps = []
    for name, common_name, dns_names in wanted:
        secret, trusted = secrets.get(name), succession.trusted(name)
        uid = secret.uid if secret is not None else ""
        if _due(secret, succession, now):
            issue = IssueCertificate(
                name, succession.authority.name, succession.authority.authority, common_name,
                ledger.cluster_id, dns_names, cluster.spec.tls.validity_days, trusted, uid,
            )  # fmt: skip
            steps.append(Step(Reason.CERTIFICATE_ISSUED, f"certificate {name}", (issue,)))
        elif secret is not None and secret.trusts != trusted:
            text = f"other authorities to trust, in {name}"
            trust = TrustAuthorities(name, uid, trusted)
            steps.append(Step(Reason.CERTIFICATE_ISSUED, text, (trust,)))
    return steps


def _due(secret: Secret | None, succession: Succession, now: datetime) -> bool:
    """It is not there, not whole, or a former CA's, or two thirds of its validity are over."""
    if secret is None or secret.issued_at is None or secret.not_after is None:
        return True
    if not secret.keys >= _KEYS:
        return True
    if succession.is_former(secret):
        return succession.may_replace(secret, now)
    # None that it signs lasts longer than the authority itself.
    return secret.used(now) >= 2 / 3 and secret.not_after < succession.ends


def _dns_names(observed: Observed, ledger: Ledger, number: int) -> tuple[str, ...]:
    """First the name by which the peers know the member, then those that clients connect to."""
    cluster = observed.cluster
    name = names.member(cluster.name, number)
    services = (name, *(f"{cluster.name}-{one}" for one in ("rw", "ro", "readers", "any")))
    return (
        f"{name}.{ledger.cluster_id}.pgherd",
        names.address(cluster.name, cluster.namespace, number),
        *(f"{service}.{cluster.namespace}.svc" for service in services),
        *(f"{service}.{cluster.namespace}" for service in services),
        *services,
    )


def settled_founders(observed: Observed, group: Group) -> list[Step]:
    """Let those founders found no more whose disk a majority knows as a member's.

    From then on an empty volume of that name is one that has lost its data.
    """
    if group.authority is None or not group.authority.confirmed:
        return []
    herd = observed.cluster.name
    settled = [
        member.volume
        for member in group.members
        if member.healthy and member.volume and member.volume.origin is Origin.FOUNDER
    ]
    return [
        Step(
            Reason.FOUNDING,
            f"{names.member(herd, volume.number)} is a member, and founds no more",
            (SettleVolume(names.volume(herd, volume.number), volume.uid),),
        )
        for volume in settled
    ]


def can_start(observed: Observed, number: int) -> bool:
    """Whether nobody else has the names of a member's pod and of its files."""
    name = names.member(observed.cluster.name, number)
    return observed.is_free("Pod", name) and observed.is_free("ConfigMap", name)


def lacks_certificate(observed: Observed, seat: Seat) -> bool:
    """Whether a pod could not start for want of its certificate."""
    secret = observed.secrets.get(names.certificate(observed.cluster.name, seat.number))
    return secret is None or not secret.keys >= _KEYS


def members(observed: Observed, group: Group, release: Release) -> list[Step]:
    """Configuration, service and pod of each member that has a volume.

    Who is in the view gets a pod first. Under a quota a new member would otherwise take the place
    of one whose vote the others need, also while that one's pod is going.
    """
    known = {one.number for one in group.members if one.in_view is not None}
    steps = [(seat.number in known, _member(observed, seat, release)) for seat in observed.seats()]
    going = any(live.deleting for number, live in observed.pods.items() if number in known)
    waits = going or any(of_herd and step is not None and _starts(step) for of_herd, step in steps)
    return [
        step
        for of_herd, step in steps
        if step is not None and (of_herd or not waits or not _starts(step))
    ]


def _starts(step: Step) -> bool:
    return any(isinstance(action, Create) for action in step.actions)


def _member(observed: Observed, seat: Seat, release: Release) -> Step | None:
    cluster, ledger = observed.cluster, observed.ledger
    assert ledger is not None
    name = names.member(cluster.name, seat.number)
    live = observed.pods.get(seat.number)
    if not can_start(observed, seat.number):
        return None  # with or without a pod: if it has one, that has what it needs
    if live is not None and live.finished and not live.deleting:
        text = f"the pod of {name} ended for good: making a new one"
        return Step(Reason.MEMBER_STARTING, text, (Delete(Kind.POD, name, live.uid),))
    wanted = pod.pod(cluster, ledger.cluster_id, seat, release)
    applied = _apply(observed, network.of_member(cluster, seat))
    # An out-of-date pod keeps the configuration it was made with until it is its turn.
    if live is None or live.revision == wanted["metadata"]["annotations"][names.REVISION]:
        applied += _configuration(observed, ledger, seat, release)
    if live is not None:
        return applying(applied) if applied else None
    if not lacks_certificate(observed, seat):
        return Step(Reason.MEMBER_STARTING, f"starting {name}", (*applied, Create(wanted)))
    if applied:
        return Step(Reason.MEMBER_STARTING, f"preparing {name}", tuple(applied))
    text = f"{name} waits for secret {names.certificate(cluster.name, seat.number)}"
    return Step(Reason.CERTIFICATE_MISSING, text)


def _configuration(observed: Observed, ledger: Ledger, seat: Seat, release: Release) -> list[Apply]:
    """The member's files, if they are not as wanted.

    Who else is a member changes with time and restarts nobody: a difference in that alone is left
    until the pod is made anew.
    """
    wanted = config.config_map(
        observed.cluster,
        ledger.cluster_id,
        seat,
        _companions(observed, ledger, seat),
        release.listen_host,
    )
    live = observed.objects.get(("ConfigMap", wanted["metadata"]["name"]))
    if (
        live is not None
        and seat.number in observed.pods
        and config.same_but_members(live.get("data", {}), wanted["data"])
    ):
        return []
    return _apply(observed, [wanted])


def _companions(observed: Observed, ledger: Ledger, seat: Seat) -> list[Seat]:
    """Whom the member's configuration names, itself included.

    All founders are told of the same founders, whatever has become of the others' volumes since:
    the first view is made from this list.
    """
    founders = [Seat(number, role, Origin.FOUNDER) for number, role in ledger.founders]
    return founders if seat in founders else observed.seats()


def growing_volumes(observed: Observed) -> list[Step]:
    """Ask for larger volumes; all at once, for it is done without a restart."""
    cluster = observed.cluster
    found = []
    for number in sorted(observed.volumes):
        volume = observed.volumes[number]
        size = pod.size(cluster, volume.role)
        if volume.usable and parse_quantity(volume.requested) < parse_quantity(size):
            name = names.volume(cluster.name, number)
            text = f"growing {name} from {volume.requested} to {size}"
            found.append(Step(Reason.VOLUME_GROWING, text, (GrowVolume(name, volume.uid, size),)))
    return found
