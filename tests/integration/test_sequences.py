"""Numbers never collide across members, and nextval never waits (C12)."""

import asyncio
from pathlib import Path

import pytest

from .localherd import LocalHerd, free_port_base, query, settle, standing
from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    failure,
    run,
    same_everywhere,
    spread,
    superusers,
)

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")

_SLOTS = 8
_BEGIN_UNCLEAN = "BEGIN; SET session_replication_role = replica; TRUNCATE pgherd.clean_since"
"""In this transaction the server has not been stopped cleanly."""


async def numbers(
    connections: list[Connection], count: int, sequence: str = "s"
) -> list[list[int]]:
    """What ``count`` calls of nextval give on each member."""
    return [
        [
            n
            for (n,) in await run(
                one, f"SELECT nextval('{sequence}') FROM generate_series(1, {count})"
            )
        ]
        for one in connections
    ]


async def in_parts(connection: Connection, statement: str) -> int:
    """Have a function do all sequences; return how many locks a part has taken at most."""
    after: int | None = 0
    most = 0
    while after is not None:
        locks = "SELECT count(DISTINCT relation) FROM pg_locks WHERE pid = pg_backend_pid()"
        ((before,),) = await run(connection, locks)
        ((after, *_),) = await run(connection, statement.format(after))
        ((held,),) = await run(connection, locks)
        most = max(most, held - before)
    return most


async def test_numbers_start_where_the_user_says_and_are_dealt_round(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 1, "CREATE SEQUENCE s")
    assert await numbers(connections, 2) == [[1, 9], [2, 10], [3, 11]]


@pytest.mark.parametrize(
    "options",
    [
        "",
        "START 1000",
        "INCREMENT 10 START 5",
        "INCREMENT 7 MINVALUE -100 START -50",
        "INCREMENT -1",
        "INCREMENT -3 START -4",
        "AS smallint",
        "AS bigint START 9223372036854770000",
        "CACHE 20",
    ],
)
async def test_members_never_give_the_same_number(
    connections: list[Connection], schema: str, options: str
) -> None:
    await spread(connections, 0, f"CREATE SEQUENCE s {options}")
    given = await numbers(connections, 40)
    assert len({n for own in given for n in own}) == 3 * 40
    descending = "INCREMENT -" in options
    assert all(own == sorted(own, reverse=descending) for own in given)


async def test_alter_keeps_the_shares_apart(connections: list[Connection], schema: str) -> None:
    await spread(connections, 0, "CREATE SEQUENCE s")
    for number, statement in enumerate(
        (
            "ALTER SEQUENCE s RESTART WITH 500",
            "ALTER SEQUENCE s INCREMENT BY 5 RESTART WITH 10000",
            "ALTER SEQUENCE s START WITH 20000 RESTART",
            "ALTER SEQUENCE s MINVALUE -7 MAXVALUE 1000000 START WITH 30000 RESTART WITH 30000",
            "SELECT pgherd.setval('s', 40000)",
        )
    ):
        await spread(connections, number % 3, statement)
        given = await numbers(connections, 5)
        assert len({n for own in given for n in own}) == 15, statement
        first = min(min(own) for own in given)
        assert (500, 10000, 20000, 30000, 40000)[number] <= first, statement
    await assert_same_schema(connections, schema)


