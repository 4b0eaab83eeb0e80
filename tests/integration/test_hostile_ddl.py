"""No ordinary user's DDL makes members differ, or stops one (C1, C22, C23)."""

import contextlib

import psycopg
import pytest

from .hostile_ddl_cases import CLOSER, DEFERRED, SETTINGS, TABLE
from .localherd import LocalHerd
from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    failure,
    run,
    same_everywhere,
    spread,
    superusers,
    turn_held,
    until_same,
)

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")


@pytest.mark.family(every=6)
@pytest.mark.parametrize("setting", SETTINGS)
async def test_settings_travel_with_the_command_that_computes(
    connections: list[Connection], schema: str, setting: str
) -> None:
    value, statement = SETTINGS[setting]
    await run(
        connections[0],
        "CREATE TABLE t (id int PRIMARY KEY, f float8, b bytea, i interval, d date, z timestamptz,"
        " m money, x text)",
    )
    await spread(  # a message of its own: a literal with a backslash beside DDL is refused
        connections,
        0,
        r"INSERT INTO t VALUES (1, 0.1::float8 + 0.2, '\x0041', '1 day 2 hours', '2024-02-01',"
        " '2024-02-01 12:00+00', 12.5, 'a')",
    )
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
        await spread(admins, 0, f"CREATE ROLE {role}")
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
        f"{TABLE} CREATE FUNCTION closer() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN NULL; END $$;",
    )
    async with superusers(herd, schema) as admins:
        await caught_up(admins)
        await spread(admins, 0, "ALTER FUNCTION closer() OWNER TO postgres")
        await run(connections[0], DEFERRED.format("t", " INITIALLY DEFERRED"))
        await run(connections[0], "INSERT INTO t VALUES (1, 'x', 'y')")
        error = await failure(admins[0], "ALTER FUNCTION closer() OWNER TO app")
        assert error.sqlstate == "0A000"
    error = await failure(connections[0], f"CREATE OR REPLACE {CLOSER.removeprefix('CREATE ')}")
    assert error.sqlstate == "42501"
    await assert_same_schema(connections, schema)
    assert await same_everywhere(connections, "SELECT id FROM t") == [(1,)]


async def test_role_made_by_a_plain_command_is_named_by_the_next(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await run(connections[0], f"{TABLE} CREATE SCHEMA s_{schema}")
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"GRANT ALL ON SCHEMA {schema} TO PUBLIC")
        for number, statement in enumerate(
            (
                "GRANT SELECT ON t TO {}",
                "REVOKE ALL ON t FROM {}",
                "ALTER TABLE t OWNER TO {}",
                "CREATE POLICY p ON t TO {}",
                "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {}",
                "ALTER DEFAULT PRIVILEGES FOR ROLE {} GRANT SELECT ON TABLES TO app",
                "CREATE SCHEMA another_{0} AUTHORIZATION {0}",
                "DROP OWNED BY {}",
                "SET ROLE {}; DROP TABLE IF EXISTS nothing; CREATE FUNCTION f()"
                " RETURNS int LANGUAGE sql RETURN 1",
            )
        ):
            role = f"role{number}_{schema}"
            await run(admins[number % 3], f"CREATE ROLE {role}")
            await run(admins[number % 3], statement.format(role))
            await run(admins[number % 3], "RESET ROLE")
            await assert_same_schema(admins, schema)
        for number in range(9):
            role = f"role{number}_{schema}"
            await run(admins[0], f"DROP OWNED BY {role} CASCADE")
            await run(admins[0], f"DROP ROLE {role}")
        await run(admins[0], f"DROP SCHEMA s_{schema}")
        left = f"SELECT 1 FROM pg_roles WHERE rolname LIKE '%{schema}'"
        await until_same(admins, left, [])


