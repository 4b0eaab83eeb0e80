"""Reconciles one herd once: look, decide, act, report.

Errors end up as the status' step and as Events, and the herd is looked at again soon; one herd's
trouble never delays another's. Nothing is kept between calls.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import structlog

from pgherd_operator.api import GROUP, KIND, OPERATOR, VERSION
from pgherd_operator.api.resource import Cluster, InvalidSpec, parse
from pgherd_operator.api.status import ClusterStatus
from pgherd_operator.core import status
from pgherd_operator.core import users as core_users
from pgherd_operator.core.actions import Event, Reason, Step
from pgherd_operator.core.reconcile import Plan, is_of_another, reconcile
from pgherd_operator.objects.model import Release
from pgherd_operator.shell import users
from pgherd_operator.shell.executor import Executor
from pgherd_operator.shell.kubernetes import ApiError, KubernetesApi, NotFoundError
from pgherd_operator.shell.reading import observe
from pgherd_operator.shell.sidecars import SidecarError, Sidecars

log = structlog.get_logger()

_SOON_S = 1.0
_WAITING_S = 2.0
_SETTLED_S = 30.0
_FAILED_S = 5.0


class Events(Protocol):
    """Where Events go."""

    def tell(self, cluster: Cluster, event: Event) -> None:
        """Post an Event about a herd; it may get lost."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """All that the controller needs of the outside.

    Attributes:
        sidecars: of a herd.
        now: the wall clock, in UTC.
        left: uids of herds that another release looks after, and of which that was told.
    """

    api: KubernetesApi
    sidecars: Callable[[Cluster], Sidecars]
    events: Events
    now: Callable[[], datetime]
    release: Release
    left: set[str] = field(default_factory=set)


async def reconcile_once(env: Environment, namespace: str, name: str) -> float | None:
    """Bring one herd one step further.

    Returns:
        In how many seconds to look again at the latest; None when the resource is gone.

    Raises:
        ApiError: it could not be read, or its status not be written.
    """
    try:
        body = await env.api.get(KIND, namespace, name)
    except NotFoundError:
        return None
    try:
        cluster = parse(body)
    except InvalidSpec as error:
        cluster = parse({**body, "spec": {}})
        if not cluster.deleting:
            await _refuse(env, body, cluster, str(error))
            return _SETTLED_S
        # It goes whatever its spec was; by the default one, which keeps the volumes.
    if is_of_another(cluster, env.release):
        _stand_aside(env, cluster)
        return _SETTLED_S
    sidecars = env.sidecars(cluster)
    now = env.now()
    observed = await observe(env.api, sidecars, cluster)
    plan = reconcile(observed, now, env.release)
    executor = Executor(env.api, sidecars, cluster, now)
    failures = await _act(executor, env, cluster, plan)
    shown, later = status.reconciled(plan.status, observed, failures, now), False
    for event in status.news(cluster.status, shown):
        env.events.tell(cluster, event)
    if plan.users_via:
        outcome = await users.ensure(env.api, sidecars, executor, cluster, plan.users_via)
        for event in core_users.events(cluster, outcome):
            env.events.tell(cluster, event)
        shown = core_users.shown(shown, cluster, outcome, now)
        later = bool(outcome.unanswered or outcome.changed)
    if not cluster.deleting or cluster.finalizers:
        await _show(env, body, shown)
    if failures or later:
        return _FAILED_S
    if plan.idle:
        return _SETTLED_S if plan.settled else _WAITING_S
    return _SOON_S


def _stand_aside(env: Environment, cluster: Cluster) -> None:
    """Say that another release looks after this herd; nothing else is done, nor written."""
    log.warning("cluster.of_another", cluster=cluster.name, namespace=cluster.namespace,
                operator=cluster.operator)  # fmt: skip
    if cluster.uid in env.left:
        return
    env.left.add(cluster.uid)
    text = f"operator {cluster.operator} looks after this herd, so {env.release.operator} does not."
    text += f" If that one is gone: kubectl annotate herd {cluster.name} {OPERATOR}-"
    env.events.tell(cluster, Event(Reason.OTHER_OPERATOR, text, "Warning"))


async def _refuse(env: Environment, body: dict[str, Any], cluster: Cluster, why: str) -> None:
    """Say that the spec cannot be used; nothing else is done."""
    log.warning("cluster.invalid", cluster=cluster.name, namespace=cluster.namespace, reason=why)
    shown = status.refused(cluster, why, env.now())
    if shown.step != cluster.status.step:
        env.events.tell(cluster, Event(Reason.INVALID_SPEC, why, "Warning"))
    await _show(env, body, shown)


async def _act(
    executor: Executor, env: Environment, cluster: Cluster, plan: Plan
) -> list[tuple[Step, str]]:
    """Execute a plan; return which steps failed, and why.

    A step ends with its first failure, and the steps behind it are done all the same: each was
    decided from what was observed, not from what the others do. So a policy that refuses one
    object for ever keeps nothing else from being healed. Only where the API server answers nobody
    the rest is left: it would fail in the same way, after as long a wait.
    """
    bound = log.bind(cluster=cluster.name, namespace=cluster.namespace)
    failures = []
    for step in plan.steps:
        try:
            for action in step.actions:
                await executor.execute(action)
                bound.info("action.done", action=type(action).__name__)
        except (ApiError, SidecarError, ValueError) as error:
            failed = type(action).__name__
            bound.warning("action.failed", action=failed, reason=str(error))
            failures.append((step, f"{failed} failed: {error}"))
            if isinstance(error, ApiError) and error.status == 0:
                break
            continue
        event = step.event()
        if event is not None and event.message != cluster.status.step:
            env.events.tell(cluster, event)  # else it was told when this step began
    return failures


async def _show(env: Environment, body: dict[str, Any], described: ClusterStatus) -> None:
    """Write the status, unless it is there already."""
    shown = described.model_dump(mode="json", by_alias=True, exclude_none=True)
    if body.get("status") == shown:
        return
    metadata = {"name": body["metadata"]["name"], "namespace": body["metadata"]["namespace"]}
    wanted = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": metadata,
        "status": shown,
    }
    try:
        await env.api.apply(wanted, subresource="status")
    except NotFoundError:
        return  # its deletion has just been completed
