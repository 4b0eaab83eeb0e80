"""Random statements over the tables of a schema: rows, commands, requests, and what is around them.

Nothing here is random but by the seed: no LIMIT without an order, no source row that matches twice.
"""

import random
from collections.abc import Callable, Iterator

from fuzz.extremes import SESSION_SETTINGS
from fuzz.schemas import Column, Schema, Table, row
from fuzz.types import INT, any_kind, literal

Draw = Callable[[random.Random, Schema, Table], str]


def statement(chance: random.Random, schema: Schema) -> str:
    """One of any sort."""
    weights = (66, 18, 5, 4, 7)
    (sort,) = chance.choices((rows, command, request, around, compound), weights)
    return sort(chance, schema)


def rows(chance: random.Random, schema: Schema) -> str:
    """DML of any form."""
    table = chance.choice(schema.tables)
    forms: tuple[tuple[int, Draw], ...] = (
        (22, _insert), (16, _update), (8, _update_key), (10, _delete), (8, _upsert),
        (5, _update_from), (4, _delete_using), (7, _merge), (5, _cte), (3, _truncate),
        (4, _insert_select), (3, _of_leaf), (3, _swap), (2, _cursor),
    )  # fmt: skip
    (draw,) = chance.choices([form for _, form in forms], [weight for weight, _ in forms])
    return draw(chance, schema, table)


def command(chance: random.Random, schema: Schema) -> str:
    """DDL of any form."""
    forms = (
        (8, _make_table), (10, _alter), (5, _index), (6, _partition), (5, _type), (3, _view),
        (3, _materialized), (3, _function), (2, _privilege), (2, _drop), (2, _comment),
    )  # fmt: skip
    (draw,) = chance.choices([form for _, form in forms], [weight for weight, _ in forms])
    return draw(chance, schema)


def request(chance: random.Random, schema: Schema) -> str:
    """What is asked of pgherd."""
    table = chance.choice([one for one in schema.tables if not one.local])
    return chance.choice(
        (
            f"SELECT pgherd.setval('sq', {chance.randint(1, 500)})",
            "SELECT nextval('sq') IS NOT NULL",
            f"SELECT pgherd.set_local('{table.name}')",
            f"SELECT pgherd.set_replicated('{table.name}')",
            f"SELECT pgherd.set_local('extra{chance.randint(1, 3)}')",
        )
    )


def around(chance: random.Random, schema: Schema) -> str:
    """What changes no row by itself."""
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            "SET CONSTRAINTS ALL IMMEDIATE",
            "SET CONSTRAINTS ALL DEFERRED",
            "CLOSE ALL",
            f"SELECT count(*) FROM {table.name} WHERE v = {chance.randint(1, 5)}",
            setting(chance, local=True),
            setting(chance, local=True),
            f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE",
            "RESET ALL",
        )
    )


def setting(chance: random.Random, *, local: bool = False) -> str:
    """A setting at an extreme."""
    name = chance.choice(sorted(SESSION_SETTINGS))
    value = chance.choice(SESSION_SETTINGS[name])
    return f"SET {'LOCAL ' if local else ''}{name} = '{value}'"


def compound(chance: random.Random, schema: Schema) -> str:
    """Statements inside a DO block, some of which fail inside EXCEPTION."""
    first, second = (_quoted(rows(chance, schema)) for _ in range(2))
    inner = _quoted(command(chance, schema))
    return chance.choice(
        (
            f"DO $do$ BEGIN {first} BEGIN {inner} RAISE division_by_zero; "
            f"EXCEPTION WHEN division_by_zero THEN NULL; END; {second} END $do$",
            "DO $do$ BEGIN BEGIN EXECUTE 'CREATE TABLE told (i int)'; "
            f"EXCEPTION WHEN duplicate_table THEN NULL; END; {first} END $do$",
            f"DO $do$ BEGIN {first} {inner} {second} END $do$",
            f"DO $do$ BEGIN BEGIN {first} {second} RAISE division_by_zero; "
            f"EXCEPTION WHEN division_by_zero THEN NULL; END; {second} END $do$",
        )
    )


def _quoted(statement: str) -> str:
    return f"EXECUTE $in${statement}$in$;"


# ---- rows ------------------------------------------------------------------------------------


def _values(chance: random.Random, table: Table, most: int = 4) -> str:
    return ", ".join(row(chance, table.written) for _ in range(chance.randint(1, most)))


def _names(columns: list[Column]) -> str:
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
    value = f"{literal(chance, column.kind, null=0.1)}::{column.kind.type}"
    if column.name == "v":
        value = chance.choice((value, "v + 1", "-v", "coalesce(v, 0) + 1"))
    elif column.name == "t":
        value = chance.choice((value, "t || 'x'", "t", "repeat(coalesce(t, 'z'), 3)"))
    return f"{column.name} = {value}"


