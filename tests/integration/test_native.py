"""The native module beside SQL: the same rows and requests, bit by bit; and what may go wrong.

Beside each trigger of the module stands a *twin*, the SQL function that it replaces, so each
statement is captured twice in its transaction. And before a transaction commits it is asked what
``certify()`` would send; the module then sends it.
"""

import contextlib
import itertools
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from patience import wait_until
from pgherd_sidecar.pg.hookwire import command_complete, error_response

from .localherd import NATIVE, LocalHerd
from .nativeserver import SECRET, StandInSidecar, native_server
from .nodes import Connection, nodes_of, once, run, sql_cases, sql_file
from .plainpostgres import PlainPostgres
from .test_capture_types import HOSTILE_SETTINGS, UNKEYABLE, VALUES

pytestmark = pytest.mark.skipif(not NATIVE, reason="PGHERD_TEST_NATIVE is not set")

STATEMENTS = sql_cases("capture_statements")
ENDINGS = sql_cases("hook_endings")
SHAPES = sql_cases("capture_shapes")
MANY = sql_cases("capture_many")
TWINS = """
DO $$
DECLARE t record;
BEGIN
    FOR t IN SELECT pg_get_triggerdef(g.oid) AS source, p.function::regproc AS twin
               FROM pg_trigger g
               JOIN pgherd.capture_plans p ON p.relid = g.tgrelid
                                          AND g.tgname = 'pgherd_' || lower(p.kind)
              WHERE NOT EXISTS (SELECT FROM pg_trigger x WHERE x.tgrelid = g.tgrelid
                                                           AND x.tgname = 'twin' || g.tgname)
    LOOP
        EXECUTE replace(replace(t.source, 'TRIGGER pgherd_', 'TRIGGER twinpgherd_'),
                        'pgherd.native_capture()', format('%s()', t.twin));
    END LOOP;
END $$
"""
RECONCILE = """
SELECT pgherd.follow_as_own(array_agg(c.oid), false, false) FROM pg_class c
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
"""
ROWS = """
SELECT c.base, c.tab, c.keys, c.pks::text, c.recs::text, count(*)
  FROM (SELECT * FROM pgherd.capture_0 UNION ALL SELECT * FROM pgherd.capture_1) c
 WHERE c.xid::text::int8 > %s AND c.tab IN (SELECT p.tab FROM pgherd.capture_plans p)
   AND c.recs <> '{T}'
   AND c.keys <> '' -- no final state of what was captured before
 GROUP BY c.xid, c.base, c.tab, c.keys, c.pks::text, c.recs::text
"""
CAPTURED_ALONE = """
WITH c AS (
    SELECT c.* FROM (SELECT * FROM pgherd.capture_0 UNION ALL SELECT * FROM pgherd.capture_1) c
     WHERE c.xid::text::int8 > %s AND c.keys <> '' AND c.recs <> '{}'
)
SELECT c.base, c.tab, r.pk::text, r.rec, count(*)
  FROM c, unnest(c.pks, c.recs) AS r(pk, rec) GROUP BY 1, 2, 3, 4
 UNION ALL
SELECT c.base, c.tab, k.key, '', count(*) FROM c, string_to_table(c.keys, ',') AS k(key)
 WHERE NOT EXISTS (SELECT FROM pgherd.capture_plans p -- once for each captured row
                    WHERE p.tab = c.tab AND k.key = ANY (string_to_array(p.table_keys, ',')))
 GROUP BY 1, 2, 3
"""
CHANGING = """
SELECT c.recs[1], c.keys FROM pgherd.capture_0 c
 WHERE c.xid = pg_current_xact_id() AND c.tab LIKE '%changing%' ORDER BY c.seq
"""
NESTED = """
CREATE FUNCTION writes(i int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() > 0 AND current_setting('pgherd_test.nest', true) = 'on' THEN
        PERFORM set_config('pgherd_test.nest', 'off', false);
        INSERT INTO {0}.t SELECT g, 1 FROM generate_series(10001, 11200) g;
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION nest(i int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT {0}.writes(i)'
"""
NOWHERE = "UPDATE pgherd.node SET hook_socket = '/nowhere', epoch = epoch + 1"
BACK = """
UPDATE pgherd.node
   SET epoch = epoch + 1,
       hook_socket = substr(split_part(hook_conninfo, ' ', 1), 6) || '/.s.PGSQL.1'
"""
ARE_NATIVE = """
SELECT DISTINCT t.tgfoid::regproc::text LIKE 'pgherd.native%' FROM pg_trigger t
 WHERE t.tgname IN ('arm', 'pgherd_insert', 'pgherd_update', 'pgherd_delete')
   AND (t.tgname = 'arm' OR t.tgtype & 1 = 0) -- inheritance trees are captured by row, in SQL
"""
LIBRARY_FUNCTIONS = "SELECT count(*) FROM pg_proc WHERE probin = '$libdir/pgherd_native'"
TO_SQL = "SELECT pgherd.choose_capture(false, false)"
TO_NATIVE = "SELECT pgherd.choose_capture(true, false)"
FREE = "SELECT min(n) + 1 FROM generate_series(0, 999) n WHERE n NOT IN (SELECT fd FROM used)"
OURS = "SET session_replication_role = replica"
USERS = "SET session_replication_role = origin"
_numbers = itertools.count()
NEWEST = "SELECT coalesce(max(c.xid::text::int8), 0) FROM pgherd.capture_0 c"
GENERATED_CALLS = """
SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE schemaname = 'pgherd_gen'
"""
RECORDS = """
SELECT c.recs::text
  FROM (SELECT * FROM pgherd.capture_0 UNION ALL SELECT * FROM pgherd.capture_1) c
 WHERE c.xid::text::int8 > %s AND c.recs <> '{}' ORDER BY c.xid, c.seq
"""
NEVER_NULL = {"short"}
INSIDE = """
SELECT c.recs::text
  FROM (SELECT * FROM pgherd.capture_0 UNION ALL SELECT * FROM pgherd.capture_1) c
 WHERE c.xid = pg_current_xact_id() ORDER BY c.seq DESC LIMIT 1
"""
IMPATIENT = "SET exit_on_error = on; SET lock_timeout = 100"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND pid = {}"
MARK = """
SELECT pg_advisory_lock(pgherd.token_of_victim(s.backend_xid)) FROM pg_stat_activity s
 WHERE s.pid = {}
"""
REQUEST = """
SELECT (pgherd.unusual_request(
           'collect', x.xid, 'pgherd_' || n.epoch, n.hook_conninfo, n.secret, NULL)).request
  FROM pgherd.node n, (SELECT pg_current_xact_id() AS xid) x
"""


