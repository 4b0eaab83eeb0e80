"""Bits of logs are flipped: the others mend them, and nothing is lost or untrue."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import wait_until_async
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.core.consensus import Block
from pgherd_sidecar.env.storage.disk import RealDirectory
from pgherd_sidecar.env.storage.segment import Segment

from .ledger import Ledger, new_ledger
from .localherd import LocalHerd, free_port_base, home, limited, standing
from .test_membership import kill
from .test_restart import run

HEAD_BYTES = 44
"""Of a record in a segment: the block's data follow."""


@pytest.fixture(scope="module")
def rotting(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd that keeps little of its log in memory."""
    environment = limited(work_directory, "small", segment_bytes=65536, log_cache_bytes=4096)
    with standing(LocalHerd(work_directory / "rotting", free_port_base(), environment)) as herd:
        yield herd


def segments(herd: LocalHerd, name: str) -> list[Segment]:
    """The log of a member, oldest segment first."""
    directory = RealDirectory(home(herd) / name / "sidecar" / "log")
    return [Segment(one, directory) for one in directory.names() if one.endswith(".seg")]


def flip(segment: Segment, offset: int) -> None:
    [byte] = segment.file.read(offset, 1)
    segment.file.write(offset, bytes([byte ^ 1]))
    segment.file.sync()


def blocks(segment: Segment) -> list[tuple[Block, int]]:
    """Each block that can be read, and the offset of its record."""
    offset, found = segment.end, []
    for block, end, good in segment.records(offset, segment.first):
        if good:
            found.append((block, offset))
        offset = end
    return found


def records(segment: Segment) -> list[tuple[int, int]]:
    """First position and offset of each record that can be read."""
    return [(block.first, offset) for block, offset in blocks(segment)]


async def until_reason(herd: LocalHerd, name: str, text: str) -> None:
    """Wait until a member's status says this."""
    admin = AdminClient(home(herd) / name / "run" / "admin.sock")
    starting = (AdminError,)
    await wait_until_async(admin.status, lambda seen: text in (seen.reason or ""), despite=starting)


async def killed_with_records(herd: LocalHerd, ledger: Ledger) -> dict[str, Segment]:
    """Kill all, n1 last, where the newest segments of the others hold enough; return these.

    n1 has all blocks but the last ones: only it can mend them. A segment may have been begun at the
    last moment, and a busy machine orders many transactions at once.
    """
    while True:
        await ledger.commits(10, on=["n1", "n2", "n3"])
        await kill(herd, "n2", "n3")
        await kill(herd, "n1")
        newest = {name: segments(herd, name)[-1] for name in ("n2", "n3")}
        if all(len(records(segment)) >= 9 for segment in newest.values()):
            return newest
        await asyncio.gather(*(run(herd, "start", name) for name in ("n1", "n2", "n3")))


@pytest.mark.long
async def test_after_a_power_loss_two_of_three_have_damaged_logs(rotting: LocalHerd) -> None:
    """One has a hole, the other has lost the end of its log; neither can do without the third."""
    ledger = await asyncio.to_thread(new_ledger, rotting)
    async with ledger.load(2):
        await ledger.commits(30, on=["n1", "n2", "n3"])
        newest = await killed_with_records(rotting, ledger)
        for name, where in (("n2", HEAD_BYTES), ("n3", 8)):
            flip(newest[name], records(newest[name])[-9][1] + where)
        starts = [asyncio.create_task(run(rotting, "start", name)) for name in ("n2", "n3")]
        await until_reason(rotting, "n2", "it asks the other members")
        await until_reason(rotting, "n3", "it gives no votes")
        await asyncio.gather(run(rotting, "start", "n1"), *starts)
        await ledger.commits(20, on=["n1", "n2", "n3"])
        await kill(rotting, "n1")
        await ledger.commits(20, on=["n2", "n3"])  # with the vote of the one that had none
        await run(rotting, "start", "n1")
        await ledger.commits(20, on=["n1", "n2", "n3"])
    ledger.check()


@pytest.mark.long
async def test_what_a_member_that_was_away_needs_is_damaged_on_the_one_that_feeds_it(
    rotting: LocalHerd,
) -> None:
    ledger = await asyncio.to_thread(new_ledger, rotting)
    async with ledger.load(2):
        await ledger.commits(20, on=["n1", "n2", "n3"])
        await kill(rotting, "n3")
        flushed = records(segments(rotting, "n3")[-1])[-1][0]
        await ledger.commits(100, on=["n1", "n2"])
        proposer = rotting.summary()["proposer"]
        needed = [
            (segment, offset)
            for segment in segments(rotting, proposer)
            for first, offset in records(segment)
            if first > flushed
        ]
        segment, offset = needed[len(needed) // 2]
        flip(segment, offset + HEAD_BYTES)
        await run(rotting, "start", "n3")
        await ledger.commits(20, on=["n1", "n2", "n3"])
    ledger.check()
    assert offset in [at for _, at in records(segment)]  # it is on that disk again
