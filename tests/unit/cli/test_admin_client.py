"""The admin client against a real HTTP server, and against answers no server should give."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from pgherd_sidecar.client.admin import AdminClient, AdminError, NoSidecarError

STATUS = {"name": "n1", "cluster_id": "c", "state": "primary", "gid": 7, "commits": 12}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AdminClient]:
    async def status(_request: web.Request) -> web.Response:
        return web.json_response(STATUS)

    async def buckets(request: web.Request) -> web.Response:
        table = (await request.json())["table"]
        if table != "public.t":
            return web.json_response({"error": f"no table {table}"}, status=404)
        return web.json_response({"buckets": {"3": "ab"}})

    async def never(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    application = web.Application()
    application.add_routes(
        [
            web.get("/status", status),
            web.post("/marker/m/buckets", buckets),
            web.post("/marker/m/tables", never),
        ]
    )
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    yield AdminClient(tmp_path / "s")
    await runner.cleanup()


async def test_an_answer_is_parsed_and_counters_are_kept(client: AdminClient) -> None:
    status = await client.status()
    assert (status.name, status.state, status.gid) == ("n1", "primary", 7)
    assert status.model_extra == {"commits": 12}


async def test_a_request_carries_its_body(client: AdminClient) -> None:
    assert await client.buckets("m", "public.t", 5) == {3: "ab"}


async def test_a_refusal_is_an_error_with_its_reason(client: AdminClient) -> None:
    with pytest.raises(AdminError, match=r"POST /marker/m/buckets: no table public\.x$"):
        await client.buckets("m", "public.x", 5)


async def test_silence_ends_after_the_timeout(client: AdminClient) -> None:
    with pytest.raises(AdminError, match=r"no answer within 0\.05 s"):
        await client.tables("m", 0.05)


async def test_no_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoSidecarError, match=f"no sidecar listens at {tmp_path}/nothing: start"):
        await AdminClient(tmp_path / "nothing").status()


async def test_a_socket_that_a_dead_sidecar_has_left_is_the_same_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    with pytest.raises(NoSidecarError, match="no sidecar listens at"):
        await AdminClient(tmp_path / "s").status()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b'HTTP/1.0 200 OK\r\n\r\n{"name": "n1", "cluster_id": "c", "state": "asleep"}',
    ],
)
async def test_garbage_is_an_error(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "s"
    server = await asyncio.start_unix_server(answering(answer), path)
    async with server:
        with pytest.raises(AdminError, match="GET /status: "):
            await AdminClient(path).status()


def answering(
    answer: bytes,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    return respond
