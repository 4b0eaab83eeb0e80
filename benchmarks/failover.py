"""``python -m benchmarks.failover``: from a kill to the next commit, as applications see it.

A herd of three, four clients that commit one small transaction after the other by one of three
ways: libpq with several hosts, HAProxy, PgBouncer behind HAProxy. All of them are on node 1, which
is made the one that orders the log; then it, its sidecar or its server is killed. Measured is the
time from SIGKILL to the first commit that was begun after it, for the client that waits longest.
Writes ``failover.json`` and a table of ``clients/README.md``.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks import records, report
from benchmarks.balancers import haproxy, pgbouncer
from benchmarks.commands import scratch
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.herd import Herd
from benchmarks.peers.pgherd import Pgherd

GOAL_S = 3.0
VICTIM = "n1"
"""The first of every list of hosts."""
WHAT = ("node", "sidecar", "postgres")
CLIENTS = 4
SETTLE_S = 1.0
STUCK_S = 60.0
PORT_BASE = 7900
TABLE = "CREATE TABLE failover (id bigserial PRIMARY KEY, client int, v int)"
INSERT = "INSERT INTO failover (client, v) VALUES (%s, %s)"


@dataclass(frozen=True, slots=True)
class Way:
    """A connection string, and what is between it and the members."""

    name: str
    dsn: str


@dataclass(frozen=True, slots=True)
class Figure:
    """What was seen of one way and one victim, in seconds: the slowest client of each kill."""

    way: str
    killed: str
    waits_s: tuple[float, ...]


class Client(threading.Thread):
    """Commits until it is told to stop, and connects anew whenever anything fails.

    Attributes:
        commits: when each acknowledged transaction was begun, and when it was acknowledged, by the
            monotonic clock.
        complaint: the last error.
    """

    def __init__(self, dsn: str, number: int) -> None:
        super().__init__(daemon=True)
        self.commits: list[tuple[float, float]] = []
        self.stopped = threading.Event()
        self.complaint = "none"
        self._dsn = dsn
        self._number = number

    def run(self) -> None:
        """See the class."""
        while not self.stopped.is_set():
            try:
                self._work()
            except psycopg.Error as error:
                self.complaint = f"{error.sqlstate}: {error}"
                time.sleep(0.02)

    def _work(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None) as connection:
            while not self.stopped.is_set():
                began = time.monotonic()
                connection.execute(INSERT, (self._number, len(self.commits)))
                self.commits.append((began, time.monotonic()))

    def next_after(self, moment: float) -> float:
        """Return when the first transaction that was begun after a moment was acknowledged.

        Raises:
            BenchmarkError: There is none for a minute.
        """
        end = time.monotonic() + STUCK_S
        while time.monotonic() < end:
            later = [done for began, done in list(self.commits) if began > moment]
            if later:
                return later[0]
            time.sleep(0.01)
        raise BenchmarkError(f"a client has had no commit for {STUCK_S:g} s: {self.complaint}")


@contextlib.contextmanager
def load_by(way: Way) -> Iterator[Sequence[Client]]:
    """Have clients commit by a way during the block."""
    clients = [Client(way.dsn, number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(STUCK_S)


def processes(herd: Herd, what: str) -> list[int]:
    """Return the victim's processes that are to be killed, the sidecar first.

    Raises:
        OSError: One of them does not run.
    """
    node, found = home(herd) / VICTIM, []
    if what != "postgres":
        found.append(first_number(node / "sidecar.pid"))
    if what != "sidecar":
        postmaster = first_number(node / "pgdata" / "postmaster.pid")
        # its sessions, which would notice their postmaster's death by themselves a little later
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        found += [postmaster, *map(int, children)]
    return found


def first_number(file: Path) -> int:
    """Return what a file of a process id begins with."""
    return int(file.read_text().split()[0])


def home(herd: Herd) -> Path:
    """Return where a herd's files are."""
    link = herd.directory / "herd"
    return link.readlink() if link.is_symlink() else herd.directory