def _insert(chance: random.Random, _: Schema, table: Table) -> str:
    return f"INSERT INTO {table.name} ({_names(table.written)}) VALUES {_values(chance, table)}"


def _insert_select(chance: random.Random, schema: Schema, table: Table) -> str:
    key = table.key[0]
    numbers = key.kind.type in ("int", "bigint", "smallint", "numeric", "dom")
    value = "g" if numbers else f"'{chance.choice('abc')}'"
    rest = "".join(f", {literal(chance, one.kind)}::{one.kind.type}" for one in table.key[1:])
    return (
        f"INSERT INTO {table.name} ({_names(list(table.key))}, v) SELECT {value}::{key.kind.type}{rest}, "
        f"g FROM generate_series({chance.randint(1, 5)}, {chance.randint(5, 30)}) g ON CONFLICT DO NOTHING"
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
    act = chance.choice(
        ("DO NOTHING", f"({_names(list(table.key))}) DO UPDATE SET {_assignment(chance, Table(table.name, table.key, [table.columns[1]]))}",
         f"({_names(list(table.key))}) DO UPDATE SET v = excluded.v, t = 'conflict'")
    )  # fmt: skip
    act = act.replace("= t", f"= {table.name}.t").replace("coalesce(t", f"coalesce({table.name}.t")
    return (
        f"INSERT INTO {table.name} ({_names(table.written)}) VALUES {_values(chance, table, 2)} "
        f"ON CONFLICT {act}"
    )


def _update_from(chance: random.Random, schema: Schema, table: Table) -> str:
    other = chance.choice(schema.tables)
    return (
        f"UPDATE {table.name} AS x SET v = s.n FROM (SELECT v, count(*)::int AS n FROM {other.name} "
        f"GROUP BY v) s WHERE x.v = s.v"
    )


def _delete_using(chance: random.Random, schema: Schema, table: Table) -> str:
    other = chance.choice(schema.tables)
    return f"DELETE FROM {table.name} AS x USING {other.name} o WHERE x.v = o.v AND o.v > {chance.randint(1, 7)}"


def _merge(chance: random.Random, schema: Schema, table: Table) -> str:
    numbers = chance.sample(range(1, 9), 3)
    source = ", ".join(f"({number})" for number in numbers)
    matched = chance.choice(
        ("WHEN MATCHED THEN UPDATE SET t = 'merged'", "WHEN MATCHED THEN DELETE",
         f"WHEN MATCHED AND s.n > {numbers[0]} THEN UPDATE SET v = x.v + 10 WHEN MATCHED THEN DELETE")
    )  # fmt: skip
    values = ", ".join(
        "s.n" if one.name == "v" else f"{literal(chance, one.kind)}::{one.kind.type}"
        for one in (*table.key, table.columns[0])
    )
    insert = f"WHEN NOT MATCHED AND s.n = {numbers[1]} THEN INSERT ({_names([*table.key, table.columns[0]])}) VALUES ({values})"
    return f"MERGE INTO {table.name} AS x USING (VALUES {source}) s (n) ON x.v = s.n {matched} {insert}"


def _cte(chance: random.Random, schema: Schema, table: Table) -> str:
    other = chance.choice([one for one in schema.tables if one is not table] or schema.tables)
    first = chance.choice((_update, _delete, _insert))(chance, schema, table)
    second = chance.choice((_update, _delete, _insert))(chance, schema, other)
    return f"WITH a AS ({first} RETURNING 1), b AS ({second} RETURNING 1) SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)"


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
            f"DO $cur$ DECLARE r record; BEGIN FOR r IN SELECT {table.key[0].name} AS k FROM {table.name} "
            f"LOOP UPDATE {table.name} SET v = coalesce(v, 0) + 1 WHERE {table.key[0].name} = r.k; END LOOP; END $cur$",
        )
    )


# ---- commands --------------------------------------------------------------------------------


def _make_table(chance: random.Random, schema: Schema) -> str:
    name = f"extra{chance.randint(1, 3)}"
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            f"CREATE TABLE {name} (k int PRIMARY KEY, v int, t text)",
            f"CREATE TABLE {name} (k int PRIMARY KEY, v int UNIQUE, t text, c {any_kind(chance).type})",
            f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)",
            f"CREATE TABLE {name} AS SELECT * FROM {table.name}",
            f"CREATE TEMP TABLE temp{name} (k int PRIMARY KEY, v int)",
            f"CREATE TABLE {name} (k int, v int)",
            f"CREATE UNLOGGED TABLE {name} (k int PRIMARY KEY)",
            f"DROP TABLE IF EXISTS {name}",
            f"INSERT INTO {name} (k, v) VALUES ({chance.randint(1, 5)}, {chance.randint(1, 5)})",
            f"UPDATE {name} SET v = v + 1",
        )
    )


