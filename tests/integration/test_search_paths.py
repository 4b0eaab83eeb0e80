"""Functions that other members evaluate find the same there as at the origin.

The applier has a search path of its own. The user's would let him put a function into a schema of
his, and have it run with the rights of replication.
"""

import re

import psycopg
import pytest

from .members import (
    Connection,
    assert_same_schema,
    caught_up,
    failure,
    run,
    same_everywhere,
    spread,
)

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")

#: Each calls folded() without its schema.
_SLUG = """
    CREATE FUNCTION folded(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN lower($1);
    CREATE FUNCTION slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql
        AS $$ BEGIN RETURN folded($1); END $$;
"""
_TEXT = "CREATE FUNCTION text_of_sql(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT {} $$;"
_SAME = """
    CREATE FUNCTION same(text, text) RETURNS bool IMMUTABLE LANGUAGE plpgsql
        AS $$ BEGIN RETURN folded($1) = folded($2); END $$;
    CREATE OPERATOR === (LEFTARG = text, RIGHTARG = text, FUNCTION = same);
"""
_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text);"

#: By name: commands that come before, and one that is refused. Braces hold the schema.
REFUSED = {
    "check": ("", "CREATE TABLE t (id int PRIMARY KEY, v text CHECK (slug(v) <> ''))"),
    "generated": (
        "",
        "CREATE TABLE t (id int PRIMARY KEY, v text, s text GENERATED ALWAYS AS (slug(v)) STORED)",
    ),
    "index": (_TABLE, "CREATE INDEX ON t (slug(v))"),
    "predicate": (_TABLE, "CREATE INDEX ON t (id) WHERE slug(v) = 'a'"),
    "concurrently": (_TABLE, "CREATE INDEX CONCURRENTLY ON t (slug(v))"),
    "exclusion": (_TABLE, "ALTER TABLE t ADD EXCLUDE (slug(v) WITH =)"),
    "statistics": (_TABLE, "CREATE STATISTICS s ON slug(v), id FROM t"),
    "partition_key": ("", "CREATE TABLE p (v text) PARTITION BY LIST (slug(v))"),
    "domain": ("", "CREATE DOMAIN d AS text CHECK (slug(VALUE) <> '')"),
    "cast": (
        "CREATE TYPE one AS (a text); CREATE FUNCTION read(one) RETURNS text IMMUTABLE"
        " LANGUAGE plpgsql AS $$ BEGIN RETURN folded($1.a); END $$;",
        "CREATE CAST (one AS text) WITH FUNCTION read(one)",
    ),
    "range": (
        "CREATE FUNCTION gap(float8, float8) RETURNS float8 IMMUTABLE LANGUAGE plpgsql"
        " AS $$ BEGIN RETURN $1 - $2; END $$;",
        "CREATE TYPE r AS RANGE (subtype = float8, subtype_diff = gap)",
    ),
    "operator": (_SAME, "CREATE TABLE t (id int PRIMARY KEY, v text CHECK (v === 'a'))"),
    "operator_class": (
        "CREATE FUNCTION compared(text, text) RETURNS int IMMUTABLE LANGUAGE plpgsql"
        " AS $$ BEGIN RETURN bttextcmp(folded($1), folded($2)); END $$;",
        "CREATE OPERATOR CLASS folding FOR TYPE text USING btree AS OPERATOR 1 <, OPERATOR 2 <=,"
        " OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 compared(text, text)",
    ),
    "text_of_sql": (f"{_TABLE} {_TEXT.format('folded($1)')}", "CREATE INDEX ON t (text_of_sql(v))"),
    "called_by_a_text_of_sql": (
        f"{_TABLE} {_TEXT.format('{}.slug($1)')}",
        "CREATE INDEX ON t (text_of_sql(v))",
    ),
    "operator_in_a_text_of_sql": (
        f"{_SAME} {_TABLE} {_TEXT.format('($1 OPERATOR({}.===) $1)::text')}",
        "CREATE INDEX ON t (text_of_sql(v))",
    ),
    "called_by_a_body_in_standard_sql": (
        f"{_TABLE} CREATE FUNCTION bound(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN slug($1)",
        "CREATE INDEX ON t (bound(v))",
    ),
    "operator_in_a_body_in_standard_sql": (
        f"{_SAME} {_TABLE} CREATE FUNCTION bound(text) RETURNS bool IMMUTABLE LANGUAGE sql"
        " RETURN $1 === 'a'",
        "CREATE INDEX ON t (bound(v))",
    ),
    "path_of_the_role": (
        f'{_TABLE} ALTER FUNCTION slug(text) SET search_path = "$user", public',
        "CREATE INDEX ON t (slug(v))",
    ),
    "table_that_becomes_replicated": (
        f"{_TABLE} SELECT pgherd.set_local('t'); ALTER TABLE t ADD CHECK (slug(v) <> '') NOT VALID",
        "SELECT pgherd.set_replicated('t')",
    ),
}

