"""The fuzzer's comparison of members finds whatever differs, and nothing where nothing does."""

from collections.abc import Iterator

import psycopg
import pytest
from fuzz import compare

from .localherd import LocalHerd, settle
from .nodes import Connection, nodes_of, run

_MADE = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE t (id int, m mood, p int REFERENCES parent, g int GENERATED ALWAYS AS (id * 2) STORED,
                seq_n serial, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE t_1 PARTITION OF t DEFAULT;
CREATE TABLE kept (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW seen AS SELECT count(*) AS c FROM t;
CREATE VIEW vw AS SELECT * FROM t;
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1';
INSERT INTO parent VALUES (1);
INSERT INTO t (id, m, p) VALUES (1, 'sad', 1), (20, 'happy', NULL);
"""
_PLANTED = {
    "row": ("DELETE FROM t WHERE id = 20", "t_1 |  | (20,"),
    "value": ("UPDATE t SET m = 'happy' WHERE id = 1", "t_0 |  | (1,happy"),
    "leaf": (
        "ALTER TABLE t DETACH PARTITION t_1; INSERT INTO t_1 (id) VALUES (2)",
        "t_1 |  | (2,",
    ),
    "materialized view": ("REFRESH MATERIALIZED VIEW seen", "seen |  | ("),
    "label": ("ALTER TYPE mood ADD VALUE 'angry'", "type | mood"),
    "attribute": ("ALTER TYPE pair ADD ATTRIBUTE c int", "column | pair.c"),
    "constraint": ("ALTER TABLE t ADD CHECK (id < 1000)", "constraint | t"),
    "index": ("CREATE INDEX ON t_0 (m)", "index | t_0_m_idx"),
    "owner": ("ALTER TABLE kept OWNER TO postgres", "relation | kept"),
    "privilege": ("GRANT SELECT ON kept TO PUBLIC", "relation | kept"),
    "comment": ("COMMENT ON COLUMN kept.id IS 'x'", "column | kept.id"),
    "function": ("CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 2'", "f()"),
    "view": ("CREATE OR REPLACE VIEW vw AS SELECT * FROM t WHERE id > 0", "rule | vw._RETURN"),
    "policy": ("CREATE POLICY po ON kept", "policy | kept.po"),
}


@pytest.fixture(scope="module")
def looks(herd: LocalHerd) -> Iterator[tuple[str, list[Connection]]]:
    """A schema, and a prepared superuser's session on each member."""
    with nodes_of(herd) as nodes:
        run(nodes.app[0], _MADE)
        run(nodes.app[0], "SELECT pgherd.set_local('kept')")
        settle(herd)
        run(nodes.app[1], "INSERT INTO kept VALUES (7)")
        for connection in nodes.admin:
            compare.prepare(connection)
        yield nodes.schema, nodes.admin


def difference(looks: tuple[str, list[Connection]], *, portable: bool = False) -> str:
    """How the first two members differ."""
    schema, (one, other, _) = looks
    local = compare.local_tables(one, schema)
    states = [compare.state(each, schema, local, portable=portable) for each in (one, other)]
    return compare.difference(states[0], states[1], ("n1", "n2"))


def test_members_are_the_same_also_beside_rows_of_a_local_table(
    looks: tuple[str, list[Connection]],
) -> None:
    assert difference(looks) == ""
    assert compare.orphans(looks[1][0], looks[0], ["kept"]) == ""


@pytest.mark.parametrize(("statement", "told"), _PLANTED.values(), ids=list(_PLANTED))
def test_a_planted_difference_is_told(
    looks: tuple[str, list[Connection]], statement: str, told: str
) -> None:
    schema, (_, other, _) = looks
    other.execute("BEGIN")
    try:
        other.execute(
            "SET LOCAL session_replication_role = replica; SET LOCAL search_path = "
            f"{schema}, pg_catalog".encode()
        )
        if "REFRESH" in statement:
            other.execute(b"INSERT INTO t (id) VALUES (5)")
        for one in statement.split("; "):
            other.execute(one.encode())
        other.execute(b"SET LOCAL search_path = pg_catalog")
        assert told in difference(looks)
    finally:
        other.execute("ROLLBACK")
    assert difference(looks) == ""


def test_numbers_that_members_deal_out_count_between_members_only(
    looks: tuple[str, list[Connection]],
) -> None:
    schema, (_, other, _) = looks
    other.execute("BEGIN; SET LOCAL session_replication_role = replica")
    other.execute(f"UPDATE {schema}.t SET seq_n = seq_n + 1".encode())
    assert "t_0" in difference(looks)
    assert difference(looks, portable=True) == ""
    other.execute("ROLLBACK")


def test_an_orphan_is_told(looks: tuple[str, list[Connection]]) -> None:
    schema, (_, other, _) = looks
    other.execute("BEGIN; SET LOCAL session_replication_role = replica")
    other.execute(f"DELETE FROM {schema}.parent".encode())
    assert "parent" in compare.orphans(other, schema, [])
    other.execute("ROLLBACK")


def test_a_look_survives_whatever_a_role_has_set(
    looks: tuple[str, list[Connection]], herd: LocalHerd
) -> None:
    schema, (one, *_) = looks
    odd = "-c DateStyle=German -c extra_float_digits=0 -c search_path=nowhere"
    with psycopg.connect(herd.nodes()[0].dsn, autocommit=True, options=odd) as connection:
        compare.prepare(connection)
        assert compare.state(connection, schema, []) == compare.state(one, schema, [])
