"""No ordinary user can make nodes differ, stop one, or borrow our rights (C1, C2, C6, C25)."""

import random
from collections.abc import Iterator

import psycopg
import pytest
from patience import wait_until

from .localherd import LocalHerd
from .nodes import Nodes, nobody_stops, nodes_of, run, sql_cases, sql_file

OURS = """
SELECT p.proname, has_function_privilege('app', p.oid, 'EXECUTE')
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname IN ('pgherd', 'pgherd_gen') AND has_schema_privilege('app', n.oid, 'USAGE')
"""
OUR_RELATIONS = """
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname IN ('pgherd', 'pgherd_gen') AND c.relkind IN ('r', 'v', 'S') ORDER BY 1
"""
FOR_EVERYBODY = {"current_token", "transaction_status", "last_gid", "set_local", "set_replicated"}
FOR_EVERYBODY |= {"setval", "run_everywhere", "limit_role"}  # each checks what its caller may do
FOR_EVERYBODY |= {"wait_for", "last_commit_gid"}  # tell positions only
FOR_EVERYBODY |= {"why_read_only"}  # tells whoever is refused the reason that he is refused with
FOR_EVERYBODY |= {"gid_of_row"}  # reads a table with the rights of its caller
FOR_EVERYBODY |= {"strong", "begin_strong", "fresh"}  # make nobody wait but their caller
FORBIDDEN = sql_cases("hostile_forbidden")


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        nodes.create(sql_file("hostile_tables"))
        yield nodes
        # Other tests would be refused functions that call something by the name of a trap.
        run(nodes.app[0], f"DROP SCHEMA {nodes.schema}_evil, {nodes.schema}_worse CASCADE")


@pytest.fixture
def stranger(nodes: Nodes) -> Iterator[psycopg.Connection]:
    """A role that owns nothing and was granted one table."""
    name = f"stranger_{random.getrandbits(32):x}"
    run(nodes.admin[0], f"SELECT pgherd.run_everywhere('CREATE ROLE {name} LOGIN')")
    run(nodes.admin[0], f"GRANT USAGE ON SCHEMA {nodes.schema} TO {name}")
    run(nodes.admin[0], f"GRANT SELECT, INSERT, UPDATE, DELETE ON plain TO {name}")
    nodes.settle()
    session = nodes.connect(0, admin=True)
    run(session, f"SET SESSION AUTHORIZATION {name}")
    yield session
    session.close()
    run(nodes.admin[0], f"REVOKE ALL ON plain FROM {name}")
    run(nodes.admin[0], f"REVOKE ALL ON SCHEMA {nodes.schema} FROM {name}")
    run(nodes.admin[0], f"SELECT pgherd.run_everywhere('DROP ROLE {name}')")
    nodes.settle()


@pytest.mark.family(every=6)
@pytest.mark.parametrize("script", FORBIDDEN.values(), ids=FORBIDDEN)
def test_is_refused_and_changes_nothing(nodes: Nodes, script: str) -> None:
    before = nodes.equal_rows("plain")
    session = nodes.connect(0)
    with pytest.raises(psycopg.Error):
        run(session, script)
        run(session, "COMMIT")
        pytest.fail("nothing was refused")
    session.close()
    nodes.settle()
    run(nodes.app[1], "UPDATE plain SET v = v WHERE id = 1")
    assert nodes.equal_rows("plain") == before


def test_no_function_of_ours_may_be_called(nodes: Nodes) -> None:
    functions = run(nodes.admin[0], OURS)
    assert len(functions) > 50
    callable_ = {name for name, allowed in functions if allowed}
    assert callable_ <= FOR_EVERYBODY


