"""Reconciles one herd once: look, decide, act, report.

Errors end up as the status' step and as Events, and the herd is looked at again soon; one herd's
trouble never delays another's. Nothing is kept between calls.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

import structlog

from pgherd_operator.api import KIND, OPERATOR
from pgherd_operator.api.resource import Cluster, InvalidSpec, parse_resource, without_owned
from pgherd_operator.api.status import ClusterStatus
from pgherd_operator.core import status, upgrade
from pgherd_operator.core import users as core_users
from pgherd_operator.core.actions import Event, Reason, Step
from pgherd_operator.core.group import assemble_group
from pgherd_operator.core.observed import Observed
from pgherd_operator.core.reconcile import Care, Plan, is_of_another, reconcile
from pgherd_operator.core.upgrade import Turns
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Release
from pgherd_operator.shell import users
from pgherd_operator.shell.executor import Executor
from pgherd_operator.shell.kube.interface import ApiError, KubernetesApi, NotFoundError
from pgherd_operator.shell.observing import importing
from pgherd_operator.shell.observing.importing import Importers
from pgherd_operator.shell.observing.reading import observe, parse_ledger
from pgherd_operator.shell.observing.sidecars import (
    SidecarError,
    SidecarRefusedError,
    Sidecars,
)
from pgherd_operator.shell.resources import show_status

log = structlog.get_logger()

_SOON_S = 1.0
_WAITING_S = 2.0
_SETTLED_S = 30.0
_FAILED_S = 5.0


class HerdEvents(Protocol):
    """Where Events go."""

    def tell(self, cluster: Cluster, event: Event) -> None:
        """Post an Event about a herd; it may get lost."""


@dataclass(frozen=True, slots=True)
class Environment:
    """All that the controller needs of the outside.

    Attributes:
        sidecars: of a herd.
        importers: asks an import online how far it is.
        now: the wall clock, in UTC.
        began: when the process did.
        turns: of the herds, to take over another release.
        left: uids of herds that another release looks after, and of which that was told.
    """

    api: KubernetesApi
    sidecars: Callable[[Cluster], Sidecars]
    events: HerdEvents
    importers: Importers
    now: Callable[[], datetime]
    release: Release
    began: datetime
    turns: Turns
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
        env.turns.leave((namespace, name))
        return None
    invalid, care = "", Care.FULL
    try:
        cluster = parse_resource(body)
    except InvalidSpec as error:
        cluster = parse_resource({**body, "spec": {}})
        # It goes whatever its spec was; by the default one, which keeps the volumes.
        if not cluster.deleting:
            invalid = str(error)
            cluster, care = await _usable(env, body, cluster)
    if is_of_another(cluster, env.release):
        _stand_aside(env, cluster)
        return _SETTLED_S
    sidecars = env.sidecars(cluster)
    now = env.now()
    observed = await _observed(env, sidecars, body, cluster)
    turn = _turn(env, observed, care)
    plan = reconcile(observed, now, env.release, turn=turn, care=care)
    executor = Executor(
        env.api, sidecars, cluster, now, lambda event: env.events.tell(cluster, event)
    )
    failures = await _act(executor, env, cluster, plan)
    shown, later = status.reconciled(plan.status, observed, failures, now), False
    for event in status.news(cluster.status, shown):
        env.events.tell(cluster, event)
    if invalid:
        shown = _refuse(env, cluster, invalid, shown)
    elif plan.users_via:
        outcome = await users.ensure(env.api, sidecars, executor, cluster, plan.users_via)
        for event in core_users.events(cluster, outcome):
            env.events.tell(cluster, event)
        shown = core_users.shown(shown, cluster, outcome, now)
        later = bool(outcome.unanswered or outcome.changed)
    if not cluster.deleting or cluster.finalizers:
        await show_status(env.api, body, shown)
    if failures or later:
        return _FAILED_S
    if plan.idle:
        return _SETTLED_S if plan.settled else _WAITING_S
    return _SOON_S


def _stand_aside(env: Environment, cluster: Cluster) -> None:
    """Say that another release looks after this herd; nothing else is done, nor written."""
    env.turns.leave((cluster.namespace, cluster.name))
    log.warning("cluster.of_another", cluster=cluster.name, namespace=cluster.namespace,
                operator=cluster.operator)  # fmt: skip
    if cluster.uid in env.left:
        return
    env.left.add(cluster.uid)
    text = f"operator {cluster.operator} looks after this herd, so {env.release.operator} does not."
    text += f" If that one is gone: kubectl annotate herd {cluster.name} {OPERATOR}-"
    env.events.tell(cluster, Event(Reason.OTHER_OPERATOR, text, "Warning"))


async def _observed(
    env: Environment, sidecars: Sidecars, body: dict[str, Any], cluster: Cluster
) -> Observed:
    """Look at everything; where that is refused say so in the status, and raise."""
    try:
        found = await observe(env.api, sidecars, cluster)
        return replace(found, import_jobs=await importing.look(env.api, env.importers, cluster))
    except ApiError as error:
        if error.status and (cluster.finalizers or not cluster.deleting):
            await show_status(env.api, body, status.unobserved(cluster, str(error), env.now()))
        raise


def _turn(env: Environment, observed: Observed, care: Care) -> str:
    """Take the turn or give it back, see Turns."""
    herd = observed.cluster.namespace, observed.cluster.name
    at = upgrade.stage(observed, env.release)
    age_s = (env.now() - env.began).total_seconds()
    ready = upgrade.is_ready(observed, assemble_group(observed), usable=care is Care.FULL)
    rests = care is not Care.FULL or bool(upgrade.rests(observed))
    return env.turns.ask(herd, at, ready=ready, age_s=age_s, rests=rests)


async def _usable(env: Environment, body: dict[str, Any], cluster: Cluster) -> tuple[Cluster, Care]:
    """A herd by a spec that can be used in place of its own, and how far it can be relied on.

    That is the last one that could be. Where a newer operator does not know even that one, it may
    be for a parameter that is ours now; certificates can be renewed in any case.

    Args:
        cluster: with the default spec.
    """
    try:
        found = await env.api.get("ConfigMap", cluster.namespace, names.ledger(cluster.name))
    except NotFoundError:
        return cluster, Care.CERTIFICATES
    ledger = parse_ledger(found)
    try:
        last = json.loads(ledger.spec) if ledger is not None and ledger.spec else {}
    except (ValueError, RecursionError):  # somebody's edit
        last = {}
    if not isinstance(last, dict):
        last = {}
    own = body.get("spec") or {}
    for spec in (last, without_owned(last), without_owned(own)):
        try:
            if spec:
                return parse_resource({**body, "spec": spec}), Care.NO_REPLACING
        except InvalidSpec:
            continue
    try:
        return parse_resource({**body, "spec": {"tls": own.get("tls") or {}}}), Care.CERTIFICATES
    except InvalidSpec:
        return cluster, Care.CERTIFICATES


def _refuse(env: Environment, cluster: Cluster, why: str, shown: ClusterStatus) -> ClusterStatus:
    """Say that the spec cannot be used.

    Args:
        shown: how the herd is, as far as anybody knows without its spec.
    """
    log.warning("cluster.invalid", cluster=cluster.name, namespace=cluster.namespace, reason=why)
    refused = status.refused(cluster, why, env.now(), shown)
    if refused.step != cluster.status.step:
        env.events.tell(cluster, Event(Reason.INVALID_SPEC, why, "Warning"))
    return refused


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
    steps = list(plan.steps)
    for step in steps:
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
            if isinstance(error, SidecarRefusedError) and step.instead is not None:
                steps.append(step.instead)
            continue
        event = step.event()
        if event is not None and event.message != cluster.status.step:
            env.events.tell(cluster, event)  # else it was told when this step began
    return failures
