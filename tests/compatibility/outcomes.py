"""Outcomes of a test suite: read from JUnit's XML, and compared between two servers."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

PASSED = ""


class NoReportError(Exception):
    """A suite's runner left no report: its words are in the suite's log."""


@dataclass(frozen=True)
class Comparison:
    """What a suite did on a herd beside what it did on a plain server.

    Attributes:
        plain: tests that passed on the plain server.
        herd: those of them that passed on the herd, too.
        differing: what the others failed with on the herd, by test.
        skipped: tests that were run on neither.
        files: files, or classes, with a test that passed on the plain server.
        whole: those of them of which no test differs.
    """

    plain: int
    herd: int
    differing: Mapping[str, str]
    skipped: int
    files: int
    whole: int

    def causes(self) -> Counter[str]:
        """Count the tests of each cause: first lines, without what differs from test to test."""
        return Counter(cause(text) for text in self.differing.values())

    def files_spoilt_by(self, only: str) -> int:
        """Count the files that would be whole but for one cause."""
        causes = defaultdict(set)
        for test, text in self.differing.items():
            causes[_file(test)].add(cause(text))
        return sum(found == {only} for found in causes.values())


def outcomes(report: Path) -> dict[str, str | None]:
    """Read a report.

    Args:
        report: file in the format of JUnit, or a directory of such.

    Returns:
        By test: PASSED, what it failed with, or None if it was skipped.

    Raises:
        NoReportError: there is no report.
    """
    found: dict[str, str | None] = {}
    paths = sorted(report.glob("*.xml")) if report.is_dir() else [report]
    if not paths or not paths[0].exists():
        raise NoReportError(f"a suite was ended before it wrote {report}")
    for path in paths:
        for case in ElementTree.parse(path).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            failure = next(
                (case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None),
                None,
            )
            if failure is not None:
                found[name] = f"{failure.get('message') or ''}\n{failure.text or ''}"
            elif case.find("skipped") is not None:
                found.setdefault(name, None)
            else:
                found.setdefault(name, PASSED)
    return found


def compare(plain: Mapping[str, str | None], herd: Mapping[str, str | None]) -> Comparison:
    """Compare what passed on a plain server with the same tests on a herd."""
    passed = [name for name, outcome in plain.items() if outcome == PASSED]
    differing = {
        name: outcome if outcome is not None else "skipped"
        for name in passed
        if (outcome := herd.get(name, "not run")) != PASSED
    }
    skipped = sum(outcome is None for outcome in plain.values())
    files, spoilt = ({_file(name) for name in names} for names in (passed, differing))
    return Comparison(
        len(passed), len(passed) - len(differing), differing, skipped,
        len(files), len(files - spoilt),
    )  # fmt: skip


def _file(test: str) -> str:
    return test.partition("::")[0]


def cause(text: str) -> str:
    """The line of a failure that says why, with numbers and names taken out."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"(Error|Exception|errors\.\w+|Failed)\b", line)]
    line = (telling or lines or ["?"])[-1 if telling else 0]
    line = re.sub(r"^E\s+", "", line)
    line = re.sub(r'"[^"]*"|\'[^\']*\'', "...", line)
    return re.sub(r"\d+", "N", line)[:160]
