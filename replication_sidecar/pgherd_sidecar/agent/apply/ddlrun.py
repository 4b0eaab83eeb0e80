"""Executes an ordered transaction with DDL on a member other than its origin (Slony-II 10).

The body's items are in the order of their execution: rows are written with the same statements as
the applier's, commands by ``pg.ddl.commands``, all in one transaction with its link of the commit
chain.

A transaction with a command may hold 32 MB of rows. What takes time in proportion to them is done
in another thread, so that the log goes on.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import psycopg
import structlog
from psycopg.adapt import Dumper
from psycopg.pq import Format

from pgherd_sidecar.agent.apply.applier import WRITER_SETTINGS
from pgherd_sidecar.agent.apply.applying import About, applying
from pgherd_sidecar.agent.apply.rowwriter import COMPRESS, COMPRESSION, INVALID_VALUE, TOO_LARGE
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import DivergedError
from pgherd_sidecar.agent.server.startup import ADMINISTRATION, connect
from pgherd_sidecar.core.replication.entries import FLAG_FINGERPRINT, Writeset, key_array
from pgherd_sidecar.core.replication.merge import Item, decode_body, merge_writesets
from pgherd_sidecar.pg.ddl import commands as ddl
from pgherd_sidecar.pg.failures import DIFFERENT, Trouble, judge_error
from pgherd_sidecar.pg.pipeline import NoConnectionError
from pgherd_sidecar.pg.rows import RowStatements, TableShape, text_array

log = structlog.get_logger()

_PAST_TEMPORARY = "SELECT pgherd.drop_temporary()"
_PAST_COMMANDS = "LOCK TABLE pgherd.command_running IN EXCLUSIVE MODE"
_PAST_GUESSED = "LOCK TABLE pgherd.command_guessed IN EXCLUSIVE MODE"
_REMEDIES = {
    "2BP01": (_PAST_TEMPORARY,),  # something depends on what is dropped
    "0A000": (_PAST_TEMPORARY,),  # a table of another session would have to be altered
    DIFFERENT: (_PAST_COMMANDS, _PAST_GUESSED),  # PostgreSQL has chosen other names
}
"""The next attempt begins with this, by the error of a command in whose way sessions of this server
may be."""
_AFRESH = (
    "CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ALL; UNLISTEN *; DISCARD TEMP;"
    f" DISCARD SEQUENCES; SELECT pg_advisory_unlock_all(); {ADMINISTRATION}"
)
"""Has a session be as it began, but for its caches: these are what it is kept for."""
_FROM_THE_START = {"session_replication_role": "replica"}
"""So ``RESET ALL`` does not change it: each change empties the session's cache of plans."""
_SETTINGS = "; ".join(WRITER_SETTINGS)
_LINK = (
    "INSERT INTO pgherd.applied VALUES ({0:d}, {1:d});"
    " UPDATE pgherd.shape SET gid = {0:d} WHERE xid = pg_current_xact_id()"
)
"""The link of the chain, in one message: of a GID and the one before it."""
_KEPT_S = 60.0
_MOST_BYTES = 1 << 20
"""A session keeps what it has compiled for each of its commands, so it ends after so many."""
_TEXT_ARRAY: Final = 1009  # the oid of text[]
_Execute = Callable[[psycopg.AsyncConnection[Any], bytes | str, Sequence[Any]], Awaitable[None]]


async def describe(connection: psycopg.AsyncConnection[Any], table: str) -> TableShape:
    """Read a table's shape from the catalog, as the connection's transaction sees it.

    Raises:
        DivergedError: this member has no such table.
        psycopg.Error: the server is gone, or can't say now.
    """
    try:
        rows = await connection.execute(
            'SELECT columns, pk, generated, same_key, "only", row_type, erase, updatable, fixed'
            " FROM pgherd.describe($1)",
            (table,),
        )
        row = await rows.fetchone()
    except psycopg.Error as error:
        found = judge_error(error)
        if found.trouble is not Trouble.REFUSED:
            raise
        raise DivergedError(f"table {table}: {found.cause}") from error
    if row is None or row[0] is None:
        raise DivergedError(f"table {table} has no columns here")
    columns, pk, generated, same_key, only, row_type, erase, updatable, fixed = row
    if row_type is None:
        raise DivergedError(f"table {table} is not a replicated table here")
    return TableShape(
        columns,
        pk,
        frozenset(generated),
        same_key,
        only,
        row_type,
        erase,
        updatable=updatable,
        fixed=frozenset(fixed),
    )


