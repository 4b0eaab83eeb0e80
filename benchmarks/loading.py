"""``python -m benchmarks.loading``: a dump loaded by psql into a herd, beside plain PostgreSQL.

A database of a given size is made in a plain server and dumped in three parts: definitions, rows,
and what ``pg_dump`` makes after the rows. Each part is loaded into a fresh database of the plain
server and into a herd through one member. The time of a herd ends when all members have it.
Prints a table; publishes nothing.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.commands import client_environment, postgres_bin, psql_file, wait_until
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import Pgherd
from benchmarks.peers.plain import PlainPostgres

SQL = Path(__file__).parent / "peers" / "sql"
SECTIONS = ("pre-data", "data", "post-data")
ROW_BYTES = 110
"""Of a row of ``loading.sql`` in the text of a dump."""
CATCH_UP_S = 600
_SOURCE, _TARGET = "loading_source", "loading_target"
_GID = "SELECT pgherd.last_gid()"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of the dump, about")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    options = parser.parse_args(sys.argv[1:])
    try:
        with tempfile.TemporaryDirectory(prefix="pgherd-bench-", dir=options.dir) as base:
            # The servers run as another account, which has to reach their directories.
            Path(base).chmod(0o755)
            bytes_dumped, plain, herd = measure(Path(base), options.megabytes)
    except psycopg.Error as error:
        raise BenchmarkError(f"a server failed: {error}") from error
    print(f"{bytes_dumped / 1e6:.0f} MB\n{table(plain, herd)}")
    return 0


def measure(base: Path, megabytes: int) -> tuple[int, Mapping[str, float], Mapping[str, float]]:
    """Return the size of the dump, and the seconds of each part: plain PostgreSQL, and a herd.

    Raises:
        BenchmarkError: A system did not start, or a dump could not be made or loaded.
        psycopg.Error: A server failed.
    """
    plain, herd = PlainPostgres(base / "plain"), Pgherd(base / "pgherd")
    with running(plain), running(herd):
        source, target = (create(plain.server.dsn, name) for name in (_SOURCE, _TARGET))
        psql_file(SQL / "loading.sql", source, rows=rows_for(megabytes))
        parts = {section: dump(source, section, base) for section in SECTIONS}
        # By turns, so that a change of the machine's mood meets both.
        plain_s, herd_s = {}, {}
        for section, file in parts.items():
            plain_s[section] = load(file, [target])
            herd_s[section] = load(file, [member.dsn for member in herd.members])
        return sum(file.stat().st_size for file in parts.values()), plain_s, herd_s


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


def load(file: Path, dsns: Sequence[str]) -> float:
    """Load a file through the first; return the seconds until all have it."""
    began = time.perf_counter()
    _run(["psql", "-X", "-q", "--set=ON_ERROR_STOP=1", f"--file={file}"], dsns[0])
    if len(dsns) > 1:
        with psycopg.connect(dsns[0], autocommit=True) as connection:
            row = connection.execute(_GID).fetchone()
        for dsn in dsns[1:]:
            await_gid(dsn, 0 if row is None else int(row[0]))
    return time.perf_counter() - began


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


def table(plain: Mapping[str, float], herd: Mapping[str, float]) -> str:
    """Return the Markdown table; the last column is the speed by plain PostgreSQL's."""
    lines = ["| part | plain, s | herd, s | speed |", "| --- | ---: | ---: | ---: |"]
    for name in (*plain, "all"):
        one = sum(plain.values()) if name == "all" else plain[name]
        other = sum(herd.values()) if name == "all" else herd[name]
        lines.append(f"| {name} | {one:.1f} | {other:.1f} | {one / other:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(main)
