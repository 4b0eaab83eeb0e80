"""The sessions of a replica, one after the other, and what is done between two of them.

A *session* lasts as long as the server does. When the server goes away the session ends and
another one begins under a new incarnation; the log, and with it this member's part in the quorum,
goes on all the while. A node that can't go on from its own database, because it differs from the
others', is gone or too old, gets a copy of a partner's (``recovery``), or stops for good.

A restart keeps the checkpoint in ``data_dir``, ``pgherd.applied`` in the server, the log and the
incarnation.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import (
    DivergedError,
    EntryFailedError,
    LeftBehindError,
    UnreadableError,
)
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.log.news import LogListener
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.recovery.rebuild import Rebuild
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.agent.server.advertising import advertise
from pgherd_sidecar.agent.service.fitness import Fitness, leaves
from pgherd_sidecar.agent.session import lockspace
from pgherd_sidecar.agent.session.opening import open_server
from pgherd_sidecar.agent.session.session import ReplicaSession
from pgherd_sidecar.agent.snapshots.markers import Markers
from pgherd_sidecar.agent.standing.standing import Standing, Way
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.pg.failures import Trouble, judge_error

log = structlog.get_logger()

_ABANDON = "SELECT pgherd.abandon_long($1, $2, $3)"
_PART_S = 2.0
"""So long the end may take to tell a server of it that does not answer."""


class Sessions(LogListener):
    """Opens sessions until it is stopped.

    Args:
        config: this member's.
        host: its log.
        identity: its incarnations.
        verdicts: what became of recent transactions.
        markers: holds snapshots for sessions.
        standing: this member's part in what the log says of databases.
        fitness: whether the database is one to go on from.

    Attributes:
        current: the session, None if there is none.
    """

    def __init__(
        self,
        config: NodeConfig,
        host: LogHost,
        identity: StoredIdentity,
        verdicts: Verdicts,
        *,
        markers: Markers,
        standing: Standing,
        fitness: Fitness,
    ) -> None:
        self.current: ReplicaSession | None = None
        self._config = config
        self._host = host
        self._identity = identity
        self._verdicts = verdicts
        self._markers = markers
        self._standing = standing
        self._fitness = fitness
        self._stopping = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._behind: LeftBehindError | None = None
        self._turn = asyncio.Lock()
        host.listen(self)

    @property
    def databases(self) -> Databases | None:
        """The herd's databases as they are known, by the session or without one."""
        current = self.current
        return self._standing.databases if current is None else current.state.databases

    async def run(self) -> None:
        """Work until ``stop``."""
        while not self._stopping.is_set():
            async with self._turn:
                await self._until_interrupted(self._work())
        await self._markers.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PART_S):
                await self._fence("its sidecar does not run")

    async def stop(self) -> None:
        """Have ``run`` return soon."""
        self._stopping.set()
        self._interrupted.set()

    @contextlib.asynccontextmanager
    async def ended(self) -> AsyncIterator[None]:
        """End the session or the step of a rebuild; the next begins after the context."""
        self._interrupted.set()
        async with self._turn:
            yield

    def left_behind(self) -> None:
        """See LogListener: the others no longer hold the log that this member needs next."""
        rebuild = self._fitness.rebuild
        if rebuild is not None and rebuild.under_way and rebuild.chooses:
            return
        self._behind = LeftBehindError(
            f"this member's log ends at {self._host.extent.last}, "
            f"that of the others begins at {self._host.extent.behind + 1}"
        )
        self._interrupted.set()

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, and judge what ended it."""
        task = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        await asyncio.wait({task, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.wait({task})
        if self.current is not None:
            self._standing.go_on_from(self.current.state)
        self.current = None
        self._interrupted.clear()
        error = None if task.cancelled() else task.exception()
        behind, self._behind = self._behind, None
        if behind is not None:
            self._fitness.need_rebuild(behind)
        elif not task.cancelled():
            await lockspace.free(self._config, leaves(error))
            self._fitness.judge(await self._without_index(error))
            await asyncio.wait({interrupted}, timeout=self._fitness.attempts.pause_s)
        interrupted.cancel()

    async def _work(self) -> None:
        """One session, after a rebuild if there is one to do."""
        if self._fitness.diverged is not None:
            await self._choose(self._fitness.diverged)
        if not await self._may_begin():
            await self._interrupted.wait()
            return
        if self._fitness.rebuild is not None:
            await self._fill(self._fitness.rebuild)
        if not self._host.whole.is_set():
            await self._fence("its log is damaged")
            await self._host.whole.wait()  # what its database has may be missing
        async with open_server(
            self._config,
            self._host,
            self._identity,
            self._verdicts,
            self._standing,
            singly_to=self._fitness.attempts.gid,
        ) as opening:
            current = ReplicaSession(
                self._config, self._host, opening, self._markers, self._verdicts
            )
            self.current = current
            async with asyncio.TaskGroup() as group:
                group.create_task(current.run())
                group.create_task(self._standing.announce_rebuild(current.caught_up))
                group.create_task(self._end_incident(current.caught_up))
                if self._fitness.rebuild is not None:
                    group.create_task(self._fitness.rebuild.escort_session(current.caught_up))

    async def _choose(self, error: DivergedError) -> None:
        """Say in the log that this database has diverged, and see how it goes on with it."""
        fitness = self._fitness
        await self._fence(fitness.reason)
        willing = fitness.rebuild is not None and fitness.rebuild.willing
        way = await self._standing.stopped(error, willing=willing)
        fitness.diverged = None
        if way is not Way.ON:
            fitness.incidents.cure(rebuilt=fitness.begin_rebuild(error))

    async def _may_begin(self) -> bool:
        """Whether a session can begin at all before somebody interrupts."""
        fitness, splitter = self._fitness, self._host.splitter
        if fitness.halted is not None:
            await self._fence(f"it has stopped for good: {fitness.reason}")
            if isinstance(fitness.halted, UnreadableError):
                return False  # its database is whole: a newer version goes on
            await self._standing.failed()
            fitness.halted = None  # an administrator has had the entry skipped
        if splitter.sealed:  # its log stands still until it is another cluster's
            fitness.reason = splitter.reason
            await self._fence(fitness.reason)
        return not splitter.sealed

    async def _fill(self, rebuild: Rebuild) -> None:
        """Get the database from a partner, if that is due or under way."""
        if rebuild.due_to_join:
            raise LeftBehindError("it joins the herd")
        if not rebuild.under_way:
            return
        await self._fence(rebuild.reason)
        incidents, way = self._fitness.incidents, Way.REBUILD
        if rebuild.begins:
            way = await self._standing.rebuilding(asked=rebuild.asked)
        if way is Way.ON:
            rebuild.drop()
            incidents.cure(rebuilt=False)
        elif not await self._standing.rebuild(rebuild.run()):
            incidents.end(rebuild.given_up or rebuild.reason)
            raise LeftBehindError(rebuild.cause)
        self._fitness.attempts.forget()

    async def _end_incident(self, caught_up: asyncio.Event) -> None:
        await caught_up.wait()
        self._fitness.restored()

    async def _fence(self, reason: str) -> None:
        """Have writes on a node that can't take them fail with the reason (C25)."""
        with contextlib.suppress(psycopg.Error):
            async with await startup.connect(self._config, "pgherd") as connection:
                await startup.set_writable(connection, False, reason)
                await advertise(connection, writes=False)

    async def _without_index(self, error: BaseException | None) -> BaseException | None:
        """Return what ended the session, or that the entry is to be tried again without an index.

        The entry's origin may have written a row that has no place in an index before it had the
        index, or after it had dropped it. Such an index gives way.
        """
        failures = [
            cause.failure
            for cause in leaves(error)
            if isinstance(cause, DivergedError) and cause.failure is not None
        ]
        if not failures:
            return error
        failure = failures[0]
        try:
            async with await startup.connect(self._config, "pgherd") as connection:
                about = (str(failure), failure.sqlstate, failure.key)
                rows = await connection.execute(_ABANDON, about)
                row = await rows.fetchone()
                assert row is not None
        except psycopg.Error as obstacle:
            trouble = judge_error(obstacle).trouble
            if trouble is Trouble.REFUSED:
                return error
        else:
            if not row[0]:
                return error
            log.warning("long.gave_way", gid=failure.gid, error=failure.cause)
            trouble = Trouble.FAILED
        return EntryFailedError(replace(failure, trouble=trouble))
