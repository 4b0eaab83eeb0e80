"""What readers are promised at the levels local, session and strong, and what it takes to have it.

The histories of strong readers are judged by real time over all nodes (``Order.HERD``), those of a
user who goes from node to node with his token by his session; both under faults. A reader at local
is caught by the same checker, so it can fail.
"""

import asyncio
import contextlib
import random
import threading
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from checkers import elle, si
from checkers.anomalies import violations
from checkers.history import Order, Outcome
from faults.processes import Cut, cut
from patience import in_time, join, wait_until, wait_until_async
from psycopg.conninfo import make_conninfo
from workloads import bodies
from workloads.bodies import Workload
from workloads.client import Attempt, Body, run_once

from .localherd import LocalHerd, query
from .nodes import Nodes, once, run
from .test_first_hour import gid_of, nodes, stopped_sidecar
from .test_histories import NODES, Run, assert_good
from .test_partitions import until_component

__all__ = ["nodes"]

STRONG = "SELECT pgherd.strong()"


class TestStrong:
    def test_what_was_acknowledged_anywhere_is_read_everywhere(self, nodes: Nodes) -> None:
        sessions = [nodes.connect(number) for number in range(3)]
        for number in range(60):
            writer, reader = sessions[number % 3], sessions[(number // 3 + 1) % 3]
            run(writer, f"INSERT INTO t VALUES ({number}, 0)")
            gid = gid_of(writer)
            [(seen,)] = run(reader, STRONG)
            assert seen >= gid
            assert run(reader, f"SELECT v FROM t WHERE id = {number}") == [(0,)]

    def test_a_session_writes_after_a_cancel(self, herd: LocalHerd, nodes: Nodes) -> None:
        sessions = [nodes.connect(number) for number in range(len(nodes.app))]
        for session in sessions:
            run(session, STRONG)
        with stopped_sidecar(herd) as number:
            session = sessions[number]
            run(session, "SET statement_timeout = 300")
            with pytest.raises(psycopg.errors.QueryCanceled):
                once(session, STRONG)
        run(session, "RESET statement_timeout")
        wait_until(
            partial(run, session, "INSERT INTO t VALUES (1, 0)"),
            lambda _: True,
            despite=(psycopg.errors.ReadOnlySqlTransaction,),
        )
        assert nodes.equal_rows("t") == ["(1,0)"]

    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_a_transaction_of_one_snapshot_says_so_before(self, nodes: Nodes, level: str) -> None:
        writer, reader = nodes.connect(0), nodes.connect(1)
        run(reader, f"BEGIN ISOLATION LEVEL {level}")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot become strong") as no:
            run(reader, STRONG)
        assert "begin_strong" in (no.value.diag.message_hint or "")
        run(reader, "ROLLBACK")
        run(reader, f"SET default_transaction_isolation = '{level.lower()}'")
        for number in range(10):
            run(writer, f"INSERT INTO t VALUES ({number}, 0)")
            run(reader, "CALL pgherd.begin_strong()")
            run(reader, f"BEGIN ISOLATION LEVEL {level}")
            assert run(reader, "SELECT count(*) FROM t") == [(number + 1,)]
            run(reader, "COMMIT")
        run(reader, "BEGIN")
        with pytest.raises(psycopg.errors.InvalidTransactionTermination):
            run(reader, "CALL pgherd.begin_strong()")
        run(reader, "ROLLBACK")

    def test_it_waits_for_its_member(self, nodes: Nodes, herd: LocalHerd) -> None:
        writer, other = nodes.connect(0), nodes.connect(0)
        with stopped_sidecar(herd) as number:
            run(writer, "INSERT INTO t VALUES (1, 7)")
            run(other, STRONG)  # a majority is there
            reader = nodes.connect(number)
            found: list[object] = []
            waiting = threading.Thread(target=lambda: found.extend(run(reader, STRONG)))
            waiting.start()
            waiting.join(1)
            assert waiting.is_alive()
            assert run(nodes.connect(number), "SELECT * FROM t") == []
        join(waiting)
        assert found
        assert run(reader, "SELECT * FROM t") == [(1, 7)]

    def test_no_row_is_written_and_no_gid_is_used(self, nodes: Nodes) -> None:
        nodes.settle()
        reader = nodes.connect(1)
        [(before,)] = run(reader, STRONG)
        for _ in range(20):
            run(reader, STRONG)
        [(after,)] = run(reader, STRONG)
        assert after == before

    def test_a_timeout_that_passes_is_called_so(self, nodes: Nodes) -> None:
        reader = nodes.connect(1)
        for timeout_ms in range(6):
            for _ in range(5):
                with contextlib.suppress(
                    psycopg.errors.ReadOnlySqlTransaction,
                    psycopg.errors.ObjectNotInPrerequisiteState,
                ):
                    once(reader, f"SELECT pgherd.strong('{timeout_ms} ms')")

    def test_anybody_may_ask_also_on_a_connection_that_reads_only(self, nodes: Nodes) -> None:
        session = nodes.connect(0, admin=True)
        run(session, "SET default_transaction_read_only = on")
        run(session, "BEGIN")
        run(session, "SET LOCAL SESSION AUTHORIZATION pg_monitor")
        assert run(session, STRONG)
        assert run(session, "SELECT pgherd.fresh()")
        run(session, "COMMIT")


class TestLevels:
    def test_a_roles_setting_is_the_level_of_fresh(self, nodes: Nodes, herd: LocalHerd) -> None:
        writer, reader = nodes.connect(0), nodes.connect(1)
        run(reader, "SET pgherd.consistency = 'strong'")
        run(writer, "INSERT INTO t VALUES (1, 0)")
        assert run(reader, "SELECT pgherd.fresh()")[0][0] >= gid_of(writer)
        role = f"r_{random.getrandbits(40):x}"
        for command in (
            f"CREATE ROLE {role} LOGIN PASSWORD 'own'",
            f"ALTER ROLE {role} SET pgherd.consistency = 'strong'",
        ):
            run(nodes.admin[0], "SELECT pgherd.run_everywhere($$" + command + "$$)")
        nodes.settle()
        for way in herd.nodes():
            own = make_conninfo(way.app_dsn, user=role, password="own")
            assert query(own, "SHOW pgherd.consistency") == [("strong",)]
            assert query(own, "SELECT pgherd.fresh() > 0") == [(True,)]
        run(nodes.admin[0], f"SELECT pgherd.run_everywhere('DROP ROLE {role}')")

    def test_local_asks_nobody(self, nodes: Nodes, herd: LocalHerd) -> None:
        nodes.settle()
        with stopped_sidecar(herd) as number:
            reader = nodes.connect(number)
            [(here,)] = run(reader, "SELECT pgherd.last_gid()")
            assert run(reader, "SELECT pgherd.fresh()") == [(here,)]  # it has no token
            run(reader, "SET pgherd.consistency = 'local'")
            assert run(reader, f"SELECT pgherd.fresh({here + 1000})") == [(here,)]

    def test_session_waits_for_a_token(self, nodes: Nodes) -> None:
        writer, reader = nodes.connect(0), nodes.connect(1)  # it is the default
        for number in range(20):
            run(writer, f"INSERT INTO t VALUES ({number}, 0)")
            [(token,)] = run(writer, "SELECT pgherd.last_gid()")
            if number % 2:
                run(reader, f"SET pgherd.after = '{token}'")
                [(seen,)] = run(reader, "SELECT pgherd.fresh()")
            else:
                [(seen,)] = run(reader, f"SELECT pgherd.fresh({token})")
            assert seen >= token
            assert run(reader, f"SELECT v FROM t WHERE id = {number}") == [(0,)]
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            run(reader, f"SELECT pgherd.fresh({token + 1000}, '100 ms')")

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("pgherd.consistency = 'strng'", "pgherd.consistency is no level: 'strng'"),
            ("pgherd.after = 'soon'", "pgherd.after is no token: 'soon'"),
        ],
    )
    def test_a_wrong_word_is_one_clear_error(
        self, nodes: Nodes, setting: str, message: str
    ) -> None:
        session = nodes.connect(0)
        run(session, f"SET {setting}")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=message) as error:
            run(session, "SELECT pgherd.fresh()")
        assert error.value.diag.message_hint


