"""The gate can go red: one planted failure of each kind is judged as ``verdicts.py`` says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PLANTED = Path(__file__).with_name("planted.py")
_REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.long


def judged(directory: Path, test: str, patience: float = 1) -> subprocess.CompletedProcess[str]:
    """Run the planted test of that name as the gate runs its tests, in a directory of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST") and name != "PGHERD_SECOND_ATTEMPT"
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--color=no", "-p", "no:cacheprovider",
         f"--rootdir={_REPOSITORY}", f"--config-file={_REPOSITORY / 'pyproject.toml'}",
         f"-k{test}", str(_PLANTED)],
        cwd=directory,
        env=kept | {"PGHERD_TEST_PATIENCE": f"{patience:g}"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("test", "said", "kept"),
    [
        ("test_an_assertion", "assert 3 == 4", "report.txt"),
        ("test_a_violation_in_a_history", "LOST_UPDATE", "history.txt"),
        ("test_a_member_diverges", "a sidecar's log tells of trouble", "mortal-n2-sidecar.log"),
    ],
)
def test_a_violation_is_final_and_its_evidence_is_kept(
    tmp_path: Path, test: str, said: str, kept: str
) -> None:
    done = judged(tmp_path, test)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert said in done.stdout
    assert "second attempt" not in done.stdout
    files = [path.name for path in (tmp_path / "build" / "failures").rglob("*")]
    assert kept in files, files


def test_a_wait_that_never_ends_fails_after_a_second_attempt(tmp_path: Path) -> None:
    done = judged(tmp_path, "test_a_wait_that_never_ends", 0.01)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "second attempt, alone" in done.stdout
    assert "passed at the second attempt" not in done.stdout


def test_who_passes_at_the_second_attempt_only_is_named(tmp_path: Path) -> None:
    done = judged(tmp_path, "test_the_second_attempt_only", 0.01)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    name = "tests/integration/planted.py::test_the_second_attempt_only"
    assert f"passed at the second attempt: {name}" in done.stdout


def test_no_test_at_all_is_no_success(tmp_path: Path) -> None:
    done = judged(tmp_path, "no_such_test")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