@pytest.fixture(scope="module")
def served(work_directory: Path) -> Iterator[tuple[PlainPostgres, StandInSidecar]]:
    with native_server(work_directory / "native") as served:
        yield served


@pytest.fixture(scope="module")
def sidecar(served: tuple[PlainPostgres, StandInSidecar]) -> StandInSidecar:
    return served[1]


@pytest.fixture(scope="module")
def typed(served: tuple[PlainPostgres, StandInSidecar]) -> None:
    """The types that are not built in."""
    with contextlib.closing(admin(served[0].dsn())) as other:
        run(other, "CREATE EXTENSION citext SCHEMA public; CREATE EXTENSION hstore SCHEMA public")
        run(other, sql_file("capture_types_setup"))


@pytest.fixture
def app(served: tuple[PlainPostgres, StandInSidecar], typed: None) -> Iterator[Connection]:
    """The superuser, since it also asks what only pgherd may ask; in a schema of its own."""
    with session(served[0].dsn(), f"twin{next(_numbers)}") as app:
        yield app


@pytest.fixture(scope="module")
def shop(served: tuple[PlainPostgres, StandInSidecar]) -> str:
    """A schema with the tables of capture_tables.sql; what each trigger captures has a twin."""
    with session(served[0].dsn(), "shop") as app:
        make(app, sql_file("capture_tables"), twins=True)
    return "shop"


@pytest.fixture(scope="module")
def store(served: tuple[PlainPostgres, StandInSidecar]) -> str:
    """Another one, without twins."""
    with session(served[0].dsn(), "store") as app:
        make(app, sql_file("capture_tables"))
    return "store"


@contextlib.contextmanager
def session(dsn: str, schema: str) -> Iterator[Connection]:
    """A session that looks into this schema first, which is made if there is none."""
    with contextlib.closing(admin(dsn)) as other:
        run(other, f"CREATE SCHEMA IF NOT EXISTS {schema}")
    with psycopg.connect(
        dsn, autocommit=True, prepare_threshold=None, options=f"-c search_path={schema},public"
    ) as app:
        yield app


def admin(dsn: str) -> Connection:
    """Whatever this one changes is not captured, or replicated."""
    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
    run(connection, OURS)
    return connection


def make(app: Connection, ddl: str, *, twins: bool = False) -> None:
    """Make tables and their triggers, and perhaps the twins of these."""
    path = app.info.get_parameters()["options"].removeprefix("-c search_path=")
    with contextlib.closing(admin(app.info.dsn)) as other:
        run(other, f"SET search_path = {path}")
        run(other, ddl)
        run(other, RECONCILE)
        if twins:
            run(other, TWINS)


def eventually(true: Callable[[], bool]) -> None:
    wait_until(true, brief=True)


@contextlib.contextmanager
def one_descriptor(other: Connection, pid: int, *, newest: bool = False) -> Iterator[None]:
    """The server's process can open one file more, and no second one.

    Args:
        newest: it closes the two that it has opened last before.
    """
    limit = f"COPY (SELECT) TO PROGRAM 'prlimit --pid {pid} --nofile="
    run(other, "CREATE TEMP TABLE used (fd int)")
    run(other, f"COPY used FROM PROGRAM 'ls /proc/{pid}/fd'")
    ((most,),) = run(other, "SELECT max(fd) FROM used" if newest else FREE)
    run(other, f"{limit}{most}:'")
    try:
        yield
    finally:
        run(other, f"{limit}1000:'")


def schema_of(app: Connection) -> str:
    ((schema,),) = run(app, "SELECT current_schema()")
    return str(schema)


@contextlib.contextmanager
def captured_alike(app: Connection, *, at_least: int = 1) -> Iterator[None]:
    """All that the block captures was captured twice, by the module and by its twin."""
    with contextlib.closing(admin(app.info.dsn)) as other:
        ((newest,),) = run(other, NEWEST)
        yield
        rows = other.execute(ROWS.encode(), (newest,)).fetchall()
    odd = [row for row in rows if row[-1] % 2]
    assert not odd
    assert len(rows) >= at_least


# ---- captured rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALUES)
def test_a_column_of_each_type(app: Connection, name: str) -> None:
    held = f"{schema_of(app)}.held"
    make(app, f"CREATE TABLE held (id int PRIMARY KEY, v {name}, n int)", twins=True)
    run(app, f"{OURS}; CREATE TEMP TABLE given (id int, v {name}); {USERS}")
    for number, value in enumerate(VALUES[name]):
        run(app, f"INSERT INTO given VALUES ({number}, {value})")
    for settings in ("SET application_name = ''", HOSTILE_SETTINGS):
        run(app, settings)
        with captured_alike(app, at_least=2 * len(VALUES[name])):
            for number in range(len(VALUES[name])):
                run(app, f"INSERT INTO {held} SELECT * FROM pg_temp.given WHERE id = {number}")
                run(app, f"UPDATE {held} SET n = 1 WHERE id = {number}")
                run(app, f"UPDATE {held} SET v = (SELECT v FROM pg_temp.given WHERE id = 0)"
                    f" WHERE id = {number}")  # fmt: skip
        with captured_alike(app, at_least=len(VALUES[name])):
            for number in range(len(VALUES[name])):
                run(app, f"DELETE FROM {held} WHERE id = {number}")


