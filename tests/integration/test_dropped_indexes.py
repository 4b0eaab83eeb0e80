"""DROP INDEX CONCURRENTLY: each member drops the index on its own, beside the commits."""

import asyncio

import psycopg
import pytest
from patience import in_time

from . import warm
from .localherd import LocalHerd
from .long_commands import INDEXES, UNDER_WAY, another, held_up, interrupted_reindex, until, waiting
from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    failure,
    run,
    same_everywhere,
    spread,
)

_DROP = "DROP INDEX CONCURRENTLY i"


@pytest.fixture(autouse=True)
async def table(herd: LocalHerd, connections: list[Connection], schema: str) -> None:
    warm.drop_used(herd)  # an index of that name is refused anywhere
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY, x int, y text)")
    await run(connections[0], "INSERT INTO t SELECT g, g, g::text FROM generate_series(1, 1000) g")
    await spread(connections, 0, "CREATE UNIQUE INDEX i ON t (y)")


async def gone(admins: list[Connection], schema: str) -> None:
    for admin in admins:
        await until(admin, UNDER_WAY, [(0,)])
    assert await same_everywhere(admins, INDEXES.format(schema)) == [("t_pkey", True)]
    await assert_same_schema(admins, schema)


@pytest.mark.family(every=2)
@pytest.mark.parametrize(
    "statement",
    [
        _DROP,
        "drop index concurrently if exists I;",
        '/* by a/tool ** */ DROP INDEX CONCURRENTLY "i" RESTRICT -- and why',
        "DROP INDEX CONCURRENTLY {schema} . i",
    ],
)
async def test_index_is_dropped_on_all_members(
    connections: list[Connection], admins: list[Connection], schema: str, statement: str
) -> None:
    await run(connections[1], statement.format(schema=schema))
    await gone(admins, schema)
    await run(connections[2], "INSERT INTO t VALUES (0, 0, '1')")
    await run(connections[1], f"{_DROP.replace('CONCURRENTLY', 'CONCURRENTLY IF EXISTS')}")
    error = await failure(connections[0], _DROP)
    assert error.sqlstate == "42704"


@pytest.mark.long
async def test_client_that_speaks_the_extended_protocol_drops_an_index(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await connections[0].execute(_DROP, prepare=True)
    await gone(admins, schema)


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        (f"BEGIN; {_DROP}", "25001"),
        (f"{_DROP} CASCADE", "0A000"),
        (f"/* /* */ {_DROP} -- */ {_DROP}", "0A000"),
        ("DROP INDEX CONCURRENTLY t_pkey", "2BP01"),
        ("DROP INDEX CONCURRENTLY t", "42809"),
        (f"DO 'BEGIN {_DROP}; END'", "25001"),
        (f"SELECT 1; {_DROP}", "25001"),
    ],
)
async def test_command_that_postgresql_refuses_changes_nothing(
    connections: list[Connection],
    admins: list[Connection],
    schema: str,
    statement: str,
    state: str,
) -> None:
    error = await failure(connections[0], statement)
    assert error.sqlstate == state, error
    for admin in admins:
        await until(admin, UNDER_WAY, [(0,)])
    assert await same_everywhere(admins, INDEXES.format(schema)) == [("i", True), ("t_pkey", True)]


