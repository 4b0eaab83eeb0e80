"""What is captured in which order: commands beside rows, savepoints, triggers, foreign keys."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from .localherd import LocalHerd, free_port_base, query, settle, standing
from .nodes import Connection, Nodes, nobody_stops, nodes_of, run, sql_cases
from .test_certification_end_to_end import HESITANT, LOST, assert_a_parent_stays

CASES = sql_cases("border_capture")


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _nobody_stops(herd: LocalHerd, nodes: Nodes) -> Iterator[None]:
    with nobody_stops(herd, nodes):
        yield


def messages(text: str) -> list[str]:
    """The messages of a case: each ends with a line that ends in a semicolon."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [part.strip() for part in re.split(r"(?<=;)\n", code) if part.strip()]


def play(connection: Connection, text: str) -> str | None:
    """Send a case's messages; the SQLSTATE of the first that fails, after a rollback."""
    for message in messages(text):
        try:
            run(connection, message)
        except psycopg.Error as error:
            run(connection, "ROLLBACK")
            return error.sqlstate
    return None


def tables_of(text: str) -> list[str]:
    found = re.search(r"-- tables: (.*)", text)
    assert found is not None
    return found[1].split(", ")


@pytest.mark.family(every=6)
@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_all_members_have_what_the_first_has(nodes: Nodes, text: str) -> None:
    refused = re.search(r"\n-- refused(?: (\w+))?", text)
    assert play(nodes.app[0], text) == (refused and (refused[1] or "0A000"))
    nodes.equal_rows(*tables_of(text))


#: How a session that deletes parent 1 may try to have it certified later than its check was made.
_LEAVING = {
    "MERGE that updates and deletes": "MERGE INTO parent USING (VALUES (1), (2)) v (id)"
    " ON parent.id = v.id WHEN MATCHED AND parent.id = 2 THEN UPDATE SET id = 100"
    " WHEN MATCHED THEN DELETE",
    "MERGE that deletes and updates": "MERGE INTO parent USING (VALUES (1), (2)) v (id)"
    " ON parent.id = v.id WHEN MATCHED AND parent.id = 1 THEN UPDATE SET id = 100"
    " WHEN MATCHED THEN DELETE",
    "a setting by hand": "SET pgherd.base_1 = '9223372036854775807';"
    " DELETE FROM parent WHERE id = 1",
    "settings erased": "RESET ALL; SELECT set_config('pgherd.base_1', '', false);"
    " DELETE FROM parent",
    "rows deleted before": "BEGIN; DELETE FROM parent WHERE id = 3; SAVEPOINT s; DELETE FROM parent"
    " WHERE id = 4; ROLLBACK TO s; DELETE FROM parent WHERE id < 3; COMMIT",
}


@pytest.mark.parametrize("leaving", _LEAVING.values(), ids=_LEAVING)
def test_a_parents_end_is_certified_by_what_its_checks_saw(nodes: Nodes, leaving: str) -> None:
    run(nodes.app[0], "DROP TABLE IF EXISTS child, parent CASCADE")
    nodes.create(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        "CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent);"
        + HESITANT.format("parent")
        + "INSERT INTO parent SELECT generate_series(1, 4)"
    )
    assert_a_parent_stays(nodes, leaving)


def test_the_end_of_a_parent_in_one_partition_is_certified_by_what_its_checks_saw(
    nodes: Nodes,
) -> None:
    """The foreign key refers to the partition, and the statement names the whole table."""
    run(nodes.app[0], "DROP TABLE IF EXISTS child, parent CASCADE")
    nodes.create(
        "CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parent FOR VALUES FROM (0) TO (10);"
        + HESITANT.format("parent")
        + "INSERT INTO parent SELECT generate_series(1, 4)"
    )
    nodes.create("CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES part)")
    assert_a_parent_stays(nodes, "DELETE FROM parent")


