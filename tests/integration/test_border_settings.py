"""No setting of a session, a role, a database or a function makes members differ (C4, C6).

Each setting of ``pg.settings`` is driven to its extremes while one member writes rows of every
kind and executes commands that compute; then all members are compared.
"""

import asyncio
import contextlib

import psycopg
import pytest
from patience import wait_until_async
from pgherd_sidecar.pg import settings, trusted
from psycopg import sql

from .localherd import LocalHerd, query, sidecar_pid, stopped
from .members import (
    Connection,
    assert_same_schema,
    failure,
    run,
    same_everywhere,
    spread,
    superusers,
)

#: Libraries that define settings, where they are installed.
_LIBRARIES = ("auto_explain", "pg_trgm", "plpgsql", "postgres_fdw", "isn", "pgcrypto", "plperl")

#: The extremes of each setting that an ordinary user may change.
EXTREMES: dict[str, tuple[str, ...]] = {
    "DateStyle": ("SQL, DMY", "German", "Postgres, MDY"),
    "IntervalStyle": ("sql_standard", "iso_8601", "postgres_verbose"),
    "TimeZone": ("Asia/Kolkata", "America/St_Johns"),
    "array_nulls": ("off",),
    "backslash_quote": ("on", "off"),
    "bytea_output": ("escape",),
    "check_function_bodies": ("off",),
    "client_encoding": ("LATIN1", "SQL_ASCII"),
    "createrole_self_grant": ("set, inherit",),
    "default_table_access_method": ("heap",),
    "default_tablespace": ("pg_default",),
    "default_text_search_config": ("german", "simple"),
    "default_toast_compression": ("lz4", "pglz"),
    "default_transaction_isolation": ("repeatable read", "serializable"),
    "default_transaction_read_only": ("on",),
    "escape_string_warning": ("off",),
    "exit_on_error": ("on",),
    "extra_float_digits": ("-15", "0", "3"),
    "gin_fuzzy_search_limit": ("1",),
    "icu_validation_level": ("error", "disabled"),
    "lc_monetary": ("POSIX", "C.UTF-8"),
    "lc_numeric": ("POSIX",),
    "lc_time": ("POSIX",),
    "local_preload_libraries": ("",),
    "lock_timeout": ("1ms",),
    "plpgsql.check_asserts": ("off",),
    "plpgsql.extra_errors": ("all",),
    "quote_all_identifiers": ("on",),
    "restrict_nonsystem_relation_kind": ("view, foreign-table",),
    "row_security": ("off",),
    "search_path": ("pg_catalog", ""),
    "standard_conforming_strings": ("off",),
    "statement_timeout": ("200ms",),
    "synchronous_commit": ("off", "local"),
    "timezone_abbreviations": ("Australia", "India"),
    "transaction_deferrable": ("on",),
    "transaction_isolation": ("repeatable read", "serializable"),
    "transaction_read_only": ("on",),
    "transaction_timeout": ("1s",),
    "transform_null_equals": ("on",),
    "xmlbinary": ("hex",),
    "xmloption": ("document",),
}

#: What a superuser alone may change, so that no case of an ordinary user is needed.
OF_SUPERUSERS = {
    "allow_system_table_mods",
    "backtrace_functions",
    "composite_type_mismatch",
    "event_triggers",
    "ignore_checksum_failure",
    "lc_messages",
    "max_stack_depth",
    "plpgsql.variable_conflict",
    "session_replication_role",
    "zero_damaged_pages",
}

