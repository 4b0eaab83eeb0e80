"""A cascade under load, while each of its processes and servers is killed, and providers change.

Each look at a subscriber must be the set at the GID that it names, on each hop: the rows of the
ledger that the log has up to there, and the balances that they make.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from patience import wait_until_async
from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.local import herd as herds

from .cascades import Forward, end, forwarding
from .ledger import Ledger, new_ledger
from .localherd import LocalHerd, free_port_base, home, query, settle
from .plainpostgres import PlainPostgres, plain_postgres
from .test_subscription_faults import Looks, harm, kill_server, start_again
from .test_subscriptions import caught_up, must, state

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
HOPS = "abc"


@pytest.fixture(scope="module")
def servers(herd: LocalHerd, work_directory: Path) -> Iterator[list[PlainPostgres]]:
    base, like = free_port_base(), herd.dsn("n1")
    # With fsync: what a killed subscriber has acknowledged must be there.
    with (
        plain_postgres(work_directory / "faulty-a", base + 94, like, "fsync = on\n") as a,
        plain_postgres(work_directory / "faulty-b", base + 95, like, "fsync = on\n") as b,
        plain_postgres(work_directory / "faulty-c", base + 96, like, "fsync = on\n") as c,
    ):
        yield [a, b, c]


@pytest.fixture
async def ledger(herd: LocalHerd, servers: list[PlainPostgres]) -> AsyncIterator[Ledger]:
    found = new_ledger(herd)
    yield found
    await asyncio.to_thread(end, herd, found.schema, *servers)
    settle(herd)
    found.drop()


class Cascade:
    """Three hops that are looked at, and the GID at which it began."""

    def __init__(self, herd: LocalHerd, servers: list[PlainPostgres], ledger: Ledger) -> None:
        self.herd = herd
        self.servers = servers
        self.ledger = ledger
        self.begin = query(herd.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
        self.looks = {
            hop: Looks(server, ledger, self.name(hop))
            for server, hop in zip(servers, HOPS, strict=True)
        }
        self._looking: dict[str, asyncio.Task[None]] = {}

    def name(self, hop: str) -> str:
        return f"{self.ledger.schema}_{hop}"

    async def order(self, hop: str, *words: str) -> None:
        words = ("subscribe", self.ledger.schema, "--name", self.name(hop), *words)
        await asyncio.to_thread(must, self.herd, *words)

    async def set_up(self) -> None:
        schema = self.ledger.schema
        await asyncio.to_thread(must, self.herd, "set", "create", schema, "--tables", f"{schema}.*")
        provider = "herd"
        for server, hop in zip(self.servers, HOPS, strict=True):
            to = server.dsn(user="app")
            await self.order(hop, "--to", to, "--provider", provider, "--forward", "--wait")
            provider = self.name(hop)
        self._looking = {hop: asyncio.create_task(one.go_on()) for hop, one in self.looks.items()}

    def require_right(self) -> None:
        for task in self._looking.values():
            assert not task.done(), task.exception()

    async def go_on(self) -> None:
        """Wait until each hop has shown something newer."""
        before = {hop: len(looks.seen) for hop, looks in self.looks.items()}

        async def newer() -> bool:
            self.require_right()
            return all(len(looks.seen) > before[hop] for hop, looks in self.looks.items())

        await wait_until_async(newer, told=lambda: self.looks)

    async def remove(self, hop: str, heir: str) -> None:
        """End a hop; the others go on."""
        self.looks.pop(hop).enough = True
        await self._looking.pop(hop)
        words = ("unsubscribe", self.name(hop), "--followers-to", heir)
        await asyncio.to_thread(must, self.herd, *words)

    async def check(self) -> None:
        """All have come to the end, and each thing that was seen was the set at its GID."""
        settle(self.herd)
        servers = {hop: self.servers[HOPS.index(hop)] for hop in self.looks}
        for hop, server in servers.items():
            await asyncio.to_thread(caught_up, self.herd, server, self.name(hop))
        for hop, looks in self.looks.items():
            looks.enough = True
            await self._looking[hop]
            await looks.look()
        schema = self.ledger.schema
        description = herds.load(home(self.herd))
        log = ChangeLog(
            [AdminClient(description.node(one).admin_socket) for one in description.databases]
        )
        last = max(max(one.seen) for one in self.looks.values())
        order: list[tuple[int, int]] = []
        async for changes in log.between(self.begin, last):
            order += [
                (one.gid, int((one.key or {})["id"] or 0))
                for one in changes
                if one.table == f"{schema}.ledger"
            ]
        for hop, looks in self.looks.items():
            assert len(looks.seen) > 3
            for gid, seen in looks.seen.items():
                assert seen == {number for at, number in order if at <= gid}, f"{hop}: GID {gid}"
            found = looks.seen[max(looks.seen)]
            assert self.ledger.told_committed <= found and not self.ledger.told_aborted & found
        for server in servers.values():
            for table in ("account", "ledger"):
                statement = f"SELECT t::text FROM {schema}.{table} t ORDER BY 1"
                assert query(server.dsn(), statement) == query(self.herd.dsn("n2"), statement)


def ages(servers: list[PlainPostgres], schema: str) -> list[object]:
    """Other ones if the tables were copied anew."""
    statement = (
        f"SELECT '{schema}.ledger'::regclass::oid, min(xmin::text::int8) FROM {schema}.ledger"
    )
    return [query(server.dsn(), statement) for server in servers]


async def test_each_hop_is_the_set_at_its_gid_whatever_dies(
    herd: LocalHerd, servers: list[PlainPostgres], ledger: Ledger, work_directory: Path
) -> None:
    cascade = Cascade(herd, servers, ledger)
    dsns = [server.dsn(user="app") for server in servers[:2]]
    with forwarding(work_directory, *dsns) as forwards:
        async with ledger.load(2):
            await cascade.set_up()
            before = ages(servers, ledger.schema)
            kinds = ["forward a", "forward b", "server a", "server b", "server c", "feeders"]
            more = [*kinds, "member", "sidecar"]
            for what in random.sample(kinds, len(kinds)) + random.choices(more, k=3):
                await ledger.commits(10)
                await kill(herd, servers, forwards, what)
                cascade.require_right()
                if random.random() < 0.6:  # else the next one dies before all have gone on
                    await cascade.go_on()
            await ledger.commits(20)
        await cascade.check()
        assert ages(servers, ledger.schema) == before


async def kill(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], what: str
) -> None:
    kind, _, hop = what.partition(" ")
    if kind == "forward":
        forwards[HOPS.index(hop)].kill()
        await asyncio.sleep(random.random())
        forwards[HOPS.index(hop)].start()
    elif kind == "server":
        kill_server(servers[HOPS.index(hop)])
        await asyncio.to_thread(start_again, servers[HOPS.index(hop)])
    else:
        await harm(herd, servers[0], kind)


async def test_providers_change_under_load_and_nothing_is_copied_or_missed(
    herd: LocalHerd, servers: list[PlainPostgres], ledger: Ledger, work_directory: Path
) -> None:
    cascade = Cascade(herd, servers, ledger)
    with forwarding(work_directory, *(server.dsn(user="app") for server in servers)):
        async with ledger.load(2):
            await cascade.set_up()
            before = ages(servers, ledger.schema)
            a, b, c = map(cascade.name, HOPS)
            for hop, provider in (
                ("c", a), ("b", "herd"), ("c", "herd"), ("a", b), ("c", a), ("b", "herd"),
                ("a", "herd"), ("b", a), ("c", b),
            ):  # fmt: skip
                await ledger.commits(5)
                await cascade.order(hop, "--provider", provider)
                cascade.require_right()
            await ledger.commits(10)
            await cascade.remove("b", a)
            await ledger.commits(10)
            cascade.require_right()
            assert state(herd, c)["provider"] == a
        await cascade.check()
        after = ages(servers, ledger.schema)
        assert (after[0], after[2]) == (before[0], before[2])
