"""The session that holds a marker's snapshot: it ends when the snapshot is given up, not before."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.snapshots import markers as module
from pgherd_sidecar.agent.snapshots.markers import LEASE_S, Markers
from pgherd_sidecar.pg.comparison import checksum


class Connection:
    """A session whose server answers when it is told to.

    Attributes:
        asked: the server was asked something.
        answers: the server may answer.
        ended: the session was closed.
    """

    def __init__(self) -> None:
        self.asked, self.answers, self.ended = (asyncio.Event() for _ in range(3))

    async def execute(self, _: str) -> "Connection":
        self.asked.set()
        await self.answers.wait()
        return self

    async def close(self) -> None:
        self.ended.set()


@pytest.fixture
async def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    opened = Connection()

    async def connect(*_: object) -> Connection:
        return opened

    monkeypatch.setattr(module, "connect", connect)
    return opened


@pytest.fixture
async def markers(connection: Connection) -> Markers:
    return Markers(cast(NodeConfig, SimpleNamespace(name="n1")))


async def test_a_snapshot_that_is_given_up_while_it_is_opened_is_closed(
    connection: Connection, markers: Markers
) -> None:
    opening = asyncio.ensure_future(markers.take_snapshot("m", 7))
    await connection.asked.wait()
    await markers.drop("m")
    connection.answers.set()
    await opening
    assert connection.ended.is_set()


class Clock:
    """As much of a loop as tells the time, which passes when a test says so."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[tuple[float, asyncio.Handle]] = []

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> "asyncio.Future[int]":
        return asyncio.get_running_loop().create_future()

    def call_at(self, when_s: float, call: Callable[[str], None], name: str) -> asyncio.Handle:
        timer = asyncio.Handle(call, (name,), asyncio.get_running_loop())
        self._timers.append((when_s, timer))
        return timer

    async def pass_by(self, seconds: float) -> None:
        """Let so many seconds pass, and what is due then be done."""
        self._now_s += seconds
        waiting, self._timers = self._timers, []
        for when_s, timer in waiting:
            if when_s > self._now_s:
                self._timers.append((when_s, timer))
            elif not timer.cancelled():
                timer._run()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_snapshot_is_held_while_it_is_read_however_long_that_takes(
    connection: Connection, markers: Markers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: object) -> dict[int, str]:
        await clock.pass_by(10 * LEASE_S)
        return {} if connection.ended.is_set() else {1: "sum"}

    clock = Clock()
    monkeypatch.setattr(markers, "_loop", clock)
    monkeypatch.setattr(checksum, "bucket_checksums", read)
    connection.answers.set()
    await markers.take_snapshot("m", 7)
    assert await markers.buckets("m", "public.t") == {1: "sum"}
    await clock.pass_by(LEASE_S - 1)
    assert not connection.ended.is_set()
    await clock.pass_by(2)
    assert connection.ended.is_set()
