"""The end-to-end tests as a part of ``make test``: a defect makes it fail, however they end."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "scripts" / "e2e"


def run(repository: Path, pytest_program: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a prepared repository, with a program of ours in place of pytest."""
    script = repository / "scripts" / "e2e"
    program = repository / ".venv" / "bin" / "pytest"
    state = repository / "build" / "e2e"
    for directory in (script.parent, program.parent, state):
        directory.mkdir(parents=True)
    shutil.copy(_SCRIPT, script)
    program.write_text(f"#!/bin/sh\n{pytest_program}\n")
    program.chmod(0o755)
    (state / "prepared").touch()
    (state / "begun").touch()  # by an earlier run
    deadline = {"PATH": "/usr/bin:/bin", "PGHERD_DEADLINE": str(int(time.time()) + 3600)}
    command = [str(script), "run"]
    return subprocess.run(command, env=deadline, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("status", [124, 137], ids=["interrupted", "killed"])
def test_a_herd_that_hangs_is_a_failure(tmp_path: Path, status: int) -> None:
    done = run(tmp_path, f"touch build/e2e/begun; exit {status}")
    assert done.returncode == status
    assert "hangs" in done.stderr


@pytest.mark.parametrize("status", [124, 137], ids=["interrupted", "killed"])
def test_a_machine_that_gets_no_cluster_in_time_says_so(tmp_path: Path, status: int) -> None:
    done = run(tmp_path, f"exit {status}")
    assert done.returncode == 0
    assert "NO END-TO-END TESTS" in done.stdout


def test_a_test_that_fails_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 1").returncode == 1


def test_tests_know_when_they_have_to_be_over(tmp_path: Path) -> None:
    began_s = time.time()
    done = run(tmp_path, 'echo "$PGHERD_E2E_UNTIL"')
    assert began_s < float(done.stdout) < began_s + 3600
