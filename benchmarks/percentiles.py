"""Percentiles of latencies, from single values or from histograms that are merged first.

Percentiles of several clients' runs cannot be averaged; their histograms can be added. Pure.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """What a table shows of a distribution, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


NO_LATENCY = Latency(math.nan, math.nan, math.nan)


def merge(histograms: Iterable[Mapping[float, int]]) -> dict[float, int]:
    """Return the sum of histograms of value to count."""
    total: Counter[float] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(total)


def of_histogram(histogram: Mapping[float, int]) -> Latency:
    """Return the latency percentiles of a histogram of milliseconds to count."""
    if not histogram:
        return NO_LATENCY
    values = sorted(histogram)
    total = sum(histogram.values())

    def percentile(share: float) -> float:
        seen = 0
        for value in values:
            seen += histogram[value]
            if seen >= share * total:
                return value
        return values[-1]

    return Latency(percentile(0.50), percentile(0.95), percentile(0.99))


def of_values(values_ms: Sequence[float]) -> Latency:
    """Return the latency percentiles of single measurements in milliseconds."""
    return of_histogram(Counter(values_ms))
