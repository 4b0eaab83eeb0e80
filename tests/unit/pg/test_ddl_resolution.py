"""Which statement a captured command was, and what its words refuse. No server is needed."""

from typing import Any

import msgspec
import pytest
from pgherd_sidecar.core.replication.merge import Item
from pgherd_sidecar.pg.ddl.commands import DdlNotSupported, resolve_commands

_OWN = "PL/pgSQL function pgherd.command_start() line 16 at GET DIAGNOSTICS"
_FRAME = "PL/pgSQL function inline_code_block line 3 at SQL statement"


def command(tag: str, query: str | None, *, message: str = "m1", **more: Any) -> Item:
    fields = {"tag": tag, "query": query, "message": message, "role": "app", "context": _OWN}
    return "", [0], [msgspec.json.encode(fields | more).decode()]


def inside(tag: str, text: str, query: str | None = "SELECT f()", **more: Any) -> Item:
    context = f'{_OWN}\nSQL statement "{text}"\n{_FRAME}'
    return command(tag, query, context=context, **{"quoted": text} | more)


def texts(*items: Item) -> list[str]:
    resolved = resolve_commands(list(items))
    return [msgspec.json.decode(one)["sql"] for _, _, records in resolved for one in records]


def test_statement_of_a_message_keeps_its_exact_text() -> None:
    text = "CREATE  TABLE é (x text DEFAULT ';')  -- the first\n"
    assert texts(command("CREATE TABLE", f"/* a */ {text}; SELECT 1")) == [
        "CREATE  TABLE é (x text DEFAULT ';')  -- the first"
    ]


def test_members_are_told_that_a_command_leaves_tables_as_they_are() -> None:
    text = "COMMENT ON TABLE t IS 'x'"
    (item,) = resolve_commands([command("COMMENT", text, leaves_tables=True)])
    assert msgspec.json.decode(item[2][0])["leaves_tables"] is True
    (item,) = resolve_commands([command("COMMENT", text)])
    assert "leaves_tables" not in msgspec.json.decode(item[2][0])


def test_each_command_finds_its_place_in_a_script() -> None:
    script = (
        "CREATE TABLE a (); INSERT INTO a DEFAULT VALUES; CREATE VIEW b AS TABLE a; DROP VIEW b"
    )
    assert texts(
        command("CREATE TABLE", script),
        command("CREATE VIEW", None),
        command("DROP VIEW", None),
    ) == ["CREATE TABLE a ()", "CREATE VIEW b AS TABLE a", "DROP VIEW b"]


def test_commands_of_roles_and_databases_are_not_counted() -> None:
    script = "CREATE ROLE r; GRANT r TO s; COMMENT ON ROLE r IS 'x'; COMMENT ON TABLE t IS 'y'"
    assert texts(command("COMMENT", script)) == ["COMMENT ON TABLE t IS 'y'"]


def test_transaction_of_a_script_is_told_by_its_commands() -> None:
    script = "CREATE TABLE a (); COMMIT; CREATE VIEW b AS TABLE a; CREATE VIEW c AS TABLE a"
    found = texts(command("CREATE VIEW", script), command("CREATE VIEW", None))
    assert found == ["CREATE VIEW b AS TABLE a", "CREATE VIEW c AS TABLE a"]


@pytest.mark.parametrize(
    ("tag", "script"),
    [
        ("CREATE TABLE", "CREATE TABLE a (); COMMIT; CREATE TABLE b ()"),
        ("CREATE TABLE", "SAVEPOINT s; CREATE TABLE a (); ROLLBACK TO s; CREATE TABLE b ()"),
        ("CREATE TABLE", "CREATE VIEW v AS SELECT 1"),
        ("CREATE TABLE", "SELECT 1"),
        ("CREATE TABLE", "EXECUTE hidden; COMMIT; CREATE TABLE a ()"),
        ("CREATE TABLE", "SAVEPOINT s; CREATE TABLE a (); ROLLBACK TO s; EXECUTE hidden"),
        ("CREATE TABLE", "CREATE TABLE a AS SELECT 1"),
        ("CREATE TABLE", "CREATE TABLE ("),
    ],
)
def test_statement_that_cannot_be_told_is_refused(tag: str, script: str) -> None:
    with pytest.raises(DdlNotSupported) as refusal:
        resolve_commands([command(tag, script)])
    assert refusal.value.hint


