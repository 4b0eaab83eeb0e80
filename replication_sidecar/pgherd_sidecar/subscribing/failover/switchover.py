"""A set moves to one of its subscribers as planned, and nothing is lost: `pgherd switchover`.

"Slony-I: A replication system for PostgreSQL" has the data that this needs in each node (1.4, 1.9);
its administrator says ``LOCK SET`` and ``MOVE SET``. Each step is one transaction, so who is killed
may repeat the command::

    lock      the set's tables take no writes in the herd, which remembers the move
    level     the subscriber comes to the GID of that
    release   the subscriber takes writes: the point of no return
    finish    the herd knows that, and feeds that subscriber no more

and before the release all of it can be undone::

    turn      the herd remembers that, and the subscription has a later order
    revoke    the subscriber belongs to that order, so nobody can release it by the earlier one
    unlock    the set's tables take writes in the herd

The lock is DDL, and each transaction that writes to a table conflicts with DDL of that table. So
whatever had not committed when it was ordered hears 40001, on whichever member it ran, and what the
tables hold at the GID of the lock is all that they will ever hold.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from pgherd_sidecar.subscribing.state import followed, herd, subscriber
from pgherd_sidecar.subscribing.state.connections import connect
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import (
    FENCED,
    RELEASED,
    TAKEN_OVER,
    TAKES_WRITES,
    Subscription,
)
from pgherd_sidecar.tables.sessions import Session, message_of

_LOOK_S = 0.1
_TRIGGER = "moved_set"
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '3s'"
"""So long others may queue behind one who waits for a lock on a table."""
_LOST = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
)


class Move(msgspec.Struct, frozen=True):
    """A move that the herd knows of.

    Attributes:
        subscription: to whose subscriber the set goes.
        state: moving, undoing or moved.
    """

    set: str
    subscription: str
    state: str


async def known(session: Session, name: str) -> Move | None:
    """The move of a set, if there is one."""
    if not await herd.is_made(session):
        return None
    found = await herd.ask(session, "move", name=name)
    return msgspec.convert(found[0], Move) if found else None


async def require_at_rest(session: Session, name: str) -> None:
    """Check that a set may be changed.

    Raises:
        StoppedError: it moves, or has moved.
    """
    move = await known(session, name)
    if move is not None:
        what = "has moved" if move.state == "moved" else "moves"
        raise StoppedError(
            f"set {name} {what} to the subscriber of {move.subscription}: `pgherd switchover"
            f" {name} --undo`, as long as that one takes no writes"
        )


async def require_no_move(session: Session, target: Subscription) -> None:
    """Check that no set is on its way to a subscriber, which then takes no writes by other means.

    Raises:
        StoppedError: its set is.
    """
    move = await known(session, target.set)
    if move is None or move.subscription != target.name or move.state == "moved":
        return
    command = f"pgherd switchover {target.set}"
    ends = "" if move.state == "undoing" else f"`{command} --to {target.name} --yes` ends that, or "
    raise StoppedError(
        f"set {target.set} moves to the subscriber of {target.name}, and nothing was ended:"
        f" {ends}`{command} --undo` has the herd take writes; then repeat this. --herd-only is for"
        " a subscriber that is lost for good"
    )


class Switchover:
    """The steps of one move.

    Args:
        session: of a superuser of a member that takes writes; nobody else uses it.
        name: of the set.
        patience_s: so long each step may take.
    """

    def __init__(self, session: Session, name: str, patience_s: float) -> None:
        self._session = session
        self._name = name
        self._patience_s = patience_s

    async def require(self, target: str) -> Subscription:
        """Check that the set can move to a subscriber; return its subscription.

        Raises:
            StoppedError: it can't.
            psycopg.Error: the subscriber can't be reached.
        """
        await herd.ask(self._session, "strong")
        all_known = await herd.subscriptions(self._session)
        one = next((one for one in all_known if one.name == target), None)
        if one is None or one.set != self._name:
            raise StoppedError(
                f"there is no subscription {target} to set {self._name}: `pgherd subscriptions`"
            )
        if one.selections:
            raise StoppedError(
                f"set {self._name} has {one.selections[0]}, so the subscriber lacks the rest:"
                " `pgherd set alter` gives it the whole table"
            )
        if (tab := await followed.followed(self._session, one.tables)) is not None:
            raise StoppedError(
                f"table {tab} follows another herd here, which has its origin: move it there"
            )
        if not one.tables:
            raise StoppedError(f"set {self._name} has no tables: there is nothing to move")
        move = await known(self._session, self._name)
        if move is not None and move.subscription != target:
            raise StoppedError(
                f"set {self._name} moves to {move.subscription}: `pgherd switchover {self._name}"
                " --undo` first"
            )
        if move is not None and move.state == "undoing":
            raise StoppedError(
                f"that is being undone: end it with `pgherd switchover {self._name} --undo`"
            )
        if one.stopped is not None and (move is None or move.state != "moved"):
            raise StoppedError(f"subscription {target} is stopped ({one.stopped}): mend that first")
        await self._require_fed(one, move)
        if move is None:
            await self._require_no_parents(one)
        return one

    async def _require_fed(self, target: Subscription, move: Move | None) -> None:
        """Check that no failover has opened or fenced it: what the herd has beyond would be lost.

        Raises:
            StoppedError: one has.
        """
        there, standing = await subscriber.look(target.dsn, target)
        await there.session.close()
        revision = 0 if standing is None else standing["revision"]
        if move is not None and revision == TAKEN_OVER:
            raise StoppedError(
                f"a failover, or a switchover by an earlier version, has had the subscriber of"
                f" {target.name} take writes, at GID {there.gid}: what the herd has committed after"
                f" that is not there, and `pgherd changes --after {there.gid}` names it. `pgherd"
                f" unsubscribe {target.name} --herd-only` ends what is left of the move"
            )
        if revision >= FENCED and (move is None or revision != RELEASED):
            raise StoppedError(subscriber.why_fenced(target.name, revision))

    async def _require_no_parents(self, target: Subscription) -> None:
        """Check that nobody writes to these tables by the name of another one, past their lock.

        Raises:
            StoppedError: one inherits from a table that is not in the set.
        """
        for row in await herd.ask(self._session, "inheriting", names=list(target.tables)):
            raise StoppedError(
                f"table {row['tab']} inherits from {row['parent']}, which is not in set"
                f" {self._name}, and who writes there writes to both: ALTER TABLE {row['tab']}"
                f" NO INHERIT {row['parent']}, or have both in the set"
            )

    async def lock(self, target: Subscription) -> int:
        """Have the set's tables take no writes; return a GID after which none of them has any.

        Repeated, it does nothing.

        Raises:
            StoppedError: it can't be done; nothing has changed then.
        """

        async def work() -> None:
            move = await known(self._session, self._name)
            if move is not None:
                if (move.subscription, move.state) not in {
                    (target.name, "moving"), (target.name, "moved"),
                }:  # fmt: skip
                    raise StoppedError("somebody else moves this set, or undoes that: repeat it")
                return
            await self._require_unchanged(target)
            await self._require_no_parents(target)
            values = {"name": self._name, "subscription": target.name}
            await herd.ask(self._session, "keep_subscription", **values)
            await herd.ask(self._session, "begin_move", **values)
            for row in await herd.ask(self._session, "relations", names=list(target.tables)):
                await self._session.execute(
                    sql.SQL(
                        "CREATE TRIGGER {} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {}"
                        " FOR EACH STATEMENT EXECUTE FUNCTION pgherd_subscriptions.refuse({})"
                    ).format(
                        sql.Identifier(_TRIGGER),
                        sql.Identifier(row["schema"], row["relation"]),
                        sql.Literal(self._name),
                    )
                )

        await self._persist(self._session, work, "lock the set's tables in the herd")
        await herd.ask(self._session, "strong")
        return int((await herd.ask(self._session, "visible"))[0]["gid"])

    async def level(self, target: Subscription, gid: int) -> None:
        """Wait until the subscriber shows a GID.

        Raises:
            StoppedError: it does not come there, or lacks a table, or the set has others now.
        """
        limit = time.monotonic() + self._patience_s
        while True:
            there, _ = await subscriber.look(target.dsn, target)
            is_released = await there.revision() == RELEASED
            await there.session.close()
            shown = there.gid or 0
            if is_released:
                return
            await self._require_unchanged(target)
            if shown >= gid and there.shown.keys() >= set(target.tables):
                return
            if time.monotonic() > limit:
                raise StoppedError(
                    f"the subscriber shows GID {shown} and not GID {gid} after"
                    f" {self._patience_s:g} s: see `pgherd subscriptions`, or give --timeout"
                )
            await asyncio.sleep(_LOOK_S)

    async def _require_unchanged(self, target: Subscription) -> None:
        """Check that the herd goes on to feed these tables, and no others.

        Raises:
            StoppedError: it does not.
        """
        all_known = await herd.subscriptions(self._session)
        one = next((one for one in all_known if one.name == target.name), None)
        if one is None:
            raise StoppedError(f"there is no subscription {target.name} any more")
        if one.stopped is not None:
            raise StoppedError(f"subscription {one.name} is stopped: {one.stopped}")
        if set(one.tables) != set(target.tables):
            raise StoppedError(f"set {self._name} has other tables now: repeat the command")

    async def release(self, target: Subscription, gid: int) -> None:
        """Have the subscriber take writes, if it shows a GID; after this nothing can be undone.

        Raises:
            StoppedError: it is fed by another order, or does not show it.
        """
        session = await connect(target.dsn)
        try:
            there = subscriber.Subscriber(session, target, await herd.cluster(self._session))

            async def work() -> None:
                await there.claim()
                if await there.revision() == RELEASED:
                    return
                await there.load()
                # Tables first, as a feeder locks them: who has them waits for nobody then.
                await there.placing.unguard()
                await there.hand_over(gid, RELEASED)

            await self._persist(session, work, "have the subscriber take writes")
        finally:
            await session.close()

    async def finish(self, target: Subscription) -> None:
        """Have the herd know that the set has moved."""
        reason = (
            f"set {self._name} has moved to it, and it takes writes: `pgherd unsubscribe"
            f" {target.name} --herd-only` ends it"
        )
        values = {"name": target.name, "generation": target.generation, "dsn": target.dsn}
        await herd.execute(
            self._session,
            [("moved", {"name": self._name}), ("stop", values | {"reason": reason})],
        )

    # ---- back ------------------------------------------------------------------------------

    async def undo(self) -> None:
        """Have the herd take writes again, as long as the subscriber does not.

        Raises:
            StoppedError: it does, or there is no move.
            psycopg.Error: the subscriber can't be reached, so nobody knows; repeat it.
        """
        move = await known(self._session, self._name)
        if move is None:
            raise StoppedError(f"set {self._name} does not move: there is nothing to undo")
        if move.state != "moved":
            await self._turn()
        target = next(
            (
                one
                for one in await herd.subscriptions(self._session)
                if one.name == move.subscription
            ),
            None,
        )
        if move.state == "moved" or (target is not None and not await self._revoke(target)):
            raise StoppedError(
                f"the subscriber of {move.subscription} takes writes: there is nothing to undo."
                f" `pgherd set drop {self._name}` has the herd take writes, too, which the"
                " subscriber never gets"
            )
        await self.unlock()

    async def _turn(self) -> None:
        values = {"name": self._name}
        await herd.execute(self._session, [("undo_move", values), ("order_anew", values)])

    async def _revoke(self, target: Subscription) -> bool:
        """Have nobody release the subscriber by an earlier order; False: somebody has."""
        session = await connect(target.dsn)
        try:
            there = subscriber.Subscriber(session, target, await herd.cluster(self._session))
            await self._persist(session, there.claim, "reach the subscriber")
            takes_writes = await there.revision() in TAKES_WRITES
        finally:
            await session.close()
        if takes_writes:
            await self.finish(target)
        return not takes_writes

    async def unlock(self) -> None:
        """Have the set's tables take writes in the herd, and the herd forget the move."""

        async def work() -> None:
            for row in await herd.ask(self._session, "locked", name=self._name):
                await self._session.execute(
                    sql.SQL("DROP TRIGGER {} ON {}").format(
                        sql.Identifier(_TRIGGER), sql.Identifier(row["schema"], row["relation"])
                    )
                )
            await herd.ask(self._session, "end_move", name=self._name)

        await self._persist(self._session, work, "have the herd take writes again")

    # ---- helpers ---------------------------------------------------------------------------

    async def _persist(
        self, session: Session, work: Callable[[], Awaitable[Any]], what: str
    ) -> None:
        """Do something in one transaction, again after a lost conflict.

        Raises:
            StoppedError: others are in the way all the time.
        """
        limit = time.monotonic() + self._patience_s
        while True:
            try:
                async with session.transaction():
                    await session.execute(_LOCK_TIMEOUT)
                    await work()
            except _LOST as error:
                if time.monotonic() > limit:
                    raise StoppedError(
                        f"others are in the way for {self._patience_s:g} s to {what}"
                        f" ({message_of(error)}): end long transactions, or give --timeout"
                    ) from error
                await asyncio.sleep(_LOOK_S)
            else:
                return
