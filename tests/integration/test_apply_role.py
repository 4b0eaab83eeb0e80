"""The applier is no superuser: what it has to write all the same, and what it can't do."""

import psycopg
import pytest
from patience import wait_until

from .localherd import LocalHerd
from .nodes import Nodes, run, sql_cases

ROWS = sql_cases("apply_role_rows")
ESCAPES = sql_cases("apply_role_escapes")


def test_the_sessions_that_write_rows_belong_to_a_role_that_is_no_superuser(nodes: Nodes) -> None:
    for admin in nodes.admin:
        found = run(
            admin,
            "SELECT a.application_name, a.usename, r.rolsuper FROM pg_stat_activity a"
            " JOIN pg_roles r ON r.rolname = a.usename"
            " WHERE a.application_name IN ('pgherd apply', 'pgherd repair') ORDER BY 1",
        )
        assert found == [
            ("pgherd apply", "pgherd_apply", False),
            ("pgherd repair", "pgherd_apply", False),
        ]


def test_no_row_of_another_member_is_in_the_servers_log_of_statements(nodes: Nodes) -> None:
    admin = nodes.admin[1]
    log = "SELECT pg_read_file(pg_current_logfile())"
    nodes.create("CREATE TABLE account (id int PRIMARY KEY, password text)")
    try:
        run(admin, "ALTER SYSTEM SET log_statement = 'all'")
        run(admin, "SELECT pg_reload_conf()")
        wait_until(lambda: "SELECT pg_read_file" in run(admin, log)[0][0], brief=True)
        run(nodes.app[0], "INSERT INTO account VALUES (1, 'hunter2')")
        assert nodes.equal_rows("account")
    finally:
        run(admin, "ALTER SYSTEM RESET log_statement")
        run(admin, "SELECT pg_reload_conf()")
    found = run(admin, log)[0][0]
    assert "account" in found
    assert "hunter2" not in found


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_nobody_else_may_write_are_written(nodes: Nodes, case: str) -> None:
    preparation, _, writes = ROWS[case].partition("-- rows\n")
    by_the_owner, _, by_a_superuser = preparation.partition("-- superuser\n")
    run(nodes.app[0], by_the_owner)
    run(nodes.admin[0], by_a_superuser)
    run(nodes.app[0], writes)
    assert nodes.equal_rows(f"{nodes.schema}.t")


@pytest.mark.parametrize("case", ESCAPES)
def test_the_role_can_not_leave_the_database(herd: LocalHerd, case: str) -> None:
    node = herd.nodes()[0]
    info = psycopg.conninfo.conninfo_to_dict(node.dsn)
    with psycopg.connect(
        host=str(herd.directory / node.name / "run"),
        port=info["port"],
        user="pgherd_apply",
        dbname="app",
        autocommit=True,
    ) as connection:
        with pytest.raises(psycopg.Error) as refusal:
            connection.execute(ESCAPES[case].encode())
        assert refusal.value.sqlstate == "42501"


@pytest.mark.parametrize(
    "attempt",
    [
        "SET ROLE pgherd_apply",
        "GRANT pgherd_apply TO app",
        "SELECT pgherd.truncate(ARRAY['pgherd.applied'::regclass])",
        "SELECT pgherd.let_apply()",
    ],
)
def test_an_ordinary_user_can_not_use_what_it_uses(nodes: Nodes, attempt: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        run(nodes.app[0], attempt)
    assert refusal.value.sqlstate == "42501"


def test_nobody_connects_as_the_role_by_the_network(herd: LocalHerd) -> None:
    dsn = psycopg.conninfo.make_conninfo(herd.nodes()[0].dsn, user="pgherd_apply")
    with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf rejects"):
        psycopg.connect(dsn)
