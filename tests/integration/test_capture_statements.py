"""Every kind of statement that changes rows reaches the other nodes (C3, C10)."""

from collections.abc import Iterator

import psycopg
import pytest

from .localherd import LocalHerd
from .nodes import Nodes, nodes_of, run, sql_cases, sql_file

STATEMENTS = sql_cases("capture_statements")
ALL = ("item", "parent", "child", "orphan", "fallback", "numbered", "swap", "log", "touched")


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        nodes.create(sql_file("capture_tables"))
        yield nodes


@pytest.fixture
def filled(nodes: Nodes) -> Nodes:
    """The tables with the rows they begin with, on all nodes: their TRUNCATE would end a writer."""
    run(nodes.app[0], sql_file("capture_rows"))
    nodes.settle()
    return nodes


@pytest.mark.family(every=6)
@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_all_nodes_have_what_the_statement_did(filled: Nodes, statement: str) -> None:
    before = filled.equal_rows(*ALL)
    run(filled.app[1], statement)
    assert filled.equal_rows(*ALL) != before


def test_copy_reaches_all_nodes(filled: Nodes) -> None:
    with filled.app[2].cursor().copy("COPY item (id, code, note) FROM STDIN") as copy:
        for number in range(3000):
            copy.write_row((1000 + number, f"k{number}", "\t\\N,\n" * (number % 3)))
    assert len(filled.equal_rows("item")) == 3009


@pytest.mark.long
def test_a_statement_of_100000_rows_reaches_all_nodes(filled: Nodes) -> None:
    run(filled.app[0], "INSERT INTO item SELECT i, 'w' || i FROM generate_series(1000, 100999) i")
    run(filled.app[0], "UPDATE item SET n = n + 1, code = code || 'x' WHERE id % 3 <> 0")
    run(filled.app[0], "DELETE FROM item WHERE id % 2 = 0")
    assert len(filled.equal_rows("item")) == 50005


def test_a_transaction_rolled_back_reaches_no_node(filled: Nodes) -> None:
    before = filled.equal_rows(*ALL)
    run(filled.app[0], "BEGIN; DELETE FROM item; TRUNCATE log; ROLLBACK")
    with pytest.raises(psycopg.errors.UniqueViolation):
        run(filled.app[0], "BEGIN; DELETE FROM child; INSERT INTO parent VALUES (1, 'twice')")
    run(filled.app[0], "ROLLBACK")
    assert filled.equal_rows(*ALL) == before


def test_an_immediate_unique_key_refuses_a_shift_as_plain_postgresql_does(filled: Nodes) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        run(filled.app[0], "UPDATE item SET id = id + 1")
    filled.equal_rows("item")


@pytest.mark.parametrize(
    ("tables", "statement"),
    [
        (
            "CREATE TABLE ra (k int PRIMARY KEY, v text, p int REFERENCES ra ON UPDATE CASCADE);"
            " INSERT INTO ra VALUES (1, 'x', 1), (2, 'y', 3), (3, 'z', 2), (9, 'w', NULL)",
            "UPDATE ra SET k = 4 WHERE k = 1; UPDATE ra SET k = k + 10 WHERE k < 9",
        ),
        (
            "CREATE TABLE ra (k int PRIMARY KEY, v text, p int REFERENCES ra ON UPDATE CASCADE);"
            " INSERT INTO ra VALUES (1, 'x', 1), (2, 'y', 1), (3, 'z', NULL)",
            "UPDATE ra SET k = 4 WHERE k = 1",
        ),
        (
            "CREATE TABLE rb (k int PRIMARY KEY, y int); CREATE TABLE ra (x int PRIMARY KEY"
            " REFERENCES rb ON UPDATE CASCADE); ALTER TABLE rb ADD FOREIGN KEY (y)"
            " REFERENCES ra ON UPDATE CASCADE; INSERT INTO rb VALUES (1), (2);"
            " INSERT INTO ra VALUES (1), (2); UPDATE rb SET y = k",
            "UPDATE rb SET k = k + 10",
        ),
        (
            "CREATE TABLE rb (k int PRIMARY KEY); CREATE TABLE ra (a int PRIMARY KEY REFERENCES"
            " rb ON UPDATE CASCADE, c int REFERENCES rb ON UPDATE CASCADE);"
            " INSERT INTO rb VALUES (1), (2); INSERT INTO ra VALUES (1, 1), (2, 1)",
            "UPDATE rb SET k = 4 WHERE k = 1",
        ),
        (
            "CREATE TABLE rb (k int PRIMARY KEY); CREATE TABLE ra (a int DEFAULT 0 PRIMARY KEY"
            " REFERENCES rb ON DELETE SET DEFAULT, c int REFERENCES rb ON DELETE SET NULL);"
            " INSERT INTO rb VALUES (0), (1); INSERT INTO ra VALUES (1, 1)",
            "DELETE FROM rb WHERE k = 1",
        ),
        (
            "CREATE TABLE ra (k int PRIMARY KEY, p int REFERENCES ra ON UPDATE CASCADE)"
            " PARTITION BY RANGE (k); CREATE TABLE ra1 PARTITION OF ra FOR VALUES FROM (0) TO (10);"
            " CREATE TABLE ra2 PARTITION OF ra DEFAULT;"
            " INSERT INTO ra VALUES (1, 1), (2, 1), (12, 12)",
            "UPDATE ra SET k = 4 WHERE k = 1; UPDATE ra SET k = k + 1 WHERE k > 2",
        ),
    ],
    ids=["itself", "itself-and-others", "cycle", "two-parents", "default", "partitions"],
)
def test_a_row_that_referential_actions_change_again(
    nodes: Nodes, tables: str, statement: str
) -> None:
    """Its key is new by the same statement, whose transition tables hold it twice."""
    run(nodes.app[0], "DROP TABLE IF EXISTS ra, rb CASCADE")
    nodes.settle()
    run(nodes.app[0], tables)
    nodes.settle()
    names = ["ra", *(["rb"] if "rb" in tables else [])]
    before = nodes.equal_rows(*names)
    run(nodes.app[1], statement)
    assert nodes.equal_rows(*names) != before
