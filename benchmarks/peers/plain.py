"""One plain, durable PostgreSQL server: what a single node can do."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import postgres_bin
from benchmarks.peers import postgres
from benchmarks.peers.base import Contents, Endpoint
from benchmarks.peers.postgres import PostgresServer

PORT = 7601


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
