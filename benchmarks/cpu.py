"""CPU time and memory of a system's processes, by kind, read from /proc.

A process belongs to the system when its command line names the system's directory, or when an
ancestor does. Nothing is attached to or slowed down. Called by the comparison, which takes two
samples while the clients are connected: what a finished process used is seen by nobody.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

PROC = Path("/proc")
STREAMING = ("walsender", "walreceiver", "startup")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    started: int
    """Clock ticks since boot; with the pid it names a process for ever."""
    command: str
    cpu_s: float
    rss_bytes: int


def process_table(proc: Path = PROC) -> list[Process]:
    """Return all processes; those that end meanwhile are left out."""
    table = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        table.append(parse_process(stat, command.replace(b"\0", b" ").decode(errors="replace")))
    return table


def parse_process(stat: str, command: str) -> Process:
    """Return the process that a /proc/PID/stat describes.

    The name in parentheses may itself hold spaces and parentheses; the fields follow the last one.
    """
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    return Process(
        pid=int(head.split("(", 1)[0]),
        parent=int(fields[1]),
        started=int(fields[19]),
        command=command.strip(),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        rss_bytes=int(fields[21]) * PAGE_BYTES,
    )


def belonging_to(directory: Path, table: list[Process]) -> list[Process]:
    """Return the server processes that name ``directory`` in their command line, and all below."""
    roots = {
        process.pid
        for process in table
        if f"{directory}/" in process.command and kind_of(process) is not None
    }
    return below(roots, table)


def below(roots: set[int], table: list[Process]) -> list[Process]:
    """Return the processes with these ids, and all below."""
    children: dict[int, list[int]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, []))
    return [process for process in table if process.pid in found]


def cpu_us(pids: list[int]) -> float:
    """Microseconds that these processes have been running, as the scheduler counts them."""
    schedules = [Path(f"/proc/{pid}/schedstat").read_text() for pid in pids]
    return sum(int(schedule.split()[0]) for schedule in schedules) / 1000


def threads_us(pids: list[int]) -> float:
    """Microseconds that all threads of these processes have been running."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files) / 1000


def usage(directory: Path) -> dict[tuple[int, int], float]:
    """Return the CPU seconds so far of this process, of a directory's servers, and of all below.

    By process id and start; those that have ended count for their parent, if it has waited.
    """
    table = process_table()
    ours = [*below({os.getpid()}, table), *belonging_to(directory, table)]
    return {
        (process.pid, process.started): used_s
        for process in ours
        if (used_s := _with_ended_s(process.pid)) is not None
    }


def spent_s(
    before: Mapping[tuple[int, int], float], after: Mapping[tuple[int, int], float]
) -> float:
    """Return the CPU seconds between two of these.

    What a process that has ended had used before is nobody's: not every parent waits.
    """
    return sum(used - before.get(process, 0.0) for process, used in after.items())


def _with_ended_s(pid: int) -> float | None:
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def kind_of(process: Process) -> str | None:
    """Return what a process does in its system, or None if it is no server's."""
    command = process.command
    if "pgherd-sidecar" in command or "pgherd_sidecar" in command:
        return "sidecars"
    if command.startswith("postgres:"):
        if command.split()[1] in STREAMING:
            return "streaming"
        # Clients come by TCP; a sidecar's own sessions use the server's Unix socket.
        if "127.0.0.1(" in command:
            return "client backends"
        return "sidecars' sessions" if "[local]" in command else "background"
    program = command.split(" ", 1)[0].rpartition("/")[2]
    if program == "postgres":
        return "background"
    return "mariadbd" if program == "mariadbd" else None


def cpu_by_kind(before: list[Process], after: list[Process]) -> dict[str, float]:
    """Return the CPU seconds used between two samples, by kind of process."""
    used: dict[str, float] = {}
    earlier = {(process.pid, process.started): process.cpu_s for process in before}
    for process in after:
        kind = kind_of(process)
        if kind is not None:
            spent = process.cpu_s - earlier.get((process.pid, process.started), 0.0)
            used[kind] = used.get(kind, 0.0) + spent
    return used


def largest_rss_mb(processes: list[Process], kind: str) -> float:
    """Return the resident memory of the largest process of a kind, in MB; 0 without any."""
    sizes = [process.rss_bytes for process in processes if kind_of(process) == kind]
    return max(sizes, default=0) / 1e6


def per_transaction_us(
    used_s: Mapping[str, float], *, interval_s: float, tps: float
) -> dict[str, float]:
    """Return CPU microseconds a transaction by kind, largest first.

    Args:
        used_s: CPU seconds by kind over the interval.
        interval_s: Length of the interval.
        tps: Transactions a second of all clients.
    """
    if tps <= 0 or interval_s <= 0:
        return {}
    ranked = sorted(used_s.items(), key=lambda item: -item[1])
    return {kind: 1e6 * seconds / interval_s / tps for kind, seconds in ranked}
