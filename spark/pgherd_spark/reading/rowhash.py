"""One 64-bit hash of a row, as an expression that PostgreSQL computes: for ``checksums.quick_sum``.

Each value is hashed under a seed of its own, so that two columns can't exchange theirs unseen, and
the hashes are joined by exclusive or. A hash of the result makes it other than linear: sums over
rows tell in which row a value is. Values that are the same wherever they are equal are hashed as
they are, all others, together, by their text: what differs in its text differs here.

PostgreSQL's own hashes of 64-bit integers and times fold them to 32 bits first, and those of
``numeric`` and ``interval`` take values with different texts for equal. So none of these is used.

Columns are named without their table. Where a column is dropped meanwhile, ``t.to_json`` calls the
function with the whole row, and that calls casts of the table's owner with the reader's rights.
"""

import re
from collections.abc import Iterable, Iterator
from typing import LiteralString

from psycopg import sql

KIND = 1
"""Of the hash below, in what is stored; to be counted up with each change of it."""
_DIRECT: dict[str, LiteralString] = {
    r"text|character varying(\(\d+\))?": 'hashtextextended({c} COLLATE pg_catalog."C", {seed})',
    r"character\(\d+\)": 'hashtextextended(textin(bpcharout({c})) COLLATE pg_catalog."C", {seed})',
    r"numeric(\(\d+,-?\d+\))?": (
        'hashtextextended(textin(numeric_out({c})) COLLATE pg_catalog."C", {seed})'
    ),
    r"integer|smallint|boolean": "hashint4extended({c}::int4, {seed})",
    r"bigint": "hashint4extended(({c} >> 32)::int4, hashint8extended({c}, {seed}))",
    r"uuid": "uuid_hash_extended({c}, {seed})",
}
"""By type, as PostgreSQL writes it. No casts but those of these types to each other: a cast to
text may be somebody's own."""
_BYTES: dict[str, LiteralString] = {
    r"bytea": "{c}",
    r"date": "date_send({c})",
    r"time(\(\d\))? without time zone": "time_send({c})",
    r"timestamp(\(\d\))? without time zone": "timestamp_send({c})",
    r"timestamp(\(\d\))? with time zone": "timestamptz_send({c})",
}
"""Types that are hashed byte by byte, which PostgreSQL can do in arrays and records only."""


def row_hash(columns: Iterable[tuple[str, str]]) -> sql.Composed:
    """The hash of a row; it is never NULL.

    Args:
        columns: names and types, in the order of the names.
    """
    joined = sql.SQL(" # ").join(_hashes(columns))
    return sql.SQL("hashint4extended(0, {})").format(joined)


def record(columns: Iterable[str]) -> sql.Composed:
    """A record of some columns of a row."""
    names = (sql.Identifier(column) for column in columns)
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(names))


def _hashes(columns: Iterable[tuple[str, str]]) -> Iterator[sql.Composed]:
    """Bytes and texts of several columns at once have the seeds 0 and 1."""
    sent: list[sql.Composed] = []
    others: list[str] = []
    for seed, (column, kind) in enumerate(columns, 2):
        name = sql.Identifier(column)
        if (direct := _matching(_DIRECT, kind)) is not None:
            value = direct.format(c=name, seed=sql.Literal(seed))
            yield sql.SQL("coalesce({}, {})").format(value, sql.Literal(seed))
        elif (as_bytes := _matching(_BYTES, kind)) is not None:
            sent.append(as_bytes.format(c=name))
        else:
            others.append(column)
    if sent:
        yield sql.SQL("hash_array_extended(ARRAY[{}], 0)").format(sql.SQL(", ").join(sent))
    if others or not sent:
        text = sql.SQL('hashtextextended({}::text COLLATE pg_catalog."C", 1)')
        # The text of no columns as a constant: PostgreSQL would make that of ROW() for each row.
        yield text.format(record(others) if others else sql.Literal("()"))


def _matching(ways: dict[str, LiteralString], kind: str) -> sql.SQL | None:
    for pattern, way in ways.items():
        if re.fullmatch(pattern, kind):
            return sql.SQL(way)
    return None
