"""Values of every type arrive as they were, whatever the session's settings are (C6)."""

import itertools
from collections.abc import Iterator

import pytest

from .localherd import LocalHerd
from .nodes import Nodes, nodes_of, run, sql_cases, sql_file

VALUES = {
    fields[0]: fields[1:]
    for case in sql_cases("capture_types").values()
    for fields in (line.split(" | ") for line in case.splitlines())
}
HOSTILE_SETTINGS = """
SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kathmandu'; SET extra_float_digits = -15;
SET IntervalStyle = 'sql_standard'; SET bytea_output = 'escape'; SET array_nulls = off;
SET quote_all_identifiers = on; SET xmloption = document; SET standard_conforming_strings = off;
SET search_path = pg_temp
"""
UNCOMPARABLE = {"json", "xml", "jsonpath", "point", "box", "path", "polygon", "circle", "line"}
UNKEYABLE = UNCOMPARABLE | {"lseg"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        for extension in ("citext", "hstore"):
            run(nodes.admin[0], f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA public")
        nodes.create(sql_file("capture_types_setup"))
        yield nodes


def _new_table(nodes: Nodes, what: str) -> str:
    """A name that is not taken, also where a test that the machine has disturbed is repeated."""
    return f'{nodes.schema}."{what.replace(chr(34), "")} {next(_numbers)}"'


@pytest.mark.family(every=6)
@pytest.mark.parametrize("name", VALUES)
def test_values_of_a_column(nodes: Nodes, name: str) -> None:
    table = _new_table(nodes, f"column {name}")
    nodes.create(f"CREATE TABLE {table} (id int PRIMARY KEY, v {name}, n int)")
    origin = nodes.connect(1)
    rows = ", ".join(f"({i}, {value}, 0)" for i, value in enumerate(VALUES[name]))
    run(origin, f"SET search_path = {nodes.schema}, public")
    run(origin, f"CREATE TEMP TABLE given (id int, v {name}, n int)")
    run(origin, f"INSERT INTO given VALUES {rows}")
    run(origin, HOSTILE_SETTINGS)
    run(origin, f"INSERT INTO {table} SELECT * FROM pg_temp.given")
    run(origin, f"BEGIN; UPDATE {table} SET n = 1; UPDATE {table} SET n = 2; COMMIT")
    assert len(nodes.equal_rows(table)) == len(VALUES[name])
    run(origin, f"UPDATE {table} SET v = (SELECT v FROM pg_temp.given WHERE id = 0) WHERE id > 0")
    run(origin, f"INSERT INTO {table} SELECT id + 100, v FROM {table} WHERE id = 0")
    nodes.equal_rows(table)


@pytest.mark.family(every=6)
@pytest.mark.parametrize("name", sorted(VALUES.keys() - UNKEYABLE))
def test_values_of_a_key(nodes: Nodes, name: str) -> None:
    table = _new_table(nodes, f"key {name}")
    nodes.create(f"CREATE TABLE {table} (k {name} PRIMARY KEY, n int)")
    origin = nodes.connect(2)
    run(origin, f"SET search_path = {nodes.schema}, public")
    inserts = [
        f"INSERT INTO {table} VALUES ({value}, {i}) ON CONFLICT DO NOTHING"
        for i, value in enumerate(VALUES[name])
    ]
    run(origin, ";".join(["BEGIN", *inserts, "COMMIT"]))
    run(origin, HOSTILE_SETTINGS)
    run(origin, f"UPDATE {table} SET n = n + 10")
    run(origin, f"BEGIN; UPDATE {table} SET n = n + 1; UPDATE {table} SET k = k; COMMIT")
    assert nodes.equal_rows(table)
    run(origin, f"DELETE FROM {table} WHERE n = 11")
    nodes.equal_rows(table)