# ---- histories -----------------------------------------------------------------------------------


def at_strong(body: Body) -> Body:
    """A workload's transactions, each of them strong."""

    async def strong(attempt: Attempt, chance: random.Random) -> None:
        await attempt.rows("CALL pgherd.begin_strong('3 seconds')")
        await body(attempt, chance)

    return strong


async def append(attempt: Attempt, chance: random.Random) -> None:
    """Append to one list, by all means."""
    await attempt.begin()
    await attempt.append(("list", 1))


async def read(attempt: Attempt, chance: random.Random) -> None:
    """Read that list."""
    await attempt.begin()
    await attempt.read_list(("list", 1))


def strong_run(herd: LocalHerd, workload: Workload) -> Run:
    found = Run(herd, replace(workload, body=at_strong(workload.body)))
    # A member that could not apply in time what the barrier covers.
    found.recorder.expected = frozenset({"55000"})
    return found


async def judged_by_real_time(run: Run) -> None:
    history = await run.judged()
    assert_good(history, si.check(history, Order.HERD))
    if "list" in run.workload.finals:
        assert_good(history, violations(elle.check(history, Order.HERD)))


FAULTS = [
    ("list_append", "killed", "sidecar", "proposer"),
    ("list_append", "killed", "postgres", "follower"),
    ("list_append", "stopped", "node", "proposer"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("workload", "fault", "process", "role"),
    [pytest.param(*case, id="-".join(case)) for case in FAULTS],
)
async def test_strong_transactions_see_all_that_was_acknowledged_before(
    mortal: LocalHerd, workload: str, fault: str, process: str, role: str
) -> None:
    run = strong_run(mortal, bodies.LIST_APPEND)
    await run.with_one_gone(fault, process, role)
    await judged_by_real_time(run)


@pytest.mark.long
async def test_a_minority_has_no_strong_reads_and_its_local_ones_are_stale(
    mortal: LocalHerd,
) -> None:
    """The proposer itself is cut off, and believes for a while that it reigns."""
    run = strong_run(mortal, bodies.LIST_APPEND)
    alone = mortal.members()[0]["proposer"]
    others = [name for name in NODES if name != alone]
    links: Cut = {alone: others, **{name: [alone] for name in others}}
    strong = at_strong(read)
    async with run.load() as recorder:
        await recorder.acknowledged(30, on=NODES)
        async with cut(mortal, links):
            async with in_time():
                assert await run.once(alone, strong) is not Outcome.OK
            assert recorder.codes["25006"]
            await until_component(mortal, alone, "secondary")
            await recorder.acknowledged(30, on=others)
            assert await run.once(alone, strong) is not Outcome.OK
        await recorder.acknowledged(30, on=NODES)
    await judged_by_real_time(run)

    stale = Run(mortal, bodies.LIST_APPEND)
    assert await stale.once("n1", stale.workload.fill) is Outcome.OK
    await stale.spread()
    async with cut(mortal, links):
        await until_component(mortal, alone, "secondary")
        await at_last(stale, others[0], append)
        assert await stale.once(alone, read) is Outcome.OK
    await at_last(stale, alone, strong)
    history = await stale.judged()
    assert si.check(history, Order.HERD), "a stale read was not noticed"


async def at_last(run: Run, node: str, body: Body) -> None:
    """Repeat a transaction until it commits."""
    await wait_until_async(lambda: run.once(node, body), lambda seen: seen is Outcome.OK)


@pytest.mark.long
async def test_who_waits_in_a_minority_hears_a_cancel_and_a_timeout_and_goes_on_later(
    mortal: LocalHerd,
) -> None:
    alone, others = "n2", ["n1", "n3"]
    links: Cut = {alone: others, **{name: [alone] for name in others}}
    dsn = next(node.app_dsn for node in mortal.nodes() if node.name == alone)
    table = f"c_{random.getrandbits(40):x}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as session:
        await session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)".encode())
        async with cut(mortal, links):
            await until_component(mortal, alone, "secondary")
            waiting = asyncio.create_task(session.execute("SELECT pgherd.strong('1 hour')"))
            await asyncio.sleep(1.5)
            assert not waiting.done()
            await asyncio.to_thread(session.cancel)
            with pytest.raises(psycopg.errors.QueryCanceled):
                async with in_time():
                    await waiting
            for call in ("SELECT pgherd.strong('1 s')", "CALL pgherd.begin_strong('1 s')"):
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as refused:
                    await session.execute(call.encode())
                assert "cannot tell now what was committed elsewhere" in str(refused.value)
                assert refused.value.diag.message_hint
            await session.execute(f"SELECT * FROM {table}".encode())
        await session.execute("SELECT pgherd.strong('1 minute')")
        async with in_time():
            while True:
                try:
                    await session.execute(f"INSERT INTO {table} VALUES (1)".encode())
                    break
                except psycopg.errors.ReadOnlySqlTransaction:
                    await asyncio.sleep(0.1)
        await session.execute(f"DROP TABLE {table}".encode())
    for node in mortal.nodes():  # whoever makes a table next has seen this
        await asyncio.to_thread(query, node.app_dsn, STRONG)


