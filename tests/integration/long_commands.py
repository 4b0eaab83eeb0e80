"""What tests of commands share that each member executes on its own, beside the commits."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import psycopg
from patience import in_time, wait_until_async

from .localherd import LocalHerd
from .members import Connection, assert_same_schema, failure, once, run, superusers
from .test_hazards import connected

UNDER_WAY = "SELECT count(*) FROM pgherd.long_commands"
INDEX = """
    SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
     WHERE c.relnamespace = '{}'::regnamespace AND c.relname = 'i'
"""
INDEXES = """
    SELECT c.relname::text, i.indisvalid
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
     WHERE c.relnamespace = '{}'::regnamespace AND c.relname <> 'other_pkey' ORDER BY 1
"""


@contextlib.asynccontextmanager
async def another(connection: Connection, schema: str) -> AsyncIterator[Connection]:
    """A second session of the same role on the same node."""
    async with await psycopg.AsyncConnection.connect(
        connection.info.dsn, password=connection.info.password, autocommit=True
    ) as opened:
        await run(opened, f"SET search_path = {schema}, public")
        yield opened


@contextlib.asynccontextmanager
async def held_up(
    connection: Connection, schema: str, by: str = "BEGIN; UPDATE t SET x = 0 WHERE id = 1"
) -> AsyncIterator[Connection]:
    """A transaction, by default one that has written: nobody's work there ends before it."""
    async with another(connection, schema) as holder:
        await run(holder, by)
        try:
            yield holder
        finally:
            with contextlib.suppress(psycopg.Error):  # it has given way
                await run(holder, "ROLLBACK")


async def interrupted_reindex(connection: Connection, schema: str, index: str) -> None:
    """Leave a copy of an index of table t behind that is not valid, on one member."""
    async with another(connection, schema) as holder:
        await run(holder, "BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE")
        await run(connection, "SET statement_timeout = '1s'")
        error = await failure(connection, f"REINDEX INDEX CONCURRENTLY {index}")
        assert error.sqlstate == "57014"
        await run(connection, "RESET statement_timeout")
        await run(holder, "ROLLBACK")


async def until(connection: Connection, statement: str, wanted: list[tuple[object, ...]]) -> None:
    """Wait until a query gives these rows."""
    await wait_until_async(lambda: run(connection, statement), lambda found: found == wanted)


@contextlib.asynccontextmanager
async def waiting(
    command: str, connection: Connection, admin: Connection, blocked: str
) -> AsyncIterator[asyncio.Task[None]]:
    """A command that has come to an end everywhere but on one node, named by ``blocked``.

    Args:
        command: of the first node.
        connection: that executes it.
        admin: a superuser's to that node.
    """

    async def execute() -> None:
        await once(connection, command)

    task = asyncio.create_task(execute())
    try:
        await until(admin, "SELECT missing FROM pgherd.long_commands", [(blocked,)])
        yield task
    finally:
        if not task.done():
            connection.cancel()
        with contextlib.suppress(psycopg.Error):
            await task
        await until(admin, UNDER_WAY, [(0,)])


async def nothing_under_way(admin: Connection) -> None:
    """Wait until a node has come to the end of all such commands."""
    await until_any(admin, "SELECT true WHERE NOT EXISTS (SELECT FROM pgherd.long_commands)")


async def index_of_all(herd: LocalHerd, schema: str) -> list[tuple[object, ...]]:
    """Whether index i is valid on all members, when nothing is under way; empty: it is on none."""
    async with superusers(herd, schema) as admins:
        for admin in admins:
            await nothing_under_way(admin)
        await assert_same_schema(admins, schema)
        first, *others = [await run(admin, INDEX.format(schema)) for admin in admins]
    assert all(found == first for found in others)
    return first


async def until_any(connection: Connection, statement: str) -> None:
    """Wait until a query gives a row."""
    await wait_until_async(lambda: run(connection, statement))


async def outcome_with_a_death(
    mortal: LocalHerd,
    command: str,
    *,
    hold: str,
    held_up: str,
    step: str,
    victim: str,
    process: str,
) -> object:
    """Have a process die at a step of a command of ``n1``, and return what the command came to.

    Args:
        mortal: the herd; all is well with it.
        command: that each member does on its own.
        hold: begins a transaction that holds the work of one node up.
        held_up: that node.
        step: a query at ``n1`` that gives a row when the step has come.
        victim: the node where something dies; it is started again.
        process: what dies.
    """
    async with (
        connected(mortal.app_dsn(held_up)) as holder,
        connected(mortal.dsn("n1")) as watch,
        connected(mortal.app_dsn("n1")) as executor,
    ):
        await run(holder, hold)
        work = asyncio.create_task(once(executor, command))
        await until_any(watch, step)
        await asyncio.to_thread(mortal.must, "kill", victim, "--process", process)
        await asyncio.sleep(random.choice((0, 0.5, 3)))
        await asyncio.to_thread(mortal.must, "start", victim)
        with contextlib.suppress(psycopg.Error):  # it may have died, too
            await run(holder, "ROLLBACK")
        async with in_time():
            outcome: object = (await asyncio.gather(work, return_exceptions=True))[0]
        for connection in (holder, watch, executor):
            await connection.close()
    return outcome


async def beside_a_copy(mortal: LocalHerd, command: str, *, hold: str) -> None:
    """Have ``n3`` copy ``n2``, which a transaction holds up, while ``n1`` waits for its command.

    Arguments as of ``outcome_with_a_death``.
    """
    async with (
        connected(mortal.app_dsn("n2")) as holder,
        connected(mortal.app_dsn("n1")) as executor,
        connected(mortal.dsn("n1")) as watch,
    ):
        await run(holder, hold)
        work = asyncio.create_task(once(executor, command))
        await until_any(watch, "SELECT true FROM pgherd.long_commands WHERE missing = 'n2'")
        await asyncio.to_thread(mortal.must, "rebuild", "n3", "--from", "n2")
        assert not work.done()
        await run(holder, "ROLLBACK")
        async with in_time():
            await work
