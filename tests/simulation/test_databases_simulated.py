"""Databases on top of simulated logs: the herd is held when it has to be, and let go. [W1-W7]

``simulate.py --databases --story SEED`` tells what happens in one.
"""

import os

import pytest
from seeds import NEW, first_seed
from sim_databases import DatabaseWorld

#: seeds that once found something
REMEMBERED = [4, 9, 26, 178, 253, 368, 2481]
FRESH = int(os.environ.get("PGHERD_SIM_SEEDS", "60" if NEW else "24"))


def run(seed: int) -> DatabaseWorld:
    """Run a seed; a failure says how to repeat it."""
    world = DatabaseWorld(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"{world.dials} at {world.now:.4f} s")
        error.add_note(f"python tests/simulation/simulate.py --databases --story {seed}")
        raise
    return world


@pytest.mark.parametrize("seed", REMEMBERED)
def test_remembered_seeds_hold(seed: int) -> None:
    run(seed)


def test_fresh_seeds_hold() -> None:
    start = first_seed()
    probes: set[str] = set()
    for seed in range(start, start + FRESH):
        probes |= run(seed).probes
    assert probes >= {"diverged", "copied", "held", "refused", "released", "skipped"}
