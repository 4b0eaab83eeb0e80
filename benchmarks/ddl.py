"""``python -m benchmarks.ddl``: what commands cost in a herd, beside plain PostgreSQL.

One session on each system executes the same commands, one after the other, on tables of its own.
Then it makes a migration of a hundred of them, three times: each in a transaction of its own, all
in one transaction, and all in one message. The systems take turns, so that a change of the
machine's mood meets all. Printed are medians: the CPU time of the client's session, in which a
command is executed and judged, and the client's wait. The other members' work is in neither.

``--among N`` makes other tables before, which a foreign key ties to one of them, the hub.
``--against CHECKOUT`` measures another version of pgherd in the same run.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.commands import scratch
from benchmarks.cpu import cpu_us
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import PORT_BASE, Pgherd, other_program
from benchmarks.peers.plain import PlainPostgres

COMMANDS: Mapping[str, str] = {
    "CREATE TABLE": "CREATE TABLE t{0} (id int PRIMARY KEY, a int, b text, c timestamptz)",
    "with a foreign key": "CREATE TABLE c{0} (id int PRIMARY KEY, t int REFERENCES t{0})",
    "ADD COLUMN": "ALTER TABLE t{0} ADD COLUMN d int",
    "SET DEFAULT": "ALTER TABLE t{0} ALTER COLUMN d SET DEFAULT 3",
    "CREATE INDEX": "CREATE INDEX ON t{0} (a)",
    "CREATE VIEW": "CREATE VIEW v{0} AS SELECT id, a FROM t{0}",
    "CREATE FUNCTION": "CREATE FUNCTION f{0}() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "COMMENT": "COMMENT ON TABLE t{0} IS 'of a benchmark'",
    "GRANT": "GRANT SELECT ON t{0} TO public",
    "ADD COLUMN, hub": "ALTER TABLE others.hub ADD COLUMN c{0} int",
    "ALTER TYPE": "ALTER TYPE others.mood ADD VALUE 'v{0}'",
    "DROP VIEW": "DROP VIEW v{0}",
    "DROP FUNCTION": "DROP FUNCTION f{0}()",
    "TRUNCATE": "TRUNCATE t{0}, c{0}",
    "DROP TABLE, a child": "DROP TABLE c{0}",
    "DROP TABLE": "DROP TABLE t{0}",
}
_OTHERS = (
    "CREATE SCHEMA others; CREATE TYPE others.mood AS ENUM ();"
    "CREATE TABLE others.hub (id int PRIMARY KEY);"
)
_OTHER = "CREATE TABLE others.o{0} (id int PRIMARY KEY, hub int REFERENCES others.hub, t text);"
MIGRATION = (
    "CREATE TABLE m{0} (id int PRIMARY KEY, a int)",
    "ALTER TABLE m{0} ADD COLUMN b text",
    "CREATE INDEX ON m{0} (a)",
    "ALTER TABLE m{0} ALTER COLUMN b SET NOT NULL",
    "COMMENT ON TABLE m{0} IS 'of a migration'",
)
MIGRATED_TABLES = 20
SEPARATELY, ONE_TRANSACTION, ONE_MESSAGE = (
    f"{MIGRATED_TABLES * len(MIGRATION)} commands, {how}"
    for how in ("separately", "one transaction", "one message")
)
KINDS = (*COMMANDS, SEPARATELY, ONE_TRANSACTION, ONE_MESSAGE)
PLAIN, HERD, OTHER = "plain", "herd", "other herd"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command, or one migration, in milliseconds."""

    cpu_ms: float
    wait_ms: float


@dataclass(slots=True)
class Session:
    """A client of one system, and what it has measured."""

    connection: psycopg.Connection[Any]
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def measure(self, kind: str, statements: Sequence[str]) -> None:
        """Execute statements one after the other, and note what they cost together.

        Raises:
            psycopg.Error: One failed.
        """
        pids = [self.connection.info.backend_pid]
        cpu_before, began = cpu_us(pids), time.perf_counter()
        for statement in statements:
            self.connection.execute(statement.encode())
        waited_ms = (time.perf_counter() - began) * 1000
        self.costs.setdefault(kind, []).append(Cost((cpu_us(pids) - cpu_before) / 1000, waited_ms))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ddl", description=__doc__)
    parser.add_argument("--turns", type=int, default=7, help="of all systems")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    parser.add_argument("--commands-only", action="store_true", help="no migrations")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="of another version")
    parser.add_argument("--among", type=int, default=0, help="so many tables refer to the hub")
    options = parser.parse_args(sys.argv[1:])
    try:
        with scratch(options.dir) as base:
            found = measure(
                base,
                options.turns,
                options.against,
                migrations=not options.commands_only,
                among=options.among,
            )
    except psycopg.Error as error:
        raise BenchmarkError(f"a server failed: {error}") from error
    print(table(found))
    return 0


