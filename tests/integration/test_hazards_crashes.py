"""Hazards of docs/hazards.md for which a server has to die or to refuse, on a herd of their own.

The first of them are what Jepsen has found in MariaDB Galera Cluster 12.1.2 in March 2026: commits
lost when nodes crash close together, and when crashes meet partitions; updates lost without any
fault. Its stale reads are ``h6`` in test_hazards.py.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from faults.processes import cut
from patience import in_time, wait_until_async
from workloads import bodies

from .localherd import LocalHerd, home, query
from .members import assert_same_schema, run, superusers
from .test_hazards import connected
from .test_histories import Run

_NODES = ["n1", "n2", "n3"]
_ROUNDS = 2
_WAITS_FOR_TABLE = """SELECT count(*) FROM pg_locks
 WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = to_regclass(%s)"""


@pytest.fixture
def schema(mortal: LocalHerd) -> str:
    """A schema with a small table ``t`` on all nodes."""
    name = f"z_{random.getrandbits(40):x}"
    ddl = f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY, v int NOT NULL);"
    query(mortal.app_dsn("n1"), f"{ddl} INSERT INTO {name}.t VALUES (1, 1)")
    mortal.must("verify")
    return name


async def kill(run: Run, node: str) -> None:
    """Kill a node and leave it dead."""
    await asyncio.to_thread(run.herd.must, "kill", node, "--process", "node")
    run.recorder.crashed(node)


@pytest.mark.long
async def test_jepsen_galera_2026_no_commit_is_lost_when_nodes_crash_close_together(
    mortal: LocalHerd,
) -> None:
    run = Run(mortal, bodies.LIST_APPEND)
    chance = random.Random(run.seed)
    async with run.load() as recorder:
        for _ in range(_ROUNDS):
            await recorder.acknowledged(20, on=_NODES)
            for node in chance.sample(_NODES, 3):
                await kill(run, node)
                await asyncio.sleep(chance.choice((0, 0.01, 0.3, 2)))
            for node in chance.sample(_NODES, 3):  # one by one: any two of them are a majority
                await asyncio.to_thread(mortal.must, "start", node)
        await recorder.acknowledged(20, on=_NODES)
    await run.judged()


@pytest.mark.long
async def test_jepsen_galera_2026_no_commit_is_lost_when_crashes_meet_partitions(
    mortal: LocalHerd,
) -> None:
    run = Run(mortal, bodies.LIST_APPEND)
    chance = random.Random(run.seed)
    async with run.load() as recorder:
        for _ in range(_ROUNDS):
            await recorder.acknowledged(20, on=_NODES)
            alone, *others = chance.sample(_NODES, 3)
            links = {alone: others} | {other: [alone] for other in others}
            async with cut(mortal, links):
                await recorder.acknowledged(10, on=others)
                for node in chance.sample(_NODES, 2):
                    await kill(run, node)
            for node in _NODES:
                await asyncio.to_thread(mortal.must, "start", node)
        await recorder.acknowledged(20, on=_NODES)
    await run.judged()


@pytest.mark.parametrize(
    "level", [pytest.param("READ COMMITTED", marks=pytest.mark.long), "REPEATABLE READ"]
)
async def test_jepsen_galera_2026_no_update_is_lost_without_any_fault(
    mortal: LocalHerd, schema: str, level: str
) -> None:
    """Increments of one row on all nodes: by what was read, or by what is there."""
    added = 0

    async def count(node: str) -> None:
        nonlocal added
        for _ in range(40):
            with contextlib.suppress(psycopg.OperationalError):  # 40001, and lost sessions
                async with connected(mortal.app_dsn(node)) as connection:
                    await connection.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
                    cursor = await connection.execute(f"SELECT v FROM {schema}.t".encode())
                    (seen,) = await cursor.fetchone() or (0,)
                    new = "v + 1" if level == "READ COMMITTED" else str(seen + 1)
                    await connection.execute(f"UPDATE {schema}.t SET v = {new}".encode())
                    await connection.execute("COMMIT")
                    added += 1

    await asyncio.gather(*(count(node) for node in _NODES))
    mortal.must("verify")
    assert added > 40
    assert query(mortal.app_dsn("n2"), f"SELECT v FROM {schema}.t") == [(1 + added,)]


@pytest.mark.family(every=3)
@pytest.mark.parametrize("process", ["sidecar", "postgres", "node"])
async def test_h21_who_dies_while_it_executes_ddl_ends_with_the_same_catalog(
    mortal: LocalHerd, schema: str, process: str
) -> None:
    async with (
        connected(mortal.app_dsn("n1")) as origin,
        connected(mortal.dsn("n2")) as watch,
    ):
        reader = await psycopg.AsyncConnection.connect(mortal.app_dsn("n2"))
        await reader.execute(f"SELECT FROM {schema}.t".encode())  # DDL has to wait for its end
        await run(origin, "SET pgherd.ddl_wait = 0")
        ddl = f"ALTER TABLE {schema}.t ADD x int DEFAULT 5; CREATE INDEX ON {schema}.t (x)"
        await run(origin, ddl)
        async with in_time():
            while True:
                cursor = await watch.execute(_WAITS_FOR_TABLE, (f"{schema}.t",))
                if await cursor.fetchone() != (0,):
                    break
        await asyncio.to_thread(mortal.must, "kill", "n2", "--process", process)
        await wait_until_async(  # it may have been the proposer
            lambda: run(origin, f"UPDATE {schema}.t SET x = 6"),
            lambda _: True,
            despite=(psycopg.errors.ReadOnlySqlTransaction,),
        )
        await asyncio.to_thread(mortal.must, "start", "n2")
        with contextlib.suppress(psycopg.OperationalError):
            await reader.close()
    mortal.must("verify")
    async with superusers(mortal, schema) as connections:
        assert "x integer DEFAULT 5" in await assert_same_schema(connections, schema)


@contextlib.contextmanager
def unusable(directory: Path) -> Iterator[None]:
    """Nobody but root can open what is in a directory."""
    mode = directory.stat().st_mode
    directory.chmod(0)
    try:
        yield
    finally:
        directory.chmod(mode)


async def test_h16_a_commit_that_the_server_refuses_after_the_verdict_is_committed(
    mortal: LocalHerd, schema: str
) -> None:
    """NOTIFY is written after our hook has been told COMMIT, and here it can't be written."""
    async with connected(mortal.app_dsn("n2")) as connection:
        await connection.execute("BEGIN")
        await connection.execute(f"INSERT INTO {schema}.t VALUES (2, 2)".encode())
        cursor = await connection.execute("SELECT pgherd.current_token()")
        (token,) = await cursor.fetchone() or ("",)
        await connection.execute(
            "SELECT pg_notify('news', rpad(g::text, 7900, 'x')) FROM generate_series(1, 50) g"
        )
        with unusable(home(mortal) / "n2" / "pgdata" / "pg_notify"):
            with pytest.raises(psycopg.Error):
                await connection.execute("COMMIT")
            mortal.must("verify")
    rows = [query(mortal.app_dsn(node), f"SELECT id FROM {schema}.t ORDER BY 1") for node in _NODES]
    assert rows == [[(1,), (2,)]] * 3
    for node in _NODES:
        ((status,),) = query(mortal.app_dsn(node), f"SELECT pgherd.transaction_status('{token}')")
        assert status.startswith("committed ")
    assert {member["state"] for member in mortal.members()} == {"primary"}
