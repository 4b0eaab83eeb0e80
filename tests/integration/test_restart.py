"""Kills under load: the others go on, who comes back catches up, and nobody was told a lie."""

import asyncio

import psycopg
import pytest

from .ledger import Ledger, new_ledger
from .localherd import LocalHerd

NODES = ["n1", "n2", "n3"]


@pytest.fixture
def ledger(mortal: LocalHerd) -> Ledger:
    return new_ledger(mortal)


async def run(herd: LocalHerd, command: str, *arguments: str) -> None:
    """Run a command that has to succeed, while the clients go on."""
    await asyncio.to_thread(herd.must, command, *arguments)


async def up(herd: LocalHerd) -> None:
    done = await asyncio.to_thread(herd.up)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("process", ["sidecar", "postgres", "node"])
@pytest.mark.parametrize("role", ["proposer", "follower"])
async def test_two_go_on_without_the_third_and_it_catches_up(
    mortal: LocalHerd, ledger: Ledger, process: str, role: str
) -> None:
    proposer = mortal.members()[0]["proposer"]
    node = next(name for name in NODES if (name == proposer) == (role == "proposer"))
    others = [name for name in NODES if name != node]
    async with ledger.load(clients=3):
        await ledger.commits(50, on=NODES)
        await run(mortal, "kill", node, "--process", process)
        await ledger.commits(50, on=others)
        await run(mortal, "start", node)
        await ledger.commits(50, on=NODES)
    ledger.check()


@pytest.mark.long
async def test_a_sidecar_puts_its_sql_in_the_place_of_another_version(
    mortal: LocalHerd, ledger: Ledger
) -> None:
    """What every upgrade does: each file is run again where what it made is there already."""
    with psycopg.connect(mortal.dsn("n2"), autocommit=True) as superuser:
        superuser.execute("UPDATE pgherd.installed SET fingerprint = 'another'")
    async with ledger.load(clients=3):
        await run(mortal, "kill", "n2", "--process", "sidecar")
        await run(mortal, "start", "n2")
        await ledger.commits(50, on=NODES)
    ledger.check()
    with psycopg.connect(mortal.dsn("n2"), autocommit=True) as superuser:
        rows = superuser.execute("SELECT fingerprint FROM pgherd.installed").fetchall()
    assert rows != [("another",)]


@pytest.mark.long
async def test_an_idle_transaction_keeps_no_sidecar_from_its_sql(
    mortal: LocalHerd, ledger: Ledger
) -> None:
    """Its session is ended: what it has locked is to be made anew, and all writes would wait."""
    insert = f"INSERT INTO {ledger.schema}.ledger VALUES (%s, 1, 1, 0, 'n1', '3')".encode()
    with (
        psycopg.connect(mortal.app_dsn("n1")) as idle,
        psycopg.connect(mortal.dsn("n1"), autocommit=True) as superuser,
    ):
        idle.execute(insert, (-1,))
        superuser.execute("UPDATE pgherd.installed SET fingerprint = 'another'")
        await run(mortal, "kill", "n1", "--process", "sidecar")
        await run(mortal, "start", "n1")
        with pytest.raises(psycopg.OperationalError):
            idle.execute(insert, (-2,))
    async with await psycopg.AsyncConnection.connect(
        mortal.app_dsn("n1"), autocommit=True
    ) as connection:
        await connection.execute(insert, (-3,))
    ledger.told_committed.add(-3)
    ledger.told_aborted |= {-1, -2}
    ledger.check()


async def test_everything_killed_at_once_comes_up_with_every_acknowledged_commit(
    mortal: LocalHerd, ledger: Ledger
) -> None:
    async with ledger.load(clients=3):
        await ledger.commits(100, on=NODES)
        await asyncio.gather(*(run(mortal, "kill", n, "--process", "node") for n in NODES))
        await up(mortal)
        await ledger.commits(50, on=NODES)
    ledger.check()


@pytest.mark.long
async def test_down_and_up_under_load_loses_nothing(mortal: LocalHerd, ledger: Ledger) -> None:
    async with ledger.load(clients=3):
        await ledger.commits(100, on=NODES)
        await run(mortal, "down")
        await up(mortal)
        await ledger.commits(50, on=NODES)
    ledger.check()


@pytest.mark.long
@pytest.mark.parametrize(
    "process", [*(pytest.param(p, marks=pytest.mark.long) for p in ("sidecar", "postgres")), "node"]
)
async def test_killed_again_while_it_catches_up(
    mortal: LocalHerd, ledger: Ledger, process: str
) -> None:
    async with ledger.load(clients=3):
        await run(mortal, "kill", "n3", "--process", "node")
        await ledger.commits(500, on=["n1"])
        starting = asyncio.create_task(asyncio.to_thread(mortal.run, "start", "n3"))
        await ledger.commits(20, on=["n1"])  # some moment of the start
        await run(mortal, "kill", "n3", "--process", process)
        await starting
        await run(mortal, "start", "n3")
        await ledger.commits(50, on=NODES)
    ledger.check()


@pytest.mark.parametrize(
    "level", ["READ COMMITTED", pytest.param("REPEATABLE READ", marks=pytest.mark.long)]
)
async def test_a_transaction_that_outlives_the_sidecar_commits_or_is_told_40001(
    mortal: LocalHerd, ledger: Ledger, level: str
) -> None:
    number = -1
    async with await psycopg.AsyncConnection.connect(
        mortal.app_dsn("n1"), autocommit=True
    ) as connection:
        await connection.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        await connection.execute(
            f"INSERT INTO {ledger.schema}.ledger"
            f" VALUES ({number}, 1, 1, 0, 'n1', pg_current_xact_id())".encode()
        )
        await run(mortal, "kill", "n1", "--process", "sidecar")
        await run(mortal, "start", "n1")
        try:
            await connection.execute("COMMIT")
        except psycopg.errors.SerializationFailure:
            ledger.told_aborted.add(number)
        else:
            ledger.told_committed.add(number)
    ledger.check()


async def test_a_commit_without_a_sidecar_fails_and_works_again_when_it_is_back(
    mortal: LocalHerd, ledger: Ledger
) -> None:
    insert = f"INSERT INTO {ledger.schema}.ledger VALUES (%s, 1, 1, 0, 'n1', '3')".encode()
    async with await psycopg.AsyncConnection.connect(
        mortal.app_dsn("n1"), autocommit=True
    ) as connection:
        await connection.execute(insert, (-1,))
        await connection.execute("BEGIN")  # later the server says by itself that it takes no writes
        await connection.execute(insert, (-2,))
        await run(mortal, "kill", "n1", "--process", "sidecar")
        # The connection to the sidecar is dead, but nobody can know since when.
        with pytest.raises(psycopg.OperationalError) as unknown:
            await connection.execute("COMMIT")
        assert unknown.value.sqlstate == "08007"
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await connection.execute(insert, (-3,))
        await run(mortal, "start", "n1")
        await connection.execute(insert, (-4,))
    ledger.told_committed |= {-1, -4}
    ledger.told_aborted |= {-2, -3}
    ledger.check()
