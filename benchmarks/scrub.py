"""Measure what the scrub of a running herd takes of each member, and how fast it is.

``python -m benchmarks.scrub --dir D --seconds 60`` watches the scrub's session of each member: its
CPU time as the kernel counts it, and the sidecar's own counters. It changes nothing. A member whose
scrub has no session yet, because no part has been due, is left out. Keeps no state.
"""

import argparse
import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pgherd_sidecar.local.herd import Herd, load
from pgherd_sidecar.local.operations.lifecycle import nodes_of

_SESSION = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgherd scrub'"


@dataclass(frozen=True, slots=True)
class Counters:
    """One member's: CPU time and working time of the session, rows compared."""

    cpu_s: float
    work_s: float
    rows: int


def main() -> None:
    """Watch, and print a line for each member."""
    parser = argparse.ArgumentParser("benchmarks.scrub", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="of a herd that is up")
    parser.add_argument("--seconds", type=float, default=60.0, help="to watch")
    asked = parser.parse_args()
    herd = load(asked.dir)
    sessions = {one.name: pid for one in herd.databases if (pid := _session(herd.dsn(one)))}
    began_s, before = time.monotonic(), asyncio.run(_counters(herd, sessions))
    time.sleep(asked.seconds)
    after, seconds = asyncio.run(_counters(herd, sessions)), time.monotonic() - began_s
    for name, last in after.items():
        first = before[name]
        print(
            f"{name}: {100 * (last.cpu_s - first.cpu_s) / seconds:.2f} % of a core,"
            f" at work {100 * (last.work_s - first.work_s) / seconds:.2f} % of the time,"
            f" {(last.rows - first.rows) / seconds:.0f} rows/s"
        )


def _session(dsn: str) -> int | None:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(_SESSION).fetchone()
        return None if row is None else int(row[0])


async def _counters(herd: Herd, sessions: dict[str, int]) -> dict[str, Counters]:
    found = {}
    for node in nodes_of(herd):
        name = node.member.name
        if name in sessions:
            said = (await node.sidecar.admin.status()).model_dump()
            cpu_s = _cpu_s(sessions[name])
            found[name] = Counters(cpu_s, said["scrub_work_s"], said["scrub_rows"])
    return found


def _cpu_s(pid: int) -> float:
    """Of a process, as the kernel has counted it; what is in brackets may have spaces."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
