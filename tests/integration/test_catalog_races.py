"""Two sessions of a member change one row of its catalog: nobody hears PostgreSQL's XX000 for it.

PostgreSQL says "tuple concurrently updated" to a command that has waited for another one of the
same object. One of the two is the applier, with a command of another member.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg
import pytest
from patience import in_time, wait_until_async

from .localherd import LocalHerd
from .members import Connection, assert_same_schema, caught_up, once, run, spread

_APPLIER_WAITS = """
    SELECT pg_blocking_pids(a.pid) FROM pg_stat_activity a
     WHERE a.application_name = 'pgherd ddl' AND cardinality(pg_blocking_pids(a.pid)) > 0
"""


@contextlib.asynccontextmanager
async def unmoved(herd: LocalHerd, schema: str, number: int) -> AsyncIterator[Connection]:
    """A superuser's session in an open transaction, which does not give way to the applier."""
    async with await psycopg.AsyncConnection.connect(
        herd.nodes()[number].dsn, autocommit=True, application_name="pgherd watch"
    ) as connection:
        await run(connection, f"SET search_path = {schema}, public; BEGIN")
        yield connection


@pytest.fixture(autouse=True)
async def objects(connections: list[Connection], schema: str) -> None:
    await caught_up(connections)
    await spread(
        connections,
        0,
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1; SET pgherd.ddl_wait = 0",
    )


@contextlib.asynccontextmanager
async def applying(
    herd: LocalHerd, connections: list[Connection], admins: list[Connection], schema: str
) -> AsyncIterator[None]:
    """The applier of the second member has changed the function, and waits for a reader."""
    async with unmoved(herd, schema, 1) as reader:
        await run(reader, "TABLE t")
        await run(
            connections[0], "BEGIN; ALTER FUNCTION f() COST 5; ALTER TABLE t ADD x int; COMMIT"
        )
        await wait_until_async(lambda: run(admins[1], _APPLIER_WAITS), bool)
        yield
        await run(reader, "ROLLBACK")


async def until_waits(admin: Connection, session: Connection) -> None:
    """Wait until a session waits for another one."""
    asked = f"SELECT cardinality(pg_blocking_pids({session.info.backend_pid}))"
    await wait_until_async(lambda: run(admin, asked), lambda seen: seen != [(0,)])


@pytest.mark.parametrize(
    "command", ["GRANT EXECUTE ON FUNCTION f() TO PUBLIC", "ALTER FUNCTION f() COST 7"]
)
async def test_a_command_waits_for_one_of_another_member(
    herd: LocalHerd,
    connections: list[Connection],
    admins: list[Connection],
    schema: str,
    command: str,
) -> None:
    async with asyncio.TaskGroup() as group, in_time(), applying(herd, connections, admins, schema):
        group.create_task(once(connections[1], command))
        await until_waits(admins[1], connections[1])
    await assert_same_schema(connections, schema)


async def test_a_transaction_that_has_the_turn_already_loses_in_the_end(
    herd: LocalHerd, connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await run(connections[1], "BEGIN; CREATE TABLE u (id int PRIMARY KEY)")
    async with applying(herd, connections, admins, schema):
        command = asyncio.create_task(once(connections[1], "ALTER FUNCTION f() COST 7"))
        await until_waits(admins[1], connections[1])
    try:
        with contextlib.suppress(psycopg.errors.SerializationFailure):  # or COMMIT hears it
            async with in_time():
                await command
            await once(connections[1], "COMMIT")
            raise AssertionError("it was committed")
        await run(connections[1], "ROLLBACK")
    except psycopg.errors.AdminShutdown:  # it was at work when it had to give way
        connections = [connections[0], connections[2]]
    await assert_same_schema(connections, schema)


async def test_a_command_of_another_member_is_repeated_after_a_change_that_is_not_ordered(
    herd: LocalHerd, connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    async with unmoved(herd, schema, 1) as session:
        await run(session, "SET session_replication_role = replica; ALTER FUNCTION f() COST 9")
        await run(connections[0], "ALTER FUNCTION f() COST 5")
        await wait_until_async(lambda: run(admins[1], _APPLIER_WAITS), bool)
        await run(session, "COMMIT")
        await caught_up(connections)
    await assert_same_schema(connections, schema)
