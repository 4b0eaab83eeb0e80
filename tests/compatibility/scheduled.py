"""PostgreSQL's own tests: each file of a schedule should say what it says on a plain server.

The outputs that PostgreSQL expects are of a server that was built for tests. So the first run of a
suite, on a plain server of the installed version, tells what the next runs should say.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.commands import postgres_bin
from compatibility.sources import FetchError, from_debian
from compatibility.suites import Server


class Scheduled(ABC):
    """The files of one schedule of PostgreSQL, of the version that is installed.

    Attributes:
        name: of the suite.
        folder: in PostgreSQL's sources below ``src/test``, with the files.
        schedule: file in that folder that lists them.
        always: files that are played although only others are asked for.
        left_out: files that are not played.
        version: major version of the installed server.
        wanted: by file, what the plain server said at each of its tests.
    """

    name: str
    folder: str
    schedule: str
    always: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.version = ""
        self.wanted: dict[str, dict[str, str]] = {}

    def fetch(self, work: Path) -> None:
        self.version = postgres_bin().parent.name
        package = from_debian(f"postgresql-{self.version}", work, installed=True)
        self.sources = package / "src" / "test" / self.folder
        if not (self.sources / self.schedule).exists():
            raise FetchError(f"{self.sources} has no {self.schedule}")

    def run(self, server: Server, work: Path, report: Path, only: Sequence[str]) -> None:
        """Play the files; the first run tells what the next ones should say."""
        suite = ElementTree.Element("testsuite", name=self.name)
        for name in self.names(only):
            said = self.said(name, server, work)
            for test, wanted in self.wanted.setdefault(name, said).items():
                text = said.get(test, "not played")
                case = ElementTree.SubElement(suite, "testcase", classname=name, name=test)
                if text != wanted:
                    failure = ElementTree.SubElement(case, "failure")
                    failure.set("message", _printable(self.reason(name, wanted, text)))
                    failure.text = _printable(f"on a plain server:\n{wanted}\nhere:\n{text}")
            ElementTree.ElementTree(suite).write(report)  # after each file: it takes hours

    def names(self, only: Sequence[str]) -> list[str]:
        """List the files to play, in the order of the schedule.

        Args:
            only: names of those that are asked for; all when empty.

        Raises:
            FetchError: one of them is not in the schedule.
        """
        scheduled = [
            name
            for line in (self.sources / self.schedule).read_text().splitlines()
            if line.startswith("test:")
            for name in line.removeprefix("test:").split()
            if name not in self.left_out
        ]
        unknown = set(only) - set(scheduled)
        if unknown:
            raise FetchError(f"the schedule has no {', '.join(sorted(unknown))}")
        return [name for name in scheduled if not only or name in only or name in self.always]

    @abstractmethod
    def said(self, name: str, server: Server, work: Path) -> dict[str, str]:
        """Play one file.

        Args:
            name: of the file, as the schedule has it.
            server: on which it is played.
            work: directory for what it leaves.

        Returns:
            By test of the file: what the server said.
        """

    def reason(self, name: str, wanted: str, text: str) -> str:
        """Tell in a line why a test of a file went otherwise than on the plain server.

        Args:
            name: of the file.
            wanted: what the plain server said.
            text: what the other server said.
        """
        for line in text.splitlines():
            if re.match(r"(ERROR:|FATAL:|server closed)", line) and line not in wanted:
                return line
        return "another result"


def _printable(text: str) -> str:
    """Replace control characters, which XML has no place for."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", text)
