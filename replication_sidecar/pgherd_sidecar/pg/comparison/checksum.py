"""Checksums of replicated tables and materialized views in one snapshot, for comparing nodes.

The caller (``pgherd local verify``, the scrub) has opened a REPEATABLE READ transaction at
the GID to compare; everything is computed inside PostgreSQL in that transaction's snapshot. The
transaction's settings are changed, so it should serve nothing else. Nothing is kept.

The leaf of a partitioned table that holds a row is part of the row. A materialized view is a bag of
rows, and has no checksum of rows where it is not populated.

Two nodes hold the same rows of a table if the 128-bit checksums are equal (up to chance). Where
they differ, ``bucket_checksums`` and then ``key_checksums`` narrow it down to the keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from psycopg import AsyncConnection, errors, sql

from pgherd_sidecar.queries import statements

UNPOPULATED = "not populated"
"""In place of the checksum of a materialized view's rows."""
_HALF_BITS = 64


class UnknownTable(LookupError):
    """The table does not exist on this node or is not replicated."""


class TableChangedError(Exception):
    """DDL has changed a table since the snapshot, so its rows in it can't be read any more."""


@dataclass(frozen=True, slots=True)
class TableChecksum:
    """One table: number of rows, checksum of the rows, checksum of the columns' definition."""

    rows: int
    checksum: str
    columns: str


@dataclass(frozen=True, slots=True)
class Table:
    """What is compared, as the catalog has it in the snapshot.

    Attributes:
        rows: where its rows are read.
        view: it is a materialized view.
        populated: of a materialized view: it has contents.
        columns: checksum of the columns' definition.
        names: of the columns.
        key: columns of the primary key and their types; empty where there is none.
        sortable: ranges of the key can be read.
        files: of it or its leaves, by oid.
        leaves: names of the leaves by oid, of a partitioned table.
    """

    name: str
    rows: sql.Composed
    view: bool
    populated: bool
    columns: str
    names: tuple[str, ...]
    key: tuple[tuple[str, str], ...]
    sortable: bool
    oid: int
    files: str
    leaves: str | None

    @property
    def leaf(self) -> sql.Composed:
        """The name of the leaf that holds a row; NULL where there are none."""
        if self.leaves is None:
            return sql.SQL("NULL::text").format()
        names = sql.Literal(self.leaves)
        return sql.SQL("({}::jsonb ->> format('%s', t.tableoid))").format(names)

    @property
    def row(self) -> sql.Composed:
        """All that counts of a row, as a record."""
        leaf = [] if self.leaves is None else [self.leaf]
        columns = sql.SQL(", ").join([*leaf, *map(sql.Identifier, self.names)])
        return sql.SQL("ROW({})").format(columns)


async def table_checksums(connection: AsyncConnection[Any]) -> dict[str, TableChecksum]:
    """Return the checksum of each replicated table and materialized view, by its name.

    Raises:
        TableChangedError: one is not what it was in the snapshot.
    """
    found = await list_tables(connection)
    return {table.name: await _table_checksum(connection, table) for table in found}


async def bucket_checksums(connection: AsyncConnection[Any], name: str) -> dict[int, str]:
    """Return the checksums of a table's rows by bucket of their key's hash; empty ones are absent.

    Raises:
        UnknownTable: no such replicated table.
        TableChangedError: it is not what it was in the snapshot.
    """
    found = await find_table(connection, name)
    if not found.populated:
        return {}
    rows = await read_unchanged(connection, found, _query("buckets", found))
    return {bucket: hexadecimal(first, second) for bucket, first, second in rows}


async def key_checksums(connection: AsyncConnection[Any], name: str, bucket: int) -> dict[str, str]:
    """Return the checksum of each row of one bucket, by the record literal of its key.

    The name of the leaf that holds the row is behind the checksum. Equal rows without a key count
    together.

    Raises:
        UnknownTable: no such replicated table.
        TableChangedError: it is not what it was in the snapshot.
    """
    found = await find_table(connection, name)
    if not found.populated:
        return {}
    query = _query("keys", found, bucket=sql.Literal(bucket))
    rows = await read_unchanged(connection, found, query)
    sums: dict[str, list[str]] = {}
    for key, first, second, leaf in rows:
        one = hexadecimal(first, second)
        sums.setdefault(key, []).append(f"{one} in {leaf}" if leaf else one)
    return {key: _together(found) for key, found in sums.items()}


def _together(sums: list[str]) -> str:
    return sums[0] if len(sums) == 1 else f"{sorted(sums)[0]} and {len(sums) - 1} more"


