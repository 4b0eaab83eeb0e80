"""Who orders and withdraws the intentions of commands, without a server or a log behind it."""

import asyncio
from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import until
from pgherd_sidecar.agent.hook import precedence
from pgherd_sidecar.agent.hook.precedence import Precedence
from pgherd_sidecar.core.commit.keys import wire_keys
from pgherd_sidecar.core.replication.entries import (
    Incarnation,
    Intention,
    Writeset,
    iter_entries,
    key_array,
)
from pgherd_sidecar.core.replication.state import ReplicatedState

SCHEMA = 8 << 2 | 3


class World:
    """A log that delivers at once what is submitted, and a server that knows of transactions."""

    def __init__(self, *, delivers: bool = True) -> None:
        self.state = ReplicatedState((1, 2))
        self.state.deliver(1, Incarnation(1, 1))
        self.state.deliver(2, Incarnation(2, 1))
        self.delivers = delivers
        self.in_progress = {"900"}
        self.submitted: list[Intention] = []
        self.precedence = Precedence(
            member=1,
            incarnation=1,
            submit=self._submit,
            state=self.state,
            visible_before=self._visible,
            connection=cast("Any", self),
        )

    def _submit(self, data: bytes, _count: int) -> bool:
        for entry in iter_entries(data):
            assert isinstance(entry, Intention)
            self.submitted.append(entry)
            if self.delivers:
                self.deliver(entry)
        return True

    def deliver(self, entry: Intention) -> None:
        self.state.deliver(self.state.position + 1, entry)
        self.precedence.delivered()

    async def _visible(self, _position: int) -> None:
        await asyncio.sleep(0)

    async def execute(self, _query: str, parameters: tuple[str]) -> SimpleNamespace:
        async def fetchone() -> tuple[bool]:
            return (parameters[0] in self.in_progress,)

        return SimpleNamespace(fetchone=fetchone)

    async def asks(self, xid: int, *keys: int) -> asyncio.Event:
        """Ask, and look after it for a while."""
        answered = asyncio.Event()
        self.precedence.begin_command(xid, array("q", keys), answered.set)
        return answered

    def withdrawn(self) -> list[int]:
        return [entry.member for entry in self.submitted if not entry.keys]


async def test_a_command_that_excludes_nobody_and_has_not_lost_goes_on_at_once() -> None:
    world = World()
    assert (await world.asks(900)).is_set()
    assert world.submitted == []


async def test_a_command_goes_on_when_its_intention_is_in_force() -> None:
    world = World()
    answered = await world.asks(900, SCHEMA)
    assert not answered.is_set()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.precedence.run())
        await until(answered.is_set)
        task.cancel()
    assert [list(key_array(entry.keys)) for entry in world.submitted] == [[SCHEMA]]
    assert world.withdrawn() == []


async def test_a_command_goes_on_without_one_if_the_log_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precedence, "_ASKING_S", 0.05)
    world = World(delivers=False)
    answered = await world.asks(900, SCHEMA)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.precedence.run())
        await until(answered.is_set)
        task.cancel()


async def test_the_next_command_takes_the_exclusive_keys_of_one_that_has_lost() -> None:
    world = World()
    world.precedence.lost(array("q", [5, 3, 4 << 2, 6 << 2 | 2, 7 << 2 | 3, 6, 1, 9 << 2 | 3]))
    await world.asks(900)
    keys = [6 << 2 | 2, 7 << 2 | 3, 9 << 2 | 3]
    assert [list(key_array(entry.keys)) for entry in world.submitted] == [keys]


async def test_one_at_a_time_asks_for_its_member() -> None:
    world = World(delivers=False)
    await world.asks(900, SCHEMA)
    assert (await world.asks(901, SCHEMA)).is_set()
    assert len(world.submitted) == 1


async def test_an_intention_whose_transaction_is_rolled_back_is_withdrawn() -> None:
    world = World()
    answered = await world.asks(900, SCHEMA)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.precedence.run())
        await until(answered.is_set)
        assert world.withdrawn() == []
        world.in_progress.clear()
        await until(world.withdrawn)
        task.cancel()
    assert world.state.intention(1) is None


async def test_an_intention_of_another_member_that_takes_too_long_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precedence, "INTENTION_S", 0.2)
    world = World()
    world.deliver(Intention(2, 1, 77, bytes(7) + bytes([SCHEMA])))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.precedence.run())
        await until(world.withdrawn)
        task.cancel()
    assert world.withdrawn()[0] == 2


async def test_what_ends_with_its_writeset_is_not_withdrawn() -> None:
    world = World()
    answered = await world.asks(900, SCHEMA)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.precedence.run())
        await until(answered.is_set)
        world.state.deliver(world.state.position + 1, Writeset(1, 1, 1, 1, 900, 1, b"", b"[]"))
        world.in_progress.clear()
        world.precedence.delivered()
        await asyncio.sleep(0.3)
        task.cancel()
    assert world.withdrawn() == []


def group(*keys: int) -> "array[int]":
    return array("q", [0, len(keys), *keys])


async def waits(world: World, xid: int, *keys: int) -> asyncio.Event:
    """A writeset that is to be ordered; the event says that it is."""
    ordered = asyncio.Event()
    world.precedence.when_free(xid, group(*keys), ordered.set)
    return ordered


async def test_what_no_intention_excludes_is_ordered_at_once() -> None:
    world = World()
    world.deliver(Intention(2, 1, 77, wire_keys(array("q", [SCHEMA])).tobytes()))
    assert (await waits(world, 901, 5 << 2 | 3)).is_set()


async def test_a_writeset_waits_until_the_intention_of_a_failed_command_is_withdrawn() -> None:
    world = World()
    await world.asks(900, SCHEMA)
    world.in_progress.clear()
    ordered = await waits(world, 901, SCHEMA)
    assert not ordered.is_set()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.precedence.run())
        await until(ordered.is_set)
        task.cancel()
    assert world.state.intention(1) is None


async def test_a_writeset_does_not_wait_for_a_command_that_may_wait_for_its_locks() -> None:
    world = World()
    await world.asks(900, SCHEMA)
    ordered = await waits(world, 901, SCHEMA)
    assert not ordered.is_set()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.precedence.run())
        await until(ordered.is_set)
        task.cancel()
    assert world.state.intention(1) is not None


async def test_a_writeset_waits_for_the_command_of_another_member_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precedence, "_WAITING_S", 0.2)
    world = World()
    world.deliver(Intention(2, 1, 77, wire_keys(array("q", [SCHEMA])).tobytes()))
    ordered = await waits(world, 901, SCHEMA)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.precedence.run())
        await asyncio.sleep(0.1)
        assert not ordered.is_set()
        await until(ordered.is_set)
        task.cancel()
    assert world.state.intention(2) is not None


async def test_the_command_that_declared_its_keys_is_ordered_at_once() -> None:
    world = World()
    await world.asks(900, SCHEMA)
    assert (await waits(world, 900, SCHEMA)).is_set()
