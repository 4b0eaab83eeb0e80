"""What the commands of a transaction need of a machine, by their words. No server is needed."""

import msgspec
import pytest
from pgherd_sidecar.core.replication.merge import Item
from pgherd_sidecar.pg.ddl.needs import NEEDS_MAX, Need, needs_of


def command(text: str, **settings: str) -> Item:
    fields = {
        "sql": text,
        "role": "app",
        "settings": {"search_path": '"$user", public', "TimeZone": "UTC"} | settings,
    }
    return "", [0], [msgspec.json.encode(fields).decode()]


def named(*items: Item) -> list[tuple[str, str, str]]:
    return [(need.kind, need.name, need.value) for need in needs_of(list(items))]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (id int PRIMARY KEY, x text DEFAULT 'a', at timestamptz DEFAULT now())",
        "ALTER TABLE t ADD COLUMN x int",
        "DROP TABLE t",
        "CREATE INDEX ON t (lower(x))",
        'CREATE INDEX ON t (x COLLATE "C")',
        'CREATE INDEX ON t (x COLLATE pg_catalog."default")',
        "CREATE TABLE t (x text COMPRESSION pglz)",
        "ALTER TABLE t ALTER x SET COMPRESSION default",
        "CREATE VIEW v AS SELECT at AT TIME ZONE 'UTC' FROM t",
        "CREATE VIEW v AS SELECT to_tsvector(x) FROM t",
        "CREATE VIEW v AS SELECT at AT TIME ZONE INTERVAL '1 hour' FROM t",
        "CREATE VIEW v AS SELECT own.timezone('Foo', at) FROM t",
        "CREATE VIEW v AS SELECT ts_headline('a text', q) FROM t",
        "CREATE VIEW v AS SELECT ts_headline('a text', q, 'MaxWords=1') FROM t",
        "CREATE VIEW v AS SELECT json_to_tsvector('{}', j) FROM t",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA s",
        "DROP EXTENSION e",
    ],
)
def test_most_commands_need_nothing(text: str) -> None:
    assert needs_of([command(text)]) == []


def test_rows_and_what_is_no_statement_need_nothing() -> None:
    assert needs_of([("public.t", [1], ["I(1)"]), ("", [0], ['{"act": "set_local"}'])]) == []
    assert needs_of([("", [0], ['{"fill": "public.t", "rows": []}'])]) == []


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ('CREATE TABLE t (x text COLLATE "sv_SE")', [("collation", '"sv_SE"', "")]),
        ('CREATE DOMAIN d AS text COLLATE s."a""b"', [("collation", '"s"."a""b"', "")]),
        (
            "ALTER TABLE t ADD CHECK (at AT TIME ZONE 'Europe/Kyiv' > '2001-01-01')",
            [("zone", "Europe/Kyiv", "")],
        ),
        ("CREATE VIEW v AS SELECT timezone('CET'::text, at) FROM t", [("zone", "CET", "")]),
        (
            "CREATE INDEX ON t USING gin (to_tsvector('german', x))",
            [("search", "german", "")],
        ),
        (
            "CREATE TABLE t (x text COMPRESSION lz4)",
            [("setting", "default_toast_compression", "lz4")],
        ),
        (
            "ALTER TABLE t ALTER x SET COMPRESSION lz4",
            [("setting", "default_toast_compression", "lz4")],
        ),
        (
            "CREATE FUNCTION f(x t) RETURNS int LANGUAGE sql SET timezone TO 'Europe/Kyiv'"
            " SET search_path TO a, b SET lc_monetary = 'C' SET work_mem = 100 AS 'SELECT 1'",
            [("setting", "TimeZone", "Europe/Kyiv")],
        ),
        ("ALTER FUNCTION f() SET lc_monetary = 'sv_SE'", [("setting", "lc_monetary", "sv_SE")]),
        ("ALTER EXTENSION e UPDATE TO '1.2'", [("update", "e", "1.2")]),
    ],
)
def test_names_of_what_a_package_brings(text: str, needs: list[tuple[str, str, str]]) -> None:
    assert named(command(text)) == needs


