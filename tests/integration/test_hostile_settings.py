"""No setting of a session switches a rule or the hook off; no DDL works at its origin only.

C1, C22, C23.
"""

from collections.abc import AsyncIterator

import psycopg
import pytest
from pgherd_sidecar.pg import trusted

from .localherd import LocalHerd, query, settle
from .members import (
    Connection,
    assert_refused,
    assert_same_schema,
    run,
    same_everywhere,
    spread,
    superusers,
)

_FUNCTION = "CREATE FUNCTION f() RETURNS int LANGUAGE sql {} AS 'SELECT 1'"
_STABLE = (
    "CREATE OR REPLACE FUNCTION public.stable_of_superuser()"
    " RETURNS int LANGUAGE sql STABLE RETURN 1"
)
_VIEW = "CREATE MATERIALIZED VIEW v AS SELECT {}"

#: What is there before, what is tried.
REFUSED = {
    "function_sets_role": ("", _FUNCTION.format('SET "Role" = app')),
    "function_sets_session_authorization": (
        "",
        _FUNCTION.format("SET session_authorization = app"),
    ),
    "function_sets_isolation": (
        "",
        _FUNCTION.format("SET transaction_isolation = 'read committed'"),
    ),
    "function_sets_read_only": ("", _FUNCTION.format("SET transaction_read_only = off")),
    "altered_function_sets_role": (_FUNCTION.format(""), "ALTER FUNCTION f() SET role = app"),
    "altered_function_resets_role": (_FUNCTION.format(""), "ALTER FUNCTION f() RESET role"),
    "view_reads_names_of_relations": (
        "CREATE TABLE n (x text PRIMARY KEY)",
        "CREATE MATERIALIZED VIEW v AS SELECT x::regclass::oid FROM n",
    ),
    "view_of_an_oid": ("CREATE TABLE n (x text)", _VIEW.format("'n'::regclass::oid::int8")),
    "view_of_a_type": ("", _VIEW.format("format_type(20000, NULL)")),
    "view_of_shared_comments": ("", _VIEW.format("shobj_description(1, 'pg_database')")),
    "view_of_stable_function": ("", _VIEW.format("public.stable_of_superuser()")),
    "temporary_foreign_key": (
        "CREATE TEMP TABLE p (id int PRIMARY KEY) ON COMMIT DELETE ROWS",
        "CREATE TEMP TABLE c (id int REFERENCES p)",
    ),
    "temporary_foreign_key_later": (
        "CREATE TEMP TABLE p (id int PRIMARY KEY); CREATE TEMP TABLE c (id int)",
        "ALTER TABLE c ADD FOREIGN KEY (id) REFERENCES p",
    ),
}


