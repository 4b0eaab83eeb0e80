"""Tables of every shape: partitions, inheritance, odd names, many columns."""

import psycopg
import pytest

from .nodes import Nodes, once, run, sql_cases

SHAPES = sql_cases("capture_shapes")
TABLES_OF_SCHEMA = """
SELECT format('ONLY %I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relkind = 'r'
"""  # noqa: E501 - SQL


PARTED = """
CREATE TABLE b (id int, k int, v int{key}) PARTITION BY LIST (k);
CREATE TABLE b1 PARTITION OF b FOR VALUES IN (1); CREATE TABLE b2 PARTITION OF b FOR VALUES IN (2);
CREATE FUNCTION vanish() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER vanish BEFORE INSERT ON b2 FOR EACH ROW EXECUTE FUNCTION vanish();
INSERT INTO b VALUES (1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4)"""
TOUCHED = {
    "a generated column in the key": """
CREATE TABLE g (a int, b int GENERATED ALWAYS AS (a / 10) STORED, v int, PRIMARY KEY (a, b));
CREATE TABLE h (id int PRIMARY KEY, v int); INSERT INTO h VALUES (1, 0)
----
BEGIN; INSERT INTO g (a, v) VALUES (20, 1); UPDATE h SET v = 1; UPDATE h SET v = 2; COMMIT
----
BEGIN; INSERT INTO g (a, v) VALUES (30, 1); UPDATE g SET v = 2 WHERE a = 30; COMMIT
----
BEGIN; UPDATE g SET v = 3; DELETE FROM g WHERE a = 20; INSERT INTO g (a, v) VALUES (20, 7); COMMIT
----
UPDATE g SET a = a + 100""",
    "a row that vanishes on its way to another partition": f"""
{PARTED.format(key=", PRIMARY KEY (id, k)")}
----
UPDATE b SET k = 2 WHERE id = 1
----
UPDATE b SET v = 9, k = CASE id WHEN 2 THEN 2 ELSE 1 END WHERE id IN (2, 3)
----
BEGIN; UPDATE b SET k = 2 WHERE id = 4; UPDATE b SET v = 10; COMMIT""",
    "an index that has gone, and its collation": """
CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE t (id int PRIMARY KEY, name text); CREATE UNIQUE INDEX tn ON t (name COLLATE ci);
DROP INDEX tn; DROP COLLATION ci
----
INSERT INTO t VALUES (1, 'a')""",
    "a unique index of an expression on one partition": """
CREATE TABLE ev (id int, kind text, load text, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);
CREATE TABLE ev_n PARTITION OF ev FOR VALUES IN ('n');
CREATE TABLE ev_t PARTITION OF ev FOR VALUES IN ('t'); CREATE UNIQUE INDEX ON ev_n ((load::int))
----
INSERT INTO ev VALUES (1, 't', 'abc'), (2, 'n', '7')""",
    "a key of elements that have no hash": """
CREATE TABLE f (k bit(4)[] PRIMARY KEY, v int, c varchar[] UNIQUE)
----
INSERT INTO f VALUES ('{0101}', 1, '{a}')
----
UPDATE f SET v = 2""",
    "a partial unique index of an expression": """
CREATE TABLE ev (id int PRIMARY KEY, kind text, d jsonb);
CREATE UNIQUE INDEX ON ev (((d ->> 'n')::int)) WHERE kind = 'x'
----
INSERT INTO ev VALUES (1, 'y', '{"n": "abc"}'), (2, 'x', '{"n": "5"}')
----
INSERT INTO ev VALUES (3, 'y', '{"n": "def"}')
----
UPDATE ev SET kind = 'z', d = '{"n": "none"}' WHERE id = 2
----
DELETE FROM ev WHERE id = 1""",
}


@pytest.mark.family(every=3)
@pytest.mark.parametrize("script", SHAPES.values(), ids=SHAPES)
def test_all_nodes_have_what_was_written(nodes: Nodes, script: str) -> None:
    _write(nodes, script)


@pytest.mark.parametrize("script", TOUCHED.values(), ids=TOUCHED)
def test_no_row_is_lost_that_a_transaction_touches(nodes: Nodes, script: str) -> None:
    _write(nodes, script)


def test_a_row_without_key_does_not_vanish_on_its_way_to_another_partition(nodes: Nodes) -> None:
    run(nodes.app[0], PARTED.format(key=""))
    nodes.settle()
    for statement in ("UPDATE b SET k = 2 WHERE id = 1", "UPDATE b SET k = 1 + id % 2"):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="lets vanish"):
            run(nodes.app[0], statement)
    run(nodes.app[0], "UPDATE b SET v = 0")
    assert len(nodes.equal_rows("b")) == 4


