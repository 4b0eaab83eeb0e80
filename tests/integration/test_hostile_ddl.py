"""No ordinary user's DDL makes members differ, or stops one (C1, C22, C23)."""

import psycopg
import pytest

from .localherd import LocalHerd
from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    failure,
    run,
    same_everywhere,
    superusers,
)

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, x text, y text);"
_FILLED = f"{_TABLE} INSERT INTO t VALUES (1, '1', 'today')"
_CLOSER = (
    "CREATE FUNCTION closer() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN EXECUTE 'CLOSE ALL'; RETURN NULL; END $$;"
)
_DEFERRED = (
    "CREATE CONSTRAINT TRIGGER a AFTER INSERT ON {} DEFERRABLE{} FOR EACH ROW"
    " EXECUTE FUNCTION closer()"
)
_GENERATED = "CREATE TABLE t (id int PRIMARY KEY, x {}, g text GENERATED ALWAYS AS ({}) STORED)"
_DIFFERENT = (
    "CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql {} AS"
    " $$ BEGIN RETURN current_setting('port'); END $$;"
)
_TEMPORARY = "CREATE TYPE pg_temp.e AS ENUM ('a', 'b');"
_PLUS = (
    "CREATE FUNCTION plus(int, int) RETURNS int LANGUAGE plpgsql AS"
    " $$ BEGIN RETURN $1 + $2 + current_setting('port')::int; END $$;"
)
_STABLE_CHECK = "CREATE TABLE t (id int PRIMARY KEY, at {} CHECK ({}))"

