"""``python -m compatibility``: known test suites on a plain server and on a herd.

Prints for each suite how many of the tests that pass on a plain server pass on node 1 of a herd,
and what the others fail with. Exit status 1 if a member of the herd differs or had to be rebuilt.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
from integration.localherd import LocalHerd, free_port_base, settle
from places import free_port
from psycopg.conninfo import make_conninfo

from benchmarks.herd import sidecar_logs
from benchmarks.peers.postgres import PostgresServer
from benchmarks.trouble import Logs
from compatibility.isolation import Isolation, SnapshotIsolation
from compatibility.outcomes import NoReportError, compare, outcomes
from compatibility.regression import Regression
from compatibility.sources import FetchError
from compatibility.suites import Django, Psycopg, Server, SqlAlchemy, Suite

SUITES: dict[str, Suite] = {
    "psycopg": Psycopg(),
    "sqlalchemy": SqlAlchemy(),
    "django": Django(),
    "regress": Regression(),
    "isolation": Isolation(),
    "snapshots": SnapshotIsolation(),
}


@contextlib.contextmanager
def plain_server(directory: Path) -> Iterator[Server]:
    """A plain PostgreSQL server with the same role and database."""
    server = PostgresServer(directory / "plain", free_port())
    server.create()
    server.start()
    try:
        maintenance = make_conninfo(server.dsn, dbname="postgres")
        with psycopg.connect(maintenance, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN")
            connection.execute("CREATE DATABASE app OWNER app")
        yield Server(make_conninfo(server.dsn, user="app"), server.dsn)
    finally:
        server.stop()


@contextlib.contextmanager
def herd_of_three(directory: Path) -> Iterator[tuple[Server, LocalHerd]]:
    """A herd, and the ways to its node 1."""
    herd = LocalHerd(directory / "herd", free_port_base())
    try:
        done = herd.up("--capture", "auto")
        if done.returncode:
            raise SystemExit(done.stderr)
        node = herd.node("n1")
        yield Server(node.app_dsn, node.dsn), herd
    finally:
        herd.run("destroy")


def play(name: str, work: Path, only: Sequence[str], *, reports: Path) -> bool:
    """Run a suite on both; print how that went.

    Returns:
        Whether all members of the herd are equal and none was in trouble.
    """
    suite = SUITES[name]
    suite.fetch(work)
    for old in reports.glob(f"{name}-*"):  # or it would be read where a run writes none
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    took: dict[str, float] = {}
    sound = True
    with _directory() as directory:
        with plain_server(directory) as server:
            began = time.monotonic()
            suite.run(server, work, reports / f"{name}-plain.xml", only)
            took["plain"] = time.monotonic() - began
        with herd_of_three(directory) as (server, herd):
            logs = Logs(lambda: sidecar_logs(herd.directory))
            began = time.monotonic()
            suite.run(server, work, reports / f"{name}-herd.xml", only)
            took["herd"] = time.monotonic() - began
            settle(herd)
            verified = herd.run("verify")
            if verified.returncode:
                say(f"{name}: members differ: {verified.stdout}{verified.stderr}")
                sound = False
            for trouble in logs.pop():
                say(f"{name}: {trouble}")
                sound = False
    found = compare(outcomes(reports / f"{name}-plain.xml"), outcomes(reports / f"{name}-herd.xml"))
    say(
        f"{suite.name} {suite.version}: {found.herd} of {found.plain} that pass on plain"
        f" PostgreSQL, {found.skipped} skipped there; {found.whole} of {found.files} files whole;"
        f" {took['herd'] / took['plain']:.1f} times as long"
    )
    for cause, count in found.causes().most_common():
        say(f"  {count:5} {cause}; {found.files_spoilt_by(cause)} files differ by nothing else")
    (reports / f"{name}-differing.txt").write_text(
        "".join(f"==== {test}\n{text}\n" for test, text in sorted(found.differing.items()))
    )
    return sound


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgherd-compatibility-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m compatibility", description=__doc__)
    parser.add_argument("suite", nargs="*", choices=[[], *SUITES], help="all when none is named")
    parser.add_argument("--only", nargs="*", default=[], help="tests, in the suite's own words")
    parser.add_argument("--work", type=Path, default=Path("build/compatibility"))
    options = parser.parse_args()
    work = options.work.absolute()
    reports = work / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    try:
        sound = [
            play(name, work, options.only, reports=reports) for name in options.suite or SUITES
        ]
    except (FetchError, NoReportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
