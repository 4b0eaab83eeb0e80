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

#: A message of a second session that looks as if it were about temporary objects.
LOOKS_TEMPORARY = {
    "by_a_command": "CREATE TEMP TABLE IF NOT EXISTS x (i int); CREATE INDEX ON t (a)",
    "by_a_name": "CREATE INDEX ON t (a)",
}

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int)"


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


async def test_three_members_execute_it_at_once(herd: LocalHerd, schema: str) -> None:
    """Instances of an application migrate as they start, and repeat what was in vain."""
    migration = (
        f"SET search_path = {schema};"
        "CREATE TABLE IF NOT EXISTS {0} (id bigserial PRIMARY KEY, email text UNIQUE);"
        "CREATE INDEX ON {0} (email, id)"
    )
    for number in range(5):
        async with connected(herd) as instances:
            outcomes = await asyncio.gather(
                *(once(one, migration.format(f"u{number}")) for one in instances),
                return_exceptions=True,
            )
        if not any(isinstance(outcome, list) for outcome in outcomes):
            async with connected(herd) as instances:
                await run(instances[0], migration.format(f"u{number}"))
    async with connected(herd) as fresh:
        made = await assert_same_schema(fresh, schema)
    assert all(f"SEQUENCE {schema}.u{number}_id_seq\n" in made for number in range(5)), made


@pytest.mark.parametrize("case", LOOKS_TEMPORARY)
async def test_what_only_looks_temporary_is_not_named_beside_an_open_command(
    herd: LocalHerd, connections: list[Connection], schema: str, case: str
) -> None:
    await spread(connections, 0, _TABLE)
    async with connected(herd) as others:
        await run(others[0], f"SET search_path = {schema}; CREATE TEMP TABLE a (i int)")
        await run(connections[0], "BEGIN; CREATE INDEX ON t (a)")
        with pytest.raises(psycopg.errors.SerializationFailure, match="another session"):
            await once(others[0], LOOKS_TEMPORARY[case])
        await run(connections[0], "ROLLBACK")
        await run(others[0], LOOKS_TEMPORARY[case])
        await run(others[0], "DISCARD TEMP")
        assert "INDEX t_a_idx ON" in await assert_same_schema(others, schema)
