"""Roles of a snapshot in a server that has some of them already."""

from pgherd_spark.restoring.restore import fitting_roles, limited

DUMPED = """\
SET client_encoding = 'UTF8';
CREATE ROLE app;
ALTER ROLE app WITH NOSUPERUSER INHERIT CREATEROLE LOGIN PASSWORD 'SCRAM-SHA-256$4096:a==$b=:c=';
CREATE ROLE app2;
ALTER ROLE app2 WITH LOGIN PASSWORD 'SCRAM-SHA-256$4096:d==$e=:f=' VALID UNTIL 'infinity';
CREATE ROLE postgres;
ALTER ROLE app SET search_path TO 'mine';
GRANT app2 TO app GRANTED BY postgres;
"""


def test_roles_that_are_there_keep_their_passwords_and_get_everything_else() -> None:
    assert (
        fitting_roles(DUMPED)
        == """\
SET client_encoding = 'UTF8';
ALTER ROLE app WITH NOSUPERUSER INHERIT CREATEROLE LOGIN;
CREATE ROLE app2;
ALTER ROLE app2 WITH LOGIN PASSWORD 'SCRAM-SHA-256$4096:d==$e=:f=' VALID UNTIL 'infinity';
ALTER ROLE app SET search_path TO 'mine';
GRANT app2 TO app GRANTED BY postgres;
"""
    )


def test_roles_are_let_in_again_that_logged_in_on_some_nodes_only() -> None:
    shared = [[["role", name], {"LOGIN": login}] for name, login in (("a", True), ("b", False))]
    shared += [[["role", "c"], {"LOGIN": True}], [["member", "a", "c"], {}]]
    assert limited({"shared": shared, "role_limits": {"a": ["n1"], "b": ["n1"]}}) == ["a"]