_USED = """
    ALTER FUNCTION slug(text) SET search_path = {0}, pg_temp;
    CREATE TABLE t (id int PRIMARY KEY, v text CHECK (slug(v) <> ''));
"""
_QUALIFIED = f"{_TABLE} {_TEXT.format('initcap($1)')} CREATE INDEX ON t (text_of_sql(v));"
_BODY = "AS $$ BEGIN RETURN folded($1); END $$"

#: By name: commands that use a function, and one that would take away what it rests on.
WAYS_ROUND = {
    "reset": (_USED, "ALTER FUNCTION slug(text) RESET search_path"),
    "reset_all": (_USED, "ALTER ROUTINE slug(text) RESET ALL"),
    "path_of_the_role": (_USED, 'ALTER FUNCTION slug(text) SET search_path = "$user"'),
    "replaced": (
        _USED,
        f"CREATE OR REPLACE FUNCTION slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql {_BODY}",
    ),
    "replaced_text_of_sql": (
        _QUALIFIED,
        _TEXT.format("folded($1)").replace("CREATE", "CREATE OR REPLACE"),
    ),
    "reset_of_what_it_calls": (
        f"ALTER FUNCTION slug(text) SET search_path = {{0}}; {_TABLE} CREATE FUNCTION bound(text)"
        " RETURNS text IMMUTABLE LANGUAGE sql RETURN slug($1); CREATE INDEX ON t (bound(v))",
        "ALTER FUNCTION slug(text) RESET search_path",
    ),
    "reset_of_what_a_text_of_sql_calls": (
        f"ALTER FUNCTION slug(text) SET search_path = {{0}}; {_TABLE}"
        f" {_TEXT.format('{0}.slug($1)')} CREATE INDEX ON t (text_of_sql(v))",
        "ALTER FUNCTION slug(text) RESET search_path",
    ),
}


def assert_no_path(error: psycopg.Error) -> str:
    """It is refused for want of a search path; return the command of the hint."""
    assert error.sqlstate == "0A000", error
    assert "has no search path of its own" in str(error)
    command = re.search(r"ALTER FUNCTION .*;$", error.diag.message_hint or "")
    assert command, error.diag.message_hint
    return command[0]


async def test_an_index_without_accents_is_the_same_everywhere(
    admins: list[Connection], connections: list[Connection], schema: str
) -> None:
    await run(
        admins[0],
        f"CREATE EXTENSION unaccent SCHEMA {schema};"
        "CREATE FUNCTION f_unaccent(text) RETURNS text IMMUTABLE STRICT LANGUAGE sql"
        " AS $$ SELECT unaccent('unaccent', $1) $$;"
        "CREATE TABLE person (id int PRIMARY KEY, name text); GRANT ALL ON person TO app",
    )
    indexed = "CREATE INDEX ON person (f_unaccent(name))"
    mended = assert_no_path(await failure(admins[0], indexed))
    assert mended == (
        f"ALTER FUNCTION {schema}.f_unaccent(text) SET search_path = {schema}, public, pg_temp;"
    )
    await run(admins[0], mended)
    await run(admins[0], indexed)
    await caught_up(connections)
    await run(connections[0], "INSERT INTO person VALUES (1, 'Zoë'), (2, 'Zoe'), (3, 'Ana')")
    await run(connections[0], "UPDATE person SET name = 'Zoé' WHERE id = 3")
    for connection in connections:
        await run(connection, "SET enable_seqscan = off")
    by_index = "SELECT id FROM person WHERE f_unaccent(name) = 'Zoe' ORDER BY id"
    assert await same_everywhere(connections, by_index) == [(1,), (2,), (3,)]
    await assert_same_schema(connections, schema)