#: What the writing session does; {0} is the schema, which the search path need not have.
WORK = (
    "CREATE TABLE {0}.t (id int PRIMARY KEY, f float8, g float4, b bytea, i interval, d date,"
    ' z timestamptz, m money, x xml, a text[], w text, u text UNIQUE, "Od""d" int,'
    " v tsvector, r daterange, k numeric)",
    "INSERT INTO {0}.t VALUES (1, 0.1::float8 + 0.2, 0.1::float4, '\\000A', '1 day 2:03:04.5',"
    " '2024-02-01', '2024-02-01 10:00 EST', 12.5, '<a/>', '{{NULL,\"NULL\",b}}', E'a\\\\b', 'u1',"
    " 7, 'the foxes', '[2024-01-02,2024-03-04)', 1.50)",
    "INSERT INTO {0}.t (id, f, z, i, b, u) SELECT n, 1 / n::float8, '2024-02-01 10:00'::timestamptz"
    " + n * '1 h 1 s'::interval, n * '-1 mon 3 d'::interval, n::text::bytea, 'u' || n"
    " FROM generate_series(2, 30) n",
    "UPDATE {0}.t SET f = f / 3, w = f::text || z::text || i::text || b::text,"
    " x = xmlelement(name a, b) WHERE id < 20",
    "UPDATE {0}.t SET id = id + 100, u = NULLIF(u, NULL) WHERE id > 25",
    "UPDATE {0}.t SET w = 'n' WHERE w = NULL",
    "DELETE FROM {0}.t WHERE id = 5",
    "BEGIN; INSERT INTO {0}.t (id, w) VALUES (900, to_char(now(), 'Month') || '1'::money::text);"
    " UPDATE {0}.t SET v = to_tsvector(w) WHERE id = 900;"
    " ALTER TABLE {0}.t ADD added text[] DEFAULT '{{NULL,x}}';"
    " UPDATE {0}.t SET f = 0 WHERE id = 900; COMMIT",
    "CREATE SEQUENCE {0}.s",
    "SELECT pgherd.setval('{0}.s', 1000)",
    "CREATE TABLE {0}.made AS SELECT *, f::text AS ft, z::text AS zt, i::text AS it, b::text AS bt,"
    " m::text AS mt FROM {0}.t",
    "CREATE MATERIALIZED VIEW {0}.mv AS SELECT id, concat(f, g, b, i, z, m, d) AS forms,"
    " to_char(z, 'TMMonth') AS mon, to_char(k, 'L9D99') AS num, to_tsvector(w) AS v,"
    " xmlelement(name a, b)::text AS x, a = NULL AS n FROM {0}.t",
    "CREATE INDEX ON {0}.t USING gin (v)",
    "CREATE UNIQUE INDEX ON {0}.t (lower(u))",
    "CREATE VIEW {0}.\"A view\" AS SELECT w, w = NULL AS n, '1 EST'::text AS e FROM {0}.t",
    "CREATE FUNCTION {0}.f(p text DEFAULT 'a') RETURNS text LANGUAGE sql AS 'SELECT $1'",
    "CREATE TABLE {0}.child (id int PRIMARY KEY, t int REFERENCES {0}.t, z timestamptz"
    " DEFAULT '2020-01-01 10:00 EST', i interval DEFAULT '1:2', c text CHECK (c <> NULL))",
    "INSERT INTO {0}.child SELECT id, id FROM {0}.t WHERE id < 10",
    "ALTER TABLE {0}.made ADD PRIMARY KEY (id)",
    "ALTER TABLE {0}.made ALTER f TYPE text, ALTER i TYPE text, ALTER b TYPE text USING b::text",
    'ALTER TABLE {0}.t RENAME COLUMN "Od""d" TO "odd"',
    "REFRESH MATERIALIZED VIEW {0}.mv",
    "TRUNCATE {0}.child",
    "INSERT INTO {0}.child VALUES (1, 1)",
    "DELETE FROM {0}.t WHERE id = 2",
)

#: What is compared besides the schema; of every table all rows.
_ROWS = 'SELECT array_agg(t.*::text ORDER BY t.*::text COLLATE "C") FROM {0}.{1} t'
#: Members give a table different oids; these are left out of the sources, but only as whole
#: numbers, since the digits of an oid may stand in a seed, too.
_NAMES = (
    "SELECT t.names, (SELECT string_agg(md5(regexp_replace(p.prosrc,"
    " '(?<![0-9])' || c.oid || '(?![0-9])', '', 'g')), ','"
    " ORDER BY p.proname) FROM pg_proc p WHERE p.proname LIKE '%\\_' || c.oid) FROM pgherd.tables t"
    " JOIN pg_class c ON c.oid = t.relid WHERE c.relnamespace = '{0}'::regnamespace ORDER BY 1"
)


async def work(connection: Connection, schema: str, around: str = "{}") -> int:
    """Do all of it, whatever is refused; return how many statements were not."""
    done = 0
    for statement in WORK:
        with contextlib.suppress(psycopg.Error):
            await run(connection, around.format(statement.format(schema)))
            done += 1
        if connection.closed:
            break
        if connection.info.transaction_status:
            await run(connection, "ROLLBACK")
    return done


async def assert_alike(herd: LocalHerd, connections: list[Connection], schema: str) -> list[str]:
    """Compare rows, catalogs, and what replication has generated; return the tables."""
    await assert_same_schema(connections, schema)
    async with superusers(herd, schema) as admins:
        await same_everywhere(admins, _NAMES.format(schema))
        names = await same_everywhere(
            admins,
            "SELECT quote_ident(relname) FROM pg_class WHERE relkind IN ('r', 'm', 'v')"
            f" AND relnamespace = '{schema}'::regnamespace ORDER BY 1",
        )
        for (name,) in names:
            await same_everywhere(admins, _ROWS.format(schema, name))
    return [name for (name,) in names]


def known(herd: LocalHerd, name: str) -> bool:
    """Has this server the setting? Some are newer."""
    return bool(query(herd.dsn("n1"), f"SELECT current_setting('{name}', true)")[0][0] is not None)


