"""Frees those who are certain to commit from whoever stands in their way.

What a writer (``writers``) or a certified local transaction does is certain to commit, and all
after it wait, so a session that holds a lock they need has to give way (Postgres-R(SI) 4.2,
Slony-II 12.3). Who that is decides how:

* ordered before them: left alone, they wait for their turn, as they should;
* waits for its verdict: left alone, the verdict is on its way, and if it lost it is told at once;
* certified with a later GID (it holds a row lock only, C9): cancelled; it rolls back, its client
  hears 08007, and its rows are written in its place;
* began to wait for a lock itself: PostgreSQL's deadlock detector, which looks once, may end it
  with 40P01;
* anything else, running or idle: it gets a short grace to reach COMMIT, where it is told 40001,
  and then its session is ended, since PostgreSQL has no way to give it a 40001.

Called by ``replica``. Nothing survives a restart.
"""

import asyncio
import contextlib
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.chain import Chain, LocalLink
from pgherd_sidecar.agent.hook import HookServer
from pgherd_sidecar.agent.writers import Writers

log = structlog.get_logger()

_PACE_S = 0.02
_IDLE_PACE_S = 1.0
_GRACE_S = 0.05
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
            return
        rows = await self._connection.execute(
            "SELECT waiter, pid, xid, waits FROM pgherd.blockers($1)", (list(waiting),)
        )
        blockers = await rows.fetchall()
        # What was seen of a writer that has since turned to something else is of no use.
        present = waiting.items() & (dict(self._writers.at_work) | self._stuck(now)).items()
        now = self._loop.time()
        seen = {(pid, xid): now for waiter, pid, xid, _ in blockers}
        self._first_seen = {key: self._first_seen.get(key, now) for key in seen}
        for waiter, pid, xid, waits in blockers:
            if (waiter, waiting[waiter]) in present and pid not in self._writers.at_work:
                await self._free(waiting[waiter], pid, xid, waits)
        for link in self._chain.locals()[:1]:
            if link.pid in waiting:
                await self._hurry(link)

    def _stuck(self, now: float) -> dict[int, int]:
        """Certified local transactions that take much longer than a commit does."""
        return {
            link.pid: link.gid for link in self._chain.locals() if now - link.since_s > _STUCK_S
        }

    async def _free(self, gid: int, pid: int, xid: int, waits: bool) -> None:
        """Deal with the transaction ``xid`` of the session ``pid``, which ``gid`` waits for."""
        link = self._certified(pid, xid)
        seen_s = self._loop.time() - self._first_seen[pid, xid]
        if link is not None and link.gid < gid:
            return
        if link is not None:
            if not link.yielding:
                link.yielding = True
                log.info("victim.yields", pid=pid, gid=link.gid, to=gid)
                await self._connection.execute("SELECT pgherd.cancel($1, $2)", (pid, str(xid)))
            elif seen_s > _GRACE_S:
                await self._end(pid, "certified, and does not yield")
        elif any(p.pid == pid and p.connection for p in self._hook.pending.values()):
            return
        elif seen_s > _GRACE_S and not waits:
            await self._end(pid, "holds a lock that is needed for what is certain to commit")

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
            await self._end(link.pid, "certified, but does not commit")

    async def _end(self, pid: int, why: str) -> None:
        self.victims += 1
        self._first_seen = {k: v for k, v in self._first_seen.items() if k[0] != pid}
        log.info("victim.terminated", pid=pid, reason=why)
        await self._connection.execute("SELECT pg_terminate_backend($1)", (pid,))
