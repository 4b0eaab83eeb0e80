"""pgbench's per-transaction logs as response times and aborts within a window. Pure.

With a rate, pgbench's time of a transaction runs from when it was due: the queueing time is in it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from benchmarks.percentiles import of_values
from benchmarks.workload.parse import FAILURES


@dataclass(slots=True)
class Outcome:
    """The transactions of a window, by class."""

    times_ms: dict[str, list[float]] = field(default_factory=dict)
    """Response times of committed transactions."""
    aborts: Counter[str] = field(default_factory=Counter)
    """Transactions that ended with 40001 or 40P01; they are not repeated."""

    @property
    def committed(self) -> int:
        """Number of transactions that committed."""
        return sum(map(len, self.times_ms.values()))

    def mean_ms(self) -> dict[str, float]:
        """Return the mean response time of each class."""
        return {name: fmean(values) for name, values in self.times_ms.items() if values}

    def p95_ms(self) -> dict[str, float]:
        """Return the 95th percentile of the response times of each class."""
        return {name: of_values(values).p95_ms for name, values in self.times_ms.items() if values}


def collect(lines: Iterable[str], classes: Sequence[str], began: float, ended: float) -> Outcome:
    """Return what ended within a window.

    Args:
        lines: of all logs: client, transaction, microseconds or the kind of failure, script,
            second and microsecond of its end, and with a rate the lag of its start.
        classes: of the scripts, in the order of their numbers.
        began: of the window, seconds since 1970.
        ended: likewise.
    """
    outcome = Outcome()
    for line in lines:
        fields = line.split()
        if len(fields) < 6:
            continue  # a run that is cut short leaves half a line
        when = int(fields[4]) + int(fields[5]) / 1e6
        if not began <= when < ended:
            continue
        name = classes[int(fields[3])]
        if fields[2] in FAILURES:
            outcome.aborts[name] += 1
        elif fields[2] != "skipped":
            outcome.times_ms.setdefault(name, []).append(int(fields[2]) / 1000)
    return outcome
