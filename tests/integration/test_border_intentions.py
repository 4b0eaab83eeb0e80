"""A command that conflicts with writers gets through, and is not in their way for longer (C14)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg
import pytest
from patience import in_time

from .localherd import LocalHerd
from .members import Connection, assert_same_schema, caught_up, failure, once, run, spread

TRIES = 12
"""Some may lose to what was under way, or to the applier; without intentions all 50 lose."""

COMMANDS = {
    "of a type that excludes every writer": "ALTER TYPE kind ADD ATTRIBUTE b int",
    "of a domain that excludes every writer": "ALTER DOMAIN amount ADD CHECK (VALUE > -5)",
    "of the table that is written": "ALTER TABLE busy ADD COLUMN more int",
    "that makes an index on it": "CREATE INDEX ON busy (n)",
}


@pytest.fixture(autouse=True)
async def tables(connections: list[Connection], schema: str) -> None:
    await caught_up(connections)
    await spread(
        connections,
        0,
        "CREATE TABLE busy (id bigserial PRIMARY KEY, n int); CREATE TYPE kind AS (a int);"
        "CREATE DOMAIN amount AS int; CREATE TABLE quiet (id int PRIMARY KEY, v amount)",
    )


@contextlib.asynccontextmanager
async def writers(herd: LocalHerd, schema: str) -> AsyncIterator[list[int]]:
    """One on each node that never rests; the numbers of their commits."""
    commits = [0] * len(herd.nodes())
    done = asyncio.Event()

    async def write(number: int, dsn: str) -> None:
        while not done.is_set():
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                while not done.is_set() and not connection.closed:
                    # It loses to the command, which may also end its session for a lock.
                    with contextlib.suppress(
                        psycopg.errors.SerializationFailure,
                        psycopg.errors.AdminShutdown,
                        psycopg.errors.QueryCanceled,
                        psycopg.errors.DeadlockDetected,
                        psycopg.errors.TransactionResolutionUnknown,
                    ):
                        await connection.execute(f"INSERT INTO {schema}.busy (n) VALUES (1)")
                        commits[number] += 1

    async with asyncio.TaskGroup() as group:
        for number, node in enumerate(herd.nodes()):
            group.create_task(write(number, node.app_dsn))
        try:
            yield commits
        finally:
            done.set()


async def go_on(commits: list[int]) -> None:
    """Wait until each writer has committed again."""
    before = list(commits)
    async with in_time():
        while any(now == then for now, then in zip(commits, before, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def tries_of(dsn: str, schema: str, command: str) -> int:
    """How often a command has to be executed until it is committed."""
    for number in range(1, 50):
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await run(connection, f"SET search_path = {schema}, public")
            try:
                await once(connection, command)
            except (
                psycopg.errors.SerializationFailure,
                psycopg.errors.AdminShutdown,
                psycopg.errors.QueryCanceled,
                psycopg.errors.DeadlockDetected,
            ):
                continue
            return number
    return 50


@pytest.mark.parametrize("kind", COMMANDS)
async def test_c14_a_command_gets_through_against_writers_that_never_rest(
    connections: list[Connection], schema: str, herd: LocalHerd, kind: str
) -> None:
    async with writers(herd, schema) as commits:
        await go_on(commits)
        assert await tries_of(herd.nodes()[0].app_dsn, schema, COMMANDS[kind]) <= TRIES
        await go_on(commits)
    await caught_up(connections)
    await assert_same_schema(connections, schema)


async def test_c14_a_command_that_fails_is_in_nobody_s_way_afterwards(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await run(connections[0], "INSERT INTO quiet VALUES (1, -9)")
    async with writers(herd, schema) as commits:
        await go_on(commits)
        error = await failure(connections[0], "ALTER DOMAIN amount ADD CHECK (VALUE > 0)")
        assert error.sqlstate in ("23514", "40001")
        await go_on(commits)


async def test_c14_a_command_that_never_ends_lets_others_go_on(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    """It holds its intention in an open transaction: after some seconds that is withdrawn."""
    async with writers(herd, schema) as commits:
        await go_on(commits)
        await run(connections[0], "BEGIN; ALTER TYPE kind ADD ATTRIBUTE c int")
        await go_on(commits)
        await run(connections[0], "ROLLBACK")


async def test_a_command_that_failed_fails_nobody_after_it(
    connections: list[Connection], schema: str
) -> None:
    """One client after the other, on any member: nobody has lost to anything."""
    await spread(connections, 0, "CREATE TABLE t (id int PRIMARY KEY)")
    for number in range(20):
        error = await failure(connections[number % 3], "ALTER DOMAIN none ADD CHECK (true)")
        assert error.sqlstate == "42704"
        await once(connections[number % 2], f"INSERT INTO t VALUES ({number})")
