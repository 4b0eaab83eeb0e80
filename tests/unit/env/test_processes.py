"""Processes are known by pid and start time."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pgherd_sidecar.env.processes import detached as processes
from pgherd_sidecar.env.processes.detached import ProcessId

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP, cwd=tmp_path, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def identity(child: subprocess.Popen[bytes]) -> ProcessId:
    found = processes.identify(child.pid)
    assert found is not None
    return found


def recycled(known: ProcessId) -> ProcessId:
    """A process that had the same pid before."""
    return dataclasses.replace(known, start_time=known.start_time - 1)


async def test_a_running_process_is_found_again_by_its_pid_file(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    processes.write_pid_file(tmp_path / "pid", identity(child))
    assert processes.read_pid_file(tmp_path / "pid") == identity(child)


@pytest.mark.parametrize("change", ["start_time", "boot_id"])
async def test_another_process_with_the_pid_is_not_taken_for_it(
    child: subprocess.Popen[bytes], tmp_path: Path, change: str
) -> None:
    known = identity(child)
    old = recycled(known) if change == "start_time" else dataclasses.replace(known, boot_id="old")
    processes.write_pid_file(tmp_path / "pid", old)
    assert processes.read_pid_file(tmp_path / "pid") is None
    assert not old.signal(signal.SIGKILL)
    assert await old.wait_exit(timeout_s=0)
    assert known.is_running()


@pytest.mark.parametrize("content", ["", "12", "1 2 3 4", None])
def test_a_torn_or_missing_pid_file_names_no_process(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "pid").write_text(content)
    assert processes.read_pid_file(tmp_path / "pid") is None


async def test_waiting_ends_when_the_process_does(child: subprocess.Popen[bytes]) -> None:
    known = identity(child)
    assert not await known.wait_exit(timeout_s=0.01)
    assert known.signal(signal.SIGKILL)
    assert await known.wait_exit(timeout_s=60)
    assert not known.is_running()


def test_a_zombie_does_not_run(child: subprocess.Popen[bytes]) -> None:
    known = identity(child)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.identify(child.pid) is None
    assert not known.is_running()


def test_processes_are_found_by_their_working_directory(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert processes.processes_in(tmp_path) == [identity(child)]
    assert processes.processes_in(tmp_path / "elsewhere") == []


async def test_waiting_for_several_returns_those_that_stay(
    child: subprocess.Popen[bytes],
) -> None:
    ended = recycled(identity(child))
    both = [identity(child), ended]
    assert await processes.wait_all_exit(both, timeout_s=0.01) == [both[0]]


def test_a_server_is_found_also_when_its_directory_is_removed_under_it(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    sockets = tmp_path.parent
    (sockets / ".s.PGSQL.7.lock").write_text(f"{child.pid}\n{tmp_path}\n")
    assert processes.postmaster(sockets, 7, tmp_path) == identity(child)
    assert processes.postmaster(sockets, 8, tmp_path) is None
    assert processes.postmaster(sockets, 7, sockets) is None
    tmp_path.rmdir()
    assert processes.postmaster(sockets, 7, tmp_path) == identity(child)
