"""Frees those who are certain to commit from whoever stands in their way.

What a writer (``writers``) or a certified local transaction does is certain to commit, and all
after it wait, so a session that holds a lock they need has to give way (Postgres-R(SI) 4.2,
Slony-II 12.3). Who that is decides how:

* ordered before them: left alone, they wait for their turn, as they should;
* waits for its verdict: left alone, the verdict is on its way, and if it lost it is told at once;
* certified with a later GID (it holds a row lock only, C9): cancelled; it rolls back, its client
  hears 08007, and its rows are written in its place;
* began to wait for a lock itself: PostgreSQL's deadlock detector, which looks once, may end it
  with 40P01; once it has looked in vain, the session is ended, since whoever holds that lock can't
  commit before it gives way;
* works on its transaction, if with short pauses: it gets a grace to reach COMMIT, where it is told
  40001; then its session is ended;
* sends a large transaction in pieces: it is told 40001 with the next one, or ended if it takes
  twice as long as that;
* idle in its transaction for longer than a program takes to think: its session is ended, since
  PostgreSQL has no way to fail the transaction of an idle session;
* prepared (PREPARE TRANSACTION): rolled back. It has written no replicated row, or it could not
  have been prepared, but it may have locked some, and only its coordinator would ever end it.

A statement of a client is not cancelled, except in COMMIT, where ``certify()`` notices: the client
would hear 57014, "canceling statement due to user request", which no library takes for a reason to
repeat a transaction. PostgreSQL offers no other way to fail a statement from outside: 40P01 needs a
wait for a lock that its detector has not looked at yet, and the 40001 of recovery conflicts is sent
by the startup process of a standby only. A lost session (57P01) is known to every pool.

Called by ``session``. Nothing survives a restart.
"""

import asyncio
import contextlib
from array import array
from typing import Any

import psycopg
import structlog
from psycopg import sql

from pgherd_sidecar.agent.chain import Chain, LocalLink
from pgherd_sidecar.agent.hook import HookServer
from pgherd_sidecar.agent.writers import Writers

log = structlog.get_logger()

_PACE_S = 0.02
_IDLE_PACE_S = 1.0
_GRACE_S = 0.05
_IDLE_S = 0.1
_BUSY_S = 0.5
_DETECTOR_S = 0.2
"""Twice the ``deadlock_timeout`` of the sessions (060_apply.sql): the detector has looked."""
_STUCK_S = 1.0
_COMMIT_MAX_S = 10.0
_XID_MASK = (1 << 32) - 1


