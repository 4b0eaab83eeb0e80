"""What the failure of a test means.

    a violation       anything but what follows; it is final, and its evidence is kept
    a wait ran out    ``patience.WaitRanOutError``, nothing else: the machine may have stood still

A test whose wait ran out is repeated once, alone, after all others have ended, in a process of its
own. Only a few tests of a run may be: many waits that run out are no chance. Each is named in the
last lines. ``PGHERD_SECOND_ATTEMPT`` tells the process that it is one.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest
from patience import PATIENCE, WaitRanOutError

MOST = 5
"""The tests of a run that may be repeated."""

_VERDICT = "pgherd_wait_ran_out"
_SECOND = "PGHERD_SECOND_ATTEMPT"
_TIMEOUT_S = 600  # as in pyproject.toml
_FAILURES = Path("build", "failures").absolute()

if PATIENCE > 1:  # pytest-timeout reads it when it is configured, which comes later
    os.environ.setdefault("PYTEST_TIMEOUT", f"{_TIMEOUT_S * PATIENCE:g}")


class ViolationError(AssertionError):
    """A promise was broken.

    Args:
        message: how.
        evidence: texts that are kept beside the report, by the names of their files.
    """

    def __init__(self, message: str, evidence: Mapping[str, str]) -> None:
        super().__init__(message)
        self.evidence = evidence


def is_wait(error: BaseException) -> bool:
    """Whether an error says only that a wait ran out, also as a group of such.

    One that ran out on the way out of another error hides a violation: a thread hangs because the
    test has failed before.
    """
    return _consists_of(error, WaitRanOutError)


def _consists_of(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Whether an error is of these kinds, each part of a group, too, and what came before a wait.

    A wait ends by a limit of time or by being cancelled.
    """
    before = error.__context__
    if before is not None and not _consists_of(
        before, WaitRanOutError, TimeoutError, asyncio.CancelledError
    ):
        return False
    if isinstance(error, BaseExceptionGroup):
        return all(_consists_of(one, *kinds) for one in error.exceptions)
    return isinstance(error, kinds)


class SecondAttempts:
    """Collects what has failed; at the end it repeats what may be repeated.

    It runs in the process that sees the reports of all others.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a failure."""
        if report.failed:
            self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Repeat, when all other tests and their processes have ended."""
        waits = {
            name: reports
            for name, reports in self._failed.items()
            if all(getattr(report, _VERDICT, False) for report in reports)
        }
        stopped = session.shouldfail or session.shouldstop
        if exitstatus != pytest.ExitCode.TESTS_FAILED or stopped or len(waits) > MOST:
            return
        forgiven = 0
        for name, reports in waits.items():
            if self._repeated(name):
                self._passed.append(name)
                self._forget(reports)
                forgiven += len(reports)
        # What could not be collected, and a process that crashed, count as failed, too.
        if forgiven and forgiven == session.testsfailed:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name each test that passed at its second attempt."""
        for name in self._passed:
            terminalreporter.write_line(f"passed at the second attempt: {name}", yellow=True)

    def _repeated(self, name: str) -> bool:
        self._reporter().write_line(f"\na wait ran out; second attempt, alone: {name}")
        command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "", "--no-header", name]
        kept = {key: value for key, value in os.environ.items() if key != "PGHERD_E2E_SHARD"}
        done = subprocess.run(
            command, cwd=self._config.rootpath, env=kept | {_SECOND: "1"}, check=False
        )
        return done.returncode == 0

    def _reporter(self) -> pytest.TerminalReporter:
        found: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin(
            "terminalreporter"
        )
        assert found is not None
        return found

    def _forget(self, reports: list[pytest.TestReport]) -> None:
        """Count them as repeated, not as failed, and show no traceback."""
        reporter = self._reporter()
        for kind in ("failed", "error"):
            kept = [one for one in reporter.stats.get(kind, ()) if one not in reports]
            reporter.stats.pop(kind, None)
            if kept:
                reporter.stats[kind] = kept
        reporter.stats.setdefault("repeated", []).append(reports[0])


def pytest_configure(config: pytest.Config) -> None:
    """Have tests repeated by the process that sees all reports, unless it is a second attempt."""
    if not hasattr(config, "workerinput") and not os.environ.get(_SECOND):
        config.pluginmanager.register(SecondAttempts(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a report say what its failure means, also across processes, and keep it."""
    report = yield
    if report.failed and call.excinfo is not None and is_wait(call.excinfo.value):
        setattr(report, _VERDICT, True)
    if report.skipped and os.environ.get(_SECOND):
        report.outcome = "failed"  # what was not tried has not passed
    if report.failed:
        keep(item.nodeid, "report.txt", f"{item.nodeid} ({report.when})\n{report.longreprtext}\n\n")
        if call.excinfo is not None and isinstance(call.excinfo.value, ViolationError):
            for name, text in call.excinfo.value.evidence.items():
                keep(item.nodeid, name, text)
    return report


def keep(test: str, name: str, text: str) -> None:
    """Keep a file of a test beside the report of its failure."""
    directory = _FAILURES / re.sub(r"[^\w.-]+", "-", test)[:200]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("a") as file:
        file.write(text)
