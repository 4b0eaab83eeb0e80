"""``python -m benchmarks.jobs``: the jobs on Spark beside the tools that do the like.

All on one herd of three with the same rows on each node, in turns, with the same number of cores:
*snapshot* beside ``pg_dump -Fd -j``, *restore* beside ``pg_restore -j``, *check* beside reladiff,
and what clients of the herd lose while a check runs. Spark's start is the same for any size: it is
told by itself and in none of the others. Writes ``jobs.json`` and a table of ``performance.md``.

The rows are put into each node by its superuser, behind the herd's back: the writing is not what is
measured here.
"""

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psycopg
from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.local import herd as herds
from pgherd_sidecar.pg import archives
from pgherd_spark.checking import check
from pgherd_spark.reading import comparison
from pgherd_spark.reading.cluster import Cluster, cluster
from pgherd_spark.reading.leases import Member
from pgherd_spark.reading.pace import FULL, GENTLE
from pgherd_spark.restoring import restore
from pgherd_spark.snapshots import snapshot
from pgherd_spark.storing import layout
from pgherd_spark.storing.stores import DirectoryStore
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks import cpu, records, report
from benchmarks.commands import client_environment, postgres_bin, psql_file, run, scratch
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.failures import SETTLE_S, Client, load
from benchmarks.latency import ROWS, SQL
from benchmarks.peers.pgherd import Pgherd
from benchmarks.peers.postgres import PostgresServer

TABLES = 4
PORT, PORT_BASE = 6790, 6760
"""Not those of the other benchmarks, which may be at work."""
ROW_BYTES = 170
"""Of a row in its table, with its header."""
CREATE = """CREATE TABLE bench_{0} (id bigint PRIMARY KEY, owner int NOT NULL,
    amount numeric(12, 2) NOT NULL, at timestamp NOT NULL, note text)"""
FILL = """INSERT INTO bench_{0} SELECT g, g % 1000, g / 7.0,
    timestamp '2020-01-01' + g * interval '1 s',
    md5(g::text) || md5((g + {0})::text) || md5((g * 3)::text) FROM generate_series(1, {1}) g"""
_OURS = ["--exclude-schema=pgherd", "--exclude-schema=pgherd_gen"]


@dataclass(frozen=True, slots=True)
class Options:
    """How much of each.

    Attributes:
        megabytes: of rows.
        turns: how often each is measured.
        cores: of Spark, and jobs or threads of the others.
        reladiff: its program, None to install it.
        clients: of each node, for what a check costs them.
    """

    megabytes: int
    turns: int
    cores: int
    reladiff: Path | None
    clients: int


@dataclass(frozen=True, slots=True)
class Took:
    """Medians of seconds: by the clock, and of processors, the servers' among them."""

    clock_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A job beside another tool."""

    what: str
    ours: Took
    theirs: Took
    goal: str


def main() -> int:
    """Measure, print and publish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of rows on each node")
    parser.add_argument("--turns", type=int, default=3, help="of which the medians are taken")
    parser.add_argument("--cores", type=int, default=2, help="of Spark, and jobs of the others")
    parser.add_argument("--reladiff", type=Path, help="its program; installed anew without")
    parser.add_argument("--clients", type=int, default=2, help="of each node, during a check")
    parser.add_argument("--only-check", action="store_true", help="and publish nothing")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="directory of the report")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    given = parser.parse_args(sys.argv[1:])
    options = Options(given.megabytes, given.turns, given.cores, given.reladiff, given.clients)
    with scratch(given.dir) as base:
        figures, told = measure(base, options, only_check=given.only_check)
    if given.only_check:
        print(table_of(figures, told, options))
    else:
        publish(figures, told, options, given.output)
    return 0


def measure(base: Path, options: Options, *, only_check: bool) -> tuple[list[Figure], list[str]]:
    """Start a herd and do all of it, one after the other; return figures, and lines beside them.

    Raises:
        BenchmarkError: The herd or a tool did not do what it should.
    """
    herd = Pgherd(base / "pgherd", PORT_BASE)
    server = PostgresServer(base / "restored", PORT)
    try:
        herd.start()
        fill(herd, options)
        server.create()
        server.start()
        began = time.monotonic()
        with cluster("benchmark", f"local[{options.cores},1]") as spark:
            lines = [f"Spark's start took {time.monotonic() - began:.1f} s."]
            jobs = Jobs(spark, herd, server, base, options)
            figures = [] if only_check else [*jobs.snapshots(), *jobs.restores()]
            figures += jobs.checks()
            return figures, [*lines, *asyncio.run(jobs.losses())]
    finally:
        server.stop()
        herd.stop()


