"""A herd is lost: its most advanced subscriber takes writes, and the others are brought level.

The herd of these tests lives on and tries to feed them, as one does that is only cut off.
"""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from patience import wait_until

from .cascades import forwarding, schema_to_follow, three_servers
from .localherd import LocalHerd, error_of, put, query, refuses_to, settle
from .plainpostgres import PlainPostgres
from .test_subscriptions import caught_up, gid_of, must, rows, state

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def servers(herd: LocalHerd, work_directory: Path) -> Iterator[list[PlainPostgres]]:
    with three_servers(herd, work_directory, ("heir", "behind", "beside")) as found:
        yield found


@pytest.fixture
def name(herd: LocalHerd, servers: list[PlainPostgres]) -> Iterator[str]:
    with schema_to_follow(herd, servers, "h") as found:
        yield found


def cut_off(
    herd: LocalHerd, servers: list[PlainPostgres], name: str, work_directory: Path, *words: str
) -> tuple[int, list[str]]:
    """a is ahead of b, and c shows that the herd goes on; the GID of a, and how to name a and b."""
    a, b, c = (server.dsn(user="app") for server in servers)
    put(herd, herd.app_dsn("n1"), f"CREATE SEQUENCE {name}.numbers OWNED BY {name}.t.id")
    must(herd, "set", "create", name, "--tables", f"{name}.t", "--sequences", f"{name}.numbers")
    must(herd, "subscribe", name, "--name", f"{name}_a", "--to", a, "--forward", "--wait")
    must(herd, "subscribe", name, "--name", f"{name}_c", "--to", c, "--wait")
    by = ("--name", f"{name}_b", "--to", b, "--wait", *words)
    with forwarding(work_directory, a):
        must(herd, "subscribe", name, *by, "--provider", f"{name}_a")
    for number in (1000, 1001):
        query(herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES ({number}, 'new')")
        query(herd.app_dsn("n2"), f"DELETE FROM {name}.t WHERE id = {number - 990}")
    settle(herd)
    gid = caught_up(herd, servers[0], f"{name}_a")
    assert gid_of(servers[1], f"{name}_b") < gid
    return gid, ["--at", f"{name}_a={a}", "--at", f"{name}_b={b}"]


def take_over(herd: LocalHerd, *words: str) -> str:
    done = herd.without_directory("failover", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_most_advanced_takes_writes_and_the_other_is_brought_level(
    herd: LocalHerd, servers: list[PlainPostgres], name: str, work_directory: Path
) -> None:
    a, b, c = servers
    gid, places = cut_off(herd, servers, name, work_directory)
    old = query(b.dsn(), f"SELECT xmin::text FROM {name}.t WHERE id = 50")
    said = take_over(herd, *places)
    assert f"{name}_a would take writes" in said and "nothing was done" in said
    assert f"{name}_b would be brought from GID" in said
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(a.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
    said = take_over(herd, *places, "--yes")
    assert f"{name}_a takes writes" in said and f"{name}_b is level" in said
    assert f"`pgherd changes --after {gid_of(a, f'{name}_a')}`" in said
    assert gid_of(a, f"{name}_a") == gid_of(b, f"{name}_b") >= gid
    assert rows(a.dsn(), f"{name}.t") == rows(b.dsn(), f"{name}.t")
    assert rows(a.dsn(), f"{name}.t") == rows(herd.dsn("n1"), f"{name}.t")
    for server in (a, b):
        assert query(server.dsn(), f"SELECT last_value FROM {name}.numbers") == [(1001,)]
    assert query(b.dsn(), f"SELECT xmin::text FROM {name}.t WHERE id = 50") == old  # no copy
    query(a.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(b.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
    # The herd is there after all. Orders to feed them are refused, and nobody writes there.
    mine, level = rows(a.dsn(), f"{name}.t"), rows(b.dsn(), f"{name}.t")
    for hop in "ab":
        by = ("--name", f"{name}_{hop}", "--provider", "herd")
        error = error_of(herd.top("subscribe", name, *by))
        assert "has shut this herd out" in error and "`pgherd unsubscribe`" in error
        assert ("takes writes" in error) == (hop == "a")
        error = error_of(herd.top("switchover", name, "--to", f"{name}_{hop}", "--yes"))
        assert "has shut this herd out" in error
    for number in (3000, 3001, 3002):
        query(herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES ({number})")
        caught_up(herd, c, f"{name}_c")
    wait_until(lambda: state(herd, f"{name}_c")["state"] == "following")
    assert rows(a.dsn(), f"{name}.t") == mine and rows(b.dsn(), f"{name}.t") == level
    assert take_over(herd, *places, "--yes") == said


@pytest.mark.long
def test_a_failover_that_is_killed_again_and_again_is_gone_on_with(
    herd: LocalHerd, servers: list[PlainPostgres], name: str, work_directory: Path
) -> None:
    a, b, _ = servers
    _, places = cut_off(herd, servers, name, work_directory)
    noise = "(SELECT string_agg(md5(random()::text || i || g), '') FROM generate_series(1, 20) g)"
    for begin in (10_000, 20_000, 30_000):  # so that b has something to do
        query(
            herd.app_dsn("n1"),
            f"INSERT INTO {name}.t SELECT i, {noise}"
            f" FROM generate_series({begin}, {begin} + 5000) i",
        )
    caught_up(herd, a, f"{name}_a")
    command = [sys.executable, "-m", "pgherd_sidecar.cli.main", "failover", *places, "--yes"]
    killed = 0
    for _ in range(12):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(random.uniform(0.3, 3.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    assert killed > 0
    said = take_over(herd, *places, "--yes")
    assert f"{name}_a takes writes" in said and f"{name}_b is level" in said
    assert rows(a.dsn(), f"{name}.t") == rows(b.dsn(), f"{name}.t")
    assert rows(a.dsn(), f"{name}.t") == rows(herd.dsn("n1"), f"{name}.t")
    query(a.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(b.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")


@pytest.mark.long
async def test_a_second_one_at_once_is_refused(
    herd: LocalHerd, servers: list[PlainPostgres], name: str, work_directory: Path
) -> None:
    """It would find both level, and by its name the one that the first has not chosen."""
    a, b, _ = servers
    _, places = cut_off(herd, servers, name, work_directory, "--forward")
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND application_name = 'pgherd subscription'"
    )
    with psycopg.connect(a.dsn()) as in_the_way:
        in_the_way.execute(f"LOCK TABLE {name}.t IN SHARE MODE".encode())
        # So its guard stays there until the second failover has begun.
        first = asyncio.create_task(asyncio.to_thread(take_over, herd, *places, "--yes"))
        await asyncio.to_thread(
            wait_until, lambda: query(a.dsn(), waits) == [(1,)], hopeless=first.done
        )
        assert gid_of(a, f"{name}_a") == gid_of(b, f"{name}_b")
        second = await asyncio.to_thread(herd.without_directory, "failover", *places, "--yes")
    assert f"{name}_a takes writes" in await first
    assert not refuses_to(a.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
    assert refuses_to(b.dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
    assert "another failover is running" in error_of(second)
    assert f"{name}_a takes writes" in take_over(herd, *places, "--yes")


@pytest.mark.long
def test_one_without_a_log_leaves_the_others_where_they_are(
    herd: LocalHerd, servers: list[PlainPostgres], name: str, work_directory: Path
) -> None:
    a, b, _ = servers
    _, places = cut_off(herd, servers, name, work_directory)
    for table in ("log", "orders", "forwarding"):
        query(a.dsn(), f"DELETE FROM pgherd_subscriber.{table}")
    before = rows(b.dsn(), f"{name}.t")
    said = take_over(herd, *places, "--yes")
    assert f"{name}_a takes writes" in said
    assert f"{name}_b is left at GID" in said and "needs a copy" in said
    assert rows(b.dsn(), f"{name}.t") == before


@pytest.mark.long
def test_what_can_not_take_part_is_named(
    herd: LocalHerd, servers: list[PlainPostgres], name: str, work_directory: Path
) -> None:
    _, places = cut_off(herd, servers, name, work_directory)
    nowhere = herd.without_directory("failover", *places, "--at", f"x={servers[0].dsn()}", "--yes")
    assert "nothing of a subscription x" in error_of(nowhere)
    gone = herd.without_directory("failover", *places, "--at", "x=host=127.0.0.1 port=1", "--yes")
    assert "leave out what can't be reached" in error_of(gone)
    assert "NAME=DSN" in error_of(herd.without_directory("failover", "--at", "x"))
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(servers[0].dsn(user="app"), f"INSERT INTO {name}.t VALUES (2000)")
