"""The session that holds a marker's snapshot: it ends when the snapshot is given up, not before."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.snapshots import markers as module
from pgherd_sidecar.agent.snapshots.markers import Markers


class Connection:
    """A session whose server answers when it is told to.

    Attributes:
        asked: the server was asked something.
        answers: the server may answer.
    """

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.closed = False

    async def execute(self, _: str) -> "Connection":
        self.asked.set()
        await self.answers.wait()
        return self

    async def close(self) -> None:
        self.closed = True


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
    assert connection.closed
