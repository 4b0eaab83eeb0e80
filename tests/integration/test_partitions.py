"""Links between running members are cut: who has a majority goes on, nobody else commits.

Each member's sidecar is told whose connections to close and refuse, so nothing of the network has
to be touched. What the clients were told and saw is judged by the checkers at the end.
"""

import asyncio
import contextlib
import random
from collections.abc import Collection, Iterator
from pathlib import Path

import psycopg
import pytest
from checkers.history import Outcome
from faults.processes import Cut, admin, cut
from patience import in_time, wait_until_async
from workloads import bodies
from workloads.bodies import Workload
from workloads.client import Attempt
from workloads.recorder import Recorder

from .localherd import LocalHerd, free_port_base, standing
from .test_histories import Run

NODES = ["n1", "n2", "n3", "n4", "n5"]
_ROUNDS = 3

BRIDGE: Cut = {"n1": ["n4", "n5"], "n2": ["n4", "n5"], "n4": ["n1", "n2"], "n5": ["n1", "n2"]}
"""Two pairs, and one between them that hears both."""

RING: Cut = {
    name: [NODES[(number + 2) % 5], NODES[(number + 3) % 5]] for number, name in enumerate(NODES)
}
"""Each hears its neighbours only: all of them see a majority, and no two the same."""


@pytest.fixture(scope="module")
def five(work_directory: Path) -> Iterator[LocalHerd]:
    herd = LocalHerd(work_directory / "five", free_port_base(len(NODES)))
    with standing(herd, "--nodes", str(len(NODES))):
        yield herd


def sides(*parts: Collection[str]) -> Cut:
    """The cut between parts of the herd."""
    return {name: [n for n in NODES if n not in part] for part in parts for name in part}


async def until_component(herd: LocalHerd, name: str, component: str) -> None:
    """Wait until a member says that it is in this component."""
    await wait_until_async(
        lambda: admin(herd, name).status(), lambda seen: seen.component == component
    )


async def told(recorder: Recorder, code: str) -> None:
    """Wait until a client has heard this SQLSTATE."""
    async with in_time():
        while not recorder.codes[code]:  # noqa: ASYNC110 - clients tell nobody
            await asyncio.sleep(0.05)


async def ended(recorder: Recorder, more: int) -> None:
    """Wait until so many transactions have ended, however they did."""
    goal = len(recorder.transactions) + more
    async with in_time():
        while len(recorder.transactions) < goal:  # noqa: ASYNC110 - clients tell nobody
            await asyncio.sleep(0.05)


async def refusal(run: Run, name: str) -> psycopg.Error:
    """How a node refuses a write."""
    async with await psycopg.AsyncConnection.connect(run.dsns[name], autocommit=True) as connection:
        attempt = Attempt(run.recorder, connection, name, next(run.recorder.sessions))
        try:
            await attempt.append(("list", 1))
        except psycopg.Error as error:
            attempt.ended(Outcome.FAILED)
            return error
    raise AssertionError(f"{name} has taken a write")


async def reason(run: Run, name: str) -> str:
    """Why a node takes no writes: PostgreSQL's own words for a refused write don't tell."""
    async with await psycopg.AsyncConnection.connect(run.dsns[name], autocommit=True) as connection:
        cursor = await connection.execute("SELECT pgherd.why_read_only()")
        row = await cursor.fetchone()
        assert row is not None
        return str(row[0] or "")


async def test_a_minority_with_the_proposer_refuses_writes_and_the_majority_goes_on(
    five: LocalHerd,
) -> None:
    run = Run(five, bodies.LIST_APPEND)
    proposer = five.members()[0]["proposer"]
    minority = [proposer, next(name for name in NODES if name != proposer)]
    majority = [name for name in NODES if name not in minority]
    async with run.load() as recorder:
        await recorder.acknowledged(20, on=NODES)
        async with cut(five, sides(minority, majority)):
            for name in minority:
                await until_component(five, name, "secondary")
            await recorder.acknowledged(20, on=majority)
            for name in minority:
                error = await refusal(run, name)
                assert error.sqlstate == "25006"
                assert error.diag.message_hint or await reason(run, name)
                assert await run.once(name, bodies.read_all_lists) is Outcome.OK
            await told(recorder, "08007")  # who was waiting for a verdict
        await recorder.acknowledged(20, on=NODES)
    await run.judged()


@pytest.mark.long
@pytest.mark.parametrize(
    "links", [pytest.param(BRIDGE, id="bridge"), pytest.param(RING, id="ring")]
)
async def test_where_not_all_hear_all_there_is_one_order(five: LocalHerd, links: Cut) -> None:
    run = Run(five, bodies.LIST_APPEND)
    async with run.load() as recorder:
        await recorder.acknowledged(20, on=NODES)
        async with cut(five, links):
            await recorder.acknowledged(50)
        await recorder.acknowledged(20, on=NODES)
    await run.judged()


@pytest.mark.long
@pytest.mark.parametrize(
    "deaf",
    [pytest.param(False, id="mute"), pytest.param(True, id="deaf")],
)
async def test_a_proposer_that_is_mute_or_deaf_is_replaced(five: LocalHerd, deaf: bool) -> None:
    run = Run(five, bodies.BANK)
    proposer = five.members()[0]["proposer"]
    others = [name for name in NODES if name != proposer]
    links: Cut = {name: [proposer] for name in others} if deaf else {proposer: others}
    async with run.load() as recorder:
        await recorder.acknowledged(20, on=NODES)
        async with cut(five, links, one_way=True):
            await recorder.acknowledged(20, on=others)
        await recorder.acknowledged(20, on=NODES)
    await run.judged()


def any_cut(chance: random.Random) -> Cut:
    """Two sides, three, one alone, a ring, or single pairs."""
    shuffled = chance.sample(NODES, len(NODES))
    size = chance.randint(1, 4)
    pairs = {name: chance.sample(NODES, chance.randint(0, 2)) for name in NODES}
    cuts = (
        sides(shuffled[:size], shuffled[size:]),
        sides(shuffled[:2], shuffled[2:4], shuffled[4:]),
        RING,
        {name: [other for other in others if other != name] for name, others in pairs.items()},
    )
    return chance.choice(cuts)


@pytest.mark.long
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(bodies.LIST_APPEND, id="list_append"),
        pytest.param(bodies.BANK, id="bank"),
    ],
)
async def test_with_links_cut_at_random_and_members_paused_and_killed(
    five: LocalHerd, workload: Workload
) -> None:
    run = Run(five, workload)
    chance = random.Random(run.seed)
    async with run.load() as recorder:
        for _ in range(_ROUNDS):
            await recorder.acknowledged(5, on=NODES)
            one, other = chance.sample(NODES, 2)
            process = chance.choice(["node", "sidecar"])
            async with contextlib.AsyncExitStack() as faults:
                if chance.random() < 0.5:  # it is started again after the links are whole
                    await faults.enter_async_context(run.fault("killed", one, process))
                one_way = chance.random() < 0.3
                await faults.enter_async_context(cut(five, any_cut(chance), one_way=one_way))
                if chance.random() < 0.5:
                    await faults.enter_async_context(run.fault("stopped", other, process))
                await ended(recorder, 100)
        await recorder.acknowledged(5, on=NODES)
    await run.judged()
