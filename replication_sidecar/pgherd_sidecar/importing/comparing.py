"""Compares all tables of the source and of the herd: rows are counted, and their hashes summed up.

Both sides compute the same thing: the hash of a row's text, under settings that make that text the
same in every version, summed up so that the order in which rows lie does not matter. Hashes are of
bytes, so where an encoding is another one than UTF8 both sides hash the text as UTF8. The caller
sees to it that nobody writes meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from psycopg import sql

from pgherd_sidecar.importing.copying import together
from pgherd_sidecar.importing.ends.connections import SourceAddress
from pgherd_sidecar.importing.ends.target import Target
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session

_NAMED = 5


async def different(
    source: SourceAddress,
    target: Target,
    tables: Sequence[SourceTable],
    jobs: int,
    show: Callable[[int, int], None],
) -> list[str]:
    """The names of the tables that differ, with the numbers of their rows.

    Raises:
        ImportFailed: a side does not answer.
    """
    waiting = sorted(tables, key=lambda one: one.bytes)
    found: list[str] = []
    done = 0

    async def work(here: Session, there: Session) -> None:
        nonlocal done
        encodings = {one.info.parameter_status("server_encoding") for one in (here, there)}
        recoded = encodings != {"UTF8"}
        while waiting:
            table = waiting.pop()
            one, other = await asyncio.gather(
                _sums(here, table, recoded), _sums(there, table, recoded)
            )
            done += 1
            show(done, len(tables))
            if one != other:
                found.append(f"{table.name} ({one[0]} rows at the source, {other[0]} in the herd)")

    async with AsyncExitStack() as stack:
        pairs = []
        for _ in range(max(1, min(jobs, len(waiting)))):
            pair = await source.session(), await target.another_session()
            for session in pair:
                await stack.enter_async_context(session)
            pairs.append(pair)
        await together(work(here, there) for here, there in pairs)
    return sorted(found)


def few(names: Sequence[str]) -> str:
    """Some of the names."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


async def _sums(session: Session, table: SourceTable, recoded: bool) -> tuple[int, object, object]:
    row = sql.SQL('ROW({})::text COLLATE "C"').format(
        # With "t." before its name, a column that was just dropped may be a call of a function.
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    )
    if recoded:
        row = sql.SQL("pg_catalog.md5(pg_catalog.convert_to({}, 'UTF8'))").format(row)
    cursor = await session.execute(
        sql.SQL(
            "SELECT count(*) AS rows, sum(pg_catalog.hashtextextended(r.image, 0)) AS one,"
            " sum(pg_catalog.hashtextextended(r.image, 1)) AS other"
            " FROM (SELECT {} AS image FROM ONLY {} t OFFSET 0) r"
        ).format(row, sql.Identifier(table.schema, table.relation))
    )
    found = await cursor.fetchone()
    assert found is not None
    return found["rows"], found["one"], found["other"]
