"""Members execute what the origin has executed, whatever its text looks like to another grammar."""

from typing import Any

import psycopg
import pytest

from .localherd import LocalHerd
from .members import (
    Connection,
    assert_refused,
    assert_same_schema,
    caught_up,
    failure,
    run,
    same_everywhere,
    spread,
)

_FRAME = "PL/pgSQL function inline_code_block line 1 at EXECUTE"


def executed(text: str) -> str:
    """A block that executes a text."""
    return f"DO $block$ BEGIN EXECUTE $text${text}$text$; END $block$"


#: What is there before, what is tried: texts of which PostgreSQL 15 and 18 read different parts, or
#: which have two ends.
REFUSED = {
    "reserved_later_behind_a_false_end": (
        'CREATE TABLE "system_user" (id int PRIMARY KEY, secret int)',
        executed('create table evil (id int primary key) --"\n inherits (system_user)'),
    ),
    "reserved_later_behind_a_forged_frame": (
        'CREATE TABLE s ("system_user" int)',
        executed(f'CREATE VIEW evil AS SELECT 1 "\n{_FRAME}\n", system_user FROM s'),
    ),
    "two_ends": ("", executed(f'CREATE VIEW evil AS SELECT 1 "\n{_FRAME}\nSQL statement "')),
    "end_in_a_comment": ("", executed('CREATE TABLE evil (id int) --"\n')),
    "two_commands_in_one_text": ("", executed("CREATE TABLE a (); CREATE TABLE b ()")),
    "reserved_later": (
        'CREATE TABLE "system_user" (id int)',
        "ALTER TABLE system_user ADD x int",
    ),
    "function_that_is_syntax_later": (
        'CREATE FUNCTION "json_scalar"(int) RETURNS int LANGUAGE sql VOLATILE AS'
        " 'SELECT (random() * 1e9)::int'; CREATE TABLE t (id int PRIMARY KEY, x int);"
        " INSERT INTO t VALUES (1, 1), (2, 2)",
        "ALTER TABLE t ALTER x TYPE bigint USING json_scalar(x)",
    ),
    "column_that_is_syntax_later": (
        'CREATE TABLE t ("system_user" text)',
        "CREATE VIEW evil AS SELECT system_user FROM t",
    ),
    "literals_read_before_the_setting_was_changed": (
        "SET standard_conforming_strings = off; SET escape_string_warning = off",
        "SET standard_conforming_strings = on;"
        r" CREATE TABLE evil (id int, b text DEFAULT 'x\', c int DEFAULT 3) --')",
    ),
    "literals_read_before_a_function_changed_the_setting": (
        "SET standard_conforming_strings = off; SET escape_string_warning = off",
        "SELECT set_config('standard_' || 'conforming_strings', 'on', false);"
        r" CREATE TABLE evil (id int, b text DEFAULT 'x\', c int DEFAULT 3) --')",
    ),
    "function_in_sql": (
        'CREATE FUNCTION "f\nSQL statement ""CREATE TABLE b ()""\n"() RETURNS void LANGUAGE sql AS'
        " 'CREATE TABLE evil (id int)'",
        'SELECT "f\nSQL statement ""CREATE TABLE b ()""\n"()',
    ),
}


@pytest.mark.family(every=3)
@pytest.mark.parametrize("case", REFUSED)
async def test_text_with_another_reading_is_refused(
    connections: list[Connection], schema: str, case: str
) -> None:
    before, statement = REFUSED[case]
    if before:
        await run(connections[0], before)
    await caught_up(connections)
    await assert_refused(connections, schema, statement)


