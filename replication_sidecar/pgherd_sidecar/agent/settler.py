"""Learns which certified local transactions became visible, and repairs those that did not.

A local transaction commits without telling anybody. That it did is seen from the batch after it,
or here, by asking the server. One whose backend died after the verdict is *repaired*: its writeset
is applied in its place in the chain, as on every other member (C8, ARCHITECTURE "Apply").

Called by ``session``. Nothing survives a restart.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.applier import awaited, comparisons
from pgherd_sidecar.agent.applying import About, applying
from pgherd_sidecar.agent.chain import Chain, LocalLink
from pgherd_sidecar.agent.ddlrun import DdlRunner
from pgherd_sidecar.agent.large import LargeTransactions
from pgherd_sidecar.agent.rowwriter import RowWriter
from pgherd_sidecar.agent.writers import Writers
from pgherd_sidecar.core.entries import FLAG_DDL, FLAG_PIECES, key_array
from pgherd_sidecar.core.merge import decode_body
from pgherd_sidecar.pg.pipeline import Pipeline, RoundFailedError
from pgherd_sidecar.pg.rows import RowStatements

log = structlog.get_logger()


class Settler:
    """Settles local links.

    Args:
        connection: an administrative connection.
        pipeline: a connection like the applier's, used for repairs only.
        rows: statements for rows.
        ddl: executes transactions with DDL.
        large: applies transactions in pieces.
        writers: where it says what it is about.
        chain: the node's commit chain.
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
        self._pace_s = pace_s
        self._asked = asyncio.Event()
        self._repairing = asyncio.Lock()

    async def run(self) -> None:
        """Settle for ever.

        Raises:
            DivergedError: a transaction can't be repaired.
            psycopg.Error, ServerGoneError: the server is gone.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace_s):
                    await self._asked.wait()
            self._asked.clear()
            await self._settle()
            while self._chain.wanted_gid > self._chain.settled_gid:
                await self._next_ended()
                await self._settle()

    def when_visible(self, gid: int, wake: Callable[[], None]) -> None:
        """Call ``wake`` once ``gid`` is visible here."""
        self._chain.when_settled(gid, wake)
        if gid > self._chain.settled_gid:
            self._asked.set()

    async def visible(self, gid: int) -> None:
        """Wait until ``gid`` is visible here."""
        reached = asyncio.Event()
        self.when_visible(gid, reached.set)
        await reached.wait()

    async def visible_before(self, position: int) -> None:
        """Wait until all that was ordered before a delivered position is visible here."""
        while not self._chain.shows(position):
            await self.visible(self._chain.tail_gid)

    def gone(self, pid: int) -> None:
        """A session ended: look at once if it was in the middle of a commit."""
        if any(link.pid == pid for link in self._chain.locals()):
            self._asked.set()

    async def _settle(self) -> None:
        """Settle and repair in order, as far as transactions have ended."""
        links = self._chain.locals()
        rows = await self._connection.execute(
            "SELECT gid, statuses FROM pgherd.outcomes($1)", ([str(link.xid) for link in links],)
        )
        row = await rows.fetchone()
        assert row is not None
        gid, statuses = row
        self._chain.settle(gid)
        for link, status in zip(links, statuses or [], strict=True):
            # To wait here for what comes before would be to wait for this very loop.
            if self._chain.settled_gid < link.prev:
                return
            if status == "aborted" and link.gid > self._chain.settled_gid:
                await self.repair(link)

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

    async def repair(self, link: LocalLink) -> None:
        """Apply a local transaction that was certified and did not commit.

        Raises:
            DivergedError: it can't be applied.
            EntryFailedError: the server is gone, or can't do it now.
        """
        await self.visible(link.prev)
        async with self._repairing:
            if link.gid <= self._chain.settled_gid:
                return
            with applying(link.gid, link.prev) as about:
                if link.writeset.flags & FLAG_DDL:
                    await self._ddl.run(link.writeset, link.gid, link.prev)
                elif link.writeset.flags & FLAG_PIECES:
                    await self._large.apply(link.writeset, link.gid, link.prev, link.pieces_from)
                else:
                    await self._write(link, about)
            self.repairs += 1
            log.info("transaction.repaired", gid=link.gid, xid=link.xid)
            self._chain.settle(link.gid)

    async def _write(self, link: LocalLink, about: About) -> None:
        keys, items = key_array(link.writeset.keys), decode_body(link.writeset.body)
        compare = comparisons(link.gid, link.writeset)
        with self._writers.writing(self._pipeline.backend_pid, link.gid):
            await RowWriter(self._pipeline, self._rows).write(about, keys, items, compare)
