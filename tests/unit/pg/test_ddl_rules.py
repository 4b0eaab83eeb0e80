"""What the words of a command refuse where the catalog does not show it. No server is needed."""

from typing import Any

import pytest
from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported
from pgherd_sidecar.pg.ddl.rules import refuse_unsafe, roles_of
from pgherd_sidecar.pg.ddl.statements import Captured, parse_statements


def check(text: str, **known: Any) -> None:
    refuse_unsafe(parse_statements(text)[0].node, Captured(version=180000, **known))


@pytest.mark.parametrize(
    "literal",
    [
        "'now'",
        "date 'today'",
        "' TOMORROW, 10:00'",
        r"E'\x6eow'",
        "U&'\\006eow'",
        "$$_now_$$",
        "'[now,]'",
    ],
)
def test_word_that_may_be_a_moving_date_is_refused_where_dates_were_made(literal: str) -> None:
    text = f"CREATE TABLE t (at timestamp DEFAULT {literal})"
    check(text)
    with pytest.raises(DdlNotSupported):
        check(text, dates=True)


@pytest.mark.parametrize("literal", ["'2024-01-01'", "'snowed'", "'nowhere'", "'epoch'", "now()"])
def test_other_words_are_no_moving_dates(literal: str) -> None:
    check(f"CREATE TABLE t (at timestamp DEFAULT {literal})", dates=True)


@pytest.mark.parametrize(
    "using",
    [
        "y::date",
        "date(y)",
        "y::date::text",
        "y::pg_catalog.timestamptz",
        "CASE WHEN y > '' THEN y::d END",
        "'t'::regclass::oid::text",
        "upper(y) || f(y)",
        "public.upper(y)",
        "y <+> 1",
        "y OPERATOR(public.+) 1",
        "timestamp 'now'",
        "json_scalar(y)",
        "json_value(y, '$')",
        "(SELECT max(y) FROM t)",
        "xmlelement(name a, y)",
        "current_user",
        "merge_action()",
    ],
)
def test_type_computed_in_more_than_one_way_is_refused(using: str) -> None:
    text = f"ALTER TABLE t ALTER x TYPE varchar USING {using}"
    check(text)
    with pytest.raises(DdlNotSupported):
        check(text, rewrites=True, shadows=["<+>"])


@pytest.mark.parametrize(
    ("type_", "using"),
    [
        ("int", "trim(y)::int"),
        ("status", "CASE WHEN y = 'a' THEN 'active'::status ELSE y::status END"),
        ("timestamptz", "to_timestamp(y, 'YYYY') + interval '1 day'"),
        ("numeric(5,2)", "round(y::numeric(9,4), 2) * -1"),
        ("text", "upper(y) || 'x'"),
    ],
)
def test_type_computed_in_one_way_passes(type_: str, using: str) -> None:
    check(f"ALTER TABLE t ALTER x TYPE {type_} USING {using}", rewrites=True, uncertain=["z"])


def test_cast_to_the_type_of_the_column_passes_only_if_that_has_one_reading() -> None:
    text = "ALTER TABLE t ALTER x TYPE status USING y::status"
    check(text, rewrites=True)
    with pytest.raises(DdlNotSupported):
        check(text, rewrites=True, uncertain=["x"])


def test_function_of_the_user_in_front_of_ours_is_refused_unless_ours_is_named() -> None:
    with pytest.raises(DdlNotSupported):
        check("ALTER TABLE t ALTER x TYPE text USING upper(y)", rewrites=True, shadows=["upper"])
    check(
        "ALTER TABLE t ALTER x TYPE text USING pg_catalog.upper(y)",
        rewrites=True,
        shadows=["upper"],
    )


@pytest.mark.parametrize(
    "using",
    [
        "f(1)",
        "s.f(1)",
        "t.f",
        "s.t.f",
        "pg_catalog.f",
        "(ROW(1)::t).f",
        "(x).pg_catalog.f",
        "<+> 1",
        "CASE 1 WHEN 2 THEN 3 END",
        "CASE WHEN 1 BETWEEN 0 AND 2 THEN 3 END",
        "CASE WHEN 1 NOT BETWEEN SYMMETRIC 0 AND 2 THEN 3 END",
    ],
)
def test_code_of_a_user_is_refused_also_where_no_row_is_converted(using: str) -> None:
    text = f"ALTER TABLE t ALTER x TYPE int USING {using}"
    check(text)
    with pytest.raises(DdlNotSupported, match="not a superuser's"):
        check(text, shadows=["f", "<+>", "=", ">=", "<", "<="])


