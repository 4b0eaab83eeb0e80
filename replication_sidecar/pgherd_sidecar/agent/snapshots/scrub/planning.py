"""Finds the next request of the scrub, while this member is the proposer.

It looks at the tables of this member for the parts of a pass, and remembers for some minutes how
large they are. Nothing survives it: the ledger knows how far the pass is.
"""

import asyncio
import time
import uuid
from typing import Any

import psycopg
import structlog
from psycopg import pq

from pgherd_sidecar.agent.snapshots.scrub.connection import (
    HELD_S,
    PART_TIMEOUT_MS,
    ScrubConnection,
    error_name,
)
from pgherd_sidecar.core.replication.scrub.ledger import Ledger
from pgherd_sidecar.core.replication.scrub.messages import Kind, Purpose, Request, Subject
from pgherd_sidecar.core.replication.scrub.pacing import (
    ROWS_MAX,
    due_s,
    first_behind,
    parts_left,
    recheck_due,
    rows_next,
)
from pgherd_sidecar.core.replication.scrub.saved import Position
from pgherd_sidecar.pg.comparison import checksum, indexes, ranges
from pgherd_sidecar.pg.comparison.checksum import TableChangedError, UnknownTable
from pgherd_sidecar.pg.comparison.ranges import UnknownKey

log = structlog.get_logger()

_EXTENT_S = 300.0
_IN_TRANSACTION = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)


class ScrubPlanner:
    """Finds what is to be compared next.

    Args:
        interval_s: what a pass is to take.
        ledger: knows how far the pass is.
        connection: the scrub's session with the server.

    Attributes:
        planned_s: what it took to find the last request, in seconds.
    """

    def __init__(self, interval_s: float, ledger: Ledger, connection: ScrubConnection) -> None:
        self.planned_s = 0.0
        self._interval_s = interval_s
        self._ledger = ledger
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._rows = ROWS_MAX
        self._extent: list[tuple[str, float, int]] = []
        self._extent_of = 0, 0.0
        self._unfit: Position | None = None

    async def next_request(self) -> Request | None:
        """Return what is to be asked now; None if nothing is due, or it could not be found."""
        self.planned_s = 0.0
        try:
            return await self._next_due()
        except UnknownKey:
            self._unfit = self._ledger.saved.position
            return None
        except (psycopg.Error, TableChangedError, UnknownTable) as error:
            log.info("scrub.not_planned", error=error_name(error))
            self._extent_of = 0, 0.0  # it may have told of tables that are gone
            return None

    async def _next_due(self) -> Request | None:
        saved, interval_s, now_s = self._ledger.saved, self._interval_s, time.time()
        if not saved.began_s or saved.last_s > now_s + interval_s:  # or the clock was put back
            saved.began_s = saved.last_s = now_s
        if self._ledger.step is not None:
            step = self._ledger.step
            return self._request(step.purpose, step.subject, step.scanned)
        known = recheck_due(saved, interval_s, now_s)
        recheck = None
        if known is not None:
            recheck = self._request(Purpose.RECHECK, known.subject, None)
        if recheck is not None and not self._ledger.rechecked:
            return recheck
        return await self._next_scan(now_s) or recheck

    async def _next_scan(self, now_s: float) -> Request | None:
        async with self._connection.turn:
            began_s = self._loop.time()
            connection = await self._connection.connected()
            try:
                async with asyncio.timeout(HELD_S):
                    return await self._scan(connection, now_s)
            except TimeoutError:
                await self._connection.disconnect()
                return None
            finally:
                if connection.info.transaction_status in _IN_TRANSACTION:
                    await connection.execute("ROLLBACK")
                self.planned_s = self._loop.time() - began_s
                self._connection.work_s += self.planned_s

    async def _scan(self, connection: psycopg.AsyncConnection[Any], now_s: float) -> Request | None:
        """Find the next part of the pass; None if it is not due yet."""
        saved = self._ledger.saved
        number, looked_s = self._extent_of
        if number != saved.number or self._loop.time() > looked_s + _EXTENT_S:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await connection.execute(f"SET LOCAL statement_timeout = {PART_TIMEOUT_MS:d}")
            cursor = await connection.execute(
                checksum.STATEMENTS["extent"], {"name": saved.position.table}
            )
            self._extent = await cursor.fetchall()
            self._extent_of = saved.number, self._loop.time()
            await connection.execute("ROLLBACK")
        left = parts_left(self._extent, saved.position, self._rows)
        if now_s < due_s(saved, self._interval_s, left, 0.0):
            return None
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(f"SET LOCAL statement_timeout = {PART_TIMEOUT_MS:d}")
        position = saved.position
        if position == self._unfit:  # it is of another key: once more from the first row on
            position = Position(position.table)
        while True:
            if position.table and position.index is None:
                try:
                    return await self._range(connection, position)
                except UnknownTable:
                    position = Position(position.table, None, "")
            following = await self._index_behind(connection, position)
            if following is not None:
                subject = Subject(Kind.INDEX, position.table, index=following)
                return self._request(Purpose.SCAN, subject, subject)
            name = first_behind((name for name, *_ in self._extent), position.table)
            if name is None:
                return self._request(Purpose.SCAN, Subject(Kind.NAMES), Subject(Kind.NAMES))
            position = Position(name)

    async def _range(self, connection: psycopg.AsyncConnection[Any], position: Position) -> Request:
        table = await checksum.find_table(connection, position.table)
        ranged = bool(table.key) and table.sortable
        until = None
        if ranged:
            self._rows = rows_next(self._rows, self._ledger.work_s)
            until = await ranges.end_of(connection, table, position.after, self._rows)
        after = position.after if ranged else None
        subject = Subject(Kind.RANGE, table.name, after, until)
        return self._request(Purpose.SCAN, subject, subject, ranged=ranged)

    async def _index_behind(
        self, connection: psycopg.AsyncConnection[Any], position: Position
    ) -> str | None:
        if position.index is None or not await indexes.available(connection):
            return None
        cursor = await connection.execute(checksum.STATEMENTS["indexes"], {"table": position.table})
        names = [name for (name,) in await cursor.fetchall()]
        return first_behind(names, position.index)

    def _request(
        self, purpose: Purpose, subject: Subject, scanned: Subject | None, *, ranged: bool = False
    ) -> Request:
        saved = self._ledger.saved
        return Request(
            id=uuid.uuid4().hex,
            purpose=purpose,
            subject=subject,
            number=saved.number,
            began_s=saved.began_s,
            ends_s=saved.began_s + self._interval_s,
            at_s=time.time(),
            ranged=ranged,
            scanned=scanned,
        )
