"""What an application may have made: on a herd, and on a plain server to compare it with."""

import re
import subprocess
from pathlib import Path

import psycopg
from patience import wait_until

from .installations import program
from .localherd import LocalHerd, query, settle
from .plainpostgres import PlainPostgres

SHOP = (Path(__file__).parent / "sql" / "shop.sql").read_text()
ROLES = (
    "CREATE ROLE clerk LOGIN CONNECTION LIMIT 3",
    "GRANT clerk TO app",
    "ALTER ROLE clerk SET work_mem = '5MB'",
    "ALTER DATABASE app SET datestyle = 'ISO, DMY'",
    "ALTER ROLE app IN DATABASE app SET jit = off",
)
AS_SUPERUSER = """
CREATE FUNCTION shop.positive(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 > 0';
REVOKE EXECUTE ON FUNCTION shop.positive(int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION shop.positive(int) TO clerk;
GRANT SELECT ON shop.customer TO clerk;
ALTER TABLE shop.nokey ADD CHECK (shop.positive(x));
CREATE EXTENSION citext SCHEMA shop;
"""


def fill_plain(server: PlainPostgres, *more: str) -> None:
    """Execute it on a plain server, and more as the role of applications."""
    for command in ROLES:
        query(server.dsn(), command)
    query(server.dsn(user="app"), SHOP)
    query(server.dsn(), AS_SUPERUSER)
    for text in more:
        query(server.dsn(user="app"), text)


def fill_herd(herd: LocalHerd, *more: str) -> None:
    """Execute the same on a herd."""
    for command in ROLES:
        repeat(herd.dsn("n1"), f"SELECT pgherd.run_everywhere($${command}$$)")
    for dsn, text in (
        (herd.app_dsn("n1"), SHOP),
        (herd.dsn("n1"), AS_SUPERUSER),
        *((herd.app_dsn("n1"), text) for text in more),
    ):
        for statement in statements(text):
            repeat(dsn, statement)
    settle(herd)


def statements(text: str) -> list[str]:
    """The statements of a file, each ends with a semicolon at the end of a line."""
    found = re.split(r";[ \t]*\n(?! *\$\$)", text)
    return [one for one in found if one.strip()]


def repeat(dsn: str, statement: str) -> list[tuple[object, ...]]:
    """Execute it, again as long as another member's command is in the way."""
    refused = (psycopg.errors.SerializationFailure, psycopg.errors.ReadOnlySqlTransaction)
    return wait_until(lambda: query(dsn, statement), lambda _: True, despite=refused)


def dumped(dsn: str, *arguments: str, name: str = "pg_dump") -> str:
    """What a program writes, without its random word and the dates of the roles' passwords."""
    ((number,),) = query(dsn, "SHOW server_version_num")
    done = subprocess.run(
        [program(name, int(number) // 10000), *arguments, "-d", dsn],
        capture_output=True,
        text=True,
        check=True,
    )
    return re.sub(r"^\\(un)?restrict .*\n", "", done.stdout, flags=re.MULTILINE)
