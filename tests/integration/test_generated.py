"""Generated capture: an example for readers of the SQL; and that it follows commands."""

import os
import re
from pathlib import Path

import pytest

from .localherd import LocalHerd, query
from .members import Connection, assert_generated, caught_up, run

EXAMPLE = Path(__file__).parents[2] / "docs" / "generated.sql"
TABLE = "CREATE TABLE example.account (id int PRIMARY KEY, owner text, balance numeric(12, 2))"
FUNCTIONS = """
SELECT pg_get_functiondef(f) FROM unnest(pgherd.generated_functions('example.account'::regclass)) f
 WHERE f::regproc::text ~ '(final|fingerprint|insert)_' ORDER BY f::regproc::text
"""
HEADING = f"""\
-- pgherd generates this for the following table, by the files 031 to 035 of
-- replication_sidecar/pgherd_sidecar/pg/sql:
--
--     {TABLE};
--
-- The functions for DELETE, TRUNCATE and UPDATE are made like the one for INSERT, and left out.
-- In place of OID there is the table's. PGHERD_TEST_WRITES_EXAMPLE=1 writes this file:
-- pytest tests/integration/test_generated.py
"""


def test_the_example_is_what_is_generated(herd: LocalHerd) -> None:
    query(herd.app_dsn("n1"), "CREATE SCHEMA example")
    try:
        query(herd.app_dsn("n1"), TABLE)
        [(oid,)] = query(herd.dsn("n1"), "SELECT 'example.account'::regclass::oid")
        found = [source for (source,) in query(herd.dsn("n1"), FUNCTIONS)]
    finally:
        query(herd.app_dsn("n1"), "DROP SCHEMA example CASCADE")
    text = HEADING + "".join(f"\n{source.rstrip()};\n" for source in found)
    text = re.sub(rf"(?<=_){oid}\b", "OID", text)
    if os.environ.get("PGHERD_TEST_WRITES_EXAMPLE"):
        EXAMPLE.write_text(text)
    assert EXAMPLE.read_text() == text


