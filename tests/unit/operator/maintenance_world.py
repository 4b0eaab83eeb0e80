"""A MaintenanceSchedule in memory: the API server, and a herd that keeps what it was asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs_world import HERD, JOB, NAMESPACE, JobsWorld
from pgherd_operator.api import KIND, MAINTENANCE
from pgherd_operator.shell.maintenance import Maintainer
from pgherd_operator.shell.observing.sidecars import SidecarError, SidecarRefusedError


@dataclass
class MaintenanceWorld(JobsWorld):
    """See KubernetesApi and Events; and Sidecars, of a herd with two members.

    Attributes:
        states: of the members, by number; one that is missing does not answer.
        refusal: why the herd does not do what it is asked for.
        asked_for: what it was asked for, the newest first.
        judged: how often it was only asked whether it could.
    """

    states: dict[int, str] = field(default_factory=lambda: {1: "maintenance", 2: "primary"})
    refusal: str = ""
    asked_for: list[dict[str, Any]] = field(default_factory=list)
    judged: int = 0

    def submit_schedule(self, **spec: Any) -> None:
        """Create a resource, and a herd."""
        self.found_herd(2)
        self.objects[KIND, HERD]["metadata"] |= {"namespace": NAMESPACE, "uid": "herd"}
        wanted = {"cluster": HERD, "schedule": "*/10 * * * *", "sql": ["ANALYZE"]} | spec
        metadata = {
            "name": JOB, "namespace": NAMESPACE, "uid": self.uid(), "generation": 1,
            "creationTimestamp": self.now.isoformat(),
        }  # fmt: skip
        self.objects[MAINTENANCE, JOB] = {
            "kind": MAINTENANCE,
            "metadata": metadata,
            "spec": wanted,
        }

    async def look_again(self) -> float | None:
        """Let the operator look once."""
        return await Maintainer(self, lambda _: _Herd(self), self, lambda: self.now).look(
            NAMESPACE, JOB
        )

    def ends(self, outcome: object = "done", code: int = 0, reason: str = "") -> None:
        """The newest run is over, with this state of its members."""
        for part in self.asked_for[0]["parts"]:
            part |= {"state": outcome, "seconds": 61.4, "error": reason}

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the resource."""
        found = self.status(MAINTENANCE)["conditions"]
        one: dict[str, Any] = next(one for one in found if one["type"] == kind)
        return one


class _Herd:
    """See Sidecars."""

    def __init__(self, world: MaintenanceWorld) -> None:
        self._world = world

    async def prepare(self) -> None:
        """See Sidecars."""

    async def status(self, number: int) -> Mapping[str, Any]:
        """See Sidecars."""
        if number not in self._world.states:
            raise SidecarError(f"herd-{number}: refused the connection")
        return {"name": f"herd-{number}", "state": self._world.states[number]}

    async def request(
        self, number: int, path: str, body: Mapping[str, Any], timeout_s: float = 0
    ) -> Mapping[str, Any]:
        """See Sidecars."""
        world = self._world
        assert world.states[number] == "primary", "one in maintenance may be behind"
        if path == "/maintenance/known":
            return {"runs": [one for one in world.asked_for if one["schedule"] == body["schedule"]]}
        assert path == "/maintenance"
        if world.refusal:
            raise SidecarRefusedError(f"herd-{number}", world.refusal)
        members = body["members"] or ["herd-1", "herd-2"]
        if not body.get("act", True):
            world.judged += 1
        elif body["run"] not in {one["run"] for one in world.asked_for}:
            parts = [{"member": name, "state": "waiting"} for name in members]
            run = {
                "run": body["run"], "schedule": body["schedule"], "parts": parts,
                "created": world.now.isoformat(), "statements": body["sql"],
            }  # fmt: skip
            world.asked_for.insert(0, run)
        return {"members": members}


async def life_of_maintenance() -> MaintenanceWorld:
    """Everything that a schedule of maintenance may need rights for."""
    world = MaintenanceWorld(now=datetime(2030, 1, 1, tzinfo=UTC))
    world.submit_schedule()
    await world.look_again()
    world.now += timedelta(minutes=11)
    await world.look_again()
    world.ends()
    await world.look_again()
    return world
