"""The two kinds of connection between members: one that a peer dialled, one that we dialled.

Each is a short sequence: TLS, if it is used; a hello in each direction; then messages, in the
direction of the dialling only. Whatever does not belong there ends the connection and nothing
else. Until the other end is known to be a member it can make us hold little, and not for long.

Called by the event loop and by ``Links``, which decides who is let in. Nothing survives.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from pgherd_sidecar.core.consensus import Message, RemoteProtocolError
from pgherd_sidecar.core.consensus.model.codec import decode
from pgherd_sidecar.env.network.frames import HELLO_BYTES, FrameError, FrameReader, Hello
from pgherd_sidecar.env.network.tls import TlsChannel, TlsError

_GREETING_S = 5.0
"""Time for everything up to the hello."""
_UNREACHABLE_MS = 10_000
"""Sent bytes that the peer's machine has not acknowledged for so long end the connection."""


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


class Hub(Protocol):
    """What a connection asks of the member that it belongs to: ``Links``."""

    bounds: Bounds

    def opened(self, connection: "Connection") -> None:
        """A connection was made; nobody knows yet with whom."""

    def closed(self, connection: "Connection") -> None:
        """It has ended."""

    def certified(self, names: frozenset[str]) -> frozenset[str]:
        """Return the members for which a certificate with these names stands."""

    def hello_to(self, peer: str) -> Hello:
        """Return what this member says of itself, and of the one that it speaks to."""

    def objection(self, hello: Hello) -> str:
        """Say why the other end is no peer; empty if it is one."""

    def admit(self, connection: "IncomingConnection", hello: Hello) -> str:
        """Take an incoming connection; return why not, or nothing."""

    def established(self, connection: "OutgoingConnection") -> None:
        """A connection to send on is ready."""

    def receive(self, peer: str, message: Message) -> None:
        """A message arrived."""

    def unproven(self, connection: "Connection", reason: str) -> None:
        """The other end did not prove to be a member."""

    def refused(self, hello: Hello, objection: str) -> None:
        """The other end is no peer, by its own words."""

    def has_left(self, hello: Hello) -> bool:
        """Tell whether the other end was a member and is none any more."""

    def turned_away(self, peer: str, reason: str, *, left: bool = False) -> None:
        """A peer that we dialled is none to us, or we are none to it: because we have left?"""

    def offended(self, peer: str, reason: str) -> None:
        """The other end sent what no member sends."""

    def overflowed(self) -> None:
        """The other end does not read."""


class Connection(asyncio.Protocol, ABC):
    """What both directions have in common: frames in, an end with a reason.

    Attributes:
        peer: the member at the other end, empty until it is known;
        disk: and the disk its log is on.
        address: where the other end is, for people.
        closed: done, with the reason, when the connection has ended.
    """

    def __init__(self, hub: Hub, channel: TlsChannel | None) -> None:
        self.peer = ""
        self.disk = ""
        self.address = ""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._hub = hub
        self._channel = channel
        self._reader = FrameReader(HELLO_BYTES)
        self._reason = "closed by the peer"
        self._made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made = True
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self.address = str(transport.get_extra_info("peername", ("unknown",))[0])
        self._timer = asyncio.get_running_loop().call_later(_GREETING_S, self._late)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREACHABLE_MS)
        self._hub.opened(self)
        if self._channel is None:
            self._proved()
        else:
            self._decrypt(self._channel, b"")

    def abort(self, reason: str = "closed") -> None:
        """Close at once."""
        self._reason = reason
        self._transport.abort()

    def _late(self) -> None:
        self._hub.unproven(self, "no hello in time")
        self.abort("no hello in time")

    def _end(self, reason: str) -> None:
        """Close, after what was just written, which tells a stranger why."""
        if self.peer:
            self.abort(reason)  # much may wait before it
        else:
            self._reason = reason
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._made or self.closed.done():  # it was abandoned
            return
        self._timer.cancel()
        self._hub.closed(self)
        self.closed.set_result(str(exc) if exc else self._reason)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        try:
            if self._channel is not None:
                data = self._decrypt(self._channel, data)
            for frame in self._reader.feed(data):
                self._take(frame)
        except TlsError as error:
            self._hub.unproven(self, str(error))
            self._end(str(error))
        except (FrameError, RemoteProtocolError) as error:
            self._hub.offended(self.peer, str(error))
            self.abort(str(error))

    def _decrypt(self, channel: TlsChannel, data: bytes) -> bytes:
        """Return what arrived in plain; the names in the certificate are checked first."""
        established = channel.established
        try:
            plain = channel.receive(data)
        finally:
            answer = channel.to_send()
            if answer:
                self._transport.write(answer)
        if channel.established and not established:
            self._check(self._hub.certified(channel.names), channel.names)
            self._proved()
        return plain

    def _send(self, pieces: list[bytes]) -> None:
        try:
            sealed = pieces if self._channel is None else self._channel.seal(pieces)
        except TlsError as error:
            self.abort(str(error))
        else:
            self._transport.writelines(sealed)

    @abstractmethod
    def _check(self, members: frozenset[str], names: frozenset[str]) -> None:
        """Check for whom the other end's certificate stands.

        Raises:
            TlsError: it is no peer, or not the one that was dialled.
        """

    def _proved(self) -> None:
        """The other end is a member, or there is no TLS that could tell."""

    @abstractmethod
    def _take(self, frame: bytes) -> None:
        """Take a frame that is whole."""


