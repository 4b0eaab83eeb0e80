"""The use of a system in a window of time: CPU by kind of process, bytes between its members.

The kernel tells a process's time in hundredths of a second, which a session that runs twenty short
transactions hardly reaches. A server's session has one thread, whose time it also tells in
nanoseconds. Sidecars and mariadbd have several threads, live long, and are read as by ``cpu``.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import cpu
from benchmarks.evaluation import links
from benchmarks.evaluation.record import Idle

THREADED = ("sidecars", "mariadbd")


class Window:
    """The time that counts; it begins when this is made.

    Args:
        directory: Named in the command line of each of the system's processes.
        ports: On which its members listen for each other; none if it is no herd.

    Attributes:
        began: Seconds since 1970.
        ended: Likewise, once ``end`` has been called.
    """

    def __init__(self, directory: Path, ports: Sequence[int]) -> None:
        self._directory = directory
        self._ports = ports
        self._used = self._used_after = sample(directory)
        self._sent = self._sent_after = links.traffic(ports)
        self.began = self.ended = time.time()

    def end(self) -> None:
        """Close the window."""
        self.ended = time.time()
        self._used_after = sample(self._directory)
        self._sent_after = links.traffic(self._ports)

    def per_transaction_us(self, tps: float) -> dict[str, float]:
        """Return CPU microseconds a transaction by kind of process, if so many committed."""
        used = cpu.cpu_by_kind(self._used, self._used_after)
        return cpu.per_transaction_us(used, interval_s=self.ended - self.began, tps=tps)

    def traffic(self) -> links.Traffic | None:
        """Return what members sent each other; None if it is no herd, or without ``ss``."""
        before, after = self._sent, self._sent_after
        if before is None or after is None:
            return None
        return links.Traffic(after.bytes - before.bytes, after.segments - before.segments)

    def idle(self) -> Idle:
        """Return what was used each second, whatever for."""
        seconds = self.ended - self.began
        sent = self.traffic() or links.Traffic(0, 0)
        cores = sum(cpu.cpu_by_kind(self._used, self._used_after).values()) / seconds
        return Idle(cores, sent.bytes / seconds, sent.segments / seconds)


def idle(directory: Path, ports: Sequence[int], seconds: float) -> Idle:
    """Return what a system uses while nobody asks for anything."""
    window = Window(directory, ports)
    time.sleep(seconds)
    window.end()
    return window.idle()


def sample(directory: Path, proc: Path = cpu.PROC) -> list[cpu.Process]:
    """Return the processes of the system in a directory, with their CPU time so far."""
    found = cpu.belonging_to(directory, cpu.process_table(proc))
    return [one if cpu.kind_of(one) in THREADED else finer(one, proc) for one in found]


def finer(process: cpu.Process, proc: Path = cpu.PROC) -> cpu.Process:
    """Return a process of one thread with its time as the scheduler counts it, if it still runs."""
    try:
        nanoseconds = int((proc / str(process.pid) / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return process
    return replace(process, cpu_s=nanoseconds / 1e9)
