"""DROP INDEX CONCURRENTLY while a member dies at a step of it: all have the index, or none."""

import asyncio

import psycopg
import pytest
from patience import in_time

from .localherd import LocalHerd
from .long_commands import (
    INDEX,
    beside_a_copy,
    index_of_all,
    nothing_under_way,
    outcome_with_a_death,
    until_any,
)
from .members import Connection, run
from .test_hazards import connected
from .test_long_commands_faults import schema

pytestmark = pytest.mark.long

__all__ = ["schema"]

_WRITER = "BEGIN; UPDATE {}.t SET v = 0 WHERE id = 1"
_LATE_ROW = """DO $$ BEGIN
    WHILE (SELECT indislive FROM pg_index WHERE indexrelid = to_regclass('{0}.i')) LOOP
    END LOOP;
    INSERT INTO {0}.t VALUES (2000, 1);
END $$"""
_STEPS = {
    "n1": "SELECT true FROM pgherd.long_commands_here WHERE NOT valid AND NOT dead",
    "n3": "SELECT true FROM pgherd.long_commands WHERE missing = 'n3'",
}


@pytest.mark.parametrize("process", ["node", "postgres", "sidecar"])
@pytest.mark.parametrize(("held_up", "victim"), [("n3", "n3"), ("n3", "n1"), ("n1", "n1")])
async def test_all_members_have_the_index_or_none(
    mortal: LocalHerd, schema: str, held_up: str, victim: str, process: str
) -> None:
    """A transaction on one node holds up its drop.

    On ``n1``, the origin, the other nodes have not begun; on ``n3`` they have dropped it already.
    """
    async with connected(mortal.app_dsn("n1")) as builder:
        await run(builder, f"CREATE UNIQUE INDEX i ON {schema}.t (v)")
    await asyncio.to_thread(mortal.must, "verify")
    outcome = await outcome_with_a_death(
        mortal,
        f"DROP INDEX CONCURRENTLY {schema}.i",
        hold=_WRITER.format(schema), held_up=held_up, step=_STEPS[held_up],
        victim=victim, process=process,
    )  # fmt: skip
    found = await index_of_all(mortal, schema)
    if victim == "n3":
        assert not isinstance(outcome, BaseException), outcome
    assert found == [] or (held_up == "n1" and found == [(True,)])
    if not isinstance(outcome, BaseException):
        assert found == []
    await asyncio.to_thread(mortal.must, "verify")


async def test_member_that_was_away_has_dropped_the_index_when_it_is_back(
    mortal: LocalHerd, schema: str
) -> None:
    async with connected(mortal.app_dsn("n1")) as dropper:
        await run(dropper, f"CREATE INDEX i ON {schema}.t (v)")
        await asyncio.to_thread(mortal.must, "verify")
        await asyncio.to_thread(mortal.must, "kill", "n3", "--process", "node")
        async with in_time():
            await run(dropper, f"DROP INDEX CONCURRENTLY {schema}.i")
        await run(dropper, f"ALTER TABLE {schema}.t RENAME TO u")
    await asyncio.to_thread(mortal.must, "start", "n3")
    assert await index_of_all(mortal, schema) == []
    await asyncio.to_thread(mortal.must, "verify")


async def test_member_that_copies_another_meanwhile_drops_the_index(
    mortal: LocalHerd, schema: str
) -> None:
    """The copy is made while one member drops it and the others have done so."""
    async with connected(mortal.app_dsn("n1")) as builder:
        await run(builder, f"CREATE INDEX i ON {schema}.t (v)")
    await asyncio.to_thread(mortal.must, "verify")
    command = f"DROP INDEX CONCURRENTLY {schema}.i"
    await beside_a_copy(mortal, command, hold=_WRITER.format(schema))
    assert await index_of_all(mortal, schema) == []
    await asyncio.to_thread(mortal.must, "verify")


async def make_unique_index(mortal: LocalHerd, connection: Connection, schema: str) -> None:
    """An index of all members, which allows each ``v`` once."""
    await run(connection, f"UPDATE {schema}.t SET v = id")
    await run(connection, f"CREATE UNIQUE INDEX i ON {schema}.t (v)")
    await asyncio.to_thread(mortal.must, "verify")


async def test_a_row_that_the_index_would_not_allow_ends_it_everywhere(
    mortal: LocalHerd, schema: str
) -> None:
    """It is written at the origin, which dies before the others are told to begin."""
    async with (
        connected(mortal.app_dsn("n1")) as writer,
        connected(mortal.app_dsn("n1")) as dropper,
    ):
        await make_unique_index(mortal, dropper, schema)
        write = asyncio.create_task(run(writer, _LATE_ROW.format(schema)))
        drop = asyncio.create_task(run(dropper, f"DROP INDEX CONCURRENTLY {schema}.i"))
        async with in_time():
            await write
        await asyncio.to_thread(mortal.must, "kill", "n1", "--process", "node")
        await asyncio.gather(drop, return_exceptions=True)
    async with connected(mortal.dsn("n2")) as watch:
        await nothing_under_way(watch)
        assert await run(watch, INDEX.format(schema)) == []
        await run(watch, f"ALTER TABLE {schema}.t RENAME TO u")
    await asyncio.to_thread(mortal.must, "start", "n1")
    await asyncio.to_thread(mortal.must, "verify")


async def test_an_index_that_a_member_has_begun_to_drop_gives_way_to_a_row(
    mortal: LocalHerd, schema: str
) -> None:
    """The row comes from the origin, which has done the first part, while a reader holds it up."""
    async with (
        connected(mortal.app_dsn("n1")) as writer,
        connected(mortal.app_dsn("n1")) as dropper,
        connected(mortal.app_dsn("n2")) as reader,
        connected(mortal.dsn("n2")) as watch,
    ):
        await make_unique_index(mortal, dropper, schema)
        await run(reader, f"BEGIN; SELECT FROM {schema}.t LIMIT 1")
        drop = asyncio.create_task(run(dropper, f"DROP INDEX CONCURRENTLY {schema}.i"))
        await until_any(watch, "SELECT true FROM pg_stat_activity WHERE query ~ '^DROP INDEX CONC'")
        await run(writer, f"INSERT INTO {schema}.t VALUES (2000, 1)")
        async with in_time():
            await drop
        with pytest.raises(psycopg.errors.AdminShutdown):  # the row does not wait for it
            await run(reader, "COMMIT")
        assert await run(watch, INDEX.format(schema)) == []
    await asyncio.to_thread(mortal.must, "verify")


async def test_an_index_that_is_gone_has_given_way(mortal: LocalHerd) -> None:
    """It was dropped after it had refused a row, and before the sidecar looked."""
    gave_way = "SELECT pgherd.abandon_long('', '{}', '{}')"
    async with connected(mortal.dsn("n2")) as admin:
        await run(
            admin,
            "BEGIN; INSERT INTO pgherd.long_commands (token, member, kind, definition, tab, index)"
            " VALUES ('t', 1, 'drop', '', 's.t', 's.gone')",
        )
        assert await run(admin, gave_way.format("23505", "gone")) == [(True,)]
        assert await run(admin, gave_way.format("23505", "another")) == [(False,)]
        assert await run(admin, gave_way.format("23503", "gone")) == [(False,)]
        await run(admin, "ROLLBACK")