@pytest.mark.family(every=6)
@pytest.mark.parametrize("case", REFUSED)
async def test_a_function_without_a_search_path_is_refused(
    admins: list[Connection], schema: str, case: str
) -> None:
    before, statement = REFUSED[case]
    await run(admins[0], _SLUG + before.replace("{}", schema))
    error = await failure(admins[0], statement)
    assert_no_path(error)
    await assert_same_schema(admins, schema)


async def test_what_the_hint_says_is_enough_for_constraints_and_columns(
    admins: list[Connection], schema: str
) -> None:
    made = (
        "CREATE TABLE t (id int PRIMARY KEY, v text CHECK (slug(v) <> ''),"
        " s text GENERATED ALWAYS AS (slug(v)) STORED)"
    )
    await run(admins[0], _SLUG)
    await run(admins[0], assert_no_path(await failure(admins[0], made)))
    await spread(admins, 0, f"{made}; INSERT INTO t VALUES (1, 'One')")
    await run(admins[1], "INSERT INTO t VALUES (2, 'TWO')")
    rows = await same_everywhere(admins, "SELECT id, s FROM t ORDER BY id")
    assert rows == [(1, "one"), (2, "two")]
    assert (await failure(admins[2], "INSERT INTO t VALUES (3, '')")).sqlstate == "23514"


@pytest.mark.family(every=3)
@pytest.mark.parametrize("case", WAYS_ROUND)
async def test_what_a_function_in_use_rests_on_stays(
    admins: list[Connection], schema: str, case: str
) -> None:
    before, statement = WAYS_ROUND[case]
    await run(admins[0], _SLUG + before.replace("{0}", schema))
    assert_no_path(await failure(admins[0], statement))
    await run(admins[0], "INSERT INTO t VALUES (1, 'One')")
    await assert_same_schema(admins, schema)


async def test_what_finds_its_names_under_any_path_needs_none(
    admins: list[Connection], schema: str
) -> None:
    await run(admins[0], f"CREATE EXTENSION unaccent SCHEMA {schema}; {_SLUG} {_QUALIFIED}")
    await run(admins[0], "CREATE INDEX ON t (folded(v)) WHERE lower(v) <> ''")
    await run(
        admins[0],
        "CREATE FUNCTION f_unaccent(text) RETURNS text IMMUTABLE STRICT LANGUAGE sql"
        f" AS $$ SELECT {schema}.unaccent('{schema}.unaccent', $1) $$;"
        "CREATE INDEX ON t (f_unaccent(v)); INSERT INTO t VALUES (1, 'Oné')",
    )
    await run(admins[0], "CREATE TEMP TABLE u (v text CHECK (slug(v) <> ''))")
    await assert_same_schema(admins, schema)


async def test_what_was_in_use_before_this_rule_goes_on_until_it_is_changed(
    admins: list[Connection], schema: str
) -> None:
    await spread(admins, 0, _SLUG + _USED.replace("{0}", schema))
    as_before = f"ALTER FUNCTION {schema}.slug(text) RESET search_path"
    for admin in admins:  # as no command can make it any more
        await run(admin, f"SET session_replication_role = replica; {as_before}")
        await run(admin, "RESET session_replication_role")
    await run(admins[0], "CREATE TABLE other (id int PRIMARY KEY); CREATE INDEX ON t (slug(v))")
    replaced = WAYS_ROUND["replaced"][1]
    await run(admins[0], assert_no_path(await failure(admins[0], replaced)))
    await run(admins[0], "INSERT INTO t VALUES (1, 'One')")
    await assert_same_schema(admins, schema)
