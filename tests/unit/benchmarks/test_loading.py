"""The parts of the loading benchmark that need no server."""

import pytest

from benchmarks import loading
from benchmarks.loading import Cost


@pytest.mark.parametrize("megabytes", [0, 1, 100, 1000])
def test_rows_are_shared_evenly_by_eight_tables(megabytes: int) -> None:
    rows = loading.rows_for(megabytes)
    assert rows % 8 == 0
    assert rows >= 8
    assert abs(rows * loading.ROW_BYTES - megabytes * 1_000_000) <= 8 * loading.ROW_BYTES


def test_the_last_line_is_of_all_parts() -> None:
    plain = {"pre-data": Cost(1, 0.5), "data": Cost(9, 4.5)}
    herd = {"pre-data": Cost(5, 7.5), "data": Cost(15, 22.5)}
    assert loading.table(plain, herd).splitlines()[2:] == [
        "| pre-data | 1.0 | 5.0 | 0.20 | 0.5 | 7.5 | 0.20 |",
        "| data | 9.0 | 15.0 | 0.60 | 4.5 | 22.5 | 0.60 |",
        "| all | 10.0 | 20.0 | 0.50 | 5.0 | 30.0 | 0.50 |",
    ]
