"""Detached processes: known by pid *and* start time, so that a recycled pid is never signalled.

Pid files hold ``pid start-time boot-id``; the start time (clock ticks since boot) and the boot id
come from /proc. Signals go through a pidfd that is opened before the start time is compared, so no
other process can slip in between. Linux only.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD = 19
"""Index of ``starttime`` in /proc/PID/stat after the command name and its parenthesis."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for ever: no other process will equal it."""

    pid: int
    start_time: int
    boot_id: str

    def is_running(self) -> bool:
        """Say whether this very process lives (a zombie does not)."""
        return identify(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone already."""
        with self._pidfd() as pidfd:
            if pidfd is None:
                return False
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
            return True

    async def wait_exit(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False when it still runs after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        with self._pidfd() as pidfd:
            if pidfd is None:
                return True
            ended = asyncio.Event()
            loop.add_reader(pidfd, ended.set)
            try:
                async with asyncio.timeout(timeout_s):
                    await ended.wait()
            except TimeoutError:
                return False
            finally:
                loop.remove_reader(pidfd)
            return True

    @contextmanager
    def _pidfd(self) -> Iterator[int | None]:
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield pidfd if self.is_running() else None
        finally:
            os.close(pidfd)


def identify(pid: int) -> ProcessId | None:
    """Return the running process that has this pid now, if any."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return ProcessId(pid, int(fields[_START_TIME_FIELD]), _BOOT_ID.read_text().strip())


def identify_in(directory: Path, pid: int) -> ProcessId | None:
    """Return the process that has this pid now, if ``directory`` is its working directory.

    Also when the directory has been removed under it.
    """
    process = identify(pid)
    with suppress(OSError):  # gone meanwhile, or another account's
        works_in = str(Path(f"/proc/{pid}/cwd").readlink())
        if works_in.removesuffix(" (deleted)") == str(directory):
            return process
    return None


def postmaster(sockets: Path, port: int, data_directory: Path) -> ProcessId | None:
    """Return a PostgreSQL server's first process, if it runs.

    It is found by the lock file of its socket, because its data directory may have been removed
    under it. The pid in there counts only if that process works in the data directory; the former
    children of a dead postmaster cannot have its pid.

    Args:
        sockets: ``unix_socket_directories`` of the server.
        port: its port, of which the socket has its name.
        data_directory: where its data are, or were.
    """
    try:
        pid = int((sockets / f".s.PGSQL.{port}.lock").read_text().partition("\n")[0])
    except (FileNotFoundError, ValueError):  # ValueError: it is just being written
        return None
    return identify_in(data_directory, pid)


def write_pid_file(path: Path, process: ProcessId) -> None:
    """Remember a process that was just started."""
    path.write_text(f"{process.pid} {process.start_time} {process.boot_id}\n")


def read_pid_file(path: Path) -> ProcessId | None:
    """Return the process of a pid file if it still runs."""
    try:
        pid, start_time, boot_id = path.read_text().split()
    except (FileNotFoundError, ValueError):
        return None  # ValueError: torn by a crash while it was written
    process = ProcessId(int(pid), int(start_time), boot_id)
    return process if process.is_running() else None


def processes_in(directory: Path) -> list[ProcessId]:
    """Return the processes of this account whose working directory is ``directory``.

    PostgreSQL's processes all work in their data directory and nothing else does, so this finds a
    dead postmaster's surviving children, which no pid file names.
    """
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [process for pid in pids if (process := identify_in(directory, pid)) is not None]


async def wait_all_exit(processes: list[ProcessId], timeout_s: float) -> list[ProcessId]:
    """Wait until all have ended; return those that still run after ``timeout_s``."""
    ended = await asyncio.gather(*(process.wait_exit(timeout_s) for process in processes))
    return [process for process, gone in zip(processes, ended, strict=True) if not gone]
