"""Stops and starts the PostgreSQL server beside the sidecar, and says whether it has a database.

Only a rebuild does this; at all other times the server is somebody else's to run.
"""

import re
import signal
from pathlib import Path

from pgherd_sidecar.agent.base.config import NodeConfig, RecoverySettings
from pgherd_sidecar.env.processes.detached import ProcessId, postmaster
from pgherd_sidecar.env.processes.programs import ProgramError, run_program

_STOP_S = ((signal.SIGQUIT, 20.0), (signal.SIGKILL, 10.0))
"""PostgreSQL's immediate shutdown, and what always ends it; seconds for each."""
_START_S = 600
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")


def has_database(recovery: RecoverySettings) -> bool:
    """Whether the data directory is one."""
    return (recovery.data_directory / "PG_VERSION").exists()


async def major(recovery: RecoverySettings) -> int:
    """The major version of the programs.

    Raises:
        ProgramError: they can't be run.
    """
    lines: list[str] = []
    await run_program(recovery.postgres_bin / "postgres", "--version", on_line=lines.append)
    found = _VERSION.search(" ".join(lines))
    return int(found[1]) if found is not None else 0


def running(config: NodeConfig, recovery: RecoverySettings) -> ProcessId | None:
    """The server's process, if it runs; also when its directory was removed under it."""
    return postmaster(Path(config.postgres.host), config.postgres.port, recovery.data_directory)


async def stop(config: NodeConfig, recovery: RecoverySettings) -> None:
    """Stop the server if it runs, at once: its data are about to be replaced.

    Raises:
        ProgramError: it does not end.
    """
    server = running(config, recovery)
    if server is None:
        return
    for number, wait_s in _STOP_S:
        server.signal(number)
        if await server.wait_exit(wait_s):
            return
    raise ProgramError(f"the server (process {server.pid}) does not end, although it was killed")


async def start(config: NodeConfig, recovery: RecoverySettings) -> None:
    """Start the server unless it runs; returns when it accepts connections.

    One that somebody else runs is left to him: sessions with it are tried until there is one.

    Raises:
        ProgramError: it does not start.
    """
    if recovery.runs_server and running(config, recovery) is None:
        await run_program(
            recovery.postgres_bin / "pg_ctl", "start", "--wait", f"--timeout={_START_S}",
            "--silent", f"--pgdata={recovery.data_directory}", f"--log={recovery.server_log}",
        )  # fmt: skip