async def _table_checksum(connection: AsyncConnection[Any], table: Table) -> TableChecksum:
    if not table.populated:
        return TableChecksum(0, UNPOPULATED, table.columns)
    # An aggregate without GROUP BY has exactly one row.
    ((rows, first, second),) = await read_unchanged(connection, table, _query("table", table))
    return TableChecksum(rows, hexadecimal(first or 0, second or 0), table.columns)


async def read_unchanged(
    connection: AsyncConnection[Any], table: Table, query: sql.Composed
) -> list[tuple[Any, ...]]:
    """Run a query of a table that is, before and after, what it was in the snapshot.

    A snapshot protects neither from another table or a view under the name, whose code would run
    with our rights, nor from another file. A lock does not keep the name of the table's schema.

    Raises:
        TableChangedError: it is not.
    """
    try:
        if table.view:  # a view in its place must not be planned, either
            await connection.execute(STATEMENTS["restrict"], {"kinds": "view, foreign-table"})
            await connection.execute(STATEMENTS["lock_view"].format(table=table.rows))
        else:
            await connection.execute(STATEMENTS["lock"].format(table=table.rows))
    except (
        errors.UndefinedTable,
        errors.InvalidSchemaName,
        errors.WrongObjectType,
        errors.ObjectNotInPrerequisiteState,
    ) as error:
        raise TableChangedError(f"{table.name} was dropped or renamed since the marker") from error
    await connection.execute(STATEMENTS["restrict"], {"kinds": "view, foreign-table"})
    await _require_unchanged(connection, table)
    try:
        cursor = await connection.execute(query)  # names in it may have a %
    except errors.UndefinedColumn as error:
        raise TableChangedError(f"{table.name} has lost a column since the marker") from error
    rows = await cursor.fetchall()
    await _require_unchanged(connection, table)
    return rows


async def _require_unchanged(connection: AsyncConnection[Any], table: Table) -> None:
    asked = {"name": table.name, "oid": table.oid, "files": table.files}
    cursor = await connection.execute(STATEMENTS["unchanged"], asked)
    if await cursor.fetchone() != (True,):
        raise TableChangedError(
            f"{table.name} was truncated, rewritten or replaced since the marker"
        )


async def find_table(connection: AsyncConnection[Any], name: str) -> Table:
    """Return one table.

    Raises:
        UnknownTable: there is none of this name that is replicated.
    """
    for found in await list_tables(connection, name):
        return found
    raise UnknownTable(name)


async def list_tables(connection: AsyncConnection[Any], name: str | None = None) -> Iterable[Table]:
    """Return all that is compared, or what has one name; readies the transaction for ``read``."""
    await connection.execute(STATEMENTS["settings"])
    await connection.execute(STATEMENTS["restrict"], {"kinds": ""})
    cursor = await connection.execute(STATEMENTS["compared_tables"], {"name": name})
    return [_made(*row) for row in await cursor.fetchall()]


def _made(  # noqa: PLR0913, PLR0917 - the columns of a row of the catalog
    name: str,
    schema: str,
    relation: str,
    kind: str,
    populated: bool,
    columns: str,
    names: list[str] | None,
    key: list[str] | None,
    types: list[str] | None,
    sortable: bool,
    oid: int,
    files: str,
    leaves: str,
) -> Table:
    partitioned = kind == "p"
    # All rows of a partitioned table, but of an inheritance parent only its own.
    only = sql.SQL("") if partitioned else sql.SQL("ONLY ")
    return Table(
        name=name,
        rows=sql.Composed([only, sql.Identifier(schema, relation)]),
        view=kind == "m",
        populated=populated,
        columns=columns,
        names=tuple(names or ()),
        key=tuple(zip(key or (), types or (), strict=True)),
        sortable=sortable,
        oid=oid,
        files=files,
        leaves=leaves if partitioned else None,
    )


def _query(name: str, table: Table, **parts: sql.Composable) -> sql.Composed:
    # The whole row is the key where there is none, for want of anything better.
    columns = [column for column, _ in table.key] or table.names
    key = sql.SQL(", ").join(map(sql.Identifier, columns))
    return STATEMENTS[name].format(
        table=table.rows, key=key, row=table.row, leaf=table.leaf, **parts
    )


def hexadecimal(first: Decimal | int, second: Decimal | int) -> str:
    """Join the sums of both hashes, which PostgreSQL returns as numeric, modulo 2^64 each."""
    mask = (1 << _HALF_BITS) - 1
    return f"{(int(first) & mask) << _HALF_BITS | (int(second) & mask):032x}"


STATEMENTS = {
    name: sql.SQL(text) for name, text in statements("pgherd_sidecar.pg", "checksum").items()
}
