"""Acknowledged means held by databases, too: when one would stay the only one, writes stop.

The divergences are made by hand: a row that two members have lost.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until_async

from .localherd import LocalHerd, error_of, free_port_base, query, standing
from .test_recovery import rebuilds, rebuilt
from .test_restart import run

NODES = ["n1", "n2", "n3"]
_BY_HAND = "?options=-cdefault_transaction_read_only%3Doff"
"""Sessions of a member that takes no writes begin read-only, also those of superusers."""


@pytest.fixture(scope="module")
def worn(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd for these tests only."""
    with standing(LocalHerd(work_directory / "worn", free_port_base())) as herd:
        yield herd


@pytest.fixture(scope="module")
def careful(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd that stops writes at once."""
    herd = LocalHerd(work_directory / "careful", free_port_base())
    with standing(herd, "--on-divergence", "pause"):
        yield herd


def spoil(herd: LocalHerd, *nodes: str) -> str:
    """Have nodes lose a row, and n1 change it; return the table."""
    table = f"b_{random.getrandbits(40):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {table} (id int PRIMARY KEY, v int);"
        f"INSERT INTO {table} VALUES (1, 1), (2, 2)",
    )
    herd.must("verify")
    for node in nodes:
        query(
            herd.dsn(node),
            f"SET session_replication_role = replica; DELETE FROM {table} WHERE id = 1",
        )
    query(herd.app_dsn("n1"), f"UPDATE {table} SET v = 3")
    return table


async def reached(what: str, so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    await wait_until_async(lambda: asyncio.to_thread(so), told=lambda: what)


def all_primary(herd: LocalHerd) -> bool:
    return all(member["state"] == "primary" for member in herd.members())


def _has_three(herd: LocalHerd, node: str, table: str) -> bool:
    return len(rows(herd, node, table)) == 3


def rows(herd: LocalHerd, node: str, table: str) -> list[Any]:
    return query(herd.dsn(node), f"SELECT id, v FROM {table} ORDER BY id")


async def held(herd: LocalHerd) -> int:
    """Wait until the herd is held; return the GID at which two could not go on."""
    await reached("held", lambda: herd.summary()["held_since"] is not None)
    await reached(
        "stopped",
        lambda: [herd.member(node)["state"] for node in ("n2", "n3")] == ["diverged"] * 2,
    )
    return int(herd.summary()["held_gid"])


def refused(herd: LocalHerd, statement: str) -> psycopg.errors.ReadOnlySqlTransaction:
    """Have a write refused with the reason, which who asks for it hears; return the error."""
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
        query(herd.app_dsn("n1") + _BY_HAND, statement)
    return caught.value


async def written(herd: LocalHerd, node: str, statement: str) -> None:
    """Write as soon as the node does: it learns of the release before its server is told."""

    def so() -> bool:
        try:
            query(herd.app_dsn(node), statement)
        except psycopg.errors.ReadOnlySqlTransaction:
            return False
        return True

    await reached("written", so)


@pytest.mark.long
@pytest.mark.expects_trouble("DivergedError", reason="rows of some nodes are deleted by hand")
@pytest.mark.expects_trouble("SkippedError", reason="an entry that one has applied is skipped")
async def test_the_second_time_the_herd_is_held_until_an_administrator_chooses(
    worn: LocalHerd,
) -> None:
    before = {node: rebuilds(worn, node) for node in NODES}
    table = spoil(worn, "n2", "n3")
    for value in range(10, 20):  # the others are being rebuilt from n1: writes go on
        query(worn.app_dsn("n1"), f"INSERT INTO {table} VALUES ({value}, 0)")
    for node in ("n2", "n3"):
        await rebuilt(worn, node, before[node])
    await reached("all primary", lambda: all_primary(worn))
    assert worn.summary()["held"] is None

    # The same cause again: one database would stay the only one.
    table = spoil(worn, "n2", "n3")
    gid = await held(worn)
    error = refused(worn, f"INSERT INTO {table} VALUES (4, 4)")
    assert f"only n1 holds what follows GID {gid - 1}" in str(error)
    assert f"`pgherd skip {gid}`" in str(error)
    assert error.diag.message_hint is not None
    assert "administrator" in error.diag.message_hint
    assert worn.member("n1")["state"] == "secondary"
    assert f"no writes since GID {worn.summary()['held_since']}" in worn.must("status")
    assert {node: rebuilds(worn, node) - before[node] for node in NODES} == {
        "n1": 0,
        "n2": 1,
        "n3": 1,
    }

    # The hold is of the log, not of the processes.
    for node in ("n1", "n2"):
        await run(worn, "kill", node, "--process", "sidecar")
    since = worn.summary()["held_since"]  # n3 tells
    assert since is not None
    worn.run("start", "n1", "--timeout", "5")
    worn.run("start", "n2", "--timeout", "5")
    await reached("n1 caught up", lambda: worn.member("n1")["state"] == "secondary")
    await reached("n2 stopped", lambda: worn.member("n2")["state"] == "diverged")
    assert worn.summary()["held_since"] == since
    refused(worn, f"INSERT INTO {table} VALUES (4, 4)")

    # What nobody has stopped at is not skipped, and nothing is without consent.
    assert "no database has stopped at GID 1" in error_of(worn.top("skip", "1", "--yes"))
    asked = worn.top("skip", str(gid))
    assert "nothing has been done" in asked.stderr
    assert f"the transaction at GID {gid}, which was acknowledged, is lost" in asked.stderr
    assert worn.summary()["held_since"] == since

    # Skipped: those who stopped go on with their own databases, the origin gets a copy.
    done = worn.top("skip", str(gid), "--yes")
    assert done.returncode == 0, done.stderr
    await rebuilt(worn, "n1", before["n1"])
    await reached("all primary", lambda: all_primary(worn))
    assert {node: rebuilds(worn, node) - before[node] for node in NODES} == {
        "n1": 1,
        "n2": 1,
        "n3": 1,
    }
    await written(worn, "n1", f"INSERT INTO {table} VALUES (5, 5)")
    await written(worn, "n2", f"INSERT INTO {table} VALUES (6, 6)")
    for node in NODES:
        await reached("applied", partial(_has_three, worn, node, table))
        assert rows(worn, node, table) == [(2, 2), (5, 5), (6, 6)]
    worn.must("verify")
    again = worn.top("skip", str(gid), "--yes")  # is done already
    assert again.returncode == 0, again.stderr

    # Once more, and the other choice: one is rebuilt, and the herd takes writes again.
    table = spoil(worn, "n2", "n3")
    again_gid = await held(worn)
    assert again_gid > gid
    await run(worn, "rebuild", "n2")
    await reached("released", lambda: worn.summary()["held"] is None)
    await written(worn, "n1", f"INSERT INTO {table} VALUES (5, 5)")
    await reached("all primary", lambda: all_primary(worn))  # n3 by itself
    for node in NODES:
        await reached("applied", partial(_has_three, worn, node, table))
        assert rows(worn, node, table) == [(1, 3), (2, 3), (5, 5)]
    worn.must("verify")


@pytest.mark.long
@pytest.mark.expects_trouble("DivergedError", reason="rows of some nodes are deleted by hand")
async def test_pause_stops_writes_the_first_time(careful: LocalHerd) -> None:
    before = {node: rebuilds(careful, node) for node in NODES}
    table = spoil(careful, "n3")  # two hold it: nothing stops, but for n3
    query(careful.app_dsn("n1"), f"INSERT INTO {table} VALUES (4, 4)")
    await rebuilt(careful, "n3", before["n3"])
    table = spoil(careful, "n2", "n3")
    gid = await held(careful)
    refused(careful, f"INSERT INTO {table} VALUES (4, 4)")
    # A database that an administrator mends by hand can apply it.
    query(
        careful.dsn("n2") + _BY_HAND,
        f"SET session_replication_role = replica; INSERT INTO {table} VALUES (1, 1)",
    )
    await run(careful, "kill", "n2", "--process", "sidecar")
    await run(careful, "start", "n2")
    await reached("released", lambda: careful.summary()["held"] is None)
    await reached("all primary", lambda: all_primary(careful))
    await written(careful, "n2", f"INSERT INTO {table} VALUES (5, 5)")
    assert gid in {one["gid"] for one in careful.summary()["databases"]} | {gid}
    careful.must("verify")


@pytest.mark.long
@pytest.mark.expects_trouble("DivergedError", reason="rows of some nodes are deleted by hand")
async def test_a_herd_with_one_database_is_never_held(work_directory: Path) -> None:
    herd = LocalHerd(work_directory / "alone", free_port_base())
    with standing(herd, "--nodes", "2", "--witness", "1", "--on-divergence", "pause"):
        table = spoil(herd, "n2")
        await reached("held", lambda: herd.summary()["held_since"] is not None)
        refused(herd, f"INSERT INTO {table} VALUES (4, 4)")
        await run(herd, "remove", "n2")
        await reached("released", lambda: herd.summary()["held"] is None)
        await reached("primary", lambda: herd.member("n1")["state"] == "primary")
        await written(herd, "n1", f"INSERT INTO {table} VALUES (4, 4)")
