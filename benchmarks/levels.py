"""``python -m benchmarks.levels``: what a reader pays for each consistency level.

One row is read by primary key, in autocommit: at ``local`` by itself; at ``session`` and ``strong``
after the statement that the level takes, which is part of the time. The levels take turns of a
second on each node of one herd, so that a change of the machine's mood meets all of them, and the
table is of ratios to ``local`` in the same run. With ``--writers`` other sessions write meanwhile.
``--readers`` share the rounds. Prints a table, and publishes nothing.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from benchmarks import percentiles
from benchmarks.commands import psql_file, scratch
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.latency import ROWS, SQL, TURN_S, UPDATE, await_rows
from benchmarks.peers.pgherd import Pgherd

READ = "SELECT value FROM commit_latency WHERE id = %s"
TOKEN = "SELECT pgherd.last_gid()"
LEVELS = {"local": None, "session": "SELECT pgherd.fresh(%s)", "strong": "SELECT pgherd.strong()"}
Samples = dict[tuple[str, str], list[float]]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.levels", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns of a second of each level")
    parser.add_argument("--readers", type=int, default=1, help="sessions that read at a time")
    parser.add_argument("--writers", type=int, default=0, help="sessions that write, on each node")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    options = parser.parse_args(sys.argv[1:])
    try:
        with scratch(options.dir) as base:
            samples = measure(base, options.turns, options.readers, options.writers)
    except psycopg.Error as error:
        raise BenchmarkError(f"a statement failed: {error}") from error
    print(table(samples))
    return 0


def measure(base: Path, turns: int, readers: int, writers: int) -> Samples:
    """Return the latencies in milliseconds, by node and level.

    Raises:
        BenchmarkError: The herd did not start.
        psycopg.Error: A statement failed.
    """
    herd, samples = Pgherd(base / "pgherd"), Samples()
    with ExitStack() as stack:
        stack.callback(herd.stop)
        herd.start()
        dsns = {member.name: member.app_dsn for member in herd.members}
        psql_file(SQL / "commit_latency.sql", next(iter(dsns.values())), rows=ROWS)
        for name, dsn in dsns.items():
            with psycopg.connect(dsn, autocommit=True) as connection:
                await_rows(name, connection)
        stack.enter_context(load(dsns, writers))
        for turn in range(turns + 1):  # the first one warms up
            for name, dsn in dsns.items():
                for level in LEVELS:
                    values = read_together(dsn, level, readers)
                    if turn > 0:
                        samples.setdefault((name, level), []).extend(values)
    return samples


@contextmanager
def load(dsns: Mapping[str, str], writers: int) -> Iterator[None]:
    """Write on all nodes for as long as the block lasts; each session has rows of its own."""
    stop = threading.Event()

    def write(dsn: str, number: int) -> None:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
            while not stop.is_set():
                connection.execute(UPDATE, (1 + number,))

    threads = [
        threading.Thread(target=write, args=(dsn, number * writers + writer))
        for number, dsn in enumerate(dsns.values())
        for writer in range(writers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def read_together(dsn: str, level: str, readers: int) -> list[float]:
    """Let some sessions read for a turn; return the milliseconds of all of their reads."""
    values: list[list[float]] = [[] for _ in range(readers)]
    threads = [threading.Thread(target=read_for, args=(dsn, level, TURN_S, own)) for own in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(values):
        raise BenchmarkError(f"a reader at {level} has read nothing")
    return [value for own in values for value in own]


def read_for(dsn: str, level: str, seconds: float, values: list[float]) -> None:
    """Read rows one after the other, and note the milliseconds of each."""
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute("SELECT set_config('pgherd.consistency', %s, false)", (level,))
        token = connection.execute(TOKEN).fetchone()
        before = LEVELS[level]
        parameters = token if before is not None and "%s" in before else None
        deadline = time.perf_counter() + seconds
        while (began := time.perf_counter()) < deadline:
            if before is not None:
                connection.execute(before, parameters)
            connection.execute(READ, (random.randint(1, ROWS),))
            values.append(1000 * (time.perf_counter() - began))


def table(samples: Samples) -> str:
    """Return the Markdown table; the ratios are those of the medians."""
    lines = ["| node | level | p50 ms | p99 ms | p50 over local |", "| --- | --- |" + " ---: |" * 3]
    for (node, level), values in samples.items():
        one = percentiles.of_values(values)
        ratio = one.p50_ms / percentiles.of_values(samples[node, "local"]).p50_ms
        lines.append(f"| {node} | {level} | {one.p50_ms:.2f} | {one.p99_ms:.2f} | {ratio:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(main)
