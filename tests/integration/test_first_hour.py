"""What a newcomer meets first: psql without a password, one screen, reads of one's own writes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from patience import join

from .localherd import LocalHerd, error_of, home, query, sidecar_pid, stopped
from .nodes import Connection, Nodes, nodes_of, run

LAST = "SELECT pgherd.last_commit_gid()"


@pytest.fixture
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        nodes.create("CREATE TABLE t (id int PRIMARY KEY, v int)")
        nodes.settle()
        yield nodes


def gid_of(session: Connection) -> int:
    """The GID of the session's last commit, which there has to be."""
    [(gid,)] = run(session, LAST)
    assert isinstance(gid, int)
    return gid


@contextmanager
def stopped_sidecar(herd: LocalHerd) -> Iterator[int]:
    """Have one that does not propose do nothing; yield the number of its node, from 0."""
    members = herd.members()
    proposer = herd.summary()["proposer"]
    number = next(n for n, one in enumerate(members) if n > 0 and one["name"] != proposer)
    with stopped(sidecar_pid(herd, members[number]["name"])):
        yield number


class TestLastCommit:
    def test_it_is_the_gid_that_the_herd_gave(self, nodes: Nodes) -> None:
        session = nodes.connect(0)
        assert run(session, LAST) == [(None,)]
        for number in range(3):
            run(session, "BEGIN")
            [(token,)] = run(session, "SELECT pgherd.current_token()")
            run(session, f"INSERT INTO t VALUES ({number}, 0)")
            run(session, "COMMIT")
            [(status,)] = session.execute("SELECT pgherd.transaction_status(%s)", (token,))
            assert status == f"committed {gid_of(session)}"
            assert run(session, LAST) == [(gid_of(session),)]

    def test_each_session_has_its_own(self, nodes: Nodes) -> None:
        one, other = nodes.connect(0), nodes.connect(0)
        run(one, "INSERT INTO t VALUES (1, 0)")
        run(other, "INSERT INTO t VALUES (2, 0)")
        assert gid_of(one) < gid_of(other)

    @pytest.mark.parametrize(
        "statements",
        [
            "SELECT 1",
            "BEGIN; INSERT INTO t VALUES (2, 0); ROLLBACK",
            "BEGIN; SAVEPOINT s; INSERT INTO t VALUES (2, 0); ROLLBACK TO s; COMMIT",
            "CREATE TEMP TABLE own (id int); INSERT INTO own VALUES (1)",
            "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT; CLOSE ALL",
        ],
        ids=["read", "rollback", "savepoint", "temporary", "cursors"],
    )
    def test_what_commits_nothing_replicated_leaves_it(self, nodes: Nodes, statements: str) -> None:
        session = nodes.connect(0)
        run(session, "INSERT INTO t VALUES (1, 0)")
        before = gid_of(session)
        run(session, statements)
        assert gid_of(session) == before

    def test_a_commit_that_loses_leaves_it(self, nodes: Nodes) -> None:
        session = nodes.connect(0)
        run(session, "INSERT INTO t VALUES (1, 0)")
        before = gid_of(session)
        nodes.settle()
        lose(session, nodes.connect(1))
        assert gid_of(session) == before

    @pytest.mark.parametrize("value", ["x", "-1", "1" * 40, "", "1; DROP TABLE t"])
    def test_what_its_user_has_made_of_the_setting_is_none(self, nodes: Nodes, value: str) -> None:
        session = nodes.connect(0)
        session.execute("SELECT set_config('pgherd.last_commit', %s, false)", (value,))
        assert run(session, LAST) == [(None,)]

    def test_a_session_that_is_reset_has_forgotten_it(self, nodes: Nodes) -> None:
        session = nodes.connect(0)
        run(session, "INSERT INTO t VALUES (1, 0)")
        run(session, "DISCARD ALL")
        assert run(session, LAST) == [(None,)]


