"""Repairs of certified transactions whose sessions died, without a server behind them."""

import asyncio
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import in_time
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.agent.base.errors import DivergedError
from pgherd_sidecar.agent.commit.settler import Settler, Visibility
from pgherd_sidecar.core.commit.chain import Chain, LocalLink
from pgherd_sidecar.core.commit.keys import wire_keys
from pgherd_sidecar.core.replication.entries import FLAG_DDL, FLAG_PIECES, Writeset
from pgherd_sidecar.pg.pipeline import Prepared
from pgherd_sidecar.pg.rows import RowStatements, TableShape

KEYS = wire_keys(array("q", [0, 1, 7 << 2 | 3])).tobytes()


class RepairServer:
    """The repair connection, and the catalog; outcomes of all xids are as given."""

    backend_pid = 9

    def __init__(self) -> None:
        self.columns = ["id", "v"]
        self.queries: dict[bytes, str] = {}
        self.written: list[str] = []
        self.gid = 10
        self.statuses: dict[str, str] = {}
        self.error: Exception | None = None

    async def describe(self, table: str) -> TableShape:
        return TableShape(list(self.columns), [0], frozenset(), "o.id = n.id", False, table)

    def knows(self, name: bytes) -> bool:
        return name in self.queries

    def prepare(self, name: bytes, query: bytes) -> None:
        self.queries[name] = query.decode()

    def provide(self, statements: Sequence[Prepared]) -> None:
        for statement in statements:
            if not self.knows(statement.name):
                self.prepare(statement.name, statement.query)

    async def run(self, statements: Sequence[Prepared]) -> None:
        if self.error is not None:
            raise self.error
        self.written += [self.queries[statement.name] for statement in statements]

    async def execute(self, _query: str, parameters: tuple[list[str]]) -> Any:
        row = self.gid, [self.statuses[xid] for xid in parameters[0]]

        async def fetchone() -> Any:
            return row

        return SimpleNamespace(fetchone=fetchone)


class Else:
    """What executes commands, and transactions in pieces."""

    def __init__(self) -> None:
        self.done: list[tuple[int, ...]] = []

    async def run(self, _writeset: Writeset, gid: int, prev: int) -> None:
        self.done.append((gid, prev))

    async def apply_transaction(self, _writeset: Writeset, gid: int, prev: int, first: int) -> None:
        self.done.append((gid, prev, first))


class Node:
    """A settler and what it works with; GID 10 is visible."""

    def __init__(self) -> None:
        self.server, self.chain = RepairServer(), Chain(10)
        self.ddl, self.large = Else(), Else()
        self.visibility = Visibility(self.chain)
        self.settler = Settler(
            connection=cast("Any", self.server),
            pipeline=cast("Any", self.server),
            rows=RowStatements(self.server.describe),
            ddl=cast("Any", self.ddl),
            large=cast("Any", self.large),
            writers=Writers(),
            chain=self.chain,
            visibility=self.visibility,
            pace_s=0.01,
        )

    def link(self, gid: int, record: str = "I(1,x)", flags: int = 0) -> LocalLink:
        body = f'[["t",[0],["{record}"]]]'.encode()
        writeset = Writeset(1, 1, gid, 1, 700 + gid, flags, KEYS, body)
        pieces_from = 3 if flags & FLAG_PIECES else 0
        link = LocalLink(gid, self.chain.tail_gid, 700 + gid, 70, writeset, 0.0, pieces_from)
        self.chain.append(link)
        self.server.statuses[str(link.xid)] = "in progress"
        return link


async def test_a_repair_knows_the_schema_of_its_moment() -> None:
    """A command of this node has changed the table since another repair: a column is new."""
    node = Node()
    await node.settler.repair_transaction(node.link(11))
    node.server.columns.append("w")
    await node.settler.repair_transaction(node.link(12, "I(2,x,y)"))
    first, second = node.server.written
    assert "(id, v)" in first
    assert "(id, v, w)" in second


async def test_commands_and_large_transactions_are_repaired_as_what_they_are() -> None:
    node = Node()
    await node.settler.repair_transaction(node.link(11, flags=FLAG_DDL))
    await node.settler.repair_transaction(node.link(12, flags=FLAG_PIECES))
    assert node.ddl.done == [(11, 10)]
    assert node.large.done == [(12, 11, 3)]
    assert node.chain.settled_gid == 12
    assert node.settler.repairs == 2
    assert node.server.written == []


async def test_what_is_visible_is_not_repaired() -> None:
    node = Node()
    link = node.link(11)
    node.chain.settle_to(11)
    await node.settler.repair_transaction(link)
    assert node.server.written == []
    assert node.settler.repairs == 0


async def test_a_repair_waits_for_what_comes_before() -> None:
    node = Node()
    node.link(11)
    repair = asyncio.create_task(node.settler.repair_transaction(node.link(12)))
    await asyncio.sleep(0.01)
    assert node.server.written == []
    node.chain.settle_to(11)
    await repair
    assert len(node.server.written) == 1


async def test_only_what_has_aborted_is_repaired_and_in_order() -> None:
    node = Node()
    first, second = node.link(11), node.link(12)
    node.server.statuses[str(second.xid)] = "aborted"
    settling = asyncio.create_task(node.settler.run())
    await asyncio.sleep(0.1)
    assert node.server.written == []  # the first one goes on
    node.server.statuses[str(first.xid)] = "committed"
    node.server.gid = 11
    async with in_time():
        await node.visibility.visible(12)
    assert node.settler.repairs == 1
    settling.cancel()


async def test_what_cant_be_repaired_has_diverged() -> None:
    node = Node()
    node.server.error = ValueError("planted")
    with pytest.raises(DivergedError) as failed:
        await node.settler.repair_transaction(node.link(11))
    assert failed.value.failure is not None
    assert failed.value.failure.gid == 11
