"""``python -m benchmarks.failures``: what the death and the return of a node cost.

Three measurements on a herd of three, each with its goal. *Failover*: the node that orders the log
is killed; the longest gap between two acknowledged commits that a client of the other nodes sees.
*Catching up*: a node is away while the others are under load; how fast it makes up for that.
*Rebuilding*: a node's database replaced by a copy, in turns with a bare ``pg_basebackup`` of the
same server, for each size. Writes ``failures.json`` and a table of ``performance.md``.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psycopg

from benchmarks import records, report
from benchmarks.commands import client_environment, postgres_bin, psql_file, run, scratch
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.herd import Member
from benchmarks.latency import ROWS, SQL, UPDATE, await_rows
from benchmarks.peers.pgherd import Pgherd

FILL = "INSERT INTO ballast SELECT g, repeat(md5(g::text), 32) FROM generate_series(%s::int, %s) g"
FILL_ROWS = 20_000
"""Of 1 kB each: one writeset."""
SETTLE_S = 2.0
STUCK_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """How much of each."""

    failovers: int
    away_s: int
    clients: int
    megabytes: tuple[int, ...]
    copies: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement beside its goal."""

    what: str
    found: str
    goal: str


def main() -> int:
    """Measure, print and publish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failures", description=__doc__)
    parser.add_argument("--failovers", type=int, default=5, help="how many proposers to kill")
    parser.add_argument("--away", type=int, default=30, help="seconds a node is away under load")
    parser.add_argument("--clients", type=int, default=4, help="clients of each node")
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[200, 1000], help="of the database to copy"
    )
    parser.add_argument("--copies", type=int, default=3, help="how often, of each size")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="directory of the report")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    given = parser.parse_args(sys.argv[1:])
    sizes = tuple(sorted(given.megabytes))
    options = Options(given.failovers, given.away, given.clients, sizes, given.copies)
    with scratch(given.dir) as base:
        figures = measure(base, options)
    publish(figures, given.output)
    return 0


def measure(base: Path, options: Options) -> list[Figure]:
    """Start a herd and do all of it, one after the other.

    Raises:
        BenchmarkError: The herd did not do what it should.
    """
    herd = Pgherd(base / "pgherd")
    try:
        herd.start()
        psql_file(SQL / "commit_latency.sql", herd.members[0].app_dsn, rows=ROWS)
        for member in herd.members:
            with psycopg.connect(member.app_dsn, autocommit=True) as connection:
                await_rows(member.name, connection)
        return [
            failovers(herd, options),
            catching_up(herd, options),
            *rebuilding(herd, base, options),
        ]
    finally:
        herd.stop()


# ---- failover --------------------------------------------------------------------------------


def failovers(herd: Pgherd, options: Options) -> Figure:
    """Kill the proposer's node under load, over and over."""
    gaps = []
    for _ in range(options.failovers):
        proposer = herd.herd.members()[0].proposer
        gaps.append(asyncio.run(_failover(herd, proposer, options.clients)))
        herd.herd.start(proposer)
    return Figure(
        f"the proposer's node killed {options.failovers} times: longest gap between two commits "
        "of any client of the others",
        f"median {median(gaps):.2f} s, longest {max(gaps):.2f} s",
        "below 2 s",
    )


async def _failover(herd: Pgherd, proposer: str, clients: int) -> float:
    """Return the longest gap in seconds."""
    others = [member for member in herd.members if member.name != proposer]
    async with load(others, clients) as loads:
        await asyncio.sleep(SETTLE_S)
        for client in loads:
            client.longest_s = 0.0
        await asyncio.to_thread(herd.herd.kill, proposer)
        await _until(lambda: all(load.since_s() < SETTLE_S for load in loads))
        await asyncio.sleep(SETTLE_S)
        return max(load.longest_s for load in loads)


class Client:
    """Single-row updates, one after the other, repeated until they are acknowledged.

    Attributes:
        commits: acknowledged.
        longest_s: the longest time between two of them, and up to the first one.
        stopped: set it, and ``run`` returns.
    """

    def __init__(self, member: Member) -> None:
        self.commits = 0
        self.longest_s = 0.0
        self.stopped = False
        self._dsn = member.app_dsn
        self._last_s = time.monotonic()

    def since_s(self) -> float:
        """Seconds since the last acknowledged commit."""
        return time.monotonic() - self._last_s

    async def run(self) -> None:
        """Commit until told to stop."""
        while not self.stopped:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True, prepare_threshold=0, connect_timeout=5
                ) as connection:
                    while not (self.stopped or connection.closed):
                        await self._commit(connection)
            except psycopg.OperationalError:
                await asyncio.sleep(0.01)

    async def _commit(self, connection: psycopg.AsyncConnection) -> None:
        try:
            await connection.execute(UPDATE, (random.randint(1, ROWS),))
        except psycopg.Error:
            if not connection.closed:
                await asyncio.sleep(0.01)
            return
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._last_s)
        self._last_s = now
        self.commits += 1


