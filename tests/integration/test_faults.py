"""Anything that can happen to a herd of five happens at random, at once, and the checkers judge.

A run is as long as ``PGHERD_FAULTS_MINUTES`` says and begins with ``PGHERD_FAULTS_SEED``; by
default it is a short one with a seed of its own. ``make test-faults MINUTES=60 SEED=7``.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.machines import FaultyHerd
from faults.nemesis import DISK_FULL, Nemesis, told
from faults.wires import FAIR, Weather, Wires
from patience import in_time
from workloads import bodies

from .localherd import free_port_base
from .test_histories import Run
from .test_partitions import ended

NODES = 5
MINUTES = float(os.environ.get("PGHERD_FAULTS_MINUTES", "0"))
SEED = int(os.environ.get("PGHERD_FAULTS_SEED", "0")) or random.getrandbits(32)
_BLOWS = 3
_TRANSACTIONS = (20, 100, 500)  # of all clients, while a blow lasts
WORKLOADS = (
    bodies.LIST_APPEND,
    bodies.BANK,
    bodies.UNIQUE_KEYS,
    bodies.LOST_UPDATE,
    bodies.LONG_FORK,
)


@pytest.fixture(scope="module")
def faulty(work_directory: Path) -> Iterator[tuple[FaultyHerd, Wires]]:
    """A herd on faulty machines; its wires take ports between those of its members."""
    base, scripts = free_port_base(NODES), work_directory / "faults"
    scripts.mkdir(mode=0o755)
    herd = FaultyHerd(work_directory / "faulty", base, scripts=scripts, wire_base=base + 40)
    done = herd.up("--nodes", str(NODES))
    assert done.returncode == 0, done.stderr
    wires = herd.move_in(SEED)
    assert len(wires.linked) == NODES * (NODES - 1)
    yield herd, wires
    herd.move_out()
    wires.close()


@pytest.mark.long
@pytest.mark.timeout(0 if MINUTES else 900)
async def test_whatever_happens_nobody_was_told_a_lie(
    faulty: tuple[FaultyHerd, Wires], record_property: Callable[[str, object], None]
) -> None:
    herd, wires = faulty
    chance = random.Random(SEED)
    record_property("seed", SEED)
    record_property("left_out", herd.missing)
    until_s = time.monotonic() + 60 * MINUTES
    workloads = chance.sample(WORKLOADS, len(WORKLOADS))
    while True:
        run = Run(herd, workloads[0])
        run.recorder.expected = DISK_FULL
        nemesis = Nemesis(herd, wires, chance, run.recorder)
        with told(SEED, nemesis.story, herd):
            async with run.load() as recorder:
                for _ in range(_BLOWS):
                    await recorder.acknowledged(5, on=run.dsns)
                    async with nemesis.blow():
                        await ended(recorder, chance.choice(_TRANSACTIONS))
                await recorder.acknowledged(5, on=run.dsns)
            await run.judged()
        run.drop()
        workloads.append(workloads.pop(0))
        if time.monotonic() > until_s:
            return


@pytest.mark.long
async def test_h16_a_full_disk_stops_one_member_and_no_other(
    faulty: tuple[FaultyHerd, Wires],
) -> None:
    herd, wires = faulty
    if herd.small is None:
        pytest.skip("a small disk has to be mounted, by root")
    run = Run(herd, bodies.BANK)
    run.recorder.expected = DISK_FULL
    nemesis = Nemesis(herd, wires, random.Random(SEED), run.recorder)
    others = [name for name in run.dsns if name != herd.small]
    async with run.load() as recorder:
        await recorder.acknowledged(10, on=run.dsns)
        async with nemesis.disk(left_bytes=0):
            await recorder.acknowledged(100, on=others)
        await recorder.acknowledged(10, on=run.dsns)
    await run.judged()


@pytest.mark.long
async def test_h27_a_member_on_a_slow_link_lags_and_slows_no_other(
    faulty: tuple[FaultyHerd, Wires],
) -> None:
    herd, wires = faulty
    run = Run(herd, bodies.LIST_APPEND)
    slow = next(m for m in herd.members() if m["name"] != m["proposer"])
    others = [name for name in run.dsns if name != slow["name"]]
    numbers = range(1, NODES + 1)
    to_slow = [(number, slow["number"]) for number in numbers if number != slow["number"]]
    async with run.load() as recorder:
        await recorder.acknowledged(10, on=run.dsns)
        wires.change(Weather(bytes_s=200), to_slow)
        await recorder.acknowledged(100, on=others)
        async with in_time():
            while not (await asyncio.to_thread(herd.member, slow["name"]))["lagging_s"]:
                pass
        wires.change(FAIR, to_slow)
        await recorder.acknowledged(10, on=run.dsns)
    await run.judged()
