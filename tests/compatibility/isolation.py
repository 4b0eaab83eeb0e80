"""PostgreSQL's own isolation tests: interleaved sessions should end as on a plain server.

``isolationtester`` plays each specification. PostgreSQL's packages for developers bring it.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from compatibility.differences import NOT_PLAYED, difference
from compatibility.scheduled import Scheduled
from compatibility.sources import FetchError
from compatibility.suites import Server

_SERIALIZABLE = re.compile("isolation level serializable", re.IGNORECASE)
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

    def specification(self, name: str) -> str:
        """Read what ``isolationtester`` is to play."""
        return (self.sources / "specs" / f"{name}.spec").read_text()

    def said(self, name: str, server: Server, work: Path) -> dict[str, str]:
        settings = "-c intervalstyle=postgres_verbose -c lc_messages=C"
        try:
            done = subprocess.run(
                [self._tester, server.admin], input=self.specification(name).encode(), check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_FILE_S,
                env=os.environ | {
                    "PGISOLATIONTIMEOUT": str(_STEP_S), "PGOPTIONS": settings, "PGTZ": "PST8PDT",
                    "PGDATESTYLE": "Postgres, MDY", "LC_MESSAGES": "C",
                },
            )  # fmt: skip
            output = done.stdout
        except subprocess.TimeoutExpired as ended:
            output = ended.stdout or b""
        played = permutations(output.decode(errors="replace"))
        last = next(reversed(played.values()), "")  # it tells why no more was played
        return dict.fromkeys(self.wanted.get(name, ()), f"{NOT_PLAYED}\n{last}") | played

    def reason(self, name: str, wanted: str, text: str) -> str:
        return difference(name, wanted, text)


class SnapshotIsolation(Isolation):
    """The specifications at SERIALIZABLE, played at REPEATABLE READ, where a herd takes writes."""

    name = "PostgreSQL's isolation tests at REPEATABLE READ"

    def names(self, only: Sequence[str]) -> list[str]:
        plain = super().specification
        return [name for name in super().names(only) if _SERIALIZABLE.search(plain(name))]

    def specification(self, name: str) -> str:
        text = _SERIALIZABLE.sub("ISOLATION LEVEL REPEATABLE READ", super().specification(name))
        parts = re.split(r"(?m)^(?=session|permutation)", text)
        # A transaction that ends with an error at SERIALIZABLE may stay open here.
        ends = ("\nteardown { ROLLBACK; }\n" if _open_ended(part) else "" for part in parts)
        return "".join(part + end for part, end in zip(parts, ends, strict=True))


def _open_ended(part: str) -> bool:
    """Tell whether a part of a specification is a session that nothing follows."""
    return part.startswith("session") and not re.search(r"(?m)^\s*teardown", part)


def permutations(output: str) -> dict[str, str]:
    """Divide the output of ``isolationtester`` among the permutations of the steps.

    Args:
        output: all that it printed of one specification.

    Returns:
        By permutation, in its own words: what its steps said. An error of the specification, before
        the first permutation, is under "setup".
    """
    found: dict[str, list[str]] = {}
    name = "setup"
    for line in _telling(output):
        begins = re.match(r"starting permutation: (.*)", line)
        if begins:
            name = begins[1]
            found.setdefault(name, [])
        elif line or name in found:
            found.setdefault(name, []).append(line)
    return {permutation: "\n".join(lines).strip("\n") for permutation, lines in found.items()}


def _telling(output: str) -> Iterator[str]:
    """Leave out numbers of processes, and the lines that tell where in a function an error was."""
    for line in output.splitlines():
        if not line.startswith(("Parsed test", "CONTEXT:", "PL/pgSQL function", "SQL statement")):
            yield re.sub(r"\b[Pp]rocess \d+", "process", line)
