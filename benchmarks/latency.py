"""``python -m benchmarks.latency``: one client's commit, pgherd beside plain durable PostgreSQL.

A single-row update by primary key, in a prepared statement and a transaction of its own. Both
systems are up at once and take turns of a second, so that a change of the machine's mood meets
both. Every node of the herd has its turn: the distance to the proposer shows. Writes
``latency.json`` and a table of ``performance.md``.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg

from benchmarks import percentiles, records, report
from benchmarks.commands import psql_file, scratch, wait_until
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import Pgherd
from benchmarks.peers.plain import PlainPostgres

SQL = Path(__file__).parent / "peers" / "sql"
UPDATE = "UPDATE commit_latency SET value = value + 1 WHERE id = %s"
COUNT = "SELECT count(*) FROM commit_latency"
ROWS = 10_000
TURN_S = 1.0
CATCH_UP_S = 60
PLAIN = "plain PostgreSQL"


def main() -> int:
    """Measure, print and publish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns of a second of each server")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="directory of the report")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    options = parser.parse_args(sys.argv[1:])
    try:
        with scratch(options.dir) as base:
            samples = measure(base, options.turns)
    except psycopg.Error as error:
        raise BenchmarkError(f"a commit failed: {error}") from error
    latencies = {name: percentiles.of_values(values) for name, values in samples.items()}
    publish(latencies, options.output)
    return 0


def measure(base: Path, turns: int) -> dict[str, list[float]]:
    """Return the commit latencies in milliseconds of plain PostgreSQL and of each node.

    Raises:
        BenchmarkError: A system did not start.
        psycopg.Error: A commit failed.
    """
    plain, herd = PlainPostgres(base / "plain"), Pgherd(base / "pgherd")
    with ExitStack() as stack:
        stack.enter_context(running(plain))
        stack.enter_context(running(herd))
        herd_dsns = [member.app_dsn for member in herd.members]
        for dsn in (plain.server.dsn, herd_dsns[0]):
            psql_file(SQL / "commit_latency.sql", dsn, rows=ROWS)
        names = [PLAIN, *(f"pgherd, {member.name}" for member in herd.members)]
        connections = [
            stack.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=0))
            for dsn in (plain.server.dsn, *herd_dsns)
        ]
        for name, connection in zip(names, connections, strict=True):
            await_rows(name, connection)
        return take_turns(dict(zip(names, connections, strict=True)), turns)


def await_rows(name: str, connection: psycopg.Connection) -> None:
    """Return when a server has the table and its rows, which may have come by replication."""

    def complete() -> bool:
        try:
            return connection.execute(COUNT).fetchone() == (ROWS,)
        except psycopg.errors.UndefinedTable:
            return False

    wait_until(complete, timeout_s=CATCH_UP_S, failure=f"{name} did not receive the table")


def take_turns(connections: Mapping[str, psycopg.Connection], turns: int) -> dict[str, list[float]]:
    """Let each server commit alone for its turn, over and over; the first turn warms up."""
    samples: dict[str, list[float]] = {name: [] for name in connections}
    for turn in range(turns + 1):
        for name, connection in connections.items():
            values = commit_for(connection, TURN_S)
            if turn > 0:
                samples[name].extend(values)
    return samples


def commit_for(connection: psycopg.Connection, seconds: float) -> list[float]:
    """Commit single-row updates one after the other; return their milliseconds."""
    values = []
    deadline = time.perf_counter() + seconds
    began = time.perf_counter()
    while began < deadline:
        connection.execute(UPDATE, (random.randint(1, ROWS),))
        ended = time.perf_counter()
        values.append(1000 * (ended - began))
        began = ended
    return values


def table(latencies: Mapping[str, percentiles.Latency]) -> str:
    """Return the Markdown table; the last column is what replication adds to the median."""
    base = latencies[PLAIN].p50_ms
    lines = [
        "| server | p50 ms | p95 ms | p99 ms | p50 over plain, ms |",
        "| --- |" + " ---: |" * 4,
    ]
    lines += [
        f"| {name} | {one.p50_ms:.2f} | {one.p95_ms:.2f} | {one.p99_ms:.2f} "
        f"| {one.p50_ms - base:.2f} |"
        for name, one in latencies.items()
    ]
    return "\n".join(lines)


def publish(latencies: Mapping[str, percentiles.Latency], output: Path) -> None:
    """Write the JSON and the table of the page, and print the table."""
    figures: Mapping[str, Sequence[float]] = {
        name: (one.p50_ms, one.p95_ms, one.p99_ms) for name, one in latencies.items()
    }
    document = {"machine": records.this_machine(), "p50_p95_p99_ms": figures}
    (output / "latency.json").write_text(json.dumps(document, indent=1) + "\n")
    page = output / "performance.md"
    if page.exists():
        page.write_text(report.replace_section(page.read_text(), "latency", table(latencies)))
    print(table(latencies))


if __name__ == "__main__":
    run_main(main)