def measure(
    base: Path, turns: int, against: Path | None = None, *, migrations: bool = True, among: int = 0
) -> Mapping[str, Mapping[str, Cost]]:
    """Return the medians by system and kind; a first turn, which plans queries, is left out.

    Raises:
        BenchmarkError: A system did not start.
        psycopg.Error: A command failed.
    """
    with ExitStack() as stack:
        plain, herds = PlainPostgres(base / "plain"), {HERD: Pgherd(base / "herd")}
        if against is not None:
            herds[OTHER] = Pgherd(base / "other", PORT_BASE + 10, other_program(against))
        stack.enter_context(running(plain))
        for herd in herds.values():
            stack.enter_context(running(herd))
        dsns = {PLAIN: plain.server.dsn}
        dsns |= {name: herd.members[0].dsn for name, herd in herds.items()}
        sessions = {
            name: Session(stack.enter_context(psycopg.connect(dsn, autocommit=True)))
            for name, dsn in dsns.items()
        }
        others = "".join(_OTHER.format(i) for i in range(among))
        for session in sessions.values():
            session.connection.execute(f"{_OTHERS} {others}".encode())
        for turn in range(turns + 1):
            for session in random.sample(list(sessions.values()), len(sessions)):
                take_turn(session, turn)
                if migrations and turn > 0:
                    migrate(session)
        return {name: medians(session.costs) for name, session in sessions.items()}


def take_turn(session: Session, turn: int) -> None:
    """Execute each command once.

    Raises:
        psycopg.Error: One failed.
    """
    for kind, command in COMMANDS.items():
        session.measure(kind, [command.format(turn)])
    if turn == 0:
        session.costs.clear()


def migrate(session: Session) -> None:
    """Make the migration in each of the three ways.

    Raises:
        psycopg.Error: A command failed.
    """
    migration = [c.format(i) for i in range(MIGRATED_TABLES) for c in MIGRATION]
    tables = ", ".join(f"m{i}" for i in range(MIGRATED_TABLES))
    for kind, statements in (
        (SEPARATELY, migration),
        (ONE_TRANSACTION, ["BEGIN", *migration, "COMMIT"]),
        (ONE_MESSAGE, ["; ".join(migration)]),
    ):
        session.measure(kind, statements)
        session.connection.execute(f"DROP TABLE {tables}".encode())


def medians(costs: Mapping[str, Sequence[Cost]]) -> Mapping[str, Cost]:
    """The medians of all turns."""
    return {
        kind: Cost(
            statistics.median(cost.cpu_ms for cost in some),
            statistics.median(cost.wait_ms for cost in some),
        )
        for kind, some in costs.items()
    }


def table(found: Mapping[str, Mapping[str, Cost]]) -> str:
    """Return the Markdown table; what another version costs is compared with this one."""
    head = ["CPU ms, plain", "herd", "wait ms, plain", "herd"]
    if OTHER in found:
        head += ["CPU ms, other herd", "CPU, herd by other", "wait, herd by other"]
    lines = [f"| command | {' | '.join(head)} |", "| --- |" + " ---: |" * len(head)]
    for kind in [kind for kind in KINDS if kind in found[HERD]]:
        plain, herd = found[PLAIN][kind], found[HERD][kind]
        cells = [
            f"{value:.1f}" for value in (plain.cpu_ms, herd.cpu_ms, plain.wait_ms, herd.wait_ms)
        ]
        if OTHER in found:
            other = found[OTHER][kind]
            cells.append(f"{other.cpu_ms:.1f}")
            cells.append(f"{herd.cpu_ms / other.cpu_ms:.2f}")
            cells.append(f"{herd.wait_ms / other.wait_ms:.2f}")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(main)