#: What is there before, what is tried: refused with 0A000 and a hint, and nothing is changed.
REFUSED = {
    # C1: what a deferred trigger does, it does inside COMMIT, where the hook is armed already.
    "deferred_trigger": (_TABLE + _CLOSER, _DEFERRED.format("t", " INITIALLY DEFERRED")),
    "deferrable_trigger": (_TABLE + _CLOSER, _DEFERRED.format("t", "")),
    "deferred_trigger_on_partitioned_table": (
        f"CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id); {_CLOSER}",
        _DEFERRED.format("p", " INITIALLY DEFERRED"),
    ),
    "deferred_trigger_on_local_table": (
        f"{_TABLE} {_CLOSER} SELECT pgherd.set_local('t')",
        _DEFERRED.format("t", " INITIALLY DEFERRED"),
    ),
    # What other members do not have.
    "column_of_temporary_type": (_TEMPORARY, "CREATE TABLE t (id int PRIMARY KEY, e pg_temp.e)"),
    "column_of_temporary_type_by_search_path": (
        _TEMPORARY,
        "CREATE TABLE t (id int PRIMARY KEY, e e)",
    ),
    "column_of_temporary_row_type": (
        "CREATE TEMP TABLE scratch (id int)",
        "CREATE TABLE t (id int PRIMARY KEY, s scratch[])",
    ),
    "column_of_temporary_domain": (
        "CREATE DOMAIN pg_temp.d AS int",
        "CREATE TABLE t (id int PRIMARY KEY, d d)",
    ),
    "default_of_temporary_function": (
        "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1",
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT pg_temp.f())",
    ),
    "view_of_temporary_function": (
        "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1",
        "CREATE VIEW v AS SELECT pg_temp.f()",
    ),
    "function_with_temporary_argument": (
        _TEMPORARY,
        "CREATE FUNCTION f(e) RETURNS int LANGUAGE sql RETURN 1",
    ),
    "function_over_temporary_table": (
        "CREATE TEMP TABLE scratch (id int)",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN (SELECT max(id) FROM scratch)",
    ),
    "domain_over_temporary_type": (_TEMPORARY, "CREATE DOMAIN d AS e"),
    "temporary_regclass_in_default": (
        "CREATE TEMP TABLE scratch (id int)",
        "CREATE TABLE t (id int PRIMARY KEY, r oid DEFAULT 'scratch'::regclass)",
    ),
    "cast_of_temporary_type": (_TEMPORARY, "CREATE CAST (e AS int) WITH INOUT"),
    "operator_of_temporary_type": (
        f"{_TEMPORARY} CREATE FUNCTION pg_temp.same(e, e) RETURNS bool LANGUAGE sql RETURN true",
        "CREATE OPERATOR === (LEFTARG = e, RIGHTARG = e, FUNCTION = pg_temp.same)",
    ),
    "statistics_of_temporary_table": (
        "CREATE TEMP TABLE scratch (a int, b int)",
        "CREATE STATISTICS s ON a, b FROM scratch",
    ),
    "type_using_temporary_type": (
        f"{_FILLED}; {_TEMPORARY}",
        "ALTER TABLE t ALTER x TYPE text USING 'a'::e::text",
    ),
    "column_of_names": ("", "CREATE TABLE t (id int PRIMARY KEY, r regclass)"),
    "column_of_names_within": (
        "CREATE DOMAIN d AS regrole; CREATE TYPE c AS (x int, d d[])",
        "CREATE TABLE t (id int PRIMARY KEY, c c)",
    ),
    "column_of_privileges": (_TABLE, "ALTER TABLE t ADD p aclitem[]"),
    "composite_of_names": (
        "CREATE TYPE c AS (x int); CREATE TABLE t (id int PRIMARY KEY, c c)",
        "ALTER TYPE c ADD ATTRIBUTE r regtype",
    ),
    "column_of_names_made_replicated": (
        "CREATE TABLE p (); SELECT pgherd.set_local('p'); ALTER TABLE p ADD r regclass",
        "SELECT pgherd.set_replicated('p')",
    ),
    # Dates that are read when the command is executed: by each member at another time.
    "check_now": ("", _STABLE_CHECK.format("timestamptz", "at <> 'now'")),
    "check_typed_now": ("", _STABLE_CHECK.format("date", "at > date 'yesterday'")),
    "check_escaped_now": ("", _STABLE_CHECK.format("date", r"at > E'\x6eow'")),
    "check_decorated_now": ("", _STABLE_CHECK.format("timestamp", "at > ' _TODAY_ 10:00'")),
    "check_range_now": ("", _STABLE_CHECK.format("tstzrange", "at && '[now,tomorrow)'")),
    "check_array_now": ("", _STABLE_CHECK.format("date", "at <> ALL ('{now}')")),
    "check_cast_at_run_time": ("", _STABLE_CHECK.format("date", "at > ('to' || 'day')::date")),
    "default_constant_now": ("", "CREATE TABLE t (id int PRIMARY KEY, at date DEFAULT 'now')"),
    "new_column_default_now": (_FILLED, "ALTER TABLE t ADD at timestamptz DEFAULT 'now'"),
    "new_column_default_date_of_text": (
        _FILLED,
        "ALTER TABLE t ADD at timestamptz DEFAULT ('n' || 'ow')::timestamptz",
    ),
    "index_where_now": (
        "CREATE TABLE t (id int PRIMARY KEY, at date)",
        "CREATE UNIQUE INDEX ON t (at) WHERE at > 'today'",
    ),
    "partition_bound_now": (
        "CREATE TABLE p (at date PRIMARY KEY) PARTITION BY RANGE (at)",
        "CREATE TABLE t PARTITION OF p FOR VALUES FROM ('today') TO ('tomorrow')",
    ),
    "partition_bound_function": (
        "CREATE TABLE p (at timestamptz PRIMARY KEY) PARTITION BY RANGE (at)",
        "CREATE TABLE t PARTITION OF p FOR VALUES FROM (now()) TO ('infinity')",
    ),
    "partition_bound_setting": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE t PARTITION OF p FOR VALUES IN (current_setting('port')::int)",
    ),
    "partition_bound_own_operator": (
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);"
        f"{_PLUS} CREATE OPERATOR <+> (LEFTARG = int, RIGHTARG = int, FUNCTION = plus)",
        "CREATE TABLE t PARTITION OF p FOR VALUES IN (1 <+> 1)",
    ),
    "view_now": ("", "CREATE VIEW v AS SELECT timestamp 'now' AS at"),
    "policy_now": (
        "CREATE TABLE t (id int PRIMARY KEY, at date)",
        "CREATE POLICY p ON t USING (at > 'now')",
    ),
    "domain_default_now": ("", "CREATE DOMAIN d AS date DEFAULT 'tomorrow'"),
    "function_body_now": ("", "CREATE FUNCTION f() RETURNS date LANGUAGE sql RETURN date 'today'"),
    # Values computed by each member for itself.
    "new_column_default_oid": (_FILLED, "ALTER TABLE t ADD r oid DEFAULT 't'::regclass::oid"),
    "new_column_default_stable": (
        f"{_FILLED}; {_DIFFERENT.format('STABLE')}",
        "ALTER TABLE t ADD z text DEFAULT f()",
    ),
    "new_column_default_liar": (
        f"{_FILLED}; {_DIFFERENT.format('IMMUTABLE')}",
        "ALTER TABLE t ADD z text DEFAULT f()",
    ),
    "new_column_default_setting": (
        _FILLED,
        "ALTER TABLE t ADD z text DEFAULT current_setting('port')",
    ),
    "new_column_default_changed_at_once": (
        _FILLED,
        "ALTER TABLE t ADD z text DEFAULT pg_current_snapshot()::text, ALTER z SET DEFAULT 'z'",
    ),
    "type_using_date_of_text": (_FILLED, "ALTER TABLE t ALTER y TYPE date USING y::date"),
    "type_using_date_function": (_FILLED, "ALTER TABLE t ALTER y TYPE date USING date(y)"),
    "type_using_date_there_and_back": (
        _FILLED,
        "ALTER TABLE t ALTER y TYPE varchar USING y::timestamp::varchar",
    ),
    "type_using_date_for_text": (_FILLED, "ALTER TABLE t ALTER y TYPE varchar USING y::timestamp"),
    "type_using_oid": (_FILLED, "ALTER TABLE t ALTER y TYPE text USING 't'::regclass::oid::text"),
    "type_by_own_cast": (
        f"CREATE TYPE c AS (at timestamp); {_FILLED}",
        "CREATE CAST (text AS c) WITH INOUT AS ASSIGNMENT",
    ),
    "set_from_current": (
        "",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql SET work_mem FROM CURRENT RETURN 1",
    ),
    "type_of_temporary_column": (
        "CREATE TEMP TABLE scratch (id int)",
        "CREATE FUNCTION f(scratch.id%TYPE) RETURNS int LANGUAGE sql RETURN 1",
    ),
    "type_using_domain_of_date": (
        f"{_FILLED}; CREATE DOMAIN d AS timestamp",
        "ALTER TABLE t ALTER y TYPE d USING y::d",
    ),
    "type_using_now": (_FILLED, "ALTER TABLE t ALTER y TYPE timestamp USING 'now'"),
    "type_using_own_operator": (
        f"{_FILLED}; {_PLUS} CREATE OPERATOR <+> (LEFTARG = int, RIGHTARG = int, FUNCTION = plus)",
        "ALTER TABLE t ALTER x TYPE int USING x::int <+> 1",
    ),
    "type_using_function_in_front": (
        f"{_FILLED}; CREATE FUNCTION upper(text) RETURNS text LANGUAGE sql"
        " RETURN $1 || current_setting('port')",
        "DO $$ BEGIN PERFORM set_config('search_path', current_schema || ', pg_catalog', true);"
        " ALTER TABLE t ALTER x TYPE varchar USING upper(x); END $$",
    ),
    "generated_from_float": ("", _GENERATED.format("float8", "x::text")),
    "generated_from_bytea": ("", _GENERATED.format("bytea", "x::text")),
    "generated_from_quote_ident": ("", _GENERATED.format("text", "quote_ident(x)")),
    "check_time_zone": ("", _STABLE_CHECK.format("timestamptz", "at::date > '2020-01-01'")),
    "check_oid": ("CREATE TABLE p ()", "CREATE TABLE t (id oid CHECK (id <> 'p'::regclass))"),
    "materialized_view_of_own_function": (
        _DIFFERENT.format("IMMUTABLE"),
        "CREATE MATERIALIZED VIEW v AS SELECT 1 / (f()::int % 2) AS x",
    ),
    "materialized_view_of_view_of_own_function": (
        f"{_DIFFERENT.format('IMMUTABLE')} CREATE VIEW u AS SELECT f() AS f",
        "CREATE MATERIALIZED VIEW v AS SELECT f FROM u",
    ),
    "materialized_view_of_local_table": (
        f"{_TABLE} SELECT pgherd.set_local('t')",
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM t",
    ),
    "materialized_view_of_catalog": (
        "",
        "CREATE MATERIALIZED VIEW v AS SELECT setting FROM pg_settings WHERE name = 'port'",
    ),
    "materialized_view_of_system_column": (
        _TABLE,
        "CREATE MATERIALIZED VIEW v AS SELECT xmin::text AS x FROM t",
    ),
    "materialized_view_of_text_as_date": (
        _TABLE,
        "CREATE MATERIALIZED VIEW v AS SELECT y::timestamp FROM t",
    ),
    "refresh_after_change": (
        f"CREATE VIEW u AS SELECT 'x' AS f; CREATE MATERIALIZED VIEW v AS TABLE u;"
        f"{_DIFFERENT.format('IMMUTABLE')} CREATE OR REPLACE VIEW u AS SELECT f() AS f",
        "REFRESH MATERIALIZED VIEW v",
    ),
}

