"""A plain PostgreSQL server of the test's own: what a herd is compared with, or exported to."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .installations import program
from .localherd import COMMAND_TIMEOUT_S, LocalHerd, drop_schemas, query, settle


@dataclass(frozen=True)
class PlainPostgres:
    """It listens on a port of 127.0.0.1 and trusts everybody there."""

    directory: Path
    port: int
    major: int

    def dsn(self, database: str = "app", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def call(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of PostgreSQL as the account of the servers."""
        done = subprocess.run(
            [*as_account(), program(name, self.major), *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        return done

    def start(self) -> None:
        self.call(
            "pg_ctl", "start", "--wait", "--silent", f"--pgdata={self.directory}",
            f"--log={self.directory / 'start.log'}",
        )  # fmt: skip

    def stop(self, mode: str = "fast") -> None:
        self.call("pg_ctl", "stop", "--silent", f"--pgdata={self.directory}", f"--mode={mode}")


def major_of(dsn: str) -> int:
    """The major version of a server."""
    ((number,),) = query(dsn, "SHOW server_version_num")
    return int(number) // 10000


def as_account() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["runuser", "-u", os.environ.get("PGHERD_TEST_USER", "postgres"), "--"]


@contextlib.contextmanager
def plain_postgres(
    directory: Path, port: int, like: str | int, settings: str = ""
) -> Iterator[PlainPostgres]:
    """A server with the role and the database ``app``; removed at the end.

    Args:
        directory: of it, not there yet, in one that every account can enter.
        port: on which it listens.
        like: its major version, or the connection string of a server that has the same.
        settings: further lines of its configuration.
    """
    server = PlainPostgres(directory, port, like if isinstance(like, int) else major_of(like))
    directory.mkdir()
    if os.geteuid() == 0:
        shutil.chown(directory, os.environ.get("PGHERD_TEST_USER", "postgres"))
    server.call(
        "initdb", f"--pgdata={directory}", "--username=postgres", "--auth=trust",
        "--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums", "--no-sync",
    )  # fmt: skip
    with (directory / "postgresql.conf").open("a") as file:
        file.write(
            f"port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
            f"fsync = off\n{settings}"
        )
    server.start()
    try:
        query(server.dsn("postgres"), "CREATE ROLE app LOGIN")
        query(server.dsn("postgres"), "CREATE DATABASE app OWNER app")
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(directory)


def forget_set(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    """Remove a set, the subscription to it and the schema of its tables, all of this name."""
    herd.top("unsubscribe", name, "--herd-only")
    herd.top("set", "drop", name)
    settle(herd)
    query(herd.dsn("n1"), f"DROP SCHEMA {name} CASCADE")
    drop_schemas(subscriber.dsn(), "pgherd_subscriber", name)