def _alter(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    column = chance.choice(table.columns)
    kind = any_kind(chance)
    added = f"a{chance.randint(1, 3)}"
    other = chance.choice(schema.tables)
    act = chance.choice(
        (
            f"ADD COLUMN {added} {kind.type}",
            f"ADD COLUMN {added} {kind.type} DEFAULT {literal(chance, kind)}",
            f"ADD COLUMN {added} int GENERATED ALWAYS AS (v + 1) STORED",
            f"DROP COLUMN {chance.choice((added, column.name))} CASCADE",
            "ALTER v TYPE bigint",
            "ALTER v TYPE bigint USING v * 2",
            "ALTER v TYPE text USING v::text",
            "ALTER t TYPE varchar(4000)",
            f"ALTER {column.name} SET NOT NULL",
            f"ALTER {column.name} DROP NOT NULL",
            f"ALTER v SET DEFAULT {chance.randint(1, 9)}",
            f"RENAME COLUMN {column.name} TO {chance.choice((column.name + 'r', 'writing', 'erasing', 'image'))}",
            f"ADD CONSTRAINT ck CHECK (v < {chance.choice((3, 50, 500))})",
            "ADD CONSTRAINT ck CHECK (v < 50) NOT VALID",
            "VALIDATE CONSTRAINT ck",
            "DROP CONSTRAINT IF EXISTS ck",
            f"DROP CONSTRAINT {table.name}_pkey CASCADE",
            f"ADD PRIMARY KEY ({table.key[0].name})",
            "ADD UNIQUE (v)",
            f"ADD CONSTRAINT fk FOREIGN KEY (v) REFERENCES {other.name} ON DELETE CASCADE",
            f"SET (fillfactor = {chance.choice((50, 100))})",
            "ALTER t SET STORAGE EXTERNAL",
            "ALTER t SET COMPRESSION lz4",
            "DISABLE TRIGGER aa",
            "ENABLE ROW LEVEL SECURITY",
            "REPLICA IDENTITY FULL",
            "SET LOGGED",
            f"RENAME TO {table.name}",
            "CLUSTER ON t0_pkey",
        )
    )
    return f"ALTER TABLE {table.name} {act}"


def _index(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    name = f"ix{chance.randint(1, 3)}"
    return chance.choice(
        (
            f"CREATE UNIQUE INDEX {name} ON {table.name} (v)",
            f"CREATE INDEX {name} ON {table.name} (t, v)",
            f"CREATE UNIQUE INDEX {name} ON {table.name} (v, t) NULLS NOT DISTINCT",
            f"CREATE UNIQUE INDEX {name} ON {table.name} ((t || v::text))",
            f"DROP INDEX IF EXISTS {name}",
            f"ALTER INDEX IF EXISTS {name} RENAME TO {name}r",
            f"REINDEX TABLE {table.name}",
        )
    )


def _partition(chance: random.Random, schema: Schema) -> str:
    parted = [table for table in schema.tables if table.leaves]
    if not parted:
        return _make_table(chance, schema)
    table = chance.choice(parted)
    number = chance.randrange(len(table.leaves))
    leaf, bound = table.leaves[number], table.bounds[number]
    return chance.choice(
        (
            f"ALTER TABLE {table.name} DETACH PARTITION {leaf}",
            f"ALTER TABLE {table.name} ATTACH PARTITION {leaf} {bound}",
            f"ALTER TABLE {table.name} ATTACH PARTITION {leaf} {bound}",
            f"ALTER TABLE {table.name} ATTACH PARTITION extra1 {bound}",
            f"ALTER TABLE {table.name} ATTACH PARTITION loc {bound}",
            f"DROP TABLE {leaf}",
            f"CREATE TABLE {leaf} PARTITION OF {table.name} {bound}",
            f"INSERT INTO {leaf} ({_names(table.written)}) VALUES {_values(chance, table)}",
        )
    )


def _type(chance: random.Random, schema: Schema) -> str:
    return chance.choice(
        (
            f"ALTER TYPE en ADD VALUE IF NOT EXISTS '{chance.choice('efg')}'",
            "ALTER TYPE en RENAME VALUE 'a' TO 'aa'",
            "ALTER TYPE co ADD ATTRIBUTE d int CASCADE",
            "ALTER TYPE co DROP ATTRIBUTE b CASCADE",
            "ALTER TYPE co DROP ATTRIBUTE b, ADD ATTRIBUTE e int",
            "ALTER TYPE co RENAME ATTRIBUTE a TO aa",
            "ALTER DOMAIN dom ADD CONSTRAINT few CHECK (VALUE < 500)",
            "ALTER DOMAIN dom DROP CONSTRAINT few",
            "ALTER DOMAIN dom SET NOT NULL",
            "ALTER DOMAIN dom SET DEFAULT 3",
            "CREATE TYPE more AS ENUM ('x', 'y')",
            "DROP TYPE IF EXISTS more",
            "DROP TYPE co CASCADE",
            "DROP DOMAIN domen CASCADE",
        )
    )


def _view(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            f"CREATE OR REPLACE VIEW vw2 AS SELECT v, t FROM {table.name}",
            "DROP VIEW IF EXISTS vw2",
            f"CREATE OR REPLACE VIEW vw2 AS SELECT v, t FROM {table.name} WHERE v > 1 WITH CHECK OPTION",
            "INSERT INTO vw2 (v, t) VALUES (3, 'view')",
        )
    )


def _materialized(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            "REFRESH MATERIALIZED VIEW mv",
            "REFRESH MATERIALIZED VIEW mv",
            "REFRESH MATERIALIZED VIEW CONCURRENTLY mv",
            f"CREATE MATERIALIZED VIEW mv2 AS SELECT count(*) AS c, max(v) AS v FROM {table.name}",
            "DROP MATERIALIZED VIEW IF EXISTS mv2",
            "REFRESH MATERIALIZED VIEW mv2",
            f"CREATE MATERIALIZED VIEW mv2 AS SELECT v, array_agg(t) AS t FROM {table.name} GROUP BY v",
        )
    )


