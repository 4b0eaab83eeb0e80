"""The announcement of an incarnation, which is ordered again until the log has it."""

import asyncio

import pytest
from patience import in_time
from pgherd_sidecar.agent.base.errors import SupersededError
from pgherd_sidecar.agent.commit import announcement as module
from pgherd_sidecar.agent.commit.announcement import Announcement
from pgherd_sidecar.core.replication.entries import Incarnation, Members, encode_entry
from pgherd_sidecar.core.replication.state import ReplicatedState

MINE = Incarnation(1, 3)


class Herd:
    """A log that takes no submission before the second one, and what follows from it."""

    def __init__(self) -> None:
        self.state = ReplicatedState((1, 2))
        self.submitted: list[bytes] = []
        self.often = asyncio.Event()
        self.announcement = Announcement(MINE, self.submit, self.state)

    def submit(self, data: bytes, _count: int) -> bool:
        self.submitted.append(data)
        if len(self.submitted) > 3:
            self.often.set()
        return len(self.submitted) > 1

    def deliver(self, entry: Incarnation | Members) -> None:
        gid = self.state.position + 1
        self.state.deliver(gid, entry)
        if isinstance(entry, Incarnation):
            self.announcement.delivered(gid, entry)


async def test_it_is_submitted_again_until_it_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.02)
    herd = Herd()
    begun = asyncio.create_task(herd.announcement.begun())
    async with in_time():
        await herd.often.wait()
    assert set(herd.submitted) == {encode_entry(MINE)}
    herd.deliver(Incarnation(2, 9))
    herd.deliver(MINE)
    assert await begun == 2
    herd.deliver(MINE)  # a copy says nothing new
    assert await herd.announcement.begun() == 2


async def test_another_incarnation_of_this_member_is_not_taken_for_it() -> None:
    herd = Herd()
    begun = asyncio.create_task(herd.announcement.begun())
    herd.deliver(Incarnation(1, 2))
    await asyncio.sleep(0)
    assert not begun.done()
    begun.cancel()


async def test_one_that_a_later_one_has_superseded_ends_the_session() -> None:
    herd = Herd()
    herd.deliver(Incarnation(1, 7))
    with pytest.raises(SupersededError) as error:
        herd.deliver(MINE)
    assert error.value.newest == 7


async def test_it_counts_once_this_member_is_one() -> None:
    """What was delivered before it belonged to the herd says nothing."""
    herd = Herd()
    herd.deliver(Members((2,)))
    herd.deliver(MINE)
    begun = asyncio.create_task(herd.announcement.begun())
    await asyncio.sleep(0)
    assert not begun.done()
    herd.deliver(Members((1, 2)))
    herd.deliver(MINE)
    assert await begun == 4