class TestWaitFor:
    def test_what_was_written_here_is_read_there(self, nodes: Nodes) -> None:
        writer, reader = nodes.connect(0), nodes.connect(1)
        for number in range(30):
            run(writer, f"INSERT INTO t VALUES ({number}, 0)")
            gid = gid_of(writer)
            [(seen,)] = run(reader, f"SELECT pgherd.wait_for({gid})")
            assert seen >= gid
            assert run(reader, f"SELECT v FROM t WHERE id = {number}") == [(0,)]

    def test_it_waits_until_the_member_has_applied_it(self, nodes: Nodes, herd: LocalHerd) -> None:
        writer = nodes.connect(0)
        with stopped_sidecar(herd) as number:
            reader = nodes.connect(number)
            run(writer, "INSERT INTO t VALUES (1, 7)")
            gid = gid_of(writer)
            begun = time.monotonic()
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as error:
                run(reader, f"SELECT pgherd.wait_for({gid}, '300 ms')")
            assert time.monotonic() - begun >= 0.3
            assert f"and not GID {gid}" in str(error.value)
            assert error.value.diag.sqlstate == "55000"
            assert "pgherd status" in (error.value.diag.message_hint or "")
            assert run(reader, "SELECT * FROM t") == []
            found: list[object] = []
            waiting = threading.Thread(
                target=lambda: found.extend(run(reader, f"SELECT pgherd.wait_for({gid}, NULL)"))
            )
            waiting.start()
            waiting.join(0.5)
            assert waiting.is_alive()
        join(waiting)
        assert found
        assert run(reader, "SELECT * FROM t") == [(1, 7)]

    @pytest.mark.parametrize("call", ["wait_for({})", "strong()"])
    def test_a_statement_that_follows_in_a_transaction_sees_it(
        self, nodes: Nodes, call: str
    ) -> None:
        writer, reader = nodes.connect(0), nodes.connect(1)
        run(reader, "BEGIN")
        run(reader, "SELECT count(*) FROM t")
        run(writer, "INSERT INTO t VALUES (1, 0)")
        run(reader, f"SELECT pgherd.{call.format(gid_of(writer))}")
        assert run(reader, "SELECT count(*) FROM t") == [(1,)]
        run(reader, "COMMIT")

    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_a_transaction_of_one_snapshot_would_wait_in_vain(
        self, nodes: Nodes, level: str
    ) -> None:
        session = nodes.connect(0)
        [(here,)] = run(session, "SELECT pgherd.last_gid()")
        run(session, f"BEGIN ISOLATION LEVEL {level}")
        [(seen,)] = run(session, f"SELECT pgherd.wait_for({here})")
        assert seen >= here
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=f"a transaction at {level}"):
            run(session, f"SELECT pgherd.wait_for({here + 1000})")
        run(session, "ROLLBACK")

    def test_nothing_to_wait_for(self, nodes: Nodes) -> None:
        session = nodes.connect(0)
        for gid in ("NULL", "0", "-1", "1"):
            [(seen,)] = run(session, f"SELECT pgherd.wait_for({gid}, '0')")
            assert seen >= 0

    @pytest.mark.parametrize("call", ["wait_for(1, '-1 s')", "strong('-1 s')"])
    def test_a_timeout_is_not_negative(self, nodes: Nodes, call: str) -> None:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="cannot be negative"):
            run(nodes.app[0], f"SELECT pgherd.{call}")

    def test_anybody_may_ask(self, nodes: Nodes) -> None:
        session = nodes.connect(0, admin=True)
        run(session, "BEGIN")
        run(session, "SET LOCAL SESSION AUTHORIZATION pg_monitor")
        assert run(session, LAST) == [(None,)]
        run(session, "SELECT pgherd.wait_for(1)")
        run(session, "ROLLBACK")

    @pytest.mark.parametrize("check", ["all", "shadowed_variables"])
    def test_the_users_checks_of_functions_find_nothing(self, nodes: Nodes, check: str) -> None:
        session = nodes.connect(0)
        run(session, f"SET plpgsql.extra_errors = '{check}'")
        for call in ("wait_for(1)", "strong()", "fresh()"):
            run(session, f"SELECT pgherd.{call}")
        run(session, "CALL pgherd.begin_strong()")


def lose(loser: Connection, winner: Connection) -> None:
    """Have one session lose against another by the row with id 1."""
    for _ in range(20):
        run(loser, "BEGIN")
        run(winner, "BEGIN")
        run(loser, "UPDATE t SET v = v + 1 WHERE id = 1")
        run(winner, "UPDATE t SET v = v + 1 WHERE id = 1")
        run(winner, "COMMIT")
        try:
            run(loser, "COMMIT")
        except psycopg.errors.SerializationFailure:
            return
        except psycopg.errors.QueryCanceled:
            run(loser, "ROLLBACK")
    raise AssertionError("nobody lost")


