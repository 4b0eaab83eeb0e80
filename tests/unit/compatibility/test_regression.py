"""The output of psql is divided among the statements of a file."""

from compatibility.regression import statements

_SOURCE = """-- rows

COPY t FROM stdin;
1
SELECT 1;
\\.
SELECT 1;
CREATE TABLE t (a int);

SELECT
  2;
"""
_OUTPUT = """-- rows
COPY t FROM stdin;
SELECT 1;
 ?column?
 1
CREATE TABLE t (a int);
psql:x.sql:8: ERROR:  no
CONTEXT:  a function
of two lines
SELECT
  2;
 2
"""


def test_each_statement_has_its_results() -> None:
    said = statements("\n".join(_SOURCE.split("\n1\nSELECT 1;\n\\.\n")), _OUTPUT)
    assert list(said.values()) == ["", " ?column?\n 1", "ERROR:  no", " 2"]


def test_rows_of_a_copy_are_not_looked_for_elsewhere() -> None:
    assert statements(
        "COPY t FROM stdin;\n1\n\\.\nSELECT 2;\n", "COPY t FROM stdin;\nSELECT 2;\n2\n"
    ) == {
        "1": "",
        "4": "2",
    }


def test_our_triggers_do_not_count() -> None:
    statement = "EXPLAIN ANALYZE UPDATE t SET a = 1;"
    plain = f"{statement}\n Update on t\n   ->  Seq Scan on t\n(2 rows)\n"
    fired = " Trigger pgherd_update: calls=1\n Trigger pgherd_move on t1: calls=1\n"
    herd = plain.replace("(2", f"{fired}(4")
    assert statements(statement, herd) == statements(statement, plain)