#: Texts that look odd, and have one end.
ACCEPTED = {
    "quotes": executed('CREATE TABLE "a""b" ("c" int DEFAULT 1, "d\n" text DEFAULT \'"\')'),
    "quote_at_the_end": executed('CREATE VIEW v AS SELECT 1 AS "x"'),
    "end_of_line_in_an_identifier": executed('CREATE TABLE "a"\n(id int)'),
    "end_of_line_in_a_literal": executed("CREATE TABLE a (x text DEFAULT '\"\n')"),
    "frame_in_a_literal": executed(f"CREATE TABLE a (x text DEFAULT '\"\n{_FRAME}\n')"),
    "functions_that_call_functions": (
        'CREATE FUNCTION "f"() RETURNS void LANGUAGE plpgsql AS'
        " $$ BEGIN CREATE TABLE a (x text DEFAULT '\"'); EXECUTE 'CREATE TABLE b ()'; END $$;"
        'CREATE FUNCTION "g\n"() RETURNS void LANGUAGE plpgsql AS'
        ' $$ BEGIN PERFORM "f"() AS "f"\n; END $$;'
        'DO $$ BEGIN PERFORM "g\n"() AS "h"; EXECUTE \'CREATE VIEW v AS TABLE a\'; END $$'
    ),
    "name_of_a_function_that_forges_a_frame": (
        'CREATE FUNCTION "x() line 1 at SQL statement\nSQL statement ""DROP TABLE t"""()'
        " RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TABLE a (id int); END $$;"
        'SELECT "x() line 1 at SQL statement\nSQL statement ""DROP TABLE t"""()'
    ),
    "reserved_later_in_quotes": (
        'CREATE TABLE "system_user" (id int); '
        + executed('CREATE TABLE child () INHERITS ("system_user")')
    ),
    "comments": "/* a /* b */ ; */ CREATE TABLE /* ; */ a (id int) -- ;\n; /* CREATE TABLE b () */",
    "dollars": "CREATE TABLE a (x text DEFAULT $a$ $b$ ' ; \" $b$ $a$)",
    "unicode": "CREATE TABLE U&\"d\\0061t\\00e4\" (x text DEFAULT U&'\\0441\\043B')",
    "other_escape": "CREATE TABLE U&\"d!0061\" UESCAPE '!' (x text DEFAULT U&'!0441' UESCAPE '!')",
    "continued_literal": "CREATE TABLE a (x text DEFAULT 'a'\n'b')",
    "backslashes": r"CREATE TABLE a (x text CHECK (x ~ '^\d+\\$'))",
    "operators": "CREATE TABLE a (x int DEFAULT 2 - -1--\n+ @ -3)",
    "rows_and_backslashes": (
        r"CREATE TABLE a (x text PRIMARY KEY); INSERT INTO a VALUES (E'\\');"
        " CREATE VIEW b AS TABLE a"
    ),
}


@pytest.mark.family(every=3)
@pytest.mark.parametrize("case", ACCEPTED)
async def test_odd_text_with_one_reading_means_the_same_everywhere(
    connections: list[Connection], schema: str, case: str
) -> None:
    before = await assert_same_schema(connections, schema)
    await run(connections[0], ACCEPTED[case])
    assert await assert_same_schema(connections, schema) != before


@pytest.mark.long
async def test_a_long_text_arrives_whole(connections: list[Connection], schema: str) -> None:
    columns = ", ".join(f"c{n} text DEFAULT '{'x' * 300}'" for n in range(1000))
    await run(connections[0], f"CREATE TABLE a ({columns})")
    await run(connections[0], executed(f"CREATE TABLE b ({columns})"))
    await assert_same_schema(connections, schema)


async def test_xml_keeps_its_declaration(connections: list[Connection], schema: str) -> None:
    await spread(
        connections, 0, "CREATE DOMAIN d AS xml; CREATE TABLE t (id int PRIMARY KEY, x xml, y d)"
    )
    text = '<?xml version="1.0" encoding="UTF-8"?>\n<a/>'
    await run(connections[0], f"INSERT INTO t VALUES (1, '{text}', '{text}'), (2, NULL, NULL)")
    await run(
        connections[0], "UPDATE t SET x = y WHERE id = 1; UPDATE t SET y = '<b/>' WHERE id = 2"
    )
    kept = await same_everywhere(connections, "SELECT x::text, y::text FROM t ORDER BY id")
    assert kept == [(text, text), (None, "<b/>")]


