"""The health port, as a kubelet and Prometheus ask it."""

from collections.abc import Mapping

import aiohttp
import pytest
from pgherd_sidecar.agent.adminport import StatusValue
from pgherd_sidecar.agent.health import HealthServer
from places import free_port
from test_admin import Backend


class Member(Backend):
    """In the state that a test gives it."""

    def __init__(self, **fields: StatusValue) -> None:
        super().__init__()
        self.fields = fields

    async def status(self) -> Mapping[str, StatusValue]:
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
