"""Plain, durable PostgreSQL: one server, and three of them that know nothing of each other."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import postgres_bin
from benchmarks.peers import postgres
from benchmarks.peers.base import Contents, Endpoint
from benchmarks.peers.postgres import PostgresServer

PORT = 7601
TWIN_PORTS = (7602, 7603, 7604)


class PlainPostgres:
    """A single server with PostgreSQL's default durability."""

    def __init__(self, directory: Path, port: int = PORT) -> None:
        postgres_bin()
        self.directory = directory
        self.server = PostgresServer(directory / "n1", port)

    def start(self) -> Sequence[Endpoint]:
        """See System."""
        self.directory.mkdir()
        self.server.create()
        self.server.start()
        self.server.create_database()
        return [postgres.endpoint(self.server.dsn)]

    def load(self, contents: Contents) -> None:
        """See System."""
        postgres.load([self.server.dsn], [self.server.dsn], contents)

    def version(self) -> str:
        """See System."""
        return postgres.server_version(self.server.dsn)

    def stop(self) -> None:
        """See System."""
        self.server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class ThreeServers:
    """Three servers without replication, the clients spread alike: what a herd's reads can be.

    One server has the machine's caches for itself. Three share them as a herd's members do.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._servers = [PlainPostgres(directory / str(port), port) for port in TWIN_PORTS]

    def start(self) -> Sequence[Endpoint]:
        """See System."""
        self.directory.mkdir()
        return [endpoint for server in self._servers for endpoint in server.start()]

    def load(self, contents: Contents) -> None:
        """See System."""
        for server in self._servers:
            server.load(contents)

    def version(self) -> str:
        """See System."""
        return self._servers[0].version()

    def stop(self) -> None:
        """See System."""
        for server in self._servers:
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
