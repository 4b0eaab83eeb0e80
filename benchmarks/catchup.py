"""``python -m benchmarks.catchup``: how fast a member that was away catches up.

The third member of a herd is cut off. Clients on the other two commit small transactions as fast as
they can, for some seconds. Then the links are opened again, and the member reads the log from the
others and applies it. Printed for each workload are the load's rate, the rate at which the third
member catches up with nothing else to do, the ratio of the two, which means something on a machine
that is shared, and how busy the third member's sidecar and its apply sessions were meanwhile: the
busier one is what holds it up.

``--under-load`` lets the clients go on until the member has caught up. Both share the machine then,
so the load's rate is that of the same time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import clients
from benchmarks.commands import psql_file, scratch
from benchmarks.cpu import cpu_us, process_table, threads_us
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.failover import first_number, home
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import PORT_BASE, Pgherd, other_program

SQL = Path(__file__).parent / "peers" / "sql" / "catchup.sql"
ROWS = 200_000
THIS, OTHER = "this", "other"
AWAY = "n3"
CUT = f"n1,n2|{AWAY}"
GOAL = 10.0
STUCK_S = 600.0
PAUSE_S = 0.01
GID = "SELECT pgherd.last_gid()"
APPLIER = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgherd apply%'"
WORKLOADS: Mapping[str, str] = {
    # One row of many: hardly any two of a batch are the same.
    "update": f"""\\set id random(1, {ROWS})
UPDATE catchup_a SET value = value + 1 WHERE id = :id;
""",
    # The rows of a batch are mostly the same ones.
    "hot": """\\set id random(1, 200)
UPDATE catchup_a SET value = value + 1 WHERE id = :id;
""",
    "insert": """INSERT INTO catchup_log (note) VALUES ('some words about what has happened');
""",
    # Like applications: several tables, a row that has a parent, a row that goes.
    "mixed": f"""\\set a random(1, {ROWS})
\\set b random(1, {ROWS})
BEGIN;
UPDATE catchup_a SET value = value - 1 WHERE id = :a;
UPDATE catchup_b SET value = value + 1, note = 'b' || :b WHERE id = :b;
INSERT INTO catchup_child (parent, note) VALUES (:a, 'some words about what has happened');
DELETE FROM catchup_child WHERE id = :b;
END;
""",
    # A transaction of many rows costs the apply session, not the sidecar.
    "bulk": """INSERT INTO catchup_log (note)
SELECT 'some words about what has happened' FROM generate_series(1, 100);
""",
}


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen once.

    Attributes:
        load_tps: transactions a second that the clients made.
        apply_tps: transactions a second that the third member applied.
        sidecar_us: CPU of its sidecar for each of them.
        session_us: CPU of its apply sessions for each of them.
    """

    load_tps: float
    apply_tps: float
    sidecar_us: float
    session_us: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the load it catches up."""
        return self.apply_tps / self.load_tps


def main() -> int:
    """Measure and print; 1 if the goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catchup", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="of each workload")
    parser.add_argument("--seconds", type=int, default=15, help="that the member is away")
    parser.add_argument("--clients", type=int, default=4, help="of each of the two others")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="of another version")
    given = parser.parse_args(sys.argv[1:])
    with scratch(given.dir) as base:
        found = in_turns(base, given)
    for (workload, name), runs in found.items():
        print(line(f"{workload}, {name}", runs))
    mine = [median_ratio(runs) for (_, name), runs in found.items() if name == THIS]
    return int(min(mine) < GOAL)


def in_turns(base: Path, given: argparse.Namespace) -> dict[tuple[str, str], list[Run]]:
    """Return what was seen of each workload and each herd.

    Raises:
        BenchmarkError: A herd did not start, or see ``measure``.
    """
    found: dict[tuple[str, str], list[Run]] = {}
    with ExitStack() as stack:
        herds = {THIS: Pgherd(base / THIS)}
        if given.against is not None:
            herds[OTHER] = Pgherd(base / OTHER, PORT_BASE + 10, other_program(given.against))
        for herd in herds.values():
            stack.enter_context(running(herd))
            psql_file(SQL, herd.members[0].app_dsn, rows=ROWS)
        for turn in range(given.turns):
            for workload in given.workloads:
                for name in sorted(herds, reverse=turn % 2 == 1):
                    one = measure(herds[name], base, workload, given)
                    found.setdefault((workload, name), []).append(one)
                    print(line(f"{workload}, {name}", [one]), file=sys.stderr, flush=True)
    return found


