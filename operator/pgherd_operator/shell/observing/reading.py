"""One look at everything: from API objects and sidecars' answers to ``Observed``.

The parsing functions are pure. ``observe`` asks all sidecars at once and waits a bounded time: a
member that hangs delays the others' reconciliation by no more than that.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import structlog

from pgherd_operator.api.resource import Cluster
from pgherd_operator.core import imports, taken, users
from pgherd_operator.core.observed import (
    Imported,
    Key,
    Ledger,
    Observed,
    ObservedVolume,
    Phase,
    Pod,
    Report,
    Secret,
    numbers_of,
)
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Origin, Retired, Role
from pgherd_operator.shell.kube.interface import ApiError, KubernetesApi, Manifest, NotFoundError
from pgherd_operator.shell.observing import certificates, owners
from pgherd_operator.shell.observing.sidecars import ANSWER_S, SidecarError, Sidecars
from pgherd_operator.shell.observing.sidecars import parse as parse_report

log = structlog.get_logger()

_Member = TypeVar("_Member", Pod, ObservedVolume)

_SERVERS = ("postgres", "seed")
"""Containers whose logs may have statements and rows; a status is read by more people."""
SHARED_KINDS = (
    "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount",
)  # fmt: skip


async def observe(api: KubernetesApi, sidecars: Sidecars, cluster: Cluster) -> Observed:
    """Look at everything that belongs to a herd.

    Raises:
        ApiError: the picture would have holes.
    """
    found, unreadable = await _listed(api, cluster)
    volumes = by_number(
        found.pop("PersistentVolumeClaim"),
        parse_volume,
        lambda number: names.volume(cluster.name, number),
    )
    seats = [volume.seat() for volume in volumes.values() if volume.usable]
    listed = [item for items in found.values() for item in items]
    expected = {key for key in taken.expected(cluster, seats) if key[0] not in unreadable}
    whose = await owners.tell_apart(api, cluster, listed, expected)
    pods = by_number(
        [
            labelled(item, cluster.name, volumes)
            for (kind, _), item in whose.ours.items()
            if kind == "Pod"
        ],
        parse_pod,
        lambda number: names.member(cluster.name, number),
    )
    objects = {key: item for key, item in whose.ours.items() if key[0] != "Pod"}
    secrets, reports, pods = await asyncio.gather(
        _secrets(api, cluster, volumes.keys() | pods.keys() | numbers_of(cluster.name, objects)),
        _reports(sidecars, pods.keys()),
        _with_warnings(api, cluster, pods, volumes),
    )
    ledger = parse_ledger(objects.get(("ConfigMap", names.ledger(cluster.name))))
    objects |= await _unwanted_monitor(api, cluster, ledger)
    views = [report.view for report in reports.values() if report.view is not None]
    known = volumes.keys() | pods.keys()
    foreign = {
        number: volume
        for number, volume in volumes.items()
        if ledger is not None and volume.cluster_id != ledger.cluster_id
    }
    own = {number: volumes[number] for number in volumes.keys() - foreign.keys()}
    claims = await owners.claims_of_others(api, cluster, ledger, own, known, views)
    return Observed(
        cluster=cluster,
        ledger=ledger,
        volumes=own,
        foreign=foreign,
        pods=pods,
        secrets=secrets,
        objects=objects,
        taken=whose.taken | claims,
        passing=whose.passing,
        unreadable=unreadable,
        reports=reports,
    )


def labelled(item: Manifest, herd: str, volumes: Mapping[int, ObservedVolume]) -> Manifest:
    """A pod of the herd's own with the labels that services, the budget and the policy go by.

    One that somebody has changed is out of date, whatever it was made from: labels of a pod are
    not put right while it runs.
    """
    metadata = item["metadata"]
    number, labels = names.number_of(herd, metadata["name"]), metadata.get("labels") or {}
    if number is None:
        return item
    volume = volumes.get(number)
    role = volume.role if volume is not None else labels.get(names.ROLE, Role.DATABASE)
    wanted = {names.CLUSTER: herd, names.MEMBER: str(number), names.ROLE: role}
    if all(labels.get(name) == value for name, value in wanted.items()):
        return item
    annotations = {**(metadata.get("annotations") or {}), names.REVISION: ""}
    return item | {"metadata": metadata | {"labels": labels | wanted, "annotations": annotations}}


async def _listed(
    api: KubernetesApi, cluster: Cluster
) -> tuple[dict[str, list[Manifest]], dict[str, str]]:
    """All objects with the herd's label, by kind, and why kinds of others could not be listed.

    Kinds that others bring (PodMonitor, Certificate) may not be installed, or the operator may
    have no right to them. The herd goes on without, and says so.
    """
    optional = []
    if cluster.spec.monitoring.pod_monitor:
        optional.append("PodMonitor")
    if cluster.spec.tls.mode == "CertManager":
        optional.append("Certificate")
    selector = f"{names.CLUSTER}={cluster.name}"
    unreadable: dict[str, str] = {}

    async def listed(kind: str) -> list[Manifest]:
        try:
            return await api.list(kind, cluster.namespace, selector)
        except ApiError as error:
            if kind not in optional or error.status not in (403, 404):
                raise
            unreadable[kind] = str(error)
            return []

    kinds = [*SHARED_KINDS, "PersistentVolumeClaim", "Pod", *optional]
    lists = await asyncio.gather(*map(listed, kinds))
    return dict(zip(kinds, lists, strict=True)), unreadable


async def _unwanted_monitor(
    api: KubernetesApi, cluster: Cluster, ledger: Ledger | None
) -> dict[Key, Manifest]:
    """The PodMonitor that the spec before wanted; where none was wanted nobody looks for one."""
    if ledger is None or cluster.spec.monitoring.pod_monitor or not _monitored(ledger):
        return {}
    try:
        found = await api.get("PodMonitor", cluster.namespace, cluster.name)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return {}
    return {("PodMonitor", cluster.name): found} if owners.is_owned(found, cluster) else {}


def _monitored(ledger: Ledger) -> bool:
    try:
        return bool(json.loads(ledger.spec)["monitoring"]["podMonitor"])
    except (LookupError, RecursionError, TypeError, ValueError):  # none was kept, or edited
        return False


async def _with_warnings(
    api: KubernetesApi,
    cluster: Cluster,
    pods: Mapping[int, Pod],
    volumes: Mapping[int, ObservedVolume],
) -> dict[int, Pod]:
    """Pods that wait, with the words of those who make disks and mount them.

    Those write nothing into a pod's status, only Events.
    """

    async def told(number: int, pod: Pod) -> Pod:
        if not pod.pending:
            return pod
        words = [pod.trouble or await warned(api, cluster.namespace, pod.uid)]
        volume = volumes.get(number)
        if volume is not None and volume.pending:
            claim = await warned(api, cluster.namespace, volume.uid)
            words += [f"{names.volume(cluster.name, number)}: {claim}"] if claim else []
        return replace(pod, trouble="; ".join(filter(None, words)))

    found = await asyncio.gather(*(told(number, pod) for number, pod in pods.items()))
    return {pod.number: pod for pod in found}


async def warned(api: KubernetesApi, namespace: str, uid: str) -> str:
    """The newest warning about an object, else why it waits; empty if we see no such Event."""
    try:
        found = await api.warnings(namespace, uid)
    except ApiError as error:
        log.warning("warnings.unread", namespace=namespace, reason=str(error))
        return ""
    newest = max(found, key=_weight, default=None)
    if newest is None:
        return ""
    return _words(newest.get("reason") or "", newest.get("message") or "")


def _weight(event: Manifest) -> tuple[bool, str]:
    """Whether it is a warning, and when it was told, as text; there are Events of two kinds."""
    last = event.get("lastTimestamp") or (event.get("series") or {}).get("lastObservedTime")
    return event.get("type") == "Warning", str(last or event.get("eventTime") or "")


def by_number(
    items: Iterable[Manifest], parse: Callable[[Manifest], _Member], name: Callable[[int], str]
) -> dict[int, _Member]:
    """Index members' objects, without those that only carry the herd's label.

    Anybody may label an object of his own like ours. One that is a member's has a member's labels
    and the name that follows from its number, so there are no two for one number.

    Args:
        name: of the object of a member.
    """
    members: dict[int, _Member] = {}
    for item in items:
        try:
            one = parse(item)
        except (KeyError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            if item["metadata"]["name"] == name(one.number):
                members[one.number] = one
                continue
            reason = f"member {one.number} has {name(one.number)}"
        log.warning("object.ignored", name=item["metadata"]["name"], reason=reason)
    return members


def parse_volume(item: Manifest) -> ObservedVolume:
    """Read a volume claim.

    Raises:
        KeyError, ValueError: it has not got a member's labels.
    """
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata["labels"]
    conditions = [c for c in status.get("conditions") or () if c["status"] == "True"]
    return ObservedVolume(
        number=int(labels[names.MEMBER]),
        uid=metadata["uid"],
        role=Role(labels[names.ROLE]),
        origin=Origin(metadata.get("annotations", {}).get(names.ORIGIN, Origin.JOINER)),
        cluster_id=labels.get(names.CLUSTER_ID, ""),
        requested=item["spec"]["resources"]["requests"]["storage"],
        deleting="deletionTimestamp" in metadata,
        retired=next((one for one in Retired if one == labels.get(names.RETIRED)), None),
        version=metadata.get("resourceVersion", ""),
        capacity=(status.get("capacity") or {}).get("storage", ""),
        growth="; ".join(f"{c['type']}: {c.get('message', '')}" for c in conditions),
        pending=status.get("phase") == "Pending",
        class_name=item["spec"].get("storageClassName") or "",
    )


def parse_pod(item: Manifest) -> Pod:
    """Read a pod.

    Raises:
        KeyError, ValueError: it has not got a member's labels.
    """
    metadata, status = item["metadata"], item.get("status", {})
    conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
    return Pod(
        number=int(metadata["labels"][names.MEMBER]),
        uid=metadata["uid"],
        revision=metadata.get("annotations", {}).get(names.REVISION, ""),
        role=Role(metadata["labels"][names.ROLE]),
        wish=metadata.get("annotations", {}).get(names.WISH, ""),
        ready=conditions.get("Ready") == "True",
        deleting="deletionTimestamp" in metadata,
        finished=status.get("phase") in ("Failed", "Succeeded"),
        pending=status.get("phase") == "Pending",
        node=item.get("spec", {}).get("nodeName", ""),
        trouble=pod_trouble(status),
        ends_at=_time(metadata.get("deletionTimestamp")),
    )


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def pod_trouble(status: Mapping[str, Any]) -> str:
    """Why a pod does not run, as its status has it; empty if it runs, or nobody says.

    What a container waits for comes first, then how it ended, then the scheduler's word.
    """
    containers = [
        *status.get("initContainerStatuses", ()),
        *status.get("containerStatuses", ()),
    ]
    for container in containers:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            ended = container.get("lastState", {}).get("terminated", {})
            return _container(container, waiting, ended.get("message", ""))
    for container in containers:
        ended = container.get("state", {}).get("terminated")
        if ended is not None and ended.get("exitCode") != 0:
            return _container(container, {"reason": ended.get("reason")}, ended.get("message", ""))
    for one in status.get("conditions", ()):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return _words(one.get("reason", ""), one.get("message", ""))
    if status.get("phase") == "Failed":
        return _words(status.get("reason", ""), status.get("message", ""))
    return ""


def _container(container: Mapping[str, Any], state: Mapping[str, Any], log: str) -> str:
    """Why a container does not run.

    Args:
        log: its last lines, if it has ended.
    """
    cause = _cause(log, server=container["name"] in _SERVERS)
    said = _words(state.get("reason") or "", cause or state.get("message", ""))
    return f"container {container['name']}: {said}"


def _cause(log: str, *, server: bool) -> str:
    """The cause that is named in the last lines of a log; of a server's nothing with rows in it."""
    fatal = re.findall(r"\b(?:FATAL|PANIC): +(.+)", log)
    if fatal:
        return str(fatal[-1])
    if not server:
        return log
    programs = re.search(r"^(?:initdb|pg_dump|pg_restore|psql|pgherd-[a-z]+)\b.*", log, re.M)
    return programs[0] if programs else ""


