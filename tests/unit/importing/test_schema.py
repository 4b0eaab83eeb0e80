"""A dump's statements, in the order of an import: what needs rows after them, what fires last."""

import pytest
from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.importing.schema import statements

_RESTRICT = "\\restrict 4nAbc\n\n"


def parts(text: str) -> list[tuple[str, str]]:
    return [(one.part, " ".join(one.sql.split())) for one in statements(text)]


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("CREATE SCHEMA s", "before"),
        ("CREATE TABLE s.t (id integer NOT NULL)", "before"),
        ("CREATE EXTENSION IF NOT EXISTS citext WITH SCHEMA public", "before"),
        ("CREATE MATERIALIZED VIEW s.m AS SELECT 1 AS one WITH NO DATA", "before"),
        ("ALTER TABLE ONLY s.t ALTER COLUMN id SET DEFAULT nextval('s.q'::regclass)", "before"),
        ("ALTER TABLE ONLY s.p ATTACH PARTITION s.t DEFAULT", "before"),
        ("ALTER TABLE ONLY s.t REPLICA IDENTITY FULL", "before"),
        ("ALTER TABLE s.t OWNER TO somebody", "before"),
        ("GRANT SELECT ON TABLE s.t TO somebody", "before"),
        ("COMMENT ON TABLE s.t IS 'x'", "before"),
        ("ALTER TABLE ONLY s.t ADD CONSTRAINT t_pkey PRIMARY KEY (id)", "keys"),
        ("ALTER TABLE ONLY s.t ADD CONSTRAINT t_u UNIQUE (id) DEFERRABLE", "keys"),
        ("CREATE UNIQUE INDEX i ON s.t USING btree (id)", "keys"),
        ("ALTER INDEX s.p_pkey ATTACH PARTITION s.t_pkey", "keys"),
        ("ALTER TABLE ONLY s.t REPLICA IDENTITY USING INDEX i", "keys"),
        ("ALTER TABLE s.t CLUSTER ON i", "keys"),
        ("CREATE STATISTICS s.x (dependencies) ON a, b FROM s.t", "keys"),
        ("CREATE TRIGGER g BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.f()", "late"),
        ("ALTER TABLE s.t DISABLE TRIGGER g", "late"),
        ("CREATE RULE r AS ON DELETE TO s.t DO INSTEAD NOTHING", "late"),
        ("CREATE POLICY p ON s.t USING (true)", "late"),
        ("ALTER TABLE s.t ENABLE ROW LEVEL SECURITY", "late"),
        ("CREATE PUBLICATION theirs WITH (publish = 'insert')", "late"),
        ("COMMENT ON TRIGGER g ON s.t IS 'x'", "late"),
    ],
)
def test_when_a_statement_is_executed(sql: str, part: str) -> None:
    assert parts(f"{_RESTRICT}--\n-- Name: x; Type: X\n--\n\n{sql};\n\n") == [(part, sql)]


@pytest.mark.parametrize(
    "sql",
    [
        "SET statement_timeout = 0",
        "SELECT pg_catalog.set_config('search_path', '', false)",
        "ALTER SCHEMA s OWNER TO postgres",
        "ALTER TABLE s.t OWNER TO postgres",
        "ALTER EVENT TRIGGER e OWNER TO somebody",
        "CREATE PUBLICATION pgherd_import_12 WITH (publish = 'insert')",
        "ALTER PUBLICATION pgherd_import_12 OWNER TO somebody",
        "ALTER PUBLICATION pgherd_import_12 ADD TABLE ONLY s.t",
        "CREATE TRIGGER follows_herd BEFORE INSERT ON s.t FOR EACH STATEMENT"
        " EXECUTE FUNCTION pgherd_subscriber.refuse('west')",
    ],
)
def test_what_is_left_out(sql: str) -> None:
    assert parts(f"{sql};") == []


def test_the_owner_of_the_public_schema_is_told() -> None:
    assert parts("ALTER SCHEMA public OWNER TO postgres;") == [
        ("before", "ALTER SCHEMA public OWNER TO postgres")
    ]


def test_parts_come_in_their_order_and_a_view_behind_the_key_that_it_needs() -> None:
    key = "ALTER TABLE ONLY s.t ADD CONSTRAINT t_pkey PRIMARY KEY (id)"
    trigger = "CREATE TRIGGER g BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.f()"
    view = "CREATE OR REPLACE VIEW s.v AS SELECT t.id, t.x FROM s.t GROUP BY t.id"
    found = parts(f"CREATE VIEW s.v AS SELECT 1 AS id, 2 AS x; {key}; {trigger}; {view};")
    assert [part for part, _ in found] == ["before", "keys", "keys", "late"]
    assert [text for _, text in found[1:]] == [key, view, trigger]


def test_rows_of_a_foreign_key_are_looked_at_in_the_end() -> None:
    words = "ADD CONSTRAINT f FOREIGN KEY (x) REFERENCES s.u(id)"
    assert parts(f'ALTER TABLE ONLY "S"."t""" {words};') == [
        ("late", f'ALTER TABLE ONLY "S"."t""" {words} NOT VALID'),
        ("after", 'ALTER TABLE ONLY "S"."t""" VALIDATE CONSTRAINT "f"'),
    ]


def test_a_foreign_key_of_a_partitioned_table_is_valid_at_once() -> None:
    command = "ALTER TABLE s.t ADD CONSTRAINT f FOREIGN KEY (x) REFERENCES s.u(id)"
    assert parts(f"{command};") == [("late", command)]


def test_an_identity_takes_any_number_until_cut_over() -> None:
    words = 'ALTER TABLE s.t ALTER COLUMN "Id" ADD GENERATED {} AS IDENTITY ( START WITH 5 )'
    assert parts(f"{words.format('ALWAYS')};") == [
        ("before", words.format("BY DEFAULT")),
        ("late", 'ALTER TABLE "s"."t" ALTER COLUMN "Id" SET GENERATED ALWAYS'),
    ]


def test_event_triggers_are_made_on_all_members() -> None:
    command = "CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION s.f()"
    assert list(statements(f"{command};")) == [SchemaStatement("late", command, everywhere=True)]


def test_what_the_parser_does_not_know_is_refused() -> None:
    with pytest.raises(ImportFailed, match="not understood"):
        list(statements("CREATE TABLET s.t ();"))
