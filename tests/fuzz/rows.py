"""Random DML over the tables of a schema.

Nothing here is random but by the seed: no LIMIT without an order, no source row that matches twice.
"""

import random
from collections.abc import Callable

from fuzz.schemas import Column, Schema, Table, row
from fuzz.types import INT, computed, literal

Draw = Callable[[random.Random, Schema, Table], str]


def rows(chance: random.Random, schema: Schema) -> str:
    """DML of any form."""
    table = chance.choice(schema.tables)
    forms: tuple[tuple[int, Draw], ...] = (
        (22, _insert), (16, _update), (8, _update_key), (10, _delete), (8, _upsert),
        (5, _update_from), (4, _delete_using), (7, _merge), (5, _cte), (3, _truncate),
        (4, _insert_select), (3, _insert_outer), (3, _of_leaf), (3, _swap), (2, _cursor),
    )  # fmt: skip
    (draw,) = chance.choices([form for _, form in forms], [weight for weight, _ in forms])
    return draw(chance, schema, table)


def values(chance: random.Random, table: Table, most: int = 4) -> str:
    return ", ".join(row(chance, table.written) for _ in range(chance.randint(1, most)))


def names(columns: list[Column]) -> str:
    return ", ".join(one.name for one in columns)


def _where(chance: random.Random, table: Table) -> str:
    key = table.key[0]
    return chance.choice(
        (
            f"{key.name} = {literal(chance, key.kind)}::{key.kind.type}",
            f"v = {chance.randint(1, 8)}",
            f"v BETWEEN {chance.randint(1, 4)} AND {chance.randint(3, 8)}",
            "v IS NULL",
            "true",
            "t = 'a'",
        )
    )


def _assignment(chance: random.Random, table: Table) -> str:
    column = chance.choice(table.columns)
    value = f"({computed(chance, column.kind)})::{column.kind.type}"
    if column.name == "v":
        value = chance.choice((value, "v + 1", "-v", "coalesce(v, 0) + 1"))
    elif column.name == "t":
        value = chance.choice((value, "t || 'x'", "t", "repeat(coalesce(t, 'z'), 3)"))
    return f"{column.name} = {value}"


def _insert(chance: random.Random, _: Schema, table: Table) -> str:
    return f"INSERT INTO {table.name} ({names(table.written)}) VALUES {values(chance, table)}"


def _insert_select(chance: random.Random, schema: Schema, table: Table) -> str:
    key = table.key[0]
    numbers = key.kind.type in ("int", "bigint", "smallint", "numeric", "dom")
    value = "g" if numbers else f"'{chance.choice('abc')}'"
    rest = "".join(f", {literal(chance, one.kind)}::{one.kind.type}" for one in table.key[1:])
    return (
        f"INSERT INTO {table.name} ({names(list(table.key))}, v) "
        f"SELECT {value}::{key.kind.type}{rest}, g "
        f"FROM generate_series({chance.randint(1, 5)}, {chance.randint(5, 30)}) g "
        "ON CONFLICT DO NOTHING"
    )


def _insert_outer(chance: random.Random, _: Schema, table: Table) -> str:
    """A NULL of a column's own type, which no cast has seen."""
    column = chance.choice(table.columns)
    keys = ", ".join(f"{literal(chance, one.kind)}::{one.kind.type}" for one in table.key)
    return (
        f"INSERT INTO {table.name} ({names(list(table.key))}, {column.name}) "
        f"SELECT {keys}, o.{column.name} FROM (VALUES (1)) one LEFT JOIN {table.name} o ON false"
    )


def _update(chance: random.Random, _: Schema, table: Table) -> str:
    return f"UPDATE {table.name} SET {_assignment(chance, table)} WHERE {_where(chance, table)}"


def _update_key(chance: random.Random, _: Schema, table: Table) -> str:
    key = chance.choice(table.key)
    value = f"{literal(chance, key.kind)}::{key.kind.type}"
    if key.kind is INT:
        value = chance.choice((value, f"{key.name} + 1", f"{key.name} + 10", f"9 - {key.name}"))
    return f"UPDATE {table.name} SET {key.name} = {value} WHERE {_where(chance, table)}"


def _swap(chance: random.Random, _: Schema, table: Table) -> str:
    one, other = chance.sample(range(1, 7), 2)
    return (
        f"UPDATE {table.name} SET v = CASE v WHEN {one} THEN {other} ELSE {one} END "
        f"WHERE v IN ({one}, {other})"
    )