@pytest.mark.parametrize("bound", ["CASE 1 WHEN 2 THEN 3 END", "(1 BETWEEN 0 AND 2)::text"])
def test_bound_of_a_partition_calls_no_operator_of_a_user(bound: str) -> None:
    text = f"CREATE TABLE t PARTITION OF p FOR VALUES IN ({bound})"
    check(text)
    with pytest.raises(DdlNotSupported):
        check(text, shadows=["=", ">="])


@pytest.mark.parametrize(
    "bound", ["now()", "current_date", "'today'", "f(1)", "'a'::d", "(ROW(1)).f"]
)
def test_bound_of_a_partition_is_a_constant(bound: str) -> None:
    check("CREATE TABLE t PARTITION OF p FOR VALUES FROM (-1, 'a') TO (MAXVALUE, '2024-01-01')")
    with pytest.raises(DdlNotSupported):
        check(f"CREATE TABLE t PARTITION OF p FOR VALUES IN ({bound})")
    with pytest.raises(DdlNotSupported):
        check(f"ALTER TABLE p ATTACH PARTITION t FOR VALUES IN ({bound})")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (x e)",
        "CREATE TABLE t (x e[])",
        "CREATE TABLE t (x pg_temp.other)",
        "CREATE FUNCTION f(e) RETURNS int LANGUAGE sql RETURN 1",
        "CREATE FUNCTION f() RETURNS e.id%TYPE LANGUAGE sql RETURN 1",
        "DROP FUNCTION f(e)",
        "CREATE TABLE t (LIKE e)",
    ],
)
def test_names_of_temporary_objects_are_refused(text: str) -> None:
    with pytest.raises(DdlNotSupported):
        check(text, temporary=["e"])


def test_names_that_only_look_like_those_of_temporary_objects_pass() -> None:
    check(
        "CREATE FUNCTION e2(e int, public.e, public.e.id%TYPE) RETURNS int LANGUAGE sql RETURN 1",
        temporary=["e"],
    )


def test_default_that_is_replaced_at_once_is_refused() -> None:
    with pytest.raises(DdlNotSupported):
        check("ALTER TABLE t ADD x text DEFAULT f(), ALTER x SET DEFAULT 'x'")
    check("ALTER TABLE t ADD x text DEFAULT 'x', ALTER y SET DEFAULT 'y'")


def test_value_of_a_session_is_not_taken_for_a_function() -> None:
    with pytest.raises(DdlNotSupported):
        check("CREATE FUNCTION f() RETURNS int LANGUAGE sql SET work_mem FROM CURRENT RETURN 1")
    check("CREATE FUNCTION f() RETURNS int LANGUAGE sql SET work_mem = '1MB' RETURN 1")


def test_roles_named_by_a_command_are_told() -> None:
    node = parse_statements("GRANT SELECT ON t TO a, PUBLIC, CURRENT_USER GRANTED BY b")[0].node
    assert roles_of(node, Captured(role="app")) == ["a", "app", "b"]


@pytest.mark.parametrize(
    "text",
    [
        """CREATE FUNCTION f() RETURNS int LANGUAGE sql SET "ROLE" = x AS 'SELECT 1'""",
        "ALTER FUNCTION f() SET SESSION AUTHORIZATION DEFAULT",
        "ALTER PROCEDURE f() RESET role",
        "ALTER ROUTINE f() SET transaction_isolation = 'serializable'",
    ],
)
def test_function_that_sets_what_no_other_member_could_is_refused(text: str) -> None:
    with pytest.raises(DdlNotSupported):
        check(text)


def test_function_may_set_anything_else() -> None:
    check("ALTER FUNCTION f() SET search_path = public")
    check("ALTER FUNCTION f() RESET ALL")
