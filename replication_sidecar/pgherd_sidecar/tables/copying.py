"""Reads a table's rows as the text of COPY, in bounded pieces."""

import asyncio
from collections.abc import AsyncGenerator

from psycopg import sql

from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session

_PIECE_BYTES = 4 << 20
_AHEAD = 2
"""Pieces that are read while one is written."""


async def read_pieces(
    session: Session, table: SourceTable, *, parts: bool = False, condition: str | None = None
) -> AsyncGenerator[tuple[bytes, int], None]:
    """The rows of a table as the text of COPY, in pieces that end with a row, and their number.

    Args:
        session: sees what is to be copied.
        table: it may be any that the session may read.
        parts: with the rows of its partitions or children.
        condition: of the rows, in SQL; None: all.
    """
    pieces: asyncio.Queue[tuple[bytes, int] | None] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD)

    async def fill() -> None:
        command = sql.SQL("COPY (SELECT {} FROM {}{}{}) TO STDOUT").format(
            column_names(table),
            sql.SQL("" if parts else "ONLY "),
            sql.Identifier(table.schema, table.relation),
            sql.SQL("" if condition is None else f" WHERE ({condition})"),
        )
        rows: list[bytes] = []
        size = 0
        async with session.cursor() as cursor, cursor.copy(command) as copy:
            async for row in copy:  # one row each: so the server sends them
                rows.append(bytes(row))
                size += len(row)
                if size >= _PIECE_BYTES:
                    await room.acquire()
                    pieces.put_nowait((b"".join(rows), len(rows)))
                    rows, size = [], 0
        if rows:
            pieces.put_nowait((b"".join(rows), len(rows)))

    async def fill_and_end() -> None:
        try:
            await fill()
        finally:
            pieces.put_nowait(None)

    task = asyncio.create_task(fill_and_end())
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
            room.release()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def column_names(table: SourceTable) -> sql.Composed:
    """The columns that are copied."""
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in table.stored)
