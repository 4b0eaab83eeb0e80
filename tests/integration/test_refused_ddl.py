"""What cannot be replicated is refused with 0A000, never silently local (C22, C23)."""

from collections.abc import Iterator

import psycopg
import pytest

from . import border_ddl_cases, hostile_ddl_cases
from .localherd import LocalHerd, query
from .members import (
    Connection,
    assert_refused,
    assert_same_schema,
    failure,
    run,
    spread,
    superusers,
)

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, x text); INSERT INTO t VALUES (1, 'a')"
_TRIGGER = (
    "CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;"
    "CREATE TRIGGER a BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION g()"
)
_VOLATILE = "CREATE FUNCTION f() RETURNS text LANGUAGE sql VOLATILE RETURN random()::text"

# Declared IMMUTABLE, and yet it could do anything, with the rights of whoever writes a row.
_LIAR = (
    "CREATE FUNCTION liar(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE"
    " AS $$ BEGIN RETURN true; END $$"
)

#: One line each of the table "refused" in docs/ddl.md: what is there before, what is tried.
REFUSED = {
    "volatile_default": (_TABLE, "ALTER TABLE t ADD r float8 DEFAULT random()"),
    "default_now": (_TABLE, "ALTER TABLE t ADD at timestamptz DEFAULT now()"),
    "volatile_default_beside_a_generated_column": (
        _TABLE,
        "ALTER TABLE t ADD g int GENERATED ALWAYS AS (id) STORED, ADD r float8 DEFAULT random()",
    ),
    "default_current_user": (_TABLE, "ALTER TABLE t ADD who name DEFAULT current_user"),
    "add_serial": (_TABLE, "ALTER TABLE t ADD n serial"),
    "add_identity": (_TABLE, "ALTER TABLE t ADD n int GENERATED ALWAYS AS IDENTITY"),
    "type_using_volatile": (_TABLE, "ALTER TABLE t ALTER x TYPE float8 USING random()"),
    "type_using_own_function": (
        f"{_TABLE}; {_VOLATILE}",
        "ALTER TABLE t ALTER x TYPE varchar USING f() || x",
    ),
    "check_volatile": (_TABLE, "ALTER TABLE t ADD CHECK (random() < 2)"),
    "check_time": ("", "CREATE TABLE t (id int PRIMARY KEY, at date CHECK (at <= current_date))"),
    "domain_check_volatile": (_VOLATILE, "CREATE DOMAIN d AS text CHECK (VALUE <> f())"),
    "materialized_view_volatile": ("", "CREATE MATERIALIZED VIEW v AS SELECT random()"),
    "materialized_view_time": ("", "CREATE MATERIALIZED VIEW v AS SELECT now()"),
    "materialized_view_array": (
        _TABLE,
        "CREATE MATERIALIZED VIEW v AS SELECT ARRAY(SELECT x FROM t) AS a",
    ),
    "materialized_view_window": (
        _TABLE,
        "CREATE MATERIALIZED VIEW v AS SELECT id, array_agg(x) OVER () AS a FROM t",
    ),
    "materialized_view_distinct_on": (
        _TABLE,
        "CREATE MATERIALIZED VIEW v AS SELECT DISTINCT ON (x) x, id FROM t",
    ),
    "materialized_view_skip_locked": (
        _TABLE,
        "CREATE MATERIALIZED VIEW v AS SELECT * FROM t FOR UPDATE SKIP LOCKED",
    ),
    "attribute_of_a_partition_key": (
        "CREATE TYPE co AS (a int, b text); CREATE TABLE t (k co[]) PARTITION BY HASH (k);"
        "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "ALTER TYPE co DROP ATTRIBUTE b CASCADE",
    ),
    "attribute_of_a_key": (
        "CREATE TYPE co AS (a int, b text); CREATE TABLE t (k co PRIMARY KEY)",
        "ALTER TYPE co ADD ATTRIBUTE c int CASCADE",
    ),
    "column_of_a_row_in_a_key": (
        "CREATE TABLE co (a int PRIMARY KEY, b text); CREATE TABLE t (k co PRIMARY KEY)",
        "ALTER TABLE co DROP COLUMN b",
    ),
    "publication_of_deletes": (
        _TABLE,
        "CREATE PUBLICATION deletes FOR TABLE t WITH (publish = 'insert, delete')",
    ),
    "publication_of_updates": (
        _TABLE,
        "CREATE PUBLICATION updates FOR TABLE t WITH (publish = 'insert, update')",
    ),
    "column_of_our_type": ("", "CREATE TABLE t (id int PRIMARY KEY, c pgherd.committing_0)"),
    "view_of_our_table": ("", "CREATE VIEW v AS SELECT * FROM pgherd.applied"),
    "temporary_view_of_our_table": ("", "CREATE TEMP VIEW v AS SELECT * FROM pgherd.capture_0"),
    "function_of_ours": (
        "",
        "CREATE FUNCTION f() RETURNS bool LANGUAGE sql RETURN pgherd.is_new('3'::xid)",
    ),
    "function_with_our_type": (
        "",
        "CREATE FUNCTION f(pgherd.node) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ),
    "check_own_function": (_LIAR, "CREATE TABLE t (id int PRIMARY KEY CHECK (liar(id)))"),
    "generated_own_function": (
        _LIAR,
        "CREATE TABLE t (id int PRIMARY KEY, g bool GENERATED ALWAYS AS (liar(id)) STORED)",
    ),
    "index_own_function": (f"{_LIAR}; {_TABLE}", "CREATE INDEX ON t (liar(id))"),
    "index_where_own_function": (f"{_LIAR}; {_TABLE}", "CREATE INDEX ON t (x) WHERE liar(id)"),
    "domain_own_function": (_LIAR, "CREATE DOMAIN d AS int CHECK (liar(VALUE))"),
    "partition_own_function": (
        _LIAR,
        "CREATE TABLE t (id int) PARTITION BY LIST ((liar(id)))",
    ),
    "range_own_function": (
        "CREATE FUNCTION gap(float8, float8) RETURNS float8 LANGUAGE sql IMMUTABLE RETURN $1 - $2",
        "CREATE TYPE r AS RANGE (SUBTYPE = float8, SUBTYPE_DIFF = gap)",
    ),
    "check_own_operator": (
        "CREATE FUNCTION less(int, int) RETURNS bool LANGUAGE sql IMMUTABLE RETURN $1 < $2;"
        "CREATE OPERATOR <<<< (LEFTARG = int, RIGHTARG = int, FUNCTION = less)",
        "CREATE TABLE t (id int PRIMARY KEY CHECK (id <<<< 5))",
    ),
    "cast_to_row_type": (
        f"{_TABLE}; CREATE FUNCTION r(text) RETURNS t LANGUAGE sql RETURN ROW(1, 'evil')::t",
        "CREATE CAST (text AS t) WITH FUNCTION r(text)",
    ),
    "cast_from_row_type": (
        f"{_TABLE}; CREATE FUNCTION r(t) RETURNS text LANGUAGE sql RETURN 'same'",
        "CREATE CAST (t AS text) WITH FUNCTION r(t)",
    ),
    "unique_index_concurrently": (
        "CREATE TABLE t (x int NOT NULL)",
        "CREATE UNIQUE INDEX CONCURRENTLY ON t (x)",
    ),
    "index_concurrently_own_function": (
        f"{_LIAR}; {_TABLE}",
        "CREATE INDEX CONCURRENTLY ON t (liar(id))",
    ),
    "index_concurrently_hash": (_TABLE, "CREATE INDEX CONCURRENTLY ON t (hash_record(ROW(x)))"),
    "set_unlogged": (_TABLE, "ALTER TABLE t SET UNLOGGED"),
    "tablespace": ("", "CREATE TABLE t (id int PRIMARY KEY) TABLESPACE elsewhere"),
    "disable_trigger": (_TABLE, "ALTER TABLE t DISABLE TRIGGER pgherd_insert"),
    "disable_trigger_all": (_TABLE, "ALTER TABLE t DISABLE TRIGGER ALL"),
    "disable_trigger_user": (_TABLE, "ALTER TABLE t DISABLE TRIGGER USER"),
    "drop_trigger": (_TABLE, "DROP TRIGGER pgherd_insert ON t"),
    "rename_trigger": (_TABLE, "ALTER TRIGGER pgherd_insert ON t RENAME TO harmless"),
    "trigger_named_like_ours": (
        f"{_TABLE}; {_TRIGGER}",
        "CREATE TRIGGER pgherd_insert2 BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION g()",
    ),
    "trigger_enable_always": (
        f"{_TABLE}; {_TRIGGER}",
        "ALTER TABLE t ENABLE ALWAYS TRIGGER a",
    ),
    "rule_enable_replica": (
        f"{_TABLE}; CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING",
        "ALTER TABLE t ENABLE REPLICA RULE r",
    ),
    "sequence_cycle": ("", "CREATE SEQUENCE s MAXVALUE 1000 CYCLE"),
    "sequence_too_narrow": ("", "CREATE SEQUENCE s MAXVALUE 2"),
    "sequence_range": ("CREATE SEQUENCE s", "ALTER SEQUENCE s MAXVALUE 1000"),
    "like_temporary": ("CREATE TEMP TABLE scratch (id int)", "CREATE TABLE t (LIKE scratch)"),
    "session_user": ("", "CREATE SCHEMA again AUTHORIZATION SESSION_USER"),
    "command_in_sql_function": (
        "CREATE FUNCTION g() RETURNS void LANGUAGE sql AS 'CREATE TABLE made (id int PRIMARY KEY)'",
        "SELECT g()",
    ),
    "rollback_in_message": (
        "",
        "BEGIN; SAVEPOINT s; CREATE TABLE a (id int); ROLLBACK TO s;"
        " CREATE TABLE b (id int); COMMIT",
    ),
    "foreign_key_to_local_table": (
        "CREATE TABLE p (id int PRIMARY KEY); SELECT pgherd.set_local('p')",
        "CREATE TABLE t (id int PRIMARY KEY REFERENCES p)",
    ),
    "set_local_with_foreign_key": (
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY REFERENCES p)",
        "SELECT pgherd.set_local('p')",
    ),
    "set_local_partition": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);"
        "CREATE TABLE t PARTITION OF p FOR VALUES IN (1)",
        "SELECT pgherd.set_local('t')",
    ),
    "set_replicated_with_rows": (
        "CREATE TABLE t (id int PRIMARY KEY);"
        "SELECT pgherd.set_local('t'); INSERT INTO t VALUES (1)",
        "SELECT pgherd.set_replicated('t')",
    ),
    "set_replicated_with_foreign_key": (
        "BEGIN; CREATE TABLE p (id int PRIMARY KEY); SELECT pgherd.set_local('p');"
        "CREATE TABLE t (id int PRIMARY KEY); SELECT pgherd.set_local('t');"
        "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES p; COMMIT",
        "SELECT pgherd.set_replicated('t')",
    ),
    "set_replicated_referenced": (
        "BEGIN; CREATE TABLE p (id int PRIMARY KEY); SELECT pgherd.set_local('p');"
        "CREATE TABLE t (id int PRIMARY KEY); SELECT pgherd.set_local('t');"
        "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES p; COMMIT",
        "SELECT pgherd.set_replicated('p')",
    ),
    "standard_strings": ("SET standard_conforming_strings = off", "CREATE TABLE t (id int)"),
    "serializable": ("SET default_transaction_isolation = serializable", "CREATE TABLE t (id int)"),
}

