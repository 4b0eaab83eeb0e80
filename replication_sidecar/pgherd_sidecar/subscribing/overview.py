"""How all subscriptions are: what the herd says of them, and what their subscribers say."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from pgherd_sidecar.subscribing.state import orders, subscriber
from pgherd_sidecar.subscribing.state.connections import connect
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import rows_of
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.tables.sessions import in_one_line

_LOOK_S = 10.0
_SILENT_S = 30.0


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """One subscription, for whoever shows it.

    Attributes:
        state: copying, following, stopped or unreachable.
        gid: what the subscriber shows; None before the first copy is whole, or if it is not known.
        lag_gids: how many positions of the log it is behind.
        lag_s: for how long the herd has had something newer, at most.
        lag_bytes: what the log takes that the subscriber has not got, about.
        reason: why it is stopped, or was not reached, or that it stands still.
        tables: how many are shown or copied, and of how many.
        provider: the subscription whose subscriber feeds this one; empty: the members do.
        forward: it may feed others.
    """

    name: str
    set: str
    state: str
    gid: int | None
    lag_gids: int | None
    lag_s: float | None
    lag_bytes: int | None
    tables: tuple[int, int]
    reason: str = ""
    provider: str = ""
    forward: bool = False


async def states(
    wanted: Iterable[Subscription], visible: int, held: Mapping[str, int]
) -> list[SubscriptionState]:
    """Look at all of them.

    Args:
        wanted: the subscriptions.
        visible: newest GID of the herd.
        held: bytes of the log that are kept, by name of the subscription.
    """
    known = list(wanted)
    direct = [one for one in known if one.provider is None]
    found = await asyncio.gather(*(_state(one, visible, held.get(one.name)) for one in direct))
    states = dict(zip((one.name for one in direct), found, strict=True))
    providers = {one.name: one.provider for one in known}
    first = {
        one.name: (orders.above(one.name, providers) or [one.name])[-1]
        for one in known
        if one.provider is not None
    }
    asked = [one for one in known if one.name in set(first.values())]
    told = dict(
        zip((one.name for one in asked), await asyncio.gather(*map(_told, asked)), strict=True)
    )
    for one in known:
        if one.name in first:
            states[one.name] = _relayed(one, told.get(first[one.name], {}), visible)
    return [
        replace(states[one.name], provider=one.provider or "", forward=one.forward) for one in known
    ]


async def _told(one: Subscription) -> dict[str, orders.Report] | str:
    """The reports of the first subscriber of a cascade on those below; or why it has none."""
    try:
        async with asyncio.timeout(_LOOK_S):
            session = await connect(one.dsn)
            try:
                if not (await rows_of(session, "is_made"))[0]["found"]:
                    return {}
                return {
                    order.ordered.name: order.report
                    for order in await orders.held(session, one.name)
                    if order.report.revision == order.ordered.revision
                }
            finally:
                await session.close()
    except (psycopg.Error, StoppedError, TimeoutError) as error:
        return in_one_line(error) or "no answer"


def _relayed(
    one: Subscription, told: Mapping[str, orders.Report] | str, visible: int
) -> SubscriptionState:
    """How a subscriber is that may be out of reach, as those above it have heard."""
    count = len(one.tables)
    report = None if isinstance(told, str) else told.get(one.name)
    if report is None or report.revision != one.revision:
        waits = f"nothing was heard yet: `pgherd forward --at` the subscriber of {one.provider}"
        reason = one.stopped or (told if isinstance(told, str) else waits)
        state = "stopped" if one.stopped else "unreachable" if isinstance(told, str) else "waiting"
        return SubscriptionState(
            one.name, one.set, state, one.confirmed, None, None, None, (0, count), reason
        )
    state = "stopped" if one.stopped else report.state
    reason = one.stopped or report.reason
    if report.age_s > _SILENT_S and state not in {"stopped", "unreachable"}:
        state, reason = "unreachable", f"nothing was heard of it for {report.age_s:.0f} s"
    gid = None if state == "copying" else report.needed
    lag = None if gid is None else max(visible - gid, 0)
    return SubscriptionState(
        one.name, one.set, state, gid, lag, None, None, (min(report.tables, count), count), reason
    )


async def _state(one: Subscription, visible: int, held: int | None) -> SubscriptionState:
    count = len(one.tables)
    try:
        async with asyncio.timeout(_LOOK_S):
            there, standing = await subscriber.look(one.dsn, one)
    except (psycopg.Error, StoppedError, TimeoutError) as error:
        reason = in_one_line(error) or "no answer"
        state, reason = ("stopped", one.stopped) if one.stopped else ("unreachable", reason)
        gid = one.confirmed
        lag = None if gid is None else max(visible - gid, 0)
        return SubscriptionState(one.name, one.set, state, gid, lag, None, held, (0, count), reason)
    await there.session.close()
    return seen(one, there, standing, visible, held)


def seen(
    one: Subscription,
    there: subscriber.Subscriber,
    standing: Mapping[str, Any] | None,
    visible: int,
    held: int | None,
) -> SubscriptionState:
    """How a subscriber is that was looked at."""
    done = len(there.shown.keys() | there.staged.keys())
    gid = there.gid
    following = done == len(one.tables) and not there.staged and gid is not None
    state = "stopped" if one.stopped else "following" if following else "copying"
    lag = None if gid is None else max(visible - gid, 0)
    age = standing["age_s"] if standing is not None else None
    lag_s = None if lag is None else 0.0 if lag == 0 else age
    reason = one.stopped or ""
    if state == "following" and lag_s is not None and lag_s > _SILENT_S:
        reason = (
            f"nothing was written there for {lag_s:.0f} s: the event subscription.waits in the"
            " members' logs says why"
        )
    return SubscriptionState(
        one.name, one.set, state, gid, lag, None if lag_s is None else round(lag_s, 1),
        0 if lag == 0 else held, (done, len(one.tables)), reason,
    )  # fmt: skip
