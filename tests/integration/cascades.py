"""Subscribers that feed others: what the tests of them share."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from .localherd import LocalHerd, drop_schemas, free_port_base, query, settle
from .plainpostgres import PlainPostgres, plain_postgres


class Forward:
    """``pgherd forward`` at one subscriber, until it is killed.

    Args:
        dsn: of the subscriber, as this process reaches it.
        log: what it says goes there.
        home: its home directory, if it is not ours: services of libpq are in it.
    """

    def __init__(self, dsn: str, log: Path, home: Path | None = None) -> None:
        self._dsn = dsn
        self._log = log
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        more = {} if self._home is None else {"HOME": str(self._home)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pgherd_sidecar.cli.main", "forward", "--at", self._dsn],
                env=os.environ | more,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Without a word."""
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> int | None:
        """By SIGTERM; return its status, None if it had ended."""
        if self._process is None or self._process.poll() is not None:
            return None
        self._process.terminate()
        return self._process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def forwarding(
    directory: Path, *dsns: str, homes: tuple[Path, ...] = ()
) -> Iterator[list[Forward]]:
    """One for each subscriber, as long as the block lasts."""
    started = [
        Forward(dsn, directory / f"forward-{at}-{time.monotonic_ns()}.log", *homes[at : at + 1])
        for at, dsn in enumerate(dsns)
    ]
    try:
        yield started
    finally:
        for one in started:
            one.end()


@contextlib.contextmanager
def three_servers(
    herd: LocalHerd, directory: Path, names: tuple[str, str, str]
) -> Iterator[list[PlainPostgres]]:
    """Plain servers to subscribe with, in directories of these names."""
    base, like = free_port_base(), herd.dsn("n1")
    with (
        plain_postgres(directory / names[0], base + 91, like) as a,
        plain_postgres(directory / names[1], base + 92, like) as b,
        plain_postgres(directory / names[2], base + 93, like) as c,
    ):
        yield [a, b, c]


@contextlib.contextmanager
def schema_to_follow(herd: LocalHerd, servers: list[PlainPostgres], prefix: str) -> Iterator[str]:
    """A schema with a table of a hundred rows; what follows it is ended with it."""
    found = f"{prefix}_{random.getrandbits(32):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE SCHEMA {found}; CREATE TABLE {found}.t (id int PRIMARY KEY, v text);"
        f" INSERT INTO {found}.t SELECT i, 'v' || i FROM generate_series(1, 100) i",
    )
    settle(herd)
    yield found
    end(herd, found, *servers)
    settle(herd)
    query(herd.dsn("n1"), f"DROP SCHEMA {found} CASCADE")


def end(herd: LocalHerd, set_name: str, *servers: PlainPostgres) -> None:
    """Remove a set with all that follows it, from the last hop on."""
    for _ in range(5):
        for name in subscriptions_to(herd, set_name):
            herd.top("unsubscribe", name, "--herd-only")
    herd.top("set", "drop", set_name)
    for server in servers:
        drop_schemas(server.dsn(), "pgherd_subscriber", set_name)


def subscriptions_to(herd: LocalHerd, set_name: str) -> list[str]:
    statement = "SELECT name FROM pgherd_subscriptions.subscription WHERE set = '{}' ORDER BY 1"
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        return [name for (name,) in query(herd.dsn("n1"), statement.format(set_name))]
    return []