ALL_REFUSED = REFUSED | border_ddl_cases.REFUSED | hostile_ddl_cases.REFUSED

#: What PostgreSQL itself refuses, because the rights were taken away: 42501.
DENIED = {
    "lo_create": "SELECT lo_create(0)",
    "lo_from_bytea": "SELECT lo_from_bytea(0, 'x')",
    "setval_of_another": "SELECT pgherd.setval('public.of_another', 5)",
    "postgresqls_setval_of_another": "SELECT pg_catalog.setval('public.of_another', 5, true)",
    "local_setval": "SELECT pgherd.local_setval('public.of_another'::regclass, 5)",
    "set_local_of_another": "SELECT pgherd.set_local('public.table_of_another')",
    "run_everywhere": "SELECT pgherd.run_everywhere('CREATE ROLE x')",
    "forged_request": "INSERT INTO pgherd.request (role, act, object)"
    " VALUES ('postgres', 'run', 'CREATE ROLE x')",
    "dblink": "SELECT pgherd.dblink_connect('x', 'port=1')",
    "internals": "SELECT pgherd.put('5', 0, '\"\"', '', '{}', '{}')",
    "capture": "DELETE FROM pgherd.capture_0",
    "generated": "SELECT pgherd.execute_command('{}')",
    "create_in_our_schema": "CREATE TABLE pgherd.t (id int)",
}

