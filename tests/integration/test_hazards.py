"""Hazards of docs/hazards.md that no other module tests, on a herd of their own."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any, Protocol

import psycopg
import pytest
from patience import in_time

from .ledger import create_everywhere
from .localherd import LocalHerd, home, query, sidecar_pid, stopped

Connection = psycopg.AsyncConnection[Any]

_ROUNDS = 250  # statements of each client
_NODES = ["n1", "n2", "n3"]

UNIQUE_TABLE = """
CREATE TABLE {0}.u (
    id int PRIMARY KEY, plain int UNIQUE, deferred int UNIQUE DEFERRABLE INITIALLY DEFERRED,
    scaled numeric UNIQUE, name text, live bool NOT NULL, slot int, during int4range,
    EXCLUDE USING gist (during WITH &&));
CREATE UNIQUE INDEX ON {0}.u (lower(name));
CREATE UNIQUE INDEX ON {0}.u (slot) WHERE live;
CREATE TABLE {0}.nothing (u int UNIQUE NULLS NOT DISTINCT, id int PRIMARY KEY)"""
#: Whoever finds a row here has found two that exclude each other. Without indexes: they might lie.
UNIQUE_CLASHES = """
SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
SELECT a.id, b.id FROM {0}.u a JOIN {0}.u b ON a.id < b.id
 WHERE a.plain = b.plain OR a.deferred = b.deferred OR a.scaled = b.scaled
    OR lower(a.name) = lower(b.name) OR (a.live AND b.live AND a.slot = b.slot)
    OR a.during && b.during
 UNION ALL
