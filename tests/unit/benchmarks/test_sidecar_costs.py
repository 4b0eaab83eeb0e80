"""The parts of the benchmark of the sidecars that need no server."""

import os
from pathlib import Path

import pytest

from benchmarks import sidecars
from benchmarks.cpu import threads_us
from benchmarks.errors import BenchmarkError
from benchmarks.peers.pgherd import other_program


def test_a_ratio_is_of_one_turn_and_the_line_tells_the_median_of_them() -> None:
    found = {(1, sidecars.THIS): [100.0, 300.0, 50.0], (1, sidecars.OTHER): [200.0, 300.0, 500.0]}
    told = sidecars.line(found, [1])
    assert told.endswith("1 clients:    100 us, other    300 us, ratio 0.500")


def test_a_herd_alone_has_no_ratio() -> None:
    told = sidecars.line({(8, sidecars.THIS): [10.0]}, [8])
    assert "8 clients:     10 us" in told and "ratio" not in told


def test_all_threads_of_a_process_are_counted_and_time_goes_on() -> None:
    before = threads_us([os.getpid()])
    sum(range(1_000_000))
    assert threads_us([os.getpid()]) > before > 0


def test_another_checkout_needs_an_installation(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="run make setup there"):
        other_program(tmp_path)