async def wander(run: Run, stop: asyncio.Event, seed: int, *, level: str) -> None:
    """One user, whose transactions go to a node each, with the token of the one before."""
    chance, session, token = random.Random(seed), next(run.recorder.sessions), 0
    while not stop.is_set():
        node = chance.choice(NODES)
        try:
            async with await psycopg.AsyncConnection.connect(
                run.dsns[node], autocommit=True
            ) as connection:
                await connection.execute(f"SET pgherd.consistency = '{level}'".encode())
                await connection.execute("SELECT pgherd.fresh(%s, '20 s')", (token,))
                attempt = Attempt(run.recorder, connection, node, session)
                if await run_once(attempt, run.workload.body, chance) is Outcome.OK:
                    cursor = await connection.execute("SELECT pgherd.last_gid()")
                    row = await cursor.fetchone()
                    assert row is not None
                    token = max(token, row[0])
                else:
                    session = next(run.recorder.sessions)
        except psycopg.OperationalError:  # the node is away, or far behind
            session = next(run.recorder.sessions)
            await asyncio.sleep(0.05)


@pytest.mark.long
async def test_who_takes_his_token_along_sees_on_each_node_what_he_saw_before(
    mortal: LocalHerd,
) -> None:
    run, stop = Run(mortal, bodies.LIST_APPEND), asyncio.Event()
    async with run.load() as recorder, asyncio.TaskGroup() as group:
        try:
            for seed in range(3):
                group.create_task(wander(run, stop, seed, level="session"))
            await recorder.acknowledged(60, on=NODES)
            async with run.fault("killed", "n2", "sidecar"):
                await recorder.acknowledged(30, on=["n1", "n3"])
            await recorder.acknowledged(60, on=NODES)
        finally:
            stop.set()
    await run.judged()


async def test_who_goes_elsewhere_without_a_token_may_see_less_than_before(
    mortal: LocalHerd,
) -> None:
    """So the test before can fail."""
    run = Run(mortal, bodies.LIST_APPEND)
    assert await run.once("n1", run.workload.fill) is Outcome.OK
    await run.spread()
    session, chance = next(run.recorder.sessions), random.Random(1)
    with stopped_sidecar(mortal) as number:
        for node, body in (("n1", append), (NODES[number], read)):
            async with await psycopg.AsyncConnection.connect(
                run.dsns[node], autocommit=True
            ) as connection:
                attempt = Attempt(run.recorder, connection, node, session)
                assert await run_once(attempt, body, chance) is Outcome.OK
    with pytest.raises(AssertionError):
        await run.judged()
