"""A dump may give tables their columns in another order, and commands may come between."""

import pytest
from pgherd_sidecar.agent.recovery.columns import is_kept


@pytest.mark.parametrize(
    ("found", "exact", "after_commands"),
    [
        (["a", "b", "c"], True, True),
        (["b", "a", "c"], False, False),
        (["a", "c"], False, True),
        (["a", "d", "b", "c"], False, True),
        (["c", "d", "a"], False, False),
        ([], False, True),
    ],
)
def test_columns_are_kept(found: list[str], *, exact: bool, after_commands: bool) -> None:
    wanted = ["a", "b", "c"]
    assert is_kept(wanted, found, may_have_changed=False) == exact
    assert is_kept(wanted, found, may_have_changed=True) == after_commands
