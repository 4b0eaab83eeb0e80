"""Log hosts on loopback and real disks, as the tests of the running log use them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from patience import in_time, until
from pgherd_sidecar.agent.base.config import (
    LimitSettings,
    MemberAddress,
    NodeConfig,
    PostgresAddress,
    TimingSettings,
)
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.log.news import LogListener
from pgherd_sidecar.agent.membership import roster
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.core.consensus import Member, Persist
from pgherd_sidecar.core.replication.entries import (
    DatabaseState,
    Marker,
    Members,
    Noop,
    Skip,
    encode_entry,
    iter_entries,
)
from pgherd_sidecar.env.storage.segments import SegmentLog
from places import free_port

NAMES = ("n1", "n2", "n3")


def entry(number: int) -> bytes:
    return encode_entry(Marker(number.to_bytes(16, "big")))


class Killed(BaseException):
    """The process dies here."""


@contextmanager
def dying(step: int) -> Iterator[None]:
    """Die in the block, as soon as a log is to persist something for the ``step``-th time."""
    calls = itertools.count(1)
    persist = SegmentLog.persist

    def persist_or_die(log: SegmentLog, action: Persist) -> None:
        if next(calls) == step:
            raise Killed
        persist(log, action)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(SegmentLog, "persist", persist_or_die)
        yield


class Node(LogListener):
    """A host and the entries it has delivered, over all its restarts."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.disk = f"disk of {config.name}"
        self.delivered: dict[int, int] = {}
        self.position = 0
        self.members: tuple[int, ...] = ()
        self.proposers: list[tuple[int, str | None]] = []
        self.failure: Exception | None = None
        self.running = False

    async def start(self) -> None:
        self.host = LogHost(
            self.config, disk=self.disk, on_failure=self._failed, on_split=lambda: None
        )
        self.host.listen(self)
        await self.host.start()
        self.running = True

    @property
    def disks(self) -> set[str]:
        """Those of the members, by this node's log."""
        return {member.disk for member in self.host.membership.members}

    @property
    def member(self) -> Member:
        return roster.myself(self.config, self.disk)

    def member_as(self, number: int) -> Member:
        """This member if it had another number."""
        info = msgspec.structs.replace(roster.contact(self.member), number=number).encode()
        return replace(self.member, info=info)

    async def stop(self) -> None:
        if self.running:
            self.running = False
            await self.host.stop()

    def _failed(self, error: Exception) -> None:
        self.failure = error

    def proposer_changed(self) -> None:
        self.proposers.append((self.host.term, self.host.proposer))

    def entries_committed(self) -> None:
        self.deliver()

    def deliver(self) -> None:
        while self.position < self.host.commit_position:
            blocks = self.host.reader.read(self.position + 1, 1 << 16)
            if self.host.reader.mending:
                return
            assert blocks, f"position {self.position + 1} is committed but can't be read"
            for block in blocks:
                assert block.last <= self.host.commit_position <= self.host.flushed_position
                self._take(block.first, block.data)
                self.position = block.last

    def _take(self, first: int, data: bytes) -> None:
        for gid, found in enumerate(iter_entries(data), first):
            if isinstance(found, Marker):
                number = int.from_bytes(found.id, "big")
                assert self.delivered.setdefault(gid, number) == number
            else:
                assert isinstance(found, Noop | Members | DatabaseState | Skip)
                if isinstance(found, Members):
                    self.members = found.numbers


