"""A member that differs notices it at the first GID that shows it, before anybody sees the rows.

Differences are made by hand, as a superuser in replica role on one member: nothing of them is
replicated. Each member is rebuilt three times at most here, because a fourth time within an hour
would be left to an administrator. That there is no false alarm, every other test of this folder
says: in its herds every transaction carries a fingerprint.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until

from .localherd import LocalHerd, free_port_base, home, put, query, settle, standing

TABLES = """
CREATE TABLE plain (id int PRIMARY KEY, a text, b text);
INSERT INTO plain SELECT g, 'a', 'b' FROM generate_series(1, 3000) g;
CREATE FUNCTION doubled(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1';
CREATE TABLE computed (k text, l int, v int, w int GENERATED ALWAYS AS (doubled(v)) STORED,
    PRIMARY KEY (k, l));
CREATE TABLE leaves (id int, k text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE leaf_x PARTITION OF leaves FOR VALUES IN ('x');
CREATE TABLE leaf_y PARTITION OF leaves FOR VALUES IN ('y');
CREATE TABLE shaped (id int PRIMARY KEY, v int, t text DEFAULT 'one');
CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1';
"""


@pytest.fixture(scope="module")
def watched(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd whose members may be rebuilt."""
    with standing(LocalHerd(work_directory / "fingerprint", free_port_base())) as herd:
        put(herd, herd.dsn("n1"), TABLES)
        yield herd


def by_hand(herd: LocalHerd, node: str, statements: str) -> None:
    """Change one member only."""
    query(herd.dsn(node), f"SET session_replication_role = replica; {statements}")


def needs(herd: LocalHerd, node: str) -> list[str]:
    """Why a member's database had to be rebuilt, each time."""
    log = home(herd) / node / "sidecar.log"
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [event["reason"] for event in events if event["event"] == "node.needs_rebuild"]


@contextlib.contextmanager
def noticed(herd: LocalHerd, node: str, *words: str, row: str = "") -> Iterator[None]:
    """The next commit is refused by one member, which says all of this, and is then a copy."""
    others = [one.name for one in herd.nodes() if one.name != node]
    known = len(needs(herd, node)), [len(needs(herd, other)) for other in others]
    yield
    gid = query(herd.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
    found = wait_until(
        lambda: needs(herd, node),
        lambda found: len(found) != known[0],
        told=lambda: f"{node} has not noticed",
    )
    for word in (f"GID {gid}", *words):
        assert word in found[-1]
    wait_until(
        lambda: herd.member(node)["state"],
        lambda seen: seen == "primary",
        told=lambda: f"{node} is not rebuilt",
    )
    settle(herd)
    assert (len(needs(herd, node)), [len(needs(herd, other)) for other in others]) == (
        known[0] + 1,
        known[1],
    )
    incident = herd.member(node)["incidents"][-1]
    assert (incident["gid"], incident["sqlstate"], incident["row"]) == (gid, "PH003", row)


def rows(herd: LocalHerd, table: str) -> list[list[tuple[Any, ...]]]:
    """What each member shows."""
    return [query(one.dsn, f"SELECT tableoid::regclass::text, t.* FROM {table} t ORDER BY 2, 3")
            for one in herd.nodes()]  # fmt: skip


def assert_same(herd: LocalHerd, table: str) -> None:
    settle(herd)
    found = rows(herd, table)
    assert found[0] == found[1] == found[2]


_expected = pytest.mark.expects_trouble("DivergedError", reason="one member is changed by hand")


@_expected
def test_a_row_that_differs_is_noticed_when_another_column_of_it_changes(
    watched: LocalHerd,
) -> None:
    by_hand(watched, "n2", "UPDATE plain SET b = 'other' WHERE id = 7")
    query(watched.dsn("n1"), "UPDATE plain SET a = 'x' WHERE id = 8")
    with noticed(watched, "n2", "table public.plain: a row is not the same", row="id = 7"):
        query(watched.dsn("n1"), "UPDATE plain SET a = 'x' WHERE id IN (6, 7)")
    assert_same(watched, "plain")


@pytest.mark.long
@_expected
def test_of_very_many_rows_the_table_is_named(watched: LocalHerd) -> None:
    by_hand(watched, "n2", "UPDATE plain SET b = 'other' WHERE id = 2000")
    with noticed(watched, "n2", "table public.plain: one of 3000 rows"):
        query(watched.dsn("n1"), "UPDATE plain SET a = 'y'")
    assert_same(watched, "plain")


@pytest.mark.long
@_expected
def test_a_generated_column_that_is_computed_otherwise_is_noticed(watched: LocalHerd) -> None:
    by_hand(
        watched,
        "n2",
        "CREATE OR REPLACE FUNCTION doubled(int) RETURNS int LANGUAGE sql IMMUTABLE"
        " AS 'SELECT 3 * $1'",
    )
    with noticed(watched, "n2", "table public.computed: a row is", row="k = a b, l = 1"):
        query(watched.dsn("n1"), "INSERT INTO computed VALUES ('a b', 1, 5)")
    assert_same(watched, "computed")


@pytest.mark.long
@_expected
def test_a_row_in_another_partition_is_noticed(watched: LocalHerd) -> None:
    by_hand(
        watched,
        "n3",
        "ALTER TABLE leaf_x RENAME TO leaf_z; ALTER TABLE leaf_y RENAME TO leaf_x;"
        "ALTER TABLE leaf_z RENAME TO leaf_y",
    )
    with noticed(watched, "n3", "table public.leaves: a row is", row="id = 1, k = x"):
        query(watched.dsn("n1"), "INSERT INTO leaves VALUES (1, 'x')")
    assert_same(watched, "leaves")


@_expected
def test_a_column_that_differs_is_noticed_by_the_next_command(watched: LocalHerd) -> None:
    by_hand(watched, "n3", "ALTER TABLE shaped ALTER t SET NOT NULL")
    with noticed(watched, "n3", "relation public.shaped", "its columns here"):
        query(watched.dsn("n1"), "ALTER TABLE shaped ADD COLUMN u int")


@pytest.mark.long
@_expected
def test_a_default_that_is_read_otherwise_is_noticed(watched: LocalHerd) -> None:
    by_hand(
        watched,
        "n3",
        "CREATE SCHEMA nearer; CREATE FUNCTION nearer.one() RETURNS int LANGUAGE sql AS 'SELECT 2'",
    )
    with noticed(watched, "n3", "relation public.shaped", "columns v", "nearer.one()"):
        query(
            watched.dsn("n1"),
            "SET search_path = nearer, public; ALTER TABLE shaped ALTER v SET DEFAULT one()",
        )


@pytest.fixture
def alone(watched: LocalHerd) -> Iterator[psycopg.Connection[Any]]:
    """A superuser in replica role, in a transaction that is rolled back."""
    with psycopg.connect(watched.dsn("n1")) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET search_path = public")
        yield connection
        connection.rollback()


MADE = """
CREATE ROLE somebody;
CREATE TYPE kind AS ENUM ('a', 'b');
CREATE DOMAIN few AS int DEFAULT 3 CHECK (VALUE < 10);
CREATE TYPE pair AS (a int, b text);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE FUNCTION f(a int, b int DEFAULT 4) RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT a + b; END;
CREATE FUNCTION tf() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE t (id int PRIMARY KEY, v varchar(9) DEFAULT 'x', w text,
    g int GENERATED ALWAYS AS (id * 2) STORED, p int REFERENCES parent, y text,
    CONSTRAINT small CHECK (id < 100), UNIQUE (w));
CREATE INDEX i ON t (lower(w)) WHERE id > 3;
CREATE TRIGGER tr BEFORE UPDATE ON t FOR EACH ROW WHEN (OLD.w <> NEW.w) EXECUTE FUNCTION tf();
CREATE POLICY po ON t USING (id > 1);
CREATE RULE ru AS ON DELETE TO t WHERE OLD.id = 5 DO INSTEAD NOTHING;
CREATE STATISTICS st ON id, w FROM t;
CREATE VIEW v AS SELECT id FROM t;
CREATE SEQUENCE s OWNED BY t.id;
CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (1) TO (5);
CREATE SCHEMA sch;
"""
#: What is changed, and the aspect that tells.
CHANGES = {
    "ALTER TABLE t ADD COLUMN secret int": "relation t columns",
    "ALTER TABLE t ALTER v TYPE varchar(8)": "relation t columns",
    "ALTER TABLE t ALTER v SET DEFAULT 'y'": "relation t columns v",
    "ALTER TABLE t ALTER v DROP DEFAULT": "relation t columns",
    "ALTER TABLE t ALTER w SET NOT NULL": "relation t columns",
    "ALTER TABLE t ALTER y TYPE text COLLATE \"C\"": "relation t columns",
    "ALTER TABLE t ALTER w SET STORAGE EXTERNAL": "relation t columns",
    "ALTER TABLE t ALTER w SET STATISTICS 7": "relation t columns",
    "ALTER TABLE t ALTER g DROP EXPRESSION": "relation t columns",
    "ALTER TABLE t RENAME w TO x": "relation t columns",
    "ALTER TABLE t DROP CONSTRAINT small; ALTER TABLE t ADD CONSTRAINT small CHECK (id < 101)":
        "relation t constraints small",
    "ALTER TABLE t DROP CONSTRAINT small": "relation t constraints",
    "ALTER TABLE t DROP CONSTRAINT t_p_fkey;"
    " ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent ON DELETE CASCADE":
        "relation t constraints",
    "DROP INDEX i": "relation t indexes",
    "DROP INDEX i; CREATE INDEX i ON t (lower(w)) WHERE id > 4": "relation t indexes public.i",
    "DROP INDEX i; CREATE INDEX i ON t USING hash (lower(w)) WHERE id > 3": "relation t indexes",
    "ALTER TABLE t DISABLE TRIGGER tr": "relation t triggers",
    "DROP TRIGGER tr ON t;"
    " CREATE TRIGGER tr BEFORE UPDATE ON t FOR EACH ROW WHEN (OLD.w < NEW.w) EXECUTE FUNCTION tf()":
        "relation t triggers tr",
    "ALTER POLICY po ON t USING (id > 2)": "relation t policies po",
    "ALTER POLICY po ON t TO somebody": "relation t policies",
    "ALTER TABLE t ENABLE ROW LEVEL SECURITY": "relation t relation",
    "ALTER TABLE t OWNER TO somebody": "relation s relation",
    "ALTER TABLE t SET (fillfactor = 50)": "relation t relation",
    "ALTER TABLE t REPLICA IDENTITY FULL": "relation t relation",
    "DROP RULE ru ON t": "relation t rules",
    "DROP STATISTICS st": "relation t statistics",
    "GRANT SELECT ON t TO somebody": "relation t privileges",
    "GRANT SELECT (id) ON t TO PUBLIC": "relation t privileges",
    "CREATE OR REPLACE VIEW v AS SELECT id FROM t WHERE id > 0": "relation v rules _RETURN",
    "ALTER SEQUENCE s MAXVALUE 1000": "relation s sequence",
    "ALTER SEQUENCE s OWNED BY NONE": "relation s sequence",
    "ALTER TABLE r DETACH PARTITION r1;"
    " ALTER TABLE r ATTACH PARTITION r1 FOR VALUES FROM (1) TO (6)": "relation r1 relation",
    "ALTER TABLE r DETACH PARTITION r1": "relation r1",
    "DROP VIEW v": "relation v",
    "ALTER TYPE kind RENAME VALUE 'a' TO 'c'": "type kind type",
    "ALTER DOMAIN few SET DEFAULT 4": "type few type",
    "ALTER DOMAIN few SET NOT NULL": "type few type",
    "ALTER DOMAIN few DROP CONSTRAINT few_check": "type few constraints",
    "ALTER TYPE pair ADD ATTRIBUTE c int": "type pair attributes",
    "ALTER FUNCTION f(int, int) STABLE": "function f(integer,integer) function",
    "CREATE OR REPLACE FUNCTION f(a int, b int DEFAULT 4) RETURNS int LANGUAGE sql"
    " BEGIN ATOMIC SELECT a - b; END": "function f(integer,integer) function",
    "CREATE OR REPLACE FUNCTION f(a int, b int DEFAULT 5) RETURNS int LANGUAGE sql"
    " BEGIN ATOMIC SELECT a + b; END": "function f(integer,integer) function",
    "GRANT EXECUTE ON FUNCTION f(int, int) TO somebody": "function f(integer,integer) function",
    "ALTER SCHEMA sch OWNER TO somebody": "schema sch schema",
    "GRANT USAGE ON SCHEMA sch TO somebody": "schema sch schema",
}  # fmt: skip
PRINT = """
SELECT jsonb_build_object('version', current_setting('server_version_num'),
                          'objects', h.objects, 'words', h.words)
  FROM pgherd.catalog_hashes('{t,v,s,r,r1}'::regclass[]::oid[], '{f}'::regproc[]::oid[],
                             '{kind,few,pair,span}'::regtype[]::oid[],
                             '{sch}'::regnamespace[]::oid[], 'own') h
"""


@pytest.mark.parametrize("change", CHANGES)
def test_a_print_tells_every_change_of_an_object(
    alone: psycopg.Connection[Any], change: str
) -> None:
    alone.execute(MADE)
    print_ = json.dumps(alone.execute(PRINT).fetchone()[0])  # type: ignore[index]
    alone.execute("SELECT pgherd.check_command_print(%s)", (print_,))
    alone.execute(change.encode())
    with pytest.raises(psycopg.Error) as caught:
        alone.execute("SELECT pgherd.check_command_print(%s)", (print_,))
    assert caught.value.sqlstate == "PH003"
    kind, name, *aspect = CHANGES[change].split(" ")
    qualified = name if kind == "schema" else f"public.{name}"
    assert str(caught.value).startswith(f"{kind} {qualified} is not")
    assert f"its {' '.join(aspect)}" in str(caught.value)


def test_what_a_dump_says_otherwise_is_the_same_print(alone: psycopg.Connection[Any]) -> None:
    """Explicit privileges that are the default, and where a partition's columns come from."""
    alone.execute(MADE)
    print_ = json.dumps(alone.execute(PRINT).fetchone()[0])  # type: ignore[index]
    alone.execute("GRANT SELECT ON t TO somebody; REVOKE SELECT ON t FROM somebody")
    alone.execute(
        "DROP TABLE r1; CREATE TABLE r1 (id int NOT NULL PRIMARY KEY);"
        "ALTER TABLE r ATTACH PARTITION r1 FOR VALUES FROM (1) TO (5)"
    )
    alone.execute("SELECT pgherd.check_command_print(%s)", (print_,))