def test_execute_beside_all_commands_of_its_transaction_is_none() -> None:
    script = "PREPARE p AS SELECT 1; EXECUTE p; CREATE TABLE a (); COMMIT; SELECT 1"
    assert texts(command("CREATE TABLE", script)) == ["CREATE TABLE a ()"]


def test_command_inside_a_function_is_quoted_in_the_stack() -> None:
    assert texts(inside("CREATE TABLE", "CREATE TABLE a (x text DEFAULT '\"')")) == [
        "CREATE TABLE a (x text DEFAULT '\"')"
    ]


@pytest.mark.parametrize(
    "quoted",
    [
        None,  # the server cannot tell
        "CREATE TABLE a (); CREATE TABLE b ()",
        "SELECT 1",
        "CREATE VIEW a AS SELECT 1",
        "CREATE TABLE evil () inherits (system_user)",  # names a key word of a later version
    ],
)
def test_quotation_that_is_not_the_one_command_is_refused(quoted: str | None) -> None:
    with pytest.raises(DdlNotSupported) as refusal:
        texts(inside("CREATE TABLE", "CREATE TABLE evil ()", quoted=quoted))
    assert refusal.value.hint


def test_only_the_servers_reading_of_a_quotation_counts() -> None:
    quoted = f"CREATE TABLE a (x text DEFAULT '\"\n{_FRAME}')"
    assert texts(inside("CREATE TABLE", "CREATE TABLE a ()", quoted=quoted)) == [quoted]


@pytest.mark.parametrize("stack", ['SQL function "f" statement 1', "PL/Perl function f"])
def test_command_without_a_quotation_is_refused(stack: str) -> None:
    with pytest.raises(DdlNotSupported):
        resolve_commands([command("CREATE TABLE", "SELECT f()", context=f"{_OWN}\n{stack}")])


@pytest.mark.parametrize(
    "script",
    [
        r"SET standard_conforming_strings = on; CREATE TABLE a (x text DEFAULT 'x\', y int) --')",
        r"RESET ALL; CREATE TABLE a (x text DEFAULT 'x\')",
        r"SELECT f('\'); CREATE TABLE a (); SELECT ')'",
        r"INSERT INTO t VALUES ('\'); CREATE TABLE a ()",
        r"DO $$ $$; CREATE TABLE a (x text DEFAULT N'\')",
        r"SET a.b = '\''; SELECT f(); CREATE TABLE a (x int); --'; CREATE TABLE a (x text)",
        r"CREATE TABLE a (x text); COMMIT; SELECT f('\'); CREATE TABLE a (x text)",
    ],
)
def test_literals_that_may_have_been_read_in_another_way_are_refused(script: str) -> None:
    with pytest.raises(DdlNotSupported) as refusal:
        texts(command("CREATE TABLE", script))
    assert "backslash" in str(refusal.value)


@pytest.mark.parametrize(
    "script",
    [
        r"CREATE TABLE a (x text CHECK (x ~ '^\d$'))",
        r"BEGIN; SET search_path = s; CREATE TABLE a (x text CHECK (x ~ '^\d$')); COMMIT",
        r"SELECT f(); CREATE TABLE a (x text DEFAULT E'a\n' || e'\\' || $$\$$ || U&'\0041')",
        "SELECT f(); CREATE TABLE a ()",
        r"BEGIN; CREATE TABLE a (x text); INSERT INTO a VALUES ('\\d'); COMMIT",
        r"CREATE TABLE a (x text CHECK (x ~ '^\d$')); SELECT f()",
    ],
)
def test_literals_with_one_reading_pass(script: str) -> None:
    assert len(texts(command("CREATE TABLE", script))) == 1


