"""Links with certificates: who is let in, what others cost, and how certificates are replaced."""

import asyncio
import ssl
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog
from cryptography.x509.oid import ExtendedKeyUsageOID
from link_ends import (
    CLUSTER,
    End,
    authority,
    connection,
    credentials_of,
    ended,
    equip,
    pem,
    running,
)
from patience import until
from pgherd_sidecar.core.consensus.model.messages import Newer, Submit
from pgherd_sidecar.env.network import connections
from pgherd_sidecar.env.network.frames import (
    HELLO_BYTES,
    PROTOCOL_VERSION,
    FrameReader,
    Hello,
    to_frame,
)
from pgherd_sidecar.env.network.tls import Credentials, certified_name
from pgherd_sidecar.pki.authority import Authority
from places import free_port

TOMORROW = datetime.now(UTC) + timedelta(days=1)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class World:
    """Two members with certificates of one authority, and room for strangers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = authority()
        self.ports = {1: free_port(), 2: free_port()}
        self.one, self.two = self.member(1), self.member(2)

    def files(self, name: str, by: Authority | None = None, **terms: Any) -> Path:
        return equip(self.directory / name, by or self.authority, name, **terms)

    def member(self, number: int) -> End:
        credentials = credentials_of(self.files(f"n{number}"), f"n{number}")
        return End(number, self.ports, credentials=credentials)

    def context(self, files: Path | None) -> ssl.SSLContext:
        """What a dialler with these files uses, who trusts whomever he reaches."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if files is not None:
            context.load_cert_chain(files / "tls.crt", files / "tls.key")
        return context

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[None]:
        async with running(self.one, self.two):
            await until(lambda: self.one.links.up and self.two.links.up)
            yield

    async def still_linked(self) -> None:
        """The members talk over the links that they had before."""
        self.two.received.clear()
        self.one.links.send([("n2", Newer(7))])
        await until(lambda: self.two.received)
        assert self.one.links.counters.dialled == self.two.links.counters.dialled == 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def hello(name: str, number: int) -> bytes:
    return Hello(PROTOCOL_VERSION, CLUSTER, name, number).encode()


async def said_to(port: int, context: ssl.SSLContext | None, content: bytes) -> bytes:
    """What the member at ``port`` says to a dialler with this context before it closes."""
    try:
        async with connection(port, context) as (reader, writer):
            writer.write(content)
            return await ended(reader)
    except OSError:
        return b""


async def test_members_exchange_messages_of_every_size_over_tls(world: World) -> None:
    sent = [Submit(1, bytes([size % 251]) * size) for size in (1, 20_000, 500_000, 0, 900_000)]
    async with world.linked():
        for message in sent:
            world.one.links.send([("n2", message)])
            await until(lambda: ("n1", message) in world.two.received)  # noqa: B023
        assert world.one.links.certificate_expires_s
    assert world.two.received == [("n1", message) for message in sent]


def was_refused(line: MutableMapping[str, Any]) -> bool:
    """The log line tells of a link that ended after it had been made."""
    return line["event"] == "link.lost" and "Errno" not in line["reason"]


STRANGERS = {
    "no certificate": (lambda w: None, "did not return a certificate"),
    "another authority": (lambda w: w.files("n3", authority()), "self-signed|issuer certificate"),
    "an expired one": (lambda w: w.files("n3", lasts=timedelta(hours=1)), "expired"),
    "one to come": (lambda w: w.files("n3", begins=TOMORROW), "not yet valid"),
    "another member's": (lambda w: w.files("n3"), "n2 has the certificate of n3"),
    "the member's own": (lambda w: w.files("n1"), "n2 has the certificate of n1"),
    "another cluster's": (lambda w: w.files("n2", cluster=str(uuid4())), "is not a member's"),
    "a server's": (
        lambda w: w.files("n2", usages=[ExtendedKeyUsageOID.SERVER_AUTH]),
        "unsuitable certificate purpose",
    ),
    "a wildcard": (lambda w: equip(w.directory / "n3", w.authority, "*"), "is not a member's"),
}


@pytest.mark.parametrize(("files", "reason"), STRANGERS.values(), ids=STRANGERS.keys())
async def test_a_stranger_is_refused_in_the_handshake_with_one_line_in_the_log(
    world: World, files: Any, reason: str
) -> None:
    async with world.linked():
        context = world.context(files(world))
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                assert await said_to(world.ports[1], context, hello("n2", 2)) == b""
        assert world.one.links.counters.unproven == 2
        assert [line["event"] for line in logs] == ["link.unproven"]
        assert any(part in logs[0]["reason"] for part in reason.split("|"))
        assert logs[0]["address"] == "127.0.0.1"
        assert world.one.received == []
        await world.still_linked()


@pytest.mark.parametrize(
    "content", [hello("n2", 2), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70_000)]
)
async def test_plain_text_is_refused(world: World, content: bytes) -> None:
    async with world.linked():
        answer = await said_to(world.ports[1], None, content)
        assert b"{" not in answer  # at most an alert of TLS
        assert world.one.links.counters.unproven == 1
        await world.still_linked()