class Trio:
    def __init__(
        self,
        directory: Path,
        limits: LimitSettings | None = None,
        witnesses: tuple[str, ...] = (),
        evict_ms: int = 0,
    ) -> None:
        self.evict_ms = evict_ms
        cluster: UUID = uuid4()
        members = tuple(
            MemberAddress(
                name=name,
                number=number,
                host="127.0.0.1",
                port=free_port(),
                witness=name in witnesses,
            )
            for number, name in enumerate(NAMES, 1)
        )
        self.directory = directory
        self.limits = limits or LimitSettings(segment_bytes=1 << 16, log_retention_bytes=1 << 16)
        self.nodes = {
            member.name: Node(self.config(cluster, member, members)) for member in members
        }

    def config(
        self,
        cluster: UUID,
        member: MemberAddress,
        members: tuple[MemberAddress, ...],
        *,
        founder: bool = True,
    ) -> NodeConfig:
        server: dict[str, Any] = {
            "postgres": PostgresAddress(host="/nowhere", port=5432),
            "hook_dir": self.directory,
        }
        return NodeConfig(
            cluster_id=cluster,
            name=member.name,
            number=member.number,
            members=members,
            founder=founder,
            data_dir=self.directory / member.name,
            witness=member.witness,
            admin_socket=self.directory / f"{member.name}.sock",
            timing=TimingSettings(
                heartbeat_ms=100, election_timeout_ms=400, evict_ms=self.evict_ms
            ),
            limits=self.limits,
            **({} if member.witness else server),
        )

    def joiner(self, name: str, number: int, *, witness: bool = False) -> Node:
        """A node more, which the others' configurations do not name."""
        first = next(iter(self.nodes.values())).config
        port = free_port()
        mine = MemberAddress(name=name, number=number, host="127.0.0.1", port=port, witness=witness)
        seeds = (*first.members, mine)
        self.nodes[name] = Node(self.config(first.cluster_id, mine, seeds, founder=False))
        return self.nodes[name]

    def identify(self) -> None:
        """Give each node the disk that its directory says, as the sidecar does."""
        for node in self.nodes.values():
            identity = StoredIdentity(node.config)
            node.disk = identity.disk_id
            identity.close()

    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    async def start(self, *names: str) -> None:
        await asyncio.gather(*(self.nodes[name].start() for name in names or NAMES))

    async def stop(self, *names: str) -> None:
        await asyncio.gather(*(self.nodes[name].stop() for name in names or self.nodes))

    def alone(self, name: str) -> Node:
        """A node that founds a herd of one; the others are none."""
        config = self.nodes[name].config
        self.nodes = {name: Node(config.model_copy(update={"members": (config.address,)}))}
        return self.nodes[name]

    def emptied(self, name: str) -> Node:
        """A node as it was before it first started, with another empty disk."""
        former = self.nodes[name].config
        directory = former.data_dir.with_name(f"{name}-empty")
        self.nodes[name] = Node(former.model_copy(update={"data_dir": directory}))
        self.nodes[name].disk += "'"
        return self.nodes[name]

    def renewed(self, name: str) -> Node:
        """A node under the same name on an empty disk, with another log."""
        former = self.nodes[name].config
        config = former.model_copy(
            update={"founder": False, "data_dir": former.data_dir.with_name(f"{name}-new")}
        )
        self.nodes[name] = Node(config)
        self.nodes[name].disk += "'"
        return self.nodes[name]

    async def proposer(self) -> Node:
        """Wait until the running nodes agree on a proposer among them; return it."""
        return await self.proposer_of(*(node.config.name for node in self.alive()))

    async def proposer_of(self, *names: str) -> Node:
        """Wait until these agree on a proposer among them; return it."""

        def agreed() -> bool:
            named = {self.nodes[name].host.proposer for name in names}
            return len(named) == 1 and named <= set(names)

        await until(agreed)
        return self.nodes[str(self.nodes[names[0]].host.proposer)]

    async def order(self, node: Node, *numbers: int, but: tuple[str, ...] = ()) -> None:
        """Submit until it is delivered on every running node: what the replica has to do too."""

        def seen() -> bool:
            everybody = [one for one in self.alive() if one.config.name not in but]
            return all(set(numbers) <= set(one.delivered.values()) for one in everybody)

        def submit() -> None:
            missing = [n for n in numbers if n not in node.delivered.values()]
            if missing:
                node.host.submit(b"".join(map(entry, missing)), len(missing))

        await _insist(submit, seen)

    async def change(
        self,
        node: Node,
        condition: Callable[[], object],
        join: Member | None = None,
        leave: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Ask for a change until it shows: what nobody proposes is lost with its proposer."""
        await _insist(lambda: node.host.change_membership(join, leave), condition)

    def assert_same_order(self) -> None:
        longest = max((node.delivered for node in self.nodes.values()), key=len)
        for node in self.nodes.values():
            assert node.delivered.items() <= longest.items()


async def _insist(ask: Callable[[], None], condition: Callable[[], object]) -> None:
    """Ask again and again until something holds."""
    async with in_time():
        while not condition():
            ask()
            for _ in range(100):
                if condition():
                    break
                await asyncio.sleep(0.002)


@asynccontextmanager
async def trio(
    directory: Path,
    limits: LimitSettings | None = None,
    *,
    with_identities: bool = False,
    witnesses: tuple[str, ...] = (),
    evict_ms: int = 0,
    start: bool = True,
) -> AsyncIterator[Trio]:
    herd = Trio(directory, limits, witnesses, evict_ms)
    if with_identities:
        herd.identify()
    try:
        if start:
            await herd.start()
        yield herd
    finally:
        await herd.stop()
    assert [node.failure for node in herd.nodes.values() if node.failure] == []
