"""The ``pgherd local`` command as the integration tests call it, and what they look at."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from patience import PATIENCE, wait_until
from pgherd_sidecar.cli.shared import render
from pgherd_sidecar.local.herd import load
from pgherd_sidecar.local.node import states_of
from pgherd_sidecar.local.operations.lifecycle import nodes_of
from pgherd_sidecar.local.sidecar import SCRIPT_VARIABLE
from pgherd_sidecar.pg import trusted

from . import herdlogs, installations
from .repeating import is_in_transaction, repeats_s

COMMAND_TIMEOUT_S = 300 * PATIENCE
NODES = 3
LAST_GID = "SELECT pgherd.last_gid()"
NATIVE = os.environ.get("PGHERD_TEST_NATIVE", "") not in ("", "0")
"""Herds of the tests capture by the native module: docs/native.md."""
_PORTS_TO_TRY = range(20000, 30000, 250)
_kept_ports: set[int] = set()
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")
BROKEN_SIDECAR = "import sys; sys.exit('cannot open the log: bad checksum')\n"
SLEEPING_SIDECAR = "import time; time.sleep(600)\n"
_OTHER_LIMITS = """
import json, pathlib, sys
from pgherd_sidecar.agent.main import main
path = pathlib.Path(sys.argv[2])
config = json.loads(path.read_text())
config["limits"] |= {limits}
path = path.with_suffix(".limits")
path.write_text(json.dumps(config))
sys.argv[2] = str(path)
main()
"""


class Node(NamedTuple):
    """How to reach one node: as its superuser, and as the ordinary role ``app``."""

    name: str
    dsn: str
    app_dsn: str


@dataclass
class LocalHerd:
    """A herd directory and the command line on it. ``environment`` is added to the command's."""

    directory: Path
    port_base: int
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        herdlogs.watch(self.directory)

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``pgherd local COMMAND ... --dir`` and return how it went, whatever it was."""
        return self.top("local", command, *arguments)

    def top(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``pgherd COMMAND ... --dir`` likewise; the command may remove logs."""
        herdlogs.LOGS.look()
        return subprocess.run(
            [sys.executable, "-m", "pgherd_sidecar.cli.main", *words, "--dir", str(self.directory)],
            env=os.environ | self.surroundings(words),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def without_directory(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``pgherd COMMAND ...`` likewise, a command that concerns no herd's directory."""
        return subprocess.run(
            [sys.executable, "-m", "pgherd_sidecar.cli.main", *words],
            env=os.environ | self.surroundings(words),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def surroundings(self, words: Sequence[str]) -> dict[str, str]:
        """What a command finds in its environment beside ours."""
        return self.environment

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
        """Run ``up`` with this herd's ports and account; every transaction has a fingerprint.

        Rows are captured in SQL, or by the native module where ``NATIVE`` asks for it.
        """
        user = ["--user", os.environ.get("PGHERD_TEST_USER", "postgres")]
        as_user = user if os.geteuid() == 0 and "--user" not in arguments else []
        complete = [] if "--fingerprint-every" in arguments else ["--fingerprint-every", "1"]
        capture = [] if "--capture" in arguments else ["--capture", "auto" if NATIVE else "sql"]
        ports = ["--port-base", str(self.port_base)]
        version = [] if "--postgres-bin" in arguments else installations.own()
        return self.run("up", *ports, *as_user, *complete, *capture, *version, *arguments)

    def members(self) -> list[dict[str, Any]]:
        """The members as ``status --json`` shows them."""
        members: list[dict[str, Any]] = self.summary()["members"]
        return members

    def summary(self) -> dict[str, Any]:
        """All that ``status --json`` says, found in this process: tests ask it in loops.

        In a thread of its own, because those that ask may run in an event loop.
        """
        description = load(home(self))
        with ThreadPoolExecutor(1) as pool:
            states = pool.submit(asyncio.run, states_of(nodes_of(description))).result()
        said: dict[str, Any] = json.loads(render.states(description, states, as_json=True))
        return said

    def member(self, name: str) -> dict[str, Any]:
        """One member as ``status --json`` shows it."""
        return next(member for member in self.members() if member["name"] == name)

    def nodes(self) -> list[Node]:
        """The ways to all nodes with a database, whether or not they are up."""
        herd = load(home(self))
        return [Node(one.name, herd.dsn(one), herd.app_dsn(one)) for one in herd.databases]

    def node(self, name: str) -> Node:
        """The ways to one node."""
        return next(node for node in self.nodes() if node.name == name)

    def dsn(self, name: str) -> str:
        """The superuser's way to a node."""
        return self.node(name).dsn

    def app_dsn(self, name: str) -> str:
        """The ordinary role's way to a node."""
        return self.node(name).app_dsn


def scripted(directory: Path, name: str, text: str) -> dict[str, str]:
    """The environment of a herd whose sidecars run this, which is put where they can read it."""
    script = directory / f"{name}.py"
    script.write_text(text)
    script.chmod(0o644)
    return {SCRIPT_VARIABLE: str(script)}


def limited(directory: Path, name: str, **limits: int) -> dict[str, str]:
    """Likewise, of sidecars whose configuration has these limits."""
    return scripted(directory, name, _OTHER_LIMITS.format(limits=limits))


@contextlib.contextmanager
def standing(herd: LocalHerd, *options: str) -> Iterator[LocalHerd]:
    """A new herd, which goes at the end, also after what failed: a fixture may be repeated."""
    try:
        done = herd.up(*options)
        assert done.returncode == 0, done.stderr
        yield herd
    finally:
        if herd.directory.exists():
            herd.must("destroy")


def settle(herd: LocalHerd, last_gid: Callable[[str], int] | None = None) -> None:
    """Wait until each node has applied what any of them has committed.

    Args:
        last_gid: asks the node behind a connection string what that is.
    """
    ask = last_gid or _last_gid
    wanted = max(ask(node.dsn) for node in herd.nodes())
    for node in herd.nodes():
        told = f"{node.name} stays behind GID {wanted}"
        wait_until(partial(ask, node.dsn), lambda seen: seen >= wanted, told=partial(str, told))


def home(herd: LocalHerd) -> Path:
    """Where the herd's files really are."""
    link = herd.directory / "herd"
    return link.readlink() if link.is_symlink() else herd.directory


def keep_ports(base: int) -> None:
    """Keep ports for a herd that does not run all the time."""
    _kept_ports.add(base)


def free_port_base(nodes: int = NODES) -> int:
    """Return a port base of which no port is in use, below the kernel's ephemeral range.

    Each of the processes that run tests side by side has bases of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    bases = _PORTS_TO_TRY[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    free = [base for base in bases if base not in _kept_ports]
    for base in random.sample(free, len(free)):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(1, nodes + 1):
                for port in (base + number, base + 100 + number, base + 200 + number):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
            return base
    raise AssertionError("no free ports on this machine")


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement, and return its rows: one without columns is an empty tuple.

    It is repeated after 40001, as that asks.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        return query_on(connection, statement)


def query_on(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    """Do the same in a session that is there."""
    for pause_s in repeats_s(connection):
        try:
            return rows_of(connection, statement)
        except psycopg.errors.SerializationFailure:
            if is_in_transaction(connection):
                raise
            time.sleep(pause_s)
    return rows_of(connection, statement)


def put(herd: LocalHerd, dsn: str, statements: str) -> None:
    """Execute a message there, and wait until each node has applied it."""
    query(dsn, statements)
    settle(herd)


def rows_of(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    """Execute a message of one or more statements once; return the rows of the last."""
    cursor = connection.execute(statement.encode())
    while cursor.nextset():
        pass
    return cursor.fetchall() if _returns_rows(cursor) else []


def drop_schemas(dsn: str, *names: str) -> None:
    """Drop those that are there; again after a deadlock with a feeder that is about to leave."""
    wait_until(
        partial(query, dsn, f"DROP SCHEMA IF EXISTS {', '.join(names)} CASCADE"),
        lambda _: True,
        despite=(psycopg.errors.DeadlockDetected,),
    )


def _returns_rows(cursor: psycopg.Cursor[Any]) -> bool:
    """Whether its statement was a query; ``description`` is None for one without columns, too."""
    result = cursor.pgresult
    return result is not None and result.status == psycopg.pq.ExecStatus.TUPLES_OK


def _last_gid(dsn: str) -> int:
    """What a node has applied; settings of the database that are on their way don't matter."""
    with psycopg.connect(dsn, autocommit=True, options=trusted.options()) as connection:
        return int(rows_of(connection, LAST_GID)[0][0])


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command that could not be done: exactly one line, after any progress."""
    assert done.returncode == 2, done
    errors = [line for line in done.stderr.splitlines() if line.startswith("pgherd: ")]
    assert errors == done.stderr.splitlines()[-1:]
    assert "Traceback" not in done.stderr
    return errors[0]


def refuses_to(dsn: str, statement: str) -> bool:
    """Is it refused since no writes are taken there? What is done is taken back."""
    with psycopg.connect(dsn) as session:
        try:
            session.execute(statement.encode())
        except psycopg.errors.ReadOnlySqlTransaction:
            return True
        session.rollback()
    return False


def command_line(pid: int) -> str:
    """The words of a process, with blanks between them; none if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


def pids_in(directory: Path) -> list[int]:
    """The processes that name ``directory`` in their command line or work in it: all of a herd."""
    pids = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # gone meanwhile
            if process.name.isdecimal() and (
                str(directory).encode() in (process / "cmdline").read_bytes()
                or works_in(process, directory)
            ):
                pids.append(int(process.name))
    return pids


def sidecar_pid(herd: LocalHerd, node: str) -> int:
    """The process of a node's sidecar."""
    return int((home(herd) / node / "sidecar.pid").read_text().split()[0])


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """SIGSTOP for as long as the block lasts."""
    assert pids
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def works_in(process: Path, directory: Path) -> bool:
    """False for processes of other accounts where root may not look at them (containers)."""
    with contextlib.suppress(PermissionError):
        return (process / "cwd").readlink().is_relative_to(directory)
    return False


def assert_nothing_left(herd: LocalHerd) -> None:
    assert not herd.directory.exists()
    assert pids_in(herd.directory) == []
