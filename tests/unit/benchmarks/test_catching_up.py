"""The figures of a member that catches up, as they are made of its log."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.catchup import Run, line, median_ratio, opened
from benchmarks.errors import BenchmarkError

FORMER = '{"event":"link.opened","peer":"n2","timestamp":"2026-11-26T04:00:01.500000Z"}\n'
LATER = FORMER.replace("04:00:01", "05:00:02")
OTHER = '{"event":"link.closed","peer":"n2","timestamp":"2026-11-26T05:00:00.000000Z"}\n'


def test_a_link_counts_if_it_was_opened_after_what_was_seen_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "sidecar.log"
    log.write_text(FORMER + OTHER + LATER)
    assert opened(log, len(FORMER)) == datetime(2026, 11, 26, 5, 0, 2, 500_000, tzinfo=UTC)


def test_a_log_that_tells_of_no_link_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "sidecar.log"
    log.write_text(FORMER + OTHER)
    with pytest.raises(BenchmarkError, match="no link"):
        opened(log, len(FORMER))


def test_the_ratio_is_that_of_the_middle_run_and_not_of_middle_rates() -> None:
    runs = [Run(100, 2000, 30, 10), Run(200, 1000, 32, 12), Run(400, 4400, 40, 20)]
    assert median_ratio(runs) == 11
    assert line("update", runs) == (
        "update: load 200/s, catches up at 2000/s, ratio 11.0; "
        "CPU a transaction: sidecar 32, apply sessions 12 us"
    )