#: What only superusers can try.
REFUSED_TO_SUPERUSERS = {
    "c_function": "CREATE FUNCTION f() RETURNS int LANGUAGE c"
    " AS '$libdir/dblink', 'dblink_connect'",
    "foreign_server": "CREATE FOREIGN DATA WRAPPER w",
    "our_schema": "CREATE TABLE pgherd.mine (id int)",
    "drop_our_function": "DROP FUNCTION pgherd.certify()",
    "drop_our_schema": "DROP SCHEMA pgherd_gen CASCADE",
    "drop_dblink": "DROP EXTENSION dblink CASCADE",
    "extension_cascade": "CREATE EXTENSION earthdistance CASCADE",
    "run_everywhere_table": "SELECT pgherd.run_everywhere('CREATE TABLE public.t (id int)')",
    "run_everywhere_two": "SELECT pgherd.run_everywhere('RESET work_mem; RESET jit')",
    "run_everywhere_select": "SELECT pgherd.run_everywhere('SELECT 1')",
}


@pytest.fixture(scope="module", autouse=True)
def tablespace(herd: LocalHerd) -> Iterator[None]:
    """Each server gets one that ordinary users may use; none can be copied while it is there."""
    for node in herd.nodes():
        with psycopg.connect(node.dsn, autocommit=True) as admin:
            admin.execute("SET allow_in_place_tablespaces = on")
            admin.execute("CREATE TABLESPACE elsewhere LOCATION ''")
            admin.execute("GRANT CREATE ON TABLESPACE elsewhere TO PUBLIC")
    yield
    for node in herd.nodes():
        query(node.dsn, "DROP TABLESPACE elsewhere")


