"""Looks after ReplicationSets and Subscriptions: look, order it of the herd, report.

``jobs.following`` decides what is ordered and shown; the herd keeps the orders, and
its members feed the subscribers. So whatever was ordered goes on without the operator. Connection
strings go from the Secret over TLS to the sidecar, and into no log, status or Event.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgherd_sidecar.client import routes
from pydantic import ValidationError

from pgherd_operator.api import KIND, SET, SUBSCRIPTION
from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.subscriptions import (
    LeavingSpec,
    SetSpec,
    SetStatus,
    SubscriberSecret,
    SubscriptionSpec,
    SubscriptionStatus,
)
from pgherd_operator.core.actions import Event
from pgherd_operator.jobs import following
from pgherd_operator.jobs.following import (
    AnyResource,
    FollowingReason,
    OrderOutcome,
    SetResource,
    Shown,
    Status,
    SubscriptionResource,
)
from pgherd_operator.objects.names import FOLLOWING
from pgherd_operator.shell.jobs import JobEvents
from pgherd_operator.shell.kube.interface import KubernetesApi, Manifest, NotFoundError
from pgherd_operator.shell.members import writable
from pgherd_operator.shell.observing.sidecars import SidecarError, SidecarRefusedError, Sidecars
from pgherd_operator.shell.resources import (
    SETTLED_S,
    claim_resource,
    read_resource,
    show_invalid,
    show_status,
)

_SOON_S = 5.0
_NOT_READY_S = 10.0
_FOLLOWS_S = 30.0
_SET_S = 60.0
_GIVES_UP_S = 60.0
"""So long the subscriber of one that is to end may be out of reach."""
_MAY_HAVE = f"; the herd may still have it: correct that, or take the finalizer {FOLLOWING} away"


@dataclass(frozen=True, slots=True)
class Followers:
    """All that is needed of the outside: see Environment of the controller."""

    api: KubernetesApi
    sidecars: Callable[[Cluster], Sidecars]
    events: JobEvents
    now: Callable[[], datetime]

    async def look_at_set(self, namespace: str, name: str) -> float | None:
        """Bring a ReplicationSet one step further.

        Returns:
            In how many seconds to look again at the latest; None when the resource is gone.

        Raises:
            ApiError: something could not be read or written.
        """
        body = await self._body(SET, namespace, name)
        if body is None:
            return None
        if "deletionTimestamp" in body["metadata"]:
            return await self._drop(body)
        try:
            one = read_resource(body, SetSpec, SetStatus)
        except ValidationError as error:
            return await self._refuse(body, error)
        if not await claim_resource(self.api, body, FOLLOWING, wanted=await self._is_to_wait(one)):
            return _SOON_S
        told = await self._ask(one, routes.ORDER_SET, following.set_order(one))
        shown = following.show_set(one, told, self.now())
        await self._tell(SET, one, body, shown)
        return _NOT_READY_S if told.answer is None else _SET_S

    async def look_at_subscription(self, namespace: str, name: str) -> float | None:
        """Bring a Subscription one step further; see ``look_at_set``."""
        body = await self._body(SUBSCRIPTION, namespace, name)
        if body is None:
            return None
        if "deletionTimestamp" in body["metadata"]:
            return await self._end(body)
        try:
            one = read_resource(body, SubscriptionSpec, SubscriptionStatus)
        except ValidationError as error:
            return await self._refuse(body, error)
        if not await claim_resource(self.api, body, FOLLOWING, wanted=await self._is_to_wait(one)):
            return _SOON_S
        try:
            dsn = await _dsn(self.api, namespace, one.spec.secret)
        except _SubscriberSecretError as error:
            told = OrderOutcome(refusal=str(error), reason=FollowingReason.SECRET)
        else:
            order = following.subscription_order(one, dsn)
            told = await self._ask(one, routes.ORDER_SUBSCRIPTION, order)
        shown = following.show_subscription(one, told, self.now())
        await self._tell(SUBSCRIPTION, one, body, shown)
        if told.answer is None or not told.answer.get("ordered"):
            return _NOT_READY_S
        return _SOON_S if shown.status.state == "copying" else _FOLLOWS_S

    # ---- the end -----------------------------------------------------------------------------

    async def _drop(self, body: Manifest) -> float | None:
        """Drop the set of a resource that is deleted, and let the resource go."""
        if FOLLOWING not in body["metadata"].get("finalizers", ()):
            return None
        try:
            one = read_resource(body, LeavingSpec, SetStatus)
        except ValidationError as error:
            return await self._refuse(body, error)
        told, is_going = OrderOutcome(answer={}), False
        if not one.spec.is_retained and (herd := await self._herd(one)) is not None:
            is_going = "deletionTimestamp" in herd["metadata"]
            told = await self._ask(one, routes.DROP_SET, {"name": one.name})
        if told.answer is None and not is_going:
            shown = following.show_waiting(one, told, self.now())
            await self._tell(SET, one, body, shown)
            return _NOT_READY_S
        if told.answer:
            event = Event(FollowingReason.SET_DROPPED, "the herd has no such set any more")
            self.events.tell(one, event, SET)
        return await self._release(body)

    async def _end(self, body: Manifest) -> float | None:
        """End the subscription of a resource that is deleted, and let the resource go."""
        if FOLLOWING not in body["metadata"].get("finalizers", ()):
            return None
        try:
            one = read_resource(body, LeavingSpec, SubscriptionStatus)
        except ValidationError as error:
            return await self._refuse(body, error)
        herd = None if one.spec.is_retained else await self._herd(one)
        if herd is None:
            return await self._release(body)
        assert one.deleted is not None
        told = await self._ask(one, routes.END_SUBSCRIPTION, {"name": one.name})
        event = Event(FollowingReason.ENDED, "the subscriber's tables take writes again")
        if told.answer is not None and not told.answer.get("ended"):
            why = str(told.answer.get("reason", ""))
            told = OrderOutcome(refusal=why, reason=FollowingReason.UNREACHED)
            if (self.now() - one.deleted).total_seconds() >= _GIVES_UP_S:
                order = {"name": one.name, "herd_only": True}
                told = await self._ask(one, routes.END_SUBSCRIPTION, order)
                text = f"{why}; DROP SCHEMA pgherd_subscriber CASCADE there has it take writes"
                event = Event(FollowingReason.LEFT, text, "Warning")
        if told.answer is None and "deletionTimestamp" not in herd["metadata"]:
            shown = following.show_waiting(one, told, self.now())
            await self._tell(SUBSCRIPTION, one, body, shown)
            return _SOON_S
        if told.answer is not None:
            self.events.tell(one, event, SUBSCRIPTION)
        return await self._release(body)

    async def _release(self, body: Manifest) -> float | None:
        """Let a resource go, of which the herd has nothing any more."""
        return None if await claim_resource(self.api, body, FOLLOWING, wanted=False) else _SOON_S

    async def _herd(self, one: AnyResource) -> Manifest | None:
        """The herd, if it is there at all: without it there is nothing to end."""
        try:
            return await self.api.get(KIND, one.namespace, one.spec.cluster)
        except NotFoundError:
            return None

    async def _is_to_wait(self, one: SetResource | SubscriptionResource) -> bool:
        """Whether its deletion has to wait for us: for a herd that is there, and is to stay."""
        if one.spec.deletion_policy == "Retain":
            return False
        herd = await self._herd(one)
        return herd is not None and "deletionTimestamp" not in herd["metadata"]

    # ---- what all of them do -----------------------------------------------------------------

    async def _body(self, kind: str, namespace: str, name: str) -> Manifest | None:
        try:
            return await self.api.get(kind, namespace, name)
        except NotFoundError:
            return None

    async def _refuse(self, body: Manifest, error: ValidationError) -> float:
        """Say what is wrong with a spec, and that a deletion waits for it to be understood."""
        waits = "deletionTimestamp" in body["metadata"]
        await show_invalid(self.api, body, error, more=_MAY_HAVE if waits else "")
        return SETTLED_S

    async def _ask(
        self,
        one: AnyResource,
        route: routes.Route,
        order: Mapping[str, Any],
    ) -> OrderOutcome:
        member, silence = await writable(self.api, self.sidecars, one.namespace, one.spec.cluster)
        if member is None:
            return OrderOutcome(silence=silence)
        try:
            return OrderOutcome(answer=await member.post(route, order))
        except SidecarRefusedError as error:
            return OrderOutcome(refusal=error.reason)
        except SidecarError as error:
            return OrderOutcome(silence=str(error))

    async def _tell(
        self,
        kind: str,
        one: AnyResource,
        body: Manifest,
        shown: Shown[Status],
    ) -> None:
        await show_status(self.api, body, shown.status)
        for event in shown.events:
            self.events.tell(one, event, kind)


class _SubscriberSecretError(Exception):
    """There is no way to the subscriber in a Secret; the message holds nothing of it."""


async def _dsn(api: KubernetesApi, namespace: str, where: SubscriberSecret) -> str:
    """How members reach the subscriber.

    Raises:
        _SubscriberSecretError: the Secret does not say.
    """
    try:
        secret = await api.get("Secret", namespace, where.name)
    except NotFoundError as error:
        raise _SubscriberSecretError(f"Secret {where.name} is missing: make it") from error
    data = secret.get("data") or {}
    if where.key is not None:
        dsn = _value(where, data, where.key)
        if not dsn:
            raise _SubscriberSecretError(
                f"Secret {where.name} has no connection string under its key {where.key}"
            )
        return dsn
    parts = {
        "host": _value(where, data, "host"),
        "port": _value(where, data, "port"),
        "user": _value(where, data, "user") or _value(where, data, "username"),
        "password": _value(where, data, "password"),
        "dbname": _value(where, data, "dbname"),
        "sslmode": _value(where, data, "sslmode"),
    }
    missing = [name for name in ("host", "user", "dbname") if not parts[name]]
    if missing:
        raise _SubscriberSecretError(
            f"Secret {where.name} has no key {missing[0]}: give it, or name a key with a connection"
            " string in secret.key"
        )
    return " ".join(f"{name}={_quoted(value)}" for name, value in parts.items() if value)


def _value(where: SubscriberSecret, data: Mapping[str, str], key: str) -> str:
    """A value without the line break that many editors put behind it."""
    try:
        found = base64.b64decode(data.get(key, "")).decode().rstrip("\r\n")
    except ValueError:
        found = "\0"
    if "\0" in found:
        raise _SubscriberSecretError(
            f"Secret {where.name} has no text in UTF-8 under its key {key}"
        )
    return found


def _quoted(value: str) -> str:
    """A value in a connection string of libpq."""
    escaped = value.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"
