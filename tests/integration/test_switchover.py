"""A set moves from the herd to a subscriber: nothing is lost, and one of the two takes writes."""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import psycopg
import pytest
from patience import PATIENCE, until, wait_until
from pgherd_sidecar.local import herd as herds
from pgherd_sidecar.subscribing.failover.switchover import Switchover
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import FENCED, Subscription
from pgherd_sidecar.tables import sessions

from .localherd import LocalHerd, drop_schemas, error_of, home, put, query, refuses_to, settle
from .plainpostgres import PlainPostgres
from .test_subscriptions import caught_up, must, rows, state

pytestmark = pytest.mark.timeout(600)
_WITHIN_S = 60.0 * PATIENCE


@pytest.fixture
def name(herd: LocalHerd, subscriber: PlainPostgres) -> Iterator[str]:
    """A schema with a plain table and a partitioned one, which the subscriber follows."""
    found = f"w_{random.getrandbits(32):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE SCHEMA {found}; CREATE TABLE {found}.t (id bigint PRIMARY KEY, v text);"
        f" CREATE TABLE {found}.part (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        f" CREATE TABLE {found}.part_1 PARTITION OF {found}.part DEFAULT;"
        f" CREATE TABLE {found}.apart (id int PRIMARY KEY);"
        f" INSERT INTO {found}.t SELECT i, 'v' FROM generate_series(1, 100) i",
    )
    settle(herd)
    must(herd, "set", "create", found, "--tables", f"{found}.t,{found}.part")
    must(herd, "subscribe", found, "--to", subscriber.dsn(user="app"), "--wait")
    yield found
    ended = herd.top("unsubscribe", found, "--herd-only")
    assert ended.returncode == 0 or "there is no subscription" in ended.stderr, ended.stderr
    must(herd, "set", "drop", found)
    settle(herd)
    query(herd.dsn("n1"), f"DROP SCHEMA {found} CASCADE")
    drop_schemas(subscriber.dsn(), "pgherd_subscriber", found)


def refuses(dsn: str, name: str, table: str = "t") -> bool:
    """Does it take no writes to a set's table? What it takes is taken back."""
    return refuses_to(dsn, f"INSERT INTO {name}.{table} (id) VALUES (-1)")


def has_moved(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    """The subscriber takes writes, and no member does, not even to a partition."""
    settle(herd)
    for node in ("n1", "n2", "n3"):
        for table in ("t", "part", "part_1"):
            assert refuses(herd.app_dsn(node), name, table), (node, table)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="moves to a subscriber"):
            query(herd.app_dsn(node), f"TRUNCATE {name}.t")
        assert not refuses(herd.app_dsn(node), name, "apart")
    assert not refuses(subscriber.dsn(user="app"), name)