def make_proposer(herd: Herd) -> None:
    """Have the victim order the log: restart whoever else does, until it does.

    Raises:
        BenchmarkError: It is never elected.
    """
    for _ in range(20):
        proposer = herd.members()[0].proposer
        if proposer == VICTIM:
            return
        herd.kill(proposer)
        herd.start(proposer)
    raise BenchmarkError(f"{VICTIM} is not elected")


def one_kill(herd: Herd, way: Way, what: str) -> float:
    """Return after how many seconds the last of the clients has had a commit again."""
    make_proposer(herd)
    with load_by(way) as clients:
        for client in clients:
            client.next_after(time.monotonic())
        time.sleep(SETTLE_S)
        with psycopg.connect(way.dsn, autocommit=True) as connection:
            on = connection.execute("SHOW cluster_name").fetchone()
        if on != (VICTIM,):
            raise BenchmarkError(f"{way.name} leads to {on}")
        victims = processes(herd, what)
        killed = time.monotonic()
        for process in victims:
            with contextlib.suppress(ProcessLookupError):  # a session may have ended meanwhile
                os.kill(process, signal.SIGKILL)
        wait_s = max(client.next_after(killed) for client in clients) - killed
    print(f"{way.name}, {what} killed: {wait_s:.2f} s", file=sys.stderr)
    herd.start(VICTIM)
    time.sleep(2 * SETTLE_S)  # balancers come back to it
    return wait_s


def measure(base: Path, kills: int, whats: Sequence[str]) -> list[Figure]:
    """Start a herd and kill its first node over and over."""
    system = Pgherd(base / "pgherd", PORT_BASE)
    account = "postgres" if os.geteuid() == 0 else None
    try:
        system.start()
        herd = system.herd
        with psycopg.connect(system.members[0].app_dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        password = json.loads((home(herd) / "herd.json").read_text())["app_password"]
        parts = [conninfo_to_dict(member.app_dsn) for member in system.members]
        hosts = ",".join(f"{part['host']}:{part['port']}" for part in parts)
        line = f"postgresql://app:{password}@{hosts}/app"
        with haproxy(PORT_BASE, base) as ports:
            through = f"postgresql://app:{password}@127.0.0.1:{ports.writers}/app"
            with pgbouncer(PORT_BASE, base / "pgbouncer", password, user=account) as pooled:
                ways = (
                    Way("libpq", f"{line}?target_session_attrs=read-write&connect_timeout=2"),
                    Way("HAProxy", f"{through}?connect_timeout=2"),
                    Way("PgBouncer behind HAProxy", f"{pooled}?connect_timeout=2"),
                )
                return [
                    Figure(way.name, what, tuple(one_kill(herd, way, what) for _ in range(kills)))
                    for way in ways
                    for what in whats
                ]
    finally:
        system.stop()


def publish(figures: Sequence[Figure], output: Path | None) -> None:
    """Print the table, and write it and the JSON where they belong."""
    lines = ["| way | killed | median | longest |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {one.way} | {one.killed} | {statistics.median(one.waits_s):.2f} s "
        f"| {max(one.waits_s):.2f} s |"
        for one in figures
    ]
    table = "\n".join(lines)
    print(table)
    if output is None:
        return
    document = {"machine": records.this_machine(), "figures": [asdict(one) for one in figures]}
    (output / "failover.json").write_text(json.dumps(document, indent=1) + "\n")
    page = output / "clients" / "README.md"
    page.write_text(report.replace_section(page.read_text(), "failover", table))


def main() -> int:
    """Measure, print and publish; 1 if the goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="of each kind, by each way")
    parser.add_argument("--what", nargs="+", choices=WHAT, default=WHAT, help="what is killed")
    parser.add_argument("--output", type=Path, help="directory of the report; none: print only")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    given = parser.parse_args(sys.argv[1:])
    with scratch(given.dir) as base:
        figures = measure(base, given.kills, given.what)
    publish(figures, given.output)
    return int(max(wait_s for one in figures for wait_s in one.waits_s) > GOAL_S)


if __name__ == "__main__":
    run_main(main)
