"""A herd of real servers for the integration tests, driven through the ``pgherd`` command.

Started as root the servers run as ``PGHERD_TEST_USER`` (default ``postgres``), otherwise as the
caller. Everything lies below ``PGHERD_TEST_DIR``, because pytest's own temporary directories are
closed to other accounts and their names too long for sockets; by default that is in memory where
there is room, for speed: what a killed process has written survives there as well as on a disk.
"""

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

COMMAND_TIMEOUT_S = 300
NODES = 3
_ROOM_BYTES = 8 << 30
_PORTS_TO_TRY = range(20000, 30000, 250)


@dataclass
class LocalHerd:
    """A herd directory and the command line on it. ``environment`` is added to the command's."""

    directory: Path
    port_base: int
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``pgherd local COMMAND ... --dir`` and return how it went, whatever it was."""
        return subprocess.run(
            self.command(command, *arguments),
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def command(self, command: str, *arguments: str) -> list[str]:
        """The command line, for tests that start it themselves."""
        program = [sys.executable, "-m", "pgherd_sidecar.cli.main", "local", command]
        return [*program, *arguments, "--dir", str(self.directory)]

    def must(self, command: str, *arguments: str) -> str:
        """Run a command that has to succeed; return its stdout."""
        done = self.run(command, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``up`` with this herd's ports and account."""
        user = ["--user", os.environ.get("PGHERD_TEST_USER", "postgres")]
        as_user = user if os.geteuid() == 0 and "--user" not in arguments else []
        return self.run("up", "--port-base", str(self.port_base), *as_user, *arguments)

    def members(self) -> list[dict[str, Any]]:
        """The members as ``status --json`` shows them."""
        members: list[dict[str, Any]] = json.loads(self.must("status", "--json"))["members"]
        return members

    def member(self, name: str) -> dict[str, Any]:
        """One member as ``status --json`` shows it."""
        return next(member for member in self.members() if member["name"] == name)


def free_port_base(nodes: int = NODES) -> int:
    """Return a port base of which no port is in use, below the kernel's ephemeral range."""
    for base in random.sample(_PORTS_TO_TRY, len(_PORTS_TO_TRY)):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(1, nodes + 1):
                for port in (base + number, base + 100 + number):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
            return base
    raise AssertionError("no free ports on this machine")


@pytest.fixture(scope="session")
def work_directory() -> Iterator[Path]:
    """A short directory that every account can enter; removed at the end."""
    parent = os.environ.get("PGHERD_TEST_DIR") or _default_parent()
    directory = Path(tempfile.mkdtemp(prefix="pgherd-test-", dir=parent))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def _default_parent() -> str:
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_BYTES
    return str(memory) if roomy and os.access(memory, os.W_OK) else "/tmp"


@pytest.fixture(scope="session")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd of three with real sidecars, for the whole session."""
    herd = LocalHerd(work_directory / "herd", free_port_base())
    done = herd.up()
    assert done.returncode == 0, done.stderr
    yield herd
    herd.must("destroy")


@pytest.fixture
async def connections(herd: LocalHerd) -> AsyncIterator[list[psycopg.AsyncConnection[Any]]]:
    """A connection of the ordinary role ``app`` to each node, in the order of the nodes."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(member["app_dsn"], autocommit=True)
            )
            for member in herd.members()
        ]


@pytest.fixture
async def schema(
    connections: list[psycopg.AsyncConnection[Any]], herd: LocalHerd
) -> AsyncIterator[str]:
    """A schema of this test alone, first in the search path of all ``connections``."""
    name = f"t_{random.getrandbits(40):x}"
    await connections[0].execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    for connection in connections:
        await connection.execute(
            sql.SQL("SET search_path = {}, public").format(sql.Identifier(name))
        )
    yield name
    async with await psycopg.AsyncConnection.connect(
        herd.members()[0]["dsn"], autocommit=True
    ) as connection:
        await connection.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
        )