def test_somebody_has_decided_about_every_setting(herd: LocalHerd) -> None:
    with psycopg.connect(herd.dsn("n1"), autocommit=True) as connection:
        for library in _LIBRARIES:
            with contextlib.suppress(psycopg.errors.UndefinedFile):
                connection.execute(f"LOAD '{library}'".encode())
        listed = connection.execute(
            "SELECT name FROM pg_settings"
            " WHERE context IN ('user', 'superuser', 'backend', 'superuser-backend')"
        ).fetchall()
    assert len(listed) > 150
    assert {name for (name,) in listed} >= {"auto_explain.log_format", "plpgsql.extra_errors"}
    assert [name for (name,) in listed if not settings.is_decided(name)] == []


def test_each_setting_that_matters_has_a_case() -> None:
    assert EXTREMES.keys() | OF_SUPERUSERS == {one.name for one in settings.SETTINGS}


async def test_without_any_setting_everything_works(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    assert await work(connections[0], schema) == len(WORK)
    tables = await assert_alike(herd, connections, schema)
    assert tables == ['"A view"', "child", "made", "mv", "t"]


@pytest.mark.family(every=24)
@pytest.mark.parametrize("name", EXTREMES)
async def test_extremes_of_a_setting(
    herd: LocalHerd, connections: list[Connection], schema: str, name: str
) -> None:
    if not known(herd, name):
        pytest.skip("of a later version of PostgreSQL")
    for number, value in enumerate(EXTREMES[name]):
        inner = f"{schema}_{number}"
        await run(connections[0], f"CREATE SCHEMA {inner}")
        async with await psycopg.AsyncConnection.connect(
            herd.app_dsn("n1"), autocommit=True
        ) as writer:
            given = sql.Literal(value).as_string()
            if name.startswith("transaction_") and name != "transaction_timeout":
                await work(writer, inner, f"BEGIN; SET {name} = {given}; {{}}; COMMIT")
            else:
                await run(writer, f"SET {name} = {given}")
                await work(writer, inner)
        await assert_alike(herd, connections, inner)
        await run(connections[0], f"DROP SCHEMA {inner} CASCADE")


async def test_names_mean_the_same_keys_under_any_quoting(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    """Keys are hashes of names: two members that quote differently would let both writers pass."""
    await run(connections[0], "SET quote_all_identifiers = on")
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)")
    await run(connections[0], "CREATE TABLE l (id int PRIMARY KEY)")
    await run(connections[0], "SELECT pgherd.set_local('l')")
    await spread(connections, 0, "SELECT pgherd.set_replicated('l')")
    outcomes = []
    for number, connection in enumerate(connections[:2]):
        await run(connection, f"BEGIN; INSERT INTO t VALUES ({number}, 7)")
        await run(connection, f"INSERT INTO l VALUES ({number + 10})")
    for connection in connections[:2]:
        try:
            await run(connection, "COMMIT")
            outcomes.append("")
        except psycopg.errors.SerializationFailure as error:
            outcomes.append(error.sqlstate or "")
    assert outcomes == ["", "40001"]
    await assert_alike(herd, connections, schema)
    assert await same_everywhere(connections, "SELECT * FROM t") == [(0, 7)]


async def test_a_cancelled_commit_is_no_abort_where_errors_end_the_session(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    """C4: the client would hear 57014 as its session ends, though the transaction commits."""
    await spread(connections, 0, "CREATE TABLE t (id int PRIMARY KEY)")
    await run(connections[0], "SET exit_on_error = on")
    with stopped(sidecar_pid(herd, "n2"), sidecar_pid(herd, "n3")):
        await run(connections[0], "BEGIN; INSERT INTO t VALUES (1)")
        committing = asyncio.create_task(run(connections[0], "COMMIT"))
        pid = connections[0].info.backend_pid
        waits = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {pid}"
        await wait_until_async(
            lambda: asyncio.to_thread(query, herd.dsn("n1"), waits),
            lambda seen: seen == [("Extension",)],
        )
        for _ in range(2):
            query(herd.dsn("n1"), f"SELECT pg_cancel_backend({pid})")
            await asyncio.sleep(0.2)
        assert not committing.done()
    await committing
    assert await run(connections[0], "SHOW exit_on_error") == [("on",)]
    assert await same_everywhere(connections, "SELECT id FROM t") == [(1,)]


async def test_a_view_is_not_filled_by_chance(connections: list[Connection], schema: str) -> None:
    await run(
        connections[0],
        "CREATE TABLE t (id int PRIMARY KEY, a int[]); INSERT INTO t SELECT n, ARRAY[1, n]"
        " FROM generate_series(1, 9000) n; CREATE INDEX ON t USING gin (a);"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t WHERE a @> '{1}'",
    )
    await run(connections[0], "SET gin_fuzzy_search_limit = 5; SET enable_seqscan = off")
    for statement in (
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) FROM t WHERE a @> '{1}'",
        "REFRESH MATERIALIZED VIEW v",
        "DO $$ BEGIN PERFORM set_config('gin_fuzzy_search_limit', '3', true);"
        " REFRESH MATERIALIZED VIEW v; END $$",
    ):
        error = await failure(connections[0], statement)
        assert error.sqlstate == "0A000"
        assert "gin_fuzzy_search_limit" in str(error)
    assert await same_everywhere(connections, "SELECT n FROM v") == [(9000,)]


#: What the owner of a database may set for its sessions, ours included.
_OF_THE_OWNER = {
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "default_toast_compression": "lz4",
    "exit_on_error": "on",
    "array_nulls": "off",
    "bytea_output": "escape",
    "extra_float_digits": "0",
    '"DateStyle"': "'German'",
    '"IntervalStyle"': "'sql_standard'",
    '"TimeZone"': "'Asia/Kolkata'",
    "xmloption": "document",
    "transform_null_equals": "on",
    "gin_fuzzy_search_limit": "3",
    "row_security": "off",
    "restrict_nonsystem_relation_kind": "'view'",
    "default_transaction_isolation": "serializable",
    "client_encoding": "'LATIN1'",
    "local_preload_libraries": "'no_such_library'",
    "synchronous_commit": "off",
    "statement_timeout": "1",
    "lock_timeout": "1",
    "check_function_bodies": "off",
    "default_tablespace": "'nowhere'",
    "lc_monetary": "'POSIX'",
}


@pytest.mark.long
async def test_settings_of_one_members_database_reach_nothing(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    try:
        for name, value in _OF_THE_OWNER.items():
            await run(connections[2], f"ALTER DATABASE app SET {name} = {value}")
        await asyncio.to_thread(herd.must, "kill", "n3", "--process", "node")
        await asyncio.to_thread(herd.must, "start", "n3")  # returns when it takes writes
        assert await work(connections[0], schema) == len(WORK)
        await run(connections[0], "CREATE TABLE é (x text PRIMARY KEY); INSERT INTO é VALUES ('Ж')")
    finally:
        with psycopg.connect(
            herd.dsn("n3"), autocommit=True, options=trusted.options()
        ) as connection:
            connection.execute("ALTER DATABASE app RESET ALL")
    async with await psycopg.AsyncConnection.connect(
        herd.app_dsn("n3"), autocommit=True, options=f"-c search_path={schema}"
    ) as again:
        await assert_alike(herd, [*connections[:2], again], schema)


@pytest.mark.long
async def test_a_function_or_role_that_sets_everything_writes_the_same(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    usual = {
        name: values[0]
        for name, values in EXTREMES.items()
        if known(herd, name)
        and not name.endswith(("_timeout", "isolation", "read_only", "deferrable", "libraries"))
        and name not in ("client_encoding", "search_path", "standard_conforming_strings")
        # Under these some statements fail, and so would the function; each has its own case.
        and name not in ("restrict_nonsystem_relation_kind", "row_security")
    }
    clause = " ".join(f"SET {name} = {sql.Literal(v).as_string()}" for name, v in usual.items())
    body = "; ".join(
        f"EXECUTE {sql.Literal(one.format(schema)).as_string()}"
        for one in WORK
        if not one.startswith("BEGIN") and "MATERIALIZED" not in one
    )
    await run(
        connections[0],
        f"CREATE FUNCTION everything() RETURNS void LANGUAGE plpgsql {clause} AS $f$"
        f" BEGIN {body}; END $f$; ",
    )
    await run(connections[0], "SELECT everything()")
    assert len(await assert_alike(herd, connections, schema)) == 4
    role = f"odd_{schema}"
    query(
        herd.dsn("n1"), f"SELECT pgherd.run_everywhere('CREATE ROLE {role} LOGIN PASSWORD ''x''')"
    )
    try:
        query(herd.dsn("n1"), f"CREATE SCHEMA s{role} AUTHORIZATION {role}")
        del usual["exit_on_error"]  # the first view that is refused would end the session
        for name, value in usual.items():
            query(
                herd.dsn("n1"), f"ALTER ROLE {role} SET {name} = {sql.Literal(value).as_string()}"
            )
        async with await psycopg.AsyncConnection.connect(
            herd.app_dsn("n1"), autocommit=True, user=role, password="x"
        ) as odd:
            assert await run(odd, "SHOW bytea_output") == [("escape",)]
            assert await work(odd, f"s{role}") > 15
        async with superusers(herd, f"s{role}") as admins:
            await assert_alike(herd, admins, f"s{role}")
    finally:
        query(herd.dsn("n1"), f"DROP SCHEMA s{role} CASCADE")
        query(herd.dsn("n1"), f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")
