"""Stops and starts the PostgreSQL server beside the sidecar, and says whether it has a database.

Only a rebuild does this; at all other times the server is somebody else's to run. The server is
found by the lock file of its socket, because its data directory may be gone.
"""

import asyncio
import contextlib
import os
import select
import signal
from pathlib import Path

from pgherd_sidecar.agent.config import NodeConfig, Recovery
from pgherd_sidecar.agent.recovery.programs import run

_STOP_S = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""PostgreSQL's fast and immediate shutdown, and what always ends it; seconds for each."""
_START_S = 600


def has_database(recovery: Recovery) -> bool:
    """Whether the data directory is one."""
    return (recovery.data_directory / "PG_VERSION").exists()


def postmaster(config: NodeConfig, recovery: Recovery) -> int | None:
    """The server's process, if it runs; also when its directory was removed under it."""
    lock = Path(config.postgres.host) / f".s.PGSQL.{config.postgres.port}.lock"
    with contextlib.suppress(OSError, ValueError):
        pid = int(lock.read_text().partition("\n")[0])
        works_in = Path(f"/proc/{pid}/cwd").readlink()
        if str(works_in).removesuffix(" (deleted)") == str(recovery.data_directory):
            return pid
    return None


async def stop(config: NodeConfig, recovery: Recovery) -> None:
    """Stop the server if it runs."""
    pid = postmaster(config, recovery)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if postmaster(config, recovery) != pid:
                return  # it has ended, and the number is another process's now
            for number, wait_s in _STOP_S:
                signal.pidfd_send_signal(handle, number)
                if await asyncio.to_thread(_wait_exit, handle, wait_s):
                    return
        finally:
            os.close(handle)


def _wait_exit(handle: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


async def start(config: NodeConfig, recovery: Recovery) -> None:
    """Start the server unless it runs; returns when it accepts connections.

    Raises:
        ProgramError: it does not start.
    """
    if postmaster(config, recovery) is None:
        await run(
            recovery.postgres_bin / "pg_ctl", "start", "--wait", f"--timeout={_START_S}",
            "--silent", f"--pgdata={recovery.data_directory}", f"--log={recovery.server_log}",
        )  # fmt: skip
