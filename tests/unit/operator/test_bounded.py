"""What the operator costs is bounded, whatever others have and however often they change it."""

import asyncio
import json
import logging

import pytest
import structlog
from jobs_world import JOB, WRITTEN
from operator_world import NAME, World
from pgherd_operator.api import SNAPSHOT
from pgherd_operator.objects import config, network
from pgherd_operator.shell import logs
from pgherd_operator.shell.jobs import is_at_rest
from pgherd_operator.shell.main import release
from pgherd_operator.shell.queue import Queue
from test_jobs import world as jobs_world
from test_objects import DATABASE, cluster


async def test_a_herd_that_is_woken_all_the_time_is_not_looked_at_all_the_time() -> None:
    looks = 0

    async def look(namespace: str, name: str) -> float | None:
        nonlocal looks
        looks += 1
        return 30.0

    with pytest.raises(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            queue = Queue(look, group)
            for _ in range(100):
                queue.wake("n", "herd")
                await asyncio.sleep(0.01)
            raise asyncio.CancelledError
    assert 2 <= looks <= 4


async def test_a_wake_does_not_end_a_back_off_at_once() -> None:
    looks = 0

    async def look(namespace: str, name: str) -> float | None:
        nonlocal looks
        looks += 1
        raise ValueError("a tenant's mistake")

    with pytest.raises(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            queue = Queue(look, group)
            for _ in range(50):
                queue.wake("n", "herd")
                await asyncio.sleep(0.01)
            raise asyncio.CancelledError
    assert looks == 1


async def test_a_snapshot_that_ended_long_ago_costs_one_request_and_rests() -> None:
    it = jobs_world()
    await it.look()
    it.ends(WRITTEN)
    await it.look()
    assert await it.look() == 300.0
    it.passes(seconds=300)
    it.calls.clear()
    assert await it.look() is None
    assert it.calls == {("get", SNAPSHOT)}
    assert is_at_rest(it.objects[SNAPSHOT, JOB])


async def test_a_snapshot_with_an_end_of_its_own_is_still_woken() -> None:
    it = jobs_world(ttlSecondsAfterFinished=1000)
    await it.look()
    it.ends(WRITTEN)
    await it.look()
    it.passes(seconds=400)
    it.calls.clear()
    assert await it.look() == 300.0
    assert it.calls == {("get", SNAPSHOT)}
    assert not is_at_rest(it.objects[SNAPSHOT, JOB])


def test_on_a_cluster_of_ipv6_the_sidecars_listen_there() -> None:
    hosts = {
        address: release({"KUBERNETES_SERVICE_HOST": address}).listen_host
        for address in ("10.96.0.1", "fd00:10:96::1")
    }
    assert hosts == {"10.96.0.1": "0.0.0.0", "fd00:10:96::1": "::"}
    files = config.config_map(cluster(), "id", DATABASE, [DATABASE], "::")["data"]
    assert json.loads(files["node.json"])["listen_host"] == "::"


async def test_reads_through_the_services_meet_no_member_that_is_being_copied() -> None:
    def published(suffix: str) -> bool:
        (found,) = [
            one["spec"].get("publishNotReadyAddresses", False)
            for one in network.shared(cluster(), "ns")
            if one["kind"] == "Service" and one["metadata"]["name"].endswith(suffix)
        ]
        assert isinstance(found, bool)
        return found

    assert [published(suffix) for suffix in ("-rw", "-ro", "-any")] == [False, False, True]
    it = World()
    it.submit()
    await it.settle()
    assert ("Service", f"{NAME}-any") in it.objects


def test_libraries_log_in_the_form_of_our_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    try:
        logs.configure("warning")
        logging.getLogger("kopf.watching").error("the stream is %s", "broken")
        logging.getLogger("kopf.watching").info("not this")
    finally:
        root.handlers, _ = before
        root.setLevel(before[1])
        structlog.reset_defaults()
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"]) == ("error", "kopf.watching")
    assert told["text"] == "the stream is broken"
