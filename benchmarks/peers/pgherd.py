"""Three pgherd nodes, all taking writes, reached through the command line only."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.herd import Capture, Herd, Member, pgherd_program
from benchmarks.peers import postgres
from benchmarks.peers.base import Contents, Endpoint

PORT_BASE = 7660


class Pgherd:
    """A herd of three; sysbench connects as the ordinary role that owns the database."""

    def __init__(
        self,
        directory: Path,
        port_base: int = PORT_BASE,
        program: Path | None = None,
        *,
        capture: Capture = "auto",
    ) -> None:
        self._port_base = port_base
        self._capture = capture
        self.directory = directory
        self.herd = Herd(directory / "herd", str(program or pgherd_program()))
        self.members: Sequence[Member] = ()

    def start(self) -> Sequence[Endpoint]:
        """See System."""
        self.directory.mkdir()
        self.herd.up(port_base=self._port_base, quiet=True, capture=self._capture)
        self.members = self.herd.members()
        return [postgres.endpoint(member.app_dsn) for member in self.members]

    def load(self, contents: Contents) -> None:
        """See System."""
        writers = [member.app_dsn for member in self.members]
        admins = [member.dsn for member in self.members]
        postgres.load(writers, admins, contents)

    def version(self) -> str:
        """See System."""
        return postgres.server_version(self.members[0].dsn)

    def stop(self) -> None:
        """See System.

        Raises:
            BenchmarkError: A sidecar's log tells of trouble: what was measured counts for nothing.
        """
        try:
            self.herd.require_no_trouble()
        finally:
            if self.herd.directory.exists():
                self.herd.destroy()
            shutil.rmtree(self.directory, ignore_errors=True)


def other_program(checkout: Path) -> Path:
    """Return the command of another version of pgherd.

    Raises:
        BenchmarkError: It is not installed in that checkout.
    """
    program = checkout / ".venv/bin/pgherd"
    if not program.exists():
        raise BenchmarkError(f"{checkout} has no .venv/bin/pgherd: run make setup there")
    return program
