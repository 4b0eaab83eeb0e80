"""Real balancers and poolers in front of a herd, by the example files of docs/clients."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import join, wait_until
from pgherd_sidecar.local.herd import load

from benchmarks.balancers import EXAMPLES, Ports, find, haproxy, pgbouncer

from .localherd import (
    COMMAND_TIMEOUT_S,
    LocalHerd,
    free_port_base,
    home,
    put,
    query,
    settle,
    standing,
)

Connection = psycopg.Connection[tuple[Any, ...]]

_REQUIRED = os.environ.get("PGHERD_TEST_CLIENTS") == "required"


def require(name: str) -> None:
    """Skip the test where a program is missing, unless it is required."""
    if find(name) is None and not _REQUIRED:
        pytest.skip(f"there is no {name} here: scripts/setup clients installs it")


@pytest.fixture(scope="module")
def served(work_directory: Path) -> Iterator[LocalHerd]:
    herd = LocalHerd(work_directory / "served", free_port_base())
    with standing(herd):
        query(herd.app_dsn("n1"), "CREATE TABLE t (id bigserial PRIMARY KEY, client int, v int)")
        query(herd.app_dsn("n1"), "CREATE TABLE counter (id int PRIMARY KEY, v int NOT NULL)")
        query(herd.app_dsn("n1"), "INSERT INTO counter SELECT g, 0 FROM generate_series(1, 20) g")
        settle(herd)
        yield herd


@pytest.fixture(scope="module")
def balancer(served: LocalHerd, work_directory: Path) -> Iterator[Ports]:
    require("haproxy")
    with haproxy(served.port_base, work_directory) as ports:
        yield ports


@contextlib.contextmanager
def pooled(herd: LocalHerd, directory: Path, more: str = "", size: int = 2) -> Iterator[str]:
    """PgBouncer, with few server connections for many clients; yields how to connect to it."""
    require("pgbouncer")
    user = os.environ.get("PGHERD_TEST_USER", "postgres") if os.geteuid() == 0 else None
    password, own = load(home(herd)).app_password, directory / f"pgbouncer-{size}{len(more)}"
    with pgbouncer(herd.port_base, own, password, user=user, size=size, more=more) as dsn:
        yield dsn


def through(herd: LocalHerd, port: int) -> str:
    password = load(home(herd)).app_password
    return f"postgresql://app:{password}@127.0.0.1:{port}/app?connect_timeout=2"


def where(dsn: str) -> str:
    return str(query(dsn, "SHOW cluster_name")[0][0])


class Writer:
    """An application that repeats what failed before COMMIT was sent, and never the rest blindly.

    Args:
        dsn: of a balancer or pooler.
        client: whose rows.
    """

    def __init__(self, dsn: str, client: int) -> None:
        self._dsn = dsn
        self._client = client
        self.told: list[tuple[float, int]] = []
        self.unknown: list[int] = []
        self.codes: dict[str | None, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        join(self._thread)

    def _run(self) -> None:
        value = 0
        while not self._stop.is_set():
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None) as connection,
            ):
                while not self._stop.is_set():
                    value += 1
                    self._write(connection, value)
            time.sleep(0.05)

    def _write(self, connection: Connection, value: int) -> None:
        sent = False
        try:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO t (client, v) VALUES (%s, %s)", (self._client, value))
                cursor.execute(
                    "UPDATE counter SET v = v + 1 WHERE id = %s", (1 + self._client % 20,)
                )
                sent = True
                cursor.execute("COMMIT")
            self.told.append((time.monotonic(), value))
        except psycopg.Error as error:
            self.codes[error.sqlstate] = self.codes.get(error.sqlstate, 0) + 1
            if sent and error.sqlstate not in ("40001", "25006"):
                self.unknown.append(value)
            if connection.closed or connection.broken:
                raise psycopg.OperationalError from error
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")

    def longest_pause_s(self) -> float:
        """The longest time between two commits that were told."""
        times = [at for at, _ in self.told]
        return max(later - at for at, later in itertools.pairwise(times))

    def next_after(self, moment: float) -> float:
        """When the next commit was told, after a moment."""
        later = wait_until(
            lambda: [at for at, _ in self.told if at > moment], brief=True, told=lambda: self.codes
        )
        return later[0]


def check(herd: LocalHerd, writers: list[Writer]) -> None:
    """All that was acknowledged is there, once; what was not may be only where it is unknown."""
    settle(herd)
    for number, writer in enumerate(writers):
        rows = [v for (v,) in query(herd.dsn("n2"), f"SELECT v FROM t WHERE client = {number}")]
        told = {value for _, value in writer.told}
        assert len(rows) == len(set(rows))
        assert told <= set(rows)
        assert set(rows) - told <= set(writer.unknown)
    assert query(herd.dsn("n2"), "SELECT sum(v) FROM counter") == query(
        herd.dsn("n2"), "SELECT count(*) FROM t"
    )
    herd.must("verify")


def under_load(
    herd: LocalHerd, dsn: str, capsys: pytest.CaptureFixture[str], how: str, what: str
) -> None:
    """Kill the node that the clients are on; all of them commit again."""
    put(herd, herd.app_dsn("n1"), "TRUNCATE t; UPDATE counter SET v = 0")
    node = where(dsn)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(Writer(dsn, number)) for number in range(4)]
        for writer in writers:
            writer.next_after(time.monotonic())
        time.sleep(1)
        herd.must("kill", node, "--process", what)
        done = time.monotonic()
        for writer in writers:
            writer.next_after(done)
        assert where(dsn) != node
        time.sleep(0.5)
    gaps = [writer.longest_pause_s() for writer in writers]
    with capsys.disabled():
        shown = ", ".join(f"{gap:.2f}" for gap in sorted(gaps))
        sys.stdout.write(
            f"\n{how}, {what} of {node} killed: longest pauses between commits {shown} s\n"
        )
    herd.must("start", node)
    check(herd, writers)


@pytest.mark.long
@pytest.mark.parametrize(
    "what",
    ["node", *(pytest.param(one, marks=pytest.mark.long) for one in ("sidecar", "postgres"))],
)
def test_haproxy_leads_to_another_member_when_one_dies(
    served: LocalHerd, balancer: Ports, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    assert where(through(served, balancer.readers))
    under_load(served, through(served, balancer.writers), capsys, "HAProxy", what)
    wait_until(lambda: where(through(served, balancer.writers)), lambda seen: seen == "n1")


def test_a_minority_gets_no_more_sessions_of_writers(served: LocalHerd, balancer: Ports) -> None:
    node = where(through(served, balancer.writers))
    others = ",".join({"n1", "n2", "n3"} - {node})
    served.must("partition", f"{node}|{others}")
    try:
        wait_until(
            lambda: query(through(served, balancer.writers), "INSERT INTO t (client) VALUES (99)"),
            lambda _: True,
            despite=(psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction),
        )
        assert where(through(served, balancer.writers)) != node
    finally:
        served.must("heal")
    # An attempt whose session broke may commit yet, so nobody counts these rows.
    query(served.app_dsn("n2"), "DELETE FROM t WHERE client = 99")


@pytest.mark.long
def test_pgbouncer_in_transaction_mode_and_a_member_dies(
    served: LocalHerd,
    balancer: Ports,
    work_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pooled(served, work_directory) as dsn:
        under_load(served, dsn, capsys, "PgBouncer and HAProxy", "node")


@pytest.mark.parametrize(
    "more", ["", "server_reset_query_always = 1\nserver_reset_query = DISCARD ALL"]
)
def test_sessions_that_are_shared_leave_nothing_to_each_other(
    served: LocalHerd, balancer: Ports, work_directory: Path, more: str
) -> None:
    """Many clients, one server connection: hook, cursor, token and settings."""
    herd = served
    with pooled(herd, work_directory, more, size=1) as dsn, contextlib.ExitStack() as stack:
        one, two, three = (
            stack.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=None))
            for _ in range(3)
        )
        pids = {client.execute("SELECT pg_backend_pid()").fetchone() for client in (one, two)}
        assert len(pids) == 1
        for number in range(5):  # one client's commit leaves its cursor to the next one's
            for client in (one, two, three):
                client.execute("INSERT INTO t (client, v) VALUES (50, %s)", (number,))
        tokens = []
        for client in (one, two):
            with client.transaction():
                client.execute("UPDATE counter SET v = v + 0 WHERE id = 1")
                tokens.append(client.execute("SELECT pgherd.current_token()").fetchone())
        for row, client in zip(tokens, (three, one), strict=True):
            assert row is not None
            status = client.execute("SELECT pgherd.transaction_status(%s)", row).fetchone()
            assert status is not None and status[0].startswith("committed ")
            gid = int(status[0].split()[1])
            waited = query(herd.app_dsn("n3"), f"SELECT pgherd.wait_for({gid})")
            assert waited[0][0] >= gid
        # What is rolled back, fails or is read-only leaves nothing behind either.
        with contextlib.suppress(psycopg.errors.UniqueViolation), one.transaction():
            one.execute("INSERT INTO counter VALUES (1, 1)")
        with two.transaction():
            two.execute("SET TRANSACTION READ ONLY")
            two.execute("SELECT count(*) FROM t")
        with three.transaction():
            three.execute("SET LOCAL statement_timeout = '1s'")
            three.execute("SET CONSTRAINTS ALL IMMEDIATE")
            three.execute("DECLARE c CURSOR FOR SELECT * FROM t")
            three.execute("INSERT INTO t (client, v) VALUES (51, 1)")
        one.execute("INSERT INTO t (client, v) VALUES (52, 1)")
        # Commands and what other members have committed pass as ever.
        two.execute("CREATE TABLE pooled (id int PRIMARY KEY)")
        three.execute("INSERT INTO pooled VALUES (1)")
        one.execute("DROP TABLE pooled")
        # A prepared statement of the server's session, by the protocol's name or by SQL.
        two.execute("DISCARD ALL")
        two.execute("INSERT INTO t (client, v) VALUES (53, 1)")
    settle(herd)
    for node in ("n1", "n2", "n3"):
        counts = "SELECT client, count(*) FROM t WHERE client BETWEEN 50 AND 53 GROUP BY 1"
        assert sorted(query(herd.dsn(node), counts)) == [(50, 15), (51, 1), (52, 1), (53, 1)]
    query(herd.app_dsn("n1"), "DELETE FROM t WHERE client >= 50")
    herd.must("verify")


@pytest.mark.long
@pytest.mark.parametrize("name", ["psycopg", "sqlalchemy", "django"])
def test_examples_commit_each_transaction_once_though_members_die(
    served: LocalHerd, name: str
) -> None:
    """The line for applications, two programs on the same rows, and a member that dies."""
    if not _REQUIRED:
        pytest.importorskip(name)
    commit_though_a_member_dies(
        served, [sys.executable, str(EXAMPLES / f"retry_{name}.py")], lambda line: line
    )


def commit_though_a_member_dies(
    herd: LocalHerd, command: list[str], form: Callable[[str], str], transfers: int = 150
) -> None:
    """Have two programs move money between the same rows, and kill the member they work on.

    Args:
        herd: has no table `account`, or one with two rows.
        command: a program; repeats what failed, and stops where nobody knows.
        form: makes the program's connection string of the line for applications.
        transfers: how many each of them makes.
    """
    query(
        herd.app_dsn("n1"), "CREATE TABLE IF NOT EXISTS account (id int PRIMARY KEY, balance int)"
    )
    put(herd, herd.app_dsn("n1"), "DELETE FROM account; INSERT INTO account VALUES (1, 0), (2, 0)")
    lines = [herd.summary()["application_dsn"]]
    first, _, rest = lines[0].partition("@")[2].partition(",")
    lines.append(
        lines[0].replace(f"{first},{rest.partition('/')[0]}", f"{rest.partition('/')[0]},{first}")
    )
    programs = [
        subprocess.Popen(
            command,
            env=os.environ
            | {name: form(line) for name in ("PGHERD_DSN", "PGHERD_JDBC_URL")}
            | {"PGHERD_TRANSFERS": str(transfers)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in lines
    ]
    wait_until(
        lambda: query(herd.dsn("n3"), "SELECT balance FROM account WHERE id = 2")[0][0],
        lambda balance: balance >= transfers // 4,
        brief=True,
        hopeless=lambda: None not in [one.poll() for one in programs],
    )
    herd.must("kill", "n1", "--process", "node")
    time.sleep(3)
    herd.must("start", "n1")
    errors = [one.communicate(timeout=COMMAND_TIMEOUT_S)[1] for one in programs]
    # One whose last transaction may not have reached the log is not told, and does not guess.
    stopped = [error for error in errors if error]
    assert all("nobody knows what became of transaction" in error for error in stopped), errors
    settle(herd)
    moved = query(herd.dsn("n1"), "SELECT balance FROM account WHERE id = 2")[0][0]
    assert moved == 2 * transfers or (stopped and moved < 2 * transfers)
    for node in ("n1", "n2", "n3"):
        rows = query(herd.dsn(node), "SELECT balance FROM account ORDER BY id")
        assert rows == [(-moved,), (moved,)]
