"""Every test with a herd fails on trouble in a sidecar's log, unless it names what it makes.

    @pytest.mark.expects_trouble("DivergedError", reason="it deletes a row of one member by hand")

names the kind of trouble (see ``benchmarks.trouble``), and why it is the test's own doing. Called
by the hooks of ``integration/conftest.py`` and ``e2e/conftest.py`` after each test, and once more
after its fixtures have ended.
"""

import pytest

from benchmarks.trouble import Logs, Trouble

MARKER = "expects_trouble"


def unexpected(item: pytest.Item, logs: Logs) -> list[Trouble]:
    """The trouble since the last look that a test does not expect."""
    expected = set()
    for mark in item.iter_markers(MARKER):
        (kind,) = mark.args
        if not mark.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: {MARKER} says no reason")
        expected.add(kind)
    return [one for one in logs.pop() if one.kind not in expected]


def require_none(item: pytest.Item, logs: Logs) -> None:
    """Fail where there is some."""
    found = unexpected(item, logs)
    if found:
        told = "\n".join(f"  {one}" for one in found)
        pytest.fail(f"a sidecar's log tells of trouble (see trouble.py):\n{told}", pytrace=False)
