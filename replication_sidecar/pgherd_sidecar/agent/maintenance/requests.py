"""Requests for maintenance, of people and of the operator: they are judged, and become rows.

A request is an ordinary transaction on this member's server, which waits for its verdict like
others. Work that can never be done is refused when it is asked for, and not hours later. The module
keeps nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

import psycopg
import structlog

from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.maintenance import guard, rows
from pgherd_sidecar.client import routes
from pgherd_sidecar.client.times import BadTimesError, next_time
from pgherd_sidecar.pg.ddl import local
from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported

log = structlog.get_logger()

Result = TypeVar("Result")
_LONGEST_S = 30.0
_ATTEMPTS = 10
_FOR_LATER = ("08", "25", "40", "53", "55", "57")
"""Classes of errors that pass: connection, read-only, conflict, resources, locks, shut down."""
_NAMED = """
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM (SELECT CASE cardinality(parse_ident(%(name)s)) WHEN 1 THEN 'public.' ELSE '' END) AS p(schema),
       pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = to_regclass(p.schema || %(name)s) AND c.relkind IN ('r', 'p', 'm')
"""  # noqa: E501 - SQL


class MaintenanceRequests:
    """The herd's maintenance, as it is asked for at one member. See ``MaintenanceBackend``.

    Args:
        require_ready: raises ``Unavailable`` while this member does not take writes.
        herd: returns what it knows of the herd, None if that is nothing.
        members: returns the names of the voters that have a database.
        cancel: gives up what this member does of a run; False if it does nothing of it.
    """

    def __init__(
        self,
        config: NodeConfig,
        require_ready: Callable[[], object],
        herd: Callable[[], guard.SeenHerd | None],
        members: Callable[[], list[str]],
        cancel: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._require_ready = require_ready
        self._herd = herd
        self._members = members
        self._cancel = cancel

    async def begin(self, request: routes.MaintainRequest) -> dict[str, Any]:
        """See MaintenanceBackend."""
        self._require_ready()
        async with self._session() as connection:
            work = await self._judge(connection, request)
            if not request.act:
                return {"members": list(work.members) or self._members()}
            if not await rows.is_kept(connection):
                with suppress(psycopg.errors.DuplicateSchema):
                    await self._repeated(connection, rows.make)
            if not await rows.is_kept(connection):
                raise Refused(
                    "schema pgherd_maintenance is there, and is not a superuser's: rename it"
                )
            if request.every:
                return await self._put_schedule(connection, request, work)
            members = list(work.members) or self._members()

            async def put(connection: rows.Connection) -> str:
                return await rows.begin(
                    connection, work, members, run=request.run, schedule=request.schedule
                )

            run = await self._repeated(connection, put)
            log.info("maintenance.wanted", run=run, members=members)
            return {"run": run, "members": members}

    async def known(self, schedule: str) -> dict[str, Any]:
        """See MaintenanceBackend."""
        async with self._session() as connection:
            if not await rows.is_kept(connection):
                return {"runs": [], "schedules": []}
            parts = await rows.all_parts(connection)
            schedules = await rows.schedules(connection)
        if schedule:
            parts = [one for one in parts if one.schedule == schedule]
        return {"runs": _runs(parts), "schedules": [_schedule(one) for one in schedules]}

    async def cancel(self, run: str) -> bool:
        """See MaintenanceBackend."""
        mine = self._cancel(run)
        if mine:
            log.info("maintenance.cancelled", run=run)
            return True
        return await self._change(lambda connection: rows.cancel(connection, run))

    async def drop(self, schedule: str) -> bool:
        """See MaintenanceBackend."""
        return await self._change(lambda connection: rows.drop_schedule(connection, schedule))

    # ---- how ---------------------------------------------------------------------------------

    async def _change(self, put: Callable[[rows.Connection], Awaitable[bool]]) -> bool:
        """Change what the herd keeps, if it keeps anything."""
        self._require_ready()
        async with self._session() as connection:
            return await rows.is_kept(connection) and await self._repeated(connection, put)

    async def _judge(
        self, connection: rows.Connection, request: routes.MaintainRequest
    ) -> rows.WantedWork:
        """Return what is to be done, on whom.

        Raises:
            Refused: it can never be done.
        """
        try:
            statements = [one for text in request.sql for one in local.local_statements(text)]
        except DdlNotSupported as error:
            raise Refused(f"{error}. {error.hint}") from error
        for names, statement in (
            (request.vacuum_full, local.vacuum_full),
            (request.reindex, local.reindex),
        ):
            statements += [statement(await _named(connection, name)) for name in names]
        if not statements:
            raise Refused("there is nothing to do: name statements or tables")
        members = self._members()
        unknown = [name for name in request.members if name not in members]
        if unknown:
            raise Refused(
                f"{', '.join(unknown)} can't be maintained: members that vote and have a database"
                f" are {', '.join(members)}"
            )
        herd = self._herd()
        for name in request.members or members:
            why = None if herd is None else guard.why_never(herd, name, drain=request.drain)
            if why is not None:
                raise Refused(f"{why}: add a member, leave {name} out, or do not drain")
        return rows.WantedWork(
            tuple(statements),
            tuple(request.members),
            request.one_by_one,
            request.drain,
            request.grace_s,
            request.deadline_s,
        )

    async def _put_schedule(
        self, connection: rows.Connection, request: routes.MaintainRequest, work: rows.WantedWork
    ) -> dict[str, Any]:
        try:
            coming = next_time(request.every, request.time_zone, datetime.now().astimezone())
        except BadTimesError as error:
            raise Refused(f"{request.every}: {error}") from error
        if coming is None:
            raise Refused(f"{request.every}: there is no such time")
        name = request.schedule or "maintenance"

        async def put(connection: rows.Connection) -> None:
            await rows.put_schedule(connection, name, request.every, request.time_zone, work)

        await self._repeated(connection, put)
        log.info("maintenance.scheduled", schedule=name, every=request.every)
        return {"schedule": name, "members": list(work.members) or self._members()}

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[rows.Connection]:
        try:
            async with asyncio.timeout(_LONGEST_S):
                async with await rows.connect(self._config, "pgherd maintenance ask") as opened:
                    yield opened
        except TimeoutError as error:
            raise Unavailable(f"not done within {_LONGEST_S:g} s") from error
        except psycopg.Error as error:
            later = error.sqlstate is None or error.sqlstate.startswith(_FOR_LATER)
            raise (Unavailable if later else Refused)(_said(error)) from error

    @staticmethod
    async def _repeated(
        connection: rows.Connection, work: Callable[[rows.Connection], Awaitable[Result]]
    ) -> Result:
        """Do something again where another transaction was first."""
        for _ in range(_ATTEMPTS):
            try:
                return await work(connection)
            except (*rows.CONFLICTS, psycopg.errors.UniqueViolation):
                await asyncio.sleep(0.1)
        raise Unavailable("other transactions of the herd were always first")


async def _named(connection: rows.Connection, name: str) -> str:
    """A table's name as SQL writes it; one without a schema is of the schema public.

    Raises:
        Refused: there is none.
    """
    try:
        row = await (await connection.execute(_NAMED, {"name": name})).fetchone()
    except psycopg.DataError as error:  # no name at all
        raise Refused(f"{name}: {_said(error)}") from error
    if row is None:
        raise Refused(f"there is no table {name}")
    return str(row[0])


def _runs(parts: Sequence[rows.MemberPart]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in parts:
        work = one.wanted
        known = found.setdefault(
            one.run,
            {
                "run": one.run,
                "schedule": one.schedule,
                "created": one.created.isoformat(),
                "statements": list(work.statements),
                "one_by_one": work.one_by_one,
                "drain": work.drain,
                "cancelled": one.cancelled,
                "parts": [],
            },
        )
        until = one.ended or one.now
        known["parts"].append(
            {
                "member": one.member,
                "state": one.state,
                "begun": one.begun and one.begun.isoformat(),
                "ended": one.ended and one.ended.isoformat(),
                "seconds": one.begun and (until - one.begun).total_seconds(),
                "error": one.error,
            }
        )
    return list(found.values())


def _schedule(one: rows.KeptSchedule) -> dict[str, Any]:
    message = one.message
    try:
        coming = next_time(one.cron, one.time_zone, one.now)
    except BadTimesError as error:
        coming, message = None, str(error)
    work = one.wanted
    return {
        "schedule": one.name,
        "cron": one.cron,
        "time_zone": one.time_zone,
        "statements": list(work.statements),
        "members": list(work.members),
        "one_by_one": work.one_by_one,
        "drain": work.drain,
        "known": one.known.isoformat(),
        "coming": coming and coming.isoformat(),
        "message": message,
    }


def _said(error: psycopg.Error) -> str:
    """The error of the server, in one line."""
    message = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(message.split())[:1000]
