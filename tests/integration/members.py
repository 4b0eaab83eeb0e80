"""What the tests of DDL and sequences ask of all members of a herd."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import psycopg
from patience import WaitRanOutError, wait_until_async
from pgherd_spark.reading import statements

from .installations import program
from .localherd import LocalHerd
from .repeating import is_in_transaction, repeats_s

Connection = psycopg.AsyncConnection[Any]

_STRUCTURE = statements.load("structure.sql")["structure"]
_GENERATED = "SELECT relid::regclass::text, fingerprint, triggers FROM pgherd.generated ORDER BY 1"
_UNORDERED = """
SELECT pgherd.unseen_documents(r, '{}') FROM pgherd.unseen_renames() r
 UNION ALL SELECT ROW(r) FROM pgherd.unseen_renames() r WHERE r <> '[]'"""


@contextlib.asynccontextmanager
async def connected(herd: LocalHerd) -> AsyncIterator[list[Connection]]:
    """A connection of the ordinary role ``app`` to each node, in the order of the nodes."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(node.app_dsn, autocommit=True)
            )
            for node in herd.nodes()
        ]


@contextlib.asynccontextmanager
async def superusers(herd: LocalHerd, schema: str) -> AsyncIterator[list[Connection]]:
    """A superuser's connection to each node, with the test's schema first in its search path."""
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for node in herd.nodes():
            connection = await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(node.dsn, autocommit=True)
            )
            await run(connection, f"SET search_path = {schema}, public")
            connections.append(connection)
        yield connections


@contextlib.asynccontextmanager
async def turn_held(dsn: str) -> AsyncIterator[Connection]:
    """Hold the turn of a member's commands, which orders nothing of its own until it is let go.

    Args:
        dsn: of a superuser.

    Yields:
        The connection whose transaction holds the turn.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as holder:
        await run(holder, "BEGIN; LOCK TABLE pgherd.command_turn IN EXCLUSIVE MODE")
        yield holder


async def run(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    """Execute a message of one or more statements; return the rows of the last.

    A message that is a whole transaction is repeated after 40001, as that asks.
    """
    for pause_s in repeats_s(connection):
        try:
            return await once(connection, statement)
        except psycopg.errors.SerializationFailure:
            if is_in_transaction(connection):
                raise
            await asyncio.sleep(pause_s)
    return await once(connection, statement)


async def once(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    """Do the same, and repeat nothing."""
    cursor = await connection.execute(statement.encode())
    while cursor.nextset():
        pass
    return await cursor.fetchall() if cursor.description is not None else []


async def failure(connection: Connection, statement: str) -> psycopg.Error:
    """Execute what must fail; return how.

    Raises:
        psycopg.Error: the machine stood still, and an election ended it.
    """
    try:
        await once(connection, statement)
    except (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.AdminShutdown):
        raise
    except psycopg.Error as error:
        if not connection.autocommit or connection.info.transaction_status:
            await run(connection, "ROLLBACK")
        return error
    raise AssertionError(f"it worked: {statement}")


async def caught_up(connections: Sequence[Connection]) -> None:
    """Wait until each member has applied what any of them has committed."""
    gids = [(await run(one, "SELECT pgherd.last_gid()"))[0][0] for one in connections]
    for connection in connections:
        await wait_until_async(
            partial(run, connection, "SELECT pgherd.last_gid()"),
            lambda seen: seen[0][0] >= max(gids),
            brief=True,
        )


async def spread(connections: Sequence[Connection], place: int, statement: str) -> None:
    """Execute a message on the member in this place, and wait until all members have it."""
    await run(connections[place], statement)
    await caught_up(connections)


async def same_everywhere(
    connections: Sequence[Connection], statement: str
) -> list[tuple[Any, ...]]:
    """The rows of a query, which must be the same on all members."""
    await caught_up(connections)
    answers = [await run(connection, statement) for connection in connections]
    assert answers[1:] == answers[:-1], answers
    return answers[0]


async def until_same(
    connections: Sequence[Connection], statement: str, rows: list[tuple[Any, ...]]
) -> None:
    """Wait until each member answers a query so: roles come without a command to wait for.

    Args:
        connections: of superusers.
        statement: the query.
        rows: the answer.

    Raises:
        AssertionError: all is ordered and applied, and a member answers otherwise.
        WaitRanOutError: something is still to come.
    """
    for connection in connections:
        try:
            await wait_until_async(partial(run, connection, statement), lambda seen: seen == rows)
        except WaitRanOutError as late:
            assert await unordered(connections), f"nothing is to come; {late}"
            raise


async def unordered(connections: Sequence[Connection]) -> list[tuple[Any, ...]]:
    """Return the changes of roles that members have made and not ordered, once all caught up."""
    await caught_up(connections)
    answers = [await run(connection, _UNORDERED) for connection in connections]
    return [row for rows in answers for row in rows]


async def assert_same_schema(connections: Sequence[Connection], schema: str) -> str:
    """Compare everything that pg_dump knows of a schema; return the dump.

    Superusers' connections also look whether capture is what would be generated now.
    """
    await caught_up(connections)
    for connection in connections:
        if connection.info.parameter_status("is_superuser") == "on":
            await assert_generated(connection)
    dumps = await asyncio.gather(*(_dump(one, schema) for one in connections))
    assert dumps[1:] == dumps[:-1]
    return dumps[0]


async def assert_same_roles(connections: Sequence[Connection]) -> None:
    """What the check on Spark compares of roles is the same on all members."""
    found = []
    for connection in connections:
        rows = await (await connection.execute(_STRUCTURE)).fetchall()
        found.append(sorted(row[:3] for row in rows if row[0] in ("role", "membership")))
    assert found[1:] == found[:-1]


async def assert_refused(connections: Sequence[Connection], schema: str, statement: str) -> None:
    """The first member refuses a message, says what to do, and neither it nor another changes."""
    found = await _dump(connections[0], schema)
    error = await failure(connections[0], statement)
    assert error.sqlstate == "0A000", error
    assert error.diag.message_hint
    await run(connections[0], "DISCARD TEMP")  # what it made of those would be in the dump
    assert await assert_same_schema(connections[:2], schema) == found


async def assert_generated(connection: Connection) -> None:
    """Capture of all tables is what would be generated now: a superuser's connection."""
    async with connection.transaction(force_rollback=True):
        await run(connection, "SET LOCAL session_replication_role = replica")
        had = await run(connection, _GENERATED)
        await run(connection, "SELECT pgherd.reconcile()")
        now = await run(connection, _GENERATED)
    assert now == had


async def _dump(connection: Connection, schema: str) -> str:
    return await asyncio.to_thread(dump, connection, schema)


def dump(connection: Connection, schema: str) -> str:
    """A schema as pg_dump writes it, without the numbers at which sequences start."""
    info = connection.info
    done = subprocess.run(
        [program("pg_dump", info.server_version // 10000), "--schema-only", "--schema", schema],
        env=os.environ
        | {
            "PGHOST": info.host,
            "PGPORT": str(info.port),
            "PGUSER": info.user,
            "PGPASSWORD": info.password,
            "PGDATABASE": info.dbname,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    # pg_dump writes a random word since its versions of August 2025.
    own = ("    START WITH ", "\\restrict", "\\unrestrict")
    lines = done.stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith(own) and "pgherd_" not in line)
