"""Both ends of links between members, as the tests of the links use them."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from cryptography.hazmat.primitives import serialization
from patience import in_time
from pgherd_sidecar.core.consensus import Membership, Message, objection
from pgherd_sidecar.env.network.connections import Bounds, Peer
from pgherd_sidecar.env.network.frames import PROTOCOL_VERSION, Hello
from pgherd_sidecar.env.network.links import Links
from pgherd_sidecar.env.network.tls import Credentials, certified_name
from pgherd_sidecar.pki.authority import Authority

CLUSTER = str(uuid4())
YEAR = timedelta(days=365)


def authority() -> Authority:
    return Authority.new("test", datetime.now(UTC) - timedelta(days=2))


def equip(directory: Path, by: Authority, member: str, *, trusts: str = "", **terms: Any) -> Path:
    """Write a certificate for a member and its key into a directory, and whom it trusts.

    ``terms`` are those of ``Authority.issue``, and ``cluster``.
    """
    directory.mkdir(exist_ok=True)
    name = certified_name(member, terms.pop("cluster", CLUSTER))
    begins = terms.pop("begins", datetime.now(UTC) - timedelta(days=1))
    certificate, key = by.issue(name, begins, **{"lasts": YEAR} | terms)
    replace(directory / "tls.key", key.decode())
    replace(directory / "tls.crt", certificate.decode())
    replace(directory / "ca.crt", trusts or pem(by))
    return directory


def replace(path: Path, content: str) -> None:
    """Put another file in the place of one: the new one has another inode."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(path)


def pem(of: Authority) -> str:
    return of.certificate.public_bytes(serialization.Encoding.PEM).decode()


def credentials_of(directory: Path, member: str) -> Credentials:
    return Credentials(directory, certified_name(member, CLUSTER))


class End:
    """One member's links, and everything that reached it."""

    def __init__(
        self,
        number: int,
        ports: dict[int, int],
        cluster: str = CLUSTER,
        credentials: Credentials | None = None,
    ) -> None:
        self.received: list[tuple[str, Message]] = []
        self.ups: list[str] = []
        self.ended: list[str] = []
        self.objection: Exception | None = None
        self.met: list[tuple[str, str]] = []
        self.number = number
        self.ports = ports
        self.links = Links(
            me=Hello(PROTOCOL_VERSION, cluster, f"n{number}", number, f"disk {number}"),
            host="127.0.0.1",
            port=ports[number],
            peers=[
                Peer(f"n{other}", other, "127.0.0.1", port)
                for other, port in ports.items()
                if other != number
            ],
            bounds=Bounds(frame=1 << 20, buffer=1 << 16),
            objection=self._objection_to,
            met=lambda peer, disk: self.met.append((peer, disk)),
            receive=self._receive,
            on_up=self.ups.append,
            on_ended=self.ended.append,
            credentials=credentials,
        )

    def _objection_to(self, hello: Hello) -> str:
        if hello.name == f"n{hello.number}" and hello.number in self.ports:
            return objection(self.links.me.identity, hello.identity, Membership())
        return f"{hello.name} with number {hello.number} is not a member"

    def _receive(self, peer: str, message: Message) -> None:
        self.received.append((peer, message))
        if self.objection:
            raise self.objection


@asynccontextmanager
async def running(*ends: End) -> AsyncIterator[None]:
    try:
        for end in ends:
            await end.links.start()
        yield
    finally:
        for end in ends:
            await end.links.stop()
        for _ in range(10):  # asyncio tells of a connection some steps after it has accepted it
            await asyncio.sleep(0)


@asynccontextmanager
async def connection(
    port: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what still arrives until the other side closes."""
    async with in_time():
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
