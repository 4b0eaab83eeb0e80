"""Looks after Snapshots, ConsistencyChecks and SnapshotSchedules: look, decide, act, report.

The decisions are those of ``core.jobs`` and ``core.schedule``. What a job's driver says of its end
comes from its pod's termination message, and its progress from a port of the pod.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import structlog
from pydantic import ValidationError

from pgherd_operator.api import CHECK, KIND, SCHEDULE, SNAPSHOT
from pgherd_operator.api.base import reported
from pgherd_operator.api.jobs import (
    CheckSpec,
    CheckStatus,
    JobStatus,
    ScheduleSpec,
    ScheduleStatus,
    SnapshotSpec,
    SnapshotStatus,
)
from pgherd_operator.core.actions import Event
from pgherd_operator.core.observed import Phase
from pgherd_operator.jobs import objects, schedule
from pgherd_operator.jobs import steps as jobs
from pgherd_operator.jobs.schedule import Made
from pgherd_operator.jobs.steps import Driver, Look, Work, Workload
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Release, Role
from pgherd_operator.shell.kube.events import Subject
from pgherd_operator.shell.kube.interface import (
    ApiError,
    ConflictError,
    KubernetesApi,
    Manifest,
    NotFoundError,
)
from pgherd_operator.shell.observing.reading import (
    by_number,
    parse_ledger,
    parse_volume,
    pod_trouble,
    warned,
)
from pgherd_operator.shell.resources import (
    SETTLED_S,
    identity,
    read_resource,
    show_invalid,
    show_status,
    until_again,
)

log = structlog.get_logger()

_LOOK_S = 3.0
_ENDED = ("Succeeded", "Failed")
_MODELS: Mapping[str, tuple[type[SnapshotSpec | CheckSpec], type[JobStatus]]] = {
    SNAPSHOT: (SnapshotSpec, SnapshotStatus),
    CHECK: (CheckSpec, CheckStatus),
}


class JobEvents(Protocol):
    """Where Events go."""

    def tell(self, about: Subject, event: Event, kind: str) -> None:
        """Post an Event; it may get lost."""


class Drivers(Protocol):
    """Asks drivers how far they are."""

    async def progress(self, address: str) -> str:
        """Return what the driver at this address says; empty if it does not answer at once."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """All that is needed of the outside: see Environment of the controller."""

    api: KubernetesApi
    events: JobEvents
    drivers: Drivers
    now: Callable[[], datetime]
    release: Release

    async def job(self, kind: str, namespace: str, name: str) -> float | None:
        """Bring a Snapshot or ConsistencyCheck one step further.

        Returns:
            In how many seconds to look again at the latest; None when the resource is gone, or
            over for good.

        Raises:
            ApiError: something could not be read or written.
        """
        try:
            body = await self.api.get(kind, namespace, name)
        except NotFoundError:
            return None
        try:
            work = _work(kind, body)
        except ValidationError as error:
            await show_invalid(self.api, body, error)
            return SETTLED_S
        if work.deleting:
            return SETTLED_S
        now = self.now()
        over = _is_over(work, now)
        if over and work.spec.ttl_seconds_after_finished is None:
            return None
        seen = Look(work) if over else await self._look(work)
        decision = jobs.decide(seen, now)
        if decision.start is not None:
            try:
                await self._create(objects.workload(seen, decision.start, self.release))
            except ApiError as error:
                decision = jobs.not_started(seen, f"{decision.start} refused: {error}", now)
        if decision.stop and seen.workload is not None:
            await self._delete(seen.workload.runner, work, seen.workload.name, seen.workload.uid)
        if decision.remove:
            await self._delete(kind, work, work.name, work.uid)
            return _LOOK_S
        await show_status(self.api, body, decision.status)
        for event in decision.events:
            self.events.tell(work, event, kind)
        return _rest(work, decision, now)

    async def schedule(self, namespace: str, name: str) -> float | None:
        """Bring a SnapshotSchedule one step further; see ``job``."""
        try:
            body = await self.api.get(SCHEDULE, namespace, name)
        except NotFoundError:
            return None
        try:
            found = read_resource(body, ScheduleSpec, ScheduleStatus)
        except ValidationError as error:
            await show_invalid(self.api, body, error)
            return SETTLED_S
        now = self.now()
        listed = await self.api.list(SNAPSHOT, namespace, f"{names.SCHEDULE}={name}")
        made = [_made(item) for item in listed if _is_owned(item, found.uid)]
        plan = schedule.decide(found, made, now)
        if plan.make is not None:
            try:
                await self._create(objects.snapshot(found, plan.make))
            except ApiError as error:
                if error.status == 0:  # nobody has answered, and nobody would take the status
                    raise
                plan = schedule.refused(found, made, plan, str(error))
        for old in plan.drop:
            await self._delete(SNAPSHOT, found, old.name, old.uid)
        await show_status(self.api, body, plan.status)
        for event in plan.events:
            self.events.tell(found, event, SCHEDULE)
        return until_again(plan.again, now)

    async def _look(self, work: Work) -> Look:
        workload, has_spark = await self._workload(work)
        if workload is not None or work.status.has_begun:
            driver = await self._driver(work, workload) if workload is not None else Driver()
            return Look(work, workload=workload, driver=driver, has_spark=has_spark)
        members, cluster_id, waits_for = await _members(self.api, work.namespace, work.spec.cluster)
        return Look(
            work, members[Role.DATABASE], members[Role.READER], cluster_id, waits_for,
            has_spark=has_spark,
        )  # fmt: skip

    async def _workload(self, work: Work) -> tuple[Workload | None, bool]:
        """What does the job, and whether SparkApplications are known here."""
        name = objects.workload_name(work)
        try:
            await self.api.list("SparkApplication", work.namespace, f"{names.JOB}={work.uid}")
            has_spark = True
        except NotFoundError:  # of the kind: a list that is empty is none
            has_spark = False
        found = await self._named("SparkApplication", work, name) if has_spark else None
        if found is not None:
            state = found.get("status", {}).get("applicationState", {})
            return _workload(
                "SparkApplication", found, state.get("state", ""), state.get("errorMessage", "")
            ), has_spark
        found = await self._named("Job", work, name)
        if found is None:
            return None, has_spark
        ended = [
            one
            for one in found.get("status", {}).get("conditions", ())
            if one["type"] in ("Complete", "Failed") and one["status"] == "True"
        ]
        state, message = (
            (ended[0]["type"], ended[0].get("message", "")) if ended else ("Active", "")
        )
        return _workload("Job", found, state, message), has_spark

    async def _named(self, kind: str, work: Work, name: str) -> Manifest | None:
        """By its name alone: somebody may have taken our labels away."""
        try:
            return await self.api.get(kind, work.namespace, name)
        except NotFoundError:
            return None

    async def _driver(self, work: Work, workload: Workload) -> Driver:
        pods = await self.api.list("Pod", work.namespace, f"{names.JOB}={work.uid}")
        # The Spark operator gives the application's labels to executors, too.
        drivers = [p for p in pods if p["metadata"]["labels"].get("spark-role") != "executor"]
        trouble = ""
        if not drivers:  # who refuses to make pods says so of the workload
            trouble = await warned(self.api, work.namespace, workload.uid)
        for pod in drivers:
            status = pod.get("status", {})
            for container in status.get("containerStatuses", ()):
                ended = container.get("state", {}).get("terminated")
                if ended is not None:
                    return _ended(ended)
            if status.get("phase") == "Failed":  # evicted, say: there is no container any more
                return Driver(ended=f"{status.get('reason', '')} {status.get('message', '')}")
            if status.get("phase") == "Running" and status.get("podIP"):
                return Driver(progress=await self.drivers.progress(status["podIP"]))
            trouble = trouble or pod_trouble(status)
            if status.get("phase") == "Pending" and not trouble:  # a Secret that is missing, say
                trouble = await warned(self.api, work.namespace, pod["metadata"]["uid"])
        return Driver(trouble=trouble)

    async def _create(self, manifest: Manifest) -> None:
        try:
            await self.api.create(manifest)
        except ConflictError:
            return  # ours from before; or another's, which the next look will tell

    async def _delete(self, kind: str, about: Subject, name: str, uid: str) -> None:
        try:
            await self.api.delete(kind, about.namespace, name, uid)
        except (NotFoundError, ConflictError):
            return


async def database_members(
    api: KubernetesApi, namespace: str, herd: str
) -> tuple[tuple[int, ...], str, str]:
    """Numbers of the members that take writes, the herd's identity, and what is missing of it."""
    members, cluster_id, waits_for = await _members(api, namespace, herd)
    return members[Role.DATABASE], cluster_id, waits_for