#: Settings of a session that change what a command computes, with a command that shows it.
SETTINGS = {
    "extra_float_digits": ("0", "ALTER TABLE t ALTER f TYPE text"),
    "bytea_output": ("escape", "ALTER TABLE t ALTER b TYPE text"),
    "IntervalStyle": ("sql_standard", "ALTER TABLE t ALTER i TYPE text"),
    "DateStyle": ("German", "ALTER TABLE t ALTER d TYPE text"),
    "TimeZone": ("Asia/Tokyo", "ALTER TABLE t ALTER z TYPE text"),
    "lc_monetary": ("C", "ALTER TABLE t ALTER m TYPE text"),
    "xmlbinary": ("hex", "ALTER TABLE t ADD v text"),
    "quote_all_identifiers": ("on", "ALTER TABLE t ALTER x TYPE text USING format('%I', x)"),
    "array_nulls": ("off", "ALTER TABLE t ADD v text[] DEFAULT '{NULL,x}'"),
    "timezone_abbreviations": (
        "Australia",
        "ALTER TABLE t ADD v timestamptz DEFAULT '2020-01-01 10:00 EST'",
    ),
    "default_text_search_config": ("german", "ALTER TABLE t ALTER x TYPE varchar"),
}


@pytest.fixture(autouse=True)
async def schema_is_everywhere(connections: list[Connection], schema: str) -> None:
    await caught_up(connections)


