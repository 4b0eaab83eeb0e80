"""What of a dump is the user's, what is ours, and what makes the database itself."""

import pytest
from pgherd_sidecar.pg.archives import divided, of_users, rows_apart, without_role

USERS = [
    "217; 1259 16390 TABLE public pgherd_like app",
    "3642; 2620 17030 TRIGGER public t mine app",
    "3643; 2620 17031 TRIGGER public pgherd_foo mine app",
    "3644; 2620 17032 TRIGGER public a pgherd_foo mine app",
    "3645; 2620 17033 TRIGGER public pgherd_foo mine an owner",
    "3646; 1259 16390 TABLE public pgherd app",
    "3647; 1259 16390 TABLE APP pgherd app",
    "3648; 1259 16390 TABLE pgherd_app t app",
    "3649; 1255 16391 FUNCTION public f(pgherd integer) app",
    "3650; 6104 16392 PUBLICATION - pgherd app",
    "2; 3079 16402 EXTENSION - citext ",
    "3832; 0 0 ACL pg_catalog FUNCTION lo_creat(integer) postgres",
    "2439; 826 17127 DEFAULT ACL - DEFAULT PRIVILEGES FOR TABLES app",
    "3900; 0 0 COMMENT - SCHEMA mine app",
]
OURS = [
    '3642; 2620 17030 TRIGGER public Odd "Name pgherd_delete app',
    "3643; 3466 17031 EVENT TRIGGER - pgherd_command_end postgres",
    "3644; 2620 17032 TRIGGER public t pgherd_truncate_restart an owner",
    "3645; 2620 17033 TRIGGER public pgherd_foo pgherd_insert app",
    "3646; 0 17034 TABLE DATA pgherd node postgres",
    "3647; 0 17034 SEQUENCE OWNED BY pgherd s postgres",
    "3648; 2606 17035 FK CONSTRAINT pgherd t t_fkey postgres",
    "3649; 826 17127 DEFAULT ACL pgherd DEFAULT PRIVILEGES FOR TABLES app",
    "3650; 0 0 COMMENT pgherd TABLE node postgres",
    "7; 2615 16400 SCHEMA - pgherd postgres",
    "3842; 0 0 ACL pgherd FUNCTION dblink(text) postgres",
    "3843; 0 0 ACL - SCHEMA pgherd_gen postgres",
    "3; 3079 16402 EXTENSION - dblink ",
    "3; 3079 16402 EXTENSION - dblink",
    "3901; 0 0 COMMENT - EXTENSION dblink ",
]
DATABASE = [
    "3829; 1262 16385 DATABASE - app app",
    "3830; 0 0 DATABASE PROPERTIES - app app",
    "3831; 0 0 ACL - DATABASE app app",
    "3832; 0 0 COMMENT - DATABASE app app",
    "3833; 1262 16385 DATABASE - pgherd app",
    "3834; 0 0 ACL - DATABASE pgherd app",
]


@pytest.mark.parametrize("line", USERS + DATABASE)
def test_what_users_made_stays(line: str) -> None:
    assert of_users(line) == line + "\n"


@pytest.mark.parametrize("line", OURS)
def test_what_pgherd_makes_by_itself_goes(line: str) -> None:
    assert of_users(line) == ""


def test_what_makes_the_database_comes_before_what_is_in_it() -> None:
    outer, inner = divided("\n".join([*DATABASE, *USERS, *OURS]))
    assert outer.splitlines() == DATABASE
    assert inner.splitlines() == USERS


def test_rows_of_tables_are_apart_from_all_that_the_superuser_makes() -> None:
    rows = ["3456; 0 16385 TABLE DATA public t app"]
    rest = [*USERS, "3457; 0 0 SEQUENCE SET public s app", "3458; 0 0 BLOBS - BLOBS "]
    found_rows, found_rest = rows_apart("\n".join([*rest, *rows]))
    assert found_rows.splitlines() == rows
    assert found_rest.splitlines() == rest


def test_the_role_that_a_server_has_from_its_beginning_is_not_made_again() -> None:
    script = 'CREATE ROLE postgres;\nALTER ROLE postgres WITH SUPERUSER;\nCREATE ROLE "Me";\n'
    assert without_role(script, "postgres").startswith("ALTER ROLE postgres")
    assert 'CREATE ROLE "Me"' not in without_role(script, "Me")
    assert without_role(script, "me") == script
