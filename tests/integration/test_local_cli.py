"""``pgherd local``: every command and every error, with real servers and a stand-in sidecar.

The stand-in replicates nothing, so these tests fail only for reasons of the command line.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from .conftest import LocalHerd, free_port_base

STANDIN = Path(__file__).with_name("standin_sidecar.py")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")
BROKEN_SIDECAR = "import sys; sys.exit('cannot open the log: bad checksum')\n"
SLEEPING_SIDECAR = "import time; time.sleep(600)\n"


@pytest.fixture(scope="module")
def scripts(work_directory: Path) -> Path:
    """Stand-ins for the sidecar, where the servers' account can read them."""
    directory = work_directory / "scripts"
    directory.mkdir()
    shutil.copy(STANDIN, directory / "standin.py")
    (directory / "broken.py").write_text(BROKEN_SIDECAR)
    (directory / "sleeping.py").write_text(SLEEPING_SIDECAR)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755)
    return directory


@pytest.fixture
def fresh(work_directory: Path, scripts: Path) -> Iterator[LocalHerd]:
    """A herd that does not exist yet; whatever a test leaves of it is destroyed."""
    herd = LocalHerd(
        work_directory / "fresh",
        free_port_base(),
        {"PGHERD_SIDECAR_SCRIPT": str(scripts / "standin.py")},
    )
    yield herd
    if herd.directory.exists():
        herd.run("destroy")
        shutil.rmtree(herd.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def running(work_directory: Path, scripts: Path) -> Iterator[LocalHerd]:
    """A herd of two that is up; each test that uses it leaves it up."""
    herd = LocalHerd(
        work_directory / "running",
        free_port_base(),
        {"PGHERD_SIDECAR_SCRIPT": str(scripts / "standin.py")},
    )
    done = herd.up("--nodes", "2")
    assert done.returncode == 0, done.stderr
    yield herd
    herd.must("destroy")


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command that could not be done: exactly one line, after any progress."""
    assert done.returncode == 2, done
    errors = [line for line in done.stderr.splitlines() if line.startswith("pgherd: ")]
    assert errors == done.stderr.splitlines()[-1:]
    assert "Traceback" not in done.stderr
    return errors[0]


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


def works_in(process: Path, directory: Path) -> bool:
    """False for processes of other accounts where root may not look at them (containers)."""
    with contextlib.suppress(PermissionError):
        return (process / "cwd").readlink().is_relative_to(directory)
    return False


def assert_nothing_left(herd: LocalHerd) -> None:
    assert not herd.directory.exists()
    assert pids_in(herd.directory) == []


class TestUp:
    def test_prints_name_state_and_dsn_of_every_node(self, fresh: LocalHerd) -> None:
        done = fresh.up()
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()[1:]
        assert [line.split()[:2] for line in lines] == [
            ["n1", "primary"],
            ["n2", "primary"],
            ["n3", "primary"],
        ]
        assert [query(line.split()[-1], "SHOW cluster_name") for line in lines] == [
            [("n1",)],
            [("n2",)],
            [("n3",)],
        ]

    def test_uses_the_ports_from_the_base_up(self, running: LocalHerd) -> None:
        ports = [query(member["dsn"], "SHOW port")[0][0] for member in running.members()]
        assert ports == [str(running.port_base + 1), str(running.port_base + 2)]

    def test_dsn_is_a_superuser_and_app_dsn_an_ordinary_owner(self, running: LocalHerd) -> None:
        member = running.member("n1")
        is_super = "SELECT current_user::text, current_setting('is_superuser')"
        assert query(member["dsn"], is_super) == [("postgres", "on")]
        assert query(member["app_dsn"], is_super) == [("app", "off")]
        owner = "SELECT datdba::regrole::text FROM pg_database WHERE datname = current_database()"
        assert query(member["app_dsn"], owner) == [("app",)]

    def test_servers_are_utf8_with_checksums_and_scram(self, running: LocalHerd) -> None:
        dsn = running.member("n1")["dsn"]
        expected = {
            "data_checksums": "on",
            "jit": "off",
            "max_connections": "200",
            "password_encryption": "scram-sha-256",
            "server_encoding": "UTF8",
            "synchronous_commit": "on",
            "wal_level": "replica",
        }
        assert {name: query(dsn, f"SHOW {name}")[0][0] for name in expected} == expected

    def test_a_wrong_password_is_refused_on_loopback(self, running: LocalHerd) -> None:
        port = running.port_base + 1
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"postgresql://postgres:wrong@127.0.0.1:{port}/app")

    def test_passwords_are_readable_by_the_owner_only(self, running: LocalHerd) -> None:
        mode = (running.directory / "herd.json").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600

    @NEEDS_ROOT
    def test_as_root_nothing_runs_as_root(self, running: LocalHerd) -> None:
        pids = pids_in(running.directory)
        assert pids
        assert 0 not in {Path(f"/proc/{pid}").stat().st_uid for pid in pids}

    def test_again_resumes_the_same_herd_with_its_data(self, fresh: LocalHerd) -> None:
        assert fresh.up("--nodes", "1").returncode == 0
        before = json.loads(fresh.must("status", "--json"))
        query(before["members"][0]["app_dsn"], "CREATE TABLE kept AS SELECT 42 AS answer")
        fresh.must("down")
        assert pids_in(fresh.directory) == []
        assert fresh.run("up").returncode == 0
        after = json.loads(fresh.must("status", "--json"))
        assert after["cluster_id"] == before["cluster_id"]
        assert query(before["members"][0]["app_dsn"], "SELECT answer FROM kept") == [(42,)]

    def test_again_while_it_runs_changes_nothing(self, running: LocalHerd) -> None:
        sidecars = [(running.directory / name / "sidecar.pid").read_text() for name in ("n1", "n2")]
        assert running.up().returncode == 0
        assert sidecars == [
            (running.directory / name / "sidecar.pid").read_text() for name in ("n1", "n2")
        ]

    def test_twice_at_once_makes_one_herd(self, fresh: LocalHerd) -> None:
        command = fresh.command("up", "--nodes", "1", "--port-base", str(fresh.port_base))
        environment = os.environ | fresh.environment
        both = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        answers = [process.communicate()[0].splitlines()[1] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert answers[0] == answers[1]

    def test_in_a_directory_too_deep_for_sockets_puts_them_elsewhere(
        self, fresh: LocalHerd
    ) -> None:
        top = fresh.directory
        fresh.directory = top / "deep" / ("d" * 90)
        try:
            assert fresh.up("--nodes", "1").returncode == 0
            sockets = Path(json.loads((fresh.directory / "herd.json").read_text())["sockets"])
            assert sockets.is_dir()
            fresh.must("destroy")
            assert not sockets.exists()
        finally:
            fresh.directory = top

    @NEEDS_ROOT
    def test_in_a_directory_closed_to_the_account_lives_elsewhere(self, fresh: LocalHerd) -> None:
        closed = fresh.directory
        closed.mkdir(mode=0o700)
        fresh.directory = closed / "herd"
        try:
            done = fresh.up("--nodes", "1")
            assert done.returncode == 0, done.stderr
            home = (fresh.directory / "herd").readlink()
            assert str(home) in done.stderr
            assert fresh.member("n1")["state"] == "primary"
            fresh.must("destroy")
            assert not home.exists()
            assert not fresh.directory.exists()
        finally:
            fresh.directory = closed


class TestUpFails:
    def test_when_a_port_is_taken_and_names_who_has_it(self, fresh: LocalHerd) -> None:
        with socket.create_server(("127.0.0.1", fresh.port_base + 102)):
            error = error_of(fresh.up())
        assert f"port {fresh.port_base + 102} is taken" in error
        assert "--port-base" in error
        if os.geteuid() != 0:  # as root the command runs as an account that cannot see us
            assert f"pid {os.getpid()}" in error
        assert_nothing_left(fresh)

    def test_when_postgresql_is_too_old(self, fresh: LocalHerd, work_directory: Path) -> None:
        programs = fake_programs(work_directory / "old", "postgres (PostgreSQL) 14.9")
        error = error_of(fresh.up("--postgres-bin", str(programs)))
        assert "is PostgreSQL 14, pgherd needs 15 or newer" in error
        assert_nothing_left(fresh)

    def test_when_contrib_is_missing(self, fresh: LocalHerd, work_directory: Path) -> None:
        programs = fake_programs(work_directory / "bare", "postgres (PostgreSQL) 15.1")
        error = error_of(fresh.up("--postgres-bin", str(programs)))
        assert "lacks the contrib extension dblink: install postgresql-contrib" in error
        assert_nothing_left(fresh)

    def test_when_there_is_no_postgresql(self, fresh: LocalHerd) -> None:
        error = error_of(fresh.up("--postgres-bin", "/usr/share"))
        assert "/usr/share has no postgres: give --postgres-bin" in error
        assert_nothing_left(fresh)

    def test_when_the_sidecar_does_not_come_up_with_its_last_words(
        self, fresh: LocalHerd, scripts: Path
    ) -> None:
        fresh.environment["PGHERD_SIDECAR_SCRIPT"] = str(scripts / "broken.py")
        error = error_of(fresh.up("--nodes", "1"))
        assert "sidecar of n1 does not come up: cannot open the log: bad checksum" in error
        assert str(fresh.directory / "n1" / "sidecar.log") in error
        assert_nothing_left(fresh)

    def test_when_it_takes_too_long(self, fresh: LocalHerd, scripts: Path) -> None:
        fresh.environment["PGHERD_SIDECAR_SCRIPT"] = str(scripts / "sleeping.py")
        error = error_of(fresh.up("--nodes", "1", "--timeout", "8"))
        assert "not every node takes writes after 8 s: n1 is " in error
        assert_nothing_left(fresh)

    def test_when_it_is_interrupted_and_leaves_nothing(
        self, fresh: LocalHerd, scripts: Path
    ) -> None:
        fresh.environment["PGHERD_SIDECAR_SCRIPT"] = str(scripts / "sleeping.py")
        command = fresh.command("up", "--nodes", "1", "--port-base", str(fresh.port_base))
        with subprocess.Popen(
            command, env=os.environ | fresh.environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "starting its sidecar" in line:
                    break
            process.send_signal(signal.SIGTERM)
            assert process.stderr.read().splitlines() == ["pgherd: interrupted"]
        assert process.returncode == 2
        assert_nothing_left(fresh)

    @NEEDS_ROOT
    def test_when_the_disk_is_full(self, fresh: LocalHerd) -> None:
        fresh.directory.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(fresh.directory)]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("this container may not mount")
        try:
            error = error_of(fresh.up())
            assert f"disk full: make room on the device of {fresh.directory}" in error
            assert list(fresh.directory.iterdir()) == []
        finally:
            subprocess.run(["umount", str(fresh.directory)], check=True)

    def test_in_a_directory_with_something_else(self, fresh: LocalHerd) -> None:
        fresh.directory.mkdir()
        (fresh.directory / "thesis.tex").write_text("precious")
        error = error_of(fresh.up())
        assert "is not empty and not a herd directory (it has thesis.tex)" in error
        assert [path.name for path in fresh.directory.iterdir()] == ["thesis.tex"]

    def test_where_a_file_is_in_the_way(self, fresh: LocalHerd) -> None:
        fresh.directory.mkdir()
        (fresh.directory / "file").write_text("")
        fresh.directory /= "file"
        error = error_of(fresh.up())
        fresh.directory = fresh.directory.parent
        assert "is not a directory: choose another --dir" in error

    def test_on_a_herd_of_another_size(self, running: LocalHerd) -> None:
        error = error_of(running.up("--nodes", "5"))
        assert "holds another herd, with --nodes 2" in error

    def test_on_a_herd_with_other_ports(self, running: LocalHerd) -> None:
        error = error_of(running.run("up", "--port-base", "9100"))
        assert f"holds another herd, with --port-base {running.port_base}" in error

    def test_on_a_copy_of_a_herd(self, running: LocalHerd, fresh: LocalHerd) -> None:
        fresh.directory.mkdir()
        shutil.copy2(running.directory / "herd.json", fresh.directory)
        owner = running.directory.stat()
        for path in (fresh.directory, fresh.directory / "herd.json"):
            os.chown(path, owner.st_uid, owner.st_gid)
        error = error_of(fresh.up())
        assert f"is a copy of another herd's directory, {running.directory}" in error

    def test_for_an_account_that_does_not_exist(self, fresh: LocalHerd) -> None:
        error = error_of(fresh.up("--user", "nosuchaccount"))
        assert "nosuchaccount" in error
        assert not fresh.directory.exists()

    @NEEDS_ROOT
    def test_for_root_itself(self, fresh: LocalHerd) -> None:
        assert "PostgreSQL does not run as root" in error_of(fresh.up("--user", "root"))
        assert not fresh.directory.exists()

    def test_again_stops_what_it_started_and_keeps_the_data(
        self, fresh: LocalHerd, scripts: Path
    ) -> None:
        assert fresh.up("--nodes", "1").returncode == 0
        fresh.must("down")
        standin = fresh.environment["PGHERD_SIDECAR_SCRIPT"]
        fresh.environment["PGHERD_SIDECAR_SCRIPT"] = str(scripts / "broken.py")
        assert "does not come up" in error_of(fresh.up())
        assert pids_in(fresh.directory) == []
        fresh.environment["PGHERD_SIDECAR_SCRIPT"] = standin
        assert fresh.up().returncode == 0


class TestStatus:
    def test_json_has_the_documented_shape(self, running: LocalHerd) -> None:
        answer = json.loads(running.must("status", "--json"))
        assert set(answer) == {"cluster_id", "members"}
        expected = {"name", "dsn", "app_dsn", "state", "gid", "log_position"}
        assert all(expected <= set(member) for member in answer["members"])
        assert [member["state"] for member in answer["members"]] == ["primary", "primary"]

    def test_of_no_herd_says_how_to_create_one(self, fresh: LocalHerd) -> None:
        error = error_of(fresh.run("status"))
        assert "is not a herd directory: create a herd with `pgherd local up`" in error


class TestKillAndStart:
    @pytest.mark.parametrize(
        ("process", "postgres", "sidecar"),
        [("postgres", "down", "up"), ("sidecar", "up", "down"), ("node", "down", "down")],
    )
    def test_kill_ends_exactly_what_it_names_and_start_brings_it_back(
        self, running: LocalHerd, process: str, postgres: str, sidecar: str
    ) -> None:
        running.must("kill", "n2", "--process", process)
        killed = running.member("n2")
        assert (killed["postgres"], killed["sidecar"]) == (postgres, sidecar)
        assert killed["state"] != "primary"
        assert running.member("n1")["state"] == "primary"
        running.must("start", "n2")
        assert running.member("n2")["state"] == "primary"

    def test_after_killing_postgres_no_child_holds_its_data(self, running: LocalHerd) -> None:
        dsn = running.member("n2")["dsn"]
        with psycopg.connect(dsn):
            running.must("kill", "n2", "--process", "postgres")
            assert pids_in(running.directory / "n2" / "pgdata") == []
        running.must("start", "n2")

    def test_kill_of_what_does_not_run_says_so(self, running: LocalHerd) -> None:
        running.must("kill", "n2", "--process", "sidecar")
        done = running.run("kill", "n2", "--process", "sidecar")
        assert (done.returncode, done.stderr) == (0, "n2: sidecar was not running\n")
        running.must("start", "n2")

    def test_kill_never_touches_a_recycled_pid(self, running: LocalHerd) -> None:
        running.must("kill", "n2", "--process", "sidecar")
        owner = running.directory.stat().st_uid
        with subprocess.Popen([sys.executable, "-c", SLEEPING_SIDECAR]) as stranger:
            pid_file = running.directory / "n2" / "sidecar.pid"
            _, rest = pid_file.read_text().split(maxsplit=1)
            pid_file.write_text(f"{stranger.pid} {rest}")
            os.chown(pid_file, owner, -1)
            done = running.run("kill", "n2", "--process", "sidecar")
            assert done.stderr == "n2: sidecar was not running\n"
            assert stranger.poll() is None
            stranger.kill()
        running.must("start", "n2")

    @pytest.mark.parametrize("command", [("start", "n9"), ("kill", "n9", "--process", "node")])
    def test_an_unknown_node_is_answered_with_the_known_ones(
        self, running: LocalHerd, command: tuple[str, ...]
    ) -> None:
        assert "unknown node n9: this herd has n1, n2" in error_of(running.run(*command))

    def test_start_of_a_node_whose_port_was_taken_meanwhile(self, running: LocalHerd) -> None:
        running.must("kill", "n2", "--process", "node")
        with socket.create_server(("127.0.0.1", running.port_base + 2)):
            assert f"port {running.port_base + 2} is taken" in error_of(running.run("start", "n2"))
        running.must("start", "n2")

    def test_start_with_damaged_data_gives_the_servers_last_words(self, fresh: LocalHerd) -> None:
        assert fresh.up("--nodes", "1").returncode == 0
        fresh.must("down")
        (fresh.directory / "n1" / "pgdata" / "global" / "pg_control").unlink()
        error = error_of(fresh.run("start", "n1"))
        assert "PostgreSQL of n1 does not come up: " in error
        assert "pg_control" in error


class TestDestroy:
    def test_ends_all_and_removes_the_directory(self, fresh: LocalHerd) -> None:
        assert fresh.up("--nodes", "1").returncode == 0
        fresh.must("destroy")
        assert_nothing_left(fresh)

    def test_refuses_what_is_not_a_herd(self, fresh: LocalHerd) -> None:
        fresh.directory.mkdir()
        (fresh.directory / "thesis.tex").write_text("precious")
        assert "is not a herd directory" in error_of(fresh.run("destroy"))
        assert (fresh.directory / "thesis.tex").exists()


class TestVerify:
    @pytest.fixture(autouse=True)
    def table(self, running: LocalHerd) -> Iterator[None]:
        """The same table with the same rows on both nodes, by hand: nothing replicates here."""
        for member in running.members():
            query(member["app_dsn"], 'CREATE TABLE "Füße" (a int, t text, c float8, '
                  "PRIMARY KEY (a, t))")  # fmt: skip
            query(
                member["app_dsn"],
                "INSERT INTO \"Füße\" SELECT i, 'x', i / 3.0 FROM generate_series(1, 3000) i",
            )
        yield
        for member in running.members():
            query(member["app_dsn"], 'DROP TABLE IF EXISTS "Füße"')

    def test_of_equal_nodes_exits_with_0_and_shows_each_node(self, running: LocalHerd) -> None:
        done = running.run("verify")
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert [line[:3] for line in lines[1:3]] == [
            ['public."Füße"', "n1", "3000"],
            ['public."Füße"', "n2", "3000"],
        ]
        assert lines[1][3] == lines[2][3]
        assert done.stdout.endswith("1 tables at GID 1: identical\n")

    def test_ignores_in_which_order_rows_lie_on_disk(self, running: LocalHerd) -> None:
        dsn = running.member("n2")["app_dsn"]
        query(dsn, 'UPDATE "Füße" SET c = c WHERE a % 2 = 0')
        assert running.run("verify").returncode == 0

    def test_ignores_settings_that_change_how_values_print(self, running: LocalHerd) -> None:
        dsn = running.member("n2")["dsn"]
        query(dsn, "ALTER DATABASE app SET extra_float_digits = -10")
        try:
            assert running.run("verify").returncode == 0
        finally:
            query(dsn, "ALTER DATABASE app RESET extra_float_digits")

    def test_names_table_and_key_of_a_different_row(self, running: LocalHerd) -> None:
        query(running.member("n2")["app_dsn"], 'UPDATE "Füße" SET c = 0.5 WHERE a = 77')
        done = running.run("verify")
        assert done.returncode == 1
        assert 'public."Füße" key (77,x): differs: n1 | n2' in done.stdout

    def test_names_the_node_where_a_row_is_missing(self, running: LocalHerd) -> None:
        query(running.member("n2")["app_dsn"], 'DELETE FROM "Füße" WHERE a = 78')
        query(running.member("n1")["app_dsn"], 'DELETE FROM "Füße" WHERE a = 79')
        done = running.run("verify", "--json")
        assert done.returncode == 1
        answer = json.loads(done.stdout)
        assert answer["identical"] is False
        found = {(row["key"], *row["missing_on"]) for row in answer["differences"]}
        assert found == {("(78,x)", "n2"), ("(79,x)", "n1")}

    def test_sees_two_rows_that_swapped_their_values(self, running: LocalHerd) -> None:
        query(
            running.member("n2")["app_dsn"],
            'UPDATE "Füße" t SET c = o.c FROM "Füße" o WHERE (t.a, o.a) IN ((1, 2), (2, 1))',
        )
        answer = json.loads(running.run("verify", "--json").stdout)
        assert {row["key"] for row in answer["differences"]} == {"(1,x)", "(2,x)"}

    def test_looks_into_every_partition_once(self, running: LocalHerd) -> None:
        for member in running.members():
            query(
                member["app_dsn"], "CREATE TABLE parts (k int PRIMARY KEY) PARTITION BY RANGE (k)"
            )
            query(member["app_dsn"], "CREATE TABLE part PARTITION OF parts DEFAULT")
            query(member["app_dsn"], "INSERT INTO parts VALUES (1), (2)")
        try:
            query(running.member("n2")["app_dsn"], "DELETE FROM parts WHERE k = 2")
            done = running.run("verify")
            assert done.returncode == 1
            assert "public.parts key (2): missing on n2" in done.stdout
            assert "public.part " not in done.stdout
        finally:
            for member in running.members():
                query(member["app_dsn"], "DROP TABLE parts")

    def test_names_a_table_with_other_columns(self, running: LocalHerd) -> None:
        query(running.member("n2")["app_dsn"], 'ALTER TABLE "Füße" ADD d int')
        done = running.run("verify")
        assert done.returncode == 1
        assert 'public."Füße": columns differ: n1 | n2' in done.stdout

    def test_names_a_missing_table(self, running: LocalHerd) -> None:
        query(running.member("n2")["app_dsn"], 'DROP TABLE "Füße"')
        done = running.run("verify")
        assert done.returncode == 1
        assert 'public."Füße": does not exist on n2' in done.stdout

    def test_lists_no_more_keys_than_asked_for(self, running: LocalHerd) -> None:
        query(running.member("n2")["app_dsn"], 'UPDATE "Füße" SET c = -1')
        answer = json.loads(running.run("verify", "--json", "--max-keys", "7").stdout)
        assert len(answer["differences"]) == 7

    def test_needs_every_node_unless_told_otherwise(self, running: LocalHerd) -> None:
        running.must("kill", "n2", "--process", "sidecar")
        try:
            assert "not every node is up (n2 is stopped)" in error_of(running.run("verify"))
            done = running.run("verify", "--allow-missing")
            assert (done.returncode, done.stderr) == (0, "left out: n2\n")
        finally:
            running.must("start", "n2")


def fake_programs(directory: Path, version: str) -> Path:
    """Programs that look like a PostgreSQL of that version without any extension."""
    directory.mkdir(exist_ok=True)
    for name in ("postgres", "initdb", "pg_ctl", "psql"):
        (directory / name).write_text(f"#!/bin/sh\necho '{version}'\n")
    (directory / "pg_config").write_text("#!/bin/sh\necho /nonexistent\n")
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755)
    return directory
