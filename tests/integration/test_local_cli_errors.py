"""``pgherd local up`` that cannot be done: one line that says why, and nothing left behind."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from .localherd import NEEDS_ROOT, LocalHerd, assert_nothing_left, error_of, pids_in


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

    @pytest.mark.long
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

    @pytest.mark.long
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


def fake_programs(directory: Path, version: str) -> Path:
    """Programs that look like a PostgreSQL of that version without any extension."""
    directory.mkdir(exist_ok=True)
    for name in ("postgres", "initdb", "pg_ctl", "psql"):
        (directory / name).write_text(f"#!/bin/sh\necho '{version}'\n")
    (directory / "pg_config").write_text("#!/bin/sh\necho /nonexistent\n")
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755)
    return directory
