"""Leaves of a herd's changes those of the rows and columns that a set has.

A filter is evaluated by a member's server, at the row as it is after an INSERT. That is enough: the
log has an UPDATE of a column of a unique index as a DELETE and an INSERT of the whole row
(docs/writeset-format.md), and a filter reads only such columns. So a row that moves into the filter
is an INSERT, one that moves out of it a DELETE, and any other UPDATE leaves it where it is. A
DELETE and an UPDATE tell of their row the key only: those of rows that the subscriber has not got
change nothing there.

A superuser of the member evaluates it. So all of it is the herd's own word: what the subscriber
says of its tables is compared with that, and is never a part of a statement.
"""

from collections.abc import Mapping, Sequence

import msgspec
import psycopg
from psycopg import sql

from pgherd_sidecar.client.stream.changes import LoggedChange, Values
from pgherd_sidecar.subscribing.state.errors import MemberError, StoppedError
from pgherd_sidecar.subscribing.state.herd import TableSelection
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.steps import AlteredError
from pgherd_sidecar.tables.rowsql import literal
from pgherd_sidecar.tables.sessions import Session, is_transient, message_of

_NUMBER = "n"


class TablePart(msgspec.Struct, frozen=True):
    """What the herd says of a table that a set has not got as a whole.

    Attributes:
        selection: what of it the set has.
        read_types: of the columns that the row filter reads, as a cast has them.
    """

    selection: TableSelection
    read_types: tuple[str, ...] = ()


def failure(selection: TableSelection, error: psycopg.Error) -> MemberError | StoppedError:
    """What an error of a filter means, or of the server that evaluates it."""
    said = message_of(error)
    if is_transient(error):
        return MemberError(f"the member's server says: {said}")
    return StoppedError(
        f"the row filter of {selection.tab} fails ({said}): `pgherd set alter` gives it another"
        " one; then repeat `pgherd subscribe`"
    )


async def selected(
    session: Session,
    changes: Sequence[LoggedChange],
    places: Mapping[str, ShownTable],
    parts: Mapping[str, TablePart],
) -> list[LoggedChange]:
    """Changes of rows and columns that a set has; those of other tables stay as they are.

    Args:
        session: of a member's superuser; its search_path has nothing of users.
        changes: of the herd's log, in their order.
        places: the tables at the subscriber.
        parts: those of the set that it has not got as a whole, by name.

    Raises:
        AlteredError: a table has been altered, so that its filter can't be evaluated any more.
        StoppedError: a filter fails.
        MemberError: the server is gone.
    """
    asked: dict[str, list[int]] = {}
    for number, change in enumerate(changes):
        name = change.table or ""
        place, part = places.get(name), parts.get(name)
        if place is None or part is None or change.gid <= place.gid:
            continue
        if _is_asked(change, part.selection):
            if place.read_types != part.read_types:
                raise AlteredError(
                    change.gid, f"a column of {name} that its row filter reads has another type"
                )
            asked.setdefault(name, []).append(number)
    out: set[int] = set()
    for name, numbers in asked.items():
        rows = [_known(changes[number], parts[name].selection) for number in numbers]
        chosen = await _chosen(session, parts[name], rows)
        out.update(number for at, number in enumerate(numbers) if at not in chosen)
    kept = (change for number, change in enumerate(changes) if number not in out)
    return [one for change in kept if (one := _narrowed(change, parts)) is not None]


def _is_asked(change: LoggedChange, selection: TableSelection) -> bool:
    """Does a change tell all that its table's filter reads?

    Raises:
        AlteredError: it should, and does not.
    """
    if selection.condition is None or change.op == "truncate":
        return False
    reads = set(selection.reads)
    if change.op == "update" and not reads.isdisjoint(change.values or {}):
        raise AlteredError(
            change.gid,
            f"no unique index of {selection.tab} has a column in its key that its row filter reads:"
            f" CREATE UNIQUE INDEX ON {selection.tab} (..., {', '.join(selection.reads)})",
        )
    known = change.values if change.op == "insert" else change.key
    if reads <= set(known or {}):
        return True
    if change.op == "insert":
        raise AlteredError(
            change.gid, f"{selection.tab} has a column no more that its row filter reads"
        )
    return False


def _known(change: LoggedChange, selection: TableSelection) -> list[str | None]:
    known: Values = (change.values if change.op == "insert" else change.key) or {}
    return [known[name] for name in selection.reads]


async def _chosen(
    session: Session, part: TablePart, rows: Sequence[Sequence[str | None]]
) -> set[int]:
    """Which of some rows a filter lets pass, by their numbers."""
    selection = part.selection
    number = _NUMBER
    while number in selection.reads:
        number += "_"
    columns = [
        sql.SQL("{}::{} AS {}").format(
            sql.Identifier("u", f"c{at}"), _ready(kind), sql.SQL(_identifier(name))
        )
        for at, (name, kind) in enumerate(zip(selection.reads, part.read_types, strict=True))
    ]
    command = sql.SQL(
        "SELECT s.{number} - 1 AS number FROM (SELECT {columns} FROM unnest({arrays})"
        " WITH ORDINALITY AS u ({names})) AS s WHERE ({condition})"
    ).format(
        number=sql.Identifier(number),
        columns=sql.SQL(", ").join([*columns, sql.Identifier("u", number)]),
        arrays=sql.SQL(", ").join([sql.SQL("%s::text[]")] * (len(columns) or 1)),
        names=sql.SQL(", ").join(
            [*(sql.Identifier(f"c{at}") for at in range(len(columns) or 1)), sql.Identifier(number)]
        ),
        condition=_ready(selection.condition or "true"),
    )
    # A filter that reads no column passes all rows or none.
    arrays = [literal(values) for values in zip(*rows, strict=True)] or [
        literal(["" for _ in rows])
    ]
    try:
        cursor = await session.execute(command, arrays)
        return {row["number"] for row in await cursor.fetchall()}
    except psycopg.Error as error:
        raise failure(selection, error) from error


def _ready(text: str) -> sql.SQL:
    """What a server has quoted already, in a statement with parameters."""
    return sql.SQL(text.replace("%", "%%"))


def _identifier(name: str) -> str:
    return sql.Identifier(name).as_string(None).replace("%", "%%")


def _narrowed(change: LoggedChange, parts: Mapping[str, TablePart]) -> LoggedChange | None:
    """A change of the columns that a set has; None: none of them has changed."""
    part = parts.get(change.table or "")
    columns = None if part is None else part.selection.columns
    if columns is None or change.values is None:
        return change
    values = {name: value for name, value in change.values.items() if name in columns}
    if change.op == "update" and not values:
        return None
    return msgspec.structs.replace(change, values=values)
