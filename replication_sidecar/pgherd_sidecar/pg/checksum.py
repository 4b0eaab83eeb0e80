"""Checksums of the replicated tables in one snapshot, for comparing nodes.

The caller (the sidecar, for ``pgherd local verify``) has opened a REPEATABLE READ transaction at
the GID to compare; everything is computed inside PostgreSQL in that transaction's snapshot. The
transaction's settings are changed, so it should serve nothing else. Nothing is kept.

Two nodes hold the same rows of a table if the 128-bit checksums are equal (up to chance). Where
they differ, ``bucket_checksums`` and then ``key_checksums`` narrow it down to the keys.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from typing import Any, LiteralString, cast

from psycopg import AsyncConnection, sql

_HALF_BITS = 64
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class UnknownTable(LookupError):
    """The table does not exist on this node or is not replicated."""


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


async def table_checksums(connection: AsyncConnection[Any]) -> dict[str, TableChecksum]:
    """Return the checksum of each table in ``pgherd.replicated_tables``, by its name there."""
    return {
        table.name: await _table_checksum(connection, table) for table in await _tables(connection)
    }


async def bucket_checksums(connection: AsyncConnection[Any], name: str) -> dict[int, str]:
    """Return the checksums of a table's rows by bucket of their key's hash; empty ones are absent.

    Raises:
        UnknownTable: no such replicated table.
    """
    query = _query("buckets", await _table(connection, name))
    cursor = await connection.execute(query)
    return {bucket: _hex(first, second) for bucket, first, second in await cursor.fetchall()}


async def key_checksums(connection: AsyncConnection[Any], name: str, bucket: int) -> dict[str, str]:
    """Return the checksum of each row of one bucket, by the record literal of its key.

    Raises:
        UnknownTable: no such replicated table.
    """
    query = _query("keys", await _table(connection, name))
    cursor = await connection.execute(query, {"bucket": bucket})
    return {key: _hex(first, second) for key, first, second in await cursor.fetchall()}


async def _table_checksum(connection: AsyncConnection[Any], table: _Table) -> TableChecksum:
    cursor = await connection.execute(_query("table", table))
    row = await cursor.fetchone()
    assert row is not None  # an aggregate without GROUP BY has exactly one row
    rows, first, second = row
    return TableChecksum(rows, _hex(first or 0, second or 0), table.columns)


async def _table(connection: AsyncConnection[Any], name: str) -> _Table:
    for table in await _tables(connection):
        if table.name == name:
            return table
    raise UnknownTable(name)


async def _tables(connection: AsyncConnection[Any]) -> Iterable[_Table]:
    await connection.execute(_STATEMENTS["settings"])
    cursor = await connection.execute(_STATEMENTS["replicated_tables"])
    return [
        _Table(name, _rows(schema, relation, partitioned=partitioned), columns, _key(key))
        for name, schema, relation, partitioned, columns, key in await cursor.fetchall()
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
