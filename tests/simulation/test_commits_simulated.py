"""The commit path of three nodes in virtual time, and the errors that its simulator finds."""

import os

import pytest
from commit_bugs import COMMIT_BUGS
from seeds import first_seed
from sim_commits import CommitWorld
from sim_herd import HerdWorld

DURATION_S = 6.0
SEEDS = int(os.environ.get("PGHERD_SIM_COMMIT_SEEDS", "5"))
SEEDS_PER_BUG = 60


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_that_is_always_run(seed: int) -> None:
    world = CommitWorld(seed)
    world.run(DURATION_S)
    assert world.committed


def test_fresh_seeds() -> None:
    start = first_seed()
    for seed in range(start, start + SEEDS):
        try:
            CommitWorld(seed).run(DURATION_S)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("kind", [CommitWorld, HerdWorld])
def test_equal_seeds_are_equal_runs(kind: type[CommitWorld]) -> None:
    worlds = [kind(7), kind(7)]
    for world in worlds:
        world.run(DURATION_S)
    assert worlds[0].told == worlds[1].told
    assert worlds[0].log == worlds[1].log


def test_worlds_meet_what_is_to_be_tested() -> None:
    """Aborts, unknown outcomes, dead sessions whose writes are kept, crashes that lose commits."""
    worlds = [CommitWorld(seed) for seed in range(12)]
    for world in worlds:
        world.run(DURATION_S)
    met = set.union(*[world.met for world in worlds])
    assert {"commands", "large transactions"} <= met
    told = [outcome.split()[0] for world in worlds for outcome in world.told.values()]
    assert {"aborted", "committed", "unknown"} <= set(told)
    unknown = [(w, t) for w in worlds for t, outcome in w.told.items() if outcome == "unknown"]
    assert any(world.verdicts.get(token) for world, token in unknown)
    assert max(node.incarnation for world in worlds for node in world.nodes) > 1


@pytest.mark.family(every=3)
@pytest.mark.parametrize("name", COMMIT_BUGS)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = COMMIT_BUGS[name]
    monkeypatch.setattr(bug.owner, bug.attribute, bug.replacement)
    for seed in range(SEEDS_PER_BUG):
        try:
            CommitWorld(seed).run(DURATION_S)
        except AssertionError as error:
            assert bug.explains(error), error
            return
    pytest.fail(f"no seed noticed: {bug.rule}")
