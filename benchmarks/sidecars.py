"""``python -m benchmarks.sidecars``: CPU time of the sidecars for each transaction.

Clients on all members of a herd update single rows by primary key, a fixed number of transactions
in a turn, each in a transaction of its own. The scheduler tells the CPU of the three sidecars
before and after. It hardly depends on what else the machine does, if there are enough
turns: a busy one makes the blocks of the log larger or smaller, so compare within a run only.

``--against CHECKOUT`` measures another version of pgherd in the same run; the herds take turns.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.clients import finish, start
from benchmarks.commands import psql_file, scratch
from benchmarks.cpu import belonging_to, kind_of, process_table, threads_us
from benchmarks.errors import run_main
from benchmarks.peers.base import running
from benchmarks.peers.pgherd import PORT_BASE, Pgherd, other_program
from benchmarks.sysbench import deal_out

TABLE = Path(__file__).parent / "peers" / "sql" / "commit_latency.sql"
ROWS = 100_000
SCRIPT = f"""\\set id random(1, {ROWS})
UPDATE commit_latency SET value = value + 1 WHERE id = :id;
"""
CLIENTS = (1, 8)
THIS, OTHER = "this", "other"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sidecars", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="of each herd and number of clients")
    parser.add_argument("--commits", type=int, default=2000, help="transactions in a turn")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="of all members")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="of another version")
    options = parser.parse_args(sys.argv[1:])
    with scratch(options.dir) as base:
        measure(base, options.turns, options.commits, options.clients, options.against)
    return 0


def measure(
    base: Path, turns: int, commits: int, clients: Sequence[int], against: Path | None
) -> None:
    """Measure in turns, and print what each turn has found; the first turn is left out.

    Raises:
        BenchmarkError: A herd did not start, or a client failed.
    """
    script = base / "update.sql"
    script.write_text(SCRIPT)
    with ExitStack() as stack:
        herds = {THIS: Pgherd(base / "this")}
        if against is not None:
            herds[OTHER] = Pgherd(base / "other", PORT_BASE + 10, other_program(against))
        for herd in herds.values():
            stack.enter_context(running(herd))
            psql_file(TABLE, herd.members[0].app_dsn, rows=ROWS + 1)
        found: dict[tuple[int, str], list[float]] = {}
        for turn in range(turns + 1):
            for number in clients:
                for name in sorted(herds, reverse=turn % 2 == 1):
                    used = turn_us(herds[name], script, number, commits)
                    if turn > 0:
                        found.setdefault((number, name), []).append(used)
            if turn > 0:
                print(line(found, clients), flush=True)


def turn_us(herd: Pgherd, script: Path, clients: int, commits: int) -> float:
    """Return the microseconds of all sidecars for each transaction.

    Raises:
        BenchmarkError: A client failed.
    """
    sidecars = [
        process.pid
        for process in belonging_to(herd.directory, process_table())
        if kind_of(process) == "sidecars"
    ]
    # A commit on the proposer's node costs less, so that one is the last to get a client.
    members = sorted(herd.herd.members(), key=lambda member: member.name == member.proposer)
    shares = deal_out(clients, len(members))
    before = threads_us(sidecars)
    until = f"--transactions={commits // clients}"
    running_clients = [
        start(member.app_dsn, script, share, until)
        for member, share in zip(members, shares, strict=True)
        if share
    ]
    finish(running_clients)
    return (threads_us(sidecars) - before) / (commits // clients * clients)


def line(found: Mapping[tuple[int, str], Sequence[float]], clients: Sequence[int]) -> str:
    """Return the medians so far, and the median of the ratios of each turn."""
    parts = [f"load {os.getloadavg()[0]:4.1f}"]
    for number in clients:
        mine = found[number, THIS]
        text = f"{number} clients: {statistics.median(mine):6.0f} us"
        if (number, OTHER) in found:
            other = found[number, OTHER]
            ratios = [a / b for a, b in zip(mine, other, strict=True)]
            text += f", other {statistics.median(other):6.0f} us"
            text += f", ratio {statistics.median(ratios):.3f}"
        parts.append(text)
    return "; ".join(parts)


if __name__ == "__main__":
    run_main(main)
