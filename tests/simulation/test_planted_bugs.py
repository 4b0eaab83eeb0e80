"""The simulator finds each error that is put into the product on purpose."""

import pytest
from planted_bugs import PLANTED_BUGS
from simulate import seeds_until_found


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_the_simulator_finds(name: str) -> None:
    bug = PLANTED_BUGS[name]
    assert seeds_until_found(bug), f"{bug.rule} broken, and no seed noticed"
