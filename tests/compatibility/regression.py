"""PostgreSQL's own regression tests: a statement should say what it says on a plain server.

psql plays the files in the order of the schedule, as under ``pg_regress``.
"""

import bisect
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from benchmarks.commands import postgres_bin
from compatibility.scheduled import Scheduled
from compatibility.suites import Server

_FILE_S = 1800
_SETTINGS = "-c intervalstyle=postgres_verbose -c timezone_abbreviations=Default -c lc_messages=C"


class Regression(Scheduled):
    """PostgreSQL's regression tests. A test is a statement, named by the line at which it ends."""

    name = "PostgreSQL"
    folder = "regress"
    schedule = "parallel_schedule"
    always = frozenset({"test_setup"})
    left_out = frozenset({"tablespace"})
    """It wants a directory of its own on the server, under one name for all members."""

    def said(self, name: str, server: Server, work: Path) -> dict[str, str]:
        results = work / "regression"
        results.mkdir(parents=True, exist_ok=True)
        (results / "results").mkdir(exist_ok=True)
        (results / "results").chmod(0o777)  # the server's own user writes there, too
        source = (self.sources / "sql" / f"{name}.sql").read_text(errors="replace")
        return statements(source, self._play(name, server, results))

    def _play(self, name: str, server: Server, results: Path) -> str:
        output = results / f"{name}-{conninfo_to_dict(server.admin)['port']}.out"
        with output.open("wb") as words:
            psql = subprocess.Popen(
                [postgres_bin() / "psql", "-X", "-a", "-q", "-v", "HIDE_TABLEAM=on",
                 "-v", "HIDE_TOAST_COMPRESSION=on", "-d", server.admin,
                 "-f", str(self.sources / "sql" / f"{name}.sql")],
                cwd=results, stdout=words, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | {
                    "PG_ABS_SRCDIR": str(self.sources), "PG_ABS_BUILDDIR": str(results),
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


def statements(source: str, output: str) -> dict[str, str]:
    """Divide the output of psql among the statements of a file.

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
    found: dict[str, str] = {}
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


def _keep(found: dict[str, str], line: int, results: Sequence[str], *, ends: bool) -> None:
    text = "\n".join(_told(results)).strip("\n")
    if ends or text:
        found[str(line)] = text


def _told(results: Sequence[str]) -> Iterator[str]:
    """Leave out what says nothing of the statement, as our triggers."""
    fired = 0
    for line in results:
        said = re.sub(r"^psql:[^ ]*:\d+: ", "", line)
        if said.startswith("CONTEXT:"):
            return
        if re.match(r" Trigger pgherd_\w+( on \S+)?: calls=", said):  # EXPLAIN ANALYZE
            fired += 1
        elif fired and (rows := re.fullmatch(r"\((\d+) rows\)", said)):
            yield f"({int(rows[1]) - fired} rows)"
        elif not re.match(r"    pgherd_\w+ (AFTER|BEFORE) |    \"Pgherd_|Triggers:$", said, re.I):
            yield said
