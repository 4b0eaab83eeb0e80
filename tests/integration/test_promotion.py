"""A minority goes on for good as a cluster of its own, while the majority goes on as it was."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from faults.processes import admin
from patience import in_time

from .localherd import LocalHerd, error_of, free_port_base, home, query, standing
from .test_partitions import until_component
from .test_restart import run


@pytest.fixture
def split(work_directory: Path) -> Iterator[tuple[LocalHerd, LocalHerd]]:
    """A herd of five votes and three databases, and what some of it becomes."""
    herd = LocalHerd(work_directory / "whole", free_port_base(5))
    with standing(herd, "--nodes", "3", "--witness", "2"):
        apart = LocalHerd(work_directory / "apart", herd.port_base)
        yield herd, apart
    if (apart.directory / "herd.json").exists():
        apart.must("destroy")


async def complains(herd: LocalHerd, name: str, *words: str) -> None:
    """Wait until a sidecar has logged a line with all of this."""
    log = home(herd) / name / "sidecar.log"
    async with in_time():
        while not any(all(word in line for word in words) for line in log.read_text().splitlines()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def write(dsn: str, value: int) -> None:
    """Insert a row as soon as it is taken."""
    async with in_time():
        while True:
            with contextlib.suppress(psycopg.Error):
                await asyncio.to_thread(query, dsn, f"INSERT INTO t VALUES ({value})")
                return
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_the_two_sides_of_a_partition_never_merge_again(
    split: tuple[LocalHerd, LocalHerd],
) -> None:
    herd, apart = split
    query(herd.app_dsn("n1"), "CREATE TABLE t (id int PRIMARY KEY)")
    for value, name in enumerate(("n1", "n2", "n3")):
        await write(herd.app_dsn(name), value)
    herd.must("verify")
    before = herd.summary()["cluster_id"]
    await run(herd, "partition", "n1,w1,w2|n2,n3")
    for name in ("n2", "n3"):
        await until_component(herd, name, "secondary")
    await write(herd.app_dsn("n1"), 10)
    command = ("split", "n2", "n3", "--into", str(apart.directory))
    assert "primary component" in error_of(herd.top("split", "n1", *command[3:]))
    assert "repeat it with --yes" in error_of(herd.top(*command))
    done = await asyncio.to_thread(herd.top, *command, "--yes")
    assert done.returncode == 0, done.stderr
    assert "lose what n1, w1, w2 have committed" in done.stderr
    await run(herd, "heal")
    after = apart.summary()["cluster_id"]
    assert after != before == herd.summary()["cluster_id"]
    await complains(herd, "n1", f"n2.{before}", "not valid")  # the certificate is another cluster's
    for name in ("n2", "n3"):
        said = (await admin(apart, name).status()).model_dump()
        assert (said["cluster_id"], said["split_from"]) == (after, before)
    for name in ("n2", "n3"):
        done = await asyncio.to_thread(herd.top, "evict", name)
        assert done.returncode == 0, done.stderr
    await write(herd.app_dsn("n1"), 11)
    await write(apart.app_dsn("n2"), 20)
    await write(apart.app_dsn("n3"), 21)
    apart.must("verify")
    rows = "SELECT array_agg(id ORDER BY id) FROM t"
    assert query(herd.app_dsn("n1"), rows) == [([0, 1, 2, 10, 11],)]
    assert query(apart.app_dsn("n2"), rows) == [([0, 1, 2, 20, 21],)]
    assert [member["name"] for member in herd.members()] == ["n1", "w1", "w2"]