async def test_command_in_a_transaction_of_its_own_message_changes_nothing(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await run(connections[0], "BEGIN")
    error = await failure(connections[0], _DROP)
    assert error.sqlstate == "25001", error
    for admin in admins:
        await until(admin, UNDER_WAY, [(0,)])
    assert await same_everywhere(admins, INDEXES.format(schema)) == [("i", True), ("t_pkey", True)]


async def test_nobody_drops_the_index_of_another_role(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    await run(admins[0], f"ALTER TABLE {schema}.t OWNER TO {admins[0].info.user}")
    await run(admins[0], f"ALTER SCHEMA {schema} OWNER TO {admins[0].info.user}")
    await run(admins[0], f"GRANT USAGE ON SCHEMA {schema} TO public")
    error = await failure(connections[0], _DROP)
    assert error.sqlstate == "42501", error
    assert await run(admins[0], UNDER_WAY) == [(0,)]


async def test_index_by_which_rows_are_known_is_not_dropped_concurrently(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE u (a int NOT NULL)")
    await run(connections[0], "CREATE UNIQUE INDEX ua ON u (a)")
    error = await failure(connections[0], "DROP INDEX CONCURRENTLY ua")
    assert error.sqlstate == "0A000"
    assert error.diag.message_hint == f"DROP INDEX {schema}.ua"


async def test_replica_identity_is_not_dropped_concurrently(
    connections: list[Connection], schema: str
) -> None:
    """Members would update published rows that others may not update any more."""
    await run(connections[0], "CREATE TABLE u (id int PRIMARY KEY, a int NOT NULL)")
    await run(connections[0], "CREATE UNIQUE INDEX ua ON u (a)")
    await run(connections[0], "ALTER TABLE u REPLICA IDENTITY USING INDEX ua")
    error = await failure(connections[0], "DROP INDEX CONCURRENTLY ua")
    assert error.sqlstate == "0A000"
    assert error.diag.message_hint == f"DROP INDEX {schema}.ua"
    await run(connections[0], "DROP INDEX ua")


async def leave_behind(connection: Connection, schema: str, index: str) -> str:
    """An index that REINDEX CONCURRENTLY leaves where it does not get to its end; ask for it so."""
    await interrupted_reindex(connection, schema, index)
    left = (
        "SELECT x.indisvalid FROM pg_class c JOIN pg_index x ON x.indexrelid = c.oid"
        f" WHERE c.relname = '{index}_ccnew' AND c.relnamespace = '{schema}'::regnamespace"
    )
    assert await run(connection, left) == [(False,)]
    return left


async def test_what_one_member_has_alone_is_dropped_there(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    left = await leave_behind(connections[0], schema, "i")
    await run(connections[0], "DROP INDEX CONCURRENTLY i_ccnew")
    assert await same_everywhere(admins, left) == []
    assert await same_everywhere(admins, INDEXES.format(schema)) == [("i", True), ("t_pkey", True)]


async def test_what_one_member_has_alone_is_its_own_when_it_has_become_valid(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    left = await leave_behind(connections[0], schema, "t_pkey")
    await leave_behind(connections[0], schema, "i")
    await run(connections[0], "REINDEX TABLE t")
    assert await run(admins[0], left) == [(True,)]
    await run(connections[0], "ALTER TABLE t ADD z int")
    await run(connections[0], "INSERT INTO t VALUES (0, 0, 'new', 0)")
    await spread(connections, 0, "DROP INDEX t_pkey_ccnew")
    await run(connections[1], "ALTER TABLE t ADD zz int")  # the first one drops the other index
    assert await same_everywhere(admins, INDEXES.format(schema)) == [("i", True), ("t_pkey", True)]
    await assert_same_schema(admins, schema)


@pytest.mark.long
async def test_readers_and_writers_go_on_while_one_member_drops(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """Rows that the index would not allow are written as well where it is gone already."""
    async with (
        held_up(connections[2], schema) as holder,
        another(connections[0], schema) as dropper,
        waiting(_DROP, dropper, admins[0], "n3") as drop,
    ):
        assert await same_everywhere(connections, "SELECT y FROM t WHERE id = 500") == [("500",)]
        for place, connection in enumerate(connections):
            await run(connection, f"UPDATE t SET y = 'changed{place}' WHERE id = {100 + place}")
        error = await failure(connections[1], "ALTER TABLE t ADD COLUMN z int")
        assert error.sqlstate == "55006", error
        await spread(connections, 1, "CREATE TABLE third (id int PRIMARY KEY)")
        assert not drop.done()
        await run(holder, "COMMIT")
        async with in_time():
            await drop
    await run(connections[0], "DROP TABLE third")
    await gone(admins, schema)


async def test_unique_index_gives_way_to_rows_of_members_that_have_dropped_it(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    async with (
        held_up(connections[2], schema),
        another(connections[0], schema) as dropper,
        waiting(_DROP, dropper, admins[0], "n3") as drop,
    ):
        await run(connections[1], "INSERT INTO t VALUES (-1, 0, '7'), (-2, 0, '8')")
        async with in_time():
            await drop
    await gone(admins, schema)
    rows = "SELECT id FROM t WHERE y IN ('7', '8') ORDER BY id"
    assert await same_everywhere(admins, rows) == [(-2,), (-1,), (7,), (8,)]


async def test_cancelled_drop_goes_on(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """As on one server, where what is left of the index is of no use any more."""
    async with (
        held_up(connections[2], schema) as holder,
        another(connections[0], schema) as dropper,
        waiting(_DROP, dropper, admins[0], "n3") as drop,
    ):
        dropper.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            await drop
        await run(holder, "COMMIT")
    await gone(admins, schema)


async def test_drop_that_waits_at_its_origin_and_is_cancelled_is_finished(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    async with (
        held_up(connections[0], schema) as holder,
        another(connections[0], schema) as dropper,
    ):
        drop = asyncio.create_task(run(dropper, _DROP))
        await until(admins[0], "SELECT valid FROM pgherd.long_commands_here", [(False,)])
        dropper.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            await drop
        await run(holder, "COMMIT")
    await gone(admins, schema)


@pytest.mark.long
async def test_name_that_comes_to_mean_another_index_leaves_that_one_alone(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    """PostgreSQL looks the name up again when it has waited for a lock.

    By then the name is that of an index in a schema that stands first in the search_path.
    """
    first = f"{schema}_first"
    await run(connections[0], f"CREATE SCHEMA {first}")
    try:
        await run(connections[0], f"CREATE TABLE {first}.t (id int PRIMARY KEY, y text)")
        await spread(connections, 0, f"INSERT INTO {first}.t VALUES (1, 'a')")
        async with (
            another(connections[0], schema) as holder,
            another(connections[0], schema) as dropper,
        ):
            await run(holder, "BEGIN; LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
            await run(dropper, f"SET search_path = {first}, {schema}")
            drop = asyncio.create_task(failure_or_none(dropper, _DROP))
            await until(
                admins[0],
                "SELECT count(*) FROM pg_locks WHERE NOT granted"
                f" AND relation = '{schema}.t'::regclass",
                [(1,)],
            )
            with pytest.raises(psycopg.errors.ObjectInUse):
                await run(connections[1], f"CREATE UNIQUE INDEX i ON {first}.t (y)")
            await caught_up(connections)
            await run(holder, "COMMIT")
            async with in_time():
                await drop
        for admin in admins:
            await until(admin, UNDER_WAY, [(0,)])
            assert [row for row in await run(admin, INDEXES.format(first)) if not row[1]] == [], (
                "an index is of no use on this member only"
            )
    finally:
        await run(connections[0], f"DROP SCHEMA {first} CASCADE")


async def failure_or_none(connection: Connection, statement: str) -> psycopg.Error | None:
    try:
        await run(connection, statement)
    except psycopg.Error as error:
        return error
    return None


@pytest.mark.long
async def test_name_that_two_schemas_know_needs_its_schema(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0], f"CREATE SCHEMA {schema}_other; CREATE TABLE {schema}_other.i (id int)"
    )
    try:
        error = await failure_or_none(connections[0], _DROP)
        assert error is not None
        assert error.sqlstate == "0A000"
        assert error.diag.message_hint == f"DROP INDEX CONCURRENTLY {schema}.i"
        await run(connections[0], f"DROP INDEX CONCURRENTLY {schema}.i")
    finally:
        await run(connections[0], f"DROP SCHEMA {schema}_other CASCADE")
