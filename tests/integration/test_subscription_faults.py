"""Subscribers under load, while feeders, members and subscribers are killed at random.

Each look at the subscriber must be the set at the GID that it names: the rows of the ledger that
the log has up to there, and the balances that they make.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from patience import wait_until
from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.local import herd as herds

from .ledger import INITIAL, Ledger, new_ledger
from .localherd import LocalHerd, Node, free_port_base, home, query, settle
from .plainpostgres import PlainPostgres, plain_postgres
from .test_subscriptions import caught_up, kill_feeders, must

pytestmark = pytest.mark.timeout(600)
_ROUNDS = 6


@pytest.fixture(scope="module")
def subscriber(herd: LocalHerd, work_directory: Path) -> Iterator[PlainPostgres]:
    port = free_port_base() + 90
    # With fsync: what a killed subscriber has acknowledged must be there.
    with plain_postgres(work_directory / "faulty", port, herd.dsn("n1"), "fsync = on\n") as server:
        yield server


@pytest.fixture
async def ledger(herd: LocalHerd) -> AsyncIterator[Ledger]:
    found = new_ledger(herd)
    yield found
    for words in (("unsubscribe", found.schema, "--herd-only"), ("set", "drop", found.schema)):
        await asyncio.to_thread(herd.top, *words)
    settle(herd)
    found.drop()


class Looks:
    """What a reader has seen of the subscriber: GIDs, and ids of the ledger's rows.

    Args:
        subscriber: the server.
        ledger: that it follows.
        subscription: its name, if it is not that of the ledger's schema.
        goes_back: the server may lose its last asynchronous commits, and gets them again.
    """

    def __init__(
        self,
        subscriber: PlainPostgres | Node,
        ledger: Ledger,
        subscription: str | None = None,
        *,
        goes_back: bool = False,
    ) -> None:
        self._dsn = subscriber.dsn if isinstance(subscriber, Node) else subscriber.dsn()
        self._goes_back = goes_back
        self._ledger = ledger
        self._subscription = subscription or ledger.schema
        self.seen: dict[int, set[int]] = {}
        self.enough = False
        self._last = 0

    async def go_on(self) -> None:
        while not self.enough:
            with contextlib.suppress(psycopg.OperationalError):
                await self.look()
            await asyncio.sleep(0.1)

    async def look(self) -> None:
        name = self._ledger.schema
        async with await psycopg.AsyncConnection.connect(self._dsn) as session:
            await session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            rows = await session.execute(
                f"SELECT gid FROM pgherd_subscriber.standing WHERE subscription ="
                f" '{self._subscription}'".encode()
            )
            ((gid,),) = await rows.fetchall()
            rows = await session.execute(
                f"SELECT id, debit, credit, amount FROM {name}.ledger".encode()
            )
            ledger = await rows.fetchall()
            rows = await session.execute(f"SELECT id, balance FROM {name}.account".encode())
            balances: dict[int, int] = dict(await rows.fetchall())
        assert gid >= self._last or self._goes_back
        self._last = gid
        expected = dict.fromkeys(range(1, self._ledger.accounts + 1), INITIAL)
        for _, debit, credit, amount in ledger:
            expected[debit] -= amount
            expected[credit] += amount
        assert balances == expected
        self.seen[gid] = {number for number, *_ in ledger}


async def require_prefixes(
    herd: LocalHerd, ledger: Ledger, begin: int, looks: Mapping[int, set[int]]
) -> None:
    """Compare what was seen at each GID with what the herd's log has up to there.

    Args:
        herd: where the ledger is written.
        ledger: of which ids were seen.
        begin: a GID before all of that.
        looks: ids by GID.
    """
    description = herds.load(home(herd))
    log = ChangeLog(
        [AdminClient(description.node(one).admin_socket) for one in description.databases]
    )
    order: list[tuple[int, int]] = []
    async for changes in log.between(begin, max(looks)):
        order += [
            (one.gid, int((one.key or {})["id"] or 0))
            for one in changes
            if one.table == f"{ledger.schema}.ledger"
        ]
    for gid, seen in looks.items():
        assert seen == {number for at, number in order if at <= gid}, f"GID {gid}"


async def harm(herd: LocalHerd, subscriber: PlainPostgres, what: str) -> None:
    victim = random.choice(["n1", "n2", "n3"])
    match what:
        case "feeders":
            kill_feeders(herd)
        case "member":
            await asyncio.to_thread(herd.must, "kill", victim, "--process", "node")
            await asyncio.sleep(2)
            await asyncio.to_thread(herd.must, "start", victim)
        case "sidecar":
            await asyncio.to_thread(herd.must, "kill", victim, "--process", "sidecar")
            await asyncio.to_thread(herd.must, "start", victim)
        case "subscriber":
            kill_server(subscriber)
            await asyncio.to_thread(start_again, subscriber)


def kill_server(server: PlainPostgres) -> None:
    first = int((server.directory / "postmaster.pid").read_text().split()[0])
    processes = [one for one in Path("/proc").iterdir() if one.name.isdecimal()]
    children = [int(one.name) for one in processes if parent_of(one) == first]
    for pid in (first, *children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start_again(server: PlainPostgres) -> None:
    """As soon as the last child is gone: until then its memory is in use."""

    def told() -> str:
        return (server.directory / "start.log").read_text()[-2000:]

    wait_until(server.start, lambda _: True, despite=(AssertionError,), told=told)


def parent_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.long
async def test_a_subscriber_is_the_set_at_its_gid_whatever_dies(
    herd: LocalHerd, subscriber: PlainPostgres, ledger: Ledger
) -> None:
    name = ledger.schema
    begin = query(herd.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
    looks = Looks(subscriber, ledger)
    async with ledger.load(2):
        await asyncio.to_thread(must, herd, "set", "create", name, "--tables", f"{name}.*")
        await asyncio.to_thread(
            must, herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait"
        )
        looking = asyncio.create_task(looks.go_on())
        kinds = ["feeders", "member", "sidecar", "subscriber"]
        for what in random.sample(kinds, len(kinds)) + random.choices(kinds, k=_ROUNDS - 4):
            await ledger.commits(20)
            await harm(herd, subscriber, what)
            assert not looking.done(), looking.exception()
        await ledger.commits(20)
    settle(herd)
    await asyncio.to_thread(caught_up, herd, subscriber, name)
    looks.enough = True
    await looking
    await looks.look()
    assert len(looks.seen) > 10
    await require_prefixes(herd, ledger, begin, looks.seen)
    for table in ("account", "ledger"):
        statement = f"SELECT t::text FROM {name}.{table} t ORDER BY 1"
        assert query(subscriber.dsn(), statement) == query(herd.dsn("n2"), statement)
    ledger_ids = looks.seen[max(looks.seen)]
    assert ledger.told_committed <= ledger_ids and not ledger.told_aborted & ledger_ids
