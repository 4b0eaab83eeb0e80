"""What pgbench (15 or newer) says, as data: progress lines and latency log.

Pure text in, values out. Called by ``pgbench.py``.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

PROGRESS = re.compile(
    r"progress: (?P<at>[\d.]+) s, (?P<tps>[\d.]+) tps, lat (?P<lat>[\d.]+|NaN) ms"
    r"(?: stddev (?:[\d.]+|NaN))?, (?P<failed>\d+) failed"
    r"(?:, (?P<retried>\d+) retried, (?P<retries>\d+) retries)?"
)
ABORTED_CLIENT = re.compile(r"client \d+ (?:script \d+ )?aborted")
FAILURES = ("failed", "serialization", "deadlock")


@dataclass(frozen=True, slots=True)
class Progress:
    """One interval of one pgbench."""

    at_s: float
    tps: float
    latency_ms: float
    retries: int
    failed: int


@dataclass(slots=True)
class LatencyLog:
    """Transactions of a per-transaction log: latencies of committed ones, counts of the others."""

    latencies_ms: dict[int, list[float]] = field(default_factory=dict)
    """By number of the script."""
    failures: Counter[str] = field(default_factory=Counter)
    retries: int = 0

    @property
    def committed(self) -> int:
        """Number of transactions that committed."""
        return sum(map(len, self.latencies_ms.values()))


def parse_progress(line: str) -> Progress | None:
    """Return the interval that a line of standard error reports, or None for any other line."""
    match = PROGRESS.search(line)
    if match is None:
        return None
    return Progress(
        at_s=float(match["at"]),
        tps=float(match["tps"]),
        latency_ms=float(match["lat"]),
        retries=int(match["retries"] or 0),
        failed=int(match["failed"]),
    )


def is_aborted_client(line: str) -> bool:
    """Tell whether a line says that a client gave up for an error that is not to be retried."""
    return ABORTED_CLIENT.search(line) is not None


def parse_log(lines: Iterable[str]) -> LatencyLog:
    """Return the contents of a log of ``pgbench --log --max-tries``.

    A line is: client, transaction, time in microseconds or kind of failure, script, seconds,
    microseconds, retries.
    """
    log = LatencyLog()
    for line in lines:
        fields = line.split()
        if len(fields) < 6:
            continue  # a run that is cut short leaves half a line
        time, script = fields[2], int(fields[3])
        log.retries += int(fields[6]) if len(fields) > 6 else 0
        if time in FAILURES:
            log.failures[time] += 1
        else:
            log.latencies_ms.setdefault(script, []).append(int(time) / 1000)
    return log