@pytest.mark.parametrize("case", REFUSED)
async def test_is_refused_and_changes_nothing(
    connections: list[Connection], schema: str, case: str
) -> None:
    before, statement = REFUSED[case]
    if before:
        await run(connections[0], before)
    found = await assert_same_schema(connections, schema)
    error = await failure(connections[0], statement)
    assert error.sqlstate == "0A000", error
    assert error.diag.message_hint
    await run(connections[0], "DISCARD TEMP")
    assert await assert_same_schema(connections, schema) == found


@pytest.mark.parametrize("setting", SETTINGS)
async def test_settings_travel_with_the_command_that_computes(
    connections: list[Connection], schema: str, setting: str
) -> None:
    value, statement = SETTINGS[setting]
    await run(
        connections[0],
        "CREATE TABLE t (id int PRIMARY KEY, f float8, b bytea, i interval, d date, z timestamptz,"
        " m money, x text);"
        r"INSERT INTO t VALUES (1, 0.1::float8 + 0.2, '\x0041', '1 day 2 hours', '2024-02-01',"
        " '2024-02-01 12:00+00', 12.5, 'a')",
    )
    await caught_up(connections)
    await run(connections[0], f"SET {setting} = '{value}'")
    await run(connections[0], statement)
    await assert_same_schema(connections, schema)
    await run(connections[0], f"RESET {setting}")
    assert len(await same_everywhere(connections, "SELECT ROW(t.*)::text FROM t")) == 1


