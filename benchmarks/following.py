"""``python -m benchmarks.following``: how fast a plain server follows a herd.

Beside it, in turns, stand PostgreSQL's own logical replication and Slony-I 2, each with one origin
and one plain server that follows it. Two things are measured for each workload:

- The rate of applying. The subscriber's tables are locked, clients write a fixed number of
  transactions, the lock goes, and the time counts until the subscriber shows the last of them.
- The lag. Clients write as fast as they can, and a row that is committed meanwhile is waited for at
  the subscriber, again and again.

All share the machine. So the ratios of one turn mean something, and the rates only beside each
other. The rate of Slony-I and of logical replication is that of one origin, whose clients have more
of the machine than those of a herd.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import clients
from benchmarks.commands import scratch
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.peers.followers import FOLLOWERS, ROWS, TABLES, Follower

STUCK_S = 600.0
PAUSE_S = 0.005
CLIENTS = 8
OURS = "pgherd"
LOCK = f"LOCK TABLE {', '.join(TABLES)} IN SHARE MODE"


@dataclass(frozen=True, slots=True)
class Workload:
    """One transaction of clients.

    Attributes:
        script: of pgbench, one transaction.
        rows: that it changes.
    """

    script: str
    rows: int


WORKLOADS: Mapping[str, Workload] = {
    "update": Workload(
        f"\\set id random(1, {ROWS})\nUPDATE followed_a SET value = value + 1 WHERE id = :id;\n", 1
    ),
    "insert": Workload(
        "INSERT INTO followed_log (note) VALUES ('some words about what has happened');\n", 1
    ),
    "mixed": Workload(
        f"\\set a random(1, {ROWS})\n\\set b random(1, {ROWS})\nBEGIN;\n"
        "UPDATE followed_a SET value = value - 1 WHERE id = :a;\n"
        "UPDATE followed_b SET value = value + 1, note = 'b' || :b WHERE id = :b;\n"
        "INSERT INTO followed_log (note) VALUES ('some words about what has happened');\nEND;\n",
        3,
    ),
    "bulk": Workload(
        "INSERT INTO followed_log (note)"
        " SELECT 'some words about what has happened' FROM generate_series(1, 200);\n",
        200,
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one follower in one turn.

    Attributes:
        rows_s: rows a second that the subscriber applied.
        load_tps: transactions a second that the clients made while the lag was looked at.
        lags_s: from the commit of a row to when the subscriber shows it, in seconds.
    """

    rows_s: float
    load_tps: float
    lags_s: tuple[float, ...]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.following", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="of each workload")
    parser.add_argument("--rows", type=int, default=40_000, help="that each turn has applied")
    parser.add_argument("--seconds", type=int, default=10, help="that the lag is looked at")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--followers", nargs="+", choices=FOLLOWERS, default=list(FOLLOWERS))
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    given = parser.parse_args(sys.argv[1:])
    with scratch(given.dir) as base, ExitStack() as stack:
        followers: dict[str, Follower] = {}
        for name in given.followers:
            directory = base / name
            directory.mkdir()
            followers[name] = FOLLOWERS[name](directory)
            followers[name].start(stack)
        found = in_turns(followers, base, given)
    for workload, by_name in found.items():
        for line in lines(workload, by_name):
            print(line)
    return 0


def in_turns(
    followers: Mapping[str, Follower], base: Path, given: argparse.Namespace
) -> dict[str, dict[str, list[Run]]]:
    """The runs of each workload by follower.

    Raises:
        BenchmarkError: See ``applied`` and ``lagging``.
        psycopg.Error: A server does not answer.
    """
    found: dict[str, dict[str, list[Run]]] = {}
    for turn in range(given.turns):
        for name in given.workloads:
            workload, script = WORKLOADS[name], base / f"{name}.sql"
            script.write_text(workload.script)
            for which in sorted(followers, reverse=turn % 2 == 1):
                rows_s = applied(followers[which], workload, script, given.rows)
                run = Run(rows_s, *lagging(followers[which], script, given.seconds))
                found.setdefault(name, {}).setdefault(which, []).append(run)
                print(lines(name, {which: [run]})[0], file=sys.stderr, flush=True)
    return found


