"""A marker that the log holds twice, because its order was repeated, counts where it was first."""

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pgherd_sidecar.agent.admin.port import UnknownMarker
from pgherd_sidecar.agent.apply.applier import Applier
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.snapshots import markers as module
from pgherd_sidecar.agent.snapshots.markers import Markers
from pgherd_sidecar.agent.snapshots.orders import MarkerOrders
from pgherd_sidecar.core.replication.entries import Marker

_ID = b"0123456789abcdef"
Turn = Callable[[], Coroutine[Any, Any, None]]


class Connection:
    """A session whose snapshot is called as the session is."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def execute(self, _: str) -> "Connection":
        return self

    async def fetchone(self) -> tuple[str, str]:
        return self.name, "1:1:"

    async def close(self) -> None:
        pass


class Member:
    """A member that did not order the marker, or has its order answered already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = iter(map(Connection, ("first", "second")))

        async def connect(*_: object) -> Connection:
            return next(opened)

        monkeypatch.setattr(module, "connect", connect)
        self._turns: list[Turn] = []
        self.markers = Markers(cast(NodeConfig, SimpleNamespace(name="n2")))

    async def deliver(self, gid: int, *names: str) -> None:
        """To a session of its own, whose turn comes at once."""
        applier = SimpleNamespace(queue=self._turns.append)
        orders = MarkerOrders("n2", lambda *_: True, cast(Applier, applier), self.markers)
        orders.take_marker(gid, Marker(_ID, names))
        while self._turns:
            await self._turns.pop()()


@pytest.fixture
async def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    return Member(monkeypatch)


async def leased(member: Member) -> tuple[int, str]:
    marker = "30313233343536373839616263646566"
    found = await member.markers.lease(marker, 60)
    await member.markers.close()
    return found.gid, found.snapshot


async def test_the_copy_of_a_marker_does_not_replace_its_snapshot(member: Member) -> None:
    await member.deliver(100)
    await member.deliver(250)
    assert await leased(member) == (100, "first")


async def test_the_copy_of_a_marker_that_was_given_back_takes_no_snapshot(member: Member) -> None:
    await member.deliver(100)
    await member.markers.close()
    await member.deliver(250)
    with pytest.raises(UnknownMarker):
        await leased(member)


async def test_a_position_that_is_delivered_again_leaves_the_snapshot_as_it_is(
    member: Member,
) -> None:
    await member.deliver(100)
    await member.deliver(100)
    assert await leased(member) == (100, "first")


async def test_a_member_that_is_not_named_holds_nothing(member: Member) -> None:
    await member.deliver(100, "n1", "n3")
    with pytest.raises(UnknownMarker):
        await leased(member)


async def test_a_member_that_is_named_holds_the_snapshot(member: Member) -> None:
    await member.deliver(100, "n1", "n2")
    assert await leased(member) == (100, "first")
