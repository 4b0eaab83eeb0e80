"""Readers: nodes that follow the others for good, never vote and take no writes."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .ledger import INITIAL, Ledger, create_everywhere
from .localherd import LocalHerd, error_of, query
from .test_membership import herd_of, kill, voters
from .test_partitions import until_component
from .test_restart import run

_LOOKS = 40
_MANY = 30


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    """Three nodes, and two readers."""
    with herd_of(work_directory / "readers") as herd:
        herd.must("add", "--reader")
        herd.must("add", "--reader")
        yield herd


async def watch(herd: LocalHerd, ledger: Ledger, name: str) -> None:
    """Read again and again: each look is a whole state, and holds all that the one before held."""
    both = (
        f"SELECT (SELECT sum(balance) FROM {ledger.schema}.account),"
        f" (SELECT array_agg(id) FROM {ledger.schema}.ledger)"
    )
    seen: set[int] = set()
    for _ in range(_LOOKS):
        total, ids = (await asyncio.to_thread(query, herd.dsn(name), both))[0]
        assert total == ledger.accounts * INITIAL
        assert seen <= set(ids or ())
        seen = set(ids or ())
        await asyncio.sleep(0.05)


def test_it_follows_takes_no_writes_and_does_not_vote(herd: LocalHerd) -> None:
    create_everywhere(herd, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    assert query(herd.app_dsn("r1"), "TABLE t") == [(1,)]
    states = {one["name"]: one["state"] for one in herd.members()}
    assert states == dict.fromkeys(("n1", "n2", "n3"), "primary") | dict.fromkeys(
        ("r1", "r2"), "reader"
    )
    assert voters(herd).keys() == {"n1", "n2", "n3"}
    for statement in ("INSERT INTO t VALUES (2)", "CREATE TABLE u (id int PRIMARY KEY)"):
        for before in ("", "SET default_transaction_read_only = off; "):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                query(herd.app_dsn("r1"), before + statement)
    reason = query(herd.dsn("r1"), "SELECT pgherd.why_read_only()")[0][0]
    assert "it is a reader: write on a member that votes" in reason
    query(herd.app_dsn("n1"), "DROP TABLE t")


def test_drivers_that_want_to_write_pass_it_by(herd: LocalHerd) -> None:
    reads, writes = (int(conninfo_to_dict(herd.dsn(n))["port"] or 0) for n in ("r1", "n2"))
    dsn = make_conninfo(herd.app_dsn("n2"), host="127.0.0.1,127.0.0.1", port=f"{reads},{writes}")
    with psycopg.connect(dsn, target_session_attrs="read-write") as connection:
        assert connection.info.port == writes
    with psycopg.connect(dsn, target_session_attrs="read-only") as connection:
        assert connection.info.port == reads


def test_levels_of_consistency_hold_on_it(herd: LocalHerd) -> None:
    create_everywhere(herd, "CREATE TABLE levels (id int PRIMARY KEY)")
    for number in range(20):
        query(herd.app_dsn("n2"), f"INSERT INTO levels VALUES ({number})")
        with psycopg.connect(herd.app_dsn("r1"), autocommit=True) as connection:
            connection.execute("SELECT pgherd.strong()")
            row = connection.execute("SELECT max(id) FROM levels").fetchone()
            assert row == (number,)
    query(herd.app_dsn("n1"), "DROP TABLE levels")


@pytest.mark.long
async def test_what_readers_show_is_a_prefix_whoever_dies(herd: LocalHerd, ledger: Ledger) -> None:
    async with ledger.load(1, on=["n1", "n2", "n3"]):
        await ledger.commits(5, on=["n1", "n2", "n3"])
        await kill(herd, "r2")  # and its death slows nobody
        await asyncio.gather(watch(herd, ledger, "r1"), ledger.commits(30, on=["n1", "n2", "n3"]))
        victim = random.choice(["n1", "n2", "n3"])
        await kill(herd, victim)
        await run(herd, "start", "r2")
        await watch(herd, ledger, "r2")
        await run(herd, "start", victim)
        await kill(herd, "r1", process="postgres")
        await run(herd, "start", "r1")
        await ledger.commits(10, on=["n1", "n2", "n3"])
    ledger.check()
    await run(herd, "verify")


@pytest.mark.long
async def test_without_a_majority_of_the_others_it_goes_on_being_read(
    herd: LocalHerd, ledger: Ledger
) -> None:
    await kill(herd, "n1", "n2")
    await until_component(herd, "n3", "secondary")
    assert query(herd.app_dsn("r1"), f"SELECT count(*) FROM {ledger.schema}.account") == [
        (ledger.accounts,)
    ]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):  # one of three voters is no majority
        query(herd.app_dsn("n3"), f"DELETE FROM {ledger.schema}.account")
    await asyncio.gather(run(herd, "start", "n1"), run(herd, "start", "n2"))
    ledger.check()


@pytest.mark.long
async def test_it_is_promoted_under_load_and_another_one_leaves(
    herd: LocalHerd, ledger: Ledger
) -> None:
    await run(herd, "add", "up", "--reader")
    await run(herd, "add", "out", "--reader")
    async with ledger.load(1, on=["n1", "n2", "n3"]):
        await ledger.commits(5, on=["n1", "n2", "n3"])
        await run(herd, "promote", "up")
        assert voters(herd).keys() == {"n1", "n2", "n3", "up"}
        async with ledger.load(1, on=["up"]):
            await ledger.commits(10, on=["up"])
            await run(herd, "remove", "out")
            await ledger.commits(10, on=["n1", "n2", "n3", "up"])
    ledger.check()
    assert "no reader" in error_of(herd.run("promote", "up"))
    await run(herd, "remove", "up")


@pytest.mark.long
async def test_thirty_readers_follow_one_herd(work_directory: Path) -> None:
    with herd_of(work_directory / "many") as herd:
        for _ in range(_MANY):
            await run(herd, "add", "--reader")
        ledger = Ledger(herd, "many")
        ledger.create()
        async with ledger.load(1, on=["n1", "n2", "n3"]):
            await ledger.commits(30, on=["n1", "n2", "n3"])
        ledger.check()
        await run(herd, "verify")
        assert sum(one["state"] == "reader" for one in herd.members()) == _MANY
