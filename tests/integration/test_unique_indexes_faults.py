"""CREATE UNIQUE INDEX CONCURRENTLY while a member dies: all have the index, or none."""

import asyncio
import contextlib

import psycopg
import pytest
from patience import in_time

from .localherd import LocalHerd
from .long_commands import beside_a_copy, index_of_all, outcome_with_a_death, until_any
from .members import failure, once, run
from .test_hazards import connected
from .test_long_commands_faults import STEPS, schema
from .test_unique_indexes import not_begun

pytestmark = pytest.mark.long

__all__ = ["schema"]

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {}.t"
_WITHOUT = "SELECT true FROM pgherd.long_commands WHERE missing = 'n3'"


async def _judge(mortal: LocalHerd, schema: str, outcome: object, *, sure: bool) -> None:
    """All have the index, which excludes duplicates, or none has it."""
    found = await index_of_all(mortal, schema)
    failed = isinstance(outcome, BaseException)
    assert not (sure and failed), outcome
    assert found == [(True,)] or (failed and found == [])
    if failed and getattr(outcome, "sqlstate", None) not in (None, "08007", "57P01"):
        assert found == []  # it was told why
    if found:
        for name in ("n1", "n2", "n3"):
            async with connected(mortal.app_dsn(name)) as writer:
                error = await failure(writer, f"INSERT INTO {schema}.t VALUES (-1, 7)")
                assert error.sqlstate == "23505"
    await asyncio.to_thread(mortal.must, "verify")


@pytest.mark.parametrize("process", ["node", "postgres", "sidecar"])
@pytest.mark.parametrize(("held_up", "victim"), [("n3", "n3"), ("n3", "n1"), ("n1", "n1")])
async def test_all_members_have_the_index_or_none(
    mortal: LocalHerd, schema: str, held_up: str, victim: str, process: str
) -> None:
    """A snapshot on one node holds up its build; the other nodes have the index already."""
    outcome = await outcome_with_a_death(
        mortal,
        f"CREATE UNIQUE INDEX CONCURRENTLY i ON {schema}.t (v)",
        hold=_SNAPSHOT.format(schema), held_up=held_up, step=STEPS[held_up],
        victim=victim, process=process,
    )  # fmt: skip
    await _judge(mortal, schema, outcome, sure=victim == "n3")


@pytest.mark.parametrize("victim", ["n1", "n3"])
async def test_member_dies_while_one_has_not_begun(
    mortal: LocalHerd, schema: str, victim: str
) -> None:
    """And a row is written there, which certification alone compares with others."""
    async with (
        connected(mortal.dsn("n3")) as admin,
        connected(mortal.dsn("n1")) as watch,
        connected(mortal.app_dsn("n1")) as builder,
    ):
        with contextlib.suppress(psycopg.Error):  # its session may have died
            async with not_begun(admin):
                command = f"CREATE UNIQUE INDEX CONCURRENTLY i ON {schema}.t (v)"
                build = asyncio.create_task(once(builder, command))
                await until_any(watch, _WITHOUT)
                async with connected(mortal.app_dsn("n3")) as writer:
                    await run(writer, f"INSERT INTO {schema}.t VALUES (-2, -2)")
                await asyncio.to_thread(mortal.must, "kill", victim, "--process", "node")
                await asyncio.to_thread(mortal.must, "start", victim)
        async with in_time():
            outcome: object = (await asyncio.gather(build, return_exceptions=True))[0]
        for connection in (admin, watch, builder):
            await connection.close()
    await _judge(mortal, schema, outcome, sure=victim == "n3")


async def test_member_that_was_away_has_the_index_when_it_is_back(
    mortal: LocalHerd, schema: str
) -> None:
    await asyncio.to_thread(mortal.must, "kill", "n3", "--process", "node")
    async with connected(mortal.app_dsn("n1")) as builder:
        async with in_time():
            await run(builder, f"CREATE UNIQUE INDEX CONCURRENTLY i ON {schema}.t (v)")
        await run(builder, f"INSERT INTO {schema}.t VALUES (-7, -7)")
    await asyncio.to_thread(mortal.must, "start", "n3")
    await _judge(mortal, schema, None, sure=True)


async def test_member_that_copies_another_meanwhile_has_the_index(
    mortal: LocalHerd, schema: str
) -> None:
    """The copy is made while one member builds and the others have built."""
    command = f"CREATE UNIQUE INDEX CONCURRENTLY i ON {schema}.t (v)"
    await beside_a_copy(mortal, command, hold=_SNAPSHOT.format(schema))
    await _judge(mortal, schema, None, sure=True)
