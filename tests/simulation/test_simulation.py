"""Whole herds in virtual time: remembered seeds, and fresh ones in each run.

``simulate.py`` runs more of them; ``PGHERD_SIM_SEEDS=5000 pytest tests/simulation`` does, too.
"""

import os
from random import SystemRandom

import pytest
from sim_dials import Dials
from sim_world import World

#: seeds that once found something, and a few that were only thorough
REMEMBERED = [0, 12, 13, 44, 50, 56, 113, 144, 249, 1165, 3512598318]
FRESH = int(os.environ.get("PGHERD_SIM_SEEDS", "60"))


def run(seed: int, dials: Dials | None = None) -> World:
    """Run a seed; a failure says how to repeat it."""
    world = World(seed, dials)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"{world.dials} at {world.now:.4f} s")
        error.add_note(f"python tests/simulation/simulate.py --story {seed}")
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


def test_a_hundred_members_agree() -> None:
    run(7, Dials(members=97, spares=3, duration_s=5.0, crash_every_s=0.5, restart_s=1.0))


def test_the_same_seed_gives_the_same_history() -> None:
    dials = Dials(wire=True, duration_s=20.0, crash_every_s=2.0, leave_every_s=3.0, spares=1)
    assert run(5, dials).trace.digest() == run(5, dials).trace.digest()
    assert run(5, dials).trace.digest() != run(6, dials).trace.digest()
