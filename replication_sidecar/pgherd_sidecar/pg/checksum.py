"""Checksums of the replicated tables in one snapshot, for comparing nodes.

The caller (the sidecar, for ``pgherd local verify``) has opened a REPEATABLE READ transaction at
the GID to compare; everything is computed inside PostgreSQL in that transaction's snapshot. The
transaction's settings are changed, so it should serve nothing else. Nothing is kept.

Two nodes hold the same rows of a table if the 128-bit checksums are equal (up to chance). Where
they differ, ``bucket_checksums`` and then ``key_checksums`` narrow it down to the keys.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from typing import Any, LiteralString, cast

from psycopg import AsyncConnection, errors, sql

_HALF_BITS = 64
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class UnknownTable(LookupError):
    """The table does not exist on this node or is not replicated."""


class ChangedTable(Exception):
    """DDL has changed a table since the snapshot, so its rows in it can't be read any more."""


@dataclass(frozen=True, slots=True)
class TableChecksum:
    """One table: number of rows, checksum of the rows, checksum of the columns' definition."""

    rows: int
    checksum: str
    columns: str


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    rows: sql.Composed
    columns: str
    key: sql.Composed
    oid: int
    files: str


async def table_checksums(connection: AsyncConnection[Any]) -> dict[str, TableChecksum]:
    """Return the checksum of each table in ``pgherd.replicated_tables``, by its name there.

    Raises:
        ChangedTable: one is not what it was in the snapshot.
    """
    return {
        table.name: await _table_checksum(connection, table) for table in await _tables(connection)
    }


async def bucket_checksums(connection: AsyncConnection[Any], name: str) -> dict[int, str]:
    """Return the checksums of a table's rows by bucket of their key's hash; empty ones are absent.

    Raises:
        UnknownTable: no such replicated table.
        ChangedTable: it is not what it was in the snapshot.
    """
    table = await _table(connection, name)
    rows = await _read(connection, table, _query("buckets", table))
    return {bucket: _hex(first, second) for bucket, first, second in rows}


async def key_checksums(connection: AsyncConnection[Any], name: str, bucket: int) -> dict[str, str]:
    """Return the checksum of each row of one bucket, by the record literal of its key.

    Raises:
        UnknownTable: no such replicated table.
        ChangedTable: it is not what it was in the snapshot.
    """
    table = await _table(connection, name)
    rows = await _read(connection, table, _query("keys", table), {"bucket": bucket})
    return {key: _hex(first, second) for key, first, second in rows}


async def _table_checksum(connection: AsyncConnection[Any], table: _Table) -> TableChecksum:
    # An aggregate without GROUP BY has exactly one row.
    ((rows, first, second),) = await _read(connection, table, _query("table", table))
    return TableChecksum(rows, _hex(first or 0, second or 0), table.columns)


async def _read(
    connection: AsyncConnection[Any],
    table: _Table,
    query: sql.Composed,
    parameters: Mapping[str, object] | None = None,
) -> list[tuple[Any, ...]]:
    """Run a query of a table that is, before and after, what it was in the snapshot.

    A snapshot protects neither from another table or a view under the name, whose code would run
    with our rights, nor from another file. A lock does not keep the name of the table's schema.
    """
    try:
        await connection.execute(_STATEMENTS["lock"].format(table=table.rows))
    except (errors.UndefinedTable, errors.InvalidSchemaName, errors.WrongObjectType) as error:
        raise ChangedTable(f"{table.name} was dropped or renamed since the marker") from error
    await connection.execute(_STATEMENTS["restrict"], {"kinds": "view, foreign-table"})
    await _require_unchanged(connection, table)
    cursor = await connection.execute(query, parameters)
    rows = await cursor.fetchall()
    await _require_unchanged(connection, table)
    return rows


async def _require_unchanged(connection: AsyncConnection[Any], table: _Table) -> None:
    asked = {"name": table.name, "oid": table.oid, "files": table.files}
    cursor = await connection.execute(_STATEMENTS["unchanged"], asked)
    if await cursor.fetchone() != (True,):
        raise ChangedTable(f"{table.name} was truncated, rewritten or replaced since the marker")


async def _table(connection: AsyncConnection[Any], name: str) -> _Table:
    for table in await _tables(connection):
        if table.name == name:
            return table
    raise UnknownTable(name)


async def _tables(connection: AsyncConnection[Any]) -> Iterable[_Table]:
    await connection.execute(_STATEMENTS["settings"])
    await connection.execute(_STATEMENTS["restrict"], {"kinds": ""})
    cursor = await connection.execute(_STATEMENTS["replicated_tables"])
    return [
        _Table(name, _rows(schema, relation, partitioned=part), columns, _key(key), oid, files)
        for name, schema, relation, part, columns, key, oid, files in await cursor.fetchall()
    ]


def _rows(schema: str, relation: str, *, partitioned: bool) -> sql.Composed:
    """All rows of a partitioned table, but of an inheritance parent only its own."""
    only = sql.SQL("") if partitioned else sql.SQL("ONLY ")
    return sql.Composed([only, sql.Identifier(schema, relation)])


def _key(columns: list[str] | None) -> sql.Composed:
    """The key's columns; the whole row where there is no key, for want of anything better."""
    if not columns:
        return sql.SQL("t.*").format()
    return sql.SQL(", ").join(sql.Identifier("t", column) for column in columns)


def _query(name: str, table: _Table) -> sql.Composed:
    return _STATEMENTS[name].format(table=table.rows, key=table.key)


def _hex(first: Decimal | int, second: Decimal | int) -> str:
    """Join the sums of both hashes, which PostgreSQL returns as numeric, modulo 2^64 each."""
    mask = (1 << _HALF_BITS) - 1
    return f"{(int(first) & mask) << _HALF_BITS | (int(second) & mask):032x}"


def _load_statements() -> dict[str, sql.SQL]:
    text = resources.files(__package__).joinpath("sql/checksum.sql").read_text()
    _, *parts = _NAME.split(text)
    # The file is part of this package, so its text is as trusted as a literal in this module.
    return {
        name: sql.SQL(cast(LiteralString, statement.strip()))
        for name, statement in zip(parts[::2], parts[1::2], strict=True)
    }


_STATEMENTS = _load_statements()