def _words(reason: str, message: str) -> str:
    first = message.strip().partition("\n")[0][:512]
    return f"{reason}: {first}" if reason and first else reason or first


def parse_ledger(item: Mapping[str, Any] | None) -> Ledger | None:
    """Read the ledger; a damaged one counts as none: the volumes still say whose they are."""
    data = (item or {}).get("data") or {}
    try:
        return Ledger(
            cluster_id=data["clusterId"],
            phase=Phase(data["phase"]),
            founders=tuple(
                (int(number), Role(role))
                for number, _, role in (
                    entry.partition(":") for entry in data["founders"].split(",") if entry
                )
            ),
            release=data.get("release", ""),
            sidecar_image=data.get("sidecarImage", ""),
            postgres_image=data.get("postgresImage", ""),
            upgrading=data.get("upgrading") == "true",
            spec=data.get("spec", ""),
            # A word of a newer release: nothing is begun.
            imported=next(
                (one for one in Imported if one == data.get("imported", "")), Imported.DONE
            ),
            import_result=data.get("importResult", ""),
        )
    except (KeyError, ValueError):
        return None


def ledger_data(ledger: Ledger) -> dict[str, str]:
    """Write what ``parse_ledger`` reads."""
    return {
        "clusterId": ledger.cluster_id,
        "phase": ledger.phase.value,
        "founders": founders_text(ledger.founders),
        "release": ledger.release,
        "sidecarImage": ledger.sidecar_image,
        "postgresImage": ledger.postgres_image,
        "upgrading": "true" if ledger.upgrading else "false",
        "spec": ledger.spec,
        "imported": ledger.imported.value,
        "importResult": ledger.import_result,
    }


