"""A violation is final; a test whose wait ran out has a second attempt, alone."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import WaitRanOutError, wait_until, wait_until_async
from verdicts import MOST, is_wait

_TESTS = Path(__file__).parents[1]

_ATTEMPTS = """
import pathlib
import patience
import pytest

def attempt():
    file = pathlib.Path(__file__).with_name("attempts")
    file.open("a").write("x")
    return len(file.read_text())
"""


def judge(
    tmp_path: Path, tests: str, *arguments: str, other: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run tests as ours are run, with waits that last for some milliseconds."""
    directory = tmp_path / "tests"
    directory.mkdir()
    shutil.copy(_TESTS / "conftest.py", directory)
    (directory / "test_other.py").write_text(other)
    (directory / "test_it.py").write_text(_ATTEMPTS + tests)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(directory)],
        cwd=tmp_path,
        env=kept
        | {
            "PYTHONPATH": str(_TESTS),
            "PGHERD_TEST_PATIENCE": "0.001",
            # The others double the time that it takes to start.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def attempts(tmp_path: Path) -> int:
    return len((tmp_path / "tests" / "attempts").read_text())


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_wait_that_ran_out_is_repeated_once_and_named(tmp_path: Path, workers: str) -> None:
    tests = """
def test_waits():
    patience.wait_until(lambda done=attempt() > 1: done)

def test_is_well():
    pass
"""
    done = judge(tmp_path, tests, "-n", workers)
    assert done.returncode == 0, done.stdout
    assert "passed at the second attempt: tests/test_it.py::test_waits" in done.stdout
    assert "1 passed, 1 repeated" in done.stdout
    assert attempts(tmp_path) == 2


def test_a_wait_that_runs_out_twice_has_failed(tmp_path: Path) -> None:
    done = judge(tmp_path, "def test_waits():\n    patience.wait_until(lambda: attempt() > 999)\n")
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "passed at the second attempt" not in done.stdout


@pytest.mark.parametrize(
    "violation",
    [
        "assert attempt() > 1",
        "patience.wait_until(bool, hopeless=lambda: attempt() == 1)",
        "raise ExceptionGroup('', [patience.WaitRanOutError(), ValueError(attempt())])",
        "attempt(); raise TimeoutError",
    ],
)
def test_anything_else_is_final_and_its_evidence_is_kept(tmp_path: Path, violation: str) -> None:
    done = judge(tmp_path, f"def test_it():\n    {violation}\n")
    assert done.returncode == 1
    assert attempts(tmp_path) == 1
    (report,) = (tmp_path / "build" / "failures").rglob("report.txt")
    assert "tests/test_it.py::test_it (call)" in report.read_text()


_SECOND_ONLY = """
def test_waits():
    patience.wait_until(lambda done=attempt() > 1: done)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(
    "other",
    ["raise OSError", "def test_crashes():\n    import os\n    os._exit(1)\n"],
    ids=["not imported", "crashes"],
)
def test_what_is_no_test_report_counts_as_a_failure(
    tmp_path: Path, workers: str, other: str
) -> None:
    if workers == "0" and "_exit" in other:
        pytest.skip("it would end the run itself")
    assert judge(tmp_path, _SECOND_ONLY, "-n", workers, other=other).returncode != 0


def test_what_is_skipped_at_the_second_attempt_has_not_passed(tmp_path: Path) -> None:
    tests = """
def test_waits():
    if attempt() > 1:
        pytest.skip("no cluster")
    patience.wait_until(bool)
"""
    assert judge(tmp_path, tests).returncode == 1


def test_a_run_that_was_cut_short_has_failed(tmp_path: Path) -> None:
    tests = f"{_SECOND_ONLY}\ndef test_that_would_fail():\n    assert False\n"
    assert judge(tmp_path, tests, "--exitfirst").returncode != 0


@pytest.mark.parametrize("before", ["assert attempt() > 1", "raise OSError(attempt())"])
def test_a_wait_does_not_hide_the_error_before_it(tmp_path: Path, before: str) -> None:
    tests = f"""
def test_waits():
    try:
        {before}
    finally:
        patience.wait_until(bool)
"""
    assert judge(tmp_path, tests).returncode == 1
    assert attempts(tmp_path) == 1


def test_one_that_also_fails_as_it_ends_is_not_repeated(tmp_path: Path) -> None:
    tests = """
@pytest.fixture
def trouble():
    yield
    pytest.fail("a sidecar's log tells of trouble")

def test_waits(trouble):
    patience.wait_until(lambda done=attempt() > 1: done)
"""
    done = judge(tmp_path, tests)
    assert done.returncode == 1
    assert attempts(tmp_path) == 1


def test_more_than_a_few_waits_are_no_chance(tmp_path: Path) -> None:
    tests = f"""
@pytest.mark.parametrize("number", range({MOST + 1}))
def test_waits(number):
    attempt()
    patience.wait_until(bool)
"""
    done = judge(tmp_path, tests)
    assert done.returncode == 1
    assert attempts(tmp_path) == MOST + 1


def test_a_failure_beside_a_repeated_test_is_a_failure(tmp_path: Path) -> None:
    tests = """
def test_waits():
    patience.wait_until(lambda done=attempt() > 1: done)

def test_fails():
    assert False
"""
    done = judge(tmp_path, tests)
    assert done.returncode == 1
    assert "1 failed, 1 repeated" in done.stdout


def test_no_test_at_all_is_no_success(tmp_path: Path) -> None:
    assert judge(tmp_path, "").returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_wait_returns_what_it_saw_and_tells_what_it_saw_last() -> None:
    numbers = iter(range(10))
    assert wait_until(lambda: next(numbers), lambda seen: seen == 3) == 3
    with pytest.raises(AssertionError, match="it has ended; last seen: 4"):
        wait_until(lambda: next(numbers), lambda seen: seen < 0, hopeless=lambda: "it has ended")


async def test_a_wait_goes_on_despite_named_errors_only() -> None:
    answers = iter([OSError("refused"), ValueError("broken")])

    async def look() -> None:
        raise next(answers)

    with pytest.raises(ValueError, match="broken"):
        await wait_until_async(look, despite=(OSError,))


def test_only_groups_of_waits_are_waits() -> None:
    assert is_wait(ExceptionGroup("", [WaitRanOutError(), WaitRanOutError()]))
    assert not is_wait(ExceptionGroup("", [WaitRanOutError(), OSError()]))


@pytest.mark.parametrize(
    ("before", "forgiven"),
    [
        (WaitRanOutError(), True),
        (TimeoutError(), True),
        (asyncio.CancelledError(), True),
        (ExceptionGroup("", [WaitRanOutError(), TimeoutError()]), True),
        (KeyError(), False),
        (pytest.fail.Exception(), False),
        (ExceptionGroup("", [WaitRanOutError(), OSError()]), False),
    ],
)
def test_an_error_before_a_wait_is_judged_also_in_groups(
    before: BaseException, forgiven: bool
) -> None:
    late = WaitRanOutError()
    late.__context__ = before
    assert is_wait(late) == forgiven
    assert is_wait(ExceptionGroup("", [WaitRanOutError(), late])) == forgiven
    farther = WaitRanOutError()
    farther.__context__ = late
    assert is_wait(farther) == forgiven
