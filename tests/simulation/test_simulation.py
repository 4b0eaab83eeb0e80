"""Whole herds in virtual time: remembered seeds, and fresh ones in each run.

``PGHERD_SIM_SEEDS=5000 pytest tests/simulation`` runs more fresh seeds;
``PGHERD_SIM_SEED=1234 pytest tests/simulation -k replay`` repeats one.
"""

import os
from random import SystemRandom

import pytest
from sim_world import World

#: seeds that once found something, and a few that were only thorough
REMEMBERED = [0, 3, 13, 16, 17, 22, 1017, 1340, 1665, 10683]
FRESH = int(os.environ.get("PGHERD_SIM_SEEDS", "60"))
REPLAY = os.environ.get("PGHERD_SIM_SEED")


def run(seed: int) -> World:
    """Run a seed; a failure says how to repeat it."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"{world.dials} at {world.now:.4f} s")
        error.add_note(f"PGHERD_SIM_SEED={seed} pytest tests/simulation -k replay")
        raise
    return world


@pytest.mark.parametrize("seed", REMEMBERED)
def test_remembered_seeds_hold(seed: int) -> None:
    run(seed)


def test_fresh_seeds_hold() -> None:
    start = SystemRandom().randrange(1 << 32)
    probes: set[str] = set()
    for seed in range(start, start + FRESH):
        probes |= run(seed).probes
    assert probes >= {"fetched", "truncated", "trimmed", "died while writing"}


@pytest.mark.skipif(REPLAY is None, reason="no seed to replay in PGHERD_SIM_SEED")
def test_replay() -> None:
    run(int(REPLAY or ""))


def test_the_same_seed_gives_the_same_history() -> None:
    assert run(5).trace.digest() == run(5).trace.digest()
    assert run(5).trace.digest() != run(6).trace.digest()
