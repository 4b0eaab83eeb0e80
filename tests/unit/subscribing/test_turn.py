"""The turn to feed a herd: who has it shows that he is alive, by one session."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import psycopg
import pytest
from patience import in_time
from pgherd_sidecar.subscribing.state import turn
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables.sessions import Session


class _Session:
    """A herd's member that gives the turn to whoever asks."""

    closed = False
    rowcount = 1

    description = "of rows"

    def __init__(self) -> None:
        self._rows: list[Mapping[str, Any]] = []

    async def execute(self, statement: str, _: object = None) -> "_Session":
        """See psycopg."""
        if "current_token" in statement:
            self._rows = [{"place": "1"}]
        else:
            self._rows = [{"turn": 1, "holder": "", "place": "1", "number": 1}]
        return self

    async def fetchall(self) -> list[Mapping[str, Any]]:
        """See psycopg."""
        return self._rows

    async def close(self) -> None:
        """See psycopg."""


async def test_one_who_takes_it_again_beats_once_and_stops_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []

    async def connect(*_: object, **__: object) -> Session:
        opened.append(1)
        return cast("Session", _Session())

    monkeypatch.setattr(turn, "connect", connect)
    one = turn.Turn(cast("Session", _Session()), "s", "host=x")
    for _ in range(3):
        assert await one.take()
    await asyncio.sleep(0)
    assert len(opened) == 1
    await one.release()
    assert asyncio.all_tasks() == {asyncio.current_task()}


class _Busy(_Session):
    """It is at work on a beat for ever, and says that it was lost when that is cancelled."""

    def __init__(self, begun: asyncio.Event) -> None:
        super().__init__()
        self._begun = begun

    async def execute(self, statement: str, _: object = None) -> "_Session":
        """See psycopg."""
        self._begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise psycopg.errors.SerializationFailure from None
        return self


@pytest.mark.timeout(60)
async def test_a_beat_that_fails_when_it_is_cancelled_is_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The turn was never given up, and the advisory lock was held for good."""
    begun = asyncio.Event()

    async def connect(*_: object, **__: object) -> Session:
        return cast("Session", _Busy(begun))

    monkeypatch.setattr(turn, "connect", connect)
    monkeypatch.setattr(turn, "_BEAT_S", 0.01)
    one = turn.Turn(cast("Session", _Session()), "s", "host=x")
    assert await one.take()
    await begun.wait()
    async with in_time():
        await one.release()
    assert asyncio.all_tasks() == {asyncio.current_task()}


class _Last(_Session):
    """Its last words take for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()

    async def execute(self, statement: str, values: object = None) -> "_Session":
        """See psycopg."""
        if statement == "ROLLBACK":
            self.waits.set()
            await asyncio.Event().wait()
        return await super().execute(statement, values)

    async def close(self) -> None:
        """See psycopg."""
        self.closed = True


async def test_one_who_is_cancelled_as_he_leaves_gives_the_lock_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(*_: object, **__: object) -> Session:
        return cast("Session", _Session())

    monkeypatch.setattr(turn, "connect", connect)
    session = _Last()
    ordered = Subscription("s", "s", "host=x", 1, 1, 1.0, None, None, (), revision=1)
    one = Subscriber(cast("Session", session), ordered)
    one._turn = turn.Turn(cast("Session", session), "s", "host=x")
    assert await one._turn.take()
    leaving = asyncio.create_task(one.close())
    await session.waits.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert session.closed