@asynccontextmanager
async def load(members: Sequence[Member], clients: int) -> AsyncIterator[list[Client]]:
    loads = [Client(member) for member in members for _ in range(clients)]
    async with asyncio.TaskGroup() as group:
        for client in loads:
            group.create_task(client.run())
        try:
            yield loads
        finally:
            for client in loads:
                client.stopped = True


async def _until(reached: Callable[[], bool]) -> None:
    """Wait for something that clients see.

    Raises:
        BenchmarkError: It does not happen.
    """
    try:
        async with asyncio.timeout(STUCK_S):
            while not reached():  # noqa: ASYNC110 - a look at clients, not at a clock
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise BenchmarkError(f"clients have no commits any more after {STUCK_S:g} s") from None


# ---- catching up -----------------------------------------------------------------------------


def catching_up(herd: Pgherd, options: Options) -> Figure:
    """Keep a node away while the others are under load, then let it come back."""
    away, others = herd.members[2], herd.members[:2]
    herd.herd.kill(away.name)
    commits = asyncio.run(_commits(others, options))
    began = time.monotonic()
    herd.herd.start(away.name)
    back_s = time.monotonic() - began
    return Figure(
        f"a node away for {options.away_s} s while the others commit {commits:,} transactions: "
        "its return, server and sidecar started, until it takes writes",
        f"{back_s:.1f} s: {options.away_s / back_s:.1f} times as fast as the load was",
        "5 times",
    )


async def _commits(members: Sequence[Member], options: Options) -> int:
    async with load(members, options.clients) as loads:
        await asyncio.sleep(options.away_s)
        return sum(load.commits for load in loads)


# ---- rebuilding ------------------------------------------------------------------------------


def rebuilding(herd: Pgherd, base: Path, options: Options) -> list[Figure]:
    """Copy a database that grows, as a rebuild does it and bare."""
    source, target = herd.members[0], herd.members[2]
    with psycopg.connect(source.app_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE ballast (id int PRIMARY KEY, filling text NOT NULL)")
    figures, filled = [], 0
    for megabytes in options.megabytes:
        _fill(herd, filled, megabytes)
        filled = megabytes
        bare_s, rebuild_s = [], []
        for _ in range(options.copies):
            bare_s.append(_bare_copy(source, base / "bare"))
            began = time.monotonic()
            herd.herd.rebuild(target.name, source=source.name)
            rebuild_s.append(time.monotonic() - began)
        ratio = median(bare_s) / median(rebuild_s)
        figures.append(
            Figure(
                f"a table of {megabytes:,} MB copied from a partner {options.copies} times until "
                "the node takes writes, in turns with a bare pg_basebackup (medians)",
                f"{median(rebuild_s):.1f} s and {median(bare_s):.1f} s: {ratio:.2f} of its speed",
                "0.5",
            )
        )
    return figures


def _fill(herd: Pgherd, filled: int, megabytes: int) -> None:
    """Let the database grow, and its servers write it down before anybody is measured."""
    with psycopg.connect(herd.members[0].app_dsn, autocommit=True) as connection:
        for first in range(1000 * filled + 1, 1000 * megabytes, FILL_ROWS):
            connection.execute(FILL, (first, first + FILL_ROWS - 1))
    herd.herd.verify()
    for member in herd.members:
        with psycopg.connect(member.dsn, autocommit=True) as connection:
            connection.execute("CHECKPOINT")


def _bare_copy(source: Member, target: Path) -> float:
    """Return how many seconds it takes; the copy is removed."""
    began = time.monotonic()
    run(
        [postgres_bin() / "pg_basebackup", "--checkpoint=fast", f"--pgdata={target}"],
        environment=client_environment(source.dsn),
    )
    took_s = time.monotonic() - began
    shutil.rmtree(target)
    return took_s


# ---- the report ------------------------------------------------------------------------------


def publish(figures: Sequence[Figure], output: Path) -> None:
    """Write the JSON and the table of the page, and print the table."""
    document = {"machine": records.this_machine(), "figures": [asdict(one) for one in figures]}
    (output / "failures.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = ["| what | found | goal |", "| --- | --- | --- |"]
    lines += [f"| {one.what} | {one.found} | {one.goal} |" for one in figures]
    table = "\n".join(lines)
    page = output / "performance.md"
    if page.exists():
        page.write_text(report.replace_section(page.read_text(), "failures", table))
    print(table)


if __name__ == "__main__":
    run_main(main)