async def _members(
    api: KubernetesApi, namespace: str, herd: str
) -> tuple[Mapping[Role, tuple[int, ...]], str, str]:
    nobody: Mapping[Role, tuple[int, ...]] = dict.fromkeys(Role, ())
    try:
        cluster = await api.get(KIND, namespace, herd)
        ledger = parse_ledger(await api.get("ConfigMap", namespace, names.ledger(herd)))
    except NotFoundError:
        return nobody, "", f"there is no ReplicatedCluster {herd}, or it is only being made"
    if ledger is None or ledger.phase is not Phase.FOUNDED:
        return nobody, "", f"ReplicatedCluster {herd} is being made"
    if cluster.get("spec", {}).get("hibernated"):
        return nobody, "", f"ReplicatedCluster {herd} sleeps (hibernated)"
    listed = await api.list("PersistentVolumeClaim", namespace, f"{names.CLUSTER}={herd}")
    volumes = by_number(listed, parse_volume, lambda number: names.volume(herd, number))
    members = {
        role: tuple(
            number
            for number, volume in sorted(volumes.items())
            if volume.usable and volume.role is role and volume.cluster_id == ledger.cluster_id
        )
        for role in Role
    }
    if not members[Role.DATABASE]:
        return nobody, "", f"ReplicatedCluster {herd} has no member with a database"
    return members, ledger.cluster_id, ""


