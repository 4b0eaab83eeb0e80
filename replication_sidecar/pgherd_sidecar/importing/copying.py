"""Copies the tables under a snapshot of the source, several at a time, in bounded pieces.

Each piece is a transaction of the herd that also counts the table's pieces. A member that dies
costs a piece; this process's death costs the snapshot, so that tables which were not done are
copied anew under another one. Of these the herd knows since which position of the source they are,
and changes that were committed before it are left out for them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends.connections import SourceAddress
from pgherd_sidecar.importing.ends.errors import ImportFailed, TakenOver
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.importing.ends.source import Exported
from pgherd_sidecar.importing.ends.target import Copied, Target, Work
from pgherd_sidecar.tables.copying import column_names, read_pieces
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session, is_transient, message_of


@dataclass(slots=True)
class CopyFigures:
    """What was done, for whoever shows it.

    Attributes:
        total: bytes of all tables, as the source has them.
        bytes: of what was copied, as text.
        weight: bytes of the source's tables that are done, and of those under way at a guess.
    """

    total: int
    tables: int
    done: int = 0
    bytes: int = 0
    weight: float = 0


Show = Callable[[CopyFigures], None]


class Copying:
    """Copies those tables that are not done."""

    def __init__(self, source: SourceAddress, target: Target, tables: Sequence[Copied]) -> None:
        self._source = source
        self._target = target
        self._left = sorted(
            (one for one in tables if not one.done), key=lambda one: one.table.bytes, reverse=True
        )
        finished = [one for one in tables if one.done]
        self.figures = CopyFigures(
            sum(one.table.bytes for one in tables), len(tables), len(finished),
            sum(one.bytes for one in finished),
            sum(one.table.bytes for one in finished),
        )  # fmt: skip

    async def run(self, exported: Exported, jobs: int) -> None:
        """Copy them.

        Args:
            exported: it holds until all sessions have it.
            jobs: tables at a time.

        Raises:
            ImportFailed: a side says no, or the source is gone.
            TakenOver: another process does it.
        """
        if not self._left:
            return
        waiting: asyncio.Queue[Copied] = asyncio.Queue()
        for one in self._left:
            waiting.put_nowait(one)
        async with AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(_under(self._source, exported.name))
                for _ in range(min(jobs, len(self._left)))
            ]
            await together(self._work(waiting, session, exported.position) for session in sessions)

    async def _work(self, waiting: asyncio.Queue[Copied], session: Session, position: int) -> None:
        while not waiting.empty():
            one = waiting.get_nowait()
            pieces = _Pieces(self._target, one, position)
            try:
                await pieces.restart()
                async with aclosing(read_pieces(session, one.table)) as found:
                    async for piece, count in found:
                        await pieces.write(piece, count)
                        self._count(one.table, len(piece))
                await pieces.write(b"", 0, done=True)
            finally:
                await pieces.close()
            self.figures.done += 1
        await session.execute("ROLLBACK")

    def _count(self, table: SourceTable, size: int) -> None:
        self.figures.bytes += size
        # Text is about as large as the table, more or less.
        self.figures.weight = min(self.figures.weight + size, self.figures.total * 0.999)


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do some work at the same time; the first failure ends the rest.

    Raises:
        ImportFailed: a part has failed, or the source has.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except psycopg.Error as error:
        raise ImportFailed(f"the source says: {message_of(error)}; repeat the command") from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _under(source: SourceAddress, snapshot: str) -> AsyncIterator[Session]:
    """A session of the source that sees what the snapshot saw."""
    session = await source.session()
    try:
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await session.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        yield session
    finally:
        await session.close()


class _Pieces:
    """Writes the pieces of one table, each exactly once."""

    def __init__(self, target: Target, copied: Copied, position: int) -> None:
        self._target = target
        self._table = copied.table
        self._pieces = copied.pieces
        self._begun = copied.pieces > 0
        self._position = position
        self._session: Session | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def restart(self) -> None:
        """Empty the table if an earlier run has begun to fill it."""
        if not self._begun:
            return
        empty = sql.SQL("TRUNCATE ONLY {}").format(
            sql.Identifier(self._table.schema, self._table.relation)
        )

        async def work(session: Session) -> None:
            await session.execute(empty)

        await self._once("restart_table", {}, work)

    async def write(self, piece: bytes, rows: int, *, done: bool = False) -> None:
        """Write rows of COPY."""
        copy_in = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(self._table.schema, self._table.relation), column_names(self._table)
        )

        async def work(session: Session) -> None:
            if piece:
                async with session.cursor() as cursor, cursor.copy(copy_in) as copy:
                    await copy.write(piece)

        since = pgoutput.lsn_text(self._position)
        told = {"rows": rows, "bytes": len(piece), "done": done, "since": since}
        await self._once("advance_table", told, work)

    async def _once(self, name: str, values: dict[str, object], work: Work) -> None:
        standing = {"name": self._table.name, "run": self._target.run, "pieces": self._pieces}
        while True:
            if self._session is None or self._session.closed:
                self._session = await self._target.another_session()
            session = self._session
            try:
                async with session.transaction():
                    cursor = await session.execute(query("state", name), values | standing)
                    if cursor.rowcount == 1:
                        await work(session)
                    elif not await self._is_beyond(session):
                        continue
                break
            except psycopg.Error as error:
                if not is_transient(error):
                    raise ImportFailed(
                        f"the herd does not take the rows of {self._table.name}:"
                        f" {message_of(error)}: change it at the source, and begin anew with"
                        " `pgherd import abort`"
                    ) from error
                await self._target.recover(session, error)
        self._pieces += 1
        self._target.progressed()

    async def _is_beyond(self, session: Session) -> bool:
        """Was this piece committed already?"""
        cursor = await session.execute(query("state", "read_table"), {"name": self._table.name})
        row = await cursor.fetchone()
        if row is None or (row["run"] != self._target.run and row["pieces"] >= self._pieces):
            raise TakenOver("the import goes on in another process")
        if row["pieces"] > self._pieces:
            return True
        await asyncio.sleep(0.2)
        return False
