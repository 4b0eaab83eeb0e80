"""CREATE INDEX CONCURRENTLY: each member builds the index on its own, beside the commits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg
import pytest
from patience import in_time

from .long_commands import INDEXES, UNDER_WAY, another, held_up, until, waiting
from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    failure,
    run,
    same_everywhere,
    spread,
)

_BUILD = "CREATE INDEX CONCURRENTLY i ON t (y)"
_TOLD = "SELECT index, done, failed, missing, here FROM pgherd.long_commands_here"
_WAITS = """
    SELECT l.missing, a.wait_event = 'PgSleep'
      FROM pgherd.long_commands l JOIN pg_stat_activity a ON a.pid = l.pid
"""
_CONCERNED = (
    "ALTER TABLE t ADD COLUMN z int",
    "COMMENT ON INDEX i IS 'x'",
    "ALTER INDEX t_pkey RENAME TO k",
    "CREATE INDEX j ON t (x)",
    "ALTER TABLE other ADD FOREIGN KEY (t) REFERENCES t",
    "ALTER INDEX i RENAME TO h",
    "CREATE INDEX CONCURRENTLY c ON other (t)",
    "DROP INDEX IF EXISTS h, i",
    "ALTER TABLE t RENAME TO u",
    "DROP TABLE IF EXISTS u, t CASCADE",
)
_WITHOUT = [("t_pkey", True)]
_WITH = [("i", True), ("t_pkey", True)]


@pytest.fixture(autouse=True)
async def table(connections: list[Connection], schema: str) -> None:
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY, x int, y text)")
    await run(connections[0], "INSERT INTO t SELECT g, g, g::text FROM generate_series(1, 1000) g")
    await spread(connections, 0, "CREATE TABLE other (id int PRIMARY KEY, t int)")


@contextlib.asynccontextmanager
async def building(
    connection: Connection, admins: list[Connection], blocked: str
) -> AsyncIterator[asyncio.Task[None]]:
    """A build that its session waits for, since one node, named by ``blocked``, has not done it."""
    async with waiting(_BUILD, connection, admins[0], blocked) as build:
        await until(admins[0], _WAITS, [(blocked, True)])
        yield build


async def undone(admins: list[Connection], schema: str) -> None:
    for admin in admins:
        await until(admin, UNDER_WAY, [(0,)])
    assert await same_everywhere(admins, INDEXES.format(schema)) == _WITHOUT
    await assert_same_schema(admins, schema)


async def test_index_is_built_on_all_members(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await run(connections[1], "CREATE INDEX CONCURRENTLY i ON t (x) WHERE y > 'a'")
    assert await same_everywhere(connections, INDEXES.format(schema)) == _WITH
    assert await same_everywhere(admins, _TOLD) == []
    await assert_same_schema(connections, schema)
    await run(connections[2], "INSERT INTO t VALUES (0, 0, 'b')")
    await run(connections[2], "CREATE INDEX CONCURRENTLY IF NOT EXISTS i ON t (x)")
    await run(connections[0], "DROP INDEX i")
    await assert_same_schema(connections, schema)


async def test_writers_go_on_everywhere_while_one_member_builds(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    async with (
        held_up(connections[2], schema) as holder,
        another(connections[0], schema) as builder,
        building(builder, admins, "n3") as build,
    ):
        for place, connection in enumerate(connections):
            await run(connection, f"INSERT INTO other VALUES ({place}, 0)")
            await run(connection, f"INSERT INTO t VALUES ({-place}, 0, 'new')")
            await run(connection, f"UPDATE t SET y = 'changed' WHERE id = {100 + place}")
        await spread(connections, 1, "CREATE TABLE third (id int PRIMARY KEY)")
        assert not build.done()
        await run(holder, "COMMIT")
        async with in_time():
            await build
    assert await same_everywhere(connections, INDEXES.format(schema)) == [
        ("i", True),
        ("t_pkey", True),
        ("third_pkey", True),
    ]
    await assert_same_schema(connections, schema)
    assert await same_everywhere(
        connections, "SELECT id FROM t WHERE y = 'changed' ORDER BY id"
    ) == [(100,), (101,), (102,)]


async def test_command_about_the_table_is_refused_until_all_have_the_index(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    async with (
        held_up(connections[2], schema) as holder,
        another(connections[0], schema) as builder,
        building(builder, admins, "n3") as build,
    ):
        for command in _CONCERNED:
            await run(connections[1], "SET lock_timeout = '5s'")
            error = await failure(connections[1], command)
            assert error.sqlstate == "55006", (command, error)
        await run(connections[1], "GRANT SELECT ON t TO public")
        await run(holder, "COMMIT")
        async with in_time():
            await build
    await caught_up(connections)
    for command in _CONCERNED:
        await run(connections[1], command)
    await assert_same_schema(connections, schema)


async def test_row_without_a_place_in_the_index_ends_the_build(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """It is written where the index is not yet, and has to be applied where it is."""
    async with (
        held_up(connections[2], schema),
        another(connections[0], schema) as builder,
        building(builder, admins, "n3") as build,
    ):
        long = "SELECT string_agg(md5(g::text), '') FROM generate_series(1, 500) g"
        await run(connections[2], f"INSERT INTO t VALUES (-1, 0, ({long}))")
        with pytest.raises(psycopg.Error) as raised:
            async with in_time():
                await build
        assert raised.value.sqlstate in ("55000", "57P01")
    await undone(admins, schema)
    assert len(await same_everywhere(admins, "SELECT md5(y) FROM t WHERE id = -1")) == 1


async def test_cancelled_build_is_undone_on_all_members(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    async with held_up(connections[2], schema), another(connections[0], schema) as builder:
        async with building(builder, admins, "n3") as build:
            builder.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                await build
        await run(
            admins[2],
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE state = 'idle in transaction' AND datname = current_database()",
        )
    await run(connections[0], "DROP TABLE other")
    await undone(admins, schema)
