"""Looks after MaintenanceSchedules: look, ask the herd, decide, ask again, report.

The decisions are those of ``jobs.maintenance``. Whatever is done is done by the members, which keep
it in the herd: a run that has begun goes on without the operator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog
from pgherd_sidecar.client import routes
from pgherd_sidecar.client.maintenance import MaintenanceAnswer
from pydantic import ValidationError

from pgherd_operator.api import MAINTENANCE
from pgherd_operator.api.maintenance import MaintenanceSpec, MaintenanceStatus
from pgherd_operator.api.resource import Cluster
from pgherd_operator.jobs import maintenance
from pgherd_operator.jobs.maintenance import MaintenancePlan, MaintenanceResource, Told
from pgherd_operator.shell.jobs import JobEvents
from pgherd_operator.shell.kube.interface import KubernetesApi, NotFoundError
from pgherd_operator.shell.members import WritableMember, writable
from pgherd_operator.shell.observing.sidecars import SidecarError, SidecarRefusedError, Sidecars
from pgherd_operator.shell.resources import (
    SETTLED_S,
    read_resource,
    show_invalid,
    show_status,
    until_again,
)

log = structlog.get_logger()

_LOOK_S = 3.0


@dataclass(frozen=True, slots=True)
class Maintainer:
    """All that is needed of the outside: see Environment of the controller."""

    api: KubernetesApi
    sidecars: Callable[[Cluster], Sidecars]
    events: JobEvents
    now: Callable[[], datetime]

    async def look(self, namespace: str, name: str) -> float | None:
        """Bring a MaintenanceSchedule one step further.

        Returns:
            In how many seconds to look again at the latest; None when the resource is gone.

        Raises:
            ApiError: something could not be read or written.
        """
        try:
            body = await self.api.get(MAINTENANCE, namespace, name)
        except NotFoundError:
            return None
        try:
            schedule = read_resource(body, MaintenanceSpec, MaintenanceStatus)
        except ValidationError as error:
            await show_invalid(self.api, body, error)
            return SETTLED_S
        now = self.now()
        herd, silence = await writable(self.api, self.sidecars, namespace, schedule.spec.cluster)
        told = Told(silence=silence) if herd is None else await _ask(schedule, herd)
        plan = maintenance.decide(schedule, told, now)
        if plan.begin is not None and herd is not None:
            plan = await _begin(schedule, herd, plan, now)
        await show_status(self.api, body, plan.status)
        for event in plan.events:
            self.events.tell(schedule, event, MAINTENANCE)
        if plan.status.active is not None:
            return _LOOK_S
        return until_again(plan.again, now)


async def _ask(schedule: MaintenanceResource, herd: WritableMember) -> Told:
    """Ask what became of its runs, and whether a new spec can be done at all."""
    try:
        if not maintenance.is_judged(schedule):
            asked = maintenance.request(schedule.spec) | {"act": False}
            await herd.post(routes.MAINTAIN, asked)
        answer = await herd.post(routes.MAINTENANCE, {"schedule": schedule.name})
        return Told(MaintenanceAnswer.model_validate(answer).runs)
    except SidecarRefusedError as error:
        return Told(refusal=error.reason)
    except SidecarError as error:
        return Told(silence=str(error))
    except ValidationError as error:
        return Told(silence=f"the answer is not understood: {error.errors()[0]['msg']}")


async def _begin(
    schedule: MaintenanceResource, herd: WritableMember, plan: MaintenancePlan, now: datetime
) -> MaintenancePlan:
    """Ask for the run of a time that has come."""
    wanted = maintenance.request(schedule.spec)
    try:
        answer = await herd.post(
            routes.MAINTAIN, wanted | {"run": plan.begin, "schedule": schedule.name}
        )
    except SidecarRefusedError as error:
        return maintenance.decide(schedule, Told(refusal=error.reason), now)
    except SidecarError as error:
        return maintenance.decide(schedule, Told(silence=str(error)), now)
    return maintenance.begun(plan, [str(name) for name in answer.get("members", ())])