def test_parents_that_nobody_refers_to_are_deleted_and_moved_in_any_way(nodes: Nodes) -> None:
    """What has to lose for want of a base must never be an ordinary statement."""
    nodes.create(
        "CREATE TABLE up (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE up_1 PARTITION OF up FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE up_2 PARTITION OF up FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE down (id int PRIMARY KEY, p int REFERENCES up_1);"
        "CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON DELETE CASCADE, v int);"
        "CREATE TABLE old (id int PRIMARY KEY, u int UNIQUE); CREATE TABLE young () INHERITS (old);"
        "ALTER TABLE young ADD PRIMARY KEY (id);"
        "CREATE TABLE to_old (id int PRIMARY KEY, p int REFERENCES old, u int REFERENCES old (u))"
    )
    for statement in (
        "INSERT INTO up SELECT g, g FROM generate_series(1, 19) g",
        "DELETE FROM up WHERE id = 15",
        "DELETE FROM up_2 WHERE id = 16",
        "UPDATE up SET id = 15 WHERE id = 5",
        "UPDATE up SET v = 0",
        "UPDATE up SET v = 1 WHERE id = 17",
        "DELETE FROM up WHERE id IN (3, 4, 17)",
        "BEGIN; DELETE FROM up WHERE id = 6; DELETE FROM up WHERE id IN (7, 18); COMMIT",
        "INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2), (4, 3), (5, NULL)",
        "DELETE FROM tree WHERE id = 3",
        "UPDATE tree SET id = 6 WHERE id = 5",
        "DELETE FROM tree",
        "INSERT INTO old VALUES (1, 1), (2, 2), (3, 3); INSERT INTO young VALUES (4, 4), (5, 5)",
        "UPDATE old SET u = u + 10 WHERE id <> 3",
        "UPDATE old SET u = u",
        "DELETE FROM old WHERE id IN (1, 4)",
        "DELETE FROM young",
        "UPDATE old SET id = 9 WHERE id = 3",
        "MERGE INTO old USING (VALUES (2), (9), (10)) v (id) ON old.id = v.id"
        " WHEN MATCHED AND old.id = 2 THEN DELETE WHEN MATCHED THEN UPDATE SET u = 77"
        " WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.id)",
    ):
        run(nodes.app[1], statement)
    nodes.equal_rows("up", "up_1", "up_2", "tree", "old", "young")


MERGE = """
MERGE INTO moved USING (VALUES (1), (2)) v (id) ON moved.id = v.id WHEN MATCHED THEN UPDATE SET
"""


@pytest.mark.family(every=6)
@pytest.mark.parametrize(
    "statement",
    [
        MERGE + "k = 2",
        MERGE + "k = 2 WHEN NOT MATCHED THEN INSERT VALUES (v.id, 1)",
        MERGE + "id = moved.id + 10",
        "PREPARE m AS " + MERGE + "k = 2; EXECUTE m",
        "DO $$ BEGIN " + MERGE + "k = 2; END $$",
        "DO $$ BEGIN EXECUTE '" + MERGE + "k = 2'; END $$",
        "PREPARE m AS " + MERGE + "k = 2; DO $$ BEGIN EXECUTE 'EXECUTE m'; END $$",
        "EXECUTE by_protocol",
        "DO $$ BEGIN EXECUTE 'EXECUTE by_protocol'; END $$",
        "DO $$ BEGIN EXECUTE E'/* \"\\nPL/pgSQL function f() */" + MERGE + "k = 2'; END $$",
        "SELECT moves()",
        MERGE + "k = moved.k + 2",
        "BEGIN; CREATE TRIGGER z BEFORE UPDATE ON moved FOR EACH ROW EXECUTE FUNCTION sets_k();"
        + MERGE + "v = 'a'",
    ],
)  # fmt: skip
def test_merge_that_may_move_rows_to_another_partition_is_refused(
    nodes: Nodes, statement: str
) -> None:
    """No trigger of PostgreSQL's says which these are."""
    run(nodes.app[0], "DROP TABLE IF EXISTS moved; DROP FUNCTION IF EXISTS moves, sets_k")
    nodes.create(
        "CREATE TABLE moved (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
        "CREATE TABLE moved_1 (v text, k int NOT NULL, id int NOT NULL);"
        "ALTER TABLE moved ATTACH PARTITION moved_1 FOR VALUES IN (1, 3);"
        "CREATE TABLE moved_2 PARTITION OF moved FOR VALUES IN (2, 4) PARTITION BY RANGE (id);"
        "CREATE TABLE moved_21 PARTITION OF moved_2 FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE moved_22 PARTITION OF moved_2 FOR VALUES FROM (9) TO (99);"
        f"CREATE FUNCTION moves() RETURNS void LANGUAGE sql AS $$ {MERGE} k = 2 $$;"
        "CREATE FUNCTION sets_k() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN NEW.k := 2; RETURN NEW; END $$"
    )
    first = nodes.connect(0)
    run(first, "INSERT INTO moved VALUES (1, 1), (2, 2), (3, 1), (4, 1), (5, 2)")
    first.pgconn.prepare(b"by_protocol", f"{MERGE} k = 2".encode())
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="another partition"):
        run(first, statement)
    run(first, "ROLLBACK; DEALLOCATE ALL")
    first.pgconn.prepare(b"kept_by_a_driver", f"{MERGE} k = 2".encode())
    for other in (
        "UPDATE moved SET k = 2 WHERE id IN (3, 4); UPDATE moved SET id = 10 WHERE id = 5",
        MERGE + "v = 'a'",
        "DO $$ BEGIN PERFORM 'merge'; UPDATE moved SET k = 1 WHERE id = 4; END $$",
        "DO $$ BEGIN EXECUTE 'UPDATE moved SET k = 2 WHERE id = 4'; END $$",
    ):
        run(first, other)
    assert nodes.equal_rows("moved", "moved_1", "moved_21", "moved_22") is not None