def test_setting_of_the_first_command_is_not_that_of_the_message_where_it_is_a_query() -> None:
    script = r"SELECT f('\') INTO a; SELECT 1"
    with pytest.raises(DdlNotSupported):
        texts(command("SELECT INTO", script))
    script = r"CREATE TEMP TABLE a (); SELECT f(); CREATE TABLE b (x text DEFAULT '\')"
    with pytest.raises(DdlNotSupported):
        texts(
            command("CREATE TABLE", script, local=True, standard_strings="off"),
            command("CREATE TABLE", None),
        )


@pytest.mark.parametrize(
    "text",
    [
        "CREATE VIEW v AS SELECT json_scalar(1)",
        "CREATE VIEW v AS SELECT json_value(a, 'b') FROM t",
        "CREATE VIEW v AS SELECT json_array(1)",
        "CREATE VIEW v AS SELECT merge_action()",
        "CREATE VIEW v AS SELECT x FROM t WHERE system_user = 'me'",
    ],
)
def test_name_that_is_syntax_in_a_later_version_is_refused(text: str) -> None:
    assert texts(command("CREATE VIEW", text, version=180000)) == [text]
    with pytest.raises(DdlNotSupported) as refusal:
        texts(command("CREATE VIEW", text, version=150000))
    assert "double quotes" in refusal.value.hint


def test_name_that_is_reserved_in_a_later_version_has_to_be_quoted() -> None:
    with pytest.raises(DdlNotSupported) as refusal:
        texts(command("CREATE TABLE", "CREATE TABLE system_user (id int)", version=150000))
    assert "system_user" in refusal.value.hint
    quoted = 'CREATE TABLE "system_user" (id int)'
    assert texts(command("CREATE TABLE", quoted, version=150000)) == [quoted]


def test_temporary_objects_may_have_any_name() -> None:
    local = command("CREATE TABLE", "CREATE TEMP TABLE system_user (id int)", local=True)
    assert resolve_commands([local]) == []


def test_commands_at_the_top_and_inside_blocks_keep_their_order() -> None:
    script = "CREATE TABLE a (); DO 'BEGIN CREATE TABLE b (); END'; CREATE TABLE c ()"
    assert texts(
        command("CREATE TABLE", script),
        inside("CREATE TABLE", "CREATE TABLE b ()", None),
        command("CREATE TABLE", None),
    ) == ["CREATE TABLE a ()", "CREATE TABLE b ()", "CREATE TABLE c ()"]


def test_local_commands_count_but_do_not_travel() -> None:
    script = "CREATE TEMP TABLE a (); CREATE TABLE b ()"
    local = command("CREATE TABLE", script, local=True)
    assert texts(local, command("CREATE TABLE", None)) == ["CREATE TABLE b ()"]


def test_rows_stay_where_they_are_among_the_commands() -> None:
    rows: Item = ("public.t", [4], ["I(1)"])
    script = "CREATE TABLE t (id int); DROP TABLE t"
    create, drop = command("CREATE TABLE", script), command("DROP TABLE", None)
    assert [item[0] for item in resolve_commands([create, rows, drop])] == ["", "public.t", ""]


def test_grant_on_a_temporary_table_is_local() -> None:
    grant = command("GRANT", "GRANT SELECT ON a, pg_temp.b TO PUBLIC", temporary=["a", "b"])
    assert resolve_commands([grant]) == []


