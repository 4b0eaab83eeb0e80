"""Every reason of an Event or condition is explained, and no other."""

import re
from enum import StrEnum
from pathlib import Path

import pytest
from pgherd_operator.core.actions import Reason
from pgherd_operator.jobs.following import FollowingReason
from pgherd_operator.jobs.maintenance import MaintenanceReason
from pgherd_operator.jobs.steps import JobReason

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("page", "reasons"),
    [
        ("operator.md", Reason),
        ("jobs.md", JobReason),
        ("maintenance.md", MaintenanceReason),
        ("subscriptions.md", FollowingReason),
    ],
)
def test_every_reason_has_its_line(page: str, reasons: type[StrEnum]) -> None:
    _, _, table = (DOCS / page).read_text().partition("| reason | what it means |")
    lines = table.split("\n\n")[0].splitlines()[2:]
    explained = [name for line in lines for name in re.split(r",\s*", line.split("|")[1].strip())]
    assert sorted(explained) == sorted(reason.value for reason in reasons)
