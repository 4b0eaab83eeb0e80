"""The check's hash of a row, computed by a real server: what differs in any way has another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from pgherd_spark.reading.rowhash import row_hash
from psycopg import sql

from .alike import ALIKE
from .localherd import LocalHerd

_MORE = {
    "varchar": ("varchar(9)", "'a '", "'a'"),
    "text_of_null": ("text", "'()'", "NULL"),
    "char_of_null": ("char(3)", "''", "NULL"),
    "float8_nan": ("float8", "'nan'", "'inf'"),
    "timestamptz_infinite": ("timestamptz(3)", "'infinity'", "'-infinity'"),
    "numeric_places": ("numeric(9, 3)", "1.001", "1.010"),
    "time": ("time(6)", "'00:00:00.000001'", "'01:11:34.967296'"),
    "bytea_empty": ("bytea", r"'\x'", "NULL"),
}
"""By name: a type, a value, and another."""
_KINDS = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
             WHERE attrelid = 'pg_temp.h'::regclass AND attnum > 0 ORDER BY attname COLLATE "C\""""
_BITS = 64
_COLUMNS = 1600
"""As many as a table can have."""


@pytest.fixture(scope="module")
def session(herd: LocalHerd) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(herd.nodes()[0].dsn, autocommit=True) as connection:
        connection.execute("SET search_path = pg_catalog")
        yield connection


def hashes(
    session: psycopg.Connection[Any], columns: Mapping[str, str], *rows: Sequence[str]
) -> list[int]:
    """Of rows of a table; of columns their types, of values their SQL."""
    definition = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    session.execute(f"CREATE TEMP TABLE h ({definition})".encode())
    try:
        for row in rows:
            session.execute(f"INSERT INTO pg_temp.h VALUES ({', '.join(row)})".encode())
        found = session.execute(_KINDS).fetchall()
        expression = row_hash((name, kind) for name, kind in found)
        query = sql.SQL("SELECT {} FROM pg_temp.h t ORDER BY ctid").format(expression)
        return [value for (value,) in session.execute(query)]
    finally:
        session.execute("DROP TABLE pg_temp.h")


@pytest.mark.family(every=4)
@pytest.mark.parametrize("name", [*ALIKE, *_MORE])
def test_values_that_differ_have_different_hashes_and_null_has_its_own(
    session: psycopg.Connection[Any], name: str
) -> None:
    kind, value, other = (ALIKE | _MORE)[name]
    one, same, another, null = hashes(session, {"c": kind}, [value], [value], [other], ["NULL"])
    assert one == same != another
    assert null not in (one, *([] if other == "NULL" else [another]))


@pytest.mark.parametrize("first", ["0", "-1", "654321987654321"])
@pytest.mark.parametrize("kind", ["bigint", "timestamp", "timestamptz"])
def test_any_bit_and_any_bit_of_both_halves_counts(
    session: psycopg.Connection[Any], kind: str, first: str
) -> None:
    flipped = [1 << bit for bit in range(_BITS - 8)]
    flipped += [one | one << _BITS // 2 for one in flipped[: _BITS // 2 - 8]]
    value = "{}::bigint" if kind == "bigint" else f"'2000-01-01 UTC'::{kind} + {{}} * _us"
    numbers = [int(first), *(int(first) ^ one for one in flipped)]
    rows = [[value.replace("_us", "interval '1 us'").format(number)] for number in numbers]
    found = hashes(session, {"c": kind}, *rows)
    assert len(set(found)) == len(rows)


@pytest.mark.parametrize("name", [*ALIKE, *_MORE])
def test_neither_columns_nor_rows_can_exchange_values(
    session: psycopg.Connection[Any], name: str
) -> None:
    kind, value, other = (ALIKE | _MORE)[name]
    columns = {"a": kind, "b": kind, "id": "int"}
    rows = [(value, other, "1"), (other, value, "1"), (value, value, "2"), (other, other, "2")]
    found = hashes(session, columns, *rows)
    assert len(set(found)) == len(rows)
    one, two, exchanged_one, exchanged_two = hashes(
        session, {"c": kind, "id": "int"}, (value, "1"), (other, "2"), (other, "1"), (value, "2")
    )
    assert one + two != exchanged_one + exchanged_two


def test_a_row_may_have_as_many_columns_as_postgresql_allows(
    session: psycopg.Connection[Any],
) -> None:
    for kind in ("int", "date", "jsonb"):
        columns = {f"c{number}": kind for number in range(_COLUMNS)}
        nulls = ["NULL"] * _COLUMNS
        value = {"int": "1", "date": "'2020-01-01'", "jsonb": "'1'"}[kind]
        one, other = hashes(session, columns, nulls, [*nulls[1:], value])
        assert one != other
