"""What rows depend on and is changed under them, and values whose form is not what travels."""

import re
from collections.abc import Iterator

import pytest

from .localherd import LocalHerd
from .nodes import Nodes, nobody_stops, nodes_of, run, sql_cases
from .test_border_capture import play, tables_of

CASES = sql_cases("border_objects")

_OURS = (
    "SELECT format('DROP %s IF EXISTS %s CASCADE', k.kind, k.name) FROM ("
    " SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END"
    " AS kind, c.oid::regclass::text AS name FROM pg_class c"
    " WHERE c.relkind IN ('r', 'p', 'v', 'm') AND c.relnamespace = current_schema()::regnamespace"
    " UNION ALL SELECT 'TEXT SEARCH CONFIGURATION', c.oid::regconfig::text FROM pg_ts_config c"
    " WHERE c.cfgnamespace = current_schema()::regnamespace"
    " UNION ALL SELECT 'TEXT SEARCH DICTIONARY', d.oid::regdictionary::text FROM pg_ts_dict d"
    " WHERE d.dictnamespace = current_schema()::regnamespace"
    " UNION ALL SELECT 'TYPE', 'pair') k"
)


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _nobody_stops(herd: LocalHerd, nodes: Nodes) -> Iterator[None]:
    with nobody_stops(herd, nodes):
        yield
    for (command,) in run(nodes.admin[0], _OURS):
        run(nodes.admin[0], f"SET client_min_messages = error; {command}")
    nodes.settle()


@pytest.mark.family(every=3)
@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_all_members_have_what_the_first_has(nodes: Nodes, text: str) -> None:
    refused = re.search(r"\n-- refused(?: (\w+))?", text)
    assert play(nodes.app[0], text) == (refused and (refused[1] or "0A000"))
    if refused is None:
        nodes.equal_rows(*tables_of(text))


def test_a_new_table_is_frozen_in_a_session_that_has_written_before(nodes: Nodes) -> None:
    nodes.create("CREATE TABLE before (v int)")
    app = nodes.app[0]
    run(app, "INSERT INTO before VALUES (1)")
    run(app, "BEGIN; CREATE TABLE frozen (v int)")
    with app.cursor().copy("COPY frozen FROM STDIN (FREEZE)") as copy:
        copy.write(b"1\n1\n")
    run(app, "INSERT INTO before VALUES (2); COMMIT")
    assert nodes.equal_rows("before", "frozen")


def test_an_extension_of_many_commands(nodes: Nodes) -> None:
    run(nodes.app[0], "CREATE EXTENSION isn")  # 800 commands
    nodes.create("CREATE TABLE book (id isbn PRIMARY KEY)")
    run(nodes.app[1], "INSERT INTO book VALUES ('0-393-04002-X')")
    assert nodes.equal_rows("book")
    run(nodes.app[0], "DROP EXTENSION isn CASCADE; DROP TABLE book")
