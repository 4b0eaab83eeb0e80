"""Links between the members: one TCP connection for each direction of each pair.

Every member dials every peer and sends only on the connection that it dialled. Two connections
where one would do, but no rule is needed for who keeps which when both dial at once, and each
side repairs what it sends on by itself.

A link may lose everything that was sent and not yet received, without notice: the log protocol
expects it. Hence the bound on what waits for a slow peer is simply to drop the link. What arrives
on one connection arrives in order, decoded, in a synchronous call.

Knows the log's messages, not what they mean. Called by ``LogHost``; nothing survives a restart.
"""

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import structlog

from pgherd_sidecar.core.log import Message, RemoteProtocolError
from pgherd_sidecar.core.log.codec import decode, encode
from pgherd_sidecar.env.frames import HELLO_BYTES, FrameError, FrameReader, Hello, to_frame

_log = structlog.get_logger()

_HELLO_S = 5.0
_CONNECT_S = 5.0
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 1.0
_STEADY_S = 1.0
"""A link that has held so long is not one that comes and goes: dial again at once."""
_UNREACHABLE_MS = 10_000
"""Sent bytes that the peer's machine has not acknowledged for so long end the connection."""
_STRANGERS_MAX = 64


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as it is dialled and recognised."""

    name: str
    number: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Memory for one peer, in bytes.

    Attributes:
        frame: largest message.
        buffer: what may wait to be sent before the next message drops the link.
    """

    frame: int
    buffer: int


@dataclass(slots=True)
class Counters:
    """What happened since the start.

    Attributes:
        refused: connections of other clusters, versions, or unknown members.
        offended: connections closed because of what the peer sent.
        overflowed: links dropped because the peer did not read.
        dialled: links made.
    """

    refused: int = 0
    offended: int = 0
    overflowed: int = 0
    dialled: int = 0


class Links:
    """All connections of one member.

    Args:
        me: what this member says of itself.
        host: address to listen on.
        port: port to listen on.
        peers: the other members.
        bounds: see ``Bounds``.
        receive: called with each message and the name of its sender. ``RemoteProtocolError`` from
            it closes the connection; any other exception is a defect of this member.
        on_up: called with a peer's name when there is a new connection to send on.
        server_tls: what incoming connections have to satisfy; None for plain TCP.
        client_tls: likewise for those dialled.
    """

    def __init__(  # noqa: PLR0913 - ports and settings, all by name
        self,
        *,
        me: Hello,
        host: str,
        port: int,
        peers: Iterable[Peer],
        bounds: Bounds,
        receive: Callable[[str, Message], None],
        on_up: Callable[[str], None],
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.me = me
        self.peers = {peer.name: peer for peer in peers}
        self.bounds = bounds
        self.counters = Counters()
        self.receive = receive
        self.on_up = on_up
        self.up: dict[str, _Outgoing] = {}
        self.connections: set[_Connection] = set()
        self._address = (host, port)
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._server: asyncio.Server | None = None
        self._dialling: list[asyncio.Task[None]] = []
        self._nudges = {name: asyncio.Event() for name in self.peers}
        self._incoming: dict[str, _Incoming] = {}
        self._complaints: set[str] = set()

    async def start(self) -> None:
        """Listen, and dial every peer from now on.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Incoming(self), *self._address, ssl=self._server_tls
        )
        for peer in self.peers.values():
            task = loop.create_task(self._keep_dialling(peer), name=f"dial {peer.name}")
            task.add_done_callback(_surface)
            self._dialling.append(task)

    async def stop(self) -> None:
        """Close everything."""
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in self.connections))

    def send(self, batch: Iterable[tuple[str, Message]]) -> None:
        """Send messages, one write a peer; those to peers without a link are lost."""
        writes: dict[str, list[bytes]] = {}
        for peer, message in batch:
            if peer in self.up:
                writes.setdefault(peer, []).extend(to_frame(encode(message)))
        for peer, pieces in writes.items():
            self.up[peer].write(pieces)

    async def _keep_dialling(self, peer: Peer) -> None:
        backoff_s, problem, nudge = _BACKOFF_MIN_S, "", self._nudges[peer.name]
        while True:
            nudge.clear()
            reason, held_s = await self._dial(peer)
            if reason != problem:
                _log.warning("link_down", peer=peer.name, reason=reason)
            problem = reason
            if held_s >= _STEADY_S:
                backoff_s, problem = _BACKOFF_MIN_S, ""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s * random.uniform(0.5, 1.0)):
                    await nudge.wait()
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _dial(self, peer: Peer) -> tuple[str, float]:
        """Make a connection and wait for its end; return the reason, and how long it held."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: _Outgoing(self, peer), peer.host, peer.port, ssl=self._client_tls
                )
        except OSError as error:  # TimeoutError is one
            return str(error) or "no answer", 0.0
        made_s = loop.time()
        return await asyncio.shield(connection.closed), loop.time() - made_s

    # ---- called by the connections ---------------------------------------------------------

    def admit(self, connection: "_Incoming", hello: Hello) -> str:
        """Take an incoming connection; return why not, or nothing."""
        objection = self.me.objection_to(hello)
        peer = self.peers.get(hello.name)
        if not objection and (peer is None or peer.number != hello.number):
            objection = f"{hello.name} with number {hello.number} is not a member"
        if objection:
            self.refused(hello, objection)
            return objection
        former = self._incoming.get(hello.name)
        if former is not None:
            former.abort()
        self._incoming[hello.name] = connection
        self._nudges[hello.name].set()
        return ""

    def refused(self, hello: Hello, objection: str) -> None:
        """Count and report a member that is no peer."""
        self.counters.refused += 1
        self._complain("link_refused", hello.name, objection)

    def offended(self, peer: str, reason: str) -> None:
        """Count and report a connection closed because of what it sent."""
        self.counters.offended += 1
        if peer:
            _log.warning("link_offended", peer=peer, reason=reason)
        else:
            self._complain("link_offended", "stranger", reason)

    def _complain(self, event: str, peer: str, reason: str) -> None:
        """Log what anybody can cause once only: whoever dials in must not fill our disk."""
        complaint = f"{event} {peer} {reason}"
        if complaint not in self._complaints and len(self._complaints) < _STRANGERS_MAX:
            self._complaints.add(complaint)
            _log.warning(event, peer=peer, reason=reason)

    def too_many_strangers(self) -> bool:
        """Tell whether too many connections have not said who they are."""
        return len(self.connections) - len(self._incoming) - len(self.up) > _STRANGERS_MAX

    def closed(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        known: dict[str, _Incoming] | dict[str, _Outgoing]
        for known in (self._incoming, self.up):
            if known.get(connection.peer) is connection:
                del known[connection.peer]


def _surface(task: asyncio.Task[None]) -> None:
    """Let a defect in a background task reach the event loop's exception handler."""
    if not task.cancelled():
        task.result()


class _Connection(asyncio.Protocol):
    """What both directions have in common: frames in, an end with a reason."""

    def __init__(self, links: Links) -> None:
        self.peer = ""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._links = links
        self._reader = FrameReader(HELLO_BYTES)
        self._reason = "closed by the peer"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._links.connections.add(self)
        self._hello_timer = asyncio.get_running_loop().call_later(
            _HELLO_S, self.abort, "no hello in time"
        )
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREACHABLE_MS)

    def abort(self, reason: str = "closed") -> None:
        """Close at once."""
        self._reason = reason
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hello_timer.cancel()
        self._links.closed(self)
        self.closed.set_result(str(exc) if exc else self._reason)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except (FrameError, RemoteProtocolError) as error:
            self._links.offended(self.peer, str(error))
            self.abort(str(error))

    def _take(self, frame: bytes) -> None:
        raise NotImplementedError


