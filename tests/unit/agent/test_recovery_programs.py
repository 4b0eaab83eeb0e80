"""Programs that a rebuild runs end with it, and so does whatever they have started."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import in_time
from pgherd_sidecar.agent.server import postmaster
from pgherd_sidecar.env.processes import programs
from pgherd_sidecar.env.processes.programs import ProgramError, end_leftovers, run_program

SHELL = Path("/bin/sh")
PATIENCE_S = 30


async def ends(pid: int) -> None:
    """Wait until a process is gone, or has only to be waited for."""
    async with in_time():
        while _alive(pid):  # noqa: ASYNC110 - no child of ours: nobody tells
            await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def sleeper(argument: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", argument])


async def test_its_lines_are_told_and_its_input_is_given() -> None:
    lines: list[str] = []
    await run_program(SHELL, "-c", "cat; echo two >&2", stdin=b"one\n", on_line=lines.append)
    assert lines == ["one", "two"]


async def test_a_failure_carries_the_last_complaint() -> None:
    with pytest.raises(ProgramError, match="sh: error: no room"):
        await run_program(SHELL, "-c", "echo 'error: no room'; echo bye; exit 3")


async def test_one_that_dies_before_it_has_read_its_input_still_says_why() -> None:
    more = b"x" * (1 << 20)  # than a pipe holds
    with pytest.raises(ProgramError, match="sh: FATAL: no such directory"):
        await run_program(SHELL, "-c", "echo FATAL: no such directory; exit 1", stdin=more)


async def test_what_a_line_raises_ends_the_program() -> None:
    def refuse(line: str) -> None:
        raise ProgramError(f"not with {line}")

    with pytest.raises(ProgramError, match="not with pid"):
        await run_program(SHELL, "-c", "echo pid; sleep 600", on_line=refuse)


async def test_a_server_that_outlives_its_death_keeps_its_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sleeps in the kernel, on a disk that hangs."""

    class Undying:
        pid = 77

        def signal(self, number: int) -> bool:
            return True

        async def wait_exit(self, timeout_s: float) -> bool:
            return False

    monkeypatch.setattr(postmaster, "running", lambda *_: Undying())
    given: Any = None
    with pytest.raises(ProgramError, match=r"process 77\) does not end"):
        await postmaster.stop(given, given)


async def test_cancelling_ends_the_program_and_what_it_has_started() -> None:
    pids: list[int] = []
    running = asyncio.create_task(
        run_program(
            SHELL, "-c", "sleep 600 & echo $!; wait", on_line=lambda line: pids.append(int(line))
        )
    )
    async with in_time():
        while not pids:  # noqa: ASYNC110 - filled in a thread
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await ends(pids[0])


async def test_libpq_and_python_settings_of_ours_stay_with_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PYTHONHOME", "/ours")
    lines: list[str] = []
    await run_program(SHELL, "-c", 'echo "$PGHOST$PYTHONHOME."', on_line=lines.append)
    assert lines == ["."]


async def test_a_module_of_ours_finds_its_packages_by_pythons_variables_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As under a copied interpreter, where the account may not read the environment of root."""
    (tmp_path / "probe.py").write_text("import os; print(os.environ.get('PGHOST'))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PGHOST", "elsewhere")
    lines: list[str] = []
    environment = programs.environment_of_modules()
    await run_program(*programs.module("probe"), environment=environment, on_line=lines.append)
    assert lines == ["None"]


async def test_leftovers_are_found_by_the_directory_that_they_write(tmp_path: Path) -> None:
    mine, other = sleeper(f"--pgdata={tmp_path}/data.copy-1"), sleeper(f"--pgdata={tmp_path}/data")
    try:
        end_leftovers(f"--pgdata={tmp_path}/data.copy-")
        assert await asyncio.to_thread(mine.wait, PATIENCE_S) == -9
        assert _alive(other.pid)
    finally:
        other.kill()
        other.wait()
