"""CREATE INDEX CONCURRENTLY while a member dies at a step of it: all have the index, or none."""

import asyncio
import random

import pytest
from patience import in_time

from .localherd import LocalHerd, query
from .long_commands import beside_a_copy, index_of_all, outcome_with_a_death
from .members import run
from .test_hazards import connected

pytestmark = pytest.mark.long

_WRITER = "BEGIN; UPDATE {}.t SET v = 0 WHERE id = 1"
STEPS = {
    "n1": "SELECT true FROM pgherd.long_commands_here WHERE done @> '{2,3}' AND phase <> ''",
    "n3": "SELECT true FROM pgherd.long_commands l JOIN pg_stat_activity a ON a.pid = l.pid"
    " WHERE l.missing = 'n3' AND a.wait_event = 'PgSleep'",
}


@pytest.fixture
def schema(mortal: LocalHerd) -> str:
    """A schema with a table ``t`` on all nodes."""
    name = f"l_{random.getrandbits(40):x}"
    ddl = f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY, v int);"
    rows = f"INSERT INTO {name}.t SELECT g, g FROM generate_series(1, 1000) g"
    query(mortal.app_dsn("n1"), f"{ddl} {rows}")
    mortal.must("verify")
    return name


@pytest.mark.parametrize("process", ["node", "postgres", "sidecar"])
@pytest.mark.parametrize(("held_up", "victim"), [("n3", "n3"), ("n3", "n1"), ("n1", "n1")])
async def test_all_members_have_the_index_or_none(
    mortal: LocalHerd, schema: str, held_up: str, victim: str, process: str
) -> None:
    """A transaction on one node holds up its build; the other nodes have the index already."""
    if (held_up, process) == ("n1", "sidecar"):
        pytest.skip("as the case before")
    outcome = await outcome_with_a_death(
        mortal,
        f"CREATE INDEX CONCURRENTLY i ON {schema}.t (v)",
        hold=_WRITER.format(schema), held_up=held_up, step=STEPS[held_up],
        victim=victim, process=process,
    )  # fmt: skip
    found = await index_of_all(mortal, schema)
    failed = isinstance(outcome, BaseException)
    if victim == "n3":
        assert not failed, outcome
    if not failed:
        assert found == [(True,)]
    elif getattr(outcome, "sqlstate", None) not in (None, "08007", "57P01"):  # it is told why
        assert found == []
    await asyncio.to_thread(mortal.must, "verify")


async def test_member_that_was_away_has_the_index_when_it_is_back(
    mortal: LocalHerd, schema: str
) -> None:
    await asyncio.to_thread(mortal.must, "kill", "n3", "--process", "node")
    async with connected(mortal.app_dsn("n1")) as builder:
        async with in_time():
            await run(builder, f"CREATE INDEX CONCURRENTLY i ON {schema}.t (v)")
        await run(builder, f"ALTER TABLE {schema}.t RENAME TO u")
        await run(builder, f"ALTER TABLE {schema}.u ADD COLUMN w int")
    await asyncio.to_thread(mortal.must, "start", "n3")
    assert await index_of_all(mortal, schema) == [(True,)]
    await asyncio.to_thread(mortal.must, "verify")


async def test_member_that_copies_another_meanwhile_has_the_index(
    mortal: LocalHerd, schema: str
) -> None:
    """The copy is made while one member builds and the others have built."""
    command = f"CREATE INDEX CONCURRENTLY i ON {schema}.t (v)"
    await beside_a_copy(mortal, command, hold=_WRITER.format(schema))
    assert await index_of_all(mortal, schema) == [(True,)]
    await asyncio.to_thread(mortal.must, "verify")
