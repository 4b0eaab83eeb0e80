"""What the comparison needs of a system. Interface only."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node that takes writes, as sysbench connects to it."""

    driver: str
    """``pgsql`` or ``mysql``."""
    host: str
    port: int
    user: str
    password: str
    database: str


class System(Protocol):
    """One system under test. Making one raises BenchmarkError if a program of it is missing."""

    directory: Path
    """Named in the command line of each of the system's processes."""

    def start(self) -> Sequence[Endpoint]:
        """Start all nodes; return those that take writes once they do.

        Raises:
            BenchmarkError: It cannot run here, or did not start.
        """

    def load(self, *, tables: int, rows: int) -> None:
        """Create sysbench's tables with ids 1 to ``rows`` and leave every node settled.

        sysbench's own ``prepare`` lets the server number the rows. Systems that interleave their
        sequences (Galera and pgherd) would leave gaps, two of three ids that the workloads draw
        would not exist, and their updates would be cheap for the wrong reason.

        Raises:
            BenchmarkError: A statement failed.
        """

    def version(self) -> str:
        """Return name and version of the database server."""

    def stop(self) -> None:
        """Stop what ``start`` started, also after half a start, and remove the directory."""