def test_merge_that_moves_rows_in_a_loop_is_refused(nodes: Nodes) -> None:
    """A function runs the query of a loop where no entry of the stack quotes it."""
    if nodes.app[0].info.server_version < 170000:
        pytest.skip("MERGE has no RETURNING there")
    run(nodes.app[0], "DROP TABLE IF EXISTS moved; DROP FUNCTION IF EXISTS loops, fetches")
    nodes.create(
        "CREATE TABLE moved (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
        "CREATE TABLE moved_1 PARTITION OF moved FOR VALUES IN (1);"
        "CREATE TABLE moved_2 PARTITION OF moved FOR VALUES IN (2);"
        "CREATE FUNCTION loops() RETURNS void LANGUAGE plpgsql AS $$ DECLARE r record;"
        f" BEGIN FOR r IN {MERGE} k = 2 RETURNING moved.id LOOP END LOOP; END $$;"
        "CREATE FUNCTION fetches() RETURNS void LANGUAGE plpgsql AS $$ DECLARE r record;"
        f" c refcursor; BEGIN OPEN c FOR EXECUTE 'MER' || 'GE {MERGE.strip()[5:]} k = 2"
        " RETURNING moved.id'; FETCH c INTO r; END $$"
    )
    run(nodes.app[0], "INSERT INTO moved VALUES (1, 1), (2, 1)")
    for call in ("loops", "fetches"):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="another partition"):
            run(nodes.app[0], f"SELECT {call}()")
    assert nodes.equal_rows("moved_1", "moved_2") == ["(1,1,)", "(2,1,)"]


def test_the_foreign_key_of_a_single_partition_is_certified(nodes: Nodes) -> None:
    nodes.create(
        "CREATE TABLE fp (id int PRIMARY KEY);"
        "CREATE TABLE fc (id int PRIMARY KEY, gone int, pid int) PARTITION BY RANGE (id);"
        "CREATE TABLE fc1 (pid int NOT NULL, id int PRIMARY KEY, gone int);"
        "ALTER TABLE fc ATTACH PARTITION fc1 FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE fc2 PARTITION OF fc FOR VALUES FROM (100) TO (200);"
        "ALTER TABLE fc DROP COLUMN gone; ALTER TABLE fc1 ADD FOREIGN KEY (pid) REFERENCES fp;"
        "INSERT INTO fp VALUES (1), (2), (3); INSERT INTO fc VALUES (100, NULL), (2, 2)"
    )
    for parent, child in (
        (1, "INSERT INTO fc VALUES (1, 1)"),
        (3, "UPDATE fc SET pid = 3 WHERE id = 2"),
    ):
        first, second = nodes.connect(0), nodes.connect(1)
        run(first, "BEGIN; " + child)
        run(second, f"BEGIN; DELETE FROM fp WHERE id = {parent}")
        run(first, "COMMIT")
        with pytest.raises(LOST):
            run(second, "COMMIT")
    run(nodes.app[0], "UPDATE fc SET pid = 5 WHERE id = 100")
    nodes.equal_rows("fp", "fc", "fc1", "fc2")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC-20"])
