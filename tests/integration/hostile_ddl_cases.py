"""Commands that members would not carry out alike (C1, C22, C23)."""

TABLE = "CREATE TABLE t (id int PRIMARY KEY, x text, y text);"
_FILLED = f"{TABLE} INSERT INTO t VALUES (1, '1', 'today')"
CLOSER = (
    "CREATE FUNCTION closer() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN EXECUTE 'CLOSE ALL'; RETURN NULL; END $$;"
)
DEFERRED = (
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
    "deferred_trigger": (TABLE + CLOSER, DEFERRED.format("t", " INITIALLY DEFERRED")),
    "deferrable_trigger": (TABLE + CLOSER, DEFERRED.format("t", "")),
    "deferred_trigger_on_partitioned_table": (
        f"CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id); {CLOSER}",
        DEFERRED.format("p", " INITIALLY DEFERRED"),
    ),
    "deferred_trigger_on_local_table": (
        f"{TABLE} {CLOSER} SELECT pgherd.set_local('t')",
        DEFERRED.format("t", " INITIALLY DEFERRED"),
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
    "column_of_privileges": (TABLE, "ALTER TABLE t ADD p aclitem[]"),
    "composite_of_names": (
        "CREATE TYPE c AS (x int); CREATE TABLE t (id int PRIMARY KEY, c c)",
        "ALTER TYPE c ADD ATTRIBUTE r regtype",
    ),
    "column_of_names_made_replicated": (
        "CREATE TABLE p (); SELECT pgherd.set_local('p'); ALTER TABLE p ADD r regclass",
        "SELECT pgherd.set_replicated('p')",
    ),
    # Types of extensions whose functions are called immutable, and look at settings of the session.
    "text_of_cube": ("CREATE EXTENSION cube", _GENERATED.format("cube", "x::text")),
    "index_of_cube_as_text": (
        "CREATE EXTENSION cube; CREATE TABLE t (id int PRIMARY KEY, x cube)",
        "CREATE UNIQUE INDEX ON t ((x::text))",
    ),
    "isbn_of_text": (
        "CREATE EXTENSION isn",
        "CREATE TABLE t (id int PRIMARY KEY, x text, g isbn GENERATED ALWAYS AS (x::isbn) STORED)",
    ),
    "foreign_key_over_a_cast_of_a_user": (
        "CREATE TYPE mood AS ENUM ('a'); CREATE CAST (mood AS text) WITH INOUT AS IMPLICIT;"
        "CREATE TABLE p (k text PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, k mood REFERENCES p)",
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
    "default_of_two_literals_now": (
        "",
        "CREATE TABLE t (id int PRIMARY KEY, at date DEFAULT 'to' -- and\n 'day')",
    ),
    "default_unicode_now": (
        "",
        r"CREATE TABLE t (id int PRIMARY KEY, at timestamptz DEFAULT U&'n\006fw')",
    ),
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
        f"{TABLE} SELECT pgherd.set_local('t')",
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM t",
    ),
    "materialized_view_of_catalog": (
        "",
        "CREATE MATERIALIZED VIEW v AS SELECT setting FROM pg_settings WHERE name = 'port'",
    ),
    "materialized_view_of_system_column": (
        TABLE,
        "CREATE MATERIALIZED VIEW v AS SELECT xmin::text AS x FROM t",
    ),
    "materialized_view_of_text_as_date": (
        TABLE,
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
