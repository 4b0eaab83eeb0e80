"""A plain server beside the systems, measured before and after each: was the machine itself?

A virtual machine's disk and processors are quick at one moment and slow at the next. What was
measured beside a server that was slower than it can be says nothing. Called by the comparison.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import sysbench
from benchmarks.peers.base import Contents, Endpoint, running
from benchmarks.peers.plain import PlainPostgres
from benchmarks.sysbench import Job

PORT = 7609
TABLES = 4
ROWS = 20_000
CLIENTS = 8
SECONDS = 4
LARGEST_LOSS = 0.15
"""By what part of its best the server may have been slower, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Control:
    """One plain server that idles while a system is measured; see ``started``."""

    _endpoints: Sequence[Endpoint]

    def tps(self) -> float:
        """Return the transactions a second of the server now: updates, eight clients.

        Raises:
            BenchmarkError: sysbench could not run.
        """
        job = Job("oltp_update_index", CLIENTS, SECONDS, TABLES, ROWS)
        return asyncio.run(sysbench.run(job, self._endpoints)).tps


@contextmanager
def started(directory: Path) -> Iterator[Control]:
    """Start the server and load it, and stop it at the end.

    Raises:
        BenchmarkError: It did not start, or could not be loaded.
    """
    server = PlainPostgres(directory, PORT)
    with running(server) as endpoints:
        server.load(Contents(TABLES, ROWS))
        control = Control(endpoints)
        control.tps()  # the first seconds are slow: nothing is in the caches
        yield control
