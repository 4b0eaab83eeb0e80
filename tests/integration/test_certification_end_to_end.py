"""Conflicts between nodes are found at COMMIT, exactly, at both isolation levels (C7, C15, C16).

Two transactions on two nodes have done all their statements before either commits. One commits;
the other is told 40001 if and only if it must not commit after it.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
import pytest
from patience import wait_until

from .localherd import LocalHerd
from .nodes import Nodes, nobody_stops, nodes_of, once, run

TABLES = """
CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL, name text UNIQUE);
CREATE TABLE owner (id int PRIMARY KEY, name text, code int UNIQUE);
CREATE TABLE car (id int PRIMARY KEY, owner int REFERENCES owner, code int REFERENCES owner (code));
CREATE TABLE booking (id int PRIMARY KEY, during int4range, EXCLUDE USING gist (during WITH &&));
CREATE TABLE fold (id int PRIMARY KEY, n numeric UNIQUE, t text);
CREATE UNIQUE INDEX ON fold (lower(t));
CREATE TABLE handed (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE covered (id int PRIMARY KEY, balance int);
CREATE UNIQUE INDEX ON covered (id) INCLUDE (balance);
CREATE UNIQUE INDEX ON covered (abs(id)) INCLUDE (balance) WHERE id > 0;
CREATE TABLE entry (id int PRIMARY KEY, covered int REFERENCES covered);
"""
ROWS = """
TRUNCATE account, owner, car, booking, fold, handed, covered, entry;
INSERT INTO account VALUES (1, 100, 'a'), (2, 100, 'b');
INSERT INTO owner VALUES (1, 'one', 10), (2, 'two', 20);
INSERT INTO car VALUES (1, 1, NULL);
INSERT INTO booking VALUES (1, '[1,10)');
INSERT INTO fold VALUES (1, 1.0, 'Ab');
INSERT INTO handed VALUES (1, 1), (2, 2);
INSERT INTO covered VALUES (1, 100);
"""
HESITANT = """
CREATE OR REPLACE FUNCTION hesitate() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END';
CREATE TRIGGER hesitates AFTER UPDATE OR DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION hesitate();
"""
#: A statement with this and `FROM gate` reads its rows first, and changes them once it may.
GATE = "WITH gate AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(4711)) "
WAITING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
LOST = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.AdminShutdown,
    psycopg.errors.ForeignKeyViolation,
)
ORPHANS = "SELECT count(*) FROM child WHERE parent NOT IN (SELECT id FROM parent)"
_CHILD = "CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent {0})"
SHAPES = {
    "a table": "CREATE TABLE parent (id int PRIMARY KEY); " + _CHILD.format(""),
    "cascades": "CREATE TABLE parent (id int PRIMARY KEY); "
    + _CHILD.format("ON DELETE CASCADE ON UPDATE CASCADE"),
    "partitions": "CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY HASH (id);"
    "CREATE TABLE part_0 PARTITION OF parent FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
    "CREATE TABLE part_1 PARTITION OF parent FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
    + _CHILD.format(""),
}
LATE = {
    "a table": "CREATE TABLE late (id int PRIMARY KEY, u int UNIQUE DEFERRABLE)",
    "a key": "CREATE TABLE late (id int, u int PRIMARY KEY DEFERRABLE)",
    "without a key": "CREATE TABLE late (id int, u int, UNIQUE (u) DEFERRABLE)",
    "exclusion": "CREATE TABLE late (id int, u int, EXCLUDE (u WITH =) DEFERRABLE)",
    "partitions": "CREATE TABLE late (id int, u int UNIQUE DEFERRABLE) PARTITION BY LIST (u);"
    "CREATE TABLE late_part PARTITION OF late DEFAULT",
    "a child": "CREATE TABLE late (id int, u int);"
    "CREATE TABLE late_child (UNIQUE (u) DEFERRABLE) INHERITS (late)",
}
ALL = ("account", "owner", "car", "booking", "fold", "handed", "covered", "entry")
LEVELS = ("READ COMMITTED", "REPEATABLE READ")


class Pair(NamedTuple):
    """What the winner does, what the other does."""

    winner: str
    other: str


CONFLICTS = {
    "lost update": Pair(
        "UPDATE account SET balance = balance + 1 WHERE id = 1",
        "UPDATE account SET balance = balance + 10 WHERE id = 1",
    ),
    "update of a row that was deleted": Pair(
        "DELETE FROM account WHERE id = 1", "UPDATE account SET balance = 0 WHERE id = 1"
    ),
    "delete of a row that was updated": Pair(
        "UPDATE account SET balance = 0 WHERE id = 1", "DELETE FROM account WHERE id = 1"
    ),
    "same primary key inserted": Pair(
        "INSERT INTO account VALUES (3, 1, 'x')", "INSERT INTO account VALUES (3, 2, 'y')"
    ),
    "same unique value inserted": Pair(
        "INSERT INTO account VALUES (3, 1, 'x')", "INSERT INTO account VALUES (4, 2, 'x')"
    ),
    "unique value taken by an update": Pair(
        "UPDATE account SET name = 'x' WHERE id = 1", "INSERT INTO account VALUES (4, 2, 'x')"
    ),
    "unique value that is given up and taken": Pair(
        "UPDATE account SET name = 'z' WHERE id = 1",
        "UPDATE account SET name = 'y' WHERE id = 1; INSERT INTO account VALUES (9, 0, 'a')",
    ),
    "deferrable unique value": Pair(
        "INSERT INTO handed VALUES (3, 3)", "UPDATE handed SET u = 3 WHERE id = 1"
    ),
    "numeric keys of another scale": Pair(
        "INSERT INTO fold VALUES (2, 5.0, 'p')", "INSERT INTO fold VALUES (3, 5.00, 'q')"
    ),
    "unique expression": Pair(
        "INSERT INTO fold VALUES (2, 6, 'XY')", "INSERT INTO fold VALUES (3, 7, 'xy')"
    ),
    "child of a deleted parent": Pair(
        "DELETE FROM owner WHERE id = 2", "INSERT INTO car VALUES (2, 2, NULL)"
    ),
    "parent deleted after a child came": Pair(
        "INSERT INTO car VALUES (2, 2, NULL)", "DELETE FROM owner WHERE id = 2"
    ),
    "child of a parent that got another key": Pair(
        "UPDATE owner SET code = 30 WHERE id = 1", "INSERT INTO car VALUES (2, NULL, 10)"
    ),
    "child moved to a deleted parent": Pair(
        "DELETE FROM owner WHERE id = 2", "UPDATE car SET owner = 2 WHERE id = 1"
    ),
    "overlapping ranges": Pair(
        "INSERT INTO booking VALUES (2, '[20,30)')", "INSERT INTO booking VALUES (3, '[25,40)')"
    ),
    "insert after a truncation": Pair(
        "TRUNCATE booking", "INSERT INTO booking VALUES (9, '[90,91)')"
    ),
    "truncation after an insert": Pair(
        "INSERT INTO booking VALUES (9, '[90,91)')", "TRUNCATE booking"
    ),
    "update that changes nothing": Pair(
        "UPDATE account SET balance = 5 WHERE id = 1", "UPDATE account SET id = id WHERE id = 1"
    ),
}  # fmt: skip
HARMLESS = {
    "different rows": Pair(
        "UPDATE account SET balance = 1 WHERE id = 1", "UPDATE account SET balance = 2 WHERE id = 2"
    ),
    "child of a parent whose other column changes": Pair(
        "UPDATE owner SET name = 'new' WHERE id = 1", "INSERT INTO car VALUES (2, 1, NULL)"
    ),
    "child of a parent of which an included column changes": Pair(
        "UPDATE covered SET balance = 99 WHERE id = 1", "INSERT INTO entry VALUES (1, 1)"
    ),
    "two children of one parent": Pair(
        "INSERT INTO car VALUES (2, 1, 10)", "INSERT INTO car VALUES (3, 1, 10)"
    ),
    "different unique values": Pair(
        "INSERT INTO account VALUES (3, 1, 'x')", "INSERT INTO account VALUES (4, 1, 'y')"
    ),
    "write skew, which snapshot isolation allows": Pair(
        "UPDATE account SET balance = balance - (SELECT sum(balance) FROM account) WHERE id = 1",
        "UPDATE account SET balance = balance - (SELECT sum(balance) FROM account) WHERE id = 2",
    ),
    "truncation of another table": Pair("TRUNCATE booking", "DELETE FROM account WHERE id = 1"),
}


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        nodes.create(TABLES)
        yield nodes


@pytest.fixture
def filled(nodes: Nodes) -> Nodes:
    run(nodes.app[0], ROWS)
    nodes.settle()
    return nodes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", CONFLICTS.values(), ids=CONFLICTS)
def test_the_second_to_commit_is_told_40001(filled: Nodes, pair: Pair, level: str) -> None:
    first, second = filled.connect(1), filled.connect(2)
    for session, statements in zip((first, second), pair, strict=True):
        run(session, f"BEGIN ISOLATION LEVEL {level}; {statements}")
    run(first, "COMMIT")
    with pytest.raises((psycopg.errors.SerializationFailure, psycopg.errors.AdminShutdown)) as lost:
        run(second, "COMMIT")
    if lost.type is psycopg.errors.SerializationFailure:
        detail = lost.value.diag.message_detail or ""
        assert "winner GID" in detail and filled.schema in detail
    filled.equal_rows(*ALL)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", HARMLESS.values(), ids=HARMLESS)
def test_both_commit(filled: Nodes, pair: Pair, level: str) -> None:
    first, second = filled.connect(1), filled.connect(2)
    for session, statements in zip((first, second), pair, strict=True):
        run(session, f"BEGIN ISOLATION LEVEL {level}; {statements}")
    run(first, "COMMIT")
    run(second, "COMMIT")
    filled.equal_rows(*ALL)


@pytest.mark.parametrize(
    "leaving",
    [
        "DELETE FROM {0} WHERE id = 1",
        "UPDATE {0} SET id = 9 WHERE id = 1",
        "DELETE FROM {0} WHERE id IN (1, 2)",
    ],
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_child_that_comes_after_the_check_of_its_parents_end_counts(
    nodes: Nodes, shape: str, leaving: str
) -> None:
    """READ COMMITTED: the base is no newer than what the foreign key's own check has seen."""
    run(nodes.app[0], "DROP TABLE IF EXISTS child, parent CASCADE; " + shape)
    run(nodes.app[0], HESITANT.format("parent"))
    run(nodes.app[0], "INSERT INTO parent VALUES (1), (2)")
    nodes.settle()
    assert_a_parent_stays(nodes, leaving.format("parent"))


@contextlib.contextmanager
def held_back(nodes: Nodes, statement: str) -> Iterator["Future[list[Any]]"]:
    """A statement of the third node, which waits until that node shows what is done here."""
    holder, session = nodes.connect(2), nodes.connect(2)
    run(holder, "SELECT pg_advisory_lock(4711)")
    with ThreadPoolExecutor(1) as others:
        begun = others.submit(once, session, statement)
        try:
            wait_until(lambda: run(nodes.admin[2], WAITING), brief=True, hopeless=begun.done)
            yield begun
            nodes.settle()
        finally:
            run(holder, "SELECT pg_advisory_unlock(4711)")


def assert_a_parent_stays(nodes: Nodes, leaving: str) -> None:
    """A child of parent 1 commits between the checks of `leaving` and its capture."""
    with held_back(nodes, leaving) as left:
        run(nodes.app[1], "INSERT INTO child VALUES (1, 1)")
    with pytest.raises(LOST):
        left.result()
    assert run(nodes.app[0], ORPHANS) == [(0,)]
    nodes.equal_rows("parent", "child")


@pytest.mark.parametrize("taking", ["INSERT INTO {0} VALUES (1, 7)", "UPDATE late SET u = 7"])
@pytest.mark.parametrize("shape", LATE.values(), ids=LATE)
def test_a_value_that_an_applier_takes_while_nobody_waits_for_it_is_taken(
    nodes: Nodes, shape: str, taking: str
) -> None:
    """A deferrable constraint leaves it to whoever comes later to look, and that is the applier."""
    table = "late_child" if "late_child" in shape else "late"
    run(nodes.app[0], f"DROP TABLE IF EXISTS late CASCADE; {shape}")
    run(nodes.app[0], f"INSERT INTO {table} VALUES (3, 3)")
    run(nodes.app[0], HESITANT.format(table).replace("UPDATE OR DELETE", "UPDATE OR INSERT"))
    nodes.settle()
    with held_back(nodes, taking.format(table)) as took:
        run(nodes.app[1], f"INSERT INTO {table} VALUES (2, 7)")
    with pytest.raises((psycopg.errors.SerializationFailure, psycopg.errors.AdminShutdown)):
        took.result()
    assert nodes.equal_rows("late") == ["(2,7)", "(3,3)"]


@pytest.mark.parametrize(
    "written", ["UPDATE late SET u = 8 WHERE id = 9", "UPDATE late SET id = 1"]
)
def test_a_table_with_a_deferrable_constraint_is_written_as_any(nodes: Nodes, written: str) -> None:
    run(nodes.app[0], f"DROP TABLE IF EXISTS late CASCADE; {LATE['a table']}")
    run(nodes.app[1], f"INSERT INTO late VALUES (2, 7); BEGIN; {written}; COMMIT")
    run(
        nodes.app[2], "BEGIN; INSERT INTO late SELECT i, i FROM generate_series(10, 2010) i; COMMIT"
    )
    assert len(nodes.equal_rows("late")) == 2002


def test_a_snapshot_of_before_the_winner_loses_though_its_row_came_later(filled: Nodes) -> None:
    """REPEATABLE READ: the base is the snapshot's, not the moment of the write (C7)."""
    late = filled.connect(2)
    run(late, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT sum(balance) FROM account")
    run(filled.app[1], "INSERT INTO account VALUES (3, 0, 'new')")
    filled.settle()
    with pytest.raises((psycopg.errors.SerializationFailure, psycopg.errors.UniqueViolation)):
        run(late, "INSERT INTO account VALUES (4, 0, 'new'); COMMIT")


def test_read_committed_sees_the_winner_and_goes_on(filled: Nodes) -> None:
    """READ COMMITTED: each statement's base is its own, so nothing is refused in vain (C7)."""
    session = filled.connect(2)
    run(session, "BEGIN; SELECT sum(balance) FROM account")
    run(filled.app[1], "UPDATE account SET balance = balance + 1 WHERE id = 1")
    filled.settle()
    run(session, "UPDATE account SET balance = balance + 10 WHERE id = 1; COMMIT")
    assert "(1,111,a)" in filled.equal_rows("account")


@pytest.mark.parametrize(
    "moved",
    [
        "UPDATE account SET name = 'z' WHERE id = 1",
        "UPDATE account SET name = 'z', balance = 100 WHERE id = 1;"
        " UPDATE owner SET code = 11 WHERE id = 2",
        "UPDATE account SET name = name || 'z'",
    ],
)
def test_an_update_finds_the_row_whose_unique_column_another_member_changed(
    filled: Nodes, moved: str
) -> None:
    """READ COMMITTED: it goes on with the row's new version, as on one server."""
    adding = "UPDATE account SET balance = balance + 10 FROM gate WHERE id = 1 RETURNING name"
    with held_back(filled, GATE + adding) as found:
        once(filled.app[1], f"BEGIN; {moved}; COMMIT")
    assert len(found.result()) == 1
    assert any(row.startswith("(1,110,") for row in filled.equal_rows("account"))


@pytest.mark.parametrize(
    ("moved", "found"),
    [
        ("UPDATE task SET id = 20 WHERE id = 2", "2"),
        ("UPDATE task SET n = 5 WHERE id = 1; UPDATE task SET id = 20, n = 6 WHERE id = 2", "2"),
        ("DELETE FROM task WHERE id = 2", "1"),
        ("UPDATE task SET state = 'done' WHERE id = 2", "40001"),
    ],
)
def test_an_update_follows_the_row_whose_primary_key_another_member_changed(
    nodes: Nodes, moved: str, found: str
) -> None:
    """READ COMMITTED: as on one server. A row that has gone to another partition is 40001."""
    nodes.create(
        "DROP TABLE IF EXISTS task;"
        " CREATE TABLE task (id int GENERATED BY DEFAULT AS IDENTITY, name text, n int,"
        " state text, serial int GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (id, state))"
        " PARTITION BY LIST (state);"
        " CREATE TABLE task_new PARTITION OF task FOR VALUES IN ('new');"
        " CREATE TABLE task_done PARTITION OF task FOR VALUES IN ('done')"
    )
    run(nodes.app[1], "INSERT INTO task VALUES (1, 'a', 1, 'new'), (2, 'b', 1, 'new')")
    nodes.settle()
    adding = "UPDATE task SET n = n + 10 FROM gate WHERE name < 'c' RETURNING name"
    with held_back(nodes, GATE + adding) as took:
        once(nodes.app[1], f"BEGIN; {moved}; COMMIT")
    if found == "40001":
        with pytest.raises(psycopg.errors.SerializationFailure, match="partition"):
            took.result()
    else:
        assert len(took.result()) == int(found)
    nodes.equal_rows("task")


def test_a_row_that_postgresql_moves_to_no_other_partition_is_deleted_and_inserted(
    herd: LocalHerd, nodes: Nodes
) -> None:
    """It lets none out of a partition that foreign keys refer to and that has partitions."""
    nodes.create(
        "CREATE TABLE top (a int, b int, PRIMARY KEY (a, b)) PARTITION BY LIST (a);"
        " CREATE TABLE middle PARTITION OF top FOR VALUES IN (1) PARTITION BY LIST (b);"
        " CREATE TABLE low PARTITION OF middle FOR VALUES IN (1);"
        " CREATE TABLE beside PARTITION OF top FOR VALUES IN (2);"
        " CREATE TABLE refers (a int, b int, FOREIGN KEY (a, b) REFERENCES middle)"
    )
    with nobody_stops(herd, nodes):
        for _ in range(2):
            once(nodes.app[1], "INSERT INTO top VALUES (1, 1)")
            once(
                nodes.app[1],
                "BEGIN; DELETE FROM top WHERE a = 1; INSERT INTO top VALUES (2, 1); COMMIT",
            )
            assert nodes.equal_rows("top") == ["(2,1)"]
            once(nodes.app[1], "DELETE FROM top")


def test_rows_take_the_values_of_each_other_in_one_transaction(nodes: Nodes) -> None:
    """Values that go around are no reason to stop, nor do they keep other rows from moving."""
    nodes.create("CREATE TABLE ring (id int PRIMARY KEY, u int UNIQUE)")
    run(nodes.app[1], "INSERT INTO ring VALUES (1, 1), (2, 2), (3, 3)")
    run(
        nodes.app[1],
        "BEGIN; UPDATE ring SET u = -u; UPDATE ring SET u = 1 - u WHERE u > -3;"
        " UPDATE ring SET u = 1 WHERE id = 3; COMMIT",
    )
    nodes.settle()
    run(nodes.app[2], "UPDATE ring SET u = u + 10")
    assert nodes.equal_rows("ring") == ["(1,12)", "(2,13)", "(3,11)"]


@pytest.mark.parametrize(
    "table",
    [
        "excluded (id int PRIMARY KEY, u int UNIQUE)",  # a word of INSERT ... ON CONFLICT
        "twice (id int PRIMARY KEY, u int UNIQUE, UNIQUE (id) DEFERRABLE)",  # which that refuses
    ],
)
def test_a_row_that_is_inserted_and_updated_is_put_into_any_table(nodes: Nodes, table: str) -> None:
    nodes.create(f"CREATE TABLE {table}")
    name = table.split(maxsplit=1)[0]
    run(
        nodes.app[1],
        f"BEGIN; INSERT INTO {name} VALUES (1, 1); UPDATE {name} SET u = 2 WHERE id = 1; COMMIT",
    )
    assert nodes.equal_rows(name) == ["(1,2)"]