@pytest.mark.parametrize("privilege", ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"])
def test_no_table_of_ours_may_be_touched(nodes: Nodes, privilege: str) -> None:
    for (relation,) in run(nodes.admin[0], OUR_RELATIONS):
        [(allowed,)] = nodes.admin[0].execute(
            "SELECT has_table_privilege('app', %s, %s)", (relation, privilege)
        )
        # The commit chain holds numbers only, and last_gid() reads it.
        assert not allowed or (relation, privilege) == ("pgherd.applied", "SELECT"), relation


def test_the_secret_is_nowhere_to_be_seen(nodes: Nodes) -> None:
    [(secret,)] = run(nodes.admin[0], "SELECT secret FROM pgherd.node")
    session = nodes.connect(0)
    run(session, "INSERT INTO plain VALUES (77, 'x'); DELETE FROM plain WHERE id = 77")
    for source in ("pg_stat_activity", "pg_settings", "pg_cursors", "pg_prepared_statements"):
        rows = run(session, f"SELECT (t.*)::text FROM {source} t")
        assert not any(str(secret) in row[0] for row in rows), source
    for admin in nodes.admin:
        log = run(admin, "SELECT pg_current_logfile()")
        assert log is not None


def test_names_in_front_of_ours_are_never_called(nodes: Nodes) -> None:
    """Operators, functions, types and collations of the user's under our names (C6)."""
    session = nodes.connect(0)
    notices: list[str] = []
    session.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    run(session, f"SET search_path = {nodes.schema}_evil, {nodes.schema}, pg_catalog")
    for statement in sql_cases("hostile_writes").values():
        run(session, statement)
    run(session, f"SET search_path = {nodes.schema}_worse, {nodes.schema}, pg_catalog")
    run(session, "INSERT INTO wide VALUES (1), (2); UPDATE wide SET id = 3 WHERE id = 1")
    assert notices == []
    run(session, f"SET search_path = {nodes.schema}")
    nodes.equal_rows("plain", "keyed", "wide")


#: Commands of an ordinary user, and what they leave to those after them.
_COMMANDS = """
CREATE TABLE trapped (id int PRIMARY KEY, v text)
CREATE TABLE counted (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v text)
COMMENT ON TABLE trapped IS 'x'
INSERT INTO trapped VALUES (1, 'a'), (2, 'b')
ALTER TABLE trapped ADD more int DEFAULT 1, ALTER v SET NOT NULL
CREATE UNIQUE INDEX ON trapped (v)
CREATE INDEX CONCURRENTLY trapped_more ON trapped (more)
UPDATE trapped SET more = 2
CREATE VIEW seen AS TABLE trapped
CREATE MATERIALIZED VIEW kept AS TABLE trapped
REFRESH MATERIALIZED VIEW kept
CREATE TABLE filled AS TABLE trapped
CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1
CREATE TYPE mood AS ENUM ('good')
ALTER TYPE mood ADD VALUE 'bad'
CREATE DOMAIN short AS text NOT NULL
ALTER SEQUENCE counted_id_seq RESTART WITH 100
INSERT INTO counted (v) VALUES ('a')
GRANT SELECT ON trapped TO PUBLIC
DELETE FROM trapped WHERE id IS NOT NULL
TRUNCATE trapped, counted
DROP INDEX CONCURRENTLY trapped_more
ALTER TABLE trapped RENAME TO renamed
DROP TABLE renamed, counted, filled CASCADE
"""


def test_no_name_of_ours_is_looked_up_where_a_user_says(herd: LocalHerd, nodes: Nodes) -> None:
    """Commands run under the user's search_path, on other members with a superuser's session."""
    admins = [nodes.connect(number, admin=True) for number in range(len(nodes.admin))]
    for admin in admins:
        run(admin, "SET session_replication_role = replica; CREATE SCHEMA traps")
        run(admin, "GRANT USAGE ON SCHEMA traps TO PUBLIC")
        run(admin, sql_file("hostile_traps"))
        found = "FROM pg_proc WHERE pronamespace = 'traps'::regnamespace"
        assert run(admin, f"SELECT count(*) > 2000 {found}") == [(True,)]
    session = nodes.connect(0)
    run(session, f"SET search_path = traps, {nodes.schema}, pg_catalog")
    with pytest.raises(psycopg.errors.RaiseException, match="is called"):
        run(session, "SELECT current_setting('work_mem', true)")
    run(session, f"SET search_path = {nodes.schema}, traps, pg_catalog")
    try:
        with nobody_stops(herd, nodes):
            for command in _COMMANDS.strip().splitlines():
                run(session, command)
    finally:
        session.close()
        for admin in admins:
            run(admin, "DROP SCHEMA traps CASCADE")


def test_a_stranger_writes_with_grants_only(nodes: Nodes, stranger: psycopg.Connection) -> None:
    run(stranger, "INSERT INTO plain VALUES (500, 's'); UPDATE plain SET v = 't' WHERE id = 500")
    assert "(500,t)" in nodes.equal_rows("plain")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(stranger, "SELECT * FROM keyed")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO pgherd.request (role, act, object) VALUES"
        " ('postgres', 'run', 'ALTER ROLE pg_monitor SUPERUSER')",
        "INSERT INTO pgherd.shared VALUES ('{role,nobody}', '{}')",
        "INSERT INTO pgherd.role_limits VALUES ('app', '{}')",
        "INSERT INTO pgherd.applied VALUES (999999, 999998)",
        "INSERT INTO pgherd.local_tables DEFAULT VALUES",
    ],
)
def test_who_writes_all_tables_writes_none_of_ours(
    nodes: Nodes, stranger: psycopg.Connection, statement: str
) -> None:
    admin, name = nodes.admin[0], run(stranger, "SELECT session_user")[0][0]
    run(
        admin,
        f"SELECT pgherd.run_everywhere('GRANT pg_write_all_data, pg_read_all_data TO {name}')",
    )
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(stranger, statement)
        assert run(stranger, "SELECT * FROM pgherd.node") == []  # it holds the secret
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(stranger, "SELECT pgherd.run_everywhere('DROP ROLE app')")
        run(stranger, "INSERT INTO plain VALUES (501, 'w')")
        run(stranger, "DELETE FROM plain WHERE id = 501")
    finally:
        run(admin, f"SELECT pgherd.run_everywhere('REVOKE pg_write_all_data FROM {name}')")
        run(admin, f"SELECT pgherd.run_everywhere('REVOKE pg_read_all_data FROM {name}')")