async def test_body_of_a_function_may_name_what_one_member_has(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"alone_{schema}"
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"CREATE ROLE {role}")
    await run(
        connections[0],
        f"""
        CREATE TEMP TABLE scratch (id int);
        CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM scratch';
        CREATE FUNCTION g() RETURNS oid LANGUAGE sql AS $$ SELECT '{role}'::regrole::oid $$;
        CREATE FUNCTION h() RETURNS int LANGUAGE plpgsql AS
            'DECLARE x scratch; BEGIN RETURN 1; END';
        CREATE TEXT SEARCH CONFIGURATION pg_temp.c (COPY = simple);
        SET default_text_search_config = 'pg_temp.c';
        CREATE TABLE t (id int PRIMARY KEY);
        """,
    )
    await assert_same_schema(connections, schema)
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"DROP ROLE {role}")


async def test_deferred_trigger_of_a_superuser_is_fine_until_he_gives_it_away(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await run(
        connections[0],
        f"{_TABLE} CREATE FUNCTION closer() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN NULL; END $$;",
    )
    async with superusers(herd, schema) as admins:
        await caught_up(admins)
        await run(admins[0], "ALTER FUNCTION closer() OWNER TO postgres")
        await caught_up(admins)
        await run(connections[0], _DEFERRED.format("t", " INITIALLY DEFERRED"))
        await run(connections[0], "INSERT INTO t VALUES (1, 'x', 'y')")
        error = await failure(admins[0], "ALTER FUNCTION closer() OWNER TO app")
        assert error.sqlstate == "0A000"
    error = await failure(connections[0], f"CREATE OR REPLACE {_CLOSER.removeprefix('CREATE ')}")
    assert error.sqlstate == "42501"
    await assert_same_schema(connections, schema)
    assert await same_everywhere(connections, "SELECT id FROM t") == [(1,)]


async def test_role_of_one_member_is_not_named(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"alone_{schema}"
    await run(connections[0], f"{_TABLE} CREATE SCHEMA s_{schema}")
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"CREATE ROLE {role}; GRANT ALL ON SCHEMA {schema} TO PUBLIC")
        for statement in (
            f"GRANT SELECT ON t TO {role}",
            f"REVOKE ALL ON t FROM {role}",
            f"ALTER TABLE t OWNER TO {role}",
            f"CREATE POLICY p ON t TO {role}",
            f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {role}",
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {role} GRANT SELECT ON TABLES TO app",
            f"CREATE SCHEMA another AUTHORIZATION {role}",
            f"DROP OWNED BY {role}",
            f"SET ROLE {role}; DROP TABLE IF EXISTS nothing; CREATE FUNCTION {schema}.f()"
            " RETURNS int LANGUAGE sql RETURN 1",
        ):
            error = await failure(admins[0], statement)
            assert error.sqlstate == "0A000", statement
            assert "run_everywhere" in (error.diag.message_hint or "")
            await run(admins[0], "RESET ROLE")
        await run(admins[0], f"SELECT pgherd.run_everywhere('ALTER ROLE {role} NOLOGIN')")
        await run(admins[0], f"GRANT SELECT ON t TO {role}")
        await assert_same_schema(connections, schema)
        await run(admins[0], f"DROP OWNED BY {role}; DROP SCHEMA s_{schema}")
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
        assert await same_everywhere(admins, f"SELECT FROM pg_roles WHERE rolname = '{role}'") == []


async def test_role_that_a_member_lost_does_not_stop_it(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"lost_{schema}"
    await run(connections[0], _TABLE)
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE USER {role}')")
        await caught_up(admins)
        await run(admins[1], f"DROP ROLE {role}")
        await run(connections[0], f"GRANT SELECT ON t TO {role}")
        await assert_same_schema(connections, schema)
        await run(connections[0], f"REVOKE SELECT ON t FROM {role}")
        await caught_up(admins)
        await run(admins[2], f"DROP ROLE {role}")
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
        await assert_same_schema(connections, schema)
        assert await same_everywhere(admins, f"SELECT FROM pg_roles WHERE rolname = '{role}'") == []


async def test_rights_of_a_role_are_those_it_has_on_every_member(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"group_{schema}"
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE ROLE {role}')")
        await run(admins[0], f"{_TABLE} ALTER TABLE t OWNER TO {role}")
        await run(admins[0], f"GRANT ALL ON SCHEMA {schema} TO {role}")
        await caught_up(admins)
        await run(admins[0], f"GRANT {role} TO app")
        error = await failure(connections[0], "ALTER TABLE t ADD z int")
        assert error.sqlstate == "0A000"
        assert f"GRANT {role} TO app" in (error.diag.message_hint or "")
        await run(connections[0], "CREATE TEMP TABLE scratch (id int)")
        await run(admins[0], f"SELECT pgherd.run_everywhere('GRANT {role} TO app')")
        await run(connections[0], "ALTER TABLE t ADD z int")
        await caught_up(admins)
        await run(admins[1], f"REVOKE {role} FROM app")
        await run(connections[0], "ALTER TABLE t DROP z")
        await assert_same_schema(connections, schema)
        await run(admins[2], f"SELECT pgherd.run_everywhere('REVOKE {role} FROM app')")
        await caught_up(admins)
        assert (await failure(connections[0], "ALTER TABLE t ADD z int")).sqlstate == "42501"
        await run(admins[0], f"DROP OWNED BY {role}")
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
        known = (
            "SELECT name FROM pgherd.roles UNION ALL SELECT role || member FROM pgherd.memberships"
        )
        assert role not in str(await same_everywhere(admins, f"{known} ORDER BY 1"))


async def test_role_that_a_member_has_already_becomes_as_the_others(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"early_{schema}"
    attributes = (
        f"SELECT rolsuper, rolcanlogin, rolconnlimit FROM pg_roles WHERE rolname = '{role}'"
    )
    async with superusers(herd, schema) as admins:
        await run(admins[1], f"CREATE ROLE {role} SUPERUSER CONNECTION LIMIT 3")
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE USER {role}')")
        assert await same_everywhere(admins, attributes) == [(False, True, -1)]
        await run(admins[1], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
        assert await same_everywhere(admins, attributes) == []


async def test_role_that_owns_something_elsewhere_stays_on_its_member(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"owner_{schema}"
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE USER {role}')")
        await caught_up(admins)
        await run(admins[1], f"CREATE DATABASE {role} OWNER {role}")
        try:
            await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
            await caught_up(admins)
            login = f"SELECT rolcanlogin FROM pg_roles WHERE rolname = '{role}'"
            assert [await run(admin, login) for admin in admins] == [[], [(False,)], []]
        finally:
            await run(admins[1], f"DROP DATABASE {role}")
            await run(admins[1], f"DROP ROLE {role}")
    await assert_same_schema(connections, schema)


@pytest.mark.parametrize("partitioned", [False, True])
async def test_truncate_restart_identity_restarts_on_every_member(
    connections: list[Connection], schema: str, partitioned: bool
) -> None:
    how = "PARTITION BY RANGE (id)" if partitioned else ""
    await run(connections[0], f"CREATE TABLE t (id serial PRIMARY KEY, n serial) {how}")
    if partitioned:
        await run(connections[0], "CREATE TABLE u PARTITION OF t DEFAULT")
    insert = "INSERT INTO t DEFAULT VALUES RETURNING id, n"
    for _ in range(2):
        for number, connection in enumerate(connections):
            await caught_up(connections)
            assert await run(connection, insert) == [(number + 1, number + 1)]
            await run(connection, insert)
        await caught_up(connections)
        await run(connections[1], "TRUNCATE t RESTART IDENTITY")
    await same_everywhere(connections, "SELECT * FROM t")


async def test_tables_truncated_together_restart_together_among_other_changes(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        """
        CREATE TABLE p (id serial PRIMARY KEY, v int);
        CREATE TABLE c (id serial PRIMARY KEY, p int REFERENCES p);
        CREATE TABLE q (id int PRIMARY KEY);
        BEGIN;
        INSERT INTO p (v) VALUES (1), (2);
        INSERT INTO q VALUES (1);
        INSERT INTO c (p) SELECT id FROM p;
        UPDATE p SET v = 9;
        TRUNCATE p RESTART IDENTITY CASCADE;
        INSERT INTO p (v) VALUES (3);
        INSERT INTO c (p) SELECT id FROM p;
        UPDATE q SET id = 2;
        ALTER TABLE p ADD z int;
        UPDATE p SET z = 5;
        COMMIT
        """,
    )
    rows = await same_everywhere(connections, "SELECT p.*, c.*, q.* FROM p, c, q")
    assert rows == [(1, 3, 5, 1, 1, 2)]
    assert await run(connections[2], "INSERT INTO c (p) VALUES (1) RETURNING id") == [(3,)]


async def test_truncate_alone_leaves_numbers_where_they_are(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE t (id serial PRIMARY KEY)")
    await run(connections[0], "INSERT INTO t DEFAULT VALUES")
    await run(connections[0], "TRUNCATE t")
    assert await run(connections[0], "INSERT INTO t DEFAULT VALUES RETURNING id") == [(9,)]


@pytest.mark.parametrize("kind", ["TABLE", "MATERIALIZED VIEW"])
async def test_what_explain_made_is_gone_with_the_next_command(
    connections: list[Connection], schema: str, kind: str
) -> None:
    await run(connections[0], f"EXPLAIN ANALYZE CREATE {kind} stray AS SELECT 1 AS id")
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        await run(connections[0], "TABLE stray")
    await run(connections[0], "SET search_path = public")  # no lock of ours is left
    await assert_same_schema(connections, schema)


async def test_what_explain_made_is_not_in_the_way_of_other_members(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "EXPLAIN ANALYZE CREATE TABLE stray AS SELECT 1 AS id")
    await run(connections[1], "CREATE TABLE stray (id int PRIMARY KEY)")
    await run(connections[1], "INSERT INTO stray VALUES (2)")
    assert await same_everywhere(connections, "SELECT id FROM stray") == [(2,)]


async def test_what_explain_made_cannot_be_marked(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "EXPLAIN ANALYZE CREATE TABLE stray AS SELECT 1 AS id")
    error = await failure(connections[0], "SELECT pgherd.set_local('stray')")
    assert error.sqlstate == "42809"
    await run(connections[0], "DROP TABLE stray")
    await assert_same_schema(connections, schema)


async def test_rows_of_a_table_with_a_column_like_our_alias_travel_whole(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TABLE made AS SELECT 1 AS r, 2 AS t, 'x' AS u")
    assert await same_everywhere(connections, "SELECT * FROM made") == [(1, 2, "x")]
