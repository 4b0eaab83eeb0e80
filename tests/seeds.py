"""Which seeds a run of the tests tries beside those that are remembered."""

import os
from random import SystemRandom

NEW = os.environ.get("PGHERD_NEW_SEEDS", "") not in ("", "0")
"""Others in each run: what they find shall not stop whoever changes something else."""


def first_seed() -> int:
    """The first of a run's seeds."""
    return SystemRandom().randrange(1 << 32) if NEW else 1_000_000
