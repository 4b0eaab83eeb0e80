"""``pgherd local``: every command, with real servers and a stand-in sidecar.

The stand-in replicates nothing, so these tests fail only for reasons of the command line.
"""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from .localherd import (
    NEEDS_ROOT,
    SLEEPING_SIDECAR,
    LocalHerd,
    assert_nothing_left,
    error_of,
    pids_in,
    query,
)


class TestUp:
    def test_prints_name_state_and_dsn_of_every_node(self, fresh: LocalHerd) -> None:
        done = fresh.up()
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()[1:-1]
        assert done.stdout.splitlines()[-1].startswith("for applications: postgresql://app@")
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
        dsn = running.dsn("n1")
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
        owners = set()
        for pid in pids_in(running.directory):
            with contextlib.suppress(FileNotFoundError):  # it has ended, as sessions do
                owners.add(Path(f"/proc/{pid}").stat().st_uid)
        assert owners
        assert 0 not in owners

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

    def test_with_another_setting_tells_the_sidecars_that_run(self, running: LocalHerd) -> None:
        paths = [running.directory / name for name in ("n1", "n2")]
        before = [(path / "sidecar.pid").read_text() for path in paths]
        started = "SELECT pg_postmaster_start_time()"
        servers = [query(running.dsn(path.name), started) for path in paths]
        done = running.up("--on-divergence", "pause")
        assert done.returncode == 0, done.stderr
        assert "n1: its sidecar gets other settings" in done.stderr
        told = [json.loads((path / "node.json").read_text())["on_divergence"] for path in paths]
        assert told == ["pause", "pause"]
        assert not {(path / "sidecar.pid").read_text() for path in paths} & set(before)
        assert [member["state"] for member in running.members()] == ["primary", "primary"]
        assert servers == [query(running.dsn(path.name), started) for path in paths]

    def test_twice_at_once_makes_one_herd(self, fresh: LocalHerd) -> None:
        command = fresh.command("up", "--nodes", "1", "--port-base", str(fresh.port_base))
        environment = os.environ | fresh.environment
        both = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        answers = [process.communicate()[0].splitlines()[1:2] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert answers[0] == answers[1] != []

    @pytest.mark.long
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

    @pytest.mark.long
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


class TestStatus:
    def test_json_has_the_documented_shape(self, running: LocalHerd) -> None:
        answer = json.loads(running.must("status", "--json"))
        group = {"view", "term", "proposer", "quorum", "component"}
        databases = {"databases", "held", "held_since", "held_gid"}
        lines = {"application_dsn", "reading_dsn"}
        assert set(answer) == {"cluster_id", "members", *lines} | group | databases
        assert answer["held"] is None
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
        dsn = running.dsn("n2")
        with psycopg.connect(dsn):
            running.must("kill", "n2", "--process", "postgres")
            assert pids_in(running.directory / "n2" / "pgdata") == []
        running.must("start", "n2")

    def test_restart_stops_one_node_cleanly_and_has_it_read_its_settings(
        self, running: LocalHerd
    ) -> None:
        def crashes() -> int:
            logs = (running.directory / "n2" / "log").iterdir()
            return sum(log.read_text().count("was interrupted") for log in logs)

        started, crashed = "SELECT pg_postmaster_start_time()", crashes()
        before = [query(running.dsn(name), started) for name in ("n1", "n2")]
        query(running.dsn("n2"), "ALTER SYSTEM SET wal_level = logical")
        running.must("restart", "n2")
        assert query(running.dsn("n2"), "SHOW wal_level") == [("logical",)]
        after = [query(running.dsn(name), started) for name in ("n1", "n2")]
        assert after[0] == before[0] and after[1] > before[1]
        assert running.member("n2")["state"] == "primary"
        assert crashes() == crashed
        query(running.dsn("n2"), "ALTER SYSTEM RESET wal_level")

    def test_restart_is_refused_where_the_node_may_lose_its_place(self, fresh: LocalHerd) -> None:
        assert fresh.up("--nodes", "1", "--evict-after", "4").returncode == 0
        server = query(fresh.dsn("n1"), "SELECT pg_postmaster_start_time()")
        error = error_of(fresh.run("restart", "n1"))
        assert "--evict-after 4 is less than 30 s" in error
        assert "run `pgherd local down`, then `pgherd local up`" in error
        assert query(fresh.dsn("n1"), "SELECT pg_postmaster_start_time()") == server

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

    @pytest.mark.parametrize(
        "command", [("start", "n9"), ("restart", "n9"), ("kill", "n9", "--process", "node")]
    )
    def test_an_unknown_node_is_answered_with_the_known_ones(
        self, running: LocalHerd, command: tuple[str, ...]
    ) -> None:
        assert "unknown node n9: this herd has n1, n2" in error_of(running.run(*command))

    @pytest.mark.long
    def test_start_of_a_node_whose_port_was_taken_meanwhile(self, running: LocalHerd) -> None:
        running.must("kill", "n2", "--process", "node")
        with socket.create_server(("127.0.0.1", running.port_base + 2)):
            assert f"port {running.port_base + 2} is taken" in error_of(running.run("start", "n2"))
        running.must("start", "n2")

    @pytest.mark.long
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
