"""Three PostgreSQL servers with quorum streaming: the synchronous single-master peer.

A commit waits until one of two standbys has applied it (``ANY 1``, ``remote_apply``), so it is on
two of three machines, as in a herd. All clients use the primary, the only node that takes writes.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import psycopg

from benchmarks.commands import postgres_bin, wait_until
from benchmarks.peers import postgres
from benchmarks.peers.base import Contents, Endpoint
from benchmarks.peers.postgres import PostgresServer

PORTS = (7611, 7612, 7613)
SYNCHRONOUS = {
    "synchronous_standby_names": "ANY 1 (s2, s3)",
    "synchronous_commit": "remote_apply",
}
ATTACH_S = 60


class QuorumStreaming:
    """A primary and two standbys."""

    def __init__(self, directory: Path) -> None:
        postgres_bin()
        self.directory = directory
        self.servers = [
            PostgresServer(directory / f"n{number}", port) for number, port in enumerate(PORTS, 1)
        ]

    @property
    def primary(self) -> PostgresServer:
        """The server that takes writes."""
        return self.servers[0]

    def start(self) -> Sequence[Endpoint]:
        """See System."""
        self.directory.mkdir()
        self.primary.create()
        self.primary.start()
        self.primary.create_database()
        for number, standby in enumerate(self.servers[1:], 2):
            standby.copy_of(self.primary, f"s{number}")
            standby.start()
        # Only now: no commit could have been acknowledged before the standbys were there.
        self.primary.configure(SYNCHRONOUS)
        self.primary.program("pg_ctl", "reload")
        wait_until(self._attached, timeout_s=ATTACH_S, failure="the standbys did not attach")
        return [postgres.endpoint(self.primary.dsn)]

    def load(self, contents: Contents) -> None:
        """See System."""
        postgres.load([self.primary.dsn], [self.primary.dsn], contents)

    def version(self) -> str:
        """See System."""
        return postgres.server_version(self.primary.dsn)

    def stop(self) -> None:
        """See System."""
        # Standbys last: the primary's shutdown waits for them to take its last WAL.
        for server in self.servers:
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _attached(self) -> bool:
        with psycopg.connect(self.primary.dsn) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
            ).fetchone()
        return row == (2,)
