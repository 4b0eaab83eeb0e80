"""Every kind of statement that changes rows reaches the other nodes (issue point 1, C3, C10)."""

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