@pytest.mark.parametrize(
    ("tag", "text", "more"),
    [
        ("CREATE TABLE", "CREATE TABLE t (LIKE a)", {"temporary": ["a"]}),
        ("CREATE SCHEMA", "CREATE SCHEMA s AUTHORIZATION SESSION_USER", {}),
        ("CREATE FUNCTION", "CREATE FUNCTION f() RETURNS int LANGUAGE C AS 'a', 'b'", {}),
        ("CREATE SERVER", "CREATE SERVER s FOREIGN DATA WRAPPER w", {}),
        ("COMMENT", "COMMENT ON LARGE OBJECT 1 IS 'x'", {}),
        ("CREATE SUBSCRIPTION", "CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p", {}),
        ("ALTER SEQUENCE", "ALTER SEQUENCE s MAXVALUE 9", {"shrinks": True}),
        ("ALTER SEQUENCE", "ALTER SEQUENCE s MAXVALUE 9 START 1 RESTART", {"shrinks": True}),
        ("ALTER TABLE", "ALTER TABLE t ALTER x SET MAXVALUE 9", {"shrinks": True}),
        ("ALTER TABLE", "ALTER TABLE t ALTER x TYPE int USING f(x)", {"rewrites": True}),
        ("ALTER TABLE", "ALTER TABLE t ALTER x TYPE date USING current_date", {"rewrites": True}),
        ("ALTER EXTENSION", "ALTER EXTENSION e UPDATE", {}),
        ("CREATE TABLE", "CREATE TABLE t ()", {"standard_strings": "off"}),
    ],
)
def test_words_that_are_refused(tag: str, text: str, more: dict[str, Any]) -> None:
    with pytest.raises(DdlNotSupported) as refusal:
        resolve_commands([command(tag, text, **more)])
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("tag", "text", "more"),
    [
        ("ALTER TABLE", "ALTER TABLE t ALTER x TYPE int USING f(x)", {}),
        ("ALTER TABLE", "ALTER TABLE t ALTER x TYPE int USING trim(x)::int", {"rewrites": True}),
        ("ALTER SEQUENCE", "ALTER SEQUENCE s MAXVALUE 9 START 1 RESTART 1", {"shrinks": True}),
        ("ALTER SEQUENCE", "ALTER SEQUENCE s AS bigint", {}),
        ("CREATE FUNCTION", "CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1", {}),
        ("DROP TABLE", "DROP TABLE t", {"temporary": ["a"]}),
    ],
)
def test_words_that_pass(tag: str, text: str, more: dict[str, Any]) -> None:
    assert texts(command(tag, text, **more)) == [text]


def test_table_made_by_a_query_travels_as_the_table() -> None:
    made = command("CREATE TABLE AS", "CREATE TABLE t AS SELECT 1", made="CREATE TABLE t (x int)")
    assert texts(made) == ["CREATE TABLE t (x int)"]
    into = command("SELECT INTO", "SELECT 1 INTO t UNION SELECT 2", made="CREATE TABLE t (x int)")
    assert texts(into) == ["CREATE TABLE t (x int)"]


def test_extension_travels_with_its_version() -> None:
    item = command("CREATE EXTENSION", "CREATE EXTENSION e", extension=["e", "my s", "1.0"])
    assert texts(item) == ['CREATE EXTENSION IF NOT EXISTS "e" WITH SCHEMA "my s" VERSION "1.0"']


def everywhere(sql: str) -> Item:
    return "", [0], [msgspec.json.encode({"act": "run", "sql": sql}).decode()]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE ROLE \"Password\" PASSWORD 'se''cret' LOGIN",
        "CREATE ROLE a IN ROLE b",
        "DROP ROLE a, b",
        "ALTER ROLE a RENAME TO b",
        "GRANT a TO b",
        "ALTER DATABASE app SET work_mem = '1MB'",
        "COMMENT ON ROLE a IS 'x'",
        "GRANT CREATE ON DATABASE app TO a",
        "REASSIGN OWNED BY a TO b",
    ],
)
def test_what_the_catalogs_tell_does_not_travel_as_words(text: str) -> None:
    assert resolve_commands([everywhere(text)]) == []


def test_event_triggers_travel_as_words() -> None:
    text = "CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION f()"
    assert texts(everywhere(text)) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "DROP ROLE a; DROP ROLE b",
        "CREATE TABLE t ()",
        "DELETE FROM t",
        "ALTER SYSTEM SET port = 1",
        "DROP DATABASE app",
        "ALTER EVENT TRIGGER pgherd_end DISABLE",
        "COMMENT ON TABLE t IS 'x'",
    ],
)
def test_only_what_belongs_to_the_server_runs_everywhere(text: str) -> None:
    with pytest.raises(DdlNotSupported):
        resolve_commands([everywhere(text)])
