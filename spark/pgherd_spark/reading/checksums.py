"""Checksums of a table's rows, computed inside PostgreSQL, part by part.

A part is a range of blocks of one file on one member: PostgreSQL reads just those, and no key is
needed to divide a table evenly. Sums of parts add up to sums of tables. All functions here are
tasks: they open a session, do one thing, and keep nothing.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from pgherd_spark.reading import statements
from pgherd_spark.reading.catalog import Table
from pgherd_spark.reading.pace import FULL, SLICE_BYTES, paced
from pgherd_spark.reading.rowhash import record, row_hash
from pgherd_spark.reading.sources import Relation, Source, at_marker, connected, reading, unchanging

_SQL = statements.load("checksum.sql")
_HALF = 1 << 64
_DOUBLED = re.compile(r'(["\\])\1')


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks ``first`` to before ``end`` of a file; to wherever the file ends if that is None.

    ``share`` is the percentage of the time for which a session works that reads it.
    """

    source: Source
    table: Table
    relation: Relation
    first: int
    end: int | None
    share: int = FULL

    @property
    def bytes(self) -> int:
        """As far as is known: the file may have grown."""
        end = self.relation.blocks if self.end is None else self.end
        return max(0, end - self.first) * self.relation.block_bytes


@dataclass(frozen=True, slots=True)
class Sum:
    """Number of rows and the sums of both their hashes, modulo 2^64."""

    rows: int
    first: int
    second: int

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(
            self.rows + other.rows,
            (self.first + other.first) % _HALF,
            (self.second + other.second) % _HALF,
        )

    def hex(self) -> str:
        """Both sums as one number of 128 bits."""
        return f"{self.first << 64 | self.second:032x}"


NOTHING = Sum(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Found:
    """A row: its hashes, and where on its member it is."""

    sum: Sum
    relation: Relation
    ctid: str


def parts_of(
    source: Source, table: Table, relation: Relation, part_bytes: int, share: int = FULL
) -> Iterator[Part]:
    """Divide a file. The last part is open: the file may have grown."""
    yield from _divided(Part(source, table, relation, 0, None, share), part_bytes)


def _divided(part: Part, size: int) -> Iterator[Part]:
    step = max(1, size // part.relation.block_bytes)
    end = part.relation.blocks if part.end is None else part.end
    starts = range(part.first, max(part.first + 1, end), step)
    for first in starts:
        last = first == starts[-1]
        yield replace(part, first=first, end=part.end if last else first + step)


def bucket_sums(part: Part, buckets: int) -> list[tuple[int, Sum]]:
    """Sums of the part's rows by bucket of their keys, some in pieces; empty ones are absent.

    Args:
        part: what to read.
        buckets: how many, a power of two.

    Raises:
        TableChangedError: see ``unchanging``.
        psycopg.Error: the server or the snapshot is gone.
    """
    rows = _read(part, "buckets", mask=buckets - 1)
    return [(bucket, sum_of(count, first, second)) for bucket, count, first, second in rows]


def total(part: Part) -> Sum:
    """``quick_sum`` in a session of its own.

    Raises:
        TableChangedError, psycopg.Error: as for ``bucket_sums``.
    """
    with connected(part.source) as connection:
        return quick_sum(connection, part)


def quick_sum(connection: psycopg.Connection[Any], part: Part) -> Sum:
    """Another sum of all the part's rows, computed in a fraction of the time: of one hash a row.

    Where it is stored, ``rowhash.KIND`` is stored with it.

    Args:
        connection: a session of ``connected`` with the part's source.
        part: what to read.

    Raises:
        TableChangedError, psycopg.Error: as for ``bucket_sums``.
    """
    hashed = row_hash(zip(part.table.columns, part.table.types, strict=True))
    with at_marker(connection, part.source):
        rows = _rows(connection, part, "quick", hash=hashed)
    return sum((sum_of(count, of_hashes) for count, of_hashes in rows), NOTHING)


def rows_in(part: Part, buckets: int, wanted: Iterable[int]) -> list[tuple[str, Found]]:
    """The part's rows that are in some of the buckets, by the text of their keys.

    Raises:
        TableChangedError, psycopg.Error: as for ``bucket_sums``.
    """
    rows = _read(part, "rows", mask=buckets - 1, buckets=list(wanted))
    return [
        (key, Found(sum_of(1, first, second), part.relation, ctid))
        for key, first, second, ctid in rows
    ]


def values_at(
    source: Source, table: Table, relation: Relation, ctids: Iterable[str]
) -> list[tuple[str, dict[str, str | None]]]:
    """The values of some rows as text, by the text of their keys.

    Raises:
        TableChangedError, psycopg.Error: as for ``bucket_sums``.
    """
    query = _SQL["values"].format(
        key=record(table.key or table.columns),
        values=sql.SQL(", ").join(
            sql.SQL("{}::text").format(record([column])) for column in table.columns
        ),
        relation=relation.identifier,
        ctids=sql.Literal(list(ctids)),
    )
    with reading(source) as connection, unchanging(connection, relation):
        rows = connection.execute(query).fetchall()
    return [
        (key, dict(zip(table.columns, map(_value, values), strict=True))) for key, *values in rows
    ]


def blocks(first: int, end: int | None) -> sql.Composed:
    """The condition that a row ``t`` is in a range of blocks."""
    low = sql.SQL("t.ctid >= {}::tid").format(sql.Literal(f"({first},0)"))
    if end is None:
        return sql.Composed([low])
    return sql.SQL("{} AND t.ctid < {}::tid").format(low, sql.Literal(f"({end},0)"))


def _query(name: str, part: Part, **parts: object) -> sql.Composed:
    return _SQL[name].format(
        key=record(part.table.key or part.table.columns),
        row=record(part.table.columns),
        relation=part.relation.identifier,
        range=blocks(part.first, part.end),
        **{
            name: value if isinstance(value, sql.Composable) else sql.Literal(value)
            for name, value in parts.items()
        },
    )


def _read(part: Part, name: str, **parts: object) -> list[tuple[Any, ...]]:
    with reading(part.source) as connection:
        return _rows(connection, part, name, **parts)


def _rows(
    connection: psycopg.Connection[Any], part: Part, name: str, **parts: object
) -> list[tuple[Any, ...]]:
    """What a query returns of each slice; without rests a part is one."""
    slices = [part] if part.share >= FULL else _divided(part, SLICE_BYTES)
    with unchanging(connection, part.relation):
        return [
            row
            for piece in paced(slices, part.share)
            for row in connection.execute(_query(name, piece, **parts)).fetchall()
        ]


def sum_of(rows: int, first: Decimal | int, second: Decimal | int = 0) -> Sum:
    """PostgreSQL returns sums of bigint as numeric, and hashes are signed."""
    return Sum(rows, int(first) % _HALF, int(second) % _HALF)


def _value(literal: str) -> str | None:
    """The text in a record literal of one column; None for NULL, which has no text at all."""
    text = literal[1:-1]
    if not text:
        return None
    if not text.startswith('"'):
        return text
    return _DOUBLED.sub(r"\1", text[1:-1])