@pytest.mark.parametrize("name", sorted(VALUES.keys() - UNKEYABLE))
def test_a_key_of_each_type(app: Connection, name: str) -> None:
    keyed = f"{schema_of(app)}.keyed"
    make(app, f"CREATE TABLE keyed (k {name} PRIMARY KEY, n int, u {name} UNIQUE)", twins=True)
    for settings in ("SET application_name = ''", HOSTILE_SETTINGS):
        for number, value in enumerate(VALUES[name]):
            with captured_alike(app, at_least=0):  # two of the values may be equal as keys
                run(app, "RESET ALL")
                given = f"CREATE TEMP TABLE given AS SELECT ({value})::{name} AS v"
                run(app, f"{OURS}; {given}; {USERS}")
                run(app, settings)
                run(app, f"INSERT INTO {keyed} SELECT v, {number}, v FROM pg_temp.given"
                    " ON CONFLICT DO NOTHING")  # fmt: skip
                run(app, f"UPDATE {keyed} SET n = n + 1 WHERE n = {number}")
                if name not in NEVER_NULL:
                    run(app, f"UPDATE {keyed} SET u = NULL WHERE n = {number + 1}")
                run(app, f"DELETE FROM {keyed} WHERE n = {number + 1}")
                run(app, f"{OURS}; DROP TABLE pg_temp.given; {USERS}")


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_each_kind_of_statement(
    served: tuple[PlainPostgres, StandInSidecar], shop: str, statement: str
) -> None:
    with session(served[0].dsn(), shop) as app:
        run(app, sql_file("capture_rows"))
        with captured_alike(app, at_least=0):
            run(app, statement)


@pytest.mark.parametrize("script", SHAPES.values(), ids=SHAPES)
def test_tables_of_each_shape(app: Connection, script: str) -> None:
    for statements in script.split("\n----\n"):
        if any(word in statements for word in ("CREATE", "ALTER", "DROP", "ATTACH", "DETACH")):
            make(app, statements, twins=True)
            continue
        with captured_alike(app, at_least=0):
            run(app, statements)


def test_what_the_module_captures_needs_no_generated_function(app: Connection) -> None:
    make(app, "CREATE TABLE plain (id int PRIMARY KEY, v text, d timestamptz)")
    make(app, "CREATE TABLE bare (id int, v text)")
    run(app, "BEGIN; INSERT INTO plain VALUES (1, 'a', now()); UPDATE plain SET v = 'b'")
    run(app, "DELETE FROM plain")
    assert run(app, GENERATED_CALLS) == [(0,)]
    run(app, "INSERT INTO plain VALUES (1), (2); UPDATE plain SET v = 'c'; DELETE FROM plain")
    run(app, "INSERT INTO bare VALUES (1), (1), (2); DELETE FROM bare WHERE id = 1")
    assert run(app, GENERATED_CALLS) == [(0,)]
    run(app, "UPDATE bare SET v = 'b'")
    assert run(app, GENERATED_CALLS) == [(1,)]
    run(app, "INSERT INTO plain VALUES (1), (2); UPDATE plain SET id = id + 1 WHERE id = 2")
    assert run(app, GENERATED_CALLS) == [(2,)]
    run(app, "ROLLBACK")


@pytest.mark.parametrize("name", sorted(MANY.keys() - {"tables", "rows"}))
def test_statements_of_many_rows(app: Connection, name: str) -> None:
    """Several captured rows each, from a transition table that does not fit into memory."""
    make(app, MANY["tables"], twins=True)
    run(app, MANY["rows"])
    with contextlib.closing(admin(app.info.dsn)) as other:
        ((newest,),) = run(other, NEWEST)
        run(app, MANY[name])
        rows = other.execute(CAPTURED_ALONE.encode(), (newest,)).fetchall()
    assert sum(row[-1] for row in rows) >= 6000
    assert not [row for row in rows if row[-1] % 2]


def test_a_row_is_captured_as_its_table_was_then(herd: LocalHerd) -> None:
    """What a later command of the same transaction changes does not touch it."""
    with nodes_of(herd) as nodes:
        nodes.create("CREATE TABLE changing (id int PRIMARY KEY, a int, b text)")
        origin = nodes.admin[0]
        run(origin, "BEGIN; INSERT INTO changing VALUES (1, 2, 'x')")
        run(origin, "ALTER TABLE changing DROP COLUMN a")
        run(origin, "ALTER TABLE changing ADD COLUMN c int DEFAULT 7")
        run(origin, "INSERT INTO changing VALUES (2, 'y')")
        run(origin, "ALTER TABLE changing ADD UNIQUE (b)")
        run(origin, "INSERT INTO changing VALUES (3, 'z')")
        rows = run(origin, CHANGING)
        run(origin, "COMMIT")
        assert nodes.equal_rows("changing") == ["(1,x,7)", "(2,y,7)", "(3,z,7)"]
    assert [rec for rec, _ in rows] == ["I(1,2,x)", "I(2,y,7)", "I(3,z,7)"]
    assert [keys.count(",") for _, keys in rows] == [2, 2, 3]


def records(app: Connection, newest: int) -> list[str]:
    """What was captured since, of any table."""
    with contextlib.closing(admin(app.info.dsn)) as other:
        return [recs for (recs,) in other.execute(RECORDS.encode(), (newest,)).fetchall()]


def newest_xid(app: Connection) -> int:
    with contextlib.closing(admin(app.info.dsn)) as other:
        ((newest,),) = run(other, "SELECT pg_current_xact_id()::text::int8")
    return int(newest)