@pytest.mark.family(every=6)
@pytest.mark.parametrize("case", ALL_REFUSED)
async def test_refused(connections: list[Connection], schema: str, case: str) -> None:
    before, statement = ALL_REFUSED[case]
    if before:
        await run(connections[0], before)
    await assert_refused(connections, schema, statement)


@pytest.mark.parametrize("case", DENIED)
async def test_denied(
    connections: list[Connection], schema: str, herd: LocalHerd, case: str
) -> None:
    async with superusers(herd, schema) as admins:
        await spread(
            admins,
            0,
            "CREATE SEQUENCE IF NOT EXISTS public.of_another;"
            "CREATE TABLE IF NOT EXISTS public.table_of_another (id int)",
        )
    await run(connections[0], "CREATE SEQUENCE s")
    error = await failure(connections[0], DENIED[case])
    assert error.sqlstate == "42501", error


@pytest.mark.parametrize("case", REFUSED_TO_SUPERUSERS)
async def test_refused_to_superusers(
    connections: list[Connection], schema: str, herd: LocalHerd, case: str
) -> None:
    async with superusers(herd, schema) as admins:
        error = await failure(admins[0], REFUSED_TO_SUPERUSERS[case])
        assert error.sqlstate == "0A000", error
        assert error.diag.message_hint


