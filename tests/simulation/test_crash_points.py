"""Every point of every golden scenario is one at which a process may die. [H15]

``make simulate-crashpoints SEEDS=20`` sweeps with more seeds.
"""

import os
from random import Random

import pytest
from crash_points import KINDS, SCENARIOS, play
from pgherd_sidecar.core.consensus import Persist
from pgherd_sidecar.env.storage.segments import SegmentLog
from seeds import first_seed
from sim_checker import InvariantBroken

SWEEPS = int(os.environ.get("PGHERD_SIM_SWEEPS", "1"))
_PAIRS = 40


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_may_die_at_any_point(scenario: str) -> None:
    start = first_seed()
    for seed in range(start, start + SWEEPS):
        world = play(scenario, seed)
        assert world.kinds >= KINDS[scenario]
        points = world.points
        for point in range(1, points + 1):
            play(scenario, seed, {point})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_processes_may_die_at_any_two_points(scenario: str) -> None:
    start = first_seed()
    for seed in range(start, start + SWEEPS):
        points, chance = play(scenario, seed).points, Random(seed)
        for _ in range(_PAIRS):
            first = chance.randint(1, points)
            play(scenario, seed, {first, first + chance.randint(1, points)})


def test_a_sweep_finds_a_vote_that_is_sent_before_it_is_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetful(self: SegmentLog, persist: Persist) -> None:
        if persist.blocks or persist.truncate_after is not None:
            real(self, persist)
        else:
            self.control = persist.control or self.control

    real = SegmentLog.persist
    monkeypatch.setattr(SegmentLog, "persist", forgetful)
    with pytest.raises(InvariantBroken):
        for scenario in ("founding", "succession"):
            for point in range(1, play(scenario, 1).points + 1):
                play(scenario, 1, {point})
