"""``python -m benchmarks.loading``: a dump loaded by psql into a herd, beside plain PostgreSQL.

A database of a given size is made in a plain server and dumped in three parts: definitions, rows,
and what ``pg_dump`` makes after the rows. Each part is loaded into a fresh database of the plain
server and into a herd through one member. The time of a herd ends when all members have it. The
CPU time is that of the servers, the sidecars and psql; it is compared by member, since each of the
three writes all rows. Prints a table; publishes nothing.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks import cpu
from benchmarks.commands import client_environment, postgres_bin, psql_file, scratch, wait_until
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.herd import Capture
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import Pgherd
from benchmarks.peers.plain import PlainPostgres

SQL = Path(__file__).parent / "peers" / "sql"
SECTIONS = ("pre-data", "data", "post-data")
ROW_BYTES = 110
"""Of a row of ``loading.sql`` in the text of a dump."""
CATCH_UP_S = 600
MEMBERS = 3
_SOURCE, _TARGET = "loading_source", "loading_target"
_GID = "SELECT pgherd.last_gid()"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of loading one part: seconds on the clock, and of CPU."""

    wall_s: float
    cpu_s: float


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of the dump, about")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    parser.add_argument("--capture", choices=("auto", "sql"), default="auto", help="of the herd")
    options = parser.parse_args(sys.argv[1:])
    try:
        with scratch(options.dir) as base:
            bytes_dumped, plain, herd = measure(base, options.megabytes, options.capture)
    except psycopg.Error as error:
        raise BenchmarkError(f"a server failed: {error}") from error
    print(f"{bytes_dumped / 1e6:.0f} MB\n{table(plain, herd)}")
    return 0


def measure(
    base: Path, megabytes: int, capture: Capture
) -> tuple[int, Mapping[str, Cost], Mapping[str, Cost]]:
    """Return the size of the dump, and the cost of each part: plain PostgreSQL, and a herd.

    Args:
        base: where the servers' directories and the dump go.
        megabytes: of the dump, about.
        capture: how the herd captures rows.

    Raises:
        BenchmarkError: A system did not start, or a dump could not be made or loaded.
        psycopg.Error: A server failed.
    """
    plain, herd = PlainPostgres(base / "plain"), Pgherd(base / "pgherd", capture=capture)
    with running(plain), running(herd):
        source, target = (create(plain.server.dsn, name) for name in (_SOURCE, _TARGET))
        psql_file(SQL / "loading.sql", source, rows=rows_for(megabytes))
        parts = {section: dump(source, section, base) for section in SECTIONS}
        # By turns, so that a change of the machine's mood meets both.
        one, other = {}, {}
        for section, file in parts.items():
            one[section] = load(file, [target], plain.directory)
            other[section] = load(file, [member.dsn for member in herd.members], herd.directory)
        return sum(file.stat().st_size for file in parts.values()), one, other


def rows_for(megabytes: int) -> int:
    """Return how many rows make a dump of that size: a multiple of eight, one for each table."""
    return max(1, megabytes * 1_000_000 // ROW_BYTES // 8) * 8


def create(dsn: str, name: str) -> str:
    """Make a database; return how to connect to it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_conninfo(dsn, dbname=name)


def dump(dsn: str, section: str, directory: Path) -> Path:
    """Dump one part of a database into a file."""
    target = directory / f"{section}.sql"
    _run(["pg_dump", "--no-owner", f"--section={section}", f"--file={target}"], dsn)
    return target


def load(file: Path, dsns: Sequence[str], directory: Path) -> Cost:
    """Load a file through the first; return what it took until all have it.

    Args:
        file: for psql.
        dsns: of all members.
        directory: the servers' and sidecars', whose CPU time is counted.
    """
    used, began = cpu.usage(directory), time.perf_counter()
    _run(["psql", "-X", "-q", "--set=ON_ERROR_STOP=1", f"--file={file}"], dsns[0])
    if len(dsns) > 1:
        with psycopg.connect(dsns[0], autocommit=True) as connection:
            row = connection.execute(_GID).fetchone()
        for dsn in dsns[1:]:
            await_gid(dsn, 0 if row is None else int(row[0]))
    return Cost(time.perf_counter() - began, cpu.spent_s(used, cpu.usage(directory)))


def await_gid(dsn: str, gid: int) -> None:
    """Return when a member has applied everything up to there.

    Raises:
        BenchmarkError: It took too long.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:

        def reached() -> bool:
            row = connection.execute(_GID).fetchone()
            return row is not None and int(row[0]) >= gid

        wait_until(reached, timeout_s=CATCH_UP_S, failure=f"a member did not reach GID {gid}")


def _run(command: Sequence[str], dsn: str) -> None:
    done = subprocess.run(
        [postgres_bin() / command[0], *command[1:]],
        env=client_environment(dsn),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{command[0]} failed: {done.stderr.strip()[:500]}")


def table(plain: Mapping[str, Cost], herd: Mapping[str, Cost]) -> str:
    """Return the Markdown table; the speeds are by plain PostgreSQL's, that by CPU of a member."""
    lines = [
        "| part | plain, s | herd, s | speed | plain, CPU s | herd, CPU s | speed by CPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in (*plain, "all"):
        one, other = (total(costs) if name == "all" else costs[name] for costs in (plain, herd))
        speed, by_cpu = one.wall_s / other.wall_s, MEMBERS * one.cpu_s / other.cpu_s
        lines.append(
            f"| {name} | {one.wall_s:.1f} | {other.wall_s:.1f} | {speed:.2f}"
            f" | {one.cpu_s:.1f} | {other.cpu_s:.1f} | {by_cpu:.2f} |"
        )
    return "\n".join(lines)


def total(costs: Mapping[str, Cost]) -> Cost:
    """The sum of all parts."""
    return Cost(sum(c.wall_s for c in costs.values()), sum(c.cpu_s for c in costs.values()))


if __name__ == "__main__":
    run_main(main)
