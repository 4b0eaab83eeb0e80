"""Statements that a member may execute for itself, and those that are replicated."""

import pytest
from pgherd_sidecar.pg.ddl.local import (
    is_upkeep,
    local_statements,
    reindex,
    runs_code,
    vacuum_full,
)
from pgherd_sidecar.pg.ddl.refusal import DdlNotSupported


def test_statements_are_split_and_kept_as_they_are() -> None:
    text = "SET maintenance_work_mem = '1GB';\n-- the large one\nVACUUM (FULL) \"a;b\"; ANALYZE;"
    assert local_statements(text) == [
        "SET maintenance_work_mem = '1GB'",
        'VACUUM (FULL) "a;b"',
        "ANALYZE",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "CHECKPOINT",
        "CLUSTER t USING i",
        "REINDEX (VERBOSE) DATABASE CONCURRENTLY app",
        "ALTER SYSTEM SET work_mem = '8MB'",
        "SELECT pg_reload_conf()",
        "DO $$ BEGIN PERFORM 1; END $$",
        "CALL p()",
        "RESET work_mem",
        vacuum_full("public.t"),
        reindex('"A".t'),
    ],
)
def test_work_of_one_server_passes(text: str) -> None:
    assert local_statements(text) == [text]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("INSERT INTO t VALUES (1)", "no maintenance of one server"),
        ("ANALYZE; DROP TABLE t", "no maintenance of one server"),
        ("SELECT 1 INTO t", "no maintenance of one server"),
        ("CREATE INDEX ON t (x)", "no maintenance of one server"),
        ("BEGIN; VACUUM t; COMMIT", "a transaction of its own"),
        ("SET transaction_read_only = off", "pgherd's own"),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "pgherd's own"),
        ("SET TRANSACTION READ WRITE", "pgherd's own"),
        ("set Session_Replication_Role = replica", "pgherd's own"),
        ("SET ROLE x", "pgherd's own"),
        ("RESET ALL", "pgherd's own"),
        ("ALTER SYSTEM RESET ALL", "pgherd's own"),
        ("ALTER SYSTEM SET default_transaction_read_only = off", "pgherd's own"),
        ("VACUUM t t", "syntax error"),
        (" -- nothing", "no statement"),
    ],
)
def test_the_rest_is_refused(text: str, said: str) -> None:
    with pytest.raises(DdlNotSupported, match=said) as refused:
        local_statements(text)
    assert refused.value.hint


def test_what_writes_tables_anew_is_told_from_what_calls_functions() -> None:
    for text in ("VACUUM", "ANALYZE t", "REINDEX TABLE t", "CLUSTER"):
        assert is_upkeep(text)
    for text in ("SELECT f()", "DO $$ BEGIN END $$", "CALL p()", "CHECKPOINT"):
        assert not is_upkeep(text)


def test_what_may_end_its_transaction_is_known() -> None:
    for text in ("DO $$ BEGIN COMMIT; END $$", "CALL p()"):
        assert runs_code(text)
    for text in ("SELECT f()", "VACUUM t", "SET work_mem = '1MB'"):
        assert not runs_code(text)
