"""A subscriber: what it holds of a set, at which GID, and who may write that.

It is a plain server, or a herd of which one member is written through. Tables are copied into the
schema ``pgherd_subscriber`` first (staged), and shown in one transaction with the GID. An ordinary
role can do all of it. Called by ``feeding`` and by the commands.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from pgherd_sidecar.subscribing.state.connections import (
    ask_subscriber,
    connect,
    lock_schema,
    subscriber_query,
)
from pgherd_sidecar.subscribing.state.errors import MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.herd import FENCED, Subscription, TableSelection
from pgherd_sidecar.subscribing.state.holdings import SCHEMA, Holdings, ShownTable, damaged
from pgherd_sidecar.subscribing.state.numbering import Numbering
from pgherd_sidecar.subscribing.state.placing import Placing
from pgherd_sidecar.subscribing.state.turn import Turn
from pgherd_sidecar.tables.sessions import Session

_OLDEST = 150000
_ATTEMPTS = 10
_WAIT_S = 1.0
_LOST = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


class _Standing(msgspec.Struct, frozen=True):
    """How far a subscription is, as the subscriber says."""

    cluster: str
    generation: int
    gid: int | None
    revision: int


class Subscriber:
    """One subscription at its subscriber, as long as a session lasts.

    Args:
        session: at the subscriber.
        subscription: what was ordered.
        cluster: id of the herd that has ordered it; None: whichever the subscriber names. Herds
            do not know the names of each other's subscriptions.

    Attributes:
        session: no other one writes the rows.
        gid: that it shows, None before the first copy is whole.
        is_herd: rows are written through one of its members; known after ``lock`` and ``look``.
        holdings: which tables there are.
        placing: puts tables there, within transactions of ours.
        numbering: moves sequences.
    """

    def __init__(
        self, session: Session, subscription: Subscription, cluster: str | None = None
    ) -> None:
        self.session = session
        self.gid: int | None = None
        self.is_herd = False
        self.holdings = Holdings(session, subscription)
        self.placing = Placing(session, subscription, self.holdings)
        self.numbering = Numbering(session)
        self._subscription = subscription
        self._cluster = cluster
        self._turn: Turn | None = None

    @property
    def shown(self) -> dict[str, ShownTable]:
        """Tables that follow, by name."""
        return self.holdings.shown

    @property
    def staged(self) -> dict[str, ShownTable]:
        """Tables that were copied and wait to be shown."""
        return self.holdings.staged

    @property
    def old(self) -> dict[str, ShownTable]:
        """Tables that are shown and stand still."""
        return self.holdings.old

    @property
    def holder(self) -> str | None:
        """What the subscriber's herd says of who feeds it, if that is us; None: it is no herd."""
        return None if self._turn is None else self._turn.holder

    @property
    def _mine(self) -> dict[str, Any]:
        return {"name": self._subscription.name}

    async def _standing(self) -> "_Standing":
        try:
            (row,) = await self._rows("standing", **self._mine)
            return msgspec.convert(row, _Standing)
        except (ValueError, msgspec.ValidationError) as error:
            raise damaged("standing") from error

    # ---- whose turn it is ------------------------------------------------------------------

    async def lock(self) -> bool:
        """Become the one that feeds it; False: another one is, which leaves if its order is older.

        Who feeds it may have another provider, and hear nothing of a later order.

        Raises:
            StoppedError: another herd has a subscription of this name there.
        """
        found = await self._look()
        if not await self._is_own(found):
            raise StoppedError(of_another_herd(self._subscription.name))
        (row,) = await self._rows("lock", **self._mine)
        locked = bool(row["locked"])
        if locked and found["herd"]:
            locked = await self._take_turn(found)
        if not locked and self._subscription.revision:
            await self.claim()
        return locked

    async def _take_turn(self, found: Mapping[str, Any]) -> bool:
        """Likewise at a herd, where the lock is one member's only."""
        require_fit(found)
        await self._rows("strong")
        if self._turn is None:
            self._turn = Turn(self.session, self._subscription.name, self._subscription.dsn)
        if not found["ready"] or not found["turned"]:
            await self.persist(self._make)
        self.is_herd = await self._turn.take()
        if not self.is_herd:
            await self._rows("unlock", **self._mine)
        return self.is_herd

    async def _is_own(self, found: Mapping[str, Any]) -> bool:
        """Has no other herd a subscription of this name there?"""
        if self._cluster is None:
            return True
        rows = await self._rows_if_ready(found, "standing", **self._mine)
        return not rows or rows[0]["cluster"] == self._cluster

    async def _make(self) -> None:
        """Make what a subscriber has, as far as it is missing."""
        await lock_schema(self.session, SCHEMA)
        found = await self._look()
        parts = [] if found["made"] else ["make_schema"]
        if not found["ready"]:
            parts += ["make_standing", "make_tables", "make_guard"]
        for name in parts:
            await self.session.execute(subscriber_query(name))
        if self._turn is not None and not found["turned"]:
            await self._turn.make()

    async def claim(self) -> None:
        """Have whoever feeds it by an earlier order leave, with its next transaction at the latest.

        Nothing of an earlier order is committed after it.
        """
        found = await self._look()
        if found["ready"]:
            await self.session.execute(subscriber_query("claim"), self._claim)

    @property
    def _claim(self) -> dict[str, Any]:
        return self._mine | {"revision": self._subscription.revision, "cluster": self._cluster}

    async def require_order(self) -> None:
        """Check that nobody feeds it by a later order.

        Raises:
            MovedOnError: somebody does.
            StoppedError: nobody feeds it, because of a fence.
        """
        revision = await self.revision()
        if revision == FENCED and self._subscription.revision < FENCED:
            raise StoppedError(why_fenced(self._subscription.name, FENCED))
        if revision != self._subscription.revision:
            raise MovedOnError("it is fed by a later order, or takes writes itself")

    async def revision(self) -> int | None:
        """Of the order by which it is fed; None if it is not fed."""
        rows = await self._rows_if_ready(await self._look(), "revision", **self._mine)
        return int(rows[0]["revision"]) if rows else None

    async def close(self) -> None:
        """Give the turn up, and end the session; that also if the caller is cancelled meanwhile."""
        try:
            if self._turn is not None:
                await self._turn.release()
        finally:  # it has the advisory lock
            await self.session.close()

    # ---- transactions ----------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction that commits only if nobody else has taken the turn.

        Raises:
            MovedOnError: somebody has.
        """
        async with self.session.transaction():
            yield
            await self._hold()

    async def _hold(self) -> None:
        if self._turn is not None and self.is_herd:
            await self._turn.hold()

    async def persist(self, work: Callable[[], Awaitable[Any]], *, holds: bool = True) -> None:
        """Do something in one transaction; at a herd again, if it loses a conflict.

        Args:
            work: may be done several times.
            holds: it commits only if nobody else has taken the turn.

        Raises:
            psycopg.Error: the subscriber says no.
            MovedOnError: somebody else has the turn.
        """
        for number in range(_ATTEMPTS):
            try:
                async with self.transaction() if holds else self.session.transaction():
                    await work()
            except _LOST:
                if number == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.1 * number)
            else:
                return

    # ---- what it holds ---------------------------------------------------------------------

    async def needed(self) -> int | None:
        """After which position the log is needed, for one who only looks; None: it needs none."""
        found = await self._look()
        if not found["ready"]:
            return None
        if found["herd"]:  # a member may be behind, and would name a part of the log that is gone
            await self._rows("strong")
        values = self._mine | {"generation": self._subscription.generation}
        try:
            rows = await self._rows_if_ready(found, "needed", **values)
        except psycopg.errors.DatatypeMismatch as error:
            raise damaged("standing") from error
        gid = rows[0]["gid"] if rows else None
        if gid is not None and not isinstance(gid, int):
            raise damaged("standing")
        return gid

    async def attach(self, cluster: str) -> None:
        """Make what a subscriber has, or find it, and learn how far it is; the lock is ours.

        Raises:
            StoppedError: this server can't subscribe, belongs to another herd, or holds what no
                feeder has written.
            MovedOnError: somebody feeds it by a later order, or has just left.
        """
        self._cluster = cluster
        found = await self._look()
        require_fit(found)
        self.is_herd = found["herd"]
        if self.is_herd and self._subscription.forward:
            raise StoppedError(
                "the subscriber is a herd, which can't forward: repeat `pgherd subscribe` with"
                " --no-forward; sets of its own can have these tables"
            )
        if not found["ready"]:
            await self.persist(self._make)
        await self.session.execute("SET pgherd_subscriber.feeding = on")
        try:
            await self.persist(lambda: self._begin(cluster))
            await self.load()
        except psycopg.errors.UndefinedTable as error:
            if (await self._look())["ready"]:
                raise
            raise MovedOnError("the end of another subscription has just removed it") from error
        for name in [name for name, one in self.staged.items() if not self._is_wanted(one)]:
            await self.unstage(name)

    async def _begin(self, cluster: str) -> None:
        """Have this order be the one by which it is fed."""
        generation = self._subscription.generation
        values = self._claim | {"generation": generation}
        await self.session.execute(subscriber_query("begin"), values)
        standing = await self._standing()
        if standing.cluster != cluster:
            raise StoppedError(of_another_herd(self._subscription.name))
        if standing.generation > generation:
            raise MovedOnError("it is fed by a later order")
        await self.session.execute(subscriber_query("claim"), self._claim)
        await self.require_order()
        if standing.generation < generation:
            await self.session.execute(subscriber_query("begin_anew"), values)
        await self._succeed(cluster)

    async def _succeed(self, cluster: str) -> None:
        """Take over what another herd has fed here and does no more.

        Guards of our tables stay, and so does the fence: else that herd would begin anew.
        """
        mine = self._subscription.tables
        values = {"cluster": cluster, "fenced": FENCED, "tables": list(mine)}
        found = await self._rows("fenced", **self._mine, **values)
        for row in found:
            await self.placing.inherit_guard(row["tab"], row["subscription"])
        for name in {row["subscription"] for row in found}:
            await self.placing.drop_guards(former=name)
            await self.session.execute(subscriber_query("forget_tables"), {"name": name})

    async def load(self) -> None:
        """Learn how far it is.

        Raises:
            StoppedError: what it says is damaged.
        """
        self.gid = (await self._standing()).gid
        await self.holdings.load()

    def wanted(self, name: str) -> TableSelection:
        """What of a table is wanted."""
        return self.holdings.wanted(name)

    def _is_wanted(self, one: ShownTable) -> bool:
        return self.holdings.is_wanted(one)

    async def unstage(self, name: str) -> None:
        """Give a copy up that can't be used."""
        await self.persist(lambda: self.placing.unstage(name))
        self.staged.pop(name, None)

    async def level_staged(self, gid: int) -> None:
        """Say that all copies are of a GID, within the transaction that has brought them there."""
        await self.session.execute(subscriber_query("level"), self._mine | {"gid": gid})

    async def hand_over(self, gid: int, revision: int) -> None:
        """Have no feeder write here any more, in the transaction in which it takes writes.

        Args:
            gid: that it must show.
            revision: of no order of a herd.

        Raises:
            StoppedError: it does not show it, or it belongs to another order.
        """
        values = self._claim | {"generation": self._subscription.generation}
        cursor = await self.session.execute(
            subscriber_query("hand_over"), values | {"gid": gid, "to": revision}
        )
        if cursor.rowcount != 1:
            raise StoppedError(
                f"the subscriber of {self._subscription.name} does not show GID {gid} by this"
                " order: was the order changed, or the move undone, meanwhile?"
            )

    async def require_ready(self) -> None:
        """Check that a herd's member can tell what it follows, and takes writes.

        Raises:
            psycopg.Error: it can't now.
        """
        found = await self._look()
        if found["herd"]:
            await self._rows("strong")

    async def is_own(self) -> bool:
        """Does no other herd have a subscription of this name there?"""
        return await self._is_own(await self._look())

    async def leave(self) -> None:
        """Remove what is ours, if there is something; tables and their rows stay.

        Raises:
            MovedOnError: it is fed by a later order, which may have come before we had the lock.
        """
        found = await self._look()
        if not found["ready"] or not await self._is_own(found):
            return
        self.is_herd = found["herd"]
        if self.is_herd:
            while not await self.lock():  # noqa: ASYNC110 - it is another process that lets go
                await asyncio.sleep(_WAIT_S)
        else:
            await self.session.execute(subscriber_query("wait_lock"), self._mine)
        await self._require_no_later()
        if await self._rows("standing", **self._mine):
            await self.load()
            for name in list(self.staged):
                await self.unstage(name)
        elif not self.is_herd:
            return
        await self.persist(self._end, holds=False)

    async def _end(self) -> None:
        await self._hold()
        await self.placing.leave_tables({*self.shown, *self.old})
        await self.placing.drop_guards()  # places are guarded before they are filled
        if self.is_herd:  # copies are made in parts
            await self.placing.drop_copies(self._subscription.tables)
        await self.session.execute(subscriber_query("forget"), self._ending)
        await self._require_no_later()
        if not (await self._rows("left"))[0]["found"]:
            await self.session.execute(subscriber_query("leave"))
        elif self.is_herd:
            await self.session.execute(subscriber_query("forget_turn"), self._mine)

    @property
    def _ending(self) -> dict[str, Any]:
        return self._claim | {"fenced": FENCED}

    async def _require_no_later(self) -> None:
        if await self._rows("later", **self._ending):
            raise MovedOnError("it is fed by a later order")

    # ---- following -------------------------------------------------------------------------

    async def advance(self, to: int, as_of: Any) -> None:
        """Say which GID the rows are of, within the transaction that writes them.

        Raises:
            MovedOnError: another feeder was here.
        """
        cursor = await self.session.execute(
            subscriber_query("advance"),
            self._claim | {
                "generation": self._subscription.generation, "from": self.gid, "to": to,
                "as_of": as_of,
            },
        )  # fmt: skip
        if cursor.rowcount != 1:
            raise MovedOnError("somebody else feeds it")
        await self._hold()

    async def _look(self) -> dict[str, Any]:
        (found,) = await self._rows("look")
        _require_ordinary(found)
        return found

    async def _rows_if_ready(
        self, found: Mapping[str, Any], name: str, /, **values: Any
    ) -> list[dict[str, Any]]:
        """Rows of what all subscriptions have there; none if nothing has been made.

        The end of the last subscription may remove it after ``found`` was asked for.
        """
        try:
            return await self._rows(name, **values) if found["ready"] else []
        except psycopg.errors.UndefinedTable:
            failed = self.session.info.transaction_status is TransactionStatus.INERROR
            if failed or (await self._look())["ready"]:
                raise
            return []

    async def _rows(self, name: str, /, **values: Any) -> list[dict[str, Any]]:
        return await ask_subscriber(self.session, name, **values)