TABLES = """
CREATE TYPE mood AS ENUM ('sad');
CREATE TYPE pair AS (a int);
CREATE TABLE parent (id int PRIMARY KEY, u int UNIQUE, n int UNIQUE);
CREATE TABLE child (
    id int PRIMARY KEY, p int REFERENCES parent, n int, t text, w int, x int, v varchar(9) NOT NULL,
    m mood);
CREATE TABLE plain (id int NOT NULL, k text NOT NULL, b int GENERATED ALWAYS AS (id + 1) STORED);
CREATE SEQUENCE numbers;
CREATE FUNCTION does_nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'
"""
#: Each changes what is generated for a table, or for one that a foreign key ties to it.
CHANGES = (
    "ALTER TABLE child ADD FOREIGN KEY (n) REFERENCES parent (n)",
    "ALTER TABLE parent ALTER n TYPE bigint",
    "ALTER INDEX parent_n_key RENAME TO parent_m_key",
    "ALTER TABLE child ADD CONSTRAINT w FOREIGN KEY (w) REFERENCES parent (u) ON UPDATE CASCADE",
    "ALTER TABLE child DROP CONSTRAINT w",
    "ALTER TABLE child ADD CONSTRAINT w FOREIGN KEY (w) REFERENCES child",
    "ALTER TABLE child ADD UNIQUE (x)",
    "ALTER TABLE child ADD CONSTRAINT y UNIQUE (x) DEFERRABLE",
    "ALTER TABLE child ALTER CONSTRAINT w DEFERRABLE",
    "ALTER TABLE child DROP CONSTRAINT y",
    "CREATE INDEX by_text ON child (t)",
    "ALTER TABLE child ALTER t SET COMPRESSION pglz",
    "DROP INDEX by_text",
    "CREATE INDEX by_text ON child USING hash (t)",
    "CREATE UNIQUE INDEX lower ON child (lower(t))",
    "CREATE UNIQUE INDEX partly ON child (w) WHERE x > 0",
    "ALTER TABLE child RENAME x TO z",
    "DROP INDEX partly",
    "ALTER TABLE child ALTER v SET STORAGE PLAIN",
    "ALTER TABLE child ALTER v DROP NOT NULL",
    "ALTER TABLE child ALTER v TYPE varchar(20)",
    'ALTER TABLE child ALTER t TYPE text COLLATE "C"',
    "ALTER TABLE child ADD CHECK (w > 0)",
    "ALTER TABLE child ADD EXCLUDE USING hash (w WITH =)",
    "ALTER TABLE child ADD UNIQUE (m)",
    "ALTER TYPE mood RENAME TO temper",
    "CREATE COLLATION sorted (locale = 'C'); ALTER TABLE child ADD q text COLLATE sorted UNIQUE",
    "CREATE TABLE sorts (id text COLLATE sorted PRIMARY KEY)",
    "ALTER TABLE parent ADD s text REFERENCES sorts",
    "ALTER COLLATION sorted RENAME TO ordered",
    "ALTER TABLE child ADD c pair",
    "ALTER TYPE pair ADD ATTRIBUTE b interval",
    "ALTER TABLE child DROP c",
    "ALTER TABLE child ADD s int GENERATED ALWAYS AS IDENTITY",
    "ALTER SEQUENCE numbers OWNED BY plain.id",
    "CREATE TRIGGER t AFTER INSERT ON plain FOR EACH STATEMENT EXECUTE FUNCTION does_nothing()",
    "DROP TRIGGER t ON plain",
    "CREATE UNIQUE INDEX identity ON plain (k)",
    "ALTER TABLE plain ADD PRIMARY KEY (id)",
    "ALTER TABLE plain ALTER b DROP EXPRESSION",
    "ALTER TABLE plain DROP CONSTRAINT plain_pkey",
    "ALTER TABLE parent RENAME TO elder",
    "ALTER TABLE elder DROP CONSTRAINT parent_pkey CASCADE",
    "CREATE TABLE heir () INHERITS (plain)",
    "DROP TABLE heir",
    "DROP TABLE elder CASCADE",
)
#: Each leaves that as it is, by the tables that it concerns.
OTHERS = {
    "ALTER TABLE parent ADD c int": ["child"],
    "ALTER TABLE child ADD c int": ["parent"],
    "ALTER TABLE child ALTER w SET DEFAULT 3": ["parent", "child"],
    "CREATE INDEX ON child (w)": ["parent", "child"],
    "CREATE TABLE other (id int PRIMARY KEY, p int REFERENCES parent)": ["child"],
}


@pytest.mark.usefixtures("schema_is_everywhere")
async def test_what_is_generated_follows_each_command(admins: list[Connection]) -> None:
    await run(admins[0], TABLES)
    for command in CHANGES:
        await run(admins[0], command)
        await assert_generated(admins[0])
    await caught_up(admins)
    await assert_generated(admins[1])


@pytest.mark.usefixtures("schema_is_everywhere")
@pytest.mark.parametrize("command", OTHERS)
async def test_what_a_command_leaves_as_it_is_is_not_looked_at(
    admins: list[Connection], command: str
) -> None:
    """A look makes a row of pgherd.generated anew, if nothing is remembered of the table."""
    await run(admins[0], TABLES)
    tables = OTHERS[command]
    await run(admins[0], "BEGIN")
    await run(admins[0], "SET LOCAL track_functions = 'all'")
    looked = "SELECT coalesce(pg_stat_get_xact_function_calls('pgherd.table_source'::regproc), 0)"
    await run(admins[0], command)
    [(calls,)] = await run(admins[0], looked)
    await run(admins[0], "ROLLBACK")
    concerned = {"parent", "child"} | ({"other"} if "other" in command else set())
    assert calls == len(concerned) - len(tables)