class VictimWatch:
    """Watches for locks in the way of the total order.

    Args:
        connection: an administrative connection of its own.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        writers: Writers,
        chain: Chain,
        hook: HookServer,
    ) -> None:
        self.victims = 0
        self._connection = connection
        self._writers = writers
        self._chain = chain
        self._hook = hook
        self._first_seen: dict[tuple[int, int], float] = {}
        self._pressed: set[tuple[int, int]] = set()
        self._head: tuple[int, float] = (0, 0.0)
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Watch for ever.

        Raises:
            psycopg.Error: the server is gone.
        """
        slow = self._writers.slow
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_PACE_S):
                    await slow.wait()
            await self._look()
            while slow.is_set():
                await asyncio.sleep(_PACE_S)
                await self._look()

    async def _look(self) -> None:
        now = self._loop.time()
        waiting = dict(self._writers.at_work) | self._stuck(now)
        if not waiting:
            self._first_seen = {}
            self._pressed = set()
            return
        rows = await self._connection.execute(
            "SELECT waiter, pid, xid, waits_s, idle_s, prepared FROM pgherd.blockers($1)",
            (list(waiting),),
        )
        blockers = await rows.fetchall()
        # What was seen of a writer that has since turned to something else is of no use.
        present = waiting.items() & (dict(self._writers.at_work) | self._stuck(now)).items()
        now = self._loop.time()
        seen = {(pid, xid): now for _, pid, xid, *_ in blockers}
        self._first_seen = {key: self._first_seen.get(key, now) for key in seen}
        self._pressed &= seen.keys()
        for waiter, pid, xid, waits_s, idle_s, prepared in blockers:
            if (waiter, waiting[waiter]) not in present or pid in self._writers.at_work:
                continue
            if prepared is not None:
                await self._roll_back(prepared, xid)
                continue
            link = self._certified(pid, xid)
            if link is not None:
                await self._let_yield(link, waiting[waiter])
            elif not self._hook.writesets.waits(pid):
                await self._press(pid, xid, waits_s, idle_s)
        for link in self._chain.locals()[:1]:
            if link.pid in waiting:
                await self._hurry(link)

    def _stuck(self, now: float) -> dict[int, int]:
        """Certified local transactions that take much longer than a commit does."""
        return {
            link.pid: link.gid for link in self._chain.locals() if now - link.since_s > _STUCK_S
        }

    async def _let_yield(self, link: LocalLink, gid: int) -> None:
        """Deal with a certified transaction, which ``gid`` waits for."""
        xid = link.xid & _XID_MASK
        if link.gid < gid:
            return
        if not link.yielding:
            link.yielding = True
            log.info("victim.yields", pid=link.pid, gid=link.gid, to=gid)
            await self._cancel(link.pid, xid)
        elif self._seen_s(link.pid, xid) > _GRACE_S:
            await self._end(link.pid, xid, "certified, and does not yield")

    async def _press(self, pid: int, xid: int, waits_s: float, idle_s: float) -> None:
        """Deal with a transaction that is not certified.

        Args:
            waits_s: how long it has waited for a lock itself, 0 if it does not.
            idle_s: how long it has been idle, 0 if it is not.
        """
        seen_s = self._seen_s(pid, xid)
        sends_pieces = self._hook.pieces.refuse(pid)
        if (pid, xid) not in self._pressed:
            self._pressed.add((pid, xid))
            await self._remember_command(pid)
        if 0 < waits_s <= _DETECTOR_S:
            return
        if seen_s > 2 * _BUSY_S or min(seen_s, idle_s) > _IDLE_S:
            await self._end(pid, xid, "holds a lock that is needed for what is certain to commit")
        elif waits_s or (seen_s > _BUSY_S and not idle_s and not sends_pieces):
            await self._end(pid, xid, "its statement holds a lock for too long", gently=True)

    async def _remember_command(self, pid: int) -> None:
        """A command in the way will most likely fail: the next one like it is to go first."""
        rows = await self._connection.execute("SELECT pgherd.locked_keys($1)", (pid,))
        row = await rows.fetchone()
        if row is not None and row[0]:
            self._hook.backend.command_lost(array("q", [0, len(row[0]), *row[0]]))

    async def _roll_back(self, prepared: str, xid: int) -> None:
        """Deal with a prepared transaction; its coordinator has the grace that a statement has."""
        if self._seen_s(0, xid) <= 2 * _BUSY_S:
            return
        self.victims += 1
        log.warning("victim.prepared", transaction=prepared)
        with contextlib.suppress(psycopg.errors.UndefinedObject):  # it has just ended by itself
            await self._connection.execute(
                sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(prepared))
            )

    def _seen_s(self, pid: int, xid: int) -> float:
        """How long it has been in the way; it may just have been ended for another one's sake."""
        now = self._loop.time()
        return now - self._first_seen.get((pid, xid), now)

    async def _cancel(self, pid: int, xid: int) -> None:
        await self._connection.execute("SELECT pgherd.cancel($1, $2)", (pid, str(xid)))

    def _certified(self, pid: int, xid: int) -> LocalLink | None:
        """The link of this very transaction; the session may be in a later one by now."""
        for link in self._chain.locals():
            if link.pid == pid and link.xid & _XID_MASK == xid:
                return link
        return None

    async def _hurry(self, link: LocalLink) -> None:
        """The first in the chain waits for nobody: a commit takes no time (C2)."""
        if link.prev > self._chain.settled_gid:
            return
        now = self._loop.time()
        if self._head[0] != link.gid:
            self._head = (link.gid, now)
        elif now - self._head[1] > _COMMIT_MAX_S:
            await self._end(link.pid, link.xid & _XID_MASK, "certified, but does not commit")

    async def _end(self, pid: int, xid: int, why: str, *, gently: bool = False) -> None:
        """End a session, unless that transaction has ended and it is in another one.

        Args:
            pid: of the session.
            xid: of the transaction.
            why: for the log.
            gently: autovacuum, who is no client and hears nothing, goes on with another table.
        """
        self.victims += 1
        self._first_seen = {k: v for k, v in self._first_seen.items() if k[0] != pid}
        log.info("victim.terminated", pid=pid, reason=why)
        how = "give_way" if gently else "terminate"
        await self._connection.execute(f"SELECT pgherd.{how}($1, $2)", (pid, str(xid)))
