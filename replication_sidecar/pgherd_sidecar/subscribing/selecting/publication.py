"""Has PostgreSQL read row filters and column lists, in the words of ``CREATE PUBLICATION``.

The publication is rolled back. So what is written is checked by the rules of PostgreSQL's logical
replication: a filter has only columns of its row, and operators and functions that are immutable
and PostgreSQL's own.
"""

from collections.abc import Iterable
from typing import Any, Final

import psycopg

from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import TableSelection, herd_query
from pgherd_sidecar.tables.sessions import Session, message_of

_NAME: Final = "pgherd_selection"


async def selections(session: Session, given: Iterable[str]) -> list[TableSelection]:
    """What is meant, in the order of the words; a name without a schema is of the schema public.

    Args:
        session: of a superuser of a member.
        given: each as ``FOR TABLE`` of a publication has it.

    Raises:
        StoppedError: PostgreSQL refuses it, or a subscriber could not follow it exactly.
    """
    found: list[TableSelection] = []
    for text in given:
        for one in await _read(session, text):
            if one.tab in {other.tab for other in found}:
                raise StoppedError(f"table {one.tab} is named twice: name it once")
            found.append(one)
    return found


async def _read(session: Session, text: str) -> list[TableSelection]:
    try:
        async with session.transaction(force_rollback=True):
            # It is no command of the herd: nobody else hears of it.
            await session.execute("SET LOCAL session_replication_role = replica")
            await session.execute("SET LOCAL search_path = public")
            await session.execute(
                f"CREATE PUBLICATION {_NAME} FOR TABLE {text}"
                " WITH (publish_via_partition_root = true)".encode(),
                prepare=True,  # so that it is one command
            )
            await session.execute("SET LOCAL search_path = pg_catalog")
            cursor = await session.execute(herd_query("selected"), {"publication": _NAME})
            rows = await cursor.fetchall()
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        detail = f" {error.diag.message_detail}" if error.diag.message_detail else ""
        raise StoppedError(
            f"PostgreSQL says of --table {text!r}: {message_of(error)}.{detail} Write it as"
            " FOR TABLE of CREATE PUBLICATION has it: 'SCHEMA.TABLE (COLUMN, ...) WHERE (...)'"
        ) from error
    return [_selection(row) for row in rows]


def _selection(row: dict[str, Any]) -> TableSelection:
    """A row of ``selected``.

    Raises:
        StoppedError: a subscriber could not follow it exactly.
    """
    named, tab = row["named"], row["tab"]
    if tab is None:
        raise StoppedError(f"{named} is no table that the herd replicates: name such a one")
    columns, key, reads = row["columns"], row["key"], row["reads"]
    computed = sorted({*(columns or ()), *reads} & {*row["generated"]})
    if computed:
        raise StoppedError(
            f"column {computed[0]} of {tab} is computed from others: leave it out, and use those"
        )
    if columns is not None and not key:
        raise StoppedError(f"{tab} has no primary key: it can have no column list")
    missing = [name for name in key if columns is not None and name not in columns]
    if missing:
        raise StoppedError(f"column {missing[0]} is in the key of {tab}: put it into the list")
    loose = [name for name in reads if key and name not in row["whole"]]
    if loose:
        raise StoppedError(
            f"the row filter reads column {loose[0]} of {tab}, which is in the key of no unique"
            " index, so an UPDATE of it does not tell the whole row: CREATE UNIQUE INDEX ON"
            f" {tab} ({', '.join([*key, *loose])}), and repeat the command"
        )
    return TableSelection(
        tab, None if columns is None else tuple(columns), row["condition"], tuple(reads)
    )