@pytest.mark.parametrize(
    "text",
    [
        'CREATE EXTENSION IF NOT EXISTS "e" WITH SCHEMA "s" VERSION "1.0"',
        "CREATE COLLATION c (provider = icu, locale = 'sv')",
        "CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple, STOPWORDS = own)",
        "ALTER TEXT SEARCH DICTIONARY d (STOPWORDS = own)",
        "ALTER TEXT SEARCH CONFIGURATION c ADD MAPPING FOR word WITH d",
        "SECURITY LABEL FOR p ON TABLE t IS 'x'",
        "CREATE FUNCTION f(cstring) RETURNS e LANGUAGE internal AS 'int4in'",
    ],
)
def test_what_makes_no_table_is_tried_as_a_whole(text: str) -> None:
    (need,) = needs_of([command(text)])
    assert (need.kind, need.name, need.role) == ("command", text, "app")
    assert need.settings["TimeZone"] == "UTC"


def test_the_session_of_any_command_may_have_set_something() -> None:
    text = "CREATE TABLE t (id int)"
    items = [command(text, TimeZone="Europe/Kyiv", lc_monetary="sv_SE"), command(text)]
    assert named(*items) == [
        ("setting", "TimeZone", "Europe/Kyiv"),
        ("setting", "lc_monetary", "sv_SE"),
    ]


def test_a_need_is_told_once() -> None:
    text = 'CREATE TABLE {} (x text COLLATE "sv_SE", y text COLLATE "sv_SE")'
    assert len(needs_of([command(text.format("a")), command(text.format("b"))])) == 1


def test_names_are_looked_for_as_the_role_of_the_command_does() -> None:
    (need,) = needs_of([command('CREATE TABLE t (x text COLLATE "sv_SE")')])
    assert need.path == '"app", public'


def test_what_the_transaction_has_made_before_may_be_missing() -> None:
    extension = command("CREATE EXTENSION e SCHEMA s")
    schema, table = command("CREATE SCHEMA s"), command("CREATE TABLE s.t ()")

    def loose(*items: Item) -> list[tuple[str, bool]]:
        return [(need.kind, need.loose) for need in needs_of(list(items))]

    assert loose(extension) == [("command", False)]
    assert loose(schema, extension) == [("schema", False), ("command", False)]
    assert loose(table, extension) == [("command", True)]
    assert loose(("", [0], ['{"act": "x"}']), extension) == [("command", True)]

    named = command("CREATE TABLE s.t (x text COLLATE s.c)")
    assert loose(table, named) == [("collation", False)]
    assert loose(command("ALTER COLLATION d RENAME TO c"), named) == [("collation", True)]
    assert loose(command("ALTER SCHEMA r RENAME TO s"), named) == [("collation", True)]


def test_a_need_survives_its_journey() -> None:
    (need,) = needs_of([command("CREATE COLLATION c (locale = 'C')")])
    assert msgspec.json.decode(msgspec.json.encode(need), type=Need) == need


@pytest.mark.parametrize(
    "word", ["function ", "set ", "/* ", "time ", "text ", "security ", "procedure set", "u"]
)
def test_a_long_text_takes_one_walk(word: str) -> None:
    """Whoever may comment on a table writes any text; the event loop waits for its end.

    Twice the length takes some four times as long where each word is looked at from each other
    one. The shorter text is long enough for that to take minutes.
    """
    text = f"COMMENT ON TABLE t IS '{word * (2_000_000 // len(word))}'"
    assert named(command(text)) == []


def test_many_names_are_cut_off_and_each_counts_once() -> None:
    columns = ", ".join(f'c{number} text COLLATE "k{number % 7}"' for number in range(50))
    assert len(named(command(f"CREATE TABLE t ({columns})"))) == 7
    tables = [
        command(f'CREATE TABLE t{number} (x text COLLATE "k{number}")')
        for number in range(3 * NEEDS_MAX)
    ]
    assert len(named(*tables)) == NEEDS_MAX + 1