SELECT a.id, b.id FROM {0}.nothing a JOIN {0}.nothing b ON a.id < b.id
 WHERE a.u IS NOT DISTINCT FROM b.u"""

FAMILY_TABLES = """
CREATE TABLE {0}.parent (id int PRIMARY KEY);
CREATE TABLE {0}.cascaded (id int PRIMARY KEY,
    parent int NOT NULL REFERENCES {0}.parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE {0}.kept (id int PRIMARY KEY, parent int REFERENCES {0}.parent ON DELETE SET NULL);
CREATE TABLE {0}.grandchild (id int PRIMARY KEY,
    parent int NOT NULL REFERENCES {0}.cascaded ON DELETE CASCADE);
CREATE TABLE {0}.staff (id int PRIMARY KEY, parent int REFERENCES {0}.staff ON DELETE CASCADE)"""
ORPHANS = " UNION ALL ".join(
    f"SELECT '{child}', c.id FROM {{0}}.{child} c WHERE c.parent IS NOT NULL"
    f" AND NOT EXISTS (SELECT FROM {{0}}.{parent} p WHERE p.id = c.parent)"
    for child, parent in (
        ("cascaded", "parent"),
        ("kept", "parent"),
        ("grandchild", "cascaded"),
        ("staff", "staff"),
    )
)

#: What races for keys may hear; 57P01, 57014, None: it was in the way of another node's commit.
_EXPECTED = {"40001", "40P01", "23505", "23503", "23P01", "57014", "57P01", None}


@pytest.fixture
def schema(mortal: LocalHerd) -> str:
    """A schema with an empty table ``t``, on the node it was made on and soon on all."""
    name = f"z_{random.getrandbits(40):x}"
    ddl = f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY, v int NOT NULL)"
    create_everywhere(mortal, ddl)
    return name


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """A connection to a server that may still be starting."""
    async with in_time():
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
                break
            except psycopg.OperationalError:
                await asyncio.sleep(0.05)
    async with connection:
        yield connection


async def tokens(connection: Connection, number: int) -> list[str]:
    """The tokens of transactions, as far as the node gives any."""
    given = []
    for _ in range(number):
        with contextlib.suppress(psycopg.errors.ReadOnlySqlTransaction):
            cursor = await connection.execute("SELECT pgherd.current_token()")
            given += [token for (token,) in await cursor.fetchall()]
    return given


async def test_h19_no_token_names_two_transactions_when_xids_come_again_after_a_crash(
    mortal: LocalHerd,
) -> None:
    """The server is back with fewer xids than it had given; its sidecar has not noticed yet."""
    member = mortal.member("n2")
    query(member["dsn"], "ALTER SYSTEM SET wal_writer_delay = '10s'")
    query(member["dsn"], "SELECT pg_reload_conf()")
    with stopped(sidecar_pid(mortal, "n2")):
        async with connected(member["app_dsn"]) as connection:
            given = await tokens(connection, 300)
        assert len(given) == 300
        await asyncio.to_thread(mortal.must, "kill", "n2", "--process", "postgres")
        starting = asyncio.create_task(asyncio.to_thread(mortal.must, "start", "n2"))
        async with connected(member["app_dsn"]) as connection:
            given += await tokens(connection, 300)
    await starting
    async with connected(member["app_dsn"]) as connection, in_time():
        while len(given) < 600:  # the new incarnation may not have begun
            given += await tokens(connection, 50)
    query(member["dsn"], "ALTER SYSTEM RESET wal_writer_delay")
    query(member["dsn"], "SELECT pg_reload_conf()")
    assert len(set(given)) == len(given)


async def test_h6_who_writes_on_a_node_sees_there_what_was_acknowledged_anywhere(
    mortal: LocalHerd, schema: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(connected(mortal.member(name)["app_dsn"]))
            for name in _NODES
        ]
        insert = f"INSERT INTO {schema}.t VALUES (%s, 0)".encode()
        for number in range(150):
            one, other = connections[number % 3], connections[(number + 1) % 3]
            await one.execute(insert, (number,))
            await other.execute(insert, (-1 - number,))
            cursor = await other.execute(
                f"SELECT count(*) FROM {schema}.t WHERE id = {number}".encode()
            )
            assert await cursor.fetchone() == (1,)


@pytest.mark.long
async def test_h28_a_node_whose_machine_sorts_otherwise_than_its_indexes_says_so(
    mortal: LocalHerd, schema: str
) -> None:
    """As after a copy to a machine with other libraries."""
    log = home(mortal) / "n3" / "sidecar.log"
    ddl = f'CREATE TABLE {schema}.sorted (t text COLLATE "en-x-icu" PRIMARY KEY)'
    create_everywhere(mortal, ddl)
    assert "collations_stale" not in log.read_text()
    change = "UPDATE pg_collation SET collversion = {} WHERE collname = 'en-x-icu'"
    query(mortal.dsn("n3"), change.format("'0'"))
    mortal.must("kill", "n3", "--process", "sidecar")
    mortal.must("start", "n3")
    assert '"collations":["en-x-icu"]' in log.read_text().replace(" ", "")
    query(mortal.dsn("n3"), change.format("pg_collation_actual_version(oid)"))
    assert query(mortal.dsn("n3"), "SELECT pgherd.stale_collations()") == [(None,)]


class Statements(Protocol):
    """Makes the statements of one transaction."""

    def __call__(self, schema: str, chance: random.Random, number: int) -> list[str]: ...


async def storm(herd: LocalHerd, schema: str, statements: Statements) -> None:
    """Race for the same few keys from all nodes; then the nodes are equal and none has stopped."""
    numbers = itertools.count(1)
    committed = 0

    async def client(dsn: str, chance: random.Random) -> None:
        nonlocal committed
        rounds = _ROUNDS
        while rounds:
            async with connected(dsn) as connection:
                with contextlib.suppress(psycopg.OperationalError):
                    while rounds and not connection.closed:
                        rounds -= 1
                        committed += await race(
                            connection, statements(schema, chance, next(numbers))
                        )

    dsns = [node.app_dsn for node in herd.nodes()]
    async with asyncio.TaskGroup() as group:
        for dsn in dsns:
            group.create_task(client(dsn, random.Random(random.getrandbits(64))))
    assert committed > _ROUNDS // 2  # of three times as many
    herd.must("verify")
    assert {member["state"] for member in herd.members()} == {"primary"}


async def race(connection: Connection, statements: list[str]) -> bool:
    """One transaction, which may lose; return whether it committed."""
    try:
        async with connection.transaction():
            for statement in statements:
                await connection.execute(statement.encode())
    except psycopg.Error as error:
        if error.sqlstate not in _EXPECTED:
            raise AssertionError(f"{error.sqlstate}: {error}") from error
        return False
    return True


def unique_statements(schema: str, chance: random.Random, number: int) -> list[str]:
    """Insert, change, swap, give away and delete rows under every kind of unique key."""
    a, b, v, w = (chance.randint(1, 12) for _ in range(4))
    name = chance.choice(("ab", "AB", "aB", "c", "C"))
    row = f"({a}, {v}, {w}, {v}.{'0' * chance.randint(0, 2)}, '{name}', {a % 2 == 0}, {v}, NULL)"
    choices = [
        [f"INSERT INTO {schema}.u VALUES {row}"],
        [f"INSERT INTO {schema}.u VALUES {row} ON CONFLICT (plain) DO NOTHING"],
        [f"UPDATE {schema}.u SET plain = {v}, scaled = {w} WHERE id = {a}"],
        [f"UPDATE {schema}.u SET during = int4range({v}, {v + w}) WHERE id = {a}"],
        [f"UPDATE {schema}.u SET live = NOT live, slot = {v} WHERE id = {a}"],
        [f"UPDATE {schema}.u SET name = '{name}' WHERE id = {a}"],
        [
            f"UPDATE {schema}.u SET deferred = o.deferred FROM {schema}.u o"
            f" WHERE (u.id, o.id) IN (({a}, {b}), ({b}, {a}))"
        ],
        [f"DELETE FROM {schema}.u WHERE id = {a}", f"INSERT INTO {schema}.u VALUES {row}"],
        [f"DELETE FROM {schema}.u WHERE plain = {v}"],
        [f"UPDATE {schema}.u SET id = {b} WHERE id = {a}"],
        [f"DELETE FROM {schema}.nothing WHERE u IS NOT DISTINCT FROM NULL"],
        [f"INSERT INTO {schema}.nothing VALUES ({chance.choice(('NULL', '1'))}, {number})"],
    ]
    return chance.choice(choices)


def family_statements(schema: str, chance: random.Random, number: int) -> list[str]:
    """Make and delete parents and children, with everything that cascades."""
    a, b = chance.randint(1, 6), chance.randint(1, 6)
    child = chance.choice(("cascaded", "kept"))
    return chance.choice(
        [
            [f"INSERT INTO {schema}.parent VALUES ({a}) ON CONFLICT DO NOTHING"],
            [f"INSERT INTO {schema}.{child} VALUES ({number}, {a})"],
            [
                f"INSERT INTO {schema}.grandchild SELECT {number}, id FROM {schema}.cascaded"
                f" ORDER BY id DESC LIMIT 1"
            ],
            [f"DELETE FROM {schema}.parent WHERE id = {a}"],
            [f"UPDATE {schema}.parent SET id = {b} WHERE id = {a}"],
            [f"UPDATE {schema}.{child} SET parent = {b} WHERE parent = {a}"],
            [f"INSERT INTO {schema}.staff VALUES ({a}, NULL) ON CONFLICT DO NOTHING"],
            [f"INSERT INTO {schema}.staff VALUES ({10 + number}, {a})"],
            [f"DELETE FROM {schema}.staff WHERE id = {a}"],
        ]
    )


@pytest.mark.parametrize(
    ("ddl", "statements", "clashes"),
    [
        pytest.param(UNIQUE_TABLE, unique_statements, UNIQUE_CLASHES, id="h7_unique_keys"),
        pytest.param(FAMILY_TABLES, family_statements, ORPHANS, id="h9_foreign_keys"),
    ],
)
async def test_no_race_for_keys_breaks_a_constraint_or_a_node(
    mortal: LocalHerd, schema: str, ddl: str, statements: Statements, clashes: str
) -> None:
    create_everywhere(mortal, ddl.format(schema))
    await storm(mortal, schema, statements)
    for node in mortal.nodes():
        with psycopg.connect(node.dsn, autocommit=True) as connection:
            cursor = connection.execute(clashes.format(schema).encode())
            while cursor.nextset():
                pass
            assert cursor.fetchall() == []