async def test_role_that_a_member_lost_does_not_stop_it(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"lost_{schema}"
    await run(connections[0], TABLE)
    async with superusers(herd, schema) as admins:
        await spread(admins, 0, f"SELECT pgherd.run_everywhere('CREATE USER {role}')")
        for _ in range(5):  # the drop may be ordered before the command, which fails then
            await run(admins[1], f"DROP ROLE IF EXISTS {role}")
            with contextlib.suppress(
                psycopg.errors.UndefinedObject, psycopg.errors.OperationalError
            ):
                await run(connections[0], f"GRANT SELECT ON t TO {role}")
            await assert_same_schema(connections, schema)
            await run(
                admins[0], f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN others THEN END $$"
            )
            await spread(admins, 0, f"REVOKE SELECT ON t FROM {role}")
        await run(admins[2], f"DROP ROLE IF EXISTS {role}")
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE IF EXISTS {role}')")
        await assert_same_schema(connections, schema)
        await until_same(admins, f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'", [])


async def test_members_of_postgresql_s_own_roles_execute_ddl(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"reader_{schema}"
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE ROLE {role}')")
        await run(admins[0], f"GRANT ALL ON SCHEMA {schema} TO {role}")
        await run(admins[0], f"GRANT pg_read_all_data TO {role}")
        await spread(admins, 0, f"SET ROLE {role}; {TABLE} RESET ROLE")
        await spread(admins, 1, f"SET ROLE {role}; ALTER TABLE t ADD more int; RESET ROLE")
        owner = f"SELECT 't'::regclass, role FROM pgherd.grants WHERE member = '{role}'"
        assert len(await same_everywhere(admins, owner)) == 1
        await run(admins[0], f"DROP OWNED BY {role}")
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")


async def test_rights_of_a_role_are_those_it_has_on_every_member(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"group_{schema}"
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE ROLE {role}')")
        await run(admins[0], f"{TABLE} ALTER TABLE t OWNER TO {role}")
        await spread(admins, 0, f"GRANT ALL ON SCHEMA {schema} TO {role}")
        await run(admins[0], f"GRANT {role} TO app")
        await run(connections[0], "ALTER TABLE t ADD w int")
        await run(connections[0], "CREATE TEMP TABLE scratch (id int)")
        await caught_up(admins)
        await run(connections[2], "ALTER TABLE t ADD z int")
        await caught_up(admins)
        # what comes before the revocation works everywhere, and what comes after it nowhere
        await run(admins[1], f"REVOKE {role} FROM app")
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege, psycopg.OperationalError):
            await run(connections[0], "ALTER TABLE t DROP z")
        await assert_same_schema(admins, schema)
        await spread(admins, 2, f"SELECT pgherd.run_everywhere('REVOKE {role} FROM app')")
        assert (await failure(connections[0], "ALTER TABLE t ADD x int")).sqlstate == "42501"
        await run(admins[0], f"DROP OWNED BY {role}")
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
        known = "SELECT key FROM pgherd.shared ORDER BY 1"
        assert role not in str(await same_everywhere(admins, known))


async def test_role_that_a_member_has_already_becomes_as_the_others(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"early_{schema}"
    attributes = (
        f"SELECT rolsuper, rolcanlogin, rolconnlimit FROM pg_roles WHERE rolname = '{role}'"
    )
    async with superusers(herd, schema) as admins:
        async with turn_held(herd.nodes()[1].dsn):  # or else its role may be ordered first
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
        await spread(admins, 0, f"SELECT pgherd.run_everywhere('CREATE USER {role}')")
        await run(admins[1], f"CREATE DATABASE {role} OWNER {role}")
        try:
            await spread(admins, 0, f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
            named = f"SELECT FROM pg_roles WHERE rolname = '{role}'"
            assert [await run(admin, named) for admin in admins] == [[], [], []]
            owner = (
                "SELECT r.rolname, r.rolcanlogin FROM pg_database d JOIN pg_roles r"
                f" ON r.oid = d.datdba WHERE d.datname = '{role}'"
            )
            ((kept, may_log_in),) = await run(admins[1], owner)
            assert kept.startswith("pgherd_") and not may_log_in
        finally:
            await run(admins[1], f"DROP DATABASE {role}")
        await until_same(admins[1:2], f"SELECT FROM pg_roles WHERE rolname = '{kept}'", [])
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