def fill(herd: Pgherd, options: Options) -> None:
    """Give each node the same rows."""
    psql_file(SQL / "commit_latency.sql", herd.members[0].app_dsn, rows=ROWS)
    rows = options.megabytes * 1_000_000 // TABLES // ROW_BYTES
    with psycopg.connect(herd.members[0].app_dsn, autocommit=True) as connection:
        for number in range(TABLES):
            connection.execute(CREATE.format(number).encode())
    herd.herd.verify()
    for member in herd.members:
        quiet = "-c session_replication_role=replica -c synchronous_commit=off"
        with psycopg.connect(member.dsn, autocommit=True, options=quiet) as connection:
            for number in range(TABLES):
                connection.execute(FILL.format(number, rows).encode())
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


class Jobs:
    """The measurements. What a turn has made is removed when the next one is done."""

    def __init__(
        self, spark: Cluster, herd: Pgherd, server: PostgresServer, base: Path, options: Options
    ) -> None:
        self._spark, self._herd, self._server = spark, herd, server
        self._base, self._options = base, options
        self._compare = Path()
        self._dump = base / "dump"
        self._snapshot = DirectoryStore(base)
        description = herds.load(herd.herd.directory.resolve())
        self._members = {
            one.name: Member(
                one.name,
                AdminClient(description.node(one).admin_socket),
                description.dsn(one),
            )
            for one in description.members
        }

    # ---- snapshot --------------------------------------------------------------------------

    def snapshots(self) -> list[Figure]:
        """Of one node and of all, beside ``pg_dump``."""
        one, every, dump = self._in_turns(
            lambda: self._take(("n1",)), lambda: self._take(tuple(self._members)), self._pg_dump
        )
        jobs = self._options.cores
        return [
            Figure(f"snapshot of n1; `pg_dump -Fd -j {jobs}`", one, dump, "0.8"),
            Figure("snapshot, the tables shared out among n1, n2, n3; the same", every, dump, ""),
        ]

    def _take(self, read: tuple[str, ...]) -> None:
        to = self._base / "snapshots"
        shutil.rmtree(to, ignore_errors=True)
        asked = snapshot.SnapshotOptions(
            to=DirectoryStore(to),
            read=read,
            programs=postgres_bin(),
            cluster_id="benchmark",
        )
        taken = snapshot.snapshot(self._spark, self._members, asked, lambda text: None)
        self._snapshot = DirectoryStore(Path(str(asyncio.run(taken))))

    def _pg_dump(self) -> None:
        shutil.rmtree(self._dump, ignore_errors=True)
        run(
            [postgres_bin() / "pg_dump", "--format=directory", f"--jobs={self._options.cores}",
             *_OURS, f"--file={self._dump}"],
            environment=client_environment(self._herd.members[0].dsn),
        )  # fmt: skip

    # ---- restore ---------------------------------------------------------------------------

    def restores(self) -> list[Figure]:
        """Of the last snapshot, beside ``pg_restore`` of the last dump, into a plain server."""
        base = make_conninfo(self._server.dsn, dbname="postgres")
        with psycopg.connect(base, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN")  # as each herd has it
        manifest = layout.require_described(self._snapshot)
        restore.make_roles(
            self._snapshot, manifest, conninfo=base, programs=postgres_bin(), say=print
        )
        ours, theirs = self._in_turns(self._restore, self._pg_restore)
        jobs = self._options.cores
        what = f"restore of n1's, compared with its checksums; `pg_restore -j {jobs}`"
        return [Figure(what, ours, theirs, "1")]

    def _restore(self) -> None:
        restore.restore(
            self._snapshot,
            layout.require_described(self._snapshot),
            conninfo=self._fresh(),
            programs=postgres_bin(),
            jobs=self._options.cores,
            say=lambda text: None,
        )

    def _pg_restore(self) -> None:
        listed = run([postgres_bin() / "pg_restore", "--list", self._dump])
        contents = self._base / "dump.list"
        contents.write_text(archives.of_users(listed))
        where = self._fresh()
        run(
            [postgres_bin() / "pg_restore", "--exit-on-error", f"--jobs={self._options.cores}",
             f"--use-list={contents}", f"--dbname={where}", self._dump]
        )  # fmt: skip
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute("ANALYZE")  # as the restore of a snapshot does

    def _fresh(self) -> str:
        """A new database in place of the last one."""
        base = make_conninfo(self._server.dsn, dbname="postgres")
        with psycopg.connect(base, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS app")
            connection.execute("CREATE DATABASE app")
            connection.execute("CHECKPOINT")
        return self._server.dsn

    # ---- check -----------------------------------------------------------------------------

    def checks(self) -> list[Figure]:
        """Of two nodes, as reladiff compares two; reladiff gets the tables one after the other."""
        self._compare = self._options.reladiff or installed(self._base / "reladiff")
        ours, every, theirs = self._in_turns(
            lambda: self._check("n1", "n2"), lambda: self._check(*self._members), self._reladiff
        )
        what = f"reladiff, {self._options.cores} threads for each of two nodes"
        return [
            Figure(f"check of n1 and n2, equal; {what}", ours, theirs, "3"),
            Figure("check of all three; the same for two", every, theirs, ""),
        ]

    def _check(self, *names: str, share: int = FULL) -> None:
        members = {name: self._members[name] for name in names}
        asked = comparison.CheckOptions(share=share)
        found = asyncio.run(check.check(self._spark, members, asked, lambda text: None))
        if found.verdict != "consistent":
            raise BenchmarkError(f"the nodes are {found.verdict}, not consistent")

    def _reladiff(self) -> None:
        ways = [_uri(member.dsn) for member in self._herd.members[:2]]
        for number in range(TABLES):
            table = f"bench_{number}"
            found = run(
                [self._compare, ways[0], table, ways[1], table, "--key-columns=id",
                 "--columns=%", f"--threads={self._options.cores}", "--algorithm=hashdiff"]
            )  # fmt: skip
            if found.strip():
                raise BenchmarkError(f"reladiff finds differences: {found[:200]}")

    async def losses(self) -> list[str]:
        """What clients lose while checks of all nodes follow each other, at each of two paces."""
        async with load(self._herd.members, self._options.clients) as clients:
            await asyncio.sleep(SETTLE_S)
            return [
                await self._loss(clients, FULL, "as fast as it can"),
                await self._loss(clients, GENTLE, f"with {GENTLE} % of a core of each"),
            ]

    async def _loss(self, clients: Sequence[Client], share: int, how: str) -> str:
        rates: dict[bool, list[float]] = {False: [], True: []}
        took_s: list[float] = []
        for checking in (False, True) * self._options.turns:
            before, began = sum(one.commits for one in clients), time.monotonic()
            while time.monotonic() - began < 5 * SETTLE_S:
                if checking:
                    from_s = time.monotonic()
                    await asyncio.to_thread(self._check, *self._members, share=share)
                    took_s.append(time.monotonic() - from_s)
                else:
                    await asyncio.sleep(SETTLE_S)
            commits = sum(one.commits for one in clients) - before
            rates[checking].append(commits / (time.monotonic() - began))
        alone, beside = median(rates[False]), median(rates[True])
        return (
            f"Clients of all nodes had {alone:.0f} commits a second alone and {beside:.0f} while "
            f"all three were checked {how}, which took {median(took_s):.1f} s: "
            f"{100 * (1 - beside / alone):.0f} % lost (goal: below 10 %)."
        )

    def _in_turns(self, *actions: Callable[[], None]) -> list[Took]:
        """Do each as often as asked, in turns.

        A first turn does not count: Java compiles what it runs, and servers read from the disk.
        """
        took: list[list[Took]] = [[] for _ in actions]
        for action in actions:
            action()
        for _ in range(self._options.turns):
            for found, action in zip(took, actions, strict=True):
                before, began = cpu.usage(self._base), time.monotonic()
                action()
                clock_s = time.monotonic() - began
                found.append(Took(clock_s, cpu.spent_s(before, cpu.usage(self._base))))
                print(found[-1], file=sys.stderr)
        return [
            Took(median(one.clock_s for one in found), median(one.cpu_s for one in found))
            for found in took
        ]


def installed(venv: Path) -> Path:
    """Install reladiff where its dependencies are in nobody's way; return its program."""
    run([sys.executable, "-m", "venv", venv])
    run([venv / "bin" / "pip", "install", "--quiet", "reladiff[postgresql]"])
    return venv / "bin" / "reladiff"


def _uri(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    who = f"{parts['user']}:{parts.get('password', '')}"
    return f"postgresql://{who}@{parts['host']}:{parts['port']}/{parts['dbname']}"


# ---- the report ------------------------------------------------------------------------------


def publish(figures: Sequence[Figure], told: Sequence[str], options: Options, output: Path) -> None:
    """Write the JSON and the table of the page, and print the table."""
    document = {
        "machine": records.this_machine(),
        "figures": [asdict(one) for one in figures],
        "told": list(told),
    }
    (output / "jobs.json").write_text(json.dumps(document, indent=1) + "\n")
    table = table_of(figures, told, options)
    page = output / "performance.md"
    if page.exists():
        page.write_text(report.replace_section(page.read_text(), "jobs", table))
    print(table)


def table_of(figures: Sequence[Figure], told: Sequence[str], options: Options) -> str:
    """The figures as Markdown."""
    lines = [
        "| what; beside what | s | s | CPU s | CPU s | as fast | by CPU | goal | MB per CPU s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in figures:
        ours, theirs = one.ours, one.theirs
        lines.append(
            f"| {one.what} | {ours.clock_s:.1f} | {theirs.clock_s:.1f} | {ours.cpu_s:.1f}"
            f" | {theirs.cpu_s:.1f} | {theirs.clock_s / ours.clock_s:.2f}"
            f" | {theirs.cpu_s / ours.cpu_s:.2f} | {one.goal}"
            f" | {options.megabytes / ours.cpu_s:.0f} |"
        )
    head = f"{TABLES} tables, {options.megabytes:,} MB of rows, {options.cores} cores."
    return "\n".join([" ".join([head, *told]), "", *lines])


if __name__ == "__main__":
    run_main(main)
