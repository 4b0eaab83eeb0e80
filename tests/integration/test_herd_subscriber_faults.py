"""A herd that follows another one, while feeders and members of both are killed at random.

Each look at each of its members must be the set at the GID that this member names.
"""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from patience import wait_until

from .herds import as_subscriber, caught_up
from .ledger import Ledger
from .localherd import LocalHerd, error_of, free_port_base, put, query, refuses_to, settle, standing
from .test_subscription_faults import Looks, ledger, require_prefixes
from .test_subscriptions import end, kill_feeders, must, state

__all__ = ["ledger"]

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def follower(work_directory: Path) -> Iterator[LocalHerd]:
    with standing(LocalHerd(work_directory / "follower", free_port_base())) as found:
        yield found


def written_through(follower: LocalHerd) -> str:
    """The member of which some feeder has the advisory lock."""
    for _ in range(3):
        for node in follower.nodes():
            with contextlib.suppress(Exception):
                ((place,),) = query(node.dsn, "SELECT place FROM pgherd_subscriber.turn")
                return f"n{place}"
    return "n1"


async def harm(herd: LocalHerd, follower: LocalHerd, what: str) -> None:
    victim = random.choice(["n1", "n2", "n3"])
    match what:
        case "feeders":
            kill_feeders(herd)
        case "member":
            await asyncio.to_thread(herd.must, "kill", victim, "--process", "node")
            await asyncio.to_thread(herd.must, "start", victim)
        case "written through":
            victim = written_through(follower)
            await asyncio.to_thread(follower.must, "kill", victim, "--process", "node")
            await asyncio.sleep(5)  # others go on meanwhile
            await asyncio.to_thread(follower.must, "start", victim)
        case "its sidecar":
            victim = written_through(follower)
            await asyncio.to_thread(follower.must, "kill", victim, "--process", "sidecar")
            await asyncio.to_thread(follower.must, "start", victim)
        case "another one":
            await asyncio.to_thread(follower.must, "kill", victim, "--process", "node")
            await asyncio.to_thread(follower.must, "start", victim)


async def test_each_member_shows_the_set_at_its_gid_whatever_dies(
    herd: LocalHerd, follower: LocalHerd, ledger: Ledger
) -> None:
    name = ledger.schema
    begin = query(herd.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
    looks = [Looks(node, ledger, goes_back=True) for node in follower.nodes()]
    async with ledger.load(1):
        await asyncio.to_thread(must, herd, "set", "create", name, "--tables", f"{name}.*")
        await asyncio.to_thread(
            must, herd, "subscribe", name, "--to", as_subscriber(follower), "--wait"
        )
        settle(follower)
        looking = [asyncio.create_task(one.go_on()) for one in looks]
        kinds = ["feeders", "member", "written through", "its sidecar", "another one"]
        for what in random.sample(kinds, len(kinds)):
            await ledger.commits(20)
            await harm(herd, follower, what)
            for task in looking:
                assert not task.done(), task.exception()
        await ledger.commits(20)
    settle(herd)
    await asyncio.to_thread(caught_up, herd, follower, name)
    settle(follower)
    for one in looks:
        one.enough = True
    await asyncio.gather(*looking)
    for one in looks:
        await one.look()
        assert len(one.seen) > 1
        await require_prefixes(herd, ledger, begin, one.seen)
        ids = one.seen[max(one.seen)]
        assert ledger.told_committed <= ids and not ledger.told_aborted & ids
    for table in ("account", "ledger"):
        statement = f"SELECT t::text FROM {name}.{table} t ORDER BY 1"
        wanted = query(herd.dsn("n2"), statement)
        assert all(query(node.dsn, statement) == wanted for node in follower.nodes())


def test_an_end_that_the_subscriber_can_not_take_changes_nothing_and_is_repeated(
    herd: LocalHerd, follower: LocalHerd
) -> None:
    name = f"e_{random.getrandbits(32):x}"
    query(herd.app_dsn("n1"), f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY)")
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    must(herd, "subscribe", name, "--to", follower.app_dsn("n1"), "--wait")
    settle(follower)
    for lost in ("n2", "n3"):  # n1 lets sessions in, and can tell nothing without them
        follower.must("kill", lost, "--process", "node")
    said = error_of(herd.top("unsubscribe", name))
    assert "nothing was ended" in said, said
    for lost in ("n2", "n3"):
        follower.must("start", lost)
    settle(follower)
    assert state(herd, name)["state"] != "stopped"
    put(herd, herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1)")
    caught_up(herd, follower, name)
    end(herd, name)
    must(herd, "set", "drop", name)
    settle(follower)
    for node in follower.nodes():
        assert not refuses_to(node.app_dsn, f"DELETE FROM {name}.t"), node.name
    for one in (herd, follower):
        settle(one)
        put(one, one.dsn("n1"), f"DROP SCHEMA {name} CASCADE")


@pytest.mark.long
def test_an_end_in_which_a_feeder_hangs_is_repeated(herd: LocalHerd, follower: LocalHerd) -> None:
    """The subscription is stopped then, and known to the herd until its subscriber has let go."""
    name = f"e_{random.getrandbits(32):x}"
    query(herd.app_dsn("n1"), f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY)")
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    must(herd, "subscribe", name, "--to", follower.app_dsn("n1"), "--wait")
    with psycopg.connect(follower.app_dsn("n1")) as other:
        other.execute(f"LOCK TABLE {name}.t IN ROW EXCLUSIVE MODE".encode())
        words = ["-m", "pgherd_sidecar.cli.main", "unsubscribe", name, "--dir", str(herd.directory)]
        ended = subprocess.Popen([sys.executable, *words])
        wait_until(lambda: state(herd, name)["state"], lambda seen: seen == "stopped")
        ended.kill()
        ended.wait()
    assert "repeat `pgherd unsubscribe`" in state(herd, name)["reason"]
    assert refuses_to(follower.app_dsn("n2"), f"DELETE FROM {name}.t")
    end(herd, name)
    must(herd, "set", "drop", name)
    settle(follower)
    assert not refuses_to(follower.app_dsn("n2"), f"DELETE FROM {name}.t")
    for one in (herd, follower):
        settle(one)
        put(one, one.dsn("n1"), f"DROP SCHEMA {name} CASCADE")
