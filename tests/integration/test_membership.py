"""A herd grows, shrinks and loses members under load, and nobody was told a lie."""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .ledger import new_ledger
from .localherd import LocalHerd, error_of, free_port_base, home, scripted, standing
from .test_recovery import copy_tree, copying
from .test_restart import run

MOST = 8
_ENDLESS_MB_S = "0.05"
_EVICT_S = "12"
_UNTIMED = """
from pgherd_sidecar.agent.session import upkeep
from pgherd_sidecar.agent.main import main
upkeep._PACE_S = 1e6
main()
"""


@contextlib.contextmanager
def herd_of(directory: Path, *arguments: str) -> Iterator[LocalHerd]:
    with standing(LocalHerd(directory, free_port_base(MOST)), *arguments) as herd:
        yield herd


@pytest.fixture(scope="module")
def elastic(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd that begins with one node."""
    with herd_of(work_directory / "elastic", "--nodes", "1") as herd:
        yield herd


@pytest.fixture(scope="module")
def trio(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd that begins with three nodes."""
    with herd_of(work_directory / "trio") as herd:
        yield herd


def voters(herd: LocalHerd) -> dict[str, str]:
    """Who votes, by the herd's word, and on which disk."""
    view = herd.summary()["view"]
    return {member["name"]: member["disk_id"] for member in view["members"] if member["voter"]}


async def kill(herd: LocalHerd, *names: str, process: str = "node") -> None:
    await asyncio.gather(*(run(herd, "kill", name, "--process", process) for name in names))


@pytest.mark.long
async def test_it_grows_from_one_to_five_and_shrinks_to_another_one(elastic: LocalHerd) -> None:
    ledger = new_ledger(elastic)
    async with ledger.load(2, on=["n1"]):
        await ledger.commits(20, on=["n1"])
        await run(elastic, "add")
        await run(elastic, "add")
        async with ledger.load(1, on=["n2", "n3"]):
            await ledger.commits(10, on=["n1", "n2", "n3"])
            await asyncio.gather(run(elastic, "add", "n4"), run(elastic, "add", "n5"))
            assert voters(elastic).keys() == {"n1", "n2", "n3", "n4", "n5"}
            async with ledger.load(1, on=["n4", "n5"]):
                await ledger.commits(10, on=["n1", "n2", "n3", "n4", "n5"])
                await run(elastic, "verify")
                for name in ("n2", "n1", "n3", "n4"):
                    await run(elastic, "remove", name)
                    await ledger.commits(10, on=["n5"])
    assert voters(elastic).keys() == {"n5"}
    assert [path.name for path in home(elastic).glob("n*")] == ["n5"]
    assert "last database" in error_of(elastic.run("remove", "n5"))
    ledger.check()


@pytest.mark.long
async def test_the_joiner_and_the_one_it_copies_are_killed_meanwhile(elastic: LocalHerd) -> None:
    """A name and a number that were another member's are used again."""
    await run(elastic, "add", "n1")
    ledger = new_ledger(elastic)
    async with ledger.load(1):
        adding = asyncio.create_task(
            asyncio.to_thread(elastic.run, "add", "n2", "--max-rate", _ENDLESS_MB_S)
        )
        partner = await copying(elastic, "n2")
        await kill(elastic, partner, process="postgres")
        await run(elastic, "start", partner)
        await copying(elastic, "n2")
        await kill(elastic, "n2")
        assert "n2" in error_of(await adding)
        assert "n2" not in voters(elastic)
        await run(elastic, "add", "n2")
        async with ledger.load(1, on=["n2"]):
            await ledger.commits(20, on=["n1", "n2", "n5"])
    assert "already" in error_of(elastic.run("add", "n2"))
    ledger.check()


@pytest.mark.long
async def test_killed_at_once_any_two_of_three_go_on_by_themselves(trio: LocalHerd) -> None:
    ledger = new_ledger(trio)
    order = random.sample(["n1", "n2", "n3"], 3)
    async with ledger.load(2):
        await ledger.commits(20, on=order)
        await kill(trio, *order)
        await run(trio, "start", order[0])
        await run(trio, "start", order[1])
        await ledger.commits(20, on=order[:2])
        await run(trio, "start", order[2])
        await ledger.commits(20, on=order)
    ledger.check()


async def test_a_lost_member_is_replaced_and_its_old_disk_is_refused(trio: LocalHerd) -> None:
    """C18: what comes back under the name has not flushed what the name has promised since."""
    ledger = new_ledger(trio)
    node = home(trio) / "n3"
    old, new = node.with_name("old"), node.with_name("new")
    before = voters(trio)
    async with ledger.load(1):
        await ledger.commits(20, on=["n1", "n2", "n3"])
        await kill(trio, "n3")
        await copy_tree(node, old)
        assert "--dead" in error_of(await asyncio.to_thread(trio.run, "remove", "n3"))
        evicted = await asyncio.to_thread(trio.top, "evict", "n3")
        assert evicted.returncode == 0, evicted.stderr
        await run(trio, "remove", "n3")  # as if one had been killed before
        assert voters(trio).keys() == {"n1", "n2"}
        await run(trio, "add", "n3")
        await ledger.commits(20, on=["n1", "n2", "n3"])
        after = voters(trio)
        assert after["n3"] != before["n3"]
        await kill(trio, "n3")
        node.rename(new)
        old.rename(node)
        error = error_of(await asyncio.to_thread(trio.run, "start", "n3", "--timeout", "20"))
        assert "n3 has left the herd" in error
        await kill(trio, "n3")
        node.rename(old)
        new.rename(node)
        await run(trio, "start", "n3")
        await ledger.commits(20, on=["n1", "n2", "n3"])
    ledger.check()


@pytest.mark.long
async def test_of_four_the_two_with_the_youngest_go_on_without_the_others(trio: LocalHerd) -> None:
    await run(trio, "down")
    done = await asyncio.to_thread(trio.up, "--evict-after", _EVICT_S)
    assert done.returncode == 0, done.stderr
    await run(trio, "add", "n4")
    ledger = new_ledger(trio)
    async with ledger.load(1):
        await ledger.commits(20, on=["n1", "n2", "n3", "n4"])
        await kill(trio, "n1", "n2")
        await ledger.commits(20, on=["n3", "n4"])
        assert voters(trio).keys() == {"n3", "n4"}
        await run(trio, "remove", "n1", "--dead")
        await run(trio, "remove", "n2", "--dead")
        await run(trio, "add", "n1")
        await ledger.commits(20, on=["n1", "n3", "n4"])
    ledger.check()


@pytest.mark.long
async def test_two_databases_and_a_witness_survive_the_loss_of_any_of_them(
    work_directory: Path,
) -> None:
    with herd_of(work_directory / "witnessed", "--nodes", "2", "--witness", "1") as herd:
        ledger = new_ledger(herd)
        states: dict[str, Any] = {one["name"]: one["state"] for one in herd.members()}
        assert states == {"n1": "primary", "n2": "primary", "w1": "witness"}
        async with ledger.load(2):
            for lost, left in (("n1", ["n2"]), ("n2", ["n1"])):
                await ledger.commits(20, on=["n1", "n2"])
                await kill(herd, lost)
                await ledger.commits(20, on=left)
                await run(herd, "start", lost)
            await kill(herd, "w1")
            shutil.rmtree(home(herd) / "w1")
            await run(herd, "remove", "w1", "--dead")
            await run(herd, "add", "--witness", "w1")
            await kill(herd, "n1")
            await ledger.commits(20, on=["n2"])
            await run(herd, "start", "n1")
            await ledger.commits(20, on=["n1", "n2"])
        ledger.check()


@pytest.mark.long
async def test_a_node_that_is_split_off_keeps_its_log_and_never_meets_the_others_again(
    trio: LocalHerd,
) -> None:
    ledger = new_ledger(trio)
    names = [member["name"] for member in trio.members()]
    before = trio.summary()["cluster_id"]
    async with ledger.load(1):
        await ledger.commits(20, on=names)
    trio.must("verify")
    assert "run: stop the herd" in error_of(trio.top("split", "n1", "--stopped", "--yes"))
    trio.must("down")
    assert "repeat it with --yes" in error_of(trio.top("split", "n1", "--stopped"))
    done = trio.top("split", "n1", "--stopped", "--yes")
    assert done.returncode == 0, done.stderr
    assert trio.up().returncode == 0
    summary = trio.summary()
    assert summary["cluster_id"] != before
    assert [member["name"] for member in summary["members"]] == ["n1"]
    ledger.check()
    other = names[1]
    old, new = (next(home(trio).glob(f"{other}.of-*")), home(trio) / other)
    await run(trio, "add", other)
    await kill(trio, other)
    (new / "sidecar").rename(new / "sidecar.new")
    await copy_tree(old / "sidecar", new / "sidecar")
    error = error_of(await asyncio.to_thread(trio.run, "start", other, "--timeout", "20"))
    assert before in error
    assert summary["cluster_id"] in error
    shutil.rmtree(new / "sidecar")
    (new / "sidecar.new").rename(new / "sidecar")
    await run(trio, "start", other)
    ledger.check()


@pytest.mark.long
def test_a_checkpoint_that_a_joiner_needs_does_not_wait_for_the_clock(work_directory: Path) -> None:
    environment = scripted(work_directory, "untimed", _UNTIMED)
    herd = LocalHerd(work_directory / "untimed", free_port_base(MOST), environment)
    with standing(herd, "--nodes", "1"):
        herd.must("add", "n2")
        assert set(voters(herd)) == {"n1", "n2"}