class IncomingConnection(Connection):
    """A connection that a peer dialled: its hello, then messages."""

    def __init__(self, hub: Hub, channel: TlsChannel | None) -> None:
        super().__init__(hub, channel)
        self._members: frozenset[str] = frozenset()

    def _check(self, members: frozenset[str], names: frozenset[str]) -> None:
        if not members:
            raise TlsError(f"the certificate of {', '.join(sorted(names))} is not a member's")
        self._members = members

    def _take(self, frame: bytes) -> None:
        if self.peer:
            self._hub.receive(self.peer, decode(frame))
        elif not self._transport.is_closing():
            self._welcome(Hello.decode(frame))

    def _welcome(self, hello: Hello) -> None:
        if self._channel is not None and hello.name not in self._members:
            raise TlsError(f"{hello.name} has the certificate of {', '.join(self._members)}")
        objection = self._hub.admit(self, hello)
        left = bool(objection) and self._hub.has_left(hello)
        me = self._hub.hello_to(hello.name)
        answer = msgspec.structs.replace(me, refused=objection, left=left)
        self._send([answer.encode()])
        if objection:
            self._end(objection)
            return
        self._timer.cancel()
        self.peer = hello.name
        self._reader.max_bytes = self._hub.bounds.frame


class OutgoingConnection(Connection):
    """A connection that this member dialled: hellos, then only sending."""

    def __init__(self, hub: Hub, channel: TlsChannel | None, peer: Peer) -> None:
        super().__init__(hub, channel)
        self.expected = peer
        self._abandoned = False

    def abandon(self) -> None:
        """Nobody waits for the connection any more, whether or not it has been made.

        uvloop tells a protocol of the beginning but not of the end where making the connection is
        cancelled at the moment of its success.
        """
        self._abandoned = True
        if self._made and not self.closed.done():
            self.abort("no longer dialled")
            self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._abandoned:
            cast(asyncio.Transport, transport).abort()
            return
        # Writes are coalesced before they come here: hand each to the kernel at once, so that it
        # travels while this member writes to its disk.
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def send(self, pieces: list[bytes]) -> None:
        """Send pieces of frames, or drop the link if the peer has not read the ones before."""
        if self._transport.is_closing():
            return
        waiting = self._transport.get_write_buffer_size()
        if waiting > self._hub.bounds.buffer:
            self._hub.overflowed()
            self.abort(f"the peer does not read: {waiting} bytes wait")
            return
        self._send(pieces)

    def _check(self, members: frozenset[str], names: frozenset[str]) -> None:
        if self.expected.name not in members:  # OpenSSL would take a wildcard, too
            raise TlsError(f"the certificate of {', '.join(sorted(names))} answers")

    def _proved(self) -> None:
        self._send([self._hub.hello_to(self.expected.name).encode()])

    def _take(self, frame: bytes) -> None:
        if self.peer:
            raise FrameError("sends on a connection that it did not dial")
        hello, hub, expected = Hello.decode(frame), self._hub, self.expected
        objection = hub.objection(hello)
        if not objection and (hello.name, hello.number) != (expected.name, expected.number):
            objection = f"{hello.name} answers where {expected.name} is expected"
        if objection:
            hub.refused(hello, objection)
            hub.turned_away(expected.name, objection)
            self.abort(objection)
        elif hello.refused:
            hub.turned_away(expected.name, hello.refused, left=hello.left)
            self.abort(f"refused by the peer: {hello.refused}")
        else:
            self._timer.cancel()
            self.peer, self.disk = hello.name, hello.disk
            hub.established(self)