class TestPsql:
    def test_it_connects_to_the_node_that_is_named(self, herd: LocalHerd) -> None:
        done = herd.top("psql", "n2", "-XAtc", "SELECT current_user, inet_server_port()")
        assert done.stdout == f"app|{herd.port_base + 2}\n", done.stderr

    def test_by_default_to_the_first_that_takes_writes(self, herd: LocalHerd) -> None:
        done = herd.top("psql", "-XAtc", "SELECT inet_server_port()")
        assert done.stdout == f"{herd.port_base + 1}\n", done.stderr

    def test_as_the_superuser_if_asked(self, herd: LocalHerd) -> None:
        done = herd.top("psql", "n3", "--superuser", "-XAtc", "SHOW is_superuser")
        assert done.stdout == "on\n", done.stderr

    def test_psqls_exit_status_is_its_own(self, herd: LocalHerd) -> None:
        done = herd.top("psql", "-XAt", "-v", "ON_ERROR_STOP=1", "-c", "SELECT 1/0")
        assert done.returncode == 1
        assert "division by zero" in done.stderr

    def test_an_unknown_node_is_one_line(self, herd: LocalHerd) -> None:
        assert "unknown node n9: this herd has n1, n2, n3" in error_of(herd.top("psql", "n9"))


class TestPasswords:
    def secrets(self, herd: LocalHerd) -> list[str]:
        return [
            str(psycopg.conninfo.conninfo_to_dict(dsn)["password"])
            for dsn in (herd.dsn("n1"), herd.app_dsn("n1"))
        ]

    @pytest.mark.parametrize("words", [["local", "status"], ["status"]])
    def test_they_are_not_on_the_screen_and_the_strings_work(
        self, herd: LocalHerd, words: list[str]
    ) -> None:
        done = herd.top(*words)
        assert not any(secret in done.stdout + done.stderr for secret in self.secrets(herd))
        lines = done.stdout.splitlines()[1:4]
        asked = "SELECT current_user::text, inet_server_port()"
        assert [query(line.split()[-1], asked) for line in lines] == [
            [("app", herd.port_base + number)] for number in (1, 2, 3)
        ]

    def test_they_are_if_asked(self, herd: LocalHerd) -> None:
        postgres, app = self.secrets(herd)
        shown = herd.top("local", "status", "--show-passwords").stdout
        assert app in shown
        assert postgres not in shown
        as_json = herd.top("local", "status", "--json").stdout
        assert app in as_json
        assert postgres in as_json


class TestTop:
    def test_once_it_shows_members_waits_and_the_hottest_keys(
        self, nodes: Nodes, herd: LocalHerd
    ) -> None:
        run(nodes.app[0], "INSERT INTO t VALUES (1, 0)")
        nodes.settle()
        ended = threading.Event()
        sessions = nodes.connect(0), nodes.connect(2)

        def write() -> None:
            number = 1000
            while not ended.is_set():
                number += 1
                run(nodes.app[0], f"INSERT INTO t VALUES ({number}, 0)")
                lose(*sessions)  # others have lost more often, but not now

        writer = threading.Thread(target=write)
        writer.start()
        try:
            done = herd.top("top", "--once", "--interval", "2")
        finally:
            ended.set()
            writer.join()
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        rows = {line.split()[0]: line.split() for line in lines if line[:2] in ("n1", "n2", "n3")}
        assert {row[1] for row in rows.values()} == {"primary"}
        assert int(rows["n1"][3].replace(",", "")) > 0
        assert 0 < float(rows["n1"][5]) <= float(rows["n1"][7])
        assert rows["n2"][5:8] == ["-", "-", "-"]
        assert any(line.startswith(f"{nodes.schema}.t ") for line in lines), done.stdout

    def test_of_one_sidecar_it_shows_the_others_as_that_one_sees_them(
        self, herd: LocalHerd
    ) -> None:
        socket = home(herd) / "n1" / "run" / "admin.sock"
        done = subprocess.run(
            [sys.executable, "-m", "pgherd_sidecar.cli.main", "top", "--once", "--interval", "0.1",
             "--admin", str(socket)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "2 not asked or not answering" in done.stdout
        assert "heard" in done.stdout


def test_without_a_directory_the_herd_is_in_the_default_one(
    work_directory: Path, fresh: LocalHerd
) -> None:
    directory = work_directory / "state" / "herd"
    environment = os.environ | fresh.environment | {"PGHERD_DIR": str(directory)}

    def pgherd(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pgherd_sidecar.cli.main", *words],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip

    done = pgherd("local", "up", "--nodes", "1", "--port-base", str(fresh.port_base))
    try:
        assert f"the herd's directory is {directory}" in done.stderr
        assert "n1" in pgherd("local", "status").stdout
        assert pgherd("psql", "-XAtc", "SELECT 1").stdout == "1\n"
    finally:
        pgherd("local", "destroy")
    assert not directory.exists()