async def test_start_with_a_number_that_a_member_begins_with_is_one_everywhere(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    """A member could not tell it from its own first number of the sequence as it was."""
    await spread(connections, 0, "CREATE SEQUENCE s")
    for connection in connections:
        await run(connection, "ALTER SEQUENCE s START WITH 1")
        for start in (2, 8):
            error = await failure(connection, f"ALTER SEQUENCE s START WITH {start}")
            assert error.sqlstate == "0A000"
        await caught_up(connections)
    await run(connections[1], "ALTER SEQUENCE s START WITH 9")
    await spread(connections, 1, "ALTER SEQUENCE s START WITH 2")
    known = f"SELECT step, start FROM pgherd.sequences WHERE relid = '{schema}.s'::regclass"
    async with superusers(herd, schema) as admins:
        assert await same_everywhere(admins, known) == [(1, 2)]


async def test_increment_change_moves_past_the_numbers_in_the_table(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id serial PRIMARY KEY)")
    for connection in connections:
        await run(connection, "INSERT INTO t SELECT FROM generate_series(1, 50)")
        await caught_up(connections)
    await spread(connections, 2, "ALTER SEQUENCE t_id_seq INCREMENT BY 2")
    for connection in connections:
        await run(connection, "INSERT INTO t SELECT FROM generate_series(1, 50)")
        await caught_up(connections)
    assert await same_everywhere(connections, "SELECT count(*) FROM t") == [(300,)]


async def test_truncate_restart_identity_stays_in_the_own_share(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
    for connection in connections:
        await run(connection, "INSERT INTO t SELECT FROM generate_series(1, 10)")
        await caught_up(connections)
    await spread(connections, 1, "TRUNCATE t RESTART IDENTITY")
    for connection in connections:
        await run(connection, "INSERT INTO t SELECT FROM generate_series(1, 10)")
        await caught_up(connections)
    assert await same_everywhere(connections, "SELECT count(*), min(id) FROM t") == [(30, 1)]


async def test_concurrent_inserts_on_all_members_lose_nothing(
    connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id bigserial PRIMARY KEY, x int)")

    async def insert(connection: Connection) -> None:
        for number in range(50):
            await run(connection, f"INSERT INTO t (x) VALUES ({number})")

    await asyncio.gather(*map(insert, connections))
    assert await same_everywhere(connections, "SELECT count(*) FROM t") == [(150,)]


async def test_sequences_of_temporary_and_local_tables_are_left_alone(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[1], "CREATE TEMP SEQUENCE s")
    assert await run(connections[1], "SELECT nextval('s'), nextval('s')") == [(1, 2)]
    await run(connections[1], "CREATE TABLE t (id serial); SELECT pgherd.set_local('t')")
    await spread(connections, 1, "ALTER SEQUENCE t_id_seq RESTART")
    assert await run(connections[1], "SELECT nextval('t_id_seq'), nextval('t_id_seq')") == [(1, 2)]


async def test_c12_after_an_unclean_stop_a_sequence_goes_on_past_its_own_numbers(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id serial PRIMARY KEY, x int); CREATE SEQUENCE s")
    await run(connections[0], "INSERT INTO t (id) VALUES (2000000001)")  # of member 1, by hand
    await spread(connections, 1, "INSERT INTO t (id) VALUES (7)")
    async with superusers(herd, schema) as admins:
        assert await run(admins[0], "SELECT pgherd.sequences_after_crash(0)") == [(None,)]
        await run(admins[1], _BEGIN_UNCLEAN)
        await in_parts(admins[1], "SELECT pgherd.sequences_after_crash({})")
        moved = await run(admins[1], "SELECT last_value, is_called FROM s")
        at = (await run(admins[1], "SELECT last_value FROM t_id_seq"))[0][0]
        await run(admins[1], "ROLLBACK")
    assert moved[0][0] > 32768
    assert 7 < at < 2000000001, "another member's numbers do not count"
    assert at % _SLOTS == 2


async def test_c12_not_all_numbers_of_other_members_are_looked_at(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await spread(connections, 0, "CREATE TABLE t (id serial PRIMARY KEY)")
    await run(connections[1], "INSERT INTO t DEFAULT VALUES")
    await spread(connections, 0, "INSERT INTO t SELECT FROM generate_series(1, 30000)")
    async with superusers(herd, schema) as admins:
        await run(admins[1], _BEGIN_UNCLEAN)
        await run(admins[1], "SET LOCAL track_functions = 'pl'")
        await in_parts(admins[1], "SELECT pgherd.sequences_after_crash({})")
        ((calls,),) = await run(
            admins[1],
            "SELECT calls FROM pg_stat_xact_user_functions"
            " WHERE funcid = 'pgherd.first_own(numeric, int8)'::regprocedure",
        )
        ((at,),) = await run(admins[1], "SELECT last_value FROM t_id_seq")
        await run(admins[1], "ROLLBACK")
    assert 10000 < calls < 20000
    assert _SLOTS * 45000 < at < _SLOTS * 50000, "it is past where ten thousand of them begin"
    assert at % _SLOTS == 2


async def test_c12_a_crash_after_the_last_number_of_all(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await spread(connections, 0, "CREATE SEQUENCE s START 9223372036854770000")
    async with superusers(herd, schema) as [admin, *_]:
        for _ in range(2):
            await run(admin, _BEGIN_UNCLEAN)
            await in_parts(admin, "SELECT pgherd.sequences_after_crash({})")
            await run(admin, "COMMIT")
    error = await failure(connections[0], "SELECT nextval('s')")
    assert error.sqlstate == "2200H", "nothing is left of its share"


async def test_a_sequence_takes_a_larger_range(connections: list[Connection]) -> None:
    """As Django makes of an AutoField a BigAutoField."""
    await spread(connections, 0, "CREATE TABLE t (id serial PRIMARY KEY)")
    await spread(
        connections,
        1,
        "BEGIN; ALTER TABLE t ALTER COLUMN id TYPE bigint;"
        " ALTER SEQUENCE IF EXISTS t_id_seq AS bigint; COMMIT",
    )
    numbers = {
        row
        for connection in connections
        for row in await run(connection, "INSERT INTO t DEFAULT VALUES RETURNING id")
    }
    assert len(numbers) == len(connections)
    largest = "SELECT seqmax FROM pg_sequence WHERE seqrelid = 't_id_seq'::regclass"
    assert await same_everywhere(connections, largest) == [(2**63 - 1,)]
    error = await failure(connections[2], "ALTER SEQUENCE t_id_seq AS int")
    assert error.sqlstate == "0A000"


_MANY = 160
_ROOM = 140
"""Locks of a hundred sequences, their tables, and the catalogs."""


@pytest.mark.long
@pytest.mark.parametrize(
    "function",
    [
        "sequences_after_crash({})",
        "own_sequences({}, '{{}}')",
        "sequence_positions({})",
    ],
)
async def test_many_sequences_do_not_fill_the_table_of_locks(
    connections: list[Connection], schema: str, herd: LocalHerd, function: str
) -> None:
    columns = ", ".join(f"c{number} serial" for number in range(_MANY))
    await run(connections[0], f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
    await spread(
        connections,
        0,
        "CREATE TABLE parts (id serial, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        + "".join(
            f"CREATE TABLE p{n} PARTITION OF parts FOR VALUES FROM ({n}) TO ({n + 1});"
            for n in range(20)
        ),
    )
    async with superusers(herd, schema) as [admin, *_]:
        await run(admin, _BEGIN_UNCLEAN)
        assert await in_parts(admin, f"SELECT * FROM pgherd.{function}") < _ROOM
        await run(admin, "ROLLBACK")


@pytest.mark.long
def test_a_crash_and_a_copy_with_more_sequences_than_the_server_has_room_for_locks(
    work_directory: Path,
) -> None:
    with standing(LocalHerd(work_directory / "many", free_port_base())) as herd:
        columns = ", ".join(f"c{number} serial" for number in range(500))
        for node in herd.nodes():
            query(node.dsn, "ALTER SYSTEM SET max_locks_per_transaction = 10")
            query(node.dsn, "ALTER SYSTEM SET max_connections = 60")
        herd.must("down")
        herd.up()
        for number in range(4):
            query(herd.app_dsn("n1"), f"CREATE TABLE t{number} ({columns})")
        settle(herd)
        query(herd.app_dsn("n3"), "INSERT INTO t0 (c0) VALUES (default)")
        herd.must("kill", "n3", "--process", "postgres")
        herd.must("start", "n3")
        herd.must("rebuild", "n3")
        given = query(herd.app_dsn("n3"), "INSERT INTO t0 VALUES (default) RETURNING c0 % 8")
        assert given == [(3,)]


async def test_a_view_that_owns_a_sequence_is_not_read(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE FUNCTION seen() RETURNS int LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'run as %', current_user; END $$;"
        "CREATE VIEW w AS SELECT seen() AS id;"
        "CREATE SEQUENCE s OWNED BY w.id",
    )
    await run(connections[0], "ALTER SEQUENCE s INCREMENT BY 2")
    await assert_same_schema(connections, schema)


async def test_after_the_loss_of_a_database_numbers_go_on_far_beyond_the_last_that_is_known(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    await spread(connections, 0, "CREATE SEQUENCE s")
    known = f'{{"{schema}.s": 801}}'
    async with superusers(herd, schema) as [admin, *_]:
        for _ in range(2):  # a rebuild may do it again
            await run(
                admin, f"SELECT pgherd.resume_sequences(ARRAY['{schema}.s'::regclass], '{known}')"
            )
    assert await numbers(connections[:1], 1) == [[801 + _SLOTS * (1 + 16 * 32768)]]
