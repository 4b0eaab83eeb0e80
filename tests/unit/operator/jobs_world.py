"""Jobs on a herd in memory: the API server, a Spark operator that is there or not, and a driver."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from operator_api_server import ApiServer
from pgherd_operator.api import CHECK, KIND, SCHEDULE, SNAPSHOT
from pgherd_operator.core.actions import Event
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Release
from pgherd_operator.shell.jobs import Jobs
from pgherd_operator.shell.kube.interface import Manifest, NotFoundError

NAMESPACE, HERD, JOB = "test", "herd", "nightly"
CLUSTER_ID = "7f0c2a44-93d8-5c7b-9d61-0a3c5f1f2b10"
VOLUME = {"volumeClaim": {"name": "backups", "path": "herd"}}
WRITTEN = {
    "gid": 42, "location": "/var/lib/pgherd-jobs/herd/gid-42", "tables": 3, "rows": 1000,
    "bytes": 4096, "removed": 1,
}  # fmt: skip
_RUNNERS = ("SparkApplication", "Job")


@dataclass
class JobsWorld(ApiServer):
    """See KubernetesApi, Events and Drivers.

    Attributes:
        spark: a Spark operator is installed.
        created: names of what was ever made to do a job.
    """

    spark: bool = True
    now: datetime = datetime(2030, 1, 1, tzinfo=UTC)
    events: list[Event] = field(default_factory=list)
    created: list[str] = field(default_factory=list)

    async def list(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        """See KubernetesApi."""
        if kind == "SparkApplication" and not self.spark:
            self.calls.add(("list", kind))
            raise NotFoundError(404, "the server could not find the requested resource")
        return await super().list(kind, namespace, selector)

    def _check_creation(self, kind: str, manifest: Manifest) -> None:
        if kind in _RUNNERS:
            self.created.append(manifest["metadata"]["name"])

    async def progress(self, address: str) -> str:
        """See Drivers."""
        return f"{address}: 3/7"

    def tell(self, about: object, event: Event, kind: str) -> None:
        """See Events."""
        self.events.append(event)

    # ---- the user ----------------------------------------------------------------------------

    def found_herd(self, members: int = 3) -> None:
        """A herd that is up."""
        self.objects[KIND, HERD] = {"metadata": {"name": HERD}, "spec": {}}
        ledger = {"clusterId": CLUSTER_ID, "phase": "Founded", "founders": "1:database"}
        name = names.ledger(HERD)
        self.objects["ConfigMap", name] = {"metadata": {"name": name}, "data": ledger}
        for number in range(1, members + 1):
            self.add_member(number, "database")

    def add_member(self, number: int, role: str) -> None:
        """A member's volume."""
        name = names.volume(HERD, number)
        labels = names.member_labels(HERD, number, role) | {names.CLUSTER_ID: CLUSTER_ID}
        self.objects["PersistentVolumeClaim", name] = {
            "metadata": {"name": name, "uid": self.uid(), "labels": labels},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        }

    def submit(self, kind: str = SNAPSHOT, **spec: Any) -> None:
        """Create a resource."""
        if kind == SNAPSHOT:
            spec = {"destination": VOLUME} | spec
        if kind == SCHEDULE:
            spec = {"template": {"cluster": HERD, "destination": VOLUME}} | spec
        else:
            spec = {"cluster": HERD} | spec
        metadata = {
            "name": JOB, "namespace": NAMESPACE, "uid": self.uid(), "generation": 1,
            "creationTimestamp": self.now.isoformat(),
        }  # fmt: skip
        self.objects[kind, JOB] = {"kind": kind, "metadata": metadata, "spec": spec}

    def status(self, kind: str = SNAPSHOT, name: str = JOB) -> dict[str, Any]:
        """What its status says."""
        found = self.objects[kind, name].get("status", {})
        assert isinstance(found, dict)
        return found

    def reasons(self) -> Sequence[str]:
        """Of the Events so far."""
        return [event.reason.value for event in self.events]

    # ---- the operator ------------------------------------------------------------------------

    async def look(self, kind: str = SNAPSHOT, name: str = JOB) -> float | None:
        """Let the operator look once."""
        jobs = Jobs(self, self, self, lambda: self.now, Release())
        if kind == SCHEDULE:
            return await jobs.schedule(NAMESPACE, name)
        return await jobs.job(kind, NAMESPACE, name)

    # ---- Kubernetes and Spark ----------------------------------------------------------------

    def passes(self, **duration: float) -> None:
        """Time passes."""
        self.now += timedelta(**duration)

    def workload(self) -> Manifest | None:
        """What does the job, if anything."""
        return next((item for key, item in self.objects.items() if key[0] in _RUNNERS), None)

    def runs(self) -> None:
        """The driver's pod is there."""
        workload = self.workload()
        assert workload is not None
        if workload["kind"] == "SparkApplication":
            workload["status"] = {"applicationState": {"state": "RUNNING"}}
        self.objects["Pod", "driver"] = {
            "metadata": {"name": "driver", "uid": "pod", "labels": workload["metadata"]["labels"]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        }

    def ends(self, outcome: object = None, code: int = 0, reason: str = "Completed") -> None:
        """The driver ends, with these last words."""
        self.runs()
        message = "" if outcome is None else json.dumps(outcome)
        terminated = {"exitCode": code, "reason": reason, "message": message}
        self.objects["Pod", "driver"]["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"state": {"terminated": terminated}}],
        }
        workload = self.workload()
        assert workload is not None
        if workload["kind"] == "SparkApplication":
            state = "FAILED" if code else "COMPLETED"
            workload["status"] = {"applicationState": {"state": state, "errorMessage": reason}}
        else:
            kind = "Failed" if code else "Complete"
            workload["status"] = {"conditions": [{"type": kind, "status": "True"}]}


async def life() -> JobsWorld:
    """Everything that jobs may need rights for."""
    world = JobsWorld()
    world.found_herd()
    world.submit(SCHEDULE, schedule="* * * * *", failedHistoryLimit=0)
    world.passes(minutes=1)
    await world.look(SCHEDULE)
    (name,) = [name for kind, name in world.objects if kind == SNAPSHOT]
    await world.look(name=name)
    world.ends({"error": "no"}, 1)
    await world.look(name=name)
    await world.look(SCHEDULE)
    world.spark = False
    world.submit(CHECK, ttlSecondsAfterFinished=0, deadlineSeconds=60)
    await world.look(CHECK)
    world.passes(minutes=2)
    await world.look(CHECK)
    await world.look(CHECK)
    await world.look(CHECK)
    world.spark = True
    world.submit(deadlineSeconds=60)
    await world.look()
    world.passes(minutes=2)
    await world.look()
    return world