def of_another_herd(name: str) -> str:
    """Why a subscriber is not fed: herds do not share the names of their subscriptions there."""
    return (
        f"that database follows a subscription {name} of another herd: give this one another"
        " --name, or end the other one with `pgherd unsubscribe` in that herd if it is there still"
    )


def why_fenced(name: str, revision: int) -> str:
    """Why a subscriber that a failover or a switchover has shut off is not fed by its herd.

    Args:
        name: of the subscription.
        revision: that the subscriber names: ``FENCED`` or a later one.
    """
    takes = ", and it takes writes" if revision > FENCED else ""
    return (
        f"a failover or a switchover has shut this herd out of the subscriber of {name}{takes}. If"
        " the herd is to feed it again, and replace all of its rows, end the subscription with"
        f" `pgherd unsubscribe` (if there is none, DROP SCHEMA {SCHEMA} CASCADE there), and order"
        " it again"
    )


def require_fit(found: Mapping[str, Any]) -> None:
    """Check that a server can subscribe.

    Args:
        found: what ``look`` of ``sql/subscriber.sql`` gives.

    Raises:
        StoppedError: it can't.
    """
    _require_ordinary(found)
    if found["version"] < _OLDEST:
        raise StoppedError("the subscriber is older than PostgreSQL 15: upgrade it")
    if found["standby"]:
        raise StoppedError("the subscriber is a standby, which takes no writes: name its primary")
    if not found["made"] and not found["may_create"]:
        raise StoppedError(
            f"role {found['role']} may not create schemas there: GRANT CREATE ON DATABASE, or"
            f" CREATE SCHEMA {SCHEMA} AUTHORIZATION {found['role']}"
        )


def _require_ordinary(found: Mapping[str, Any]) -> None:
    """Check that what others have made in a herd does not run as a superuser, as triggers do."""
    if found["herd"] and found["superuser"]:
        raise StoppedError(
            f"the subscriber is a herd, and role {found['role']} is a superuser there, or a member"
            " of one: give it an ordinary role"
        )


async def look(dsn: str, subscription: Subscription) -> tuple[Subscriber, dict[str, Any] | None]:
    """A session that only looks, and the standing there if there is one.

    Raises:
        psycopg.Error: it can't be reached.
        StoppedError: it can't subscribe.
    """
    session = await connect(dsn)
    try:
        cursor = await session.execute(subscriber_query("look"))
        found = await cursor.fetchone()
        assert found is not None
        require_fit(found)
        subscriber = Subscriber(session, subscription)
        subscriber.is_herd = found["herd"]
        if not found["ready"]:
            return subscriber, None
        if found["herd"]:  # a member may be behind
            await ask_subscriber(session, "strong")
        rows = await ask_subscriber(session, "standing", name=subscription.name)
        standing = rows[0] if rows else None
        if standing is not None:
            await subscriber.load()
    except BaseException:
        await session.close()
        raise
    return subscriber, standing