def test_a_foreign_key_that_the_sessions_time_zone_decides_is_certified(
    nodes: Nodes, zone: str
) -> None:
    run(nodes.app[0], "DROP TABLE IF EXISTS moment, day")
    nodes.create(
        "CREATE TABLE day (d date PRIMARY KEY);"
        "CREATE TABLE moment (id int PRIMARY KEY, d timestamptz REFERENCES day);"
        "INSERT INTO day VALUES ('2024-01-01'), ('2024-01-02'), ('2023-12-31')"
    )
    first, second = nodes.connect(0), nodes.connect(1)
    run(first, f"SET timezone = '{zone}'; BEGIN; INSERT INTO moment VALUES (1, '2024-01-01')")
    run(second, "BEGIN; DELETE FROM day WHERE d = '2024-01-01'")
    run(first, "COMMIT")
    with pytest.raises(LOST):
        run(second, "COMMIT")
    nodes.equal_rows("day", "moment")


def test_a_table_may_have_more_keys_than_a_function_has_arguments(nodes: Nodes) -> None:
    many = range(1, 121)
    nodes.create(
        "CREATE TABLE hub (id int PRIMARY KEY); CREATE TABLE wide (id int PRIMARY KEY, "
        + ", ".join(f"c{i} int UNIQUE REFERENCES hub" for i in many)
        + "); INSERT INTO hub SELECT generate_series(0, 500)"
    )
    run(nodes.app[0], f"INSERT INTO wide VALUES (1, {', '.join(map(str, many))})")
    run(nodes.app[0], "INSERT INTO wide (id, c1, c120) VALUES (2, 200, 201), (3, NULL, 202)")
    run(nodes.app[1], "UPDATE wide SET c120 = 300 WHERE id = 1")
    run(nodes.app[1], "UPDATE wide SET c1 = c1 + 100, c119 = id")
    first, second = nodes.connect(0), nodes.connect(1)
    run(first, "BEGIN; INSERT INTO wide (id, c119) VALUES (4, 400)")
    run(second, "BEGIN; DELETE FROM hub WHERE id = 400")
    run(first, "COMMIT")
    with pytest.raises(LOST):
        run(second, "COMMIT")
    run(nodes.app[2], "DELETE FROM wide WHERE id = 2")
    nodes.equal_rows("wide", "hub")


@pytest.fixture(scope="module")
def preparing(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd of which the second member lets transactions be prepared."""
    herd = LocalHerd(work_directory / "preparing", free_port_base())
    with standing(herd, "--nodes", "2"):
        query(herd.dsn("n2"), "ALTER SYSTEM SET max_prepared_transactions = 5")
        herd.must("down")
        herd.must("up")
        yield herd


@pytest.mark.family(every=6)
@pytest.mark.parametrize(
    "lock", ["SELECT * FROM prep FOR UPDATE", "SELECT * FROM prep FOR SHARE", "LOCK TABLE prep"]
)
def test_locks_of_a_prepared_transaction_hold_up_nobody_for_long(
    preparing: LocalHerd, lock: str
) -> None:
    """They have no process that could be ended, and its coordinator may never come back."""
    with (
        psycopg.connect(preparing.app_dsn("n1"), autocommit=True) as writer,
        psycopg.connect(preparing.app_dsn("n2"), autocommit=True) as holder,
    ):
        run(writer, "CREATE TABLE IF NOT EXISTS prep (id int PRIMARY KEY, v int)")
        run(writer, "TRUNCATE prep; INSERT INTO prep VALUES (1, 0)")
        settle(preparing)
        for statement in ("BEGIN", lock, "PREPARE TRANSACTION 'it''s'"):
            run(holder, statement)
        run(writer, "UPDATE prep SET v = 1")
        settle(preparing)
        assert run(holder, "SELECT v FROM prep") == [(1,)]
        assert run(holder, "SELECT gid FROM pg_prepared_xacts") == []


def test_a_transaction_that_has_written_is_not_prepared(preparing: LocalHerd) -> None:
    with psycopg.connect(preparing.app_dsn("n2"), autocommit=True) as writer:
        run(writer, "CREATE TABLE prepared_rows (id int PRIMARY KEY)")
        run(writer, "BEGIN; INSERT INTO prepared_rows VALUES (1)")
        with pytest.raises(psycopg.Error):
            run(writer, "PREPARE TRANSACTION 'x'")
        assert run(writer, "SELECT gid FROM pg_prepared_xacts") == []
