"""The example of what is generated for a table, with which readers of the SQL begin."""

import os
import re
from pathlib import Path

from .localherd import LocalHerd, query

EXAMPLE = Path(__file__).parents[2] / "docs" / "generated.sql"
TABLE = "CREATE TABLE example.account (id int PRIMARY KEY, owner text, balance numeric(12, 2))"
FUNCTIONS = """
SELECT pg_get_functiondef(f) FROM unnest(pgherd.generated_functions('example.account'::regclass)) f
 WHERE f::regproc::text ~ '(final|fingerprint|insert)_' ORDER BY f::regproc::text
"""
HEADING = f"""\
-- pgherd generates this for the following table, by the files 031 to 035 of
-- replication_sidecar/pgherd_sidecar/pg/sql:
--
--     {TABLE};
--
-- The functions for DELETE, TRUNCATE and UPDATE are made like the one for INSERT, and left out.
-- In place of OID there is the table's. PGHERD_TEST_WRITES_EXAMPLE=1 writes this file:
-- pytest tests/integration/test_generated.py
"""


def test_the_example_is_what_is_generated(herd: LocalHerd) -> None:
    query(herd.app_dsn("n1"), "CREATE SCHEMA example")
    try:
        query(herd.app_dsn("n1"), TABLE)
        [(oid,)] = query(herd.dsn("n1"), "SELECT 'example.account'::regclass::oid")
        found = [source for (source,) in query(herd.dsn("n1"), FUNCTIONS)]
    finally:
        query(herd.app_dsn("n1"), "DROP SCHEMA example CASCADE")
    text = HEADING + "".join(f"\n{source.rstrip()};\n" for source in found)
    text = re.sub(rf"(?<=_){oid}\b", "OID", text)
    if os.environ.get("PGHERD_TEST_WRITES_EXAMPLE"):
        EXAMPLE.write_text(text)
    assert EXAMPLE.read_text() == text