class DdlRunner:
    """Runs transactions with DDL, one after the other mostly.

    A connection is kept for a minute, for the next one: to read the catalog and to plan our own
    functions anew costs more than most commands.
    """

    def __init__(self, config: NodeConfig, writers: Writers) -> None:
        self._config = config
        self._writers = writers
        self._kept: psycopg.AsyncConnection[Any] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._bytes = 0  # of the bodies that the kept one has executed

    async def run(self, writeset: Writeset, gid: int, prev: int) -> None:
        """Execute a writeset that holds DDL.

        An index may refuse a value that it took at the origin, where values were compressed
        otherwise (see ``rowwriter``): then each step is tried with both. Temporary objects of this
        server's sessions may be in the way of a command: then they are dropped first. A session may
        have executed a command and not committed: PostgreSQL then chooses other names than at the
        origin, for the sequence of a ``serial`` or an index without one. That session has lost, so
        it gives way, and the command is executed once more.

        Raises:
            DivergedError: it fails here, though it was ordered to commit.
            EntryFailedError: the server is gone, or can't do it now.
        """
        with applying(gid, prev, "command") as about:
            execute, first = _execute, list[str]()
            while True:
                try:
                    await self._run(writeset, about, execute, first)
                except psycopg.Error as error:
                    cause = judge_error(error).cause
                    remedies = _REMEDIES.get(error.sqlstate or "", ())
                    remedy = next((one for one in remedies if one not in first), None)
                    if error.sqlstate == TOO_LARGE and execute is _execute:
                        log.warning("command.compressed_otherwise", gid=gid, error=cause)
                        execute = _execute_either_way
                    elif remedy is not None:
                        log.warning("command.in_the_way", gid=gid, error=cause)
                        first.append(remedy)
                    else:
                        raise
                else:
                    return

    async def _run(
        self, writeset: Writeset, about: About, execute: _Execute, first: Sequence[str]
    ) -> None:
        if b"extension" in writeset.body.lower():
            self.close()  # it has loaded libraries, and other files may be there now
        connection = await self._connection()
        gid = about.gid
        try:
            with self._writers.writing(connection.info.backend_pid, gid):
                async with connection.transaction():
                    for statement in first:
                        await connection.execute(statement.encode())
                    await self._items(connection, writeset, about, execute)
                    about.statement = about.table = ""
                    if writeset.flags & FLAG_FINGERPRINT:
                        await connection.execute(
                            "SELECT pgherd.check_fingerprint($1, $2)",
                            (gid, writeset.body.decode()),
                        )
                    await connection.execute(_LINK.format(gid, about.prev))
        except BaseException:
            await connection.close()
            raise
        self._bytes += len(writeset.body)
        if self._bytes < _MOST_BYTES:
            self._keep(connection)
        else:
            await connection.close()

    async def _connection(self) -> psycopg.AsyncConnection[Any]:
        """The kept one, as if it were new, or a new one."""
        connection, self._kept = self._kept, None
        if connection is not None:
            with contextlib.suppress(psycopg.OperationalError):  # it was ended meanwhile
                await _prepare(connection, f"{_AFRESH}; {_SETTINGS}")
                return connection
        self._bytes = 0
        try:
            connection = await connect(self._config, "pgherd ddl", settings=_FROM_THE_START)
        except psycopg.OperationalError as error:
            raise NoConnectionError(str(error)) from error
        await _prepare(connection, _SETTINGS)
        connection.adapters.register_dumper(_Texts, _TextsDumper)
        connection.prepare_threshold = None  # a prepared statement would not know a changed table
        return connection

    def _keep(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.close()
        self._kept = connection
        self._expiry = asyncio.get_running_loop().call_later(_KEPT_S, self.close)

    def close(self) -> None:
        """Close the connection that is kept."""
        connection, self._kept = self._kept, None
        if self._expiry is not None:
            self._expiry.cancel()
        if connection is not None:
            connection.pgconn.finish()

    async def _items(
        self,
        connection: psycopg.AsyncConnection[Any],
        writeset: Writeset,
        about: About,
        execute: _Execute,
    ) -> None:
        segment: list[Item] = []
        for item in await asyncio.to_thread(decode_body, writeset.body):
            if item[0]:
                segment.append(item)
                continue
            await self._rows(connection, writeset, segment, about, execute)
            segment = []
            for command in item[2]:
                about.statement, about.table = ddl.kind_of(command), ""
                await execute(connection, *ddl.execution(command))
        await self._rows(connection, writeset, segment, about, execute)

    async def _rows(
        self,
        connection: psycopg.AsyncConnection[Any],
        writeset: Writeset,
        segment: list[Item],
        about: About,
        execute: _Execute,
    ) -> None:
        if not segment:
            return

        async def shape(table: str) -> TableShape:
            return await describe(connection, table)

        about.statement, about.table = "rows", ", ".join(sorted({item[0] for item in segment}))
        rows = RowStatements(shape)
        tables = [table for table, _, _ in segment]
        await rows.learn_tables(tables)
        rows.keep_apart(tables)  # what follows is not tried in two ways
        single = execute is not _execute
        for query, parameters in await asyncio.to_thread(_plan, writeset, segment, rows, single):
            await execute(connection, query, parameters)


class _Texts(bytes):
    """An encoded ``text[]``."""


class _TextsDumper(Dumper):
    format, oid = Format.BINARY, _TEXT_ARRAY

    def dump(self, obj: _Texts) -> _Texts:
        return obj


def _plan(
    writeset: Writeset, segment: list[Item], rows: RowStatements, single: bool
) -> list[tuple[bytes, list[_Texts | int]]]:
    """Queries and encoded parameters of rows, or of each row."""
    plan = merge_writesets([(key_array(writeset.keys), segment)], rows)
    return [
        (query, [_Texts(text_array(one)) if isinstance(one, list) else one for one in parameters])
        for query, parameters in (rows.plain_single(plan) if single else rows.plain(plan))
    ]


async def _prepare(connection: psycopg.AsyncConnection[Any], statements: str) -> None:
    """Execute what comes before all commands; a session that can't is closed."""
    try:
        await connection.execute(statements)
    except BaseException:
        await connection.close()
        raise


async def _execute(
    connection: psycopg.AsyncConnection[Any], query: bytes | str, parameters: Sequence[Any]
) -> None:
    await connection.execute(query, parameters)


async def _execute_either_way(
    connection: psycopg.AsyncConnection[Any], query: bytes | str, parameters: Sequence[Any]
) -> None:
    """Execute a statement under the first way to compress values that lets it succeed."""
    refused: psycopg.Error | None = None
    for method in COMPRESSION:
        try:
            async with connection.transaction():
                await connection.execute(COMPRESS, (method,))
                await connection.execute(query, parameters)
        except psycopg.Error as error:
            if error.sqlstate not in (TOO_LARGE, INVALID_VALUE):
                raise
            refused = refused or error
        else:
            return
    assert refused is not None
    raise refused
