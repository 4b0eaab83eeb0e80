"""Fences subscribers off from their herd, brings them to one GID, and has one of them take writes.

"Slony-I: A replication system for PostgreSQL" has the data that this needs in each node (1.9, 1.10)
so that a failover is possible; what it does is its administrator's ``FAILOVER``.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
import psycopg

from pgherd_sidecar.client.stream.changes import ChangesError
from pgherd_sidecar.subscribing.feeding import Feeding
from pgherd_sidecar.subscribing.sources import ForwarderSource
from pgherd_sidecar.subscribing.state import subscriber
from pgherd_sidecar.subscribing.state.connections import ask_subscriber, connect
from pgherd_sidecar.subscribing.state.errors import MemberError, MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import ForwardLog
from pgherd_sidecar.subscribing.state.herd import (
    FENCED,
    TAKEN_OVER,
    TAKES_WRITES,
    Subscription,
    TableSelection,
)
from pgherd_sidecar.subscribing.state.orders import Report
from pgherd_sidecar.tables.rowsql import RowsKeptError, RowsMissingError
from pgherd_sidecar.tables.sessions import Session, in_one_line

_PATIENCE_S = 60.0
_LOOK_S = 0.2
_ERRORS = (
    StoppedError, MemberError, MovedOnError, ChangesError, RowsKeptError, RowsMissingError,
    psycopg.Error, TimeoutError,
)  # fmt: skip


class Survivor(msgspec.Struct, frozen=True):
    """A subscriber that may take the set over.

    Attributes:
        name: of its subscription.
        gid: that it shows.
        begins: its log for others has all after this GID; None if it has none.
        tables: that it shows.
        has_taken_over: it takes writes already.
        fault: why it could not be brought level.
        selections: of the tables that it has not got as a whole.
    """

    name: str
    dsn: str
    cluster: str
    generation: int
    gid: int
    begins: int | None
    tables: tuple[str, ...]
    has_taken_over: bool = False
    fault: str = ""
    selections: tuple[TableSelection, ...] = ()

    def feeds(self, other: "Survivor") -> bool:
        """Has it all that another one has not?"""
        return self.begins is not None and self.begins <= other.gid <= self.gid


class _Nobody:
    """There is no herd above."""

    def orders(self) -> Sequence[Subscription]:
        """See ``Relay``."""
        return ()

    async def hear(self, reports: Sequence[Report], begins: int) -> None:
        """See ``Relay``."""


async def look(name: str, dsn: str) -> Survivor:
    """How a subscriber is.

    Raises:
        StoppedError: it shows nothing of a subscription of this name.
        psycopg.Error: it can't be reached.
    """
    asked = Subscription(name, "", dsn, 1, 0, 0.0, None, None, ())
    there, standing = await subscriber.look(dsn, asked)
    try:
        if standing is None or there.gid is None:
            raise StoppedError(f"there is nothing of a subscription {name}: see --at NAME=DSN")
        begins = await ForwardLog(there.session, name).begins()
        shown = there.shown | there.old
        selections = tuple(one.of for _, one in sorted(shown.items()) if one.of is not None)
        return Survivor(
            name, dsn, standing["cluster"], standing["generation"], there.gid, begins,
            tuple(sorted(shown)), await there.revision() in TAKES_WRITES, selections=selections,
        )  # fmt: skip
    finally:
        await there.session.close()


def chosen(found: Sequence[Survivor]) -> Survivor:
    """The one that has taken over, or else the most advanced one, which lets most others follow.

    Raises:
        StoppedError: they are of several sets or herds, or two have taken over or have one name.
    """
    if len({one.name for one in found}) < len(found):
        raise StoppedError("one of them is named twice: name each subscription once")
    if sum(one.has_taken_over for one in found) > 1:
        raise StoppedError("two of them have taken over: name the one that is to go on")
    if len({(one.cluster, one.tables, one.selections) for one in found}) > 1:
        raise StoppedError("they do not show the same of one herd's tables: name those that do")
    return max(
        found,
        key=lambda one: (
            one.has_taken_over,
            one.gid,
            sum(one.feeds(other) for other in found),
            one.name,
        ),
    )


async def take_over(found: Sequence[Survivor]) -> tuple[Survivor, list[Survivor]]:
    """Have the most advanced one take writes; return it, and how the others are.

    What it holds of the set stays, with its log, so those that were out of reach can be brought
    level by another call. So does its fence: a herd that comes back would copy its own rows there.

    All are held from the look until one takes writes. Else a second failover might find two that
    the first one has brought level, and have the other one of these take writes.

    Args:
        found: all that are to go on.

    Raises:
        StoppedError, psycopg.Error: one of them can't be fenced or held; nothing takes writes then.
        TimeoutError: a feeder of the herd does not leave one of them; likewise.
    """
    async with AsyncExitStack() as stack:
        sessions, held = {}, {}
        for one in sorted(found, key=lambda one: one.name):  # of two failovers one gets all
            sessions[one.name] = await connect(one.dsn)
            stack.push_async_callback(sessions[one.name].close)
            await _exclude_others(one.name, sessions[one.name])
        for one in found:
            held[one.name] = await _fence(one, sessions[one.name])
            stack.push_async_callback(held[one.name].close)
        for there in held.values():
            await _lock(there)
        known = [await look(one.name, one.dsn) for one in found]
        first = chosen(known)
        others = [
            await _level(one, first, held[one.name]) for one in known if one.name != first.name
        ]
        if not first.has_taken_over:
            lost = {one.name for one in others if one.fault}
            try:
                for there in (there for name, there in held.items() if name not in lost):
                    await there.persist(_nothing)
                await _release(first, held[first.name])
            except MovedOnError as error:
                raise StoppedError("another failover was quicker: repeat the command") from error
    return first, others


async def _exclude_others(name: str, session: Session) -> None:
    """Keep other failovers away from a subscriber, as long as the session lasts.

    At a herd it does so at one member. The turn, which is taken later, does so at all of them.
    """
    (row,) = await ask_subscriber(session, "lock_failover", name=name)
    if not row["locked"]:
        raise StoppedError(
            f"another failover is running at the subscriber of {name}: wait for its end, and"
            " repeat the command"
        )


async def _fence(one: Survivor, session: Session) -> subscriber.Subscriber:
    """From now on no feeder of the herd writes there: its order is older."""
    there = subscriber.Subscriber(session, _order(one), one.cluster)
    await there.persist(there.claim)
    # Its generation may have been another one before that.
    return subscriber.Subscriber(session, _order(await look(one.name, one.dsn)), one.cluster)


async def _nothing() -> None:
    """A transaction without work commits where the turn is ours still."""


async def _release(first: Survivor, there: subscriber.Subscriber) -> None:
    taken = subscriber.Subscriber(there.session, _order(first, TAKEN_OVER), first.cluster)

    async def work() -> None:
        await there.placing.unguard()
        await taken.claim()

    await there.load()
    await there.persist(work)


async def _lock(there: subscriber.Subscriber) -> None:
    """Wait until a feeder of the herd has left, which it does as soon as it looks."""
    async with asyncio.timeout(_PATIENCE_S):
        while not await there.lock():  # noqa: ASYNC110 - it is another process that lets go
            await asyncio.sleep(_LOOK_S)


async def _level(one: Survivor, first: Survivor, there: subscriber.Subscriber) -> Survivor:
    """Bring one to the GID of the first, from that one's log."""
    if one.gid == first.gid:
        return one
    if not first.feeds(one):
        has = "no log for others" if first.begins is None else f"its log after GID {first.begins}"
        return msgspec.structs.replace(one, fault=f"{first.name} has {has}")
    try:
        provider = await connect(first.dsn)
        try:
            await _feed(one, first, there, provider)
        finally:
            await provider.close()
        return await look(one.name, one.dsn)
    except _ERRORS as error:
        return msgspec.structs.replace(one, fault=in_one_line(error))


async def _feed(
    one: Survivor, first: Survivor, there: subscriber.Subscriber, provider: Session
) -> None:
    await there.attach(one.cluster)
    source = ForwarderSource(provider, first.name)
    order = msgspec.structs.replace(_order(one), sequences=tuple(await source.sequences()))
    work = asyncio.create_task(Feeding(source, there, order, _Nobody()).run())
    moved_s, gid = time.monotonic(), one.gid
    try:
        while (there.gid or 0) < first.gid:
            await asyncio.wait({work}, timeout=_LOOK_S)
            if work.done():
                await work
            if there.gid != gid:
                moved_s, gid = time.monotonic(), there.gid or 0
            if time.monotonic() - moved_s > _PATIENCE_S:
                raise TimeoutError(f"it stays at GID {gid}")
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _order(one: Survivor, revision: int = FENCED) -> Subscription:
    return Subscription(
        one.name, "", one.dsn, one.generation, 1 << 62, 0.0, None, None, one.tables,
        forward=one.begins is not None, revision=revision, selections=one.selections,
    )  # fmt: skip
