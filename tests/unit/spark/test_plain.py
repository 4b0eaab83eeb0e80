"""Roles of a snapshot, for a plain server that has some of them."""

from pgherd_spark.restoring.plain import missing_roles

_SCRIPT = """\
SET client_encoding = 'UTF8';
CREATE ROLE app;
ALTER ROLE app WITH LOGIN PASSWORD 'x';
CREATE ROLE "odd ""name";
ALTER ROLE "odd ""name" WITH NOLOGIN;
CREATE ROLE clerk;
ALTER ROLE clerk SET work_mem TO '5MB';
CREATE ROLE pgherd_apply;
ALTER ROLE pgherd_apply WITH LOGIN BYPASSRLS;
GRANT clerk TO app GRANTED BY postgres;
GRANT pg_read_all_data TO pgherd_jobs GRANTED BY postgres;
GRANT SET ON PARAMETER session_replication_role TO pgherd_apply;
"""


def test_ours_and_those_that_are_there_are_left_out() -> None:
    assert missing_roles(_SCRIPT, {"app", "postgres"}).splitlines() == [
        "SET client_encoding = 'UTF8';",
        'CREATE ROLE "odd ""name";',
        'ALTER ROLE "odd ""name" WITH NOLOGIN;',
        "CREATE ROLE clerk;",
        "ALTER ROLE clerk SET work_mem TO '5MB';",
        "GRANT clerk TO app GRANTED BY postgres;",
    ]


def test_a_name_with_a_quote_is_known() -> None:
    assert '"odd' not in missing_roles(_SCRIPT, {'odd "name'})