async def test_an_older_tls_is_refused(world: World) -> None:
    context = world.context(world.files("n2"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with world.linked():
        assert await said_to(world.ports[1], context, hello("n2", 2)) == b""
        assert world.one.links.counters.unproven == 1


async def test_a_member_can_not_pass_for_another_one(world: World) -> None:
    world.ports[3] = free_port()
    one = world.member(1)
    async with running(one):
        context = world.context(world.files("n3"))
        assert await said_to(world.ports[1], context, hello("n2", 2)) == b""
    assert one.links.counters.unproven == 1
    assert one.received == []


async def test_a_certified_stranger_of_the_member_list_is_refused_by_its_number(
    world: World,
) -> None:
    async with running(world.one):
        answer = await said_to(world.ports[1], world.context(world.files("n2")), hello("n2", 5))
    assert "is not a member" in Hello.decode(FrameReader(HELLO_BYTES).feed(answer)[0]).refused


@pytest.mark.parametrize(
    "impostor",
    [
        lambda w: credentials_of(w.files("n3"), "n3"),
        lambda w: credentials_of(w.files("n2", authority()), "n2"),
        None,
    ],
    ids=["another member", "another authority", "plain text"],
)
async def test_who_answers_where_a_member_is_expected_learns_nothing(
    world: World, impostor: Any
) -> None:
    false = End(2, world.ports, credentials=impostor and impostor(world))
    with structlog.testing.capture_logs() as logs:
        async with running(world.one, false):
            await until(lambda: any(was_refused(line) for line in logs))
            assert not world.one.links.up
    assert false.received == []
    assert false.ups == []


async def test_garbage_of_a_member_ends_its_link_and_nothing_else(world: World) -> None:
    world.ports[3] = free_port()
    one, two = world.member(1), world.member(2)
    async with running(one, two):
        await until(lambda: one.links.up and two.links.up)
        context = world.context(world.files("n3"))
        async with connection(world.ports[1], context) as (reader, writer):
            writer.write(hello("n3", 3))
            await reader.readuntil(b"}")
            writer.write(b"".join(to_frame([b"\x01\xff"])))
            await ended(reader)
        assert one.links.counters.offended == 1
        two.links.send([("n1", Newer(4))])
        await until(lambda: one.received)
    assert two.links.counters.dialled == 1


async def test_a_crowd_at_the_door_is_bounded_and_does_not_keep_a_member_out(world: World) -> None:
    async with running(world.one), AsyncExitStack() as crowd:
        for _ in range(200):
            await crowd.enter_async_context(connection(world.ports[1]))
        await until(lambda: world.one.links.counters.crowded >= 200 - 64)
        assert len(world.one.links.connections) <= 64
        async with running(world.two):
            await until(lambda: world.two.links.up)
            world.two.links.send([("n1", Newer(1))])
            await until(lambda: world.one.received)


async def test_who_does_not_finish_the_handshake_is_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_GREETING_S", 0.01)
    async with running(world.one), connection(world.ports[1]) as (reader, writer):
        writer.write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        assert await ended(reader) == b""
    assert world.one.links.counters.unproven == 1


async def test_a_peer_that_does_not_read_costs_a_bounded_buffer(world: World) -> None:
    never = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello("n2", 2))
        await reader.readuntil(b"}")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await never.wait()
        writer.close()

    files = world.files("n2")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "tls.crt", files / "tls.key")
    server = await asyncio.start_server(deaf, "127.0.0.1", world.ports[2], ssl=context)
    async with server, running(world.one):
        await until(lambda: world.one.links.up)
        link = world.one.links.up["n2"]
        largest = 0
        for _ in range(2000):  # 64 MB: more than any socket buffer
            if world.one.links.counters.overflowed:
                break
            world.one.links.send([("n2", Submit(1, bytes(1 << 15)))])
            largest = max(largest, link._transport.get_write_buffer_size())
            await asyncio.sleep(0)
        assert world.one.links.counters.overflowed == 1
        await until(link.closed.done)
        assert (1 << 16) < largest <= (1 << 17)
        never.set()


async def test_a_renewed_certificate_is_used_by_new_connections_and_old_ones_stay(
    world: World,
) -> None:
    context = world.context(world.files("n2"))

    async def shown() -> bytes:
        async with connection(world.ports[1], context) as (_, writer):
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            assert isinstance(certificate, bytes)
            return certificate

    async with world.linked():
        before = await shown()
        world.files("n1")
        assert await shown() == before
        world.one.links.renew()
        assert await shown() != before
        await world.still_linked()


async def test_an_authority_is_replaced_by_another_without_a_moment_of_distrust(
    world: World,
) -> None:
    old, new = world.authority, authority()
    both = pem(old) + pem(new)
    async with world.linked():
        for by, trusts in ((old, both), (new, both)):
            for name, end in (("n1", world.one), ("n2", world.two)):
                equip(world.directory / name, by, name, trusts=trusts)
                end.links.renew()
                await world.still_linked()
        for name, end in (("n1", world.one), ("n2", world.two)):
            equip(world.directory / name, new, name)
            end.links.renew()
        # Who was let in by the old authority is let in anew, or not at all.
        await until(lambda: len(world.one.ups) > 1 and len(world.two.ups) > 1)
        world.one.links.send([("n2", Newer(8))])
        await until(lambda: ("n1", Newer(8)) in world.two.received)
        refused = world.one.links.counters.unproven
        stranger = world.context(equip(world.directory / "n3", old, "n2"))
        assert await said_to(world.ports[1], stranger, hello("n2", 2)) == b""
        assert world.one.links.counters.unproven == refused + 1


async def test_unusable_files_are_reported_once_and_the_old_ones_stay_in_use(
    world: World,
) -> None:
    async with world.linked():
        (world.directory / "n1" / "tls.crt").write_text("half a certificate")
        with structlog.testing.capture_logs() as logs:
            world.one.links.renew()
            world.one.links.renew()
        assert [line["event"] for line in logs] == ["certificates.refused"]
        await world.still_linked()


async def test_a_certificate_that_ends_soon_is_reported(tmp_path: Path) -> None:
    files = equip(tmp_path / "n1", authority(), "n1", lasts=timedelta(days=3))
    one = End(1, {1: free_port()}, credentials=Credentials(files, certified_name("n1", CLUSTER)))
    with structlog.testing.capture_logs() as logs:
        one.links.renew()
    assert [line["event"] for line in logs] == ["certificate.expiring"]
