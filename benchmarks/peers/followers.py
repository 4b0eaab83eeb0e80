"""A plain PostgreSQL server that follows tables of another system.

The systems are a herd, a server with logical replication, and a server with Slony-I. Each has the
settings that its own documentation begins with. Called by ``benchmarks.following``.
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import psycopg

from benchmarks.commands import (
    last_line,
    postgres_bin,
    program,
    psql_file,
    run,
    wait_until,
)
from benchmarks.errors import BenchmarkError
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import Pgherd
from benchmarks.peers.postgres import SQL, PostgresServer

TABLES = ("followed_a", "followed_b", "followed_log", "followed_mark")
ROWS = 100_000
HERD_PORTS = 7700
LOGICAL_PORTS = (7721, 7722)
SLONY_PORTS = (7731, 7732)
SUBSCRIBER_PORT = 7719
READY_S = 300.0
_SCHEMA = SQL / "following.sql"


class Follower(Protocol):
    """One server that follows another system.

    Attributes:
        writers: connection strings of the members that clients write to.
        there: that of a superuser of the subscriber.
    """

    writers: Sequence[str]
    there: str

    def start(self, stack: ExitStack) -> None:
        """Start all of it, and return when the subscriber has the rows.

        Args:
            stack: ends what was started.

        Raises:
            BenchmarkError: It cannot run here, or did not start.
        """


class HerdFollower:
    """A subscription to a set of a herd of three."""

    def __init__(self, directory: Path) -> None:
        self._herd = Pgherd(directory / "herd", HERD_PORTS)
        self._server = PostgresServer(directory / "subscriber", SUBSCRIBER_PORT)
        self.writers: Sequence[str] = ()
        self.there = self._server.dsn

    def start(self, stack: ExitStack) -> None:
        """See Follower."""
        stack.enter_context(running(self._herd))
        self.writers = [member.app_dsn for member in self._herd.members[:2]]
        _serve(self._server, stack)
        psql_file(_SCHEMA, self.writers[0], rows=ROWS)
        self._say("set", "create", "bench", "--tables", ",".join(TABLES))
        self._say("subscribe", "bench", "--to", self.there, "--wait")

    def _say(self, *words: str) -> None:
        herd = self._herd.herd
        run([herd.program, *words, "--dir", herd.directory])


class LogicalFollower:
    """A subscription to a publication of one server, both PostgreSQL's own."""

    def __init__(self, directory: Path) -> None:
        self._origin, self._server = (
            PostgresServer(directory / name, port)
            for name, port in zip(("origin", "subscriber"), LOGICAL_PORTS, strict=True)
        )
        self.writers: Sequence[str] = [self._origin.dsn]
        self.there = self._server.dsn

    def start(self, stack: ExitStack) -> None:
        """See Follower."""
        _serve(self._origin, stack, {"wal_level": "logical"})
        _serve(self._server, stack)
        psql_file(_SCHEMA, self._origin.dsn, rows=ROWS)
        psql_file(_SCHEMA, self.there, rows=0)
        tables = ", ".join(TABLES)
        _execute(self._origin.dsn, f"CREATE PUBLICATION bench FOR TABLE {tables}")
        _execute(
            self.there,
            f"CREATE SUBSCRIPTION bench CONNECTION '{self._origin.dsn}' PUBLICATION bench",
        )
        # While it has a slot, its server stops; the origin, which stops after it, waits for nobody.
        _await_rows(self.there)


class SlonyFollower:
    """A subscriber node of a Slony-I cluster of two."""

    def __init__(self, directory: Path) -> None:
        self._slonik = program("slonik", package="slony1-2-bin")
        self._slon = program("slon", package="slony1-2-bin")
        self._directory = directory
        self._servers = [
            PostgresServer(directory / f"node{number}", port)
            for number, port in enumerate(SLONY_PORTS, 1)
        ]
        self.writers: Sequence[str] = [self._servers[0].dsn]
        self.there = self._servers[1].dsn

    def start(self, stack: ExitStack) -> None:
        """See Follower."""
        for server, rows in zip(self._servers, (ROWS, 0), strict=True):
            _serve(server, stack)
            psql_file(_SCHEMA, server.dsn, rows=rows)
        self._say(
            "init cluster (id = 1);",
            "store node (id = 2, event node = 1);",
            f"store path (server = 1, client = 2, conninfo = '{self.writers[0]}');",
            f"store path (server = 2, client = 1, conninfo = '{self.there}');",
            "create set (id = 1, origin = 1);",
            *(
                f"set add table (set id = 1, origin = 1, id = {number},"
                f" fully qualified name = 'public.{table}');"
                for number, table in enumerate(TABLES, 1)
            ),
        )
        for server in self._servers:
            self._feed(server, stack)
        self._say("subscribe set (id = 1, provider = 1, receiver = 2, forward = no);")
        _await_rows(self.there)

    def _feed(self, server: PostgresServer, stack: ExitStack) -> None:
        """Start the daemon of one node."""
        log = stack.enter_context((server.directory / "slon.log").open("w"))
        daemon = subprocess.Popen(
            [self._slon, "bench", server.dsn],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)

    def _say(self, *words: str) -> None:
        nodes = (
            f"node {number} admin conninfo = '{server.dsn}';"
            for number, server in enumerate(self._servers, 1)
        )
        done = subprocess.run(
            [self._slonik],
            input="\n".join(("cluster name = bench;", *nodes, *words)),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(
                f"slonik: {last_line(done.stderr + done.stdout)}: it needs slony1-2-bin, and"
                f" postgresql-N-slony1-2 of the PostgreSQL in {postgres_bin()}"
            )


FOLLOWERS: Mapping[str, Callable[[Path], Follower]] = {
    "pgherd": HerdFollower,
    "logical": LogicalFollower,
    "slony": SlonyFollower,
}


def _serve(
    server: PostgresServer, stack: ExitStack, settings: dict[str, str] | None = None
) -> None:
    """Start a new server with an empty database."""
    stack.callback(shutil.rmtree, server.directory, ignore_errors=True)
    server.create()
    server.configure(settings or {})
    stack.callback(server.stop)
    server.start()
    server.create_database()


def _execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(statement.encode())


def _await_rows(dsn: str) -> None:
    """Wait until a subscriber has what its tables began with."""

    def complete() -> bool:
        with psycopg.connect(dsn) as session:
            found = session.execute(
                "SELECT (SELECT count(*) FROM followed_a) + (SELECT count(*) FROM followed_b)"
            ).fetchone()
        return found == (2 * ROWS,)

    wait_until(complete, timeout_s=READY_S, failure="the subscriber has not got the first copy")
