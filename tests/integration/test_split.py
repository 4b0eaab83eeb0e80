"""Members without a majority become a cluster of their own, while they run and for good. C21"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import admin
from patience import in_time

from .localherd import LocalHerd, error_of, free_port_base, home, query, standing
from .test_partitions import until_component
from .test_promotion import complains, write
from .test_restart import run


@pytest.fixture(params=["0"], ids=["never by itself"])
def five(work_directory: Path, request: pytest.FixtureRequest) -> Iterator[LocalHerd]:
    """A herd of five votes and three databases, which may split some time after it is cut."""
    herd = LocalHerd(work_directory / "split", free_port_base(5))
    with standing(herd, "--nodes", "3", "--witness", "2", "--split-after", request.param):
        query(herd.app_dsn("n1"), "CREATE TABLE t (id int PRIMARY KEY)")
        yield herd


async def killed_on_the_way(herd: LocalHerd, name: str) -> None:
    """SIGKILL a member's sidecar when it has given up its vote in the old cluster."""
    node = home(herd) / name
    async with in_time():
        while not (node / "sidecar" / "parting.json").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    os.kill(int((node / "sidecar.pid").read_text().split()[0]), signal.SIGKILL)


async def said_by(herd: LocalHerd, name: str) -> dict[str, Any]:
    return (await admin(herd, name).status()).model_dump()


def rows(herd: LocalHerd, name: str) -> list[int]:
    return [row[0] for row in query(herd.app_dsn(name), "SELECT id FROM t ORDER BY id")]


async def assert_apart(herd: LocalHerd, old: str, new: str) -> None:
    """The two sides tell each other's identities when they meet, and go on without each other."""
    await run(herd, "heal")
    await complains(herd, "n1", "link.refused", f"n2 is of cluster {new}, n1 of {old}")
    await complains(herd, "n2", "link.refused", f"n1 is of cluster {old}, n2 of {new}")
    for name in ("n2", "n3"):
        said = await said_by(herd, name)
        assert (said["cluster_id"], said["split_from"]) == (new, old)
        assert [one["name"] for one in said["view"]["members"]] == ["n2", "n3"]
    await write(herd.app_dsn("n1"), 11)
    await write(herd.app_dsn("n3"), 21)
    await until_rows(herd, "n2", [0, 1, 20, 21])
    assert rows(herd, "n1") == [0, 1, 10, 11]
    assert (await said_by(herd, "n1"))["cluster_id"] == old


async def until_rows(herd: LocalHerd, name: str, expected: list[int]) -> None:
    async with in_time():
        while rows(herd, name) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_c21_an_administrator_splits_a_running_minority_off_though_one_of_it_is_killed(
    five: LocalHerd,
) -> None:
    for value, name in enumerate(("n1", "n2")):
        await write(five.app_dsn(name), value)
    old = (await said_by(five, "n1"))["cluster_id"]
    assert "primary component" in error_of(five.top("split", "n2", "n3", "--yes"))
    await run(five, "partition", "n1,w1,w2|n2,n3")
    await write(five.app_dsn("n1"), 10)
    for name in ("n2", "n3"):
        await until_component(five, name, "secondary")
    assert "repeat it with --yes" in error_of(five.top("split", "n2", "n3"))
    assert "n1 must be there" in error_of(five.top("split", "n2", "n1"))
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(asyncio.to_thread(five.top, "split", "n2", "n3", "--yes"))
        await killed_on_the_way(five, "n3")
        await run(five, "start", "n3")
    done = asked.result()
    assert done.returncode == 0, done.stderr
    assert "lose what n1, w1, w2 have committed" in done.stderr
    new = (await said_by(five, "n2"))["cluster_id"]
    assert new in done.stdout
    await write(five.app_dsn("n2"), 20)
    await assert_apart(five, old, new)


@pytest.mark.long
@pytest.mark.parametrize("five", ["30"], indirect=True, ids=["after a while"])
async def test_c21_a_minority_splits_by_itself_where_that_is_the_policy(five: LocalHerd) -> None:
    for value, name in enumerate(("n1", "n2")):
        await write(five.app_dsn(name), value)
    old = (await said_by(five, "n1"))["cluster_id"]
    await run(five, "partition", "n1,w1,w2|n2,n3")
    await write(five.app_dsn("n1"), 10)
    await write(five.app_dsn("n2"), 20)
    await assert_apart(five, old, (await said_by(five, "n2"))["cluster_id"])
