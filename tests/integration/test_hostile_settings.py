"""No setting that a session may choose switches a rule off, or the hook (C1, C22, C23)."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from .localherd import LocalHerd
from .members import Connection, failure, run, same_everywhere


@pytest.fixture
async def odd(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> AsyncIterator[Connection]:
    """A session that reads backslashes in plain literals, before any function is compiled in it."""
    await run(
        connections[0],
        "CREATE TABLE t (id int PRIMARY KEY, x int);"
        "CREATE PROCEDURE p() LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO t VALUES (1); COMMIT; INSERT INTO t VALUES (2); COMMIT; END $$",
    )
    async with await psycopg.AsyncConnection.connect(
        herd.members()[0]["app_dsn"],
        autocommit=True,
        options=f"-c standard_conforming_strings=off -c search_path={schema}"
        " -c escape_string_warning=off -c statement_timeout=20s",
    ) as connection:
        yield connection


async def test_index_concurrently_is_refused_under_any_reading_of_literals(odd: Connection) -> None:
    error = await failure(odd, "CREATE UNIQUE INDEX CONCURRENTLY ON t (x)")
    assert error.sqlstate == "0A000"
    assert "CONCURRENTLY" in str(error)


async def test_commit_of_a_procedure_ends_under_any_reading_of_literals(
    odd: Connection, connections: list[Connection]
) -> None:
    await run(odd, "CALL p()")
    assert await same_everywhere(connections, "SELECT id FROM t ORDER BY id") == [(1,), (2,)]


async def test_ordinary_work_goes_on_under_any_reading_of_literals(
    odd: Connection, connections: list[Connection]
) -> None:
    await run(odd, "INSERT INTO t VALUES (7, 7); UPDATE t SET x = 8; DELETE FROM t WHERE id = 1")
    await run(odd, "BEGIN; INSERT INTO t VALUES (8); UPDATE t SET id = 9 WHERE id = 8; COMMIT")
    assert await same_everywhere(connections, "SELECT * FROM t ORDER BY id") == [(7, 8), (9, None)]
