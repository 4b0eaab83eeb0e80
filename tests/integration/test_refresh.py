"""REFRESH MATERIALIZED VIEW CONCURRENTLY: as it is, on all members, in the order."""

import pytest

from .long_commands import another
from .members import (
    Connection,
    assert_same_schema,
    failure,
    run,
    same_everywhere,
    spread,
)

_REFRESH = "REFRESH MATERIALIZED VIEW CONCURRENTLY v"
_CHANGE = "DELETE FROM t WHERE id = 1; UPDATE t SET x = 7 WHERE id = 2"
_ROWS = "SELECT id, x FROM v ORDER BY id"


@pytest.fixture(autouse=True)
async def view(connections: list[Connection], schema: str) -> None:
    await run(connections[0], "CREATE TABLE t (id int PRIMARY KEY, x int)")
    await run(connections[0], "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    await run(connections[0], "CREATE MATERIALIZED VIEW v AS SELECT id, x FROM t")
    await spread(connections, 0, "CREATE UNIQUE INDEX i ON v (id)")


@pytest.mark.family(every=2)
@pytest.mark.parametrize(
    "statement",
    [
        f"{_CHANGE}; {_REFRESH}",
        f"BEGIN; {_CHANGE}; {_REFRESH}; INSERT INTO t VALUES (4, 4); COMMIT",
        f"DO $$ BEGIN {_CHANGE}; {_REFRESH}; END $$",
        f"DO $$ BEGIN {_CHANGE}; EXECUTE E'-- all\\n /* of it */ {_REFRESH.lower()}'; END $$",
        f"{_CHANGE}; ALTER TABLE t ADD COLUMN y int; {_REFRESH}; CREATE INDEX j ON v (x)",
    ],
)
async def test_view_is_refreshed_on_all_members(
    connections: list[Connection], schema: str, statement: str
) -> None:
    await run(connections[1], statement)
    assert await same_everywhere(connections, _ROWS) == [(2, 7), (3, 3)]
    await assert_same_schema(connections, schema)
    await run(connections[2], _REFRESH)
    await same_everywhere(connections, _ROWS)


async def test_readers_on_other_members_go_on(connections: list[Connection], schema: str) -> None:
    async with another(connections[2], schema) as reader:
        await run(reader, "BEGIN")
        assert await run(reader, _ROWS) == [(1, 1), (2, 2), (3, 3)]
        await run(connections[0], "DELETE FROM t WHERE id = 1")
        await spread(connections, 0, _REFRESH)
        assert await run(reader, _ROWS) == [(2, 2), (3, 3)]
        await run(reader, "COMMIT")


async def test_what_postgresql_refuses_changes_nothing(
    connections: list[Connection], schema: str
) -> None:
    await run(connections[0], "DROP INDEX i")
    error = await failure(connections[0], _REFRESH)
    assert error.sqlstate == "55000", error
    await assert_same_schema(connections, schema)
