"""Snapshots at one and the same GID on every member, for `verify` and the jobs (CORRECTNESS C27).

A marker is an entry of the log. When it is this node's turn to make it visible, the node opens a
transaction whose snapshot holds exactly what comes before, while everything after waits for the
marker's token. The snapshot is then read at leisure. It is given up after a lease, because it
keeps PostgreSQL from cleaning up. Nothing survives a restart.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.admin import UnknownMarker
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.startup import connect
from pgherd_sidecar.pg import checksum

log = structlog.get_logger()

LEASE_S = 600.0


@dataclass(slots=True, eq=False)
class _Marker:
    ready: "asyncio.Future[int]"
    connection: psycopg.AsyncConnection[Any] | None = None
    lease: asyncio.TimerHandle | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class Markers:
    """The markers of one node."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._markers: dict[str, _Marker] = {}
        self._loop = asyncio.get_running_loop()

    def expect(self, marker_id: str) -> None:
        """Note a marker that is on its way, so that somebody may wait for it."""
        if marker_id not in self._markers:
            marker = self._markers[marker_id] = _Marker(self._loop.create_future())
            marker.lease = self._loop.call_later(LEASE_S, self._expire, marker_id)

    async def take_snapshot(self, marker_id: str, gid: int) -> None:
        """Open the snapshot; called when all before ``gid`` is visible and nothing after it.

        Raises:
            psycopg.Error: the server is gone.
        """
        self.expect(marker_id)
        marker = self._markers[marker_id]
        connection = marker.connection = await connect(
            self._config, "pgherd marker", psycopg.AsyncCursor
        )
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute("SELECT pgherd.last_gid()")
        if not marker.ready.done():
            marker.ready.set_result(gid)

    async def ready(self, marker_id: str, timeout_s: float) -> int:
        """Wait until this node holds the marker's snapshot; return its GID.

        Raises:
            TimeoutError: not within ``timeout_s``.
        """
        self.expect(marker_id)
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(self._markers[marker_id].ready)

    async def tables(self, marker_id: str) -> dict[str, checksum.TableChecksum]:
        """See ``pg.checksum``; so the next two."""
        marker, connection = self._held(marker_id)
        async with marker.busy:
            return await checksum.table_checksums(connection)

    async def buckets(self, marker_id: str, table: str) -> dict[int, str]:
        """Checksums of the table's buckets."""
        marker, connection = self._held(marker_id)
        async with marker.busy:
            return await checksum.bucket_checksums(connection, table)

    async def keys(self, marker_id: str, table: str, bucket: int) -> dict[str, str]:
        """Checksums of the rows of a bucket, by key."""
        marker, connection = self._held(marker_id)
        async with marker.busy:
            return await checksum.key_checksums(connection, table, bucket)

    async def drop(self, marker_id: str) -> None:
        """Give the snapshot up."""
        marker = self._markers.pop(marker_id, None)
        if marker is None:
            return
        if marker.lease is not None:
            marker.lease.cancel()
        if marker.connection is not None:
            await marker.connection.close()

    async def close(self) -> None:
        """Give all up."""
        for marker_id in list(self._markers):
            await self.drop(marker_id)

    def _held(self, marker_id: str) -> "tuple[_Marker, psycopg.AsyncConnection[Any]]":
        marker = self._markers.get(marker_id)
        if marker is None or marker.connection is None:
            raise UnknownMarker(f"no snapshot for marker {marker_id}")
        return marker, marker.connection

    def _expire(self, marker_id: str) -> None:
        log.warning("marker.expired", marker=marker_id)
        self._expiring = asyncio.ensure_future(self.drop(marker_id))
