"""What the demo reads out of pgbench."""

from pathlib import Path

import pytest

from benchmarks.workload.parse import (
    Progress,
    is_aborted_client,
    parse_log,
    parse_progress,
)
from benchmarks.workload.pgbench import MIX, SCRIPTS, Load, command
from benchmarks.workload.schema import Scale


def test_progress_with_retries_is_read() -> None:
    line = "progress: 3.0 s, 812.4 tps, lat 4.912 ms stddev 2.1, 1 failed, 17 retried, 23 retries"

    assert parse_progress(line) == Progress(
        at_s=3.0, tps=812.4, latency_ms=4.912, retries=23, failed=1
    )


def test_progress_of_a_stalled_second_is_read() -> None:
    line = "progress: 4.0 s, 0.0 tps, lat NaN ms stddev NaN, 0 failed, 0 retried, 0 retries"

    progress = parse_progress(line)

    assert progress is not None
    assert progress.tps == 0


@pytest.mark.parametrize("line", ["", "pgbench (15.18)", "pgbench: error: connection failed"])
def test_other_lines_are_no_progress(line: str) -> None:
    assert parse_progress(line) is None


def test_a_client_that_gives_up_is_told_from_a_warning() -> None:
    assert is_aborted_client(
        "pgbench: error: client 2 script 0 aborted in command 5 query 0: ERROR:  lost"
    )
    assert not is_aborted_client("pgbench: warning: client 2 repeats its transaction")


def test_log_separates_commits_from_failures_and_counts_retries() -> None:
    log = parse_log(
        [
            "0 1 1500 0 1763770000 100 0",
            "1 1 2500 2 1763770000 200 3",
            "0 2 serialization 0 1763770001 300 49",
            "1 2 deadlock 2 1763770001 400 1",
        ]
    )

    assert log.latencies_ms == {0: [1.5], 2: [2.5]}
    assert log.failures == {"serialization": 1, "deadlock": 1}
    assert log.retries == 53
    assert log.committed == 2


def test_half_a_line_at_the_end_of_a_log_is_left_out() -> None:
    assert parse_log(["0 1 1500 0 1763770000 100 0", "0 2 15"]).committed == 1


def test_every_script_of_the_mix_is_run_with_its_weight() -> None:
    arguments = command(
        Load(seconds=5, clients=2, scale=Scale()), node=1, nodes=3, logs=Path("/tmp/x")
    )

    for name, weight in MIX.items():
        assert (SCRIPTS / f"{name}.sql").is_file()
        assert f"--file={SCRIPTS / name}.sql@{weight}" in arguments
    assert "--define=node=1" in arguments
    assert "--define=nodes=3" in arguments


def test_every_node_has_the_same_number_of_branches_and_warehouses() -> None:
    scale = Scale()

    assert scale.branches % 3 == 0
    assert scale.warehouses % 3 == 0
