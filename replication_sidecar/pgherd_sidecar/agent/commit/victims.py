"""Frees what is certain to commit from sessions that stand in its way.

The rules are in ``core.commit.victims``. Here the server is asked who is in the way, once a writer
takes longer than usual, and the orders are carried out. Nothing survives a restart.
"""

import asyncio
import contextlib
from array import array
from collections.abc import Callable
from time import monotonic
from typing import Any, assert_never

import psycopg
import structlog
from psycopg import sql

from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.agent.base.beat import until_next_s
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.commit.victims import Act, Blocker, Order

log = structlog.get_logger()

_PACE_S = 0.02
_IDLE_PACE_S = 1.0
_MARK_S = 5.0
"""A transaction that was marked has reported its error by then."""


class LockWatcher:
    """Watches for locks in the way of the total order.

    Args:
        connection: an administrative connection of its own.
        writers: the sessions that write what is certain to commit.
        path: the commit path, which has the rules.
        carry_out: has the outbox' answers written.
        command_lost: takes the certification keys of a command that is in the way.
        refuse: tells a transaction 40001 that waits for an answer, by 32 bits of its number;
            False if it does not.

    Attributes:
        spared: pid of a session that may be in the way: maintenance of a drained member.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        writers: Writers,
        path: CommitPath,
        carry_out: Callable[[], None],
        command_lost: "Callable[[array[int]], None]",
        refuse: Callable[[int], bool],
    ) -> None:
        self.victims = 0
        self.spared: int | None = None
        self._marked_s: float | None = None  # when one was marked last
        self._connection = connection
        self._writers = writers
        self._victims = path.victims
        self._outbox = path.outbox
        self._carry_out = carry_out
        self._command_lost = command_lost
        self._refuse = refuse

    async def run(self) -> None:
        """Watch for ever.

        Raises:
            psycopg.Error: the server is gone.
        """
        slow = self._writers.slow
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_next_s(_IDLE_PACE_S)):
                    await slow.wait()
            await self._look()
            while slow.is_set():
                await asyncio.sleep(_PACE_S)
                await self._look()

    async def _look(self) -> None:
        waiting = self._victims.waiting(self._writers.at_work, monotonic())
        if not waiting:
            self._victims.clear()
            await self._forget_marks()
            return
        rows = await self._connection.execute(
            "SELECT waiter, pid, xid, waits_s, idle_s, prepared FROM pgherd.blockers($1, $2)",
            (list(waiting), self._victims.transactions(waiting)),
        )
        found = [Blocker(*row) for row in await rows.fetchall()]
        blockers = [one for one in found if one.pid != self.spared or not one.pid]
        at_work = self._writers.at_work
        for order in self._victims.judge(blockers, waiting, at_work, monotonic()):
            await self._execute(order)

    async def _execute(self, order: Order) -> None:
        match order.act:
            case Act.CANCEL:
                log.info("victim.yields", pid=order.pid, to=order.gid)
                await self._signal("cancel", order)
            case Act.TERMINATE | Act.GIVE_WAY:
                how = "terminate" if order.act is Act.TERMINATE else "give_way"
                await self._end(how, order)
            case Act.ROLL_BACK:
                await self._roll_back(order.prepared)
            case Act.REFUSE_PIECES:
                self._outbox.pieces.refuse_pieces(order.pid)
                self._carry_out()
            case Act.REMEMBER_COMMAND:
                await self._remember_command(order.pid)
            case _:
                assert_never(order.act)

    async def _end(self, how: str, order: Order) -> None:
        """End a session, or have it keep its connection and hear an error."""
        self.victims += 1
        if self._refuse(order.xid):
            log.info("victim.refused", pid=order.pid, reason=order.situation.value)
        elif await self._signal(how, order):
            self._marked_s = monotonic()
            log.info("victim.refused", pid=order.pid, reason=order.situation.value)
        else:
            log.info("victim.terminated", pid=order.pid, reason=order.situation.value)

    async def _signal(self, how: str, order: Order) -> bool:
        """Cancel or end a session, unless it is in another transaction by now."""
        rows = await self._connection.execute(
            f"SELECT pgherd.{how}($1, $2)", (order.pid, str(order.xid))
        )
        row = await rows.fetchone()
        return row is not None and row[0] is True

    async def _forget_marks(self) -> None:
        """Let go of the marks of ``pgherd.give_way``; no other advisory lock is held here."""
        if self._marked_s is not None and monotonic() - self._marked_s > _MARK_S:
            self._marked_s = None
            await self._connection.execute("SELECT pg_advisory_unlock_all()")

    async def _roll_back(self, prepared: str) -> None:
        self.victims += 1
        log.warning("victim.prepared", transaction=prepared)
        with contextlib.suppress(psycopg.errors.UndefinedObject):  # it has just ended by itself
            await self._connection.execute(
                sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(prepared))
            )

    async def _remember_command(self, pid: int) -> None:
        """A command in the way will most likely fail: the next one like it is to go first."""
        rows = await self._connection.execute("SELECT pgherd.locked_keys($1)", (pid,))
        row = await rows.fetchone()
        if row is not None and row[0]:
            self._command_lost(array("q", [0, len(row[0]), *row[0]]))
