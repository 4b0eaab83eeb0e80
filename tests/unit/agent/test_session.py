"""What a session makes of the log's entries, without a server or a log behind it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from patience import in_time
from pgherd_sidecar.agent.apply import large
from pgherd_sidecar.agent.base.config import MemberAddress, NodeConfig, PostgresAddress
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.server.startup import Server
from pgherd_sidecar.agent.session import backend
from pgherd_sidecar.agent.session.opening import Opening
from pgherd_sidecar.agent.session.session import ReplicaSession
from pgherd_sidecar.core.consensus import Block
from pgherd_sidecar.core.replication import state as core_state
from pgherd_sidecar.core.replication.entries import Entry, Incarnation, Noop, Piece, encode_entry
from pgherd_sidecar.core.replication.state import ReplicatedState

NOBODY = cast("Any", None)


class Begun:
    """A transaction that another member's pieces begin; it touches no server."""

    def __init__(self, *_: object, early: bool) -> None:
        assert early
        self.heard_s = asyncio.get_running_loop().time()
        self.stopped = asyncio.Event()

    async def stop(self) -> None:
        self.stopped.set()


class Host:
    """A log whose entries come one block each, and are committed."""

    def __init__(self) -> None:
        self.reader = self
        self.polls = SimpleNamespace(ask=None, links={})
        self.primary = False
        self.secondary_s = 0.0
        self._entries: list[Entry] = []

    def commits(self, *entries: Entry) -> None:
        self._entries += entries

    @property
    def commit_position(self) -> int:
        return len(self._entries)

    def submit(self, _data: bytes, _count: int) -> bool:
        return True

    def read(self, first: int, _max_bytes: int) -> list[Block]:
        blocks = enumerate(self._entries, 1)
        return [Block.make(1, at, 1, encode_entry(one)) for at, one in blocks if at >= first]


def session(host: Host, directory: Path) -> ReplicaSession:
    """One of member 1 of two; nothing is applied."""
    config = NodeConfig(
        cluster_id=UUID(int=1),
        name="n1",
        number=1,
        members=tuple(
            MemberAddress(name=f"n{n}", number=n, host="127.0.0.1", port=7000 + n) for n in (1, 2)
        ),
        data_dir=directory,
        postgres=PostgresAddress(host=str(directory), port=5432),
        hook_dir=directory,
        admin_socket=directory / "admin",
    )
    pipeline = cast("Any", SimpleNamespace(backend_pid=1))
    opening = Opening(
        incarnation=1,
        server=Server(0, "secret", ""),
        state=ReplicatedState((1, 2)),
        admin=NOBODY,
        watch=NOBODY,
        house=NOBODY,
        apply=pipeline,
        repair=pipeline,
    )
    return ReplicaSession(config, cast("Any", host), opening, NOBODY, Verdicts())


def deliver(one: ReplicaSession) -> None:
    """The log tells that it has committed more."""
    one._delivery.entries_committed()


async def test_who_has_just_begun_does_not_say_that_it_has_no_majority(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = Host()
    one = session(host, tmp_path)
    monkeypatch.setattr(backend, "no_majority", lambda _: "it has no majority: n2 not heard of")
    assert one.backend.refusal() == "it is catching up"
    host.secondary_s = 1000.0
    assert one.backend.refusal() == "it is catching up; it has no majority: n2 not heard of"


async def test_what_is_too_old_is_given_up_where_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[Begun] = []

    def begin(*given: object, early: bool) -> Begun:
        begun.append(Begun(*given, early=early))
        return begun[-1]

    monkeypatch.setattr(core_state, "OPEN_POSITIONS", 5)
    monkeypatch.setattr(large, "LargeTransaction", begin)
    host = Host()
    one = session(host, tmp_path)
    host.commits(Incarnation(2, 1), Piece(2, 1, 1, 0, 0, b"[]"), *[Noop()] * 4)
    deliver(one)
    await asyncio.sleep(0)
    assert one.state.is_open(2, 1)
    assert not begun[0].stopped.is_set()
    host.commits(Noop())
    deliver(one)
    assert not one.state.is_open(2, 1)
    async with in_time():
        await begun[0].stopped.wait()
