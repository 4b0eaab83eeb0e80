"""Names that PostgreSQL chooses are the same on all members, whatever else is open on one.

It looks at what is there when a command is executed, at what others have not committed, too.
"""

import asyncio

import psycopg
import pytest

from .localherd import LocalHerd
from .members import Connection, assert_same_schema, connected, once, run, spread

COMMANDS = {
    "serial": "CREATE TABLE s (id serial PRIMARY KEY)",
    "identity": "CREATE TABLE s (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
    "index": "CREATE INDEX ON t (a)",
}

#: What a second session of the member has, and a command that looks like one about that.
LOOKS_TEMPORARY = {
    "a_column": ("SELECT 1", "CREATE INDEX ON t (temp)"),
    "a_table": ("CREATE TEMP TABLE a (x int)", "CREATE INDEX ON t (a)"),
}

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int, temp int)"


@pytest.mark.parametrize("case", COMMANDS)
async def test_a_session_that_has_executed_it_too_gives_way_to_another_member(
    herd: LocalHerd, connections: list[Connection], schema: str, case: str
) -> None:
    await spread(connections, 0, _TABLE)
    await run(connections[0], f"BEGIN; {COMMANDS[case]}")
    await run(connections[1], COMMANDS[case])
    with pytest.raises((psycopg.errors.SerializationFailure, psycopg.OperationalError)):
        await run(connections[0], "COMMIT")
    async with connected(herd) as fresh:
        await assert_same_schema(fresh, schema)


async def test_three_members_execute_it_at_once(
    herd: LocalHerd, connections: list[Connection], schema: str
) -> None:
    """Instances of an application migrate as they start."""
    migration = (
        "CREATE TABLE IF NOT EXISTS {0} (id bigserial PRIMARY KEY, email text UNIQUE);"
        "CREATE INDEX ON {0} (email, id)"
    )
    for number in range(5):
        await asyncio.gather(
            *(once(one, migration.format(f"u{number}")) for one in connections if not one.closed),
            return_exceptions=True,
        )
    async with connected(herd) as fresh:
        await assert_same_schema(fresh, schema)


@pytest.mark.parametrize("case", LOOKS_TEMPORARY)
async def test_what_only_looks_temporary_is_not_named_beside_an_open_command(
    herd: LocalHerd, connections: list[Connection], schema: str, case: str
) -> None:
    before, command = LOOKS_TEMPORARY[case]
    await spread(connections, 0, _TABLE)
    async with connected(herd) as others:
        await run(others[0], f"SET search_path = {schema}; {before}")
        await run(connections[0], f"BEGIN; {command}")
        beside = asyncio.create_task(once(others[0], command))
        await asyncio.wait([beside], timeout=1)
        await run(connections[0], "ROLLBACK")
        try:
            await beside
        except psycopg.errors.SerializationFailure:
            await run(others[0], command)
        await run(others[0], "DISCARD TEMP")
        assert "t_a_idx1" not in await assert_same_schema(others, schema)
