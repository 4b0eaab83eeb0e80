"""Applies transactions that came in pieces, each on a connection of its own, piece after piece.

The pieces are read back from the log, so memory is bounded by the largest row whatever the size. To
let the others wait as short as possible for its place in the order, a remote transaction is begun
*early*, while its pieces still come: its rows are written as they arrive and become visible at its
GID, if it commits. Until it is decided it is nobody's business: it may be ended like any session
that stands in the way, and whatever goes wrong is forgotten. Then it is applied from its beginning
when its turn has come.

A piece is written early only once everything ordered before it is visible here. So it finds the
rows as its origin found them; who changes one of them in between makes the transaction lose.

Nothing survives a restart: what was not
committed is applied from the log again.
"""

import asyncio
import struct
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from pgherd_sidecar.agent.apply.applier import connect_pipeline
from pgherd_sidecar.agent.apply.applying import OF_THE_MEMBER, About, applying
from pgherd_sidecar.agent.apply.piecereader import LogSource, PieceReader
from pgherd_sidecar.agent.apply.rowwriter import RowWriter
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.core.replication.entries import (
    PIECE_KEYS,
    PIECE_MORE,
    Piece,
    Writeset,
    pieces_body,
)
from pgherd_sidecar.core.replication.lines import csv, holds_lines, read_lines
from pgherd_sidecar.core.replication.merge import Op
from pgherd_sidecar.core.replication.piecerows import plan_piece
from pgherd_sidecar.pg.failures import Trouble, judge_error
from pgherd_sidecar.pg.pipeline import Pipeline, Prepared, RoundFailedError
from pgherd_sidecar.pg.rows import Describe, RowStatements

log = structlog.get_logger()

_EARLY_MAX = 4
_RETRIES = 100
_RETRY_S = 0.5
_INT64 = struct.Struct("!q")
_BINARY = (1, 1)
_STATEMENTS = {
    b"pgherd_begin": b"BEGIN",
    b"pgherd_link": b"INSERT INTO pgherd.applied VALUES ($1, $2)",
    b"pgherd_commit": b"COMMIT",
}
_OTHER_ROWS = "PH001"
"""The error of ``pgherd.expect`` where a statement has not affected the rows that it names."""


class WideRows:
    """Room for one wide row, which came in several pieces, among those written early.

    A row takes some times its bytes, so as many as there are transactions would be too much. libpq
    keeps the room that it took for a row until the connection is closed, so its holder does, too.
    """

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._holder: LargeTransaction | None = None

    def enter(self, one: "LargeTransaction") -> bool:
        """Take the room; False if another one has it."""
        if self._holder is None:
            self._holder = one
            self.left.clear()
        return self._holder is one

    def leave(self, one: "LargeTransaction") -> None:
        """Give the room back."""
        if self._holder is one:
            self._holder = None
            self.left.set()