def applied(one: Follower, workload: Workload, script: Path, rows: int) -> float:
    """Return how many rows a second the subscriber applies.

    Raises:
        BenchmarkError: A client failed, or the subscriber does not come to the end.
    """
    each = max(1, rows // (workload.rows * CLIENTS))
    with psycopg.connect(one.there) as there:
        there.execute(LOCK.encode())
        clients.finish(start(one, script, f"--transactions={each}"))
        mark = commit_mark(one)
        there.rollback()
        began = time.monotonic()
        await_mark(there, mark)
        took_s = time.monotonic() - began
    return each * CLIENTS * workload.rows / took_s


def lagging(one: Follower, script: Path, seconds: int) -> tuple[float, tuple[float, ...]]:
    """Return the rate of the clients, and how long single rows take to the subscriber.

    Raises:
        BenchmarkError: A client failed, or the subscriber does not follow.
    """
    end = time.monotonic() + seconds
    running = start(one, script, f"--time={seconds}")
    lags_s = []
    with psycopg.connect(one.there) as there:
        while time.monotonic() < end:
            began = time.monotonic()
            mark = commit_mark(one)
            await_mark(there, mark)
            lags_s.append(time.monotonic() - began)
            time.sleep(PAUSE_S)
    return sum(rates(clients.finish(running))), tuple(lags_s)


def commit_mark(one: Follower) -> int:
    """Commit a row that the subscriber has not yet; return its number."""
    with psycopg.connect(one.writers[0]) as session:
        row = session.execute(
            "INSERT INTO followed_mark SELECT coalesce(max(id), 0) + 1 FROM followed_mark"
            " RETURNING id"
        ).fetchone()
    assert row is not None
    return int(row[0])


def await_mark(there: psycopg.Connection[Any], mark: int) -> None:
    """Wait until the subscriber shows a row.

    Raises:
        BenchmarkError: It never does.
    """
    end = time.monotonic() + STUCK_S
    while True:
        shown = there.execute("SELECT 1 FROM followed_mark WHERE id = %s", (mark,)).fetchone()
        there.rollback()
        if shown is not None:
            return
        if time.monotonic() > end:
            raise BenchmarkError(f"the subscriber has not come to the end within {STUCK_S:.0f} s")
        time.sleep(PAUSE_S)


def start(one: Follower, script: Path, until: str) -> list[subprocess.Popen[str]]:
    """Start the clients, alike at each of the origin's members."""
    each = CLIENTS // len(one.writers)
    return [clients.start(dsn, script, each, until) for dsn in one.writers]


def rates(said: Sequence[str]) -> list[float]:
    """The transactions a second that clients tell of."""
    return [
        float(line.split()[2])
        for one in said
        for line in one.splitlines()
        if line.startswith("tps = ")
    ]


def lines(workload: str, by_name: Mapping[str, Sequence[Run]]) -> list[str]:
    """A line for each follower: medians, and the medians of the ratios of single turns."""
    return [line(workload, name, runs, by_name.get(OURS, ())) for name, runs in by_name.items()]


def line(workload: str, name: str, runs: Sequence[Run], ours: Sequence[Run]) -> str:
    """The figures of one follower."""
    rate = statistics.median(run.rows_s for run in runs)
    load = statistics.median(run.load_tps for run in runs)
    lags_s = [lag for run in runs for lag in run.lags_s]
    said = (
        f"{workload}, {name}: applies {rate:.0f} rows/s; under {load:.0f} transactions/s"
        f" the lag is {statistics.median(lags_s):.2f} s, at most {max(lags_s):.2f} s"
    )
    if name == OURS or not ours:
        return said
    ratio = statistics.median(
        mine.rows_s / its.rows_s for mine, its in zip(ours, runs, strict=True)
    )
    return f"{said}; pgherd applies {ratio:.2f} times as fast"


if __name__ == "__main__":
    run_main(main)
