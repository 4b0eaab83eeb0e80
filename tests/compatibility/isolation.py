"""PostgreSQL's own isolation tests: interleaved sessions should end as on a plain server.

``isolationtester`` plays each specification. PostgreSQL's packages for developers bring it.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from compatibility.scheduled import Scheduled
from compatibility.sources import FetchError
from compatibility.suites import Server

_FILE_S = 900
_STEP_S = 60
"""``isolationtester`` cancels a step after this time; PostgreSQL's own is five minutes."""


class Isolation(Scheduled):
    """PostgreSQL's isolation tests. A test is a permutation of the steps of a specification."""

    name = "PostgreSQL's isolation tests"
    folder = "isolation"
    schedule = "isolation_schedule"

    def fetch(self, work: Path) -> None:
        super().fetch(work)
        library = Path(f"/usr/lib/postgresql/{self.version}/lib")
        self._tester = library / "pgxs" / "src" / "test" / "isolation" / "isolationtester"
        if not self._tester.exists():
            raise FetchError(
                f"{self._tester} is not there: install postgresql-server-dev-{self.version}"
            )

    def said(self, name: str, server: Server, work: Path) -> dict[str, str]:
        specification = (self.sources / "specs" / f"{name}.spec").read_bytes()
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
            output = done.stdout
        except subprocess.TimeoutExpired as ended:
            output = ended.stdout or b""
        return permutations(output.decode(errors="replace"))


def permutations(output: str) -> dict[str, str]:
    """Divide the output of ``isolationtester`` among the permutations of the steps.

    Args:
        output: all that it printed of one specification.

    Returns:
        By permutation, in its own words: what its steps said. Lines before the first permutation,
        such as an error of the specification, are under "setup".
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
    """Leave out numbers of processes, and the lines that tell where in a function an error was."""
    for line in output.splitlines():
        if not line.startswith(("CONTEXT:", "PL/pgSQL function", "SQL statement")):
            yield re.sub(r"\b[Pp]rocess \d+", "process", line)
