"""What the comparison needs of a system."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@dataclass(frozen=True, slots=True)
class Contents:
    """What sysbench's tables hold.

    sysbench's own ``prepare`` lets the server number the rows. Systems that interleave their
    sequences (Galera and pgherd) then leave gaps: two of three ids that the workloads draw do not
    exist, and updates are cheap for the wrong reason. So the ids are given here.
    """

    tables: int
    rows: int
    """Rows of each table, with the ids 1, 1 + step, 1 + 2 * step ..."""
    step: int = 1

    @property
    def last_id(self) -> int:
        """The greatest id."""
        return 1 + (self.rows - 1) * self.step


class System(Protocol):
    """One system under test. Making one raises BenchmarkError if a program of it is missing."""

    directory: Path
    """Named in the command line of each of the system's processes."""

    def start(self) -> Sequence[Endpoint]:
        """Start all nodes; return those that take writes once they do.

        Raises:
            BenchmarkError: It cannot run here, or did not start.
        """

    def load(self, contents: Contents) -> None:
        """Create and fill sysbench's tables and leave every node settled.

        Raises:
            BenchmarkError: A statement failed.
        """

    def version(self) -> str:
        """Return name and version of the database server."""

    def stop(self) -> None:
        """Stop what ``start`` started, also after half a start, and remove the directory."""


@contextmanager
def running(system: System) -> Iterator[Sequence[Endpoint]]:
    """Start a system, and stop it at the end, also after half a start.

    Raises:
        BenchmarkError: It cannot run here, or did not start.
    """
    try:
        yield system.start()
    finally:
        system.stop()
