"""A herd that follows a set of another one: all of its members show the set at one GID."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from patience import wait_until
from pgherd_sidecar.subscribing.state import turn
from pgherd_sidecar.subscribing.state.connections import connect
from pgherd_sidecar.subscribing.state.errors import MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription, describe
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from psycopg.rows import dict_row

from .herds import as_subscriber, caught_up
from .localherd import (
    LocalHerd,
    drop_schemas,
    error_of,
    free_port_base,
    put,
    query,
    refuses_to,
    settle,
    standing,
)
from .test_subscriptions import EVENT_AND_PART, end, must, rows, state, stopped

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def follower(work_directory: Path) -> Iterator[LocalHerd]:
    """The herd that subscribes."""
    with standing(LocalHerd(work_directory / "follower", free_port_base())) as found:
        yield found


@pytest.fixture
def name(herd: LocalHerd, follower: LocalHerd) -> Iterator[str]:
    """A schema of the first herd; what follows it is removed."""
    found = f"h_{random.getrandbits(32):x}"
    put(herd, herd.app_dsn("n1"), f"CREATE SCHEMA {found}")
    settle(follower)
    yield found
    herd.top("unsubscribe", found, "--herd-only")
    herd.top("set", "drop", found)
    settle(herd)
    drop_schemas(herd.dsn("n1"), "pgherd_subscriber", found)
    settle(follower)
    drop_schemas(follower.dsn("n1"), "pgherd_subscriber", found)
    settle(follower)


def follow(herd: LocalHerd, follower: LocalHerd, name: str) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    must(herd, "subscribe", name, "--to", as_subscriber(follower), "--wait")


def is_same(herd: LocalHerd, follower: LocalHerd, *tables: str) -> None:
    """All members of the follower have the rows of the first herd."""
    settle(follower)
    for node in follower.nodes():
        for table in tables:
            assert rows(node.dsn, table) == rows(herd.dsn("n1"), table), (node.name, table)


def test_all_members_of_a_herd_follow(herd: LocalHerd, follower: LocalHerd, name: str) -> None:
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.item (id int PRIMARY KEY, note varchar(40), tags text[],"
        " twice int GENERATED ALWAYS AS (id * 2) STORED);"
        f" INSERT INTO {name}.item (id, note, tags) SELECT i, repeat('n', 30), ARRAY[i::text, NULL]"
        "   FROM generate_series(1, 80000) i;" + EVENT_AND_PART.format(name),  # more than one piece
    )
    settle(herd)
    follow(herd, follower, name)
    tables = [f"{name}.{one}" for one in ("item", "event", "part")]
    is_same(herd, follower, *tables)
    query(herd.app_dsn("n2"), f"UPDATE {name}.item SET note = NULL WHERE id < 10")
    query(herd.app_dsn("n2"), f"UPDATE {name}.item SET id = id + 500000 WHERE id < 5")
    query(herd.app_dsn("n3"), f"DELETE FROM {name}.event WHERE what = 'a'")
    query(herd.app_dsn("n2"), f"UPDATE {name}.part SET y = 2 WHERE y = 1")
    put(herd, herd.app_dsn("n3"), f"ALTER TABLE {name}.item ADD COLUMN more int")
    put(herd, herd.app_dsn("n3"), f"INSERT INTO {name}.item (id, more) VALUES (600000, 7)")
    caught_up(herd, follower, name)
    is_same(herd, follower, *tables)
    assert state(herd, name)["state"] == "following"
    for node in follower.nodes():
        assert refuses_to(node.app_dsn, f"DELETE FROM {name}.event"), node.name
    put(herd, herd.app_dsn("n1"), f"TRUNCATE {name}.event")
    caught_up(herd, follower, name)
    is_same(herd, follower, *tables)
    end(herd, name)
    settle(follower)
    for node in follower.nodes():
        assert not refuses_to(node.app_dsn, f"DELETE FROM {name}.event"), node.name
        assert query(node.dsn, "SELECT to_regnamespace('pgherd_subscriber')") == [(None,)]


def test_tables_that_are_there_are_used(herd: LocalHerd, follower: LocalHerd, name: str) -> None:
    """One is the same and is not copied; of another one the rows that differ are written."""
    for one in ("same", "other"):
        query(
            herd.app_dsn("n1"),
            f"CREATE TABLE {name}.{one} (id int PRIMARY KEY, v text);"
            f" INSERT INTO {name}.{one} SELECT i, 'v' || i FROM generate_series(1, 1000) i",
        )
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.fresh (id int PRIMARY KEY); INSERT INTO {name}.fresh VALUES (1)",
    )
    settle(herd)
    query(
        follower.app_dsn("n1"),
        f"CREATE SCHEMA {name};"
        f" CREATE TABLE {name}.same (id int PRIMARY KEY, v text);"
        f" CREATE TABLE {name}.other (id int PRIMARY KEY, v text, mine int DEFAULT 5);"
        f" INSERT INTO {name}.same SELECT i, 'v' || i FROM generate_series(1, 1000) i;"
        f" INSERT INTO {name}.other SELECT i, 'v' || i FROM generate_series(3, 1002) i;"
        f" UPDATE {name}.other SET v = 'mine' WHERE id = 500",
    )
    settle(follower)
    versions = f"SELECT id, xmin::text FROM {name}.{{}} WHERE id BETWEEN 600 AND 700 ORDER BY 1"
    before = [query(follower.dsn("n2"), versions.format(one)) for one in ("same", "other")]
    follow(herd, follower, name)
    settle(follower)
    after = [query(follower.dsn("n2"), versions.format(one)) for one in ("same", "other")]
    assert before == after
    columns = f"SELECT id, v FROM {name}.{{}} ORDER BY 1"
    for node in follower.nodes():
        for one in ("same", "other"):
            wanted = query(herd.dsn("n1"), columns.format(one))
            assert query(node.dsn, columns.format(one)) == wanted
    is_same(herd, follower, f"{name}.fresh")
    put(herd, herd.app_dsn("n1"), f"UPDATE {name}.other SET v = 'x' WHERE id < 9")
    caught_up(herd, follower, name)
    settle(follower)
    for node in follower.nodes():
        wanted = query(herd.dsn("n1"), columns.format("other"))
        assert query(node.dsn, columns.format("other")) == wanted
        assert refuses_to(node.app_dsn, f"DELETE FROM {name}.same"), node.name


def test_tables_that_come_later_and_copies_anew(
    herd: LocalHerd, follower: LocalHerd, name: str
) -> None:
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.a (id int PRIMARY KEY); INSERT INTO {name}.a VALUES (1);"
        f" CREATE TABLE {name}.b (id int PRIMARY KEY, v text); INSERT INTO {name}.b VALUES (1)",
    )
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.a")
    must(herd, "subscribe", name, "--to", as_subscriber(follower), "--wait")
    must(herd, "set", "add", name, "--tables", f"{name}.b")
    wait_until(lambda: state(herd, name)["tables"] == [2, 2])
    is_same(herd, follower, f"{name}.a", f"{name}.b")
    put(herd, herd.app_dsn("n1"), f"ALTER TABLE {name}.b ALTER COLUMN v TYPE varchar(9)")
    query(herd.app_dsn("n1"), f"INSERT INTO {name}.b VALUES (2, 'x')")
    assert "alters a table" in stopped(herd, name)
    must(herd, "subscribe", name, "--anew", "--wait")
    wait_until(lambda: state(herd, name)["state"] == "following")
    settle(herd)
    caught_up(herd, follower, name)
    is_same(herd, follower, f"{name}.a", f"{name}.b")
    must(herd, "set", "remove", name, "--tables", f"{name}.b")
    wait_until(lambda: state(herd, name)["tables"] == [1, 1])
    wait_until(lambda: not refuses_to(follower.app_dsn("n3"), f"INSERT INTO {name}.b VALUES (9)"))
    assert refuses_to(follower.app_dsn("n3"), f"INSERT INTO {name}.a VALUES (9)")


def test_a_narrower_column_list_with_many_rows_is_shown(
    herd: LocalHerd, follower: LocalHerd, name: str
) -> None:
    """Rows and DDL are two transactions there: one with DDL may have 32 MiB."""
    query(herd.app_dsn("n1"), f"CREATE TABLE {name}.c (id int PRIMARY KEY, v text, k int NOT NULL)")
    settle(herd)
    query(
        herd.app_dsn("n1"),
        f"INSERT INTO {name}.c SELECT i, repeat('v', 400), i FROM generate_series(1, 200000) i",
    )
    settle(herd)
    must(herd, "set", "create", name, "--table", f"{name}.c (id, v, k) WHERE (id % 2 = 0)")
    must(herd, "subscribe", name, "--to", as_subscriber(follower), "--wait")
    must(herd, "set", "alter", name, "--table", f"{name}.c (id, v) WHERE (id % 2 = 1)")
    columns = (
        "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped AND attrelid ="
        f" '{name}.c'::regclass ORDER BY attnum"
    )
    wait_until(
        lambda: query(follower.dsn("n2"), columns) == [("id",), ("v",)] or _stopped(herd, name)
    )
    settle(herd)
    caught_up(herd, follower, name)
    settle(follower)
    wanted = query(herd.dsn("n1"), f"SELECT id, v FROM {name}.c WHERE id % 2 = 1 ORDER BY 1")
    for node in follower.nodes():
        assert query(node.dsn, f"SELECT * FROM {name}.c ORDER BY 1") == wanted, node.name
        assert refuses_to(node.app_dsn, f"DELETE FROM {name}.c"), node.name


def _stopped(herd: LocalHerd, name: str) -> bool:
    found = state(herd, name)
    assert found["state"] != "stopped", found
    return False


def test_what_a_herd_can_not_follow_is_refused(
    herd: LocalHerd, follower: LocalHerd, name: str
) -> None:
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id serial PRIMARY KEY)")
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    to = as_subscriber(follower)
    error = error_of(herd.top("subscribe", name, "--to", to, "--forward"))
    assert "can't forward" in error
    error = error_of(herd.top("subscribe", name, "--to", follower.dsn("n2")))
    assert "role postgres is a superuser there" in error
    must(herd, "set", "add", name, "--sequences", f"{name}.*")
    assert "has sequences" in error_of(herd.top("subscribe", name, "--to", to))
    must(herd, "set", "remove", name, "--sequences", f"{name}.*")
    must(herd, "subscribe", name, "--to", as_subscriber(herd))
    assert "this very herd" in stopped(herd, name)
    must(herd, "unsubscribe", name, "--herd-only")
    settle(herd)
    assert not refuses_to(herd.app_dsn("n3"), f"DELETE FROM {name}.t")
    local = f"CREATE SCHEMA {name}; GRANT USAGE ON SCHEMA {name} TO PUBLIC"
    local += f"; CREATE TABLE {name}.t (id int)"
    query(follower.dsn("n1"), f"{local}; SELECT pgherd.set_local('{name}.t')")
    must(herd, "subscribe", name, "--to", to)
    assert "local to each member" in stopped(herd, name)
    query(follower.dsn("n1"), f"DROP SCHEMA {name} CASCADE")
    must(herd, "subscribe", name, "--to", to, "--wait")
    must(follower, "set", "create", name, "--tables", f"{name}.t")
    error = error_of(follower.top("subscribe", name, "--to", as_subscriber(herd)))
    assert "follows another herd here" in error
    must(follower, "set", "drop", name)


def test_the_end_of_one_subscription_leaves_the_guards_of_another(
    herd: LocalHerd, follower: LocalHerd, name: str
) -> None:
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.t (id int PRIMARY KEY); CREATE TABLE {name}.u (id int PRIMARY KEY)",
    )
    settle(herd)
    follow(herd, follower, name)
    other = f"{name}_2"
    must(herd, "set", "create", other, "--tables", f"{name}.t")
    must(herd, "subscribe", other, "--to", as_subscriber(follower))
    assert "follows subscription" in stopped(herd, other)
    end(herd, other)
    must(herd, "set", "drop", other)
    settle(follower)
    assert refuses_to(follower.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1)")
    # A feeder made a place and died, and the set has lost the table meanwhile.
    query(
        follower.app_dsn("n1"),
        f"CREATE TABLE {name}.lost (id int); CREATE TRIGGER follows_herd BEFORE INSERT ON"
        f" {name}.lost EXECUTE FUNCTION pgherd_subscriber.refuse('{name}')",
    )
    settle(follower)
    assert refuses_to(follower.app_dsn("n2"), f"INSERT INTO {name}.lost VALUES (1)")
    must(herd, "subscribe", name)
    wait_until(
        lambda: not refuses_to(follower.app_dsn("n2"), f"INSERT INTO {name}.lost VALUES (1)")
    )
    assert refuses_to(follower.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1)")


async def test_a_place_that_was_guarded_is_of_one_subscription_only(
    herd: LocalHerd, follower: LocalHerd, name: str
) -> None:
    tab = f"{name}.t"
    query(herd.app_dsn("n1"), f"CREATE TABLE {tab} (id int PRIMARY KEY)")
    put(herd, follower.app_dsn("n1"), f"CREATE SCHEMA {name}")
    settle(follower)
    async with await psycopg.AsyncConnection.connect(
        herd.dsn("n1"), autocommit=True, row_factory=dict_row
    ) as session:
        found = await describe(session, [tab])
    feeders = [await _feeder(follower, f"{name}_{one}", "n1", tab) for one in ("a", "b")]
    first, second = feeders
    try:
        for one in feeders:
            assert await one.lock()
            await one.attach("herd")
        await first.persist(lambda: first.placing.make_room(found.values()))
        with pytest.raises(StoppedError, match=f"follows subscription {name}_a"):
            await second.persist(lambda: second.placing.make_room(found.values()))
        with pytest.raises(StoppedError, match=f"follows subscription {name}_a"):
            await second.placing.require_free([tab])
        await second.leave()
        settle(follower)
        assert refuses_to(follower.app_dsn("n2"), f"INSERT INTO {tab} VALUES (1)")
        third = await _feeder(follower, f"{name}_c", "n1")
        feeders.append(third)
        assert await third.lock()
        await third.attach("herd")
        await first.close()
        # It ends by an order that has the table no more.
        feeders.append(await _feeder(follower, f"{name}_a", "n2"))
        await feeders[-1].leave()
        settle(follower)
        assert not refuses_to(follower.app_dsn("n2"), f"INSERT INTO {tab} VALUES (1)")
        await third.leave()
    finally:
        for one in feeders:
            await one.close()


async def _feeder(follower: LocalHerd, name: str, node: str, *tables: str) -> Subscriber:
    dsn = follower.app_dsn(node)
    ordered = Subscription(name, name, dsn, 1, 1 << 30, 3600.0, None, None, tables, revision=1)
    return Subscriber(await connect(dsn), ordered)


async def test_of_two_who_reach_different_members_one_feeds(
    herd: LocalHerd, follower: LocalHerd, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advisory locks do not exclude them, but turns do: what an earlier one feeds fails."""
    monkeypatch.setattr(turn, "_SILENT_S", 6.0)
    monkeypatch.setattr(turn, "_BEAT_S", 1.0)
    first = await _feeder(follower, name, "n1")
    assert await first.lock()
    await first.attach("herd")
    monkeypatch.setattr(turn, "_ME", "another process")
    second = await _feeder(follower, name, "n2")
    try:
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + 15:
            assert not await second.lock()  # the first one beats
            await asyncio.sleep(0.5)
        async with first.transaction():
            await first.advance(1, None)
        await first.load()
        assert first.gid == 1
        monkeypatch.setattr(turn, "_SILENT_S", 0.0)  # it is stuck, with its advisory lock
        await first.session.execute("BEGIN")
        await first.advance(2, None)  # and in a transaction
        for _ in range(120):
            if await second.lock():
                break
            await asyncio.sleep(0.5)
        else:
            raise AssertionError("the turn was not taken")
        await second.attach("herd")
        assert second.gid == 1
        async with second.transaction():
            await second.advance(3, None)
        with pytest.raises(psycopg.errors.SerializationFailure):
            await first.session.execute("COMMIT")
        with pytest.raises(MovedOnError):
            async with first.transaction():
                await first.placing.leave_tables([f"{name}.nothing"])
        await second.load()
        assert second.gid == 3
        await second.leave()
    finally:
        await first.close()
        await second.close()
