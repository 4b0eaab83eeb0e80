"""The simulator finds each error that is put into the product on purpose."""

import pytest
from planted_bugs import PLANTED_BUGS
from simulate import seeds_until_found

_RARE = (
    "an old proposer is obeyed", "longest log wins", "consents to another plan counted",
    "commit bound beyond match",
)  # fmt: skip
"""Many seeds do not notice them."""


@pytest.mark.family(every=3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in _RARE else name
        for name in PLANTED_BUGS
    ],
)
def test_the_simulator_finds(name: str) -> None:
    bug = PLANTED_BUGS[name]
    assert seeds_until_found(bug), f"{bug.rule} broken, and no seed noticed"