def is_as_before(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    """The members take writes, and the subscriber follows."""
    settle(herd)
    for node in ("n1", "n2", "n3"):
        assert not refuses(herd.app_dsn(node), name) and not refuses(
            herd.app_dsn(node), name, "part_1"
        )
    assert refuses(subscriber.dsn(user="app"), name)
    put(herd, herd.app_dsn("n2"), f"INSERT INTO {name}.t SELECT max(id) + 1 FROM {name}.t")
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.t") == rows(herd.dsn("n1"), f"{name}.t")


class _Client:
    """Inserts numbers of its own where they are taken: in the herd, then at the subscriber."""

    def __init__(self, places: list[str], table: str, first: int) -> None:
        self._places = places
        self._table = table
        self._next = first
        self.acknowledged: list[set[int]] = [set() for _ in places]
        self.unknown: set[int] = set()

    async def run(self, enough: asyncio.Event) -> None:
        at = 0
        while not enough.is_set():
            try:
                async with await psycopg.AsyncConnection.connect(self._places[at]) as session:
                    while not enough.is_set():
                        self._next += 1
                        self.unknown.add(self._next)
                        await session.execute(
                            f"INSERT INTO {self._table} VALUES ({self._next})".encode()
                        )
                        await session.commit()
                        self.unknown.discard(self._next)
                        self.acknowledged[at].add(self._next)
                        await asyncio.sleep(0.005)
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                self.unknown.discard(self._next)
            except psycopg.errors.ReadOnlySqlTransaction:
                self.unknown.discard(self._next)
                at = 1 - at
                await asyncio.sleep(0.02)
            except psycopg.Error:
                await asyncio.sleep(0.02)


@pytest.mark.long
async def test_a_set_moves_under_load_and_nothing_is_lost(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    there = subscriber.dsn(user="app")
    clients = [
        _Client([herd.app_dsn(node), there], f"{name}.t", 10_000 * number)
        for number, node in enumerate(("n1", "n2", "n3"), 1)
    ]
    enough = asyncio.Event()
    tasks = [asyncio.create_task(one.run(enough)) for one in clients]
    try:
        await until(lambda: all(len(one.acknowledged[0]) > 20 for one in clients))
        said = await asyncio.to_thread(
            must, herd, "switchover", name, "--to", name, "--yes", "--timeout", "60"
        )
        assert "takes writes" in said
        await until(lambda: all(len(one.acknowledged[1]) > 20 for one in clients))
    finally:
        enough.set()
        await asyncio.gather(*tasks)
    has_moved(herd, subscriber, name)
    origin = {key for (key,) in query(there, f"SELECT id FROM {name}.t WHERE id > 1000")}
    frozen = {key for (key,) in query(herd.dsn("n1"), f"SELECT id FROM {name}.t WHERE id > 1000")}
    for one in clients:
        in_herd, at_origin = one.acknowledged
        assert len(in_herd) > 20 and len(at_origin) > 20
        assert in_herd <= frozen and in_herd | at_origin <= origin
        assert not at_origin & frozen
    known: set[int] = set().union(*(one.acknowledged[0] | one.unknown for one in clients))
    assert frozen <= known and frozen <= origin
    assert state(herd, name)["state"] == "stopped"
    assert "takes writes" in must(herd, "switchover", name, "--to", name, "--yes")
    undone = error_of(herd.top("switchover", name, "--undo"))
    assert "nothing to undo" in undone
    assert "has moved" in error_of(herd.top("set", "add", name, "--tables", f"{name}.apart"))
    assert "takes writes" in error_of(herd.top("subscribe", name))  # nobody is to feed it
    query(there, f"INSERT INTO {name}.t VALUES (5)  ON CONFLICT (id) DO UPDATE SET v = 'mine'")
    put(herd, herd.app_dsn("n1"), f"INSERT INTO {name}.apart VALUES (1)")
    await asyncio.sleep(5)
    assert query(there, f"SELECT v FROM {name}.t WHERE id = 5") == [("mine",)]
    has_moved(herd, subscriber, name)
    must(herd, "unsubscribe", name, "--herd-only")
    must(herd, "set", "drop", name)
    settle(herd)
    assert not refuses(herd.app_dsn("n2"), name) and not refuses(herd.app_dsn("n2"), name, "part")
    must(herd, "set", "create", name, "--tables", f"{name}.t")


@pytest.mark.long
def test_one_that_does_not_get_there_leaves_all_as_it_was(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    put(herd, herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (1000)")
    caught_up(herd, subscriber, name)
    said = must(herd, "switchover", name, "--to", name)
    assert "nothing was done" in said
    with psycopg.connect(subscriber.dsn()) as session:
        session.execute(f"LOCK TABLE {name}.t IN SHARE MODE".encode())
        # So its triggers stay, and it can't take writes.
        words = ("switchover", name, "--to", name, "--yes", "--timeout", "4")
        error = error_of(herd.top(*words))
        assert "takes writes as before" in error, error
    is_as_before(herd, subscriber, name)


@pytest.mark.long
async def test_one_that_loses_its_session_to_what_commits_meanwhile_begins_anew(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    put(herd, herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (1000)")
    caught_up(herd, subscriber, name)
    ends = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'pgherd subscriptions' AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(herd.dsn("n1")) as in_the_way:
        in_the_way.execute(f"LOCK TABLE {name}.t IN SHARE UPDATE EXCLUSIVE MODE".encode())
        words = ("switchover", name, "--to", name, "--yes")
        moving = asyncio.create_task(asyncio.to_thread(herd.top, *words))
        await asyncio.to_thread(wait_until, lambda: query(herd.dsn("n1"), ends) == [(True,)])
    done = await moving
    assert "takes writes" in done.stdout, done.stderr
    assert "terminating connection due to administrator command; once more" in done.stderr
    has_moved(herd, subscriber, name)


_STEPS = ["lock", "level", "release", "finish"]


@contextlib.asynccontextmanager
async def moving(herd: LocalHerd, name: str) -> AsyncIterator[tuple[Switchover, Subscription]]:
    """A switchover of a set that has not begun, and the subscription that it goes to."""
    description = herds.load(home(herd))
    session = await sessions.connect(description.dsn(description.databases[0]), "test")
    try:
        move = Switchover(session, name, _WITHIN_S)
        yield move, await move.require(name)
    finally:
        await session.close()


@pytest.mark.long
@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("then", ["again", "undo"])
async def test_one_that_dies_after_a_step_is_gone_on_with_or_undone(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, step: str, then: str
) -> None:
    async with moving(herd, name) as (move, one):
        gid = await move.lock(one)
        steps: list[Callable[[], Awaitable[None]]] = [
            lambda: move.level(one, gid), lambda: move.release(one, gid),
            lambda: move.finish(one),
        ]  # fmt: skip
        for action in steps[: _STEPS.index(step)]:
            await action()
    if then == "again":
        said = await asyncio.to_thread(must, herd, "switchover", name, "--to", name, "--yes")
        assert "takes writes" in said
        has_moved(herd, subscriber, name)
        return
    done = await asyncio.to_thread(herd.top, "switchover", name, "--undo")
    if step in {"lock", "level"}:
        assert done.returncode == 0, done.stderr
        is_as_before(herd, subscriber, name)
    else:
        assert "nothing to undo" in error_of(done)
        has_moved(herd, subscriber, name)


@pytest.mark.long
async def test_one_that_comes_back_after_it_was_undone_releases_nothing(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    async with moving(herd, name) as (move, one):
        gid = await move.lock(one)
        await move.level(one, gid)
        await asyncio.to_thread(must, herd, "switchover", name, "--undo")
        with pytest.raises(Exception, match="the order changed"):
            await move.release(one, gid)
    is_as_before(herd, subscriber, name)


@pytest.mark.long
async def test_one_that_is_under_way_is_not_ended_beside(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """The subscriber would take writes, and so would the herd after --undo."""
    async with moving(herd, name) as (move, one):
        await move.lock(one)
    ended = await asyncio.to_thread(herd.top, "unsubscribe", name)
    assert refuses(subscriber.dsn(user="app"), name)
    error = error_of(ended)
    assert f"`pgherd switchover {name} --to {name} --yes`" in error and "--undo" in error
    assert state(herd, name)["state"] == "following"
    await asyncio.to_thread(must, herd, "switchover", name, "--undo")
    is_as_before(herd, subscriber, name)
    must(herd, "unsubscribe", name)
    assert not refuses(subscriber.dsn(user="app"), name)


@pytest.mark.long
async def test_an_end_that_was_ordered_at_the_same_time_conflicts_with_the_lock(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    stops = f"UPDATE pgherd_subscriptions.subscription SET stopped = 'ends' WHERE name = '{name}'"
    async with moving(herd, name) as (move, one):
        with psycopg.connect(herd.dsn("n1")) as beside:  # its snapshot is from before the move
            beside.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            beside.execute("SELECT FROM pgherd_subscriptions.subscription")
            await move.lock(one)
            with pytest.raises(psycopg.errors.SerializationFailure):
                beside.execute(stops.encode())
    await asyncio.to_thread(must, herd, "switchover", name, "--undo")
    is_as_before(herd, subscriber, name)


@pytest.mark.long
async def test_one_that_a_failover_has_gone_past_says_what_may_be_lost(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """It found that the subscriber takes writes, and said that nothing was lost."""
    dsn = subscriber.dsn(user="app")
    fenced = f"SELECT FROM pgherd_subscriber.standing WHERE revision = {FENCED}"
    caught_up(herd, subscriber, name)
    with psycopg.connect(subscriber.dsn()) as beside:  # no feeder gets past it
        beside.execute(f"LOCK TABLE {name}.t".encode())
        put(herd, herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1000, 'beyond')")
        async with moving(herd, name) as (move, one):
            await move.lock(one)
        words = ("failover", "--at", f"{name}={dsn}", "--yes")
        failover = asyncio.create_task(asyncio.to_thread(herd.without_directory, *words))
        await asyncio.to_thread(wait_until, lambda: query(subscriber.dsn(), fenced))
    done = await failover
    assert done.returncode == 0, done.stderr
    assert query(dsn, f"SELECT FROM {name}.t WHERE id = 1000") == []
    gid = done.stdout.partition("at GID ")[2].split()[0].rstrip(";,.")
    again = ("switchover", name, "--to", name)
    for more in ([], ["--yes"]):
        error = error_of(await asyncio.to_thread(herd.top, *again, *more))
        assert f"`pgherd changes --after {gid}`" in error
    undone = await asyncio.to_thread(herd.top, "switchover", name, "--undo")
    assert "nothing to undo" in error_of(undone)
    has_moved(herd, subscriber, name)
    error = error_of(await asyncio.to_thread(herd.top, *again, "--yes"))
    assert f"`pgherd changes --after {gid}`" in error


@pytest.mark.long
async def test_a_set_that_got_a_table_meanwhile_is_not_locked_without_it(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    async with moving(herd, name) as (move, one):
        await asyncio.to_thread(must, herd, "set", "add", name, "--tables", f"{name}.apart")
        with pytest.raises(StoppedError, match="has other tables now"):
            await move.lock(one)
    is_as_before(herd, subscriber, name)


@pytest.mark.long
def test_a_move_that_is_killed_again_and_again_ends_on_one_side(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    command = [sys.executable, "-m", "pgherd_sidecar.cli.main", "switchover", name]
    where = ["--dir", str(herd.directory)]
    killed = 0
    for number in range(8):
        words = ["--undo"] if number % 3 == 2 else ["--to", name, "--yes"]
        process = subprocess.Popen(
            [*command, *words, *where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(random.uniform(1.0, 4.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
        if not refuses(subscriber.dsn(user="app"), name):
            break
    herd.top("switchover", name, "--undo")  # if one was not undone to its end
    said = must(herd, "switchover", name, "--to", name, "--yes")
    assert "takes writes" in said
    has_moved(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.t") == rows(herd.dsn("n1"), f"{name}.t")


@pytest.mark.long
def test_what_can_not_move_is_refused(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    assert "there is no subscription" in error_of(
        herd.top("switchover", name, "--to", "nobody", "--yes")
    )
    assert "does not move" in error_of(herd.top("switchover", name, "--undo"))
    assert "give --to NAME, or --undo" in error_of(herd.top("switchover", name))
    must(herd, "set", "alter", name, "--table", f"{name}.t WHERE (id < 5)")
    error = error_of(herd.top("switchover", name, "--to", name, "--yes"))
    assert "lacks the rest" in error
    must(herd, "set", "alter", name, "--table", f"{name}.t")
    wait_until(lambda: state(herd, name)["state"] == "following")
    query(subscriber.dsn(), "UPDATE pgherd_subscriber.standing SET revision = revision + 1000000")
    # Nobody feeds it by an order any more, so it does not come to the GID of the lock.
    error = error_of(herd.top("switchover", name, "--to", name, "--yes", "--timeout", "5"))
    assert "shows GID" in error
    settle(herd)
    assert not refuses(herd.app_dsn("n3"), name) and refuses(subscriber.dsn(user="app"), name)


@pytest.mark.long
def test_partition_that_comes_after_the_lock_is_refused(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """It would be part of the set's table, and the new origin would never get its rows."""
    must(herd, "switchover", name, "--to", name, "--yes")
    settle(herd)
    dsn = herd.app_dsn("n1")
    put(herd, dsn, f"CREATE TABLE {name}.later (id int PRIMARY KEY)")
    for command in (
        f"ALTER TABLE {name}.part DETACH PARTITION {name}.part_1",
        f"CREATE TABLE {name}.part_2 PARTITION OF {name}.part FOR VALUES FROM (10) TO (20)",
        f"ALTER TABLE {name}.part ATTACH PARTITION {name}.later FOR VALUES FROM (10) TO (20)",
    ):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            query(dsn, command)
    query(dsn, f"COMMENT ON TABLE {name}.part IS 'has moved'")


@pytest.mark.long
def test_a_table_that_is_written_by_the_name_of_its_parent_does_not_move(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """A trigger for each statement is the parent's only, here and at the subscriber."""
    dsn, there = herd.app_dsn("n1"), subscriber.dsn(user="app")
    base = f"CREATE TABLE {name}.base (id int, v text)"
    query(
        dsn,
        f"{base}; CREATE TABLE {name}.child (PRIMARY KEY (id)) INHERITS ({name}.base);"
        f" INSERT INTO {name}.child VALUES (1, 'a')",
    )
    put(herd, there, f"{base}; CREATE TABLE {name}.child () INHERITS ({name}.base)")
    must(herd, "set", "add", name, "--tables", f"{name}.child")
    wait_until(lambda: rows(there, f"{name}.child") == [("(1,a)",)])
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(there, f"UPDATE {name}.base SET v = 'x'")
    put(herd, dsn, f"UPDATE {name}.base SET v = 'b'")
    caught_up(herd, subscriber, name)
    assert rows(there, f"{name}.child") == [("(1,b)",)]
    error = error_of(herd.top("switchover", name, "--to", name, "--yes"))
    assert f"inherits from {name}.base" in error
    is_as_before(herd, subscriber, name)
    must(herd, "unsubscribe", name)
    query(there, f"UPDATE {name}.base SET v = 'x'")
    assert rows(there, f"{name}.child") == [("(1,x)",)]
