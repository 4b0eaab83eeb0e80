"""Learns which certified local transactions became visible, and repairs those that did not.

A local transaction commits without telling anybody. That it did is seen from the batch after it,
or here, by asking the server. One whose backend died after the verdict is *repaired*: its writeset
is applied in its place in the chain, as on every other member (C8).

Nothing survives a restart.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.apply.applier import awaited, comparison
from pgherd_sidecar.agent.apply.applying import About, applying
from pgherd_sidecar.agent.apply.ddlrun import DdlRunner
from pgherd_sidecar.agent.apply.large import LargeTransactions
from pgherd_sidecar.agent.apply.rowwriter import RowWriter
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.agent.base.beat import until_next_s
from pgherd_sidecar.core.commit.chain import Chain, LocalLink
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    FLAG_FINGERPRINT,
    FLAG_PIECES,
    key_array,
)
from pgherd_sidecar.core.replication.merge import decode_body
from pgherd_sidecar.pg.pipeline import Pipeline, RoundFailedError
from pgherd_sidecar.pg.rows import RowStatements

log = structlog.get_logger()


class Visibility:
    """Waits for GIDs to be visible on this node.

    Attributes:
        asked: set when somebody waits, or a session in the middle of a commit has ended: it is
            to be found out soon what is visible.

    Args:
        chain: the node's.
    """

    def __init__(self, chain: Chain) -> None:
        self.asked = asyncio.Event()
        self._chain = chain

    def when_visible(self, gid: int, wake: Callable[[], None]) -> None:
        """Call ``wake`` once ``gid`` is visible here; it is repaired if need be."""
        self._chain.when_settled(gid, wake)
        if gid > self._chain.settled_gid:
            self.asked.set()

    async def visible(self, gid: int) -> None:
        """Wait until ``gid`` is visible here."""
        reached = asyncio.Event()
        self.when_visible(gid, reached.set)
        try:
            await reached.wait()
        finally:
            if not reached.is_set():
                self._chain.forget_waiter(reached.set)

    async def visible_before(self, position: int) -> None:
        """Wait until all that was ordered before a delivered position is visible here."""
        while not self._chain.shows(position):
            await self.visible(self._chain.tail_gid)

    def end_session(self, pid: int) -> None:
        """A session ended: look at once if it was in the middle of a commit."""
        if any(link.pid == pid for link in self._chain.locals()):
            self.asked.set()


class Settler:
    """Settles local links.

    Args:
        connection: an administrative connection.
        pipeline: a connection like the applier's, used for repairs only.
        rows: statements for rows, of its own: they are made anew for each repair, because a
            command of this node may have changed the schema since, and the applier not know yet.
        ddl: executes transactions with DDL.
        large: applies transactions in pieces.
        writers: where it says what it is about.
        chain: the node's commit chain.
        visibility: who waits for it.
        pace_s: how often to look without being asked.
    """

    def __init__(  # noqa: PLR0913 - what it works with, all by name
        self,
        *,
        connection: psycopg.AsyncConnection[Any],
        pipeline: Pipeline,
        rows: RowStatements,
        ddl: DdlRunner,
        large: LargeTransactions,
        writers: Writers,
        chain: Chain,
        visibility: Visibility,
        pace_s: float = 0.5,
    ) -> None:
        self.repairs = 0
        self._connection = connection
        self._pipeline = pipeline
        self._rows = rows
        self._ddl = ddl
        self._large = large
        self._writers = writers
        self._chain = chain
        self._visibility = visibility
        self._pace_s = pace_s
        self._repairing = asyncio.Lock()

    async def run(self) -> None:
        """Settle for ever.

        Raises:
            DivergedError: a transaction can't be repaired.
            psycopg.Error, ServerGoneError: the server is gone.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_next_s(self._pace_s)):
                    await self._visibility.asked.wait()
            self._visibility.asked.clear()
            if self._chain.tail is None:
                continue  # all has settled: the server need not be asked
            await self._settle()
            while self._chain.wanted_gid > self._chain.settled_gid:
                await self._next_ended()
                await self._settle()

    async def _settle(self) -> None:
        """Settle and repair in order, as far as transactions have ended."""
        xids = [link.xid for link in self._chain.locals()]
        rows = await self._connection.execute(
            "SELECT gid, statuses FROM pgherd.outcomes($1)", ([str(xid) for xid in xids],)
        )
        row = await rows.fetchone()
        assert row is not None
        gid, statuses = row
        self._chain.settle_to(gid)
        known = dict(zip(xids, statuses or [], strict=True))
        while (link := self._chain.next_to_repair(known)) is not None:
            await self.repair_transaction(link)

    async def _next_ended(self) -> None:
        """Wait until the first unsettled link may have been settled."""
        first = self._chain.head
        if isinstance(first, LocalLink):
            with contextlib.suppress(RoundFailedError):
                await self._pipeline.run([awaited(first.xid)])
        elif first is not None:
            settled = asyncio.Event()
            self._chain.when_settled(first.gid, settled.set)
            await settled.wait()

    async def repair_transaction(self, link: LocalLink) -> None:
        """Apply a local transaction that was certified and did not commit.

        Raises:
            DivergedError: it can't be applied.
            EntryFailedError: the server is gone, or can't do it now.
        """
        await self._visibility.visible(link.prev)
        async with self._repairing:
            if link.gid <= self._chain.settled_gid:
                return
            with applying(link.gid, link.prev) as about:
                if link.writeset.flags & FLAG_DDL:
                    await self._ddl.run(link.writeset, link.gid, link.prev)
                elif link.writeset.flags & FLAG_PIECES:
                    await self._large.apply_transaction(
                        link.writeset, link.gid, link.prev, link.pieces_from
                    )
                else:
                    await self._write(link, about)
            self.repairs += 1
            log.info("transaction.repaired", gid=link.gid, xid=link.xid)
            self._chain.settle_to(link.gid)

    async def _write(self, link: LocalLink, about: About) -> None:
        keys, items = key_array(link.writeset.keys), decode_body(link.writeset.body)
        compares = link.writeset.flags & FLAG_FINGERPRINT
        compare = [comparison(link.gid, link.writeset.body)] if compares else []
        self._rows.forget_shapes()
        with self._writers.writing(self._pipeline.backend_pid, link.gid):
            await RowWriter(self._pipeline, self._rows).write(about, keys, items, compare)