def _delete(chance: random.Random, _: Schema, table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {_where(chance, table)}"


def _upsert(chance: random.Random, _: Schema, table: Table) -> str:
    keys = names(list(table.key))
    act = chance.choice(
        (
            "DO NOTHING",
            f"({keys}) DO UPDATE SET t = {table.name}.t || 'again'",
            f"({keys}) DO UPDATE SET v = coalesce({table.name}.v, 0) + 1 WHERE excluded.v > 2",
            f"({keys}) DO UPDATE SET v = excluded.v, t = 'conflict'",
        )
    )
    return (
        f"INSERT INTO {table.name} ({names(table.written)}) VALUES {values(chance, table, 2)} "
        f"ON CONFLICT {act}"
    )


def _update_from(chance: random.Random, schema: Schema, table: Table) -> str:
    other = chance.choice(schema.tables)
    return (
        f"UPDATE {table.name} AS x SET v = s.n "
        f"FROM (SELECT v, count(*)::int AS n FROM {other.name} GROUP BY v) s WHERE x.v = s.v"
    )


def _delete_using(chance: random.Random, schema: Schema, table: Table) -> str:
    other = chance.choice(schema.tables)
    return (
        f"DELETE FROM {table.name} AS x USING {other.name} o "
        f"WHERE x.v = o.v AND o.v > {chance.randint(1, 7)}"
    )


def _merge(chance: random.Random, schema: Schema, table: Table) -> str:
    numbers = chance.sample(range(1, 9), 3)
    source = ", ".join(f"({number})" for number in numbers)
    matched = chance.choice(
        ("WHEN MATCHED THEN UPDATE SET t = 'merged'", "WHEN MATCHED THEN DELETE",
         f"WHEN MATCHED AND s.n > {numbers[0]} THEN UPDATE SET v = x.v + 10 "
         "WHEN MATCHED THEN DELETE")
    )  # fmt: skip
    values = ", ".join(
        "s.n" if one.name == "v" else f"{literal(chance, one.kind)}::{one.kind.type}"
        for one in (*table.key, table.columns[0])
    )
    written = names([*table.key, table.columns[0]])
    return (
        f"MERGE INTO {table.name} AS x USING (VALUES {source}) s (n) ON x.v = s.n {matched} "
        f"WHEN NOT MATCHED AND s.n = {numbers[1]} THEN INSERT ({written}) VALUES ({values})"
    )


def _cte(chance: random.Random, schema: Schema, table: Table) -> str:
    other = chance.choice([one for one in schema.tables if one is not table] or schema.tables)
    first = chance.choice((_update, _delete, _insert))(chance, schema, table)
    second = chance.choice((_update, _delete, _insert))(chance, schema, other)
    return (
        f"WITH a AS ({first} RETURNING 1), b AS ({second} RETURNING 1) "
        "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)"
    )


def _truncate(chance: random.Random, _: Schema, table: Table) -> str:
    names = chance.choice(([table.name], [table.name], table.leaves or [table.name]))
    more = chance.choice(("", " CASCADE", " RESTART IDENTITY CASCADE"))
    return f"TRUNCATE {chance.choice(names)}{more}"


def _of_leaf(chance: random.Random, schema: Schema, table: Table) -> str:
    if not table.leaves:
        return _update(chance, schema, table)
    leaf = Table(chance.choice(table.leaves), table.key, table.columns)
    return chance.choice((_insert, _update, _delete))(chance, schema, leaf)


def _cursor(chance: random.Random, _: Schema, table: Table) -> str:
    name = f"c{chance.randint(1, 9)}"
    return chance.choice(
        (
            f"DECLARE {name} CURSOR WITH HOLD FOR SELECT * FROM {table.name}",
            f"DECLARE {name} CURSOR FOR SELECT v FROM {table.name} ORDER BY v, t FOR UPDATE",
            f"DO $cur$ DECLARE r record; BEGIN "
            f"FOR r IN SELECT {table.key[0].name} AS k FROM {table.name} LOOP UPDATE {table.name} "
            f"SET v = coalesce(v, 0) + 1 WHERE {table.key[0].name} = r.k; END LOOP; END $cur$",
        )
    )
