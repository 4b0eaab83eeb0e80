"""The parts of the loading benchmark that need no server."""

import pytest

from benchmarks import loading


@pytest.mark.parametrize("megabytes", [0, 1, 100, 1000])
def test_rows_are_shared_evenly_by_eight_tables(megabytes: int) -> None:
    rows = loading.rows_for(megabytes)
    assert rows % 8 == 0
    assert rows >= 8
    assert abs(rows * loading.ROW_BYTES - megabytes * 1_000_000) <= 8 * loading.ROW_BYTES


def test_the_last_line_is_of_all_parts() -> None:
    lines = loading.table({"pre-data": 1, "data": 9}, {"pre-data": 5, "data": 15}).splitlines()
    assert lines[2:] == [
        "| pre-data | 1.0 | 5.0 | 0.20 |",
        "| data | 9.0 | 15.0 | 0.60 |",
        "| all | 10.0 | 20.0 | 0.50 |",
    ]
