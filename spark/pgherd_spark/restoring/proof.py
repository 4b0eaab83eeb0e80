"""Shows that the rows which were loaded are the snapshot's: by their checksums, computed anew.

All tables are read in ranges of blocks, many at a time, so that one large table takes no longer
than many small ones. Knows nothing of how rows are loaded.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from pgherd_spark.reading import statements
from pgherd_spark.reading.checksums import NOTHING, Sum, blocks, sum_of
from pgherd_spark.reading.rowhash import row_hash

_SQL = statements.load("restore.sql") | statements.load("checksum.sql")
_SESSION = statements.load("session.sql")
_RANGE_BLOCKS = 8192
"""64 MB: many to share out, each well above the cost of a session."""


def differences(
    each: Callable[[Callable[[Any], Sum], Iterable[Any]], Iterable[Sum]],
    conninfo: str,
    tables: Sequence[dict[str, Any]],
) -> list[str]:
    """Compare what is in a server with the manifest.

    Args:
        each: does something with each of many, at the same time if it can: ``map``.
        conninfo: of who may read all rows.
        tables: the manifest's.

    Returns:
        A sentence for each table whose rows are not those of the snapshot.

    Raises:
        psycopg.Error: they can't be read.
    """
    with _session(conninfo) as connection:
        ranges = [(table["name"], one) for table in tables for one in _ranges(connection, table)]
    found_in = each(partial(_sum, conninfo), [query for _, query in ranges])
    sums: dict[str, Sum] = defaultdict(lambda: NOTHING)
    for (name, _), found in zip(ranges, found_in, strict=True):
        sums[name] += found
    return [
        f"{table['name']}: {found.rows} rows with checksum {found.hex()} were loaded, the "
        f"snapshot has {table['rows']} with {table['checksum']}"
        for table in tables
        if ((found := sums[table["name"]]).rows, found.hex()) != (table["rows"], table["checksum"])
    ]


def _ranges(connection: psycopg.Connection[Any], table: dict[str, Any]) -> Iterator[sql.Composed]:
    """The queries of the sums of a table's rows, some of its blocks each."""
    for schema, name in sorted({(*part["relation"],) for part in table["parts"]}):
        relation = sql.SQL("ONLY {}").format(sql.Identifier(schema, name))
        row = connection.execute(_SQL["blocks"], (schema, name)).fetchone()
        assert row is not None
        starts = range(0, max(1, row[0]), _RANGE_BLOCKS)
        for first in starts:
            end = first + _RANGE_BLOCKS if first != starts[-1] else None
            yield _query(table, relation, blocks(first, end))


def _query(table: dict[str, Any], relation: sql.Composed, range_: sql.Composed) -> sql.Composed:
    """The sum of some rows."""
    hashed = row_hash(table["columns"].items())
    return _SQL["quick"].format(hash=hashed, relation=relation, range=range_)


def _sum(conninfo: str, query: sql.Composed) -> Sum:
    with _session(conninfo) as connection:
        (row,) = connection.execute(query).fetchall()
    return sum_of(*row)


def _session(conninfo: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(conninfo, autocommit=True)
    connection.execute(_SESSION["settings"])
    return connection
