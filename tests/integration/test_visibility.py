"""What readers see: on every node the same order, at every moment a prefix of it."""

import asyncio
import contextlib
import itertools
import random
from typing import Any

import psycopg
import pytest

from .ledger import INITIAL, Ledger, create_everywhere
from .localherd import LocalHerd, query
from .members import Connection, connected

_SERIALIZATION = psycopg.errors.SerializationFailure


def gids(ledger: Ledger) -> dict[int, int]:
    """The place in the total order of each transaction of the ledger."""
    places: dict[tuple[str, int], int] = {}
    nodes = ledger.herd.nodes()
    for node in nodes:
        links = query(node.dsn, "SELECT xid::text::int8, gid FROM pgherd.applied")
        places |= {(node.name, xid): gid for xid, gid in links if xid is not None}
    rows = query(nodes[0].dsn, f"SELECT id, node, xid::text::int8 FROM {ledger.schema}.ledger")
    return {number: places[node, xid] for number, node, xid in rows}


async def snapshots(
    connection: Connection, ledger: Ledger, stop: asyncio.Event
) -> list[tuple[set[int], int]]:
    """Transactions and sum of balances in read-only transactions, one after the other."""
    seen = []
    while not stop.is_set():
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        total = await value(connection, f"SELECT sum(balance) FROM {ledger.schema}.account")
        ids = await value(
            connection, f"SELECT coalesce(array_agg(id), '{{}}') FROM {ledger.schema}.ledger"
        )
        await connection.execute("COMMIT")
        seen.append((set(ids), total))
    return seen


async def value(connection: Connection, statement: str) -> Any:
    """The first column of the one row."""
    cursor = await connection.execute(statement.encode())
    row = await cursor.fetchone()
    assert row is not None
    return row[0]


@pytest.mark.long
async def test_every_read_only_transaction_sees_a_prefix_of_the_total_order(
    herd: LocalHerd, ledger: Ledger
) -> None:
    stop = asyncio.Event()
    async with connected(herd) as connections:
        readers = [asyncio.ensure_future(snapshots(c, ledger, stop)) for c in connections]
        async with ledger.load(clients=4):
            await ledger.commits(1500)
        stop.set()
        seen = [snapshot for reader in readers for snapshot in await reader]
    ledger.check()
    place = gids(ledger)
    order = sorted(place, key=place.__getitem__)
    assert len({len(ids) for ids, _ in seen}) > 20
    for ids, total in seen:
        assert total == ledger.accounts * INITIAL
        assert ids == set(order[: len(ids)])


async def count_up(connection: Connection, counter: str, rounds: int) -> None:
    """Increment a counter of one row ``rounds`` times."""
    statement = f"UPDATE {counter} SET n = n + 1".encode()
    done = 0
    while done < rounds:
        with contextlib.suppress(_SERIALIZATION):
            await connection.execute(statement)
            done += 1


async def pairs(connection: Connection, schema: str, stop: asyncio.Event) -> set[tuple[int, int]]:
    """All states of the two counters that one reader sees, and that they never go back."""
    seen = set()
    last = (0, 0)
    while not stop.is_set():
        cursor = await connection.execute(f"SELECT a.n, b.n FROM {schema}.a, {schema}.b".encode())
        pair = await cursor.fetchone()
        assert pair is not None
        assert pair[0] >= last[0] and pair[1] >= last[1]
        last = (pair[0], pair[1])
        seen.add(last)
    return seen


@pytest.mark.long
async def test_no_two_readers_see_two_writers_in_different_order(herd: LocalHerd) -> None:
    """Long fork: one sees a's change without b's, another b's without a's."""
    schema = f"f_{random.getrandbits(40):x}"
    create_everywhere(
        herd,
        f"CREATE SCHEMA {schema};"
        f"CREATE TABLE {schema}.a (id int PRIMARY KEY, n int NOT NULL);"
        f"CREATE TABLE {schema}.b (id int PRIMARY KEY, n int NOT NULL);"
        f"INSERT INTO {schema}.a VALUES (1, 0); INSERT INTO {schema}.b VALUES (1, 0)",
    )
    stop = asyncio.Event()
    async with connected(herd) as writers, connected(herd) as readers:
        watching = [asyncio.ensure_future(pairs(c, schema, stop)) for c in readers]
        await asyncio.gather(
            count_up(writers[0], f"{schema}.a", 1500), count_up(writers[1], f"{schema}.b", 1500)
        )
        stop.set()
        seen = set.union(*[await task for task in watching])
    query(herd.nodes()[0].app_dsn, f"DROP SCHEMA {schema} CASCADE")
    assert len(seen) > 500
    ordered = sorted(seen)
    assert all(one[1] <= other[1] for one, other in itertools.pairwise(ordered))


@pytest.mark.long
async def test_what_was_acknowledged_is_seen_at_once_by_others_on_the_node(
    herd: LocalHerd, ledger: Ledger
) -> None:
    own = f"{ledger.schema}.own"
    create_everywhere(herd, f"CREATE TABLE {own} (id int PRIMARY KEY)")
    async with connected(herd) as writers, connected(herd) as readers, ledger.load(clients=2):
        for number in range(300):
            node = number % len(writers)
            await writers[node].execute(f"INSERT INTO {own} VALUES ({number})".encode())
            seen = await value(readers[node], f"SELECT max(id) FROM {own}")
            assert seen == number
