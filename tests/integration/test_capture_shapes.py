"""Tables of every shape: partitions, inheritance, odd names, many columns."""

from collections.abc import Iterator

import pytest

from .localherd import LocalHerd
from .nodes import Nodes, nodes_of, run, sql_cases

SHAPES = sql_cases("capture_shapes")
TABLES_OF_SCHEMA = """
SELECT format('ONLY %I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relkind = 'r'
"""  # noqa: E501 - SQL


@pytest.fixture
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        yield nodes


@pytest.mark.family(every=3)
@pytest.mark.parametrize("script", SHAPES.values(), ids=SHAPES)
def test_all_nodes_have_what_was_written(nodes: Nodes, script: str) -> None:
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
