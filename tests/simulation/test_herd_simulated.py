"""Nodes with the real commit path over the real log, and the errors of either that show there."""

import os

import pytest
from commit_bugs import COMMIT_BUGS, CommitBug
from planted_bugs import PLANTED_BUGS
from seeds import NEW, first_seed
from sim_herd import HerdWorld

DURATION_S = 6.0
SEEDS = int(os.environ.get("PGHERD_SIM_COMMIT_SEEDS", "60" if NEW else "20"))
SEEDS_PER_BUG = 40


def test_seeds_hold_and_meet_what_is_to_be_tested() -> None:
    met: set[str] = set()
    terms = 0
    start = first_seed()
    for seed in range(start, start + SEEDS):
        world = HerdWorld(seed)
        try:
            world.run(DURATION_S)
        except Exception as error:
            error.add_note(f"HerdWorld({seed}) at {world.now:.4f} s, {world.logs.dials}")
            raise
        met |= world.met
        terms = max(terms, *(n.member.term for n in world.logs.nodes.values() if n.member))
    assert {"commands", "large transactions", "aborted", "committed", "unknown"} <= met
    assert {"died while writing", "truncated", "fetched"} <= met
    assert terms > 2  # proposers have changed


@pytest.mark.parametrize(
    "name",
    [
        "a copy is remembered as an abort",
        "what was lost is not sent again",
        "keys in pieces are not examined",
        "what nobody waits for is forgotten",
        "elected by half",
        "commit bound beyond match",
        "term not persisted",
    ],
)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = COMMIT_BUGS.get(name) or PLANTED_BUGS[name]
    monkeypatch.setattr(bug.owner, bug.attribute, bug.replacement)
    for seed in range(SEEDS_PER_BUG):
        try:
            HerdWorld(seed).run(DURATION_S)
        except AssertionError as error:
            assert not isinstance(bug, CommitBug) or bug.explains(error), error
            return
    pytest.fail(f"no seed noticed: {bug.rule}")
