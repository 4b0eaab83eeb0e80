"""No code of an ordinary user runs as the superuser, who plans queries on the user's tables.

PostgreSQL's planner computes in advance what is declared IMMUTABLE in the expressions of a table's
indexes, statistics and partition key, with the rights of whoever plans the query.
"""

import pytest

from .localherd import LocalHerd
from .members import Connection, assert_same_schema, caught_up, failure, run, spread, superusers

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")

#: i() makes ``app`` a superuser as soon as one calls it; its side effect is hidden in climb().
_CODE = """
    CREATE FUNCTION climb() RETURNS int LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
            EXECUTE 'ALTER ROLE app SUPERUSER';
        END IF;
        RETURN 1;
    END $$;
    CREATE FUNCTION i(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RETURN climb(); END $$;
    CREATE FUNCTION b(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RETURN climb() = 1; END $$;
"""
_REPLICATED = "CREATE TABLE t (id int PRIMARY KEY, x text); INSERT INTO t VALUES (1, 'a');"
_LOCAL = "CREATE TABLE t (id int PRIMARY KEY, x text); SELECT pgherd.set_local('t');"
_UNLOGGED = f"{_LOCAL} ALTER TABLE t SET UNLOGGED;"
_VIEW = f"{_REPLICATED} CREATE MATERIALIZED VIEW m AS SELECT id FROM t;"
_CHILD = f"{_LOCAL} CREATE TEMP TABLE c () INHERITS (t);"
_INDEX = "CREATE INDEX ON {} ((i(1)))"
_STATISTICS = "CREATE STATISTICS s ON (i(1)), id FROM {}"

#: What is there before, and what is refused.
REFUSED = {
    "index_of_local_table": (_LOCAL, _INDEX.format("t")),
    "predicate_of_local_table": (_LOCAL, "CREATE INDEX ON t (id) WHERE b(1)"),
    "operator_in_index_of_local_table": (
        f"{_LOCAL} CREATE FUNCTION plus(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN climb(); END $$;"
        "CREATE OPERATOR <+> (LEFTARG = int, RIGHTARG = int, FUNCTION = plus)",
        "CREATE INDEX ON t ((1 <+> 1))",
    ),
    "exclusion_of_local_table": (_LOCAL, "ALTER TABLE t ADD EXCLUDE ((i(1)) WITH =)"),
    "index_of_unlogged_table": (_UNLOGGED, _INDEX.format("t")),
    "index_of_materialized_view": (_VIEW, _INDEX.format("m")),
    "index_of_temporary_child": (_CHILD, _INDEX.format("c")),
    "check_of_temporary_child": (_CHILD, "ALTER TABLE c ADD CHECK (b(1))"),
    "statistics_of_replicated_table": (_REPLICATED, _STATISTICS.format("t")),
    "statistics_of_local_table": (_LOCAL, _STATISTICS.format("t")),
    "partition_key_of_local_table": (
        "CREATE TABLE t (id int) PARTITION BY LIST (id); SELECT pgherd.set_local('t')",
        "CREATE TABLE p PARTITION OF t FOR VALUES IN (1) PARTITION BY LIST (i(id))",
    ),
    "index_made_together_with_a_rewrite": (
        f"{_LOCAL} INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD c timestamptz DEFAULT clock_timestamp(), ADD EXCLUDE ((i(1)) WITH =)",
    ),
    "check_of_a_table_that_becomes_replicated": (
        f"{_LOCAL} ALTER TABLE t ADD CHECK (b(id))",
        "SELECT pgherd.set_replicated('t')",
    ),
    # While the index is built its function runs, as the user, and has us plan a query on it.
    "request_from_within_create_index": (
        f"{_LOCAL} INSERT INTO t VALUES (1, 'a');"
        "CREATE FUNCTION ask(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN PERFORM climb(); PERFORM pgherd.set_replicated('t'); RETURN 1; END $$;",
        "CREATE INDEX ON t ((ask(id)))",
    ),
}


@pytest.mark.family(every=3)
@pytest.mark.parametrize("case", REFUSED)
async def test_code_that_would_run_when_a_query_is_planned_is_refused(
    connections: list[Connection], schema: str, herd: LocalHerd, case: str
) -> None:
    before, statement = REFUSED[case]
    await spread(connections, 0, _CODE + before)
    error = await failure(connections[0], statement)
    assert error.sqlstate == "0A000", error
    rewritten = case == "index_made_together_with_a_rewrite"
    assert ("would be written anew" if rewritten else "superuser") in str(error)
    await _assert_app_is_no_superuser(herd, schema)
    await run(connections[0], "DISCARD TEMP")
    await assert_same_schema(connections, schema)


async def test_function_of_a_superuser_is_refused_again_once_he_gives_it_away(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    await spread(connections, 0, _CODE)
    async with superusers(herd, schema) as admins:
        await run(admins[0], "ALTER FUNCTION climb() OWNER TO CURRENT_USER")
        await run(admins[0], "ALTER FUNCTION i(int) OWNER TO CURRENT_USER")
        await caught_up(connections)
        harmless = "CREATE OR REPLACE FUNCTION i(int) RETURNS int LANGUAGE sql IMMUTABLE RETURN 1"
        await run(admins[0], harmless)
        await caught_up(connections)
        table = "CREATE TABLE t (id int PRIMARY KEY, x text)"
        await run(connections[0], f"BEGIN; {table}; {_INDEX.format('t')}")
        await spread(connections, 0, "SELECT pgherd.set_local('t'); COMMIT")
        error = await failure(admins[0], "ALTER FUNCTION i(int) OWNER TO app")
    assert error.sqlstate == "0A000", error
    await run(connections[0], "SELECT pgherd.set_replicated('t')")
    await assert_same_schema(connections, schema)
    await _assert_app_is_no_superuser(herd, schema)


async def test_what_a_user_calls_subscriptions_is_never_read(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    """A sidecar asks every few seconds whether there are any, as the superuser."""
    async with superusers(herd, schema) as admins:
        await run(admins[0], "DROP SCHEMA IF EXISTS pgherd_subscriptions CASCADE")
        await caught_up(connections)
        await run(connections[0], _CODE + "CREATE SCHEMA pgherd_subscriptions")
        view = "CREATE VIEW pgherd_subscriptions.subscription AS SELECT climb() AS name"
        try:
            await spread(connections, 0, view)
            for admin in admins:
                for asked in ("keeps", "has"):
                    found = await run(admin, f"SELECT pgherd.{asked}_subscriptions()")
                    assert found == [(False,)]
            await _assert_app_is_no_superuser(herd, schema)
        finally:
            await run(connections[0], "DROP SCHEMA pgherd_subscriptions CASCADE")


async def _assert_app_is_no_superuser(herd: LocalHerd, schema: str) -> None:
    async with superusers(herd, schema) as admins:
        for admin in admins:
            query = "SELECT rolsuper FROM pg_roles WHERE rolname = 'app'"
            assert await run(admin, query) == [(False,)]


async def test_foreign_key_between_types_of_superusers_is_fine(
    connections: list[Connection], admins: list[Connection], schema: str
) -> None:
    # that of another test goes with its schema, some time
    await run(admins[0], "DROP EXTENSION IF EXISTS citext CASCADE")
    await spread(
        connections,
        0,
        "CREATE EXTENSION citext; CREATE TABLE p (k text PRIMARY KEY);"
        "CREATE TABLE c (id int PRIMARY KEY, k citext REFERENCES p)",
    )
    await spread(connections, 0, "CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1")
    await assert_same_schema(connections, schema)