def test_a_partial_unique_index_of_an_expression_excludes_what_it_holds(nodes: Nodes) -> None:
    nodes.create(
        "CREATE TABLE ev (id int PRIMARY KEY, kind text, d jsonb);"
        "CREATE UNIQUE INDEX ON ev (((d ->> 'n')::int)) WHERE kind = 'x'"
    )
    for number in (0, 1):
        insert = f"INSERT INTO ev VALUES ({number}, 'x', '{{\"n\": 7}}')"
        run(nodes.app[number], f"BEGIN; {insert}")
    run(nodes.app[0], "COMMIT")
    with pytest.raises(psycopg.errors.SerializationFailure):
        once(nodes.app[1], "COMMIT")
    assert len(nodes.equal_rows("ev")) == 1


PARENTS = {
    "its own equals": (
        "CREATE TABLE par (k text PRIMARY KEY);"
        "CREATE TABLE chi (id int PRIMARY KEY, k text COLLATE ci REFERENCES par)",
        "a",
    ),
    "the parent's equals": (
        'CREATE TABLE par (k text COLLATE ci); CREATE UNIQUE INDEX u ON par (k COLLATE "C");'
        "ALTER TABLE par ADD PRIMARY KEY (k);"
        'CREATE TABLE chi (id int PRIMARY KEY, k text COLLATE "C" REFERENCES par)',
        "A",
    ),
}


@pytest.mark.parametrize(("tables", "key"), PARENTS.values(), ids=PARENTS)
def test_a_child_of_another_collation_excludes_the_end_of_its_parent(
    nodes: Nodes, tables: str, key: str
) -> None:
    options = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
    nodes.create(f"CREATE COLLATION ci ({options}); {tables}")
    run(nodes.app[0], "INSERT INTO par VALUES ('a')")
    nodes.settle()
    run(nodes.app[0], f"BEGIN; INSERT INTO chi VALUES (1, '{key}')")
    run(nodes.app[1], "BEGIN; DELETE FROM par")
    run(nodes.app[0], "COMMIT")
    with pytest.raises(psycopg.errors.SerializationFailure):
        once(nodes.app[1], "COMMIT")
    nodes.equal_rows("par", "chi")


def _write(nodes: Nodes, script: str) -> None:
    """Execute on the first node what each time changes rows, and compare the nodes after each."""
    before: list[str] = []
    for number, statements in enumerate(script.split("\n----\n")):
        run(nodes.app[0], statements)
        nodes.settle()
        tables = [row[0] for row in run(nodes.admin[0], TABLES_OF_SCHEMA)]
        rows = nodes.equal_rows(*tables)
        assert number == 0 or statements.startswith("ALTER") or rows != before, statements
        before = rows


def test_a_table_of_500_columns(nodes: Nodes) -> None:
    columns = ", ".join(f"c{number} int" for number in range(498))
    nodes.create(f"CREATE TABLE wide (id int PRIMARY KEY, {columns}, last text UNIQUE)")
    run(nodes.app[1], "INSERT INTO wide (id, c7, last) SELECT i, i, 'x' || i"
        " FROM generate_series(1, 50) i")  # fmt: skip
    run(nodes.app[1], "UPDATE wide SET c0 = 1, c497 = id WHERE id < 20")
    run(nodes.app[1], "UPDATE wide SET c100 = 1 WHERE id = 3")
    run(nodes.app[1], "BEGIN; UPDATE wide SET c1 = 1; UPDATE wide SET last = 'y' || id; COMMIT")
    run(nodes.app[1], "DELETE FROM wide WHERE id = 50")
    assert len(nodes.equal_rows("wide")) == 49


@pytest.mark.parametrize("second", ["", "; UPDATE doc SET n = n + 1"], ids=["once", "twice"])
def test_an_unchanged_large_value_is_not_sent_again(nodes: Nodes, second: str) -> None:
    nodes.create("CREATE TABLE doc (id int PRIMARY KEY, n int, body text)")
    nodes.create("ALTER TABLE doc ALTER body SET STORAGE EXTERNAL")
    run(nodes.app[0], "INSERT INTO doc VALUES (1, 0, repeat('0123456789', 100000))")
    before = log_bytes(nodes)
    run(nodes.app[0], f"BEGIN; UPDATE doc SET n = n + 1{second}; COMMIT")
    assert log_bytes(nodes) - before < 10_000
    nodes.equal_rows("doc")


def log_bytes(nodes: Nodes) -> int:
    """Bytes of all that was captured on the first node, as it travels."""
    [(size,)] = run(
        nodes.admin[0],
        "SELECT coalesce(sum(length(c.recs::text)), 0) FROM"
        " (SELECT recs FROM pgherd.capture_0 UNION ALL SELECT recs FROM pgherd.capture_1) c",
    )
    assert isinstance(size, int)
    return size
