"""What a sidecar finds in a database when it installs its SQL there."""

from collections.abc import Iterator

import psycopg
import pytest
from pgherd_sidecar.agent.server import startup

from .localherd import NATIVE, LocalHerd, query

_UPGRADED = """
SET session_replication_role = replica;
SELECT pgherd.give_back_setval();
CREATE FUNCTION pgherd.local_setval(regclass, int8) RETURNS int8
    LANGUAGE internal STRICT AS 'setval_oid';
CREATE FUNCTION pgherd.local_setval(regclass, int8, bool) RETURNS int8
    LANGUAGE internal STRICT AS 'setval3_oid';
"""
"""As pg_upgrade leaves a database: PostgreSQL's setval is its own again, and what stood in the
schema pgherd was made anew."""
_NODE = """
INSERT INTO pgherd.node (member, member_name, slots, incarnation, epoch, secret, hook_conninfo,
                         hook_socket, writable, reason, fingerprint_every)
VALUES (1, 'n1', 8, 1, 1, 'secret', 'host=/nowhere', '/nowhere', true, '', 1000000000)
"""


@pytest.fixture
def database(herd: LocalHerd) -> Iterator[str]:
    """One that is not replicated, on the server of the first node."""
    dsn = herd.dsn("n1")
    query(dsn, "CREATE DATABASE taken_over")
    try:
        yield psycopg.conninfo.make_conninfo(dsn, dbname="taken_over")
    finally:
        query(dsn, "DROP DATABASE taken_over WITH (FORCE)")


async def install(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        await connection.execute(startup.ADMINISTRATION)
        await startup.install(connection, native=NATIVE)


async def test_it_is_done_again_on_another_version_of_postgresql(database: str) -> None:
    ours = "SELECT 'pg_catalog.setval(regclass, int8)'::regprocedure::oid >= 16384"
    await install(database)
    assert query(database, ours) == [(True,)]
    query(database, _UPGRADED)
    assert query(database, ours) == [(False,)]
    await install(database)
    assert query(database, ours) == [(True,)]


async def test_dblink_of_the_users_is_refused_by_name(database: str) -> None:
    """Who may call it could put a connection of his own in the place of a commit's."""
    query(database, "CREATE EXTENSION dblink")
    with pytest.raises(psycopg.OperationalError, match="dblink is in the schema public") as refused:
        await install(database)
    assert "DROP EXTENSION dblink" in str(refused.value.diag.message_hint)
    assert query(database, "SELECT to_regclass('pgherd.node')") == [(None,)]
    query(database, "DROP EXTENSION dblink")
    await install(database)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_in_another_encoding_is_refused(herd: LocalHerd, encoding: str) -> None:
    """Rows travel as JSON: the other members could not read the first one that is not ASCII."""
    dsn = herd.dsn("n1")
    query(dsn, f"CREATE DATABASE other ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    other = psycopg.conninfo.make_conninfo(dsn, dbname="other")
    try:
        with pytest.raises(psycopg.OperationalError, match=f"is {encoding}, and rows travel"):
            await install(other)
        assert query(other, "SELECT to_regnamespace('pgherd')") == [(None,)]
    finally:
        query(dsn, "DROP DATABASE other WITH (FORCE)")


async def test_a_copy_by_template_takes_no_writes_until_it_is_an_ordinary_database(
    database: str,
) -> None:
    query(database, "CREATE TABLE t (id serial PRIMARY KEY, v text)")
    await install(database)
    query(database, _NODE)
    query(database, "CREATE DATABASE copy_of_it TEMPLATE taken_over")
    copy = psycopg.conninfo.make_conninfo(database, dbname="copy_of_it")
    try:
        for statement in ("INSERT INTO t (v) VALUES ('one')", "ALTER TABLE t ADD w int"):
            with pytest.raises(
                psycopg.errors.ReadOnlySqlTransaction, match="copy of n1's database"
            ):
                query(copy, statement)
        query(copy, "SELECT pgherd.uninstall()")
        query(copy, "ALTER TABLE t ADD w int; INSERT INTO t (v) VALUES ('one'), ('two')")
        assert query(copy, "SELECT id FROM t") == [(2,), (3,)]
        assert query(copy, "SELECT to_regrole('pgherd_apply') IS NOT NULL") == [(True,)]
    finally:
        query(database, "DROP DATABASE copy_of_it WITH (FORCE)")