async def test_a_trigger_that_a_superuser_promises_hinders_no_command_of_others(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    """He has enabled it on each member, in replica role; the commands concern all tables."""
    await spread(
        connections,
        0,
        f"{_TABLE}; {_TRIGGER}; CREATE RULE r AS ON DELETE TO t DO ALSO NOTHING;"
        " CREATE DOMAIN d AS int; CREATE TYPE e AS ENUM ('a')",
    )
    async with superusers(herd, schema) as admins:
        for admin in admins:
            await run(
                admin,
                "SET session_replication_role = replica;"
                " ALTER TABLE t ENABLE ALWAYS TRIGGER a, ENABLE ALWAYS RULE r",
            )
    await run(connections[0], "ALTER DOMAIN d ADD CHECK (VALUE > 0)")
    await run(connections[0], "ALTER TYPE e RENAME TO f")
    await assert_same_schema(connections, schema)
    await assert_refused(connections, schema, "ALTER TABLE t ENABLE ALWAYS TRIGGER a")


async def test_our_schema_cannot_be_renamed(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    async with superusers(herd, schema) as admins:
        error = await failure(admins[0], "ALTER SCHEMA pgherd RENAME TO other")
        assert error.sqlstate == "3F000", "what would have to judge it no longer finds its way"


async def test_defaults_that_differ_are_fine_on_an_empty_table(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    await run(
        connections[0],
        "ALTER TABLE t ADD r float8 DEFAULT random(), ADD at timestamptz DEFAULT now(),"
        " ADD n serial",
    )
    await run(connections[0], "INSERT INTO t (id) VALUES (1); ALTER TABLE t ADD x int DEFAULT 3")
    await assert_same_schema(connections, schema)


async def test_what_is_close_to_the_refused_works(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        f"{_TABLE}; ALTER TABLE t ALTER x SET STORAGE EXTERNAL;"
        " UPDATE t SET x = repeat('a', 10000); CREATE VIEW v AS SELECT pgherd.last_gid();"
        " CREATE MATERIALIZED VIEW m AS SELECT id, array_agg(id) OVER (ORDER BY id) AS a,"
        " rank() OVER (ORDER BY id) AS r FROM t;"
        " CREATE MATERIALIZED VIEW o AS SELECT ARRAY(SELECT x FROM t ORDER BY x) AS a;"
        " CREATE MATERIALIZED VIEW n AS SELECT DISTINCT ON (id) id, x FROM t ORDER BY id, x;"
        " CREATE TYPE co AS (a int); CREATE TABLE c (id int PRIMARY KEY, v co);"
        " INSERT INTO c VALUES (1, ROW(1)); ALTER TYPE co ADD ATTRIBUTE b text;"
        " UPDATE c SET id = 2; ALTER TYPE co DROP ATTRIBUTE a; UPDATE c SET id = 3;"
        " ALTER TABLE t ADD g int GENERATED ALWAYS AS (id * 2) STORED;"
        f" CREATE PUBLICATION {schema}_both FOR TABLE t;"
        f" CREATE PUBLICATION {schema}_inserts FOR TABLE t WITH (publish = 'insert')",
    )
    await assert_same_schema(connections, schema)
    async with superusers(herd, schema) as admins:
        fixed = await run(admins[0], f"SELECT (pgherd.describe('{schema}.c')).fixed")
    assert fixed == [([0, 1],)]  # else subscribers to inserts would miss rows
    await run(connections[0], f"DROP PUBLICATION {schema}_both, {schema}_inserts")


async def test_command_that_writes_replicated_rows_itself_is_refused(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE log (id serial PRIMARY KEY); CREATE FUNCTION f() RETURNS int LANGUAGE sql"
        " AS 'INSERT INTO log DEFAULT VALUES RETURNING id'",
    )
    error = await failure(connections[0], "CREATE TABLE t AS SELECT f() AS id")
    assert error.sqlstate == "0A000"


async def test_names_of_a_hostile_search_path_are_not_called(
    connections: list[Connection], schema: str
) -> None:
    await spread(
        connections,
        0,
        """
        CREATE FUNCTION format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
        CREATE FUNCTION current_setting(text) RETURNS text LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
        CREATE FUNCTION get(jsonb, text) RETURNS text LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
        CREATE OPERATOR ->> (LEFTARG = jsonb, RIGHTARG = text, FUNCTION = get);
        """,
    )
    await run(connections[0], f"SET search_path = {schema}, pg_catalog")
    await run(
        connections[0], "CREATE TABLE t (id serial PRIMARY KEY); INSERT INTO t DEFAULT VALUES"
    )
    await run(connections[0], "ALTER TABLE t ADD x int; UPDATE t SET x = 1; DROP TABLE t")
    await assert_same_schema(connections, schema)