@pytest.fixture
async def odd(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> AsyncIterator[Connection]:
    """A session that reads backslashes in plain literals, before any function is compiled in it."""
    await run(
        connections[0],
        "CREATE TABLE t (id int PRIMARY KEY, x int);"
        "CREATE PROCEDURE p() LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO t VALUES (1); COMMIT; INSERT INTO t VALUES (2); COMMIT; END $$",
    )
    async with await psycopg.AsyncConnection.connect(
        herd.nodes()[0].app_dsn,
        autocommit=True,
        options=f"-c standard_conforming_strings=off -c search_path={schema}"
        " -c escape_string_warning=off -c statement_timeout=20s",
    ) as connection:
        yield connection


async def test_index_concurrently_is_built_under_any_reading_of_literals(
    odd: Connection, connections: list[Connection]
) -> None:
    await run(odd, "CREATE UNIQUE INDEX CONCURRENTLY i ON t (x)")
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass"
    assert await same_everywhere(connections, valid) == [(True,)]


async def test_commit_of_a_procedure_ends_under_any_reading_of_literals(
    odd: Connection, connections: list[Connection]
) -> None:
    await run(odd, "CALL p()")
    assert await same_everywhere(connections, "SELECT id FROM t ORDER BY id") == [(1,), (2,)]


async def test_ordinary_work_goes_on_under_any_reading_of_literals(
    odd: Connection, connections: list[Connection]
) -> None:
    await run(odd, "INSERT INTO t VALUES (7, 7); UPDATE t SET x = 8; DELETE FROM t WHERE id = 1")
    await run(odd, "BEGIN; INSERT INTO t VALUES (8); UPDATE t SET id = 9 WHERE id = 8; COMMIT")
    assert await same_everywhere(connections, "SELECT * FROM t ORDER BY id") == [(7, 8), (9, None)]


async def test_keys_are_the_same_under_any_reading_of_literals(
    odd: Connection, connections: list[Connection]
) -> None:
    """The expression is printed into what captures rows, and its literals are plain ones."""
    await spread(
        connections,
        0,
        "CREATE TABLE u (id int PRIMARY KEY, v text);"
        r"CREATE UNIQUE INDEX ON u (regexp_replace(v, '\d+', '', 'g'))",
    )
    await run(odd, "BEGIN; INSERT INTO u VALUES (1, 'a1')")
    await run(connections[1], "BEGIN; INSERT INTO u VALUES (2, 'a2')")
    await run(odd, "COMMIT")
    with pytest.raises(psycopg.errors.SerializationFailure):
        await run(connections[1], "COMMIT")
    assert await same_everywhere(connections, "SELECT id FROM u") == [(1,)]


@pytest.mark.parametrize("case", REFUSED)
async def test_refused(
    connections: list[Connection], schema: str, herd: LocalHerd, case: str
) -> None:
    before, statement = REFUSED[case]
    if case == "view_of_stable_function":
        async with superusers(herd, schema) as admins:
            await run(admins[0], _STABLE)
    await run(connections[0], before or "SELECT 1")
    await assert_refused(connections, schema, statement)


async def test_materialized_view_of_ordinary_functions(
    connections: list[Connection], schema: str
) -> None:
    await run(
        connections[0],
        "CREATE TABLE d (id int PRIMARY KEY, x text, at timestamptz);"
        "INSERT INTO d VALUES (1, 'The foxes', '2024-02-03 04:05:06+00');"
        "CREATE MATERIALIZED VIEW v AS SELECT to_tsvector('english', x) AS words,"
        " to_char(at, 'YYYY') AS year, regexp_replace(x, 'f', 'b') AS y, x ~* 'FOX' AS z,"
        " concat(x, id) AS c, date_trunc('day', at) AS day FROM d",
    )
    assert await same_everywhere(connections, "SELECT y, year FROM v") == [("The boxes", "2024")]


async def test_a_role_drops_what_it_owns(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    role = f"owner_{schema}"
    async with superusers(herd, schema) as admins:
        await run(admins[0], f"SELECT pgherd.run_everywhere('CREATE ROLE {role}')")
        await run(admins[0], f"GRANT ALL ON SCHEMA {schema} TO {role}")
        await run(admins[0], f"SET ROLE {role}")
        await run(admins[0], "CREATE TABLE d (id int PRIMARY KEY)")
        await run(admins[0], f"DROP OWNED BY {role}")
        await run(admins[0], "RESET ROLE")
        assert await same_everywhere(admins, "SELECT to_regclass('d')") == [(None,)]
        await run(admins[0], f"DROP OWNED BY {role}")  # a role can't take its own rights away
        await run(admins[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
        await run(connections[0], "CREATE TABLE d (id int)")
        await assert_same_schema(connections, schema)


def test_the_owner_of_the_database_gives_the_sidecar_neither_functions_nor_limits(
    herd: LocalHerd,
) -> None:
    app = herd.app_dsn("n3")
    query(
        app,
        "CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO public;"
        "CREATE FUNCTION evil.to_regclass(text) RETURNS regclass LANGUAGE plpgsql AS $$ BEGIN"
        "  IF (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN"
        "    EXECUTE 'ALTER ROLE app SUPERUSER'; END IF;"
        "  RETURN pg_catalog.to_regclass($1); END $$",
    )
    try:
        query(  # they are those of the sessions to come
            app,
            "ALTER DATABASE app SET search_path = evil, pg_catalog, public;"
            "ALTER DATABASE app SET default_transaction_read_only = on;"
            "ALTER DATABASE app SET statement_timeout = 1;"
            "ALTER DATABASE app SET role = app",
        )
        herd.must("kill", "n3", "--process", "node")
        herd.must("start", "n3")  # returns when it takes writes
        superusers = "SELECT rolname FROM pg_catalog.pg_roles WHERE rolsuper AND rolcanlogin"
        with psycopg.connect(herd.dsn("n3"), options=trusted.options()) as connection:
            assert connection.execute(superusers).fetchall() == [("postgres",)]
    finally:
        with psycopg.connect(
            herd.dsn("n3"), autocommit=True, options=trusted.options()
        ) as connection:
            connection.execute("ALTER DATABASE app RESET ALL")
            connection.execute("DROP SCHEMA evil CASCADE")  # it goes behind the settings
        settle(herd)