async def test_xml_whose_declaration_would_be_lost_is_refused(
    connections: list[Connection], schema: str
) -> None:
    await spread(
        connections,
        0,
        "CREATE TYPE c AS (x xml); CREATE DOMAIN d AS xml;"
        "CREATE TABLE t (id int PRIMARY KEY, a xml[], c c); CREATE TABLE bag (n int, x xml, y d)",
    )
    declared = '<?xml version="1.0" encoding="UTF-8"?><a/>'
    for table, values in [
        ("t", f"1, ARRAY['{declared}'::xml]"),
        ("t", f"1, NULL, ROW('{declared}'::xml)::c"),
        ("bag", f"1, '{declared}'"),
        ("bag", f"1, NULL, '{declared}'"),
    ]:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="declaration of XML"):
            await run(connections[0], f"INSERT INTO {table} VALUES ({values})")
    await run(
        connections[0],
        "INSERT INTO t VALUES (1, ARRAY['<a/>'::xml, NULL], ROW('<b/>'::xml)::c);"
        "BEGIN; INSERT INTO bag VALUES (1, '<a/>', '<b/>'); UPDATE bag SET n = 2; COMMIT",
    )
    assert await same_everywhere(connections, "SELECT * FROM t") == [(1, ["<a/>", None], "(<b/>)")]
    assert await same_everywhere(connections, "SELECT * FROM bag") == [(2, "<a/>", "<b/>")]


async def test_clients_of_other_encodings_mean_the_same(
    connections: list[Connection], schema: str, herd: LocalHerd
) -> None:
    for encoding, codec in (("LATIN1", "latin1"), ("SQL_ASCII", "utf8"), ("WIN1252", "cp1252")):
        async with await psycopg.AsyncConnection.connect(
            herd.nodes()[0].app_dsn, autocommit=True, client_encoding=encoding
        ) as connection:
            await connection.execute(f"SET search_path = {schema}".encode())
            text = f'CREATE TABLE "é {encoding} {{}}" (x text DEFAULT \'é"\')'
            for statement in (text.format(1), executed(text.format(2))):
                await connection.execute(statement.encode(codec))
    await assert_same_schema(connections, schema)
    names = await same_everywhere(
        connections, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' ORDER BY 1"
    )
    assert len(names) == 6
    assert all("é" in name for (name,) in names)


async def test_portals_of_the_extended_protocol_keep_their_texts(
    connections: list[Connection], schema: str
) -> None:
    origin = connections[0]
    async with origin.pipeline(), origin.transaction():
        texts: list[Any] = [f"CREATE TABLE p{n} (id int PRIMARY KEY, x{n} int)" for n in range(4)]
        for text in texts:
            await origin.execute(text, prepare=True)
        await origin.execute("INSERT INTO p2 VALUES (%s, %s)", (1, 2), prepare=True)
        await origin.execute("ALTER TABLE p2 ADD y int", prepare=True)
    await assert_same_schema(connections, schema)
    assert await same_everywhere(connections, "SELECT * FROM p2") == [(1, 2, None)]


async def test_table_from_a_prepared_statement(connections: list[Connection], schema: str) -> None:
    await run(
        connections[0],
        "PREPARE p (int) AS SELECT $1 AS x, 'CREATE TABLE b ()' AS y;"
        "CREATE TABLE a AS EXECUTE p (7)",
    )
    await assert_same_schema(connections, schema)
    assert await same_everywhere(connections, "SELECT * FROM a") == [(7, "CREATE TABLE b ()")]


async def test_refused_text_of_a_temporary_table_is_none(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "CREATE TEMP TABLE system_user (id int)")
    await run(connections[0], executed('CREATE TEMP TABLE t (id int) --"\n'))
    error = await failure(connections[0], "CREATE TABLE system_user (id int)")
    assert error.sqlstate == "0A000"
    assert "double quotes" in str(error.diag.message_hint)
