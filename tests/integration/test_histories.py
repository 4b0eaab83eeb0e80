"""Clients on all nodes record what they were told and saw, and the checkers judge it.

Each workload without faults on the herd that all tests share; the two that say most, under
each fault, on a herd of their own. ``tests/checkers`` says what is judged and how.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest
from checkers import elle, si
from checkers.anomalies import Anomaly, Kind, report, violations
from checkers.history import History, Order, Outcome
from faults.processes import killed, stopped
from psycopg.conninfo import make_conninfo
from verdicts import ViolationError
from workloads import bodies
from workloads.bodies import Workload
from workloads.client import Attempt, Body, load, run_once
from workloads.outcomes import final_rows, gids_of
from workloads.recorder import Recorder

from .localherd import LocalHerd, query
from .members import caught_up

NODES = ["n1", "n2", "n3"]
CLIENTS = 2
COMMITS = 40  # on each node
WORKLOADS = {
    "list_append": bodies.LIST_APPEND,
    "list_append_without_key": bodies.LIST_APPEND_WITHOUT_KEY,
    "bank": bodies.BANK,
    "bank_without_key": bodies.BANK_WITHOUT_KEY,
    "long_fork": bodies.LONG_FORK,
    "lost_update": bodies.LOST_UPDATE,
    "unique_keys": bodies.UNIQUE_KEYS,
    "foreign_keys": bodies.FOREIGN_KEYS,
}
ALSO_SHOWN_ELSEWHERE = ["list_append_without_key", "bank", "long_fork"]
"""By transfers under faults, by other tables without a key, and by ``test_visibility.py``."""


class Run:
    """One workload on a schema of its own."""

    def __init__(self, herd: LocalHerd, workload: Workload) -> None:
        self.herd = herd
        self.workload = workload
        self.schema = f"h_{random.getrandbits(40):x}"
        self.seed = random.getrandbits(32)
        self.recorder = Recorder()
        path = f"-c search_path={self.schema}"
        self.dsns = {node.name: make_conninfo(node.app_dsn, options=path) for node in herd.nodes()}
        query(self.dsns["n1"], f"CREATE SCHEMA {self.schema}; {workload.ddl}")

    async def once(self, node: str, body: Body) -> Outcome:
        """Run one transaction of a session of its own; return what its client was told."""
        async with await psycopg.AsyncConnection.connect(
            self.dsns[node], autocommit=True
        ) as connection:
            session = next(self.recorder.sessions)
            attempt = Attempt(self.recorder, connection, node, session)
            return await run_once(attempt, body, random.Random(self.seed))

    @contextlib.asynccontextmanager
    async def load(self) -> AsyncIterator[Recorder]:
        """Fill the tables, then load all nodes for as long as the block lasts."""
        assert await self.once("n1", self.workload.fill) is Outcome.OK
        await self.spread()
        async with load(
            self.recorder, self.dsns, self.workload.body, clients=CLIENTS, seed=self.seed
        ):
            yield self.recorder

    async def spread(self) -> None:
        """Wait until all nodes have tables and first rows."""
        async with contextlib.AsyncExitStack() as stack:
            connections = [
                await stack.enter_async_context(
                    await psycopg.AsyncConnection.connect(dsn, autocommit=True)
                )
                for dsn in self.dsns.values()
            ]
            await caught_up(connections)

    async def judged(self) -> History:
        """Assert that nothing is wrong with what was recorded."""
        try:
            return await self._judged()
        except AssertionError as error:
            error.add_note(f"the clients' seed was {self.seed}")
            raise

    async def _judged(self) -> History:
        await asyncio.to_thread(self.herd.must, "verify")
        if "list" in self.workload.finals:
            assert await self.once("n1", bodies.read_all_lists) is Outcome.OK
        assert self.recorder.surprises == []
        history = self.recorder.history(await gids_of(self.recorder, self.dsns))
        assert_good(history, si.check(history, Order.NODE))
        states = await final_rows(self.dsns, self.workload.finals)
        assert_good(history, si.check_final(history, states))
        if "list" in self.workload.finals:
            assert_good(history, violations(elle.check(history, Order.SESSION)))
            assert_good(history, violations(elle.check(history, Order.NODE, log=True)))
        return history

    def fault(self, name: str, node: str, process: str) -> AbstractAsyncContextManager[None]:
        """What ``killed`` or ``stopped`` do, for as long as a block lasts."""
        if name == "stopped":
            return stopped(self.herd, node, process)
        return killed(self.herd, self.recorder, node, process)

    async def with_one_gone(self, fault: str, process: str, role: str) -> None:
        """Load all nodes, while one of that role is gone for a while."""
        proposer = self.herd.members()[0]["proposer"]
        node = next(name for name in NODES if (name == proposer) == (role == "proposer"))
        others = [name for name in NODES if name != node]
        async with self.load() as recorder:
            await recorder.acknowledged(50, on=NODES)
            async with self.fault(fault, node, process):
                await recorder.acknowledged(50, on=others)
            await recorder.acknowledged(50, on=NODES)

    def drop(self) -> None:
        """Remove the schema."""
        query(self.herd.nodes()[0].dsn, f"DROP SCHEMA {self.schema} CASCADE")


def assert_good(history: History, anomalies: list[Anomaly]) -> None:
    if anomalies:
        rows = (f"GID {history.gids.get(one.id)}: {one}\n" for one in history.transactions)
        raise ViolationError(report(history, anomalies), {"history.txt": "".join(rows)})


@pytest.mark.parametrize("commits", [COMMITS, pytest.param(6 * COMMITS, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(
            WORKLOADS[name],
            id=name,
            marks=[pytest.mark.long] if name in ALSO_SHOWN_ELSEWHERE else [],
        )
        for name in WORKLOADS
    ],
)
async def test_without_faults(
    herd: LocalHerd,
    workload: Workload,
    commits: int,
    record_property: Callable[[str, object], None],
) -> None:
    run = Run(herd, workload)
    async with run.load() as recorder:
        await recorder.acknowledged(commits, on=NODES)
    history = await run.judged()
    assert len(history.gids) >= commits * len(NODES)
    behind = si.staleness(history)
    record_property(
        "gids_behind_p50_p99_max", [behind[len(behind) * n // 100] for n in (50, 99)] + behind[-1:]
    )
    run.drop()


@pytest.mark.long
async def test_counters_end_at_the_number_of_increments_that_committed(herd: LocalHerd) -> None:
    run = Run(herd, bodies.LOST_UPDATE)
    async with run.load() as recorder:
        await recorder.acknowledged(COMMITS, on=NODES)
    history = await run.judged()
    written = Counter(
        write.key[1] for t in history.transactions if t.id in history.gids for write in t.writes()
    )
    counted = dict(query(run.dsns["n2"], "SELECT id, n FROM counter"))
    assert {number: n + 1 for number, n in counted.items()} == written  # 1: the first row
    run.drop()


async def test_write_skew_between_nodes_commits_and_the_checker_sees_it(herd: LocalHerd) -> None:
    """What snapshot isolation allows is neither refused nor, by the checkers, called wrong."""
    run = Run(herd, bodies.LIST_APPEND)
    await run.spread()
    one, other = ("list", 1), ("list", 2)
    async with connected(run, "n1") as first, connected(run, "n2") as second:
        for attempt in (first, second):
            await attempt.begin()
            await attempt.read_list(one)
            await attempt.read_list(other)
        await first.append(one)
        await second.append(other)
        for attempt in (first, second):
            await attempt.commit()
            attempt.ended(Outcome.OK)
    history = await run.judged()
    assert [anomaly.kind for anomaly in elle.check(history)] == [Kind.WRITE_SKEW]
    run.drop()


@contextlib.asynccontextmanager
async def connected(run: Run, node: str) -> AsyncIterator[Attempt]:
    """A transaction of its own session."""
    async with await psycopg.AsyncConnection.connect(run.dsns[node], autocommit=True) as connection:
        yield Attempt(run.recorder, connection, node, next(run.recorder.sessions))


# ---- faults --------------------------------------------------------------------------------------


FAULTS = [("list_append", "killed", "sidecar", "proposer")]
MORE_FAULTS = [
    ("bank", "stopped", "sidecar", "proposer"),
    ("list_append", "killed", "postgres", "follower"),
    ("list_append", "stopped", "node", "proposer"),
    ("bank", "killed", "postgres", "proposer"),
    ("list_append", "killed", "node", "proposer"),
    ("list_append_without_key", "killed", "postgres", "proposer"),
    ("list_append", "stopped", "sidecar", "follower"),
    ("bank", "killed", "sidecar", "follower"),
    ("bank", "stopped", "postgres", "follower"),
]


@pytest.mark.parametrize(
    ("workload", "fault", "process", "role"),
    [pytest.param(*case, id="-".join(case)) for case in FAULTS]
    + [pytest.param(*case, id="-".join(case), marks=pytest.mark.long) for case in MORE_FAULTS],
)
async def test_with_one_node_gone_for_a_while(
    mortal: LocalHerd, workload: str, fault: str, process: str, role: str
) -> None:
    run = Run(mortal, WORKLOADS[workload])
    await run.with_one_gone(fault, process, role)
    await run.judged()


@pytest.mark.long
@pytest.mark.parametrize("workload", ["list_append", pytest.param("bank", marks=pytest.mark.long)])
async def test_with_all_nodes_killed_at_once(mortal: LocalHerd, workload: str) -> None:
    run = Run(mortal, WORKLOADS[workload])
    async with run.load() as recorder:
        await recorder.acknowledged(100, on=NODES)
        kills = (asyncio.to_thread(mortal.must, "kill", n, "--process", "node") for n in NODES)
        await asyncio.gather(*kills)
        for node in NODES:
            recorder.crashed(node)
        done = await asyncio.to_thread(mortal.up)
        assert done.returncode == 0, done.stderr
        await recorder.acknowledged(50, on=NODES)
    await run.judged()


async def test_without_a_majority_nothing_commits_and_nothing_is_lost(mortal: LocalHerd) -> None:
    run = Run(mortal, bodies.BANK)
    async with run.load() as recorder:
        await recorder.acknowledged(50, on=NODES)
        async with run.fault("stopped", "n2", "node"), run.fault("killed", "n3", "node"):
            for _ in range(3):
                assert await run.once("n1", bodies.transfer) is not Outcome.OK
            assert await run.once("n1", bodies.audit) is Outcome.OK
        await recorder.acknowledged(50, on=NODES)
    await run.judged()
