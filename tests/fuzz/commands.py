"""Random DDL over the tables of a schema; some rows of what it makes."""

import random

from fuzz.rows import names, values
from fuzz.schemas import Schema
from fuzz.types import any_kind, literal

_ODD_NAMES = ("renamed", "writing", "erasing", "image")


def command(chance: random.Random, schema: Schema) -> str:
    """DDL of any form."""
    forms = (
        (8, _make_table), (10, _alter), (5, _index), (6, _partition), (5, _type), (3, _view),
        (3, _materialized), (3, _function), (2, _privilege), (2, _drop), (2, _comment),
    )  # fmt: skip
    (draw,) = chance.choices([form for _, form in forms], [weight for weight, _ in forms])
    return draw(chance, schema)


def _make_table(chance: random.Random, schema: Schema) -> str:
    name = f"extra{chance.randint(1, 3)}"
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            f"CREATE TABLE {name} (k int PRIMARY KEY, v int, t text)",
            f"CREATE TABLE {name} (k int PRIMARY KEY, v int UNIQUE, c {any_kind(chance).type})",
            f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)",
            f"CREATE TABLE {name} AS SELECT * FROM {table.name}",
            f"CREATE TEMP TABLE temp{name} (k int PRIMARY KEY, v int)",
            f"CREATE TEMP TABLE temp{name} () INHERITS ({table.name})",
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
            f"RENAME COLUMN {column.name} TO {chance.choice(_ODD_NAMES)}",
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
            f"CREATE INDEX CONCURRENTLY {name} ON {table.name} (t)",
            f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON {table.name} ({names([*table.key])})",
            f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
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
            f"DO $part$ BEGIN INSERT INTO {table.name} ({names(table.written)}) VALUES"
            f" {values(chance, table)}; ALTER TABLE {table.name} DETACH PARTITION {leaf};"
            f" UPDATE {leaf} SET v = v + 1;"
            f" ALTER TABLE {table.name} ATTACH PARTITION {leaf} {bound};"
            f" DELETE FROM {table.name} WHERE v = 3; END $part$",
            f"INSERT INTO {leaf} ({names(table.written)}) VALUES {values(chance, table)}",
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
            f"CREATE OR REPLACE VIEW vw2 AS SELECT v, t FROM {table.name} WHERE v > 1 "
            "WITH CHECK OPTION",
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
            f"CREATE MATERIALIZED VIEW mv2 AS SELECT sum(v::float8) FROM {table.name}",
            "REFRESH MATERIALIZED VIEW mv2",
            "CREATE MATERIALIZED VIEW mv2 AS "
            f"SELECT v, array_agg(t) AS t FROM {table.name} GROUP BY v",
        )
    )


def _function(chance: random.Random, schema: Schema) -> str:
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            "CREATE OR REPLACE FUNCTION fn(i int) RETURNS int LANGUAGE plpgsql AS $f$ BEGIN "
            f"UPDATE {table.name} SET t = 'fn' WHERE v = i; "
            "EXECUTE 'CREATE TABLE IF NOT EXISTS fn_' || i || ' (id int PRIMARY KEY)'; "
            "RETURN i; END $f$",
            "INSERT INTO told SELECT 100 + g, 'fn', fn(g) "
            f"FROM generate_series(1, {chance.randint(1, 3)}) g",
            "SELECT fn(2)",
            "DROP FUNCTION IF EXISTS fn",
            "CREATE OR REPLACE PROCEDURE pr() LANGUAGE plpgsql AS $f$ BEGIN "
            "INSERT INTO told VALUES (200, 'pr') ON CONFLICT (id) DO UPDATE SET what = 'again'; "
            "COMMIT; UPDATE told SET n = 5; END $f$",
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
