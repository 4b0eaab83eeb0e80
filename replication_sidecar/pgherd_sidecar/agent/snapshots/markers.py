"""Snapshots at one and the same GID on every member, for `verify` and the jobs (C27).

A marker is an entry of the log. When it is this node's turn to make it visible, the node opens a
transaction whose snapshot holds exactly what comes before, while everything after waits for the
marker's token. The snapshot is then read at leisure, here or, exported, by the tasks of a job.

It keeps PostgreSQL from cleaning up, so it is lent: it is given up when nobody has used it or
renewed its lease for some time, and at the latest after ``LIFE_S``; a node holds ``HELD_MAX`` at
most. Nothing survives a restart.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.admin.port import ExportedSnapshot, Unavailable, UnknownMarker
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import connect
from pgherd_sidecar.pg.comparison import checksum

log = structlog.get_logger()

LEASE_S = 600.0
"""Since the last use, where nobody has asked for a lease of another length."""
LIFE_S = 12 * 3600.0
"""Since it was taken, however often it is renewed."""
HELD_MAX = 4
_DELIVERED_MAX = 1024
"""Markers whose positions are remembered: copies follow within seconds."""


@dataclass(slots=True, eq=False)
class _Marker:
    ready: "asyncio.Future[int]"
    lease_s: float = LEASE_S
    ends_s: float = 0.0
    connection: psycopg.AsyncConnection[Any] | None = None
    exported: ExportedSnapshot | None = None
    refusal: str | None = None
    lease: asyncio.TimerHandle | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        if self.lease is not None:
            self.lease.cancel()
        if self.connection is not None:
            await self.connection.close()


class Markers:
    """The markers of one node."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._markers: dict[str, _Marker] = {}
        self._loop = asyncio.get_running_loop()
        self._expiring: set[asyncio.Future[None]] = set()
        self._delivered: dict[str, int] = {}

    def delivered_at(self, marker_id: str, gid: int) -> bool:
        """Note a delivery; False if the marker was delivered before at another position.

        A position may come again with the next session: what the last one had not come to.
        """
        known = self._delivered.setdefault(marker_id, gid)
        if len(self._delivered) > _DELIVERED_MAX:
            del self._delivered[next(iter(self._delivered))]
        return known == gid

    def expect(self, marker_id: str) -> None:
        """Note a marker that is on its way, so that somebody may wait for it."""
        if marker_id not in self._markers:
            marker = self._markers[marker_id] = _Marker(self._loop.create_future())
            marker.ends_s = self._loop.time() + LIFE_S
            self._extend(marker_id, marker)

    def require_room(self) -> None:
        """Check that one more may be ordered here.

        Raises:
            Unavailable: too many are held.
        """
        if (refusal := self._refusal()) is not None:
            raise Unavailable(refusal)

    async def take_snapshot(self, marker_id: str, gid: int) -> None:
        """Open the snapshot; called when all before ``gid`` is visible and nothing after it.

        One that can't be opened is refused to whoever wants it. It changes nothing, so replication
        goes on.
        """
        self.expect(marker_id)
        marker = self._markers[marker_id]
        if marker.connection is not None:
            return
        marker.refusal = self._refusal()
        if marker.refusal is None:
            try:
                await self._open(marker)
            except psycopg.Error as error:
                marker.refusal = f"node {self._config.name} can't open a snapshot: {error}"
                log.warning("marker.refused", marker=marker_id, error=str(error))
            if self._markers.get(marker_id) is marker:
                self._extend(marker_id, marker)
            else:  # it was given up while it was opened, and nobody else would close it
                await marker.close()
        if not marker.ready.done():
            marker.ready.set_result(gid)

    async def _open(self, marker: _Marker) -> None:
        opened = await connect(self._config, "pgherd marker", psycopg.AsyncCursor)
        try:
            await opened.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await opened.execute("SELECT pgherd.last_gid()")
        except BaseException:
            await opened.close()
            raise
        marker.connection = opened

    async def ready(self, marker_id: str, timeout_s: float) -> int:
        """Wait until this node holds the marker's snapshot; return its GID.

        Raises:
            TimeoutError: not within ``timeout_s``.
            Unavailable: the node held too many others, or could not open it, when its turn came.
        """
        self.expect(marker_id)
        marker = self._markers[marker_id]
        async with asyncio.timeout(timeout_s):
            gid = await asyncio.shield(marker.ready)
        if marker.refusal is not None:
            raise Unavailable(marker.refusal)
        return gid

    async def lease(self, marker_id: str, lease_s: float) -> ExportedSnapshot:
        """Export the snapshot; it is held for ``lease_s`` from now on, or until the next call.

        Raises:
            UnknownMarker: it is not held, or not any more.
        """
        marker, connection = self._held(marker_id)
        marker.lease_s = lease_s
        try:
            async with marker.busy:
                if marker.exported is None:
                    marker.exported = await _export(connection, marker.ready.result())
                else:
                    await connection.execute("SELECT")  # a snapshot lives as long as its session
        except psycopg.Error as error:
            await self.drop(marker_id)
            raise UnknownMarker(f"the snapshot of marker {marker_id} is lost: {error}") from error
        self._extend(marker_id, marker)
        return marker.exported

    async def tables(self, marker_id: str) -> dict[str, checksum.TableChecksum]:
        """See ``pg.comparison.checksum``; so the next two."""
        async with self._reading(marker_id) as connection:
            return await checksum.table_checksums(connection)

    async def buckets(self, marker_id: str, table: str) -> dict[int, str]:
        """Checksums of the table's buckets."""
        async with self._reading(marker_id) as connection:
            return await checksum.bucket_checksums(connection, table)

    async def keys(self, marker_id: str, table: str, bucket: int) -> dict[str, str]:
        """Checksums of the rows of a bucket, by key."""
        async with self._reading(marker_id) as connection:
            return await checksum.key_checksums(connection, table, bucket)

    async def drop(self, marker_id: str) -> None:
        """Give the snapshot up."""
        marker = self._markers.pop(marker_id, None)
        if marker is not None:
            await marker.close()

    async def close(self) -> None:
        """Give all up."""
        for marker_id in list(self._markers):
            await self.drop(marker_id)

    @asynccontextmanager
    async def _reading(self, marker_id: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Around what reads the snapshot, which is in use until that is done."""
        marker, connection = self._held(marker_id)
        async with marker.busy:
            yield connection
        self._extend(marker_id, marker)

    def _held(self, marker_id: str) -> "tuple[_Marker, psycopg.AsyncConnection[Any]]":
        marker = self._markers.get(marker_id)
        if marker is None or marker.connection is None:
            raise UnknownMarker(f"no snapshot for marker {marker_id}")
        self._extend(marker_id, marker)
        return marker, marker.connection

    def _refusal(self) -> str | None:
        held = sum(marker.connection is not None for marker in self._markers.values())
        if held < HELD_MAX:
            return None
        return f"node {self._config.name} holds {held} snapshots for others already"

    def _extend(self, marker_id: str, marker: _Marker) -> None:
        if marker.lease is not None:
            marker.lease.cancel()
        until_s = min(self._loop.time() + marker.lease_s, marker.ends_s)
        marker.lease = self._loop.call_at(until_s, self._expire, marker_id)

    def _expire(self, marker_id: str) -> None:
        marker = self._markers.get(marker_id)
        if marker is not None and marker.busy.locked() and self._loop.time() < marker.ends_s:
            self._extend(marker_id, marker)
            return
        log.warning("marker.expired", marker=marker_id)
        dropping = asyncio.ensure_future(self.drop(marker_id))
        self._expiring.add(dropping)
        dropping.add_done_callback(self._expiring.discard)


async def _export(connection: psycopg.AsyncConnection[Any], gid: int) -> ExportedSnapshot:
    cursor = await connection.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text")
    row = await cursor.fetchone()
    assert row is not None  # no FROM, no WHERE
    return ExportedSnapshot(gid, row[0], row[1])