def founders_text(founders: Iterable[tuple[int, Role]]) -> str:
    """Write the founders as the ledger has them."""
    return ",".join(f"{number}:{role}" for number, role in founders)


def parse_secret(item: Manifest, *, ours: bool) -> Secret:
    """Read which keys a secret has, and what there is to know of its certificate."""
    data = item.get("data") or {}
    held = certificates.validity(data)
    return Secret(
        name=item["metadata"]["name"],
        uid=item["metadata"]["uid"],
        ours=ours,
        keys=frozenset(data),
        issued_at=held[0] if held is not None else None,
        not_after=held[1] if held is not None else None,
        imported=(item["metadata"].get("annotations") or {}).get(names.IMPORTED, ""),
        trusts=certificates.trusts(data),
        signer=certificates.signer(data),
        authority=certificates.authority_id(data),
    )


async def _secrets(api: KubernetesApi, cluster: Cluster, numbers: Any) -> dict[str, Secret]:
    """Get the secrets one by one, by name: the operator needs no right to list them.

    What an earlier herd of this name has left is as good as gone.
    """
    wanted = [
        *(
            users.lasting_secrets(cluster)
            if cluster.deleting
            else names.lasting_secrets(cluster.name)
        ),
        names.operator_certificate(cluster.name),
        names.jobs_certificate(cluster.name),
        *([names.import_certificate(cluster.name)] if imports.asked(cluster) else []),
        *(names.certificate(cluster.name, number) for number in sorted(numbers)),
    ]

    async def look(name: str) -> Secret | None:
        try:
            found = await api.get("Secret", cluster.namespace, name)
        except NotFoundError:
            return None
        if owners.passes(found, cluster):
            return None
        return parse_secret(found, ours=owners.is_our_secret(found, cluster))

    found = await asyncio.gather(*(look(name) for name in wanted))
    return {secret.name: secret for secret in found if secret is not None}


async def _reports(sidecars: Sidecars, numbers: Any) -> dict[int, Report]:
    async def ask(number: int) -> Report | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                return parse_report(number, await sidecars.status(number))
        except (SidecarError, TimeoutError):
            return None  # silent: that says nothing about whether it lives

    try:
        # A slow API server must not make all members look silent.
        await sidecars.prepare()
    except SidecarError:
        return {}
    found = await asyncio.gather(*(ask(number) for number in sorted(numbers)))
    return {report.number: report for report in found if report is not None}
