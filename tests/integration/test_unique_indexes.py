"""CREATE UNIQUE INDEX CONCURRENTLY: certification knows its keys before any member has it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest
from patience import in_time

from .long_commands import INDEX, UNDER_WAY, another, held_up, until, waiting
from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    failure,
    once,
    run,
    same_everywhere,
    spread,
)
from .test_long_commands import table, undone

__all__ = ["table"]

_BUILD = "CREATE UNIQUE INDEX CONCURRENTLY i ON t (y)"


def reading(connection: Connection, schema: str) -> AbstractAsyncContextManager[Connection]:
    """A snapshot that is held: no build on that node ends before it, and writers go on there."""
    return held_up(
        connection, schema, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t"
    )


async def lost(connections: list[Connection]) -> list[psycopg.Error]:
    """Commit on these at once; the errors of those that lose, which are rolled back."""
    outcomes = await asyncio.gather(
        *(run(one, "COMMIT") for one in connections), return_exceptions=True
    )
    for connection in connections:
        with contextlib.suppress(psycopg.Error):
            await run(connection, "ROLLBACK")
    return [one for one in outcomes if isinstance(one, psycopg.Error)]


@contextlib.asynccontextmanager
async def not_begun(admin: Connection) -> AsyncIterator[None]:
    """Keep the sidecar of a node from what it reads of the commands under way."""
    async with await psycopg.AsyncConnection.connect(
        admin.info.dsn, password=admin.info.password, autocommit=True
    ) as holder:
        await run(holder, "SET session_replication_role = replica")
        await run(holder, "BEGIN; ALTER VIEW pgherd.long_commands_here RENAME TO hidden")
        try:
            yield
        finally:
            await run(holder, "ROLLBACK")


async def has_it(admins: list[Connection], schema: str) -> None:
    for admin in admins:
        await until(admin, UNDER_WAY, [(0,)])
    assert await same_everywhere(admins, INDEX.format(schema)) == [(True,)]
    await assert_same_schema(admins, schema)


@pytest.mark.family(every=3)
@pytest.mark.parametrize(
    "index",
    ["(y)", "(lower(y))", "(y, x) WHERE id > 0", "(y) INCLUDE (x)", "(y) NULLS NOT DISTINCT"],
)
async def test_index_is_built_on_all_members_and_is_unique_between_them(
    connections: list[Connection], admins: list[Connection], schema: str, index: str
) -> None:
    await run(connections[1], f"CREATE UNIQUE INDEX CONCURRENTLY i ON t {index}")
    await has_it(admins, schema)
    for place, connection in enumerate(connections):
        error = await failure(connection, f"INSERT INTO t VALUES ({2000 + place}, 7, '7')")
        assert error.sqlstate == "23505"
    # of two members that write one key at the same time, one gives way
    for connection in connections[:2]:
        await run(connection, "BEGIN")
    for place, connection in enumerate(connections[:2]):
        await run(connection, f"INSERT INTO t VALUES ({3000 + place}, 1, 'new')")
    assert len(await lost(connections[:2])) == 1
    assert len(await same_everywhere(admins, "SELECT id FROM t WHERE y = 'new'")) == 1


async def test_duplicate_that_is_there_fails_the_command_everywhere(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await spread(connections, 1, "INSERT INTO t VALUES (0, 0, '7')")
    error = await failure(connections[0], _BUILD)
    assert error.sqlstate == "23505", error
    await undone(admins, schema)
    await spread(connections, 2, "DELETE FROM t WHERE id = 0")
    await run(connections[0], _BUILD)
    await has_it(admins, schema)


async def test_writers_go_on_and_exclude_each_other_while_one_member_builds(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    for connection in connections:  # these sessions know the table as it is without the index
        await run(
            connection, "INSERT INTO t VALUES (5000, 0, 'gone'); DELETE FROM t WHERE id > 4999"
        )
        await caught_up(connections)
    async with (
        reading(connections[2], schema) as holder,
        another(connections[0], schema) as builder,
        waiting(_BUILD, builder, admins[0], "n3") as build,
    ):
        for place, connection in enumerate(connections):
            await once(connection, f"INSERT INTO t VALUES ({-place}, 0, 'new {place}')")
            swap = ["'none'", "'2'", "'1'"]
            steps = zip((1, 2, 1), swap, strict=True)
            text = "; ".join(f"UPDATE t SET y = {y} WHERE id = {key}" for key, y in steps)
            await run(connection, f"BEGIN; {text}; COMMIT")
            back = "; ".join(
                f"UPDATE t SET y = {y} WHERE id = {key}"
                for key, y in zip((2, 1, 2), ("'none'", "'1'", "'2'"), strict=True)
            )
            await run(connection, f"BEGIN; {back}; COMMIT")
            await caught_up(connections)
        await run(connections[1], "BEGIN; INSERT INTO t VALUES (4000, 0, 'both')")
        await run(connections[2], "BEGIN; INSERT INTO t VALUES (4001, 0, 'both')")
        assert len(await lost(connections[1:])) == 1
        assert not build.done()
        await run(holder, "COMMIT")
        async with in_time():
            await build
    await has_it(admins, schema)
    rows = "SELECT id, y FROM t WHERE id <= 2 ORDER BY id"
    assert await same_everywhere(admins, rows) == [
        (-2, "new 2"), (-1, "new 1"), (0, "new 0"), (1, "1"), (2, "2"),
    ]  # fmt: skip


async def test_duplicate_from_a_member_without_the_index_fails_the_command(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """The row was certain to commit; the index gives way to it."""
    async with (
        not_begun(admins[2]),
        another(connections[0], schema) as builder,
        waiting(_BUILD, builder, admins[0], "n3") as build,
    ):
        await run(connections[2], "INSERT INTO t VALUES (-1, 0, '7')")
        with pytest.raises(psycopg.Error) as raised:
            async with in_time():
                await build
        assert raised.value.sqlstate in ("23505", "57P01")
    await undone(admins, schema)
    assert len(await same_everywhere(admins, "SELECT id FROM t WHERE y = '7'")) == 2


async def test_cancelled_build_is_undone_on_all_members(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    async with (
        reading(connections[2], schema),
        another(connections[0], schema) as builder,
        waiting(_BUILD, builder, admins[0], "n3") as build,
    ):
        builder.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            await build
    await undone(admins, schema)
    for place, connection in enumerate(connections):
        await run(connection, f"INSERT INTO t VALUES ({2000 + place}, 7, '7')")
        await caught_up(connections)


async def test_table_without_a_primary_key_and_odd_names_are_refused(
    connections: list[Connection], admins: list[Connection]
) -> None:
    await run(connections[0], "CREATE TABLE u (a int NOT NULL)")
    error = await failure(connections[0], "CREATE UNIQUE INDEX CONCURRENTLY ua ON u (a)")
    assert error.sqlstate == "0A000"
    await run(connections[0], "CREATE TABLE v (id int PRIMARY KEY, pgherd_row int)")
    error = await failure(connections[0], "CREATE UNIQUE INDEX CONCURRENTLY va ON v (pgherd_row)")
    assert error.sqlstate == "0A000"
    assert await same_everywhere(admins, UNDER_WAY) == [(0,)]


async def test_partition_has_a_unique_index_of_its_own(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE p (id int PRIMARY KEY, y text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 (y text, id int NOT NULL);"
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (100)",
    )
    await run(connections[0], "CREATE UNIQUE INDEX CONCURRENTLY i ON p1 (y)")
    await has_it(admins, schema)
    await spread(connections, 1, "INSERT INTO p VALUES (1, 'a')")
    error = await failure(connections[2], "INSERT INTO p VALUES (2, 'a')")
    assert error.sqlstate == "23505"


@pytest.mark.long
async def test_members_agree_whatever_is_written_while_indexes_come_and_go(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """Rows are few enough for indexes to be possible, and keys few enough for duplicates."""
    ended = asyncio.Event()
    told = (
        "23505",
        "40001",
        "40P01",
        "08007",
        "57014",
        "57P01",
        "55006",
        "55P03",
        "55000",
        "25006",
    )

    async def write(seed: int) -> None:
        chance = random.Random(seed)
        writer = admins[seed % 3]
        async with contextlib.AsyncExitStack() as stack:
            while not ended.is_set():
                if writer in admins or writer.closed:  # its session has given way
                    writer = await stack.enter_async_context(another(connections[seed % 3], schema))
                key, value = chance.randint(2000, 2059), chance.randint(1, 3000)
                put = (
                    f"INSERT INTO t VALUES ({key}, 0, 'k{value}')"
                    f" ON CONFLICT (id) DO UPDATE SET y = 'k{value}'"
                )
                text = chance.choice((put, put, f"DELETE FROM t WHERE id = {key}"))
                swap = f"BEGIN; {text}; UPDATE t SET x = x + 1 WHERE id = {key}; COMMIT"
                try:
                    await run(writer, chance.choice((text, swap)))
                except psycopg.Error as error:
                    assert error.sqlstate in (None, *told), error
                    with contextlib.suppress(psycopg.Error):  # it is closed, or about to be
                        await run(writer, "ROLLBACK")

    async def build() -> None:
        built = tries = 0
        while built < 4 or tries < 8:
            tries += 1
            assert tries < 60, "no index has come about"
            place = tries % 3
            async with another(connections[place], schema) as builder:
                with contextlib.suppress(psycopg.Error):
                    await run(builder, _BUILD)
            await until(admins[place], UNDER_WAY, [(0,)])
            found = await run(admins[place], INDEX.format(schema))
            if found:
                assert found == [(True,)]
                built += 1
                async with another(connections[(place + 1) % 3], schema) as dropper:
                    await caught_up(connections)
                    await run(dropper, f"DROP INDEX CONCURRENTLY {schema}.i")

    writers = [asyncio.create_task(write(seed)) for seed in range(6)]
    try:
        await build()
    finally:
        ended.set()
        await asyncio.gather(*writers)
    await same_everywhere(admins, "SELECT * FROM t ORDER BY id")
    await assert_same_schema(admins, schema)
    states = "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    own = f"{states} WHERE c.relnamespace = '{schema}'::regnamespace AND NOT i.indisvalid"
    assert await same_everywhere(admins, own) == [(0,)]


_PARTITIONED = (
    "CREATE TABLE p (id int, kind text, v text, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);"
    "CREATE TABLE pn PARTITION OF p FOR VALUES IN ('n');"
    "CREATE TABLE px PARTITION OF p FOR VALUES IN ('x')"
)


async def test_an_expression_of_one_partition_excludes_writers_alike_while_it_is_built_and_after(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await spread(connections, 0, _PARTITIONED)
    async with another(connections[0], schema) as builder:
        text = "CREATE UNIQUE INDEX CONCURRENTLY i ON pn ((v::int))"
        async with (
            reading(connections[2], schema) as holder,
            waiting(text, builder, admins[0], "n3") as build,
        ):
            await run(connections[0], "INSERT INTO p VALUES (1, 'x', 'no number')")
            await run(connections[1], "BEGIN; INSERT INTO p VALUES (2, 'n', '77')")
            await run(holder, "ROLLBACK")
            async with in_time():
                await build
    await run(connections[0], "BEGIN; INSERT INTO p VALUES (3, 'n', '77')")
    assert [one.sqlstate for one in await lost(connections[:2])] == ["40001"]
    assert len(await same_everywhere(admins, "SELECT id FROM p WHERE kind = 'n'")) == 1


async def test_an_expression_of_a_partitioned_table_alone_is_asked_of_no_row(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], _PARTITIONED)
    await run(connections[0], "CREATE UNIQUE INDEX pu ON ONLY p (id, kind, (v::int))")
    await run(connections[1], "INSERT INTO p VALUES (1, 'x', 'no number')")
    await run(connections[1], "CREATE UNIQUE INDEX pnu ON pn (id, kind, (v::int))")
    await run(connections[1], "ALTER INDEX pu ATTACH PARTITION pnu")
    await run(connections[0], "INSERT INTO p VALUES (2, 'x', 'none either'), (3, 'n', '3')")
    assert len(await same_everywhere(connections, "SELECT * FROM p ORDER BY id")) == 3
    await assert_same_schema(connections, schema)


_BY_TIME = (
    "CREATE TABLE p (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2026-01-02') TO ('2026-03-02');"
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM ('2026-03-02') TO ('2026-05-02');"
    "CREATE TABLE p3 PARTITION OF p DEFAULT"
)
_PAIRS = (
    ("'2026-01-02', '1'", "'2026-03-02', '2'", False),
    ("'2026-01-02', '1'", "'2026-01-02', '2'", False),
    ("'2026-03-01', '1'", "'2026-03-02', '1'", False),
    ("'2026-02-03', '1'", "'2026-02-03', '1'", True),
    ("'2026-02-03', '1'", "'2026-02-03', '01'", True),
    ("'2027-02-03', '1'", "'2028-02-03', '1'", False),
)
"""Of two rows that two members insert at once: do they exclude each other?"""


async def concurrently(connections: list[Connection], one: str, other: str) -> bool:
    """Insert two rows on two members at once; whether one of them is lost."""
    for number, row in enumerate((one, other)):
        await run(connections[number], f"BEGIN; INSERT INTO p VALUES ({number}, {row})")
    await run(connections[0], "COMMIT")
    try:
        await run(connections[1], "COMMIT")
    except psycopg.errors.SerializationFailure:
        return True
    finally:
        await spread(connections, 0, "DELETE FROM p")
    return False


@pytest.mark.parametrize("style", ["ISO, MDY", pytest.param("SQL, DMY", marks=pytest.mark.long)])
async def test_an_index_that_waits_for_those_of_the_partitions_excludes_nobody(
    connections: list[Connection], schema: str, style: str
) -> None:
    """Each partition's own index counts for the rows of this partition only."""
    await run(connections[0], _BY_TIME)
    await spread(connections, 0, "CREATE UNIQUE INDEX pu ON ONLY p (at, (v::int))")
    for one, other, excluded in _PAIRS:
        if not excluded:
            assert not await concurrently(connections, one, other), (one, other)
    for number, partition in enumerate(("p1", "p2", "p3")):
        await run(
            connections[number],
            f"SET DateStyle = '{style}';"
            f"CREATE UNIQUE INDEX {partition}u ON {partition} (at, (v::int)); RESET DateStyle",
        )
        await spread(connections, number, f"ALTER INDEX pu ATTACH PARTITION {partition}u")
        for one, other, excluded in _PAIRS:
            assert await concurrently(connections, one, other) is excluded, (one, other)
    await assert_same_schema(connections, schema)


async def test_an_expression_means_the_same_whatever_the_session_writes_values_like(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE p (id int PRIMARY KEY, d date, f float8)")
    await spread(
        connections,
        0,
        "SET DateStyle = 'SQL, DMY'; SET extra_float_digits = -15;"
        "CREATE UNIQUE INDEX ON p ((d - DATE '2026-02-03'), (f * 1.23456789::float8));"
        "RESET DateStyle; RESET extra_float_digits",
    )
    assert await concurrently(connections, "'2026-05-06', 7", "'2026-05-06', 7")
    assert not await concurrently(connections, "'2026-05-06', 7", "'2026-06-05', 7")
