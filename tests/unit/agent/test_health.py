"""The health port, as a kubelet and Prometheus ask it."""

import asyncio
from collections.abc import Mapping

import aiohttp
import pytest
from pgherd_sidecar.agent.admin import health
from pgherd_sidecar.agent.admin.health import HealthServer
from pgherd_sidecar.agent.admin.port import StatusValue
from pgherd_sidecar.agent.session.freshness import Freshness
from places import free_port
from test_admin import Backend


class Member(Backend):
    """In the state that a test gives it."""

    def __init__(self, **fields: StatusValue) -> None:
        super().__init__()
        self.fields = fields
        self.looked = 0

    async def status(self) -> Mapping[str, StatusValue]:
        self.looked += 1
        return {**await super().status(), **self.fields}


async def ask(member: Member, path: str, method: str = "GET") -> tuple[int, str]:
    port = free_port()
    server = HealthServer("127.0.0.1", port, member)
    await server.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status, await answer.text()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "primary"}, 200),
        ({"state": "secondary"}, 503),
        ({"state": "recovering"}, 503),
        ({"state": "diverged", "component": "primary"}, 503),
        ({"state": "witness", "component": "primary"}, 200),
        ({"state": "witness", "component": "secondary"}, 503),
        ({"state": "witness"}, 503),
        ({"state": "reader"}, 200),
        ({"state": "maintenance", "component": "primary"}, 503),
    ],
)
async def test_ready_is_who_does_his_work_in_a_primary_component(
    fields: dict[str, StatusValue], expected: int
) -> None:
    assert await ask(Member(**fields), "/ready") == (expected, f"{fields['state']}\n")


async def test_alive_is_who_answers_whatever_its_state() -> None:
    assert (await ask(Member(state="diverged"), "/live"))[0] == 200


async def test_metrics_are_there_and_nothing_that_could_be_changed() -> None:
    status, text = await ask(Member(), "/metrics")
    assert status == 200 and "pgherd_gid{" in text
    for path in ("/status", "/view", "/shutdown", "/marker"):
        assert (await ask(Member(), path))[0] == 404
    assert (await ask(Member(), "/ready", "POST"))[0] == 405


@pytest.mark.parametrize("path", ["/", "/primary", "/leader", "/read-write"])
async def test_only_who_takes_writes_is_a_primary(path: str) -> None:
    assert (await ask(Member(state="primary"), path))[0] == 200
    assert (await ask(Member(state="primary"), path, "OPTIONS"))[0] == 200
    assert await ask(Member(state="primary"), path, "HEAD") == (200, "")
    for state in ("secondary", "recovering", "rebuilding", "witness", "reader", "diverged"):
        assert (await ask(Member(state=state, component="primary"), path))[0] == 503


@pytest.mark.parametrize("path", ["/readable", "/replica", "/read-only"])
@pytest.mark.parametrize(
    ("fields", "query", "expected"),
    [
        ({"state": "primary", "lag_bytes": 0, "age_s": 0.0}, "", 200),
        ({"state": "secondary", "lag_bytes": 0, "age_s": 700.0}, "", 200),
        ({"state": "secondary", "lag_bytes": 0, "age_s": 700.0}, "?age=10min", 503),
        ({"state": "secondary", "lag_bytes": 0, "age_s": 700.0}, "?age=1h&lag=0", 200),
        ({"state": "primary", "lag_bytes": 2048, "age_s": 0.2}, "?lag=2kB", 200),
        ({"state": "primary", "lag_bytes": 2049, "age_s": 0.2}, "?lag=2kB", 503),
        ({"state": "primary", "lag_bytes": 0, "age_s": 0.2}, "?age=100ms", 503),
        # It was not level with the others yet: nobody knows how far behind it is.
        ({"state": "recovering", "lag_bytes": 0, "age_s": None}, "", 200),
        ({"state": "recovering", "lag_bytes": 0, "age_s": None}, "?lag=1TB", 503),
        # No session with its server goes on.
        ({"state": "starting"}, "", 503),
        ({"state": "rebuilding", "lag_bytes": 0}, "", 503),
        ({"state": "witness", "component": "primary"}, "", 503),
        ({"state": "primary", "lag_bytes": 0, "age_s": 0.0}, "?lag=-1", 400),
        ({"state": "primary", "lag_bytes": 0, "age_s": 0.0}, "?age=1MB", 400),
    ],
)
async def test_readable_is_whose_database_is_within_the_limits(
    path: str, fields: dict[str, StatusValue], query: str, expected: int
) -> None:
    assert (await ask(Member(**fields), path + query))[0] == expected


async def test_many_who_ask_at_once_cost_one_look_and_a_crowd_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "_CONNECTIONS", 5)
    monkeypatch.setattr(health, "_KEPT_S", 60.0)
    monkeypatch.setattr(health, "_LIFETIME_S", 2.0)
    member, port = Member(state="primary"), free_port()
    server = HealthServer("127.0.0.1", port, member)
    await server.start()
    try:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        known = server._runner.server
        assert known is not None
        while len(known.connections) < 5:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        assert await idle[0][0].read() == b""
        assert len(known.connections) == 5
        writer.close()
        for one, other in idle:  # who says nothing is not kept for long
            assert await one.read() == b""
            other.close()
        async with aiohttp.ClientSession() as session:

            async def once() -> int:
                async with session.get(f"http://127.0.0.1:{port}/ready") as answer:
                    return answer.status

            assert await asyncio.gather(*(once() for _ in range(4))) == [200] * 4
        assert member.looked == 1
    finally:
        await server.stop()


def test_the_age_is_that_of_the_oldest_entry_that_is_known_and_not_shown() -> None:
    fresh = Freshness()
    fresh.take_sample(1.0, 10, 5, caught_up=False)
    assert fresh.age_s(2.0, 0.0) is None
    fresh.take_sample(2.0, 10, 10, caught_up=True)
    assert fresh.age_s(3.0, 0.0) == 0.0
    assert fresh.age_s(3.0, 7.5) == 7.5
    for at in range(3, 3000):  # it falls behind for good: some samples are forgotten
        fresh.take_sample(float(at), at + 8, 10, caught_up=True)
    assert fresh.age_s(3000.0, 0.0) == 2997.0
    fresh.take_sample(3000.0, 3008, 2908, caught_up=True)
    assert 99.0 <= (fresh.age_s(3000.0, 0.0) or 0) <= 120.0
    fresh.take_sample(3001.0, 3008, 3008, caught_up=True)
    assert fresh.age_s(3001.0, 0.0) == 0.0
