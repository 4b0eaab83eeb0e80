"""What a member says of its database over a real log, and what it does when the log says so."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from log_trio import Node, Trio, trio
from patience import in_time, until
from pgherd_sidecar.agent.apply.applying import applying
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import DivergedError, SkippedError
from pgherd_sidecar.agent.log import host as loghost
from pgherd_sidecar.agent.log.setup import reset_log
from pgherd_sidecar.agent.standing import standing as module
from pgherd_sidecar.agent.standing.causes import cause_of
from pgherd_sidecar.agent.standing.holding import status, why_held
from pgherd_sidecar.agent.standing.onlooker import Onlooker
from pgherd_sidecar.agent.standing.standing import Standing, Way
from pgherd_sidecar.core.consensus import LogBase
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import Condition, Skip, encode_entry
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.pg.pipeline import RoundFailedError


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OTHERS_S", 0.5)
    monkeypatch.setattr(module, "_LOOK_S", 0.02)


def failure(gid: int, sqlstate: str = "P0001") -> DivergedError:
    with pytest.raises(DivergedError) as found, applying(gid, gid - 1):
        raise RoundFailedError(sqlstate, "0 rows affected instead of 1", 0)
    return found.value


def standings(herd: Trio, **policy: str) -> list[Standing]:
    return [
        Standing(node.config.model_copy(update=policy), node.host) for node in herd.nodes.values()
    ]


async def settled(herd: Trio) -> Node:
    leader = await herd.proposer()
    await until(lambda: "" not in leader.disks and not leader.host.membership.joint)
    return leader


async def soon(task: "asyncio.Task[Any]") -> Any:
    """What comes of a task that is about to end."""
    async with in_time():
        return await task


async def condition(one: Standing) -> Condition:
    assert await one.follow_log()
    assert one.own is not None
    return one.own.condition


def test_a_cause_is_the_same_for_other_rows_and_entries() -> None:
    assert cause_of(failure(7)) == cause_of(failure(9)) == "P0001 in rows"
    assert cause_of(failure(7, "23505")) == "23505 in rows"
    assert cause_of(SkippedError(7)) == "skipped"
    assert cause_of(DivergedError("the commit chain is broken at GID 3")) == "broken chain"


async def test_the_first_time_it_is_rebuilt_the_second_time_it_waits_for_a_choice(
    tmp_path: Path,
) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        _, second, third = standings(herd)
        for one in (second, third):
            assert await one.stopped(failure(3), willing=True) is Way.REBUILD
            assert await condition(one) is Condition.REBUILDING
        assert second.databases is not None
        assert second.databases.hold is None
        for one in (second, third):  # as a session does
            await one._say(Condition.WHOLE)
        waiting = [
            asyncio.create_task(one.stopped(failure(5), willing=True)) for one in (second, third)
        ]
        await until(lambda: second.held and third.held)
        await asyncio.sleep(0.7)
        assert not any(task.done() for task in waiting)
        text = why_held(second.databases, leader.host.membership)
        assert text is not None
        assert "only n1 holds what follows GID 4, since GID 5" in text
        assert "`pgherd skip 5`" in text
        assert status(second.databases, leader.host.membership)["held_gid"] == 5
        await standings(herd)[0].order_skip(5, None)
        assert await asyncio.gather(*waiting) == [Way.ON, Way.ON]
        assert second.databases.hold is None
        assert await standings(herd)[0].stopped(SkippedError(5), willing=True) is Way.REBUILD


async def test_who_rebuilds_nothing_has_failed_and_goes_on_when_the_entry_is_skipped(
    tmp_path: Path,
) -> None:
    async with trio(tmp_path) as herd:
        await settled(herd)
        first, second, _ = standings(herd)
        assert await second.stopped(failure(3), willing=False) is Way.STOP
        failed = asyncio.create_task(second.failed())
        await until(lambda: second.own is not None and second.own.condition is Condition.FAILED)
        await first.order_skip(3, None)
        await soon(failed)
        assert await condition(second) is Condition.WHOLE
        assert await condition(first) is Condition.DIVERGED


async def test_pause_holds_the_herd_when_one_whole_database_is_left(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await settled(herd)
        _, second, third = standings(herd, on_divergence="pause")
        assert await second.stopped(failure(3), willing=True) is Way.REBUILD  # two hold it
        waiting = asyncio.create_task(third.stopped(failure(3), willing=True))
        await until(lambda: third.held)
        await second._say(Condition.WHOLE)
        assert await soon(waiting) is Way.REBUILD  # released: by itself


async def test_a_stopped_database_is_kept_while_nobody_could_be_copied(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await settled(herd)
        all_three = standings(herd)
        for one in all_three:
            assert await one.follow_log()
            await one._say(Condition.DIVERGED, gid=3, cause="P0001 in rows")
        asked = asyncio.create_task(all_three[1].rebuilding(asked=True))
        await asyncio.sleep(0.3)
        assert not asked.done()
        await all_three[0].order_skip(3, None)
        assert await soon(asked) is Way.ON


async def test_who_is_being_rebuilt_says_so_again_and_again_while_it_is(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await settled(herd)
        node = herd.nodes["n2"]
        timing = node.config.timing.model_copy(update={"rebuild_silent_ms": 1000})
        one = Standing(node.config.model_copy(update={"timing": timing}), node.host)
        assert await one.stopped(failure(3), willing=True) is Way.REBUILD
        said_at: set[int] = set()

        async def copy() -> bool:
            for _ in range(80):
                await asyncio.sleep(0.05)
                assert one.own is not None
                said_at.add(one.own.since)
            return True

        assert await soon(asyncio.create_task(one.rebuild(copy())))
        assert len(said_at) > 3
        assert await condition(one) is Condition.REBUILDING
        assert one.databases is not None
        assert one.databases.hold is None


async def test_while_its_log_begins_anew_what_the_log_says_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild that says so again and again has the log begin anew meanwhile."""
    closed, known = threading.Event(), threading.Event()

    def wait_and_reset(config: NodeConfig, base: LogBase) -> None:
        closed.set()
        known.wait()
        reset_log(config, base)

    monkeypatch.setattr(loghost, "reset_log", wait_and_reset)
    async with trio(tmp_path) as herd:
        await settled(herd)
        host = herd.nodes["n2"].host
        one = Standing(herd.nodes["n2"].config, host)
        one.go_on_from(ReplicatedState(host.extent.first_numbers))
        base = host.extent.base_at(host.commit_position)
        anew = asyncio.create_task(host.begin_after(base))
        await until(closed.is_set)
        try:
            assert not await one.follow_log()
            assert await host.reader.read_apart(1, 1) == []
            assert host.reader.read_back(1, 1) == ()
        finally:
            known.set()
            await soon(anew)
        after = ReplicatedState(host.extent.first_numbers)
        after.position = base.position
        one.go_on_from(after)
        assert await one.follow_log()


class OneBlock:
    """A log of one block."""

    commit_position = 2

    def __init__(self, *entries: bytes) -> None:
        self._data = b"".join(entries)
        self.reader = self
        self.mending = False

    def read(self, position: int, _: int) -> list[Any]:
        return [SimpleNamespace(first=1, data=self._data)] if position <= 2 else []


async def test_what_this_version_does_not_understand_is_no_crash_but_unknown() -> None:
    skip = encode_entry(Skip(7))
    later = skip[:4] + b"\xc8" + skip[5:]
    onlooker = Onlooker(cast(Any, OneBlock(skip, later)), Databases((1, 2)), 0)
    assert not await onlooker.follow_log()
    assert onlooker.position == 1
    assert await Onlooker(cast(Any, OneBlock(skip, skip)), Databases((1, 2)), 0).follow_log()


def test_who_makes_a_diverged_node_anew_is_told_or_is_an_operator(tmp_path: Path) -> None:
    config = next(iter(Trio(tmp_path).nodes.values())).config
    ruled = config.model_copy(update={"admin_port": 7})
    assert not config.made_anew
    assert ruled.made_anew
    assert not ruled.model_copy(update={"replaced": False}).made_anew
    assert config.model_copy(update={"replaced": True}).made_anew
