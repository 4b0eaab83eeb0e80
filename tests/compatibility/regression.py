"""PostgreSQL's own regression tests: a statement should say what it says on a plain server.

The files are played by psql in the order of the schedule, as ``pg_regress`` does. Its expected
outputs are of a server that was built for tests: a plain one of the installed version knows better.
"""

import bisect
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from psycopg.conninfo import conninfo_to_dict

from benchmarks.commands import postgres_bin
from compatibility.sources import FetchError, from_debian
from compatibility.suites import Server

_FIRST = "test_setup"
_LEFT_OUT = {"tablespace"}
"""It wants a directory of its own on the server, under one name for all members."""

_FILE_S = 1800
_SETTINGS = "-c intervalstyle=postgres_verbose -c timezone_abbreviations=Default -c lc_messages=C"


@dataclass
class Regression:
    """PostgreSQL's regression tests, of the version that is installed.

    Attributes:
        wanted: by file, what the plain server said of the statement at each line.
    """

    name: str = "PostgreSQL"
    version: str = ""
    wanted: dict[str, dict[int, str]] = field(default_factory=dict)

    def fetch(self, work: Path) -> None:
        self.version = postgres_bin().parent.name
        package = from_debian(f"postgresql-{self.version}", work, installed=True)
        self._sources = package / "src" / "test" / "regress"
        if not (self._sources / "parallel_schedule").exists():
            raise FetchError(f"{self._sources} has no regression tests")

    def run(self, server: Server, work: Path, report: Path, only: Sequence[str]) -> None:
        """Play the files; the first run tells what the next ones should say."""
        plain = not self.wanted
        suite = ElementTree.Element("testsuite", name=self.name)
        results = work / "regression"
        results.mkdir(parents=True, exist_ok=True)
        (results / "results").mkdir(exist_ok=True)
        (results / "results").chmod(0o777)  # the server's own user writes there, too
        for name in files(self._sources, only):
            said = statements(
                (self._sources / "sql" / f"{name}.sql").read_text(errors="replace"),
                self._play(name, server, results),
            )
            if plain:
                self.wanted[name] = said
            for line, text in said.items():
                add_case(suite, name, str(line), self.wanted[name].get(line, ""), text)
            ElementTree.ElementTree(suite).write(report)  # after each file: it takes hours

    def _play(self, name: str, server: Server, results: Path) -> str:
        output = results / f"{name}-{conninfo_to_dict(server.admin)['port']}.out"
        with output.open("wb") as words:
            psql = subprocess.Popen(
                [postgres_bin() / "psql", "-X", "-a", "-q", "-v", "HIDE_TABLEAM=on",
                 "-v", "HIDE_TOAST_COMPRESSION=on", "-d", server.admin,
                 "-f", str(self._sources / "sql" / f"{name}.sql")],
                cwd=results, stdout=words, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | {
                    "PG_ABS_SRCDIR": str(self._sources), "PG_ABS_BUILDDIR": str(results),
                    "PG_LIBDIR": str(results), "PG_DLSUFFIX": ".so", "PGTZ": "PST8PDT",
                    "PGDATESTYLE": "Postgres, MDY", "PGOPTIONS": _SETTINGS, "LC_MESSAGES": "C",
                },
            )  # fmt: skip
            try:
                psql.wait(_FILE_S)
            except subprocess.TimeoutExpired:
                psql.kill()
                psql.wait()
        return output.read_text(errors="replace")


def files(sources: Path, only: Sequence[str]) -> list[str]:
    """Names of the files in the order of the schedule, or of those that are asked for."""
    scheduled = [
        name
        for line in (sources / "parallel_schedule").read_text().splitlines()
        if line.startswith("test:")
        for name in line.removeprefix("test:").split()
        if name not in _LEFT_OUT and (sources / "sql" / f"{name}.sql").exists()
    ]
    unknown = set(only) - set(scheduled)
    if unknown:
        raise FetchError(f"the schedule has no {', '.join(sorted(unknown))}")
    return [name for name in scheduled if not only or name in only or name == _FIRST]


def statements(source: str, output: str) -> dict[int, str]:
    """Divide what psql printed among the statements of a file.

    psql repeats each line that it reads, and prints results behind the last line of a statement.

    Args:
        source: text of the file.
        output: what ``psql -a`` printed.

    Returns:
        By number of the line at which a statement ends: its results, which may be none.
    """
    printed = output.splitlines()
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, line in enumerate(printed):
        places[line].append(place)
    found: dict[int, str] = {}
    last, ends, begin = 0, False, 0
    for number, line in enumerate(source.splitlines(), 1):
        known = places.get(line, [])
        at = bisect.bisect_left(known, begin)
        if not line or at == len(known):  # psql leaves empty lines out, and rows of a COPY
            continue
        _keep(found, last, printed[begin : known[at]], ends=ends)
        last, ends, begin = number, line.partition("--")[0].rstrip().endswith(";"), known[at] + 1
    _keep(found, last, printed[begin:], ends=ends)
    return found


def _keep(found: dict[int, str], line: int, results: Sequence[str], *, ends: bool) -> None:
    text = "\n".join(_told(results)).strip("\n")
    if ends or text:
        found[line] = text


def _told(results: Sequence[str]) -> Iterator[str]:
    """Results without what says nothing of the statement: our triggers, say."""
    for line in results:
        said = re.sub(r"^psql:[^ ]*:\d+: ", "", line)
        if said.startswith("CONTEXT:"):
            return
        if not re.match(r"    pgherd_\w+ (AFTER|BEFORE) |    \"Pgherd_|Triggers:$", said, re.I):
            yield said


def add_case(suite: ElementTree.Element, file: str, name: str, wanted: str, text: str) -> None:
    """Add a test to a report in the format of JUnit: it failed if its text is not as wanted."""
    case = ElementTree.SubElement(suite, "testcase", classname=file, name=name)
    if text != wanted:
        message = _printable(_telling(wanted, text))
        failure = ElementTree.SubElement(case, "failure", message=message)
        failure.text = _printable(f"on a plain server:\n{wanted}\nhere:\n{text}")


def _telling(wanted: str, text: str) -> str:
    for line in text.splitlines():
        if re.match(r"(s\d+: |\w+: )?(ERROR:|FATAL:|server closed)", line) and line not in wanted:
            return line
    return "another result"


def _printable(text: str) -> str:
    """XML has no place for control characters."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", text)
