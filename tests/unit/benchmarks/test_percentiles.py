"""Percentiles of values and of merged histograms."""

import math

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.percentiles import merge, of_histogram, of_values


def test_percentiles_of_a_hundred_values() -> None:
    latency = of_values([float(n) for n in range(1, 101)])

    assert (latency.p50_ms, latency.p95_ms, latency.p99_ms) == (50, 95, 99)


def test_no_value_has_no_percentile() -> None:
    assert math.isnan(of_values([]).p95_ms)


@given(st.lists(st.lists(st.integers(0, 50).map(float), min_size=1), min_size=1))
def test_merged_histograms_have_the_percentiles_of_all_values(groups: list[list[float]]) -> None:
    histograms = [{value: group.count(value) for value in group} for group in groups]

    together = of_values([value for group in groups for value in group])

    assert of_histogram(merge(histograms)) == together