def _is_over(work: Work, now: datetime) -> bool:
    """Whether a job ended so long ago that what did it is not looked at any more."""
    finished = work.status.finished_at
    if work.status.phase not in _ENDED or finished is None:
        return False
    return (now - finished).total_seconds() >= SETTLED_S


def is_at_rest(body: Mapping[str, Any]) -> bool:
    """Whether nothing happens to a Snapshot or ConsistencyCheck until its spec changes."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    return status.get("phase") in _ENDED and spec.get("ttlSecondsAfterFinished") is None


def _rest(work: Work, decision: jobs.Decision, now: datetime) -> float:
    """How long there is nothing to look at: a pod that ends wakes nobody."""
    if not decision.finished:
        return _LOOK_S
    seconds, finished = work.spec.ttl_seconds_after_finished, decision.status.finished_at
    if seconds is None or finished is None:
        return SETTLED_S
    return min(max(seconds - (now - finished).total_seconds(), 0.1), SETTLED_S)


def _work(kind: str, body: Mapping[str, Any]) -> Work:
    spec, status = _MODELS[kind]
    return Work(
        kind=kind,
        **identity(body),
        spec=spec.model_validate(body.get("spec") or {}),
        status=reported(status, body),
        deleting="deletionTimestamp" in body["metadata"],
    )


def _made(item: Mapping[str, Any]) -> Made:
    metadata, status = item["metadata"], reported(SnapshotStatus, item)
    return Made(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.phase,
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        finished=status.finished_at,
    )


def _is_owned(item: Mapping[str, Any], uid: str) -> bool:
    return any(one["uid"] == uid for one in item["metadata"].get("ownerReferences", ()))


def _workload(runner: jobs.Runner, item: Manifest, state: str, message: str) -> Workload:
    metadata = item["metadata"]
    owners = metadata.get("ownerReferences", ())
    return Workload(
        runner=runner,
        name=metadata["name"],
        uid=metadata["uid"],
        owner=owners[0]["uid"] if owners else "",
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        state=state,
        message=message,
        deleting="deletionTimestamp" in metadata,
    )


def _ended(terminated: Mapping[str, Any]) -> Driver:
    """The end of a driver's container: its own words, or those of the kubelet."""
    words = f"{terminated.get('reason', '')}, exit status {terminated.get('exitCode')}"
    try:
        outcome = json.loads(terminated.get("message") or "")
    except (ValueError, RecursionError):  # the latter: of brackets only, say
        return Driver(ended=words)
    return (
        Driver(outcome=outcome, ended=words) if isinstance(outcome, dict) else Driver(ended=words)
    )