def measure(herd: Pgherd, base: Path, workload: str, given: argparse.Namespace) -> Run:
    """Cut the member off, write, and watch it catch up.

    Raises:
        BenchmarkError: A client failed, or the member does not catch up.
        psycopg.Error: A member does not answer.
    """
    script = base / f"{workload}.sql"
    script.write_text(WORKLOADS[workload])
    with ExitStack() as stack:
        admin, away = (
            stack.enter_context(psycopg.connect(herd.members[place].dsn, autocommit=True))
            for place in (0, 2)
        )
        until(away, gid_of(admin))
        local(herd, "partition", CUT).wait()
        first, began = gid_of(admin), time.monotonic()
        load = [
            clients.start(member.app_dsn, script, given.clients, f"--time={given.seconds}")
            for member in herd.members[:2]
        ]
        # Some may have been in the way, and lost their sessions: the order tells the rate.
        clients.finish(load, well=(0, clients.ABORTED))
        load_tps = (gid_of(admin) - first) / (time.monotonic() - began)
        return watch(herd, admin, away, load_tps)


def watch(
    herd: Pgherd,
    admin: psycopg.Connection[Any],
    away: psycopg.Connection[Any],
    load_tps: float,
) -> Run:
    """Watch the member catch up, from the moment on in which its first link is open.

    Raises:
        BenchmarkError: It does not catch up.
    """
    node = home(herd.herd) / AWAY
    sidecar = first_number(node / "sidecar.pid")
    sidecars = [one.pid for one in process_table() if sidecar in (one.pid, one.parent)]
    sessions = [pid for (pid,) in away.execute(APPLIER)]
    log = node / "sidecar.log"
    seen_bytes = log.stat().st_size
    start, target, asked = gid_of(away), gid_of(admin), time.monotonic()
    cpu = threads_us(sidecars), cpu_us(sessions)
    healing = local(herd, "heal")  # by the time it ends a member may have caught up
    while (end := gid_of(away)) < target:
        if time.monotonic() - asked > STUCK_S:
            raise BenchmarkError(f"{AWAY} does not catch up within {STUCK_S:.0f} s")
        time.sleep(PAUSE_S)
    ended = datetime.now(tz=UTC)
    used = threads_us(sidecars) - cpu[0], cpu_us(sessions) - cpu[1]
    if healing.wait():
        raise BenchmarkError("pgherd local heal has failed")
    took_s = (ended - opened(log, seen_bytes)).total_seconds()
    return Run(load_tps, (end - start) / took_s, used[0] / (end - start), used[1] / (end - start))


def opened(log: Path, seen_bytes: int) -> datetime:
    """When a member opened a link to another one, by what was added to its log.

    Raises:
        BenchmarkError: It has not.
    """
    with log.open() as lines:
        lines.seek(seen_bytes)
        for entry in lines:
            event = json.loads(entry)
            if event.get("event") == "link.opened":
                return datetime.fromisoformat(event["timestamp"])
    raise BenchmarkError(f"{log} tells of no link that was opened")


def local(herd: Pgherd, *words: str) -> subprocess.Popen[bytes]:
    """Begin a command of the herd's program."""
    verb, *others = words
    command = [herd.herd.program, "local", verb, "--dir", str(herd.herd.directory), *others]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def gid_of(connection: psycopg.Connection[Any]) -> int:
    """The newest GID that is visible on a member."""
    row = connection.execute(GID).fetchone()
    assert row is not None
    return int(row[0])


def until(connection: psycopg.Connection[Any], gid: int) -> None:
    """Wait until a GID is visible.

    Raises:
        BenchmarkError: It never is.
    """
    end = time.monotonic() + STUCK_S
    while gid_of(connection) < gid:
        if time.monotonic() > end:
            raise BenchmarkError(f"{AWAY} has not come to {gid} within {STUCK_S:.0f} s")
        time.sleep(PAUSE_S)


def median_ratio(runs: Sequence[Run]) -> float:
    """The median of how many times as fast as the load it was."""
    return statistics.median(run.ratio for run in runs)


def line(name: str, runs: Sequence[Run]) -> str:
    """The median of each figure of some runs."""

    def median(figure: str) -> float:
        return float(statistics.median(getattr(run, figure) for run in runs))

    return (
        f"{name}: load {median('load_tps'):.0f}/s, catches up at {median('apply_tps'):.0f}/s, "
        f"ratio {median_ratio(runs):.1f}; CPU a transaction: sidecar {median('sidecar_us'):.0f}, "
        f"apply sessions {median('session_us'):.0f} us"
    )


if __name__ == "__main__":
    run_main(main)
