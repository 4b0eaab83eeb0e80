"""pgbench with a script of the caller's own: clients are started, and waited for."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import client_environment, last_line, postgres_bin
from benchmarks.errors import BenchmarkError

ABORTED = 2
"""The exit status of pgbench where errors ended some of its clients."""


def start(dsn: str, script: Path, clients: int, until: str) -> subprocess.Popen[str]:
    """Start the clients of one server.

    Args:
        dsn: Connection string of the server.
        script: One transaction.
        clients: How many.
        until: The option that says when they end.
    """
    command: Sequence[str | Path] = [
        postgres_bin() / "pgbench", "--no-vacuum", "--protocol=prepared", f"--file={script}",
        f"--client={clients}", until, "--max-tries=100",
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        env=client_environment(dsn),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(clients: Sequence[subprocess.Popen[str]], well: Sequence[int] = (0,)) -> list[str]:
    """Wait for clients to end; return what they say.

    Args:
        clients: As ``start`` gave them.
        well: Exit statuses that are no failure.

    Raises:
        BenchmarkError: One has failed.
    """
    said = []
    for client in clients:
        out, error = client.communicate()
        if client.returncode not in well:
            raise BenchmarkError(f"pgbench: {last_line(error)}")
        said.append(out)
    return said
