"""Some members are waited for until they show a command, others only named. None is needed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import pytest
from patience import in_time, until
from pgherd_sidecar.agent.hook import showing
from pgherd_sidecar.agent.hook.showing import Showing


class Others:
    """Members that show what a test says."""

    def __init__(self, *names: str) -> None:
        self.linked = set(names)
        self.shown = dict.fromkeys(names, 0)
        self.unable: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self.news = asyncio.Event()
        self.waits = False
        self.showing = Showing(self._ask, lambda: self.linked, self._visible)

    def show(self, name: str, gid: int) -> None:
        self.shown[name] = gid
        self.news.set()

    async def _visible(self, gid: int) -> None:
        self.waits = True
        while self.shown["n1"] < gid:
            self.news.clear()
            await self.news.wait()

    async def _ask(self, names: Collection[str], data: bytes, longest_s: float) -> dict[str, bytes]:
        (name,) = names
        assert Showing.is_asked(data)
        gid = int(data.split()[1])
        self.asked.append((name, gid))
        if name in self.unable:
            return {name: b""}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while name in self.linked:
                    if self.shown[name] >= gid:
                        return {name: b"shown"}
                    self.news.clear()
                    await self.news.wait()
        return {}

    async def look(self, gid: int, rest_s: float = 0.05) -> bytes:
        said: list[bytes] = []
        self.showing.begin(gid, rest_s, said.append)
        async with in_time():
            await until(lambda: said)
        (one,) = said
        return one


@pytest.fixture
async def others() -> AsyncIterator[Others]:
    herd = Others("n2", "n3")
    yield herd
    herd.showing.close()


async def test_it_is_well_once_all_show_it(others: Others) -> None:
    said: list[bytes] = []
    others.showing.begin(4, 1000.0, said.append)
    await until(lambda: len(others.asked) == 2)
    others.show("n2", 4)
    others.show("n3", 5)
    await until(lambda: said)
    assert said == [b"OK"]


async def test_a_herd_of_one_waits_for_nobody() -> None:
    assert await Others().look(4) == b"OK"


async def test_its_session_may_be_cancelled_meanwhile(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "_SLICE_S", 0.01)
    assert await others.look(4, 1000.0) == b"WAIT"
    assert await others.look(4, 1000.0) == b"WAIT"
    assert sorted(others.asked) == [("n2", 4), ("n3", 4)]  # the same questions are open still


async def test_who_is_late_is_named_and_not_waited_for_before_it_has_shown_that(
    others: Others,
) -> None:
    others.show("n3", 9)
    assert await others.look(4) == b"LATE n2"
    assert await others.look(5, 1000.0) == b"LATE n2"
    assert await others.look(4) == b"LATE n2"
    others.show("n2", 4)
    await until(lambda: not others.showing._late)
    others.show("n2", 6)
    assert await others.look(6, 1000.0) == b"OK"


async def test_libpq_would_cut_a_longer_answer_so_it_says_how_many_more_there_are() -> None:
    others = Others(*(f"shop-database-{number}" for number in range(1, 7)))
    said = await others.look(gid=9)
    assert said == b"LATE shop-database-1, shop-database-2 and 4 more"
    assert len(said) <= 63


async def test_who_cannot_say_is_named_at_once(others: Others) -> None:
    others.show("n2", 4)
    others.unable.add("n3")
    assert await others.look(4, 1000.0) == b"LATE n3"


async def test_who_cannot_be_reached_any_more_is_waited_for_no_longer(others: Others) -> None:
    said: list[bytes] = []
    others.show("n2", 4)
    others.showing.begin(4, 1000.0, said.append)
    await until(lambda: len(others.asked) == 2)
    others.linked.remove("n3")
    others.news.set()
    await until(lambda: said)
    assert said == [b"OK"]


async def test_who_does_not_answer_for_long_is_asked_again(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "_AGAIN_S", 0.01)
    others.show("n2", 4)
    said: list[bytes] = []
    others.showing.begin(4, 0.4, said.append)
    await until(lambda: others.asked.count(("n3", 4)) > 2)
    others.show("n3", 4)
    await until(lambda: said)
    assert said == [b"OK"]


async def test_who_has_come_back_is_asked_again(others: Others) -> None:
    others.show("n2", 9)
    assert await others.look(4) == b"LATE n3"
    others.linked.remove("n3")
    others.news.set()
    await until(lambda: not others.showing._late)
    others.linked.add("n3")
    assert await others.look(5) == b"LATE n3"
    assert ("n3", 5) in others.asked


async def test_a_member_says_when_it_shows_it_and_nothing_if_that_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Others("n1")
    telling = asyncio.create_task(own.showing.tell(b"shown 4"))
    await until(lambda: own.waits)
    own.show("n1", 3)
    await asyncio.sleep(0)
    assert not telling.done()
    own.show("n1", 4)
    assert await telling == b"shown"
    monkeypatch.setattr(showing, "_LONGEST_S", 0.01)
    assert await own.showing.tell(b"shown 5") == b""


async def test_no_session_is_left_waiting_by_a_defect(others: Others) -> None:
    others.linked = None  # type: ignore[assignment]
    assert await others.look(4) == b"OK"
