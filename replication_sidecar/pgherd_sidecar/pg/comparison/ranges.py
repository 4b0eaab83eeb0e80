"""Ranges of a table's primary key, for the scrub: where they end, and checksums of their rows.

A key is a tuple of texts, as PostgreSQL writes the values of its columns under the settings of
``checksum``. Members may sort texts otherwise than each other, so the same range may hold other
rows on them: whoever compares asks for the single keys in the end. The caller has opened the
transaction, as for ``checksum``. Nothing is kept.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

from psycopg import AsyncConnection, errors, sql

from pgherd_sidecar.pg.comparison.checksum import (
    STATEMENTS,
    UNPOPULATED,
    Table,
    hexadecimal,
    read_unchanged,
)

Key = tuple[str, ...]
_NO_VALUE = (
    errors.InvalidTextRepresentation, errors.InvalidDatetimeFormat, errors.DatetimeFieldOverflow,
    errors.NumericValueOutOfRange,
)  # fmt: skip
"""The errors of a text that is no value of a type."""


class UnknownKey(LookupError):
    """The table can have no such key: DDL has changed its primary key."""


class TooLong(Exception):
    """The keys of a range are too long to be listed."""


async def end_of(
    connection: AsyncConnection[Any], table: Table, after: Key | None, rows: int
) -> Key | None:
    """Return the key of the last of the next so many rows; None where there are not more.

    Raises:
        UnknownKey: so for all that takes keys.
    """
    query = STATEMENTS["bound"].format(
        values=_values(table),
        table=table.rows,
        bounds=_bounds(table, after, None),
        key=_columns(table),
        rows=sql.Literal(rows - 1),
    )
    for row in await _read(connection, table, query):
        return tuple(row)
    return None


async def checksum_of(
    connection: AsyncConnection[Any], table: Table, after: Key | None, until: Key | None
) -> tuple[int, str]:
    """Return the number of rows in a range and their checksum; of all rows without bounds."""
    if not table.populated:
        return 0, UNPOPULATED
    query = STATEMENTS["range"].format(
        table=table.rows, row=table.row, bounds=_bounds(table, after, until)
    )
    ((rows, first, second),) = await _read(connection, table, query)
    return rows, hexadecimal(first or 0, second or 0)


async def rows_between(
    connection: AsyncConnection[Any],
    table: Table,
    after: Key | None,
    until: Key | None,
    max_bytes: int,
) -> dict[str, str]:
    """Return the checksum of each row of a range, by its key as JSON.

    Raises:
        TooLong: the answer would have more than ``max_bytes``.
    """
    found = await _listed(connection, table, _bounds(table, after, until))
    if sum(map(len, found)) + sum(map(len, found.values())) > max_bytes:
        raise TooLong
    return found


async def rows_of(
    connection: AsyncConnection[Any], table: Table, keys: Iterable[Key]
) -> dict[str, str]:
    """Return the checksums of the rows with these keys, by the key as JSON."""
    conditions = [
        sql.SQL("({} = {})").format(_record(table), _literals(table, key)) for key in keys
    ]
    return await _listed(connection, table, sql.SQL(" OR ").join(conditions))


async def _listed(
    connection: AsyncConnection[Any], table: Table, bounds: sql.Composed
) -> dict[str, str]:
    query = STATEMENTS["range_keys"].format(
        values=_values(table), row=table.row, leaf=table.leaf, table=table.rows, bounds=bounds
    )
    found = {}
    for *key, first, second, leaf in await _read(connection, table, query):
        one = hexadecimal(first, second)
        found[as_json(key)] = f"{one} in {leaf}" if leaf else one
    return found


async def _read(
    connection: AsyncConnection[Any], table: Table, query: sql.Composed
) -> list[tuple[Any, ...]]:
    """As ``read_unchanged``; the bounds are keys that the table had at some time."""
    try:
        return await read_unchanged(connection, table, query)
    except _NO_VALUE as error:
        raise UnknownKey(table.name) from error


def as_json(key: Sequence[str]) -> str:
    """A key as a text that is the same on every member."""
    return json.dumps(list(key), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str) -> Key:
    """The key again."""
    return tuple(json.loads(text))


def _bounds(table: Table, after: Key | None, until: Key | None) -> sql.Composed:
    conditions = [sql.SQL("true").format()]
    if after is not None:
        conditions.append(sql.SQL("{} > {}").format(_record(table), _literals(table, after)))
    if until is not None:
        conditions.append(sql.SQL("{} <= {}").format(_record(table), _literals(table, until)))
    return sql.SQL(" AND ").join(conditions)


def _record(table: Table) -> sql.Composed:
    return sql.SQL("({})").format(_columns(table))


def _columns(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column) for column, _ in table.key)


def _literals(table: Table, key: Key) -> sql.Composed:
    """The types are those of the catalog, as it writes them."""
    if len(key) != len(table.key):
        raise UnknownKey(table.name)
    values = [
        sql.SQL("{}::{}").format(sql.Literal(value), _type(kind))
        for value, (_, kind) in zip(key, table.key, strict=True)
    ]
    return sql.SQL("({})").format(sql.SQL(", ").join(values))


def _type(name: LiteralString) -> sql.Composable:
    return sql.SQL(name)  # the catalog has quoted what needs it


def _values(table: Table) -> sql.Composed:
    """The columns of the key as text, by the output functions of their types."""
    return sql.SQL(", ").join(
        sql.SQL("format('%s', {})").format(sql.Identifier(column)) for column, _ in table.key
    )