@dataclass(frozen=True, slots=True)
class _CopyText:
    table: str
    count: int
    query: bytes
    text: bytes


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The node, as far as the application of large transactions needs it.

    Attributes:
        conninfo: of a connection that may write rows.
        log: where the pieces are.
        describe: reads a table's shape from the catalog.
        writers: where it says what it is about, once it is certain.
        delivered: position up to which the log was delivered.
        visible: waits until all that was ordered before a position can be seen here.
        deciding: whether delivery stands still, as a transaction in pieces is being decided.
        silence_s: after this time without a piece a transaction is not written early any more.
        room: for rows that come in several pieces.
    """

    conninfo: str
    log: LogSource
    describe: Describe
    writers: Writers
    delivered: Callable[[], int]
    visible: Callable[[int], Coroutine[Any, Any, None]]
    deciding: Callable[[], bool]
    silence_s: float
    room: WideRows = field(default_factory=WideRows)


class LargeTransaction:
    """One transaction that is being applied, by a task of its own.

    Args:
        identity: member, incarnation and serial.
        first: position of its first piece.
        by_row: row by row, told to ``About``: it could not be written otherwise.
    """

    def __init__(
        self,
        around: Surroundings,
        identity: tuple[int, int, int],
        first: int,
        *,
        early: bool,
        by_row: About | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.arrived = asyncio.Event()
        self.heard_s = loop.time()
        self._around = around
        self._reader = PieceReader(around.log, identity, first)
        self._rows = RowStatements(around.describe)
        self._by_row = by_row
        self._turn = asyncio.Event()  # all that is ordered before it is visible
        if not early:
            self._turn.set()
        self._pieces: int | None = None
        self._connecting = loop.create_task(connect_pipeline(around.conninfo))
        self._writing = loop.create_task(self._write_pieces())
        for task in (self._connecting, self._writing):
            task.add_done_callback(_look_at)

    async def complete(self, gid: int, pieces: int) -> None:
        """Write what is left: all that is ordered before it is visible.

        Raises:
            Exception: of any type; it can't go on.
        """
        self._pieces = pieces
        self._turn.set()
        self.arrived.set()
        pipeline = await asyncio.shield(self._connecting)
        with self._around.writers.writing(pipeline.backend_pid, gid):
            await asyncio.shield(self._writing)

    async def commit(self, gid: int, prev: int) -> None:
        """Commit as the next link of the chain, once it is complete.

        Raises:
            RoundFailedError: it is rolled back.
            ServerGoneError: nobody knows.
        """
        pipeline = self._connecting.result()
        link = Prepared(b"pgherd_link", (_INT64.pack(gid), _INT64.pack(prev)), _BINARY)
        with self._around.writers.writing(pipeline.backend_pid, gid):
            await pipeline.run([link, Prepared(b"pgherd_commit", (), ())])

    @property
    def connected(self) -> bool:
        """Whether it has, or had, a connection."""
        connecting = self._connecting
        return connecting.done() and not connecting.cancelled() and connecting.exception() is None

    async def stop(self) -> None:
        """End it; what is not committed is rolled back."""
        tasks = (self._connecting, self._writing)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self.connected:
            self._connecting.result().close()
        self._around.room.leave(self)

    async def _write_pieces(self) -> None:
        pipeline = await asyncio.shield(self._connecting)
        for name, query in _STATEMENTS.items():
            pipeline.prepare(name, query)
        await pipeline.run([Prepared(b"pgherd_begin", (), ())])
        parts: list[bytes] = []
        async for position, piece in self._all_pieces():
            if piece.flags & PIECE_KEYS:
                continue
            parts.append(piece.data)
            if piece.flags & PIECE_MORE:
                await self._take_room()
            else:
                await self._write(pipeline, position, parts)

    async def _take_room(self) -> None:
        """Wait until it may hold a wide row: one at a time may early, and whoever's turn it is."""
        room = self._around.room
        while not self._turn.is_set() and not room.enter(self):
            await self._before_turn(room.left.wait())

    async def _write(self, pipeline: Pipeline, position: int, parts: list[bytes]) -> None:
        """Write the rows that end with the piece at a position; take the parts away.

        They may be large, so nothing that was made into something else is kept meanwhile.
        """
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._by_row is None and holds_lines(data):
            await self._wait_for(position)
            copy = await self._copy_of(data)
            if copy is not None:
                del data
                await self._copy(pipeline, copy)
                return
        plan = await asyncio.to_thread(plan_piece, data)
        del data
        if any(s.op is Op.TRUNCATE for wave in plan.waves for s in wave.statements):
            await self._turn.wait()  # it shuts out readers
        await self._wait_for(position)
        await self._rows.learn_tables([s.table for wave in plan.waves for s in wave.statements])
        if self._by_row is not None:
            await RowWriter(pipeline, self._rows).write_rows(self._by_row, plan, inside=True)
            return
        statements = await asyncio.to_thread(self._rows.unlinked, plan)
        del plan
        pipeline.provide(statements)
        if statements:
            await pipeline.run(statements)

    async def _copy_of(self, data: bytes) -> "_CopyText | None":
        """The COPY that writes rows; None if it can't take them."""
        lines = read_lines(data)
        await self._rows.learn_tables([lines.table])
        query = self._rows.copy(lines.table)
        text = await asyncio.to_thread(csv, lines) if query is not None else None
        if query is None or text is None:
            return None
        return _CopyText(lines.table, lines.count, query, text)

    async def _copy(self, pipeline: Pipeline, copy: "_CopyText") -> None:
        rows = await pipeline.copy(copy.query, copy.text)
        if rows != copy.count:
            message = f"{rows} rows affected instead of {copy.count}"
            raise RoundFailedError(_OTHER_ROWS, message, 0, table=copy.table, raised=True)

    async def _wait_for(self, position: int) -> None:
        """Wait until all that was ordered before a position is visible."""
        if not self._turn.is_set():
            await self._before_turn(self._around.visible(position))

    async def _before_turn(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Wait, at most until its turn has come."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._turn.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _all_pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """The pieces, as they come, until all are there."""
        while self._pieces is None or self._reader.count < self._pieces:
            self.arrived.clear()
            found = await self._reader.fetch(self._around.delivered())
            for position, piece in found:
                yield position, piece
            if not found:
                await self.arrived.wait()


class LargeTransactions:
    """The transactions in pieces of one session."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._early: dict[tuple[int, int], LargeTransaction] = {}  # by member and serial
        self._decided: dict[int, LargeTransaction] = {}  # by GID: begun early, wait for their turn
        self._ending: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def take_piece(self, gid: int, piece: Piece) -> None:
        """A piece of another member's transaction counts: write it early, if few do so."""
        identity = piece.member, piece.serial
        known = self._early.get(identity)
        if known is not None:
            known.heard_s = self._loop.time()
            known.arrived.set()
        elif piece.number == 0 and len(self._early) + len(self._decided) < _EARLY_MAX:
            self._early[identity] = begun = LargeTransaction(
                self._around, (piece.member, piece.incarnation, piece.serial), gid, early=True
            )
            self._listen(identity, begun)

    def _listen(self, identity: tuple[int, int], one: LargeTransaction) -> None:
        """End it if no piece comes any more: its origin may be gone, and it holds locks."""
        if self._early.get(identity) is not one:
            return
        now = self._loop.time()
        if self._around.deciding():
            one.heard_s = now
        left_s = one.heard_s + self._around.silence_s - now
        if left_s > 0:
            self._loop.call_later(left_s, self._listen, identity, one)
        else:
            log.info("large.silent", member=identity[0], serial=identity[1])
            self._end(self._early.pop(identity))

    def prune(self, is_open: Callable[[int, int], bool]) -> None:
        """Forget those that are not open any more; one that is decided to commit is not asked."""
        if self._early:  # after each block
            for identity in [one for one in self._early if not is_open(*one)]:
                self._end(self._early.pop(identity))

    def note_commit(self, gid: int, writeset: Writeset) -> None:
        """A remote transaction commits: what was begun early of it waits for its turn."""
        begun = self._early.pop((writeset.member, pieces_body(writeset.body).serial), None)
        if begun is not None:
            self._decided[gid] = begun

    async def apply_transaction(self, writeset: Writeset, gid: int, prev: int, first: int) -> None:
        """Apply a transaction whose turn has come.

        Args:
            writeset: its end.
            first: position of its first piece.

        Raises:
            DivergedError: it can't be applied.
            EntryFailedError: the server is gone, or can't do it now.
        """
        begun = self._decided.pop(gid, None)
        with applying(gid, prev, "pieces") as about:
            body = pieces_body(writeset.body)
            identity = writeset.member, writeset.incarnation, body.serial
            if begun is not None and await self._finish(begun, gid, prev, body.pieces, early=True):
                return
            tries_left, by_row = _RETRIES, None
            while True:
                one = LargeTransaction(self._around, identity, first, early=False, by_row=by_row)
                try:
                    done = await self._finish(
                        one, gid, prev, body.pieces, early=False, tries_left=tries_left
                    )
                except RoundFailedError as error:
                    if by_row is not None or judge_error(error).trouble is not Trouble.REFUSED:
                        raise
                    log.warning("large.by_row", gid=gid, error=judge_error(error).cause)
                    done, by_row = False, about
                if done:
                    return
                tries_left = max(tries_left - 1, 0)

    async def _finish(
        self,
        one: LargeTransaction,
        gid: int,
        prev: int,
        pieces: int,
        *,
        early: bool,
        tries_left: int = 0,
    ) -> bool:
        """Write the rest and commit; False if all of it is to be written anew."""
        try:
            try:
                await one.complete(gid, pieces)
            except OF_THE_MEMBER:
                raise
            except Exception as error:  # of any type: what was begun early is forgotten
                if not early:  # or it was ended, as it was in the way then
                    if one.connected or tries_left == 0:
                        raise
                    await self._make_room(gid, error)
                log.info("large.anew", gid=gid, error=judge_error(error).cause)
                return False
            await one.commit(gid, prev)
        except RoundFailedError as error:
            if error.sqlstate in ("40P01", "57014") and not error.raised:
                return False
            raise
        finally:
            await one.stop()
        log.info("large.applied", gid=gid, pieces=pieces, early=early)
        return True

    async def _make_room(self, gid: int, error: Exception) -> None:
        """No connection is free: those that wait give up theirs, and clients may theirs."""
        log.warning("large.no_connection", gid=gid, error=str(error))
        self._end_waiting()
        await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """End all that was begun."""
        self._end_waiting()
        while self._ending:
            await asyncio.wait(self._ending)

    def _end_waiting(self) -> None:
        for one in (*self._early.values(), *self._decided.values()):
            self._end(one)
        self._early.clear()
        self._decided.clear()

    def _end(self, one: LargeTransaction) -> None:
        task = self._loop.create_task(one.stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _look_at(task: "asyncio.Task[Any]") -> None:
    """Take the error of a task that perhaps nobody waits for; it keeps no rows."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        traceback.clear_frames(error.__traceback__)