def test_who_writes_all_tables_finds_no_other_way_to_what_is_ours(
    nodes: Nodes, stranger: psycopg.Connection
) -> None:
    """Whatever there is in our schemas: also what is made after row security was switched on."""
    admin, name = nodes.admin[0], run(stranger, "SELECT session_user")[0][0]
    roles = ("pg_write_all_data", "pg_read_all_data")
    for role in roles:
        run(admin, f"SELECT pgherd.run_everywhere('GRANT {role} TO {name}')")
    ours = "IN (to_regnamespace('pgherd'), to_regnamespace('pgherd_gen'))"
    relations = run(
        admin,
        f"SELECT oid::regclass::text, relkind::text FROM pg_class WHERE relnamespace {ours}"
        " AND relkind NOT IN ('i', 'c', 't')",
    )
    try:
        assert len([kind for _, kind in relations if kind == "r"]) > 10
        for relation, kind in relations:
            assert kind in ("r", "v", "S"), f"{relation}: nobody has thought of this kind"
            assert_unwritable(stranger, relation, kind)
        functions = run(
            admin,
            f"SELECT has_function_privilege('{name}', oid, 'EXECUTE') FROM pg_proc"
            " WHERE pronamespace = to_regnamespace('pgherd_gen')",
        )
        assert set(functions) == {(False,)}
    finally:
        for role in roles:
            run(admin, f"SELECT pgherd.run_everywhere('REVOKE {role} FROM {name}')")


def assert_unwritable(stranger: psycopg.Connection, relation: str, kind: str) -> None:
    """No way to write it, or to learn by an error or a count that there are rows."""
    if kind == "S":
        refused = "0A000", "42501"
        assert refusal(stranger, f"SELECT nextval('{relation}')") in refused, relation
        return
    if relation != "pgherd.request":  # the way in, which is refused by what is asked for
        assert refusal(stranger, f"INSERT INTO {relation} DEFAULT VALUES") in (
            "42501", "55000"
        ), relation  # fmt: skip
    columns = run(
        stranger,
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{relation}'::regclass AND attnum > 0",
    )
    for (column,) in columns:
        assert refusal(stranger, f'UPDATE {relation} SET "{column}" = "{column}"') in (
            "0 rows", "55000",
        ), relation  # fmt: skip
    assert refusal(stranger, f"DELETE FROM {relation}") in ("0 rows", "55000"), relation


def refusal(session: psycopg.Connection, statement: str) -> str:
    """The SQLSTATE of a refusal, or how many rows were written; nothing of it lasts."""
    try:
        with session.transaction(force_rollback=True):
            return f"{session.execute(statement.encode()).rowcount} rows"
    except psycopg.Error as error:
        return error.sqlstate or str(error)


def test_a_commit_that_slipped_past_the_hook_is_adopted(nodes: Nodes) -> None:
    """By a superuser's doing here; an ordinary user can by a deferred trigger (C1)."""
    superuser = nodes.connect(0, admin=True)
    run(superuser, "SET session_replication_role = replica")
    for action in ("DISABLE", "ENABLE"):
        for side in (0, 1):
            run(superuser, f"ALTER TABLE pgherd.capture_{side} {action} TRIGGER arm")
        if action == "DISABLE":
            run(nodes.app[0], "INSERT INTO plain VALUES (900, 'l')")
    wait_until(lambda: run(nodes.admin[1], "SELECT 1 FROM plain WHERE id = 900"))
    assert "(900,l)" in nodes.equal_rows("plain")
