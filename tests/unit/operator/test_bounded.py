"""What the operator costs is bounded, whatever others have and however often they change it."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest
import structlog
from aiohttp import web
from jobs_world import JOB, WRITTEN
from operator_world import NAME, World
from pgherd_operator.api import SNAPSHOT
from pgherd_operator.objects import config, names, network
from pgherd_operator.shell import logs
from pgherd_operator.shell.jobs import is_at_rest
from pgherd_operator.shell.kube import watching
from pgherd_operator.shell.kube.client import Access, Client
from pgherd_operator.shell.kube.queue import Queue
from pgherd_operator.shell.main import release
from test_jobs import world as jobs_world
from test_objects import DATABASE, cluster
from test_operator_shell import serving


async def woken(look: Callable[[str, str], Awaitable[float | None]], times: int) -> None:
    """Wake a queue for one herd again and again, then end it."""
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            queue = Queue(look, group)
            for _ in range(times):
                queue.wake("n", "herd")
                await asyncio.sleep(0.01)
            raise asyncio.CancelledError


async def test_a_herd_that_is_woken_all_the_time_is_not_looked_at_all_the_time() -> None:
    looks = 0

    async def look(namespace: str, name: str) -> float | None:
        nonlocal looks
        looks += 1
        return 30.0

    await woken(look, 100)
    assert 2 <= looks <= 4


async def test_a_wake_does_not_end_a_back_off_at_once() -> None:
    looks = 0

    async def look(namespace: str, name: str) -> float | None:
        nonlocal looks
        looks += 1
        raise ValueError("a tenant's mistake")

    await woken(look, 50)
    assert looks == 1


async def test_ten_thousand_pods_of_others_are_neither_sent_nor_kept() -> None:
    """An API server that does as it is told by the selector, with pods of others and of herds."""
    others = [{"name": f"pod-{n}", "namespace": "n", "labels": {"app": "x"}} for n in range(10_000)]
    ours = [
        {"name": f"h{n}-1", "namespace": "n", "labels": {names.CLUSTER: f"h{n}"}} for n in range(3)
    ]
    asked: list[tuple[str, str]] = []
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        assert request.query["watch"] == "true"
        asked.append((request.query.get("labelSelector", ""), request.headers["Accept"]))
        response = web.StreamResponse()
        await response.prepare(request)
        for metadata in others + ours:
            if request.query.get("labelSelector", "") in ("", *metadata["labels"]):
                line = json.dumps({"type": "ADDED", "object": {"metadata": metadata}}) + "\n"
                sent += len(line)
                for part in (line[:20], line[20:]):  # a chunk is no line
                    await response.write(part.encode())
        await response.write_eof()
        return response

    woken: list[tuple[str, str]] = []

    async def enough(_: float) -> None:
        raise asyncio.CancelledError

    async with serving(answer) as url:
        client = Client(Access(url))
        with pytest.raises(asyncio.CancelledError):
            await watching.follow(client, "Pod", "", lambda *key: woken.append(key), enough)
        await client.close()
    assert woken == [("n", "h0"), ("n", "h1"), ("n", "h2")]
    ((selector, accept),) = asked
    assert selector == names.CLUSTER
    assert accept.startswith("application/json;as=PartialObjectMetadata")
    assert sent < 1000


async def test_however_many_namespaces_are_watched_a_call_is_answered_at_once() -> None:
    watched, opened = 40 * len(watching.KINDS), 0
    all_open, ended = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal opened
        if "watch" not in request.query:
            return web.json_response({"metadata": {"name": "leader"}})
        opened += 1
        if opened == watched:
            all_open.set()
        await ended.wait()
        return web.Response()

    async with serving(answer) as url:
        client = Client(Access(url))
        watches = [
            asyncio.create_task(watching.follow(client, kind, f"n{number}", lambda *_: None))
            for number in range(watched // len(watching.KINDS))
            for kind in watching.KINDS
        ]
        try:
            async with asyncio.timeout(10.0):
                await all_open.wait()
                await client.get("Lease", "n", "leader")
        finally:
            ended.set()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await client.close()


@pytest.mark.parametrize("answer", ["403", "gone", "nonsense"])
async def test_a_watch_that_fails_is_begun_again_each_time_later(answer: str) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        if answer == "403":
            return web.json_response({"message": "pods is forbidden"}, status=403)
        gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
        return web.Response(text=(json.dumps(gone) if answer == "gone" else "[1]") + "\n")

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            raise asyncio.CancelledError

    async with serving(refuse) as url:
        client = Client(Access(url))
        with pytest.raises(asyncio.CancelledError):
            await watching.follow(client, "Pod", "n", lambda *_: None, sleep)
        await client.close()
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0, 32.0]


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
    spec = it.objects["Service", f"{NAME}-ro"]["spec"]
    spec["publishNotReadyAddresses"] = True  # somebody has set it
    await it.settle()
    assert it.objects["Service", f"{NAME}-ro"]["spec"]["publishNotReadyAddresses"] is False
    del it.objects["Service", f"{NAME}-ro"]["spec"]["publishNotReadyAddresses"]
    it.writes.clear()
    await it.settle()
    assert not it.writes  # as the API server shows one that is false


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