class _Incoming(_Connection):
    """A connection that a peer dialled: its hello, then messages."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._links.too_many_strangers():
            self.abort("too many strangers")

    def _take(self, frame: bytes) -> None:
        if self.peer:
            self._links.receive(self.peer, decode(frame))
        elif not self._transport.is_closing():
            self._welcome(Hello.decode(frame))

    def _welcome(self, hello: Hello) -> None:
        self._hello_timer.cancel()
        objection = self._links.admit(self, hello)
        me = self._links.me
        answer = Hello(me.version, me.cluster_id, me.name, me.number, refused=objection)
        self._transport.write(answer.encode())
        if objection:
            self._transport.close()
            return
        self.peer = hello.name
        self._reader.max_bytes = self._links.bounds.frame


class _Outgoing(_Connection):
    """A connection that this member dialled: hellos, then only sending."""

    def __init__(self, links: Links, peer: Peer) -> None:
        super().__init__(links)
        self._expected = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Writes are coalesced before they come here: hand each to the kernel at once, so that it
        # travels while this member writes to its disk.
        self._transport.set_write_buffer_limits(high=0)
        self._transport.write(self._links.me.encode())

    def write(self, pieces: list[bytes]) -> None:
        """Send pieces of frames, or drop the link if the peer has not read the ones before."""
        if self._transport.is_closing():
            return
        waiting = self._transport.get_write_buffer_size()
        if waiting > self._links.bounds.buffer:
            self._links.counters.overflowed += 1
            self.abort(f"the peer does not read: {waiting} bytes wait")
            return
        self._transport.writelines(pieces)

    def _take(self, frame: bytes) -> None:
        if self.peer:
            raise FrameError("sends on a connection that it did not dial")
        hello, links, expected = Hello.decode(frame), self._links, self._expected
        objection = links.me.objection_to(hello)
        if not objection and (hello.name, hello.number) != (expected.name, expected.number):
            objection = f"{hello.name} answers where {expected.name} is expected"
        if objection:
            links.refused(hello, objection)
            self.abort(objection)
        elif hello.refused:
            self.abort(f"refused by the peer: {hello.refused}")
        else:
            self._hello_timer.cancel()
            self.peer = hello.name
            links.up[self.peer] = self
            links.counters.dialled += 1
            _log.info("link_up", peer=self.peer)
            links.on_up(self.peer)
