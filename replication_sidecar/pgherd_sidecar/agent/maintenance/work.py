"""The work of one member in maintenance: out of service, the statements, caught up, in service.

A statement that writes a table anew locks it, and so it holds up whatever the order brings for that
table, and all that follows. That is why a member is drained first: it says that it takes no
writes, its sessions end, and nobody waits for it. Its statements are not ended then for the sake
of the applier (``commit.victims``), which goes on when it has ended. A member that is not drained
serves on: there its statements give way to what is certain to commit, as everybody's do.

The state is in this process only. A sidecar that dies leaves a member that the next one takes into
service, after it has ended what was left at work.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.maintenance import rows
from pgherd_sidecar.agent.server.startup import connect
from pgherd_sidecar.pg.ddl import local

log = structlog.get_logger()

NAME: Final = "pgherd maintenance"
"""Of the session that does the work."""
_PACE_S: Final = 0.2
_CLEARING_S: Final = 1.0
_LEVEL_S: Final = 1.0
"""A member is taken into service when it lags by no more: under load it is never level."""
_CATCH_UP_S: Final = 3600.0
_CLIENTS: Final = "SELECT pid FROM pgherd.sessions_of_clients"
_END_CLIENTS: Final = "SELECT count(pg_terminate_backend(pid)) FROM pgherd.sessions_of_clients"
_FREE_WAY: Final = """
SELECT count(pg_terminate_backend(c.pid)) FROM pgherd.sessions_of_clients c
 WHERE c.pid = ANY (pg_blocking_pids($1))
"""
_READ_ONLY: Final = "SET default_transaction_read_only = on"
_OF_TABLES: Final = "SET session_replication_role = replica; SET search_path = pg_catalog, public"
"""No event trigger is to see VACUUM and the like; and they call nothing by its name."""
_OF_FUNCTIONS: Final = "SET session_replication_role = origin; SET search_path = pg_catalog"
"""Nobody is to have a superuser call his function in place of PostgreSQL's."""


class WorkFailedError(Exception):
    """A statement could not be executed; the message says why."""


@dataclass(frozen=True, slots=True)
class MemberService:
    """How a member is taken out of service, and how far behind the order it is.

    Attributes:
        drain: with a reason: it takes no writes and is not ready; with None: it is again.
        spare: with a pid: this session is not ended for the sake of the applier; with None: any is.
        known: the newest position of the order.
        visible: what its readers see.
        age_s: how old that may be, in seconds; None if that is not known.
    """

    drain: Callable[[str | None], None]
    spare: Callable[[int | None], None]
    known: Callable[[], int]
    visible: Callable[[], int]
    age_s: Callable[[], float | None]


class MemberWork:
    """The maintenance of one member, once.

    Args:
        config: of the member.
        service: of the member.
        part: what was begun; the member's.

    Attributes:
        phase: what it is at, in a word.
        statement: the one that is executed.
    """

    def __init__(self, config: NodeConfig, service: MemberService, part: rows.MemberPart) -> None:
        self.phase = "begins"
        self.statement = ""
        self.part = part
        self._config = config
        self._service = service
        self._work = part.wanted

    async def run(self) -> str:
        """Do it; return why it failed, empty if it did not. The member is in service again.

        Cancelled, it ends what it executes, and the member is taken into service at once.

        Raises:
            psycopg.Error: the server is gone.
        """
        failure = ""
        try:
            try:
                await self._execute()
            except WorkFailedError as error:
                failure = str(error)
            self.phase, self.statement = "catches up", ""
            if self._work.drain and not await self._caught_up():
                failure = failure or f"it has not caught up within {_CATCH_UP_S:g} s"
        finally:
            self._service.spare(None)
            self._service.drain(None)
        return failure

    async def _execute(self) -> None:
        async with await connect(self._config, NAME, psycopg.AsyncCursor) as connection:
            pid = connection.info.backend_pid
            try:
                if self._work.drain:
                    await self._drain(connection)
                    self._service.spare(pid)
                self.phase = "works"
                async with asyncio.timeout(self._work.deadline_s):
                    for statement in self._work.statements:
                        await self._one(connection, pid, statement)
            except TimeoutError:
                raise WorkFailedError(
                    f"not done within {self._work.deadline_s:g} s: {self.statement}"
                ) from None
            finally:
                await self._end(pid)

    async def _drain(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Take no writes, wait until the sessions of clients have ended, and end the rest."""
        self.phase = "drains"
        self._service.drain("it is in maintenance")
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._work.grace_s
        while await (await connection.execute(_CLIENTS)).fetchall():
            if loop.time() >= until_s:
                row = await (await connection.execute(_END_CLIENTS)).fetchone()
                log.info("maintenance.sessions_ended", count=row[0] if row else 0)
                break
            await asyncio.sleep(_PACE_S)

    async def _one(
        self, connection: psycopg.AsyncConnection[Any], pid: int, statement: str
    ) -> None:
        self.statement = statement
        await connection.execute(_READ_ONLY)
        await connection.execute(_OF_TABLES if local.is_upkeep(statement) else _OF_FUNCTIONS)
        clearing = asyncio.create_task(self._free_the_way(pid))
        try:
            if local.runs_code(statement):
                async with connection.transaction():
                    await connection.execute(statement.encode())
            else:
                await connection.execute(statement.encode())
        except psycopg.Error as error:
            raise WorkFailedError(self._why(error, statement)) from None
        finally:
            clearing.cancel()
            await asyncio.wait({clearing})

    async def _free_the_way(self, pid: int) -> None:
        """End clients that come while the member is drained, and hold what is worked on."""
        if not self._work.drain:
            return
        with contextlib.suppress(psycopg.Error):
            async with await connect(self._config, "pgherd maintenance watch") as connection:
                while True:
                    await asyncio.sleep(_CLEARING_S)
                    await connection.execute(_FREE_WAY, (pid,))

    def _why(self, error: psycopg.Error, statement: str) -> str:
        said = error.diag.message_primary or str(error) or type(error).__name__
        detail, sqlstate = error.diag.message_detail, error.sqlstate or ""
        why = f"{statement}: {' '.join(f'{said}: {detail}'.split()) if detail else said}"
        if sqlstate == "57P01" and not self._work.drain:
            why += "; it stood in the way of what other members have committed: drain the member"
        if sqlstate == "25006":
            why += "; what is replicated is executed once, on any member"
        return f"{why} ({sqlstate})" if sqlstate else why

    async def _caught_up(self) -> bool:
        """Wait until readers see what was in the order when the work ended, and little is left."""
        self._service.spare(None)
        wanted = self._service.known()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                while True:
                    age_s = self._service.age_s()
                    if self._service.visible() >= wanted and (age_s is None or age_s <= _LEVEL_S):
                        return True
                    await asyncio.sleep(_PACE_S)
        return False

    async def _end(self, pid: int) -> None:
        """End what is still executed: PostgreSQL does not notice at once that nobody listens."""
        with contextlib.suppress(psycopg.Error, TimeoutError):
            async with (
                asyncio.timeout(5),
                await connect(self._config, "pgherd maintenance end") as connection,
            ):
                await connection.execute("SELECT pg_terminate_backend($1)", (pid,))
