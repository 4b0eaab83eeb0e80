"""Frees the applier from whoever stands in its way.

What the applier writes is certain to commit, and everything after it waits, so a session that
holds a lock it needs has to give way (Postgres-R(SI) 4.2, Slony-II 12.3). Who that is decides how:

* waits for its verdict: left alone, the verdict is on its way, and if it lost it is told at once;
* certified with a later GID (it holds a row lock only, C9): cancelled; it rolls back, its client
  hears 08007, and the applier writes its rows in their place;
* anything else, running, waiting or idle: it gets a short grace to reach COMMIT, where it is told
  40001, and then its session is ended, since PostgreSQL has no way to give it a 40001.

Called by ``replica`` while work is under way for longer than usual. Nothing survives a restart.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.applier import Applier
from pgherd_sidecar.agent.chain import Chain
from pgherd_sidecar.agent.hook import HookServer

log = structlog.get_logger()

_PACE_S = 0.003
_GRACE_S = 0.05
_COMMIT_MAX_S = 10.0


class VictimWatch:
    """Watches the applier's connections for locks.

    Args:
        connection: an administrative connection of its own.
        appliers: the server processes that write for the applier.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        applier: Applier,
        chain: Chain,
        hook: HookServer,
        appliers: Callable[[], Sequence[int]],
    ) -> None:
        self.victims = 0
        self._connection = connection
        self._applier = applier
        self._chain = chain
        self._hook = hook
        self._appliers = appliers
        self._first_seen: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            self._first_seen.clear()
            await self._applier.slow.wait()
            while self._applier.slow.is_set():
                await self._look()
                await asyncio.sleep(_PACE_S)

    async def _look(self) -> None:
        rows = await self._connection.execute(
            "SELECT pid, waits_for_order FROM pgherd.blockers($1)", (list(self._appliers()),)
        )
        blockers = await rows.fetchall()
        now = self._loop.time()
        self._first_seen = {pid: self._first_seen.get(pid, now) for pid, _ in blockers}
        for pid, waits_for_order in blockers:
            await self._free(pid, waits_for_order, now)

    async def _free(self, pid: int, waits_for_order: bool, now: float) -> None:
        link = next((link for link in self._chain.locals() if link.pid == pid), None)
        seen = now - self._first_seen[pid]
        if link is not None and waits_for_order:
            # The applier waits for its turn, as it should; but a commit takes no time (C2).
            if now - link.since_s > _COMMIT_MAX_S:
                await self._end(pid, "certified, but does not commit")
        elif link is not None:
            if not link.yielding:
                link.yielding = True
                log.info("victim.yields", pid=pid, gid=link.gid)
                await self._connection.execute("SELECT pg_cancel_backend($1)", (pid,))
            elif seen > _GRACE_S:
                await self._end(pid, "certified, and does not yield")
        elif any(p.pid == pid and p.connection for p in self._hook.pending.values()):
            return
        elif seen > _GRACE_S:
            await self._end(pid, "holds a lock that the applier needs")

    async def _end(self, pid: int, why: str) -> None:
        self.victims += 1
        self._first_seen.pop(pid, None)
        log.info("victim.terminated", pid=pid, reason=why)
        await self._connection.execute("SELECT pg_terminate_backend($1)", (pid,))
