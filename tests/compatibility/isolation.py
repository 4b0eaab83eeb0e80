"""PostgreSQL's own isolation tests: interleaved sessions should end as on a plain server.

Each specification is played by ``isolationtester``, which PostgreSQL's packages for developers
bring. What it prints of a permutation of the steps is one test.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.commands import postgres_bin
from compatibility.regression import add_case
from compatibility.sources import FetchError, from_debian
from compatibility.suites import Server

_FILE_S = 900
_STEP_S = 60
"""After which ``isolationtester`` cancels a step; PostgreSQL's own is five minutes."""


@dataclass
class Isolation:
    """PostgreSQL's isolation tests, of the version that is installed.

    Attributes:
        wanted: by specification, what the plain server did at each permutation.
    """

    name: str = "PostgreSQL's isolation tests"
    version: str = ""
    wanted: dict[str, dict[str, str]] = field(default_factory=dict)

    def fetch(self, work: Path) -> None:
        self.version = postgres_bin().parent.name
        package = from_debian(f"postgresql-{self.version}", work, installed=True)
        self._sources = package / "src" / "test" / "isolation"
        library = Path(f"/usr/lib/postgresql/{self.version}/lib")
        self._tester = library / "pgxs" / "src" / "test" / "isolation" / "isolationtester"
        if not self._tester.exists():
            raise FetchError(
                f"{self._tester} is not there: install postgresql-server-dev-{self.version}"
            )

    def run(self, server: Server, work: Path, report: Path, only: Sequence[str]) -> None:
        """Play the specifications; the first run tells what the next ones should do."""
        plain = not self.wanted
        suite = ElementTree.Element("testsuite", name=self.name)
        for name in specifications(self._sources, only):
            done = permutations(self._play(name, server))
            if plain:
                self.wanted[name] = done
            for permutation in self.wanted[name]:
                wanted = self.wanted[name][permutation]
                add_case(suite, name, permutation, wanted, done.get(permutation, "not played"))
            ElementTree.ElementTree(suite).write(report)

    def _play(self, name: str, server: Server) -> str:
        specification = (self._sources / "specs" / f"{name}.spec").read_bytes()
        settings = "-c intervalstyle=postgres_verbose -c lc_messages=C"
        try:
            done = subprocess.run(
                [self._tester, server.admin], input=specification, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_FILE_S,
                env=os.environ | {
                    "PGISOLATIONTIMEOUT": str(_STEP_S), "PGOPTIONS": settings, "PGTZ": "PST8PDT",
                    "PGDATESTYLE": "Postgres, MDY", "LC_MESSAGES": "C",
                },
            )  # fmt: skip
        except subprocess.TimeoutExpired as ended:
            return (ended.stdout or b"").decode(errors="replace")
        return done.stdout.decode(errors="replace")


def specifications(sources: Path, only: Sequence[str]) -> list[str]:
    """Names of the specifications in the order of the schedule, or of those that are asked for."""
    scheduled = [
        name
        for line in (sources / "isolation_schedule").read_text().splitlines()
        if line.startswith("test:")
        for name in line.removeprefix("test:").split()
    ]
    unknown = set(only) - set(scheduled)
    if unknown:
        raise FetchError(f"the schedule has no {', '.join(sorted(unknown))}")
    return [name for name in scheduled if not only or name in only]


def permutations(output: str) -> dict[str, str]:
    """Divide what ``isolationtester`` printed among the permutations of the steps.

    Returns:
        By permutation, in its own words: what its steps said. What comes before the first, such as
        an error of the specification, is under "setup".
    """
    found: dict[str, list[str]] = {}
    said = found.setdefault("setup", [])
    for line in _without_times(output):
        begins = re.match(r"starting permutation: (.*)", line)
        if begins:
            said = found.setdefault(begins[1], [])
        else:
            said.append(line)
    return {permutation: "\n".join(lines).strip("\n") for permutation, lines in found.items()}


def _without_times(output: str) -> Iterator[str]:
    """Lines without the number of a process, and without where in a function an error was."""
    for line in output.splitlines():
        if not line.startswith(("CONTEXT:", "PL/pgSQL function", "SQL statement")):
            yield re.sub(r"\b[Pp]rocess \d+", "process", line)
