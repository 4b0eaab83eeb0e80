"""The simulator finds each error that is put into the product on purpose."""

import pytest
from planted_bugs import PLANTED_BUGS
from sim_world import World

SEEDS_MAX = 200


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED_BUGS[name]
    monkeypatch.setattr(bug.owner, bug.attribute, bug.replacement)
    for seed in range(bug.seed, bug.seed + SEEDS_MAX):
        try:
            World(seed, storm=True).run()
        except Exception:  # noqa: BLE001 - whatever it breaks, in whatever way
            return
    pytest.fail(f"{bug.rule} broken, and {SEEDS_MAX} seeds did not notice")
