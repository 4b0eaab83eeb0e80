"""Carries out one order of a sidecar: ``python -m ... < ORDER``.

A process of its own, as a feeder is: what a subscriber's server says is nothing that the sidecar,
for which commits wait, should have to read. The order comes by the standard input, as it holds a
password. One line of JSON goes out, with one of three fields: ``answer``; ``refused``, if it can't
be done however often it is asked for; ``unavailable``, if it may be done later.
"""

import asyncio
import sys
from typing import Any, Literal

import msgspec
import psycopg

from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.client.routes import (
    DropSetRequest,
    SetRequest,
    SubscriptionEnd,
    SubscriptionRequest,
)
from pgherd_sidecar.subscribing import overview
from pgherd_sidecar.subscribing.ordering import addresses, sets, subscriptions
from pgherd_sidecar.subscribing.state import herd
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.tables import sessions
from pgherd_sidecar.tables.sessions import Session

Answer = dict[str, Any]
_BRIEFLY = "SET lock_timeout = '500ms'"
"""Less than deadlock_timeout: after that a vacuum that is waited for would be cancelled."""
_LEAVES_S = 20.0
"""The sidecar waits for 30 seconds, and the order may be repeated."""


class SidecarOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sidecar wants done.

    Attributes:
        conninfo: of the member's server, as superuser.
        kind: which of the four requests follows.
    """

    conninfo: str
    kind: Literal["order_set", "drop_set", "order_subscription", "end_subscription"]
    request: msgspec.Raw


async def carry_out(work: SidecarOrder) -> Answer:
    """Do it, and say what became of it."""
    try:
        session = await sessions.connect(work.conninfo, "pgherd subscriptions")
        try:
            await session.execute(_BRIEFLY)
            return {"answer": await _ACTS[work.kind](session, work.request)}
        finally:
            await session.close()
    except (HerdError, StoppedError) as error:
        return {"refused": sessions.in_one_line(error)}
    except psycopg.Error as error:
        kind = "unavailable" if sessions.is_transient(error) else "refused"
        return {kind: sessions.message_of(error)}


async def _order_set(session: Session, request: msgspec.Raw) -> Answer:
    found, chosen = await sets.order(session, msgspec.json.decode(request, type=SetRequest))
    return {
        "tables": found.tables, "sequences": found.sequences, "chosen": chosen,
        "subscriptions": found.subscriptions,
    }  # fmt: skip


async def _drop_set(session: Session, request: msgspec.Raw) -> Answer:
    await herd.ask(session, "strong")
    known = await sets.named(session, msgspec.json.decode(request, type=DropSetRequest).name)
    if known is not None:
        await sets.drop(session, known)
    return {"found": known is not None}


async def _order_subscription(session: Session, request: msgspec.Raw) -> Answer:
    wanted = msgspec.json.decode(request, type=SubscriptionRequest)
    addresses.require_elsewhere(wanted.dsn)
    try:
        before = await subscriptions.order(session, wanted)
    except subscriptions.SubscriberError as error:
        return {"ordered": False, "state": "unreachable", "reason": sessions.in_one_line(error)}
    known = subscriptions.with_providers(wanted.name, await herd.subscriptions(session))
    generations = {one.name: one.generation for one in known}
    if (generation := generations.get(wanted.name)) is None:
        raise HerdError(f"somebody has just ended subscription {wanted.name}")
    (row,) = await herd.ask(session, "visible")
    states = {one.name: one for one in await overview.states(known, row["gid"], {})}
    state = states[wanted.name]
    return {
        "ordered": True, "begun": before is None, "generation": generation, "state": state.state,
        "gid": state.gid, "lag_gids": state.lag_gids, "lag_s": state.lag_s,
        "tables_done": state.tables[0], "tables": state.tables[1], "reason": state.reason,
    }  # fmt: skip


async def _end_subscription(session: Session, request: msgspec.Raw) -> Answer:
    wanted = msgspec.json.decode(request, type=SubscriptionEnd)
    await herd.ask(session, "strong")
    if wanted.name not in {one.name for one in await herd.subscriptions(session)}:
        return {"ended": True}
    try:
        teller = await subscriptions.end(
            session, wanted.name, herd_only=wanted.herd_only, patience_s=_LEAVES_S
        )
    except subscriptions.SubscriberError as error:
        return {"ended": False, "reason": sessions.in_one_line(error)}
    return {"ended": True, "told_by": teller}


_ACTS = {
    "order_set": _order_set,
    "drop_set": _drop_set,
    "order_subscription": _order_subscription,
    "end_subscription": _end_subscription,
}


def main() -> None:
    """Do what the standard input says."""
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=SidecarOrder)
    answer = asyncio.run(carry_out(work))
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")


if __name__ == "__main__":
    main()