def test_an_old_snapshot_reads_no_old_plan(app: Connection) -> None:
    """The table is what it is now, and so is how it is captured; and later, in any case."""
    make(app, "CREATE TABLE widened (id int PRIMARY KEY, a int)")
    run(app, "INSERT INTO widened VALUES (1, 1)")
    newest = newest_xid(app)
    run(app, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    make(app, "ALTER TABLE widened ADD COLUMN c int")
    run(app, "INSERT INTO widened VALUES (2, 2, 2)")
    ((inside,),) = run(app, INSIDE)
    run(app, "ROLLBACK; INSERT INTO widened VALUES (3, 3, 3)")
    assert inside == '{"I(2,2,2)"}'
    assert records(app, newest) == ['{"I(3,3,3)"}']


def test_an_old_snapshot_may_write_a_younger_table(app: Connection) -> None:
    newest = newest_xid(app)
    run(app, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    make(app, "CREATE TABLE younger (id int PRIMARY KEY, a int)")
    run(app, "INSERT INTO younger VALUES (1, 2); COMMIT")
    assert records(app, newest) == ['{"I(1,2)"}']


def test_names_of_the_session_mean_nothing_to_a_plan(app: Connection) -> None:
    """What PostgreSQL calls `text` in an index is its own type, not one of the session's."""
    make(app, "CREATE TABLE named (id int PRIMARY KEY, v text);"
         "CREATE UNIQUE INDEX ON named ((v || '-'))", twins=True)  # fmt: skip
    run(app, f"{OURS}; CREATE DOMAIN pg_temp.text AS int; {USERS}")
    with captured_alike(app, at_least=3):
        run(app, "INSERT INTO named VALUES (1, 'y')")
        run(app, "UPDATE named SET v = 'z'")
        run(app, "DELETE FROM named")


def test_a_capture_that_failed_leaves_nothing_behind(app: Connection) -> None:
    """It has failed with the row in its hands, and the next one is left to the SQL function."""
    make(app, "CREATE TABLE large (id int PRIMARY KEY, v text)", twins=True)
    run(app, "INSERT INTO large VALUES (1, 'a')")
    with contextlib.closing(admin(app.info.dsn)) as other:
        run(other, "BEGIN; LOCK TABLE pgherd.capture_0, pgherd.capture_1 IN SHARE MODE")
        run(app, "SET lock_timeout = 200")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run(app, "INSERT INTO large VALUES (2, repeat('b', 3000000))")
        run(other, "ROLLBACK; UPDATE pgherd.node SET writable = false")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            run(app, "INSERT INTO large VALUES (3, 'c')")
        run(other, "UPDATE pgherd.node SET writable = true")
    with captured_alike(app, at_least=2):
        run(app, "INSERT INTO large VALUES (4, repeat('d', 90000))")
        run(app, "UPDATE large SET v = 'e' WHERE id = 1")


def test_a_plan_follows_the_domains_that_it_rests_on(app: Connection) -> None:
    """A plan holds their checks as they were when it was made."""
    make(app, "CREATE DOMAIN small AS int CONSTRAINT c CHECK (VALUE < 10);"
         "CREATE DOMAIN smaller AS small; CREATE TABLE t (id int PRIMARY KEY, v small, w smaller)",
         twins=True)  # fmt: skip
    run(app, "INSERT INTO t VALUES (1, 1, 1)")
    with contextlib.closing(admin(app.info.dsn)) as other:
        run(other, f"ALTER DOMAIN {schema_of(app)}.small DROP CONSTRAINT c")
    with captured_alike(app, at_least=2):
        run(app, "INSERT INTO t VALUES (2, 20, 20)")
        run(app, "UPDATE t SET v = 30, w = 30")


def test_a_plan_follows_what_a_domain_says_of_null(app: Connection) -> None:
    """Up to PostgreSQL 16 it is no constraint in the catalog, but a column of the type's row."""
    make(app, "CREATE DOMAIN few AS int NOT NULL CHECK (VALUE < 10);"
         "CREATE TABLE t (id int PRIMARY KEY, v few)", twins=True)  # fmt: skip
    run(app, "INSERT INTO t VALUES (1, 1)")
    with contextlib.closing(admin(app.info.dsn)) as other:
        run(other, f"ALTER DOMAIN {schema_of(app)}.few DROP NOT NULL")
    with captured_alike(app):
        run(app, "INSERT INTO t VALUES (2, NULL)")


@pytest.mark.parametrize("rows", [1, 300, 3000])
def test_what_a_plan_evaluates_may_change_its_table(app: Connection, rows: int) -> None:
    """By a domain's function, a superuser's that is not as immutable as it says."""
    make(app, NESTED.format(schema_of(app)))
    make(
        app, "CREATE DOMAIN d AS int CHECK (nest(VALUE)); CREATE TABLE t (id int PRIMARY KEY, v d)"
    )
    for _ in range(2):  # the first one makes the plan, too
        before = newest_xid(app)
        run(app, "SET pgherd_test.nest = 'on'")
        run(app, f"INSERT INTO t SELECT g, g FROM generate_series(1, {rows}) g")
        assert run(app, "SHOW pgherd_test.nest") == [("off",)]
        assert run(app, "SELECT count(*) FROM t") == [(rows + 1200,)]
        assert sum(recs.count("I(") for recs in records(app, before)) == rows + 1200
        run(app, "DELETE FROM t")


# ---- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statements",
    [
        "INSERT INTO item VALUES (100, 'c', 1, 'a \"quoted\" \\ \n\t\x01 ünï')",
        "INSERT INTO item VALUES (100, 'c', 1, NULL); INSERT INTO item VALUES (101, 'd', 2, '')",
        "UPDATE item SET note = 'n' WHERE id = 1; DELETE FROM item WHERE id = 2",
        "UPDATE item SET note = 'n' WHERE id = 1; UPDATE item SET n = 5 WHERE id = 1",
        "INSERT INTO item VALUES (100, 'c'); DELETE FROM item WHERE id = 100",
        "DELETE FROM item WHERE id = 2; INSERT INTO item VALUES (2, 'again')",
        "UPDATE parent SET v = 'p' WHERE id = 3; UPDATE item SET n = 5 WHERE id = 1;"
        " DELETE FROM parent WHERE id = 3; UPDATE item SET id = 50 WHERE id = 1;"
        " INSERT INTO log (what) VALUES ('x'); DELETE FROM log",
        "UPDATE swap SET u = 30 - u WHERE id < 3; UPDATE swap SET u = 1 WHERE id = 1",
        "INSERT INTO numbered (v) VALUES ('7'); UPDATE numbered SET v = '8' WHERE v = '7'",
        "INSERT INTO item SELECT i, 'c' || i FROM generate_series(200, 1500) i",
        "INSERT INTO log (what) VALUES ('x'); SAVEPOINT s; DELETE FROM item; ROLLBACK TO s",
        "SAVEPOINT s; INSERT INTO item VALUES (100, 'c'); ROLLBACK TO s;"
        " INSERT INTO item VALUES (101, 'd')",
        "TRUNCATE log; INSERT INTO log (what) VALUES ('x')",
        "INSERT INTO parent VALUES (77, 'p'); INSERT INTO child SELECT 900, 77",
    ],
)
@pytest.mark.parametrize("every", [1, 1_000_000_000], ids=["fingerprint", "without"])
def test_the_request_is_that_of_sql(
    served: tuple[PlainPostgres, StandInSidecar], store: str, statements: str, every: int
) -> None:
    server, sidecar = served
    with session(server.dsn(), store) as app, contextlib.closing(admin(server.dsn())) as other:
        run(app, sql_file("capture_rows"))
        run(other, f"UPDATE pgherd.node SET fingerprint_every = {every}")
        run(app, f"BEGIN; {statements}")
        ((wanted,),) = run(app, REQUEST)
        run(app, "COMMIT")
        sent = sidecar.requests[-1].decode()
        run(other, "UPDATE pgherd.node SET fingerprint_every = 1000000000")
    assert sent == wanted
    assert sent.startswith(f"W {SECRET} ")


CHANGED_MEANWHILE = {
    "fingerprint": (1, "", None),
    "without-identity": (1, "UPDATE named SET n = 2; DELETE FROM named", None),
    "final-state": (
        1_000_000_000,
        "UPDATE named SET n = 2; DELETE FROM named; INSERT INTO named VALUES (1, 'a', 3)",
        psycopg.errors.SerializationFailure,
    ),
}


@pytest.mark.parametrize("mode", [TO_NATIVE, TO_SQL], ids=["native", "sql"])
@pytest.mark.parametrize("what", CHANGED_MEANWHILE)
def test_a_value_that_has_another_name_meanwhile(
    app: Connection, sidecar: StandInSidecar, what: str, mode: str
) -> None:
    """A command that another member has ordered first renames what a captured record names."""
    every, statements, error = CHANGED_MEANWHILE[what]
    key = "" if what == "without-identity" else "PRIMARY KEY"
    make(app, f"CREATE TYPE letter AS ENUM ('a'); CREATE TABLE named (id int {key}, v letter,"
         " n int)")  # fmt: skip
    before = len(sidecar.requests)
    with contextlib.closing(admin(app.info.dsn)) as other:
        run(other, mode)
        run(other, f"UPDATE pgherd.node SET fingerprint_every = {every}")
        try:
            run(app, f"BEGIN; INSERT INTO named VALUES (1, 'a', 1); {statements}")
            run(other, f"ALTER TYPE {schema_of(app)}.letter RENAME VALUE 'a' TO 'b'")
            if error is None:
                run(app, "COMMIT")
            else:
                with pytest.raises(error):
                    run(app, "COMMIT")
        finally:
            run(other, "UPDATE pgherd.node SET fingerprint_every = 1000000000")
            run(other, TO_NATIVE)
    assert len(sidecar.requests) == before + (error is None)


def test_what_is_rolled_back_to_a_savepoint_is_not_sent(
    app: Connection, sidecar: StandInSidecar
) -> None:
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    before = len(sidecar.requests)
    run(app, "BEGIN; SAVEPOINT s; INSERT INTO plain VALUES (1); ROLLBACK TO s; COMMIT")
    assert len(sidecar.requests) == before


def test_a_prepared_transaction_is_refused(app: Connection) -> None:
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    run(app, "BEGIN; INSERT INTO plain VALUES (1)")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        run(app, "PREPARE TRANSACTION 'x'")
    assert run(app, "SELECT count(*) FROM plain") == [(0,)]


def test_what_is_rolled_back_to_a_savepoint_keeps_nobody_from_preparing(app: Connection) -> None:
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    run(app, "BEGIN; SAVEPOINT s; INSERT INTO plain VALUES (1); ROLLBACK TO s")
    run(app, "PREPARE TRANSACTION 'x'")
    run(app, "COMMIT PREPARED 'x'")
    run(app, "INSERT INTO plain VALUES (2)")
    assert run(app, "SELECT id FROM plain") == [(2,)]


# ---- answers -------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[Callable[[bytes], bytes | None], type[psycopg.Error]]] = {
    "closed": (lambda _: None, psycopg.errors.TransactionResolutionUnknown),
    "noise": (lambda _: b"\xff" * 300, psycopg.errors.TransactionResolutionUnknown),
    "an endless message": (
        lambda _: b"C" + struct.pack("!I", 1 << 30) + b"C 1 0 N",
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "a message without a length": (
        lambda _: b"C" + struct.pack("!I", 3),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "no answer": (
        lambda _: b"Z\x00\x00\x00\x05I",
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "an error without an end": (
        lambda _: b"E" + struct.pack("!I", 10) + b"MMMMMM" + b"Z\x00\x00\x00\x05I",
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "a broken connection": (
        lambda _: error_response("08006", "the sidecar stops"),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "a request that it can't read": (
        lambda _: error_response("08P01", "malformed request"),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "an empty tag": (
        lambda _: command_complete(b""),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "not a verdict": (
        lambda _: command_complete(b"C x y z"),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "no predecessor's name": (
        lambda _: command_complete(b"C 1000000 0 L"),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "a long tag": (
        lambda _: command_complete(b"C " + b"9" * 5000),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "an xid of the future": (
        lambda _: command_complete(b"C 1000000 0 L 99999999999"),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "a GID that was given": (
        lambda _: command_complete(b"C 1 0 N"),
        psycopg.errors.TransactionResolutionUnknown,
    ),
    "a conflict": (
        lambda _: error_response("40001", "lost %s", "Row (1,) of table x", "Repeat"),
        psycopg.errors.SerializationFailure,
    ),
    "no writes": (
        lambda _: error_response("25006", "this node takes no writes: x"),
        psycopg.errors.ReadOnlySqlTransaction,
    ),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_any_answer_is_an_error_and_the_session_goes_on(
    app: Connection, sidecar: StandInSidecar, what: str
) -> None:
    answer, error = ANSWERS[what]
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    with sidecar.saying(answer), pytest.raises(error) as raised:
        once(app, "INSERT INTO plain VALUES (1)")
    if what == "a conflict":
        diag = raised.value.diag
        assert (diag.message_primary, diag.message_detail, diag.message_hint) == (
            "lost %s", "Row (1,) of table x", "Repeat",
        )  # fmt: skip
    run(app, "INSERT INTO plain VALUES (2)")
    assert run(app, "SELECT id FROM plain") == [(2,)]
    assert run(app, "SHOW synchronous_commit") == [("on",)]


def test_a_late_answer_is_not_taken_for_that_of_the_next(
    app: Connection, sidecar: StandInSidecar
) -> None:
    """COMMIT was cancelled when nobody answered a new connection: the old one is not used again."""
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    run(app, "INSERT INTO plain VALUES (1)")
    before = len(sidecar.requests)
    away = sidecar.path.with_name("away")
    with contextlib.closing(admin(app.info.dsn)) as other, ThreadPoolExecutor() as pool:
        with sidecar.saying(lambda _: b""):
            insert = pool.submit(once, app, "INSERT INTO plain VALUES (2)")
            eventually(lambda: len(sidecar.requests) > before)
        sidecar.path.rename(away)
        try:
            run(other, f"SELECT pg_cancel_backend({app.info.backend_pid})")
            with pytest.raises(psycopg.errors.TransactionResolutionUnknown):
                insert.result()
        finally:
            away.rename(sidecar.path)
    late = sidecar.commit(sidecar.requests[-1])
    sidecar.say_late(late)
    run(app, "INSERT INTO plain VALUES (3)")
    ((gid,),) = run(app, "SHOW pgherd.last_commit")
    assert len(sidecar.requests) == before + 2
    assert b"C %s " % gid.encode() not in late


def test_a_connection_that_was_opened_in_part_is_not_used(
    app: Connection, sidecar: StandInSidecar
) -> None:
    """There was a file descriptor for the socket, and none for what waits for it."""
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    run(app, "BEGIN; INSERT INTO plain VALUES (1); ROLLBACK; SELECT FROM pgherd.applied")
    with (
        contextlib.closing(admin(app.info.dsn)) as other,
        one_descriptor(other, app.info.backend_pid),
        pytest.raises(psycopg.errors.InternalError_, match="epoll"),
    ):
        once(app, "INSERT INTO plain VALUES (2)")
    run(app, "INSERT INTO plain VALUES (3)")
    assert run(app, "SELECT id FROM plain") == [(3,)]


def test_an_error_after_the_request_does_not_read_as_an_abort(
    app: Connection, sidecar: StandInSidecar
) -> None:
    """COMMIT was cancelled, and the server can't open all that a new connection takes."""
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    before = len(sidecar.requests)
    with contextlib.closing(admin(app.info.dsn)) as other, ThreadPoolExecutor() as pool:
        with sidecar.saying(lambda _: b""):
            insert = pool.submit(once, app, "INSERT INTO plain VALUES (1)")
            eventually(lambda: len(sidecar.requests) > before)
        with one_descriptor(other, app.info.backend_pid, newest=True):
            run(other, f"SELECT pg_cancel_backend({app.info.backend_pid})")
            with pytest.raises(psycopg.errors.TransactionResolutionUnknown) as unknown:
                insert.result()
    assert "epoll" in str(unknown.value.diag.message_detail)
    run(app, "INSERT INTO plain VALUES (2)")
    assert run(app, "SELECT id FROM plain") == [(2,)]


@pytest.mark.parametrize(
    ("marked", "error"),
    [(True, psycopg.errors.SerializationFailure), (False, psycopg.errors.QueryCanceled)],
    ids=["of-the-sidecar", "of-a-user"],
)
def test_a_cancel_before_the_order_is_told_as_what_it_is(
    app: Connection, sidecar: StandInSidecar, marked: bool, error: type[psycopg.Error]
) -> None:
    """COMMIT sends pieces, in SQL, and what is ordered before it needs one of its locks."""
    make(app, "CREATE TABLE large (id int PRIMARY KEY, v text)")
    before = len(sidecar.requests)
    pid = app.info.backend_pid
    with contextlib.closing(admin(app.info.dsn)) as other, ThreadPoolExecutor() as pool:
        with sidecar.saying(lambda _: b""):
            insert = pool.submit(once, app, "INSERT INTO large VALUES (1, repeat('v', 300000))")
            eventually(lambda: len(sidecar.requests) > before)
        if marked:
            run(other, MARK.format(pid))
        run(other, f"SELECT pg_cancel_backend({pid})")
        with pytest.raises(error):
            insert.result()
    assert not [request for request in sidecar.requests[before:] if request.startswith(b"W ")]
    run(app, "INSERT INTO large VALUES (2, 'v')")
    assert run(app, "SELECT id FROM large") == [(2,)]


def test_a_cancel_after_the_order_is_none(app: Connection, sidecar: StandInSidecar) -> None:
    """The same when all was sent: it has its order, so it commits."""
    make(app, "CREATE TABLE large (id int PRIMARY KEY, v text)")
    pid = app.info.backend_pid
    ordered: list[bytes] = []

    def answer(query: bytes) -> bytes:
        if query[:2] == b"W ":
            ordered.append(sidecar.commit(query))
            return b""
        return ordered[0] if query[:2] == b"R " else command_complete(b"OK")

    with (
        contextlib.closing(admin(app.info.dsn)) as other,
        ThreadPoolExecutor() as pool,
        sidecar.saying(answer),
    ):
        insert = pool.submit(once, app, "INSERT INTO large VALUES (1, repeat('v', 300000))")
        eventually(lambda: bool(ordered))
        run(other, MARK.format(pid))
        run(other, f"SELECT pg_cancel_backend({pid})")
        insert.result()
    assert run(app, "SELECT id FROM large") == [(1,)]


def test_no_setting_ends_a_session_that_has_lost(app: Connection, sidecar: StandInSidecar) -> None:
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    run(app, IMPATIENT)
    with sidecar.saying(ANSWERS["a conflict"][0]), pytest.raises(ANSWERS["a conflict"][1]):
        once(app, "INSERT INTO plain VALUES (1)")
    run(app, "INSERT INTO plain VALUES (2)")
    assert run(app, "SELECT id FROM plain") == [(2,)]
    assert run(app, "SHOW exit_on_error") == [("on",)]
    assert run(app, "SHOW lock_timeout") == [("100ms",)]


def test_no_setting_ends_the_wait_for_a_predecessor(
    app: Connection, sidecar: StandInSidecar
) -> None:
    """Neither does a cancel: the transaction is ordered, so it commits, and the session goes on."""
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    run(app, IMPATIENT)
    with contextlib.closing(admin(app.info.dsn)) as other, ThreadPoolExecutor() as pool:
        ((xid,),) = run(other, "SELECT pg_current_xact_id()::text")
        run(other, f"SELECT pg_advisory_lock(pgherd.token_of_xid('{xid}'))")
        before = len(sidecar.requests)
        sidecar.predecessor = f"L {xid}".encode()
        try:
            insert = pool.submit(run, app, "INSERT INTO plain VALUES (1)")
            pid = app.info.backend_pid
            eventually(lambda: insert.done() or run(other, WAITING.format(pid)) == [(1,)])
            time.sleep(0.5)  # several times lock_timeout
            assert len(sidecar.requests) == before + 1
            run(other, f"SELECT pg_cancel_backend({pid})")
            eventually(lambda: insert.done() or len(sidecar.requests) > before + 1)
        finally:
            sidecar.predecessor = b"N"
            run(other, "SELECT pg_advisory_unlock_all()")
        insert.result()
    assert run(app, "SELECT id FROM plain") == [(1,)]
    assert run(app, "SHOW exit_on_error") == [("on",)]
    assert run(app, "SHOW lock_timeout") == [("100ms",)]


def test_no_transaction_timeout_ends_the_wait_for_a_predecessor(
    app: Connection, sidecar: StandInSidecar
) -> None:
    """It counts for the next transaction again."""
    if app.info.server_version < 170000:
        pytest.skip("PostgreSQL has transaction_timeout since 17")
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    run(app, "SET transaction_timeout = 300")
    with contextlib.closing(admin(app.info.dsn)) as other, ThreadPoolExecutor() as pool:
        ((xid,),) = run(other, "SELECT pg_current_xact_id()::text")
        run(other, f"SELECT pg_advisory_lock(pgherd.token_of_xid('{xid}'))")
        sidecar.predecessor = f"L {xid}".encode()
        try:
            insert = pool.submit(run, app, "INSERT INTO plain VALUES (1)")
            time.sleep(1)
            assert not insert.done()
        finally:
            sidecar.predecessor = b"N"
            run(other, "SELECT pg_advisory_unlock_all()")
        insert.result()
    assert run(app, "SELECT id FROM plain") == [(1,)]
    with pytest.raises(psycopg.errors.TransactionTimeout):
        run(app, "SELECT pg_sleep(1)")


def test_without_a_sidecar_nothing_is_written(
    app: Connection, served: tuple[PlainPostgres, StandInSidecar]
) -> None:
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    with contextlib.closing(admin(app.info.dsn)) as other:
        run(other, NOWHERE)
        try:
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="does not answer"):
                run(app, "INSERT INTO plain VALUES (1)")
        finally:
            run(other, BACK)
    run(app, "INSERT INTO plain VALUES (2)")
    assert run(app, "SELECT id FROM plain") == [(2,)]


# ---- other modules -------------------------------------------------------------------------------

ELSEWHERE = """
CREATE EXTENSION IF NOT EXISTS postgres_fdw SCHEMA public;
CREATE SERVER {0} FOREIGN DATA WRAPPER postgres_fdw
    OPTIONS (host '127.0.0.1', port '{1}', dbname 'postgres');
CREATE USER MAPPING FOR postgres SERVER {0} OPTIONS (user 'postgres');
CREATE FOREIGN TABLE {0}.remote (id int) SERVER {0} OPTIONS (schema_name '{0}', table_name 't');
CREATE FUNCTION {0}.twofold() RETURNS void LANGUAGE sql AS
    'INSERT INTO {0}.plain VALUES (1); INSERT INTO {0}.remote VALUES (1)'
"""
SLOW_COMMIT = """
CREATE SCHEMA {0};
CREATE TABLE {0}.t (id int);
CREATE FUNCTION {0}.sleeps() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_sleep(30); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {0}.t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION {0}.sleeps()
"""
ASLEEP = """
SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres' AND wait_event = 'PgSleep'
"""


@pytest.mark.parametrize("earlier", [False, True], ids=["", "and-earlier"])
@pytest.mark.parametrize(
    "statements",
    [
        "BEGIN; INSERT INTO plain VALUES (1); INSERT INTO remote VALUES (1); COMMIT",
        "BEGIN; INSERT INTO remote VALUES (1); INSERT INTO plain VALUES (1); COMMIT",
        "SELECT twofold()",
        "WITH r AS (INSERT INTO remote VALUES (1) RETURNING id) INSERT INTO plain SELECT * FROM r",
    ],
    ids=["remote-last", "remote-first", "function", "one-statement"],
)
def test_a_conflict_comes_before_another_module_has_committed(
    app: Connection,
    served: tuple[PlainPostgres, StandInSidecar],
    statements: str,
    earlier: bool,
) -> None:
    """postgres_fdw commits its remote side at COMMIT; its first use in a session has it do so."""
    server, sidecar = served
    schema = schema_of(app)
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    with (
        contextlib.closing(admin(app.info.dsn)) as other,
        contextlib.closing(admin(server.dsn("postgres"))) as remote,
    ):
        run(remote, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (id int)")
        run(other, ELSEWHERE.format(schema, server.port))
        if earlier:
            run(app, "INSERT INTO plain VALUES (0)")
        conflict, error = ANSWERS["a conflict"]
        with sidecar.saying(conflict), pytest.raises(error):
            once(app, statements)
        assert run(remote, f"SELECT * FROM {schema}.t") == []
        run(app, "ROLLBACK")
        run(app, statements)
        assert run(remote, f"SELECT * FROM {schema}.t") == [(1,)]


def test_a_session_can_be_ended_whose_other_module_waits(
    app: Connection, served: tuple[PlainPostgres, StandInSidecar]
) -> None:
    """It has its verdict, and its remote COMMIT does not return: a cancel is none."""
    server, _ = served
    schema = schema_of(app)
    pid = app.info.backend_pid
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    with (
        contextlib.closing(admin(app.info.dsn)) as other,
        contextlib.closing(admin(server.dsn("postgres"))) as remote,
        ThreadPoolExecutor() as pool,
    ):
        run(remote, SLOW_COMMIT.format(schema))
        run(other, ELSEWHERE.format(schema, server.port))
        insert = pool.submit(once, app, "SELECT twofold()")
        eventually(lambda: run(other, ASLEEP) == [(1,)])
        run(other, f"SELECT pg_cancel_backend({pid})")
        time.sleep(0.5)
        assert not insert.done()
        run(other, f"SELECT pg_terminate_backend({pid})")
        eventually(insert.done)
        with pytest.raises(psycopg.OperationalError):
            insert.result()


def test_nobody_may_call_the_module(app: Connection) -> None:
    run(app, "SET ROLE app; CREATE TEMP TABLE mine (id int)")
    for function in ("native_arm", "native_capture"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(app, f"CREATE TRIGGER x AFTER INSERT ON mine EXECUTE FUNCTION pgherd.{function}()")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(app, "SELECT pgherd.native_interface()")


def test_the_node_goes_back_to_sql_without_the_library_and_forth(app: Connection) -> None:
    """As at a start of the sidecar: triggers, hook and functions are those of the mode."""
    make(app, "CREATE TABLE plain (id int PRIMARY KEY)")
    with contextlib.closing(admin(app.info.dsn)) as other:
        assert run(other, TO_SQL) == [("it is configured so",)]
        assert run(other, ARE_NATIVE) == [(False,)] and run(other, LIBRARY_FUNCTIONS) == [(0,)]
        run(app, "INSERT INTO plain VALUES (1)")
        assert run(other, TO_NATIVE) == [("",)]
        assert run(other, ARE_NATIVE) == [(True,)] and run(other, LIBRARY_FUNCTIONS) == [(3,)]
        run(app, "INSERT INTO plain VALUES (2)")
    assert run(app, "SELECT count(*) FROM plain") == [(2,)]


def test_a_herd_may_be_mixed(herd: LocalHerd) -> None:
    """Whoever captures, and however, all nodes have the same rows and find the same conflicts."""
    with nodes_of(herd) as nodes:
        nodes.create("CREATE TABLE shared (id int PRIMARY KEY, n int, note text UNIQUE)")
        sql = nodes.connect(1, admin=True)
        run(sql, OURS)
        assert run(sql, TO_SQL) == [("it is configured so",)]
        try:
            for number in range(3):
                run(nodes.app[number], f"INSERT INTO shared VALUES ({number}, 0, 'n{number}')")
                nodes.settle()
            for number in range(3):
                run(nodes.app[number], "UPDATE shared SET n = n + 1 WHERE id = 2")
                nodes.settle()
            run(nodes.app[1], "BEGIN; UPDATE shared SET n = 10 WHERE id = 1")
            run(nodes.app[0], "UPDATE shared SET n = 20 WHERE id = 1")
            with pytest.raises((psycopg.errors.SerializationFailure, psycopg.OperationalError)):
                run(nodes.app[1], "COMMIT")
            assert nodes.rows("shared")[0] == ["(0,0,n0)", "(1,20,n1)", "(2,3,n2)"]
            assert len({str(rows) for rows in nodes.rows("shared")}) == 1
        finally:
            assert run(sql, TO_NATIVE) == [("",)]