def _function(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            f"CREATE OR REPLACE FUNCTION fn(i int) RETURNS int LANGUAGE plpgsql AS $f$ BEGIN "
            f"UPDATE {table.name} SET t = 'fn' WHERE v = i; "
            f"EXECUTE 'CREATE TABLE IF NOT EXISTS fn_' || i || ' (id int PRIMARY KEY)'; RETURN i; END $f$",
            f"INSERT INTO told SELECT 100 + g, 'fn', fn(g) FROM generate_series(1, {chance.randint(1, 3)}) g",
            "SELECT fn(2)",
            "DROP FUNCTION IF EXISTS fn",
            "CREATE OR REPLACE PROCEDURE pr() LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO told VALUES (200, 'pr') "
            "ON CONFLICT (id) DO UPDATE SET what = 'again'; COMMIT; UPDATE told SET n = 5; END $f$",
            "CALL pr()",
        )
    )


def _privilege(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            f"GRANT SELECT, INSERT ON {table.name} TO fuzz_bob",
            f"REVOKE ALL ON {table.name} FROM fuzz_bob",
            f"GRANT UPDATE (v) ON {table.name} TO fuzz_bob",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA @schema@ GRANT SELECT ON TABLES TO fuzz_bob",
            f"CREATE POLICY pol ON {table.name} FOR SELECT USING (v > 1)",
            f"DROP POLICY IF EXISTS pol ON {table.name}",
        )
    )


def _drop(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    kind = "VIEW" if table.name.startswith("vw") else "TABLE"
    return f"DROP {kind} {table.name}{chance.choice(('', ' CASCADE'))}"


def _comment(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    return f"COMMENT ON COLUMN {table.name}.v IS 'number {chance.randint(1, 9)}'"


def transaction(chance: random.Random, schema: Schema) -> Iterator[str]:
    """A transaction block; some statements between savepoints, some of those rolled back."""
    level = chance.choice(("", "", " ISOLATION LEVEL REPEATABLE READ"))
    yield f"BEGIN{level}"
    open_points: list[str] = []
    for _ in range(chance.randint(1, 6)):
        draw = chance.random()
        if draw < 0.18:
            open_points.append(f"s{chance.randint(1, 3)}")
            yield f"SAVEPOINT {open_points[-1]}"
        elif draw < 0.32 and open_points:
            yield f"ROLLBACK TO {open_points[-1]}"
        elif draw < 0.36 and open_points:
            yield f"RELEASE {open_points.pop()}"
        yield statement(chance, schema)
        if chance.random() < 0.25:  # the same rows again
            yield rows(chance, schema)
    if open_points and chance.random() < 0.5:
        yield f"ROLLBACK TO {open_points[-1]}"
    yield "ROLLBACK" if chance.random() < 0.05 else "COMMIT"
