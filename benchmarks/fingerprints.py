"""``python -m benchmarks.fingerprints``: what the fingerprints of transactions cost.

One client updates one row by primary key, in a prepared statement and a transaction of its own, on
the first member of a herd. How many of its transactions carry a fingerprint changes every turn, so
that a change of the machine's mood meets all. Prints the CPU time of the client's session and of
the second member's applier, for each transaction, and their ratios to those without fingerprints.
"""

import argparse
import random
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.commands import psql_file, scratch, wait_until
from benchmarks.cpu import cpu_us
from benchmarks.errors import run_main
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import Pgherd

SQL = Path(__file__).parent / "peers" / "sql"
UPDATE = "UPDATE commit_latency SET value = value + 1 WHERE id = %s"
GID = "SELECT pgherd.last_gid()"
APPLIER = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgherd apply' ORDER BY pid"
ROWS = 10_000
NEVER = 1 << 62
EVERY = (NEVER, 64, 32, 16, 1)
CATCH_UP_S = 60


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fingerprints", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns of each kind")
    parser.add_argument("--commits", type=int, default=500, help="transactions in a turn")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    options = parser.parse_args(sys.argv[1:])
    with scratch(options.dir) as base:
        found = measure(base, options.turns, options.commits)
    sessions, appliers = ({every: pair[i] for every, pair in found.items()} for i in (0, 1))
    print("one of  session us  ratio  applier us  ratio")
    for every in EVERY:
        print(
            f"{'none' if every == NEVER else every:>6}"
            f"  {sessions[every]:10.0f}  {sessions[every] / sessions[NEVER]:5.3f}"
            f"  {appliers[every]:10.0f}  {appliers[every] / appliers[NEVER]:5.3f}"
        )
    return 0


def measure(base: Path, turns: int, commits: int) -> dict[int, tuple[float, float]]:
    """Return the microseconds of CPU of session and applier by how many carry a fingerprint.

    Medians over the turns, of which the first is left out: it plans statements.

    Raises:
        BenchmarkError: The herd did not start, or a member did not catch up.
        psycopg.Error: A commit failed.
    """
    herd = Pgherd(base / "pgherd")
    samples: dict[int, list[tuple[float, float]]] = {every: [] for every in EVERY}
    with ExitStack() as stack:
        stack.enter_context(running(herd))
        first, second = herd.members[:2]
        psql_file(SQL / "commit_latency.sql", first.app_dsn, rows=ROWS)
        client, admin, other = (
            stack.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=0))
            for dsn in (first.app_dsn, first.dsn, second.dsn)
        )
        appliers = [pid for (pid,) in other.execute(APPLIER)]
        for _ in range(turns + 1):
            for every in random.sample(EVERY, len(EVERY)):
                admin.execute("UPDATE pgherd.node SET fingerprint_every = %s", (every,))
                await_equal(client, other)
                before = cpu_us([client.info.backend_pid]), cpu_us(appliers)
                for _ in range(commits):
                    client.execute(UPDATE, (random.randrange(ROWS),))
                await_equal(client, other)
                after = cpu_us([client.info.backend_pid]), cpu_us(appliers)
                samples[every].append(
                    ((after[0] - before[0]) / commits, (after[1] - before[1]) / commits)
                )
    return {every: median_pair(pairs[1:]) for every, pairs in samples.items()}


def median_pair(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The median of the first values, and that of the second ones."""
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def await_equal(one: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> None:
    """Wait until the second member shows what the first has committed.

    Raises:
        BenchmarkError: It did not come.
    """
    wait_until(
        lambda: other.execute(GID).fetchone() == one.execute(GID).fetchone(),
        timeout_s=CATCH_UP_S,
        failure="the second member does not show what the first has committed",
    )


if __name__ == "__main__":
    run_main(main)
