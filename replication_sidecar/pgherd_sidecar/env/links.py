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
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from pgherd_sidecar.core.log import Message
from pgherd_sidecar.core.log.codec import encode
from pgherd_sidecar.env.connections import Bounds, Connection, Incoming, Outgoing, Peer
from pgherd_sidecar.env.frames import Hello, to_frame
from pgherd_sidecar.env.tls import Credentials, TlsError, certified_name

_log = structlog.get_logger()

_CONNECT_S = 5.0
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 1.0
_STEADY_S = 1.0
"""A link that has held so long is not one that comes and goes: dial again at once."""
_RENEW_S = 5.0
"""How often the files of the certificates are looked at."""
_EXPIRES_SOON_S = 7 * 24 * 3600.0
_STRANGERS_MAX = 64
_COMPLAINTS_MAX = 64
_COMPLAIN_AGAIN_S = 600.0


@dataclass(slots=True)
class Counters:
    """What happened since the start.

    Attributes:
        unproven: connections whose other end did not prove to be a member: no TLS, not the right
            certificate, or not in time.
        refused: connections of other clusters, versions, or unknown members.
        crowded: strangers' connections closed because others came.
        offended: connections closed because of what the peer sent.
        overflowed: links dropped because the peer did not read.
        dialled: links made.
    """

    unproven: int = 0
    refused: int = 0
    crowded: int = 0
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
        credentials: what members prove with who they are; None for plain TCP.
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
        credentials: Credentials | None = None,
    ) -> None:
        self.me = me
        self.peers = {peer.name: peer for peer in peers}
        self.bounds = bounds
        self.counters = Counters()
        self.receive = receive
        self.on_up = on_up
        self.up: dict[str, Outgoing] = {}
        self.connections: set[Connection] = set()
        self.credentials = credentials
        self._address = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._nudges = {name: asyncio.Event() for name in self.peers}
        self._incoming: dict[str, Incoming] = {}
        self._strangers: dict[Connection, None] = {}
        self._complaints: dict[tuple[str, ...], float] = {}
        self._stopped = False

    async def start(self) -> None:
        """Listen, and dial every peer from now on.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._answer, *self._address)
        work = [self._keep_dialling(peer) for peer in self.peers.values()]
        if self.credentials is not None:
            work.append(self._keep_renewing())
        for coroutine in work:
            task = loop.create_task(coroutine)
            task.add_done_callback(_surface)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Close everything."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
            self.up[peer].send(pieces)

    @property
    def certificate_expires_s(self) -> float | None:
        """When this member's certificate ends, in seconds of Unix time."""
        return None if self.credentials is None else self.credentials.expires_s

    def renew(self) -> None:
        """Use certificates that were replaced, from the next connection on.

        When an authority is trusted no more all connections are made anew, since it may have
        signed for the other end of each.
        """
        credentials = self.credentials
        if credentials is None:
            return
        trusted = credentials.authorities
        try:
            renewed = credentials.refresh()
        except TlsError as error:
            self._complain("certificates_unusable", reason=str(error))
            return
        if credentials.expires_s - time.time() < _EXPIRES_SOON_S:
            self._complain("certificate_expires", at_s=str(credentials.expires_s))
        if renewed:
            _log.info("certificates_renewed", expires_s=credentials.expires_s)
            if not trusted <= credentials.authorities:
                for connection in list(self.connections):
                    connection.abort("an authority is trusted no more")

    async def _keep_renewing(self) -> None:
        while True:
            self.renew()
            await asyncio.sleep(_RENEW_S)

    # ---- dialling ----------------------------------------------------------------------------

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
                    lambda: self._dialled(peer), peer.host, peer.port
                )
        except OSError as error:  # TimeoutError is one
            return str(error) or "no answer", 0.0
        made_s = loop.time()
        return await asyncio.shield(connection.closed), loop.time() - made_s

    def _dialled(self, peer: Peer) -> Outgoing:
        credentials = self.credentials
        if credentials is None:
            return Outgoing(self, None, peer)
        name = certified_name(peer.name, self.me.cluster_id)
        return Outgoing(self, credentials.dialling(name), peer)

    def _answer(self) -> Incoming:
        credentials = self.credentials
        return Incoming(self, None if credentials is None else credentials.answering())

    # ---- called by the connections: see Hub --------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._stopped:  # it was accepted just before
            connection.abort()
        elif isinstance(connection, Incoming):
            self._strangers[connection] = None
            if len(self._strangers) > _STRANGERS_MAX:
                # The oldest has had most time. Who fills our door can't keep a member out
                # unless he is faster than its handshake.
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                self.counters.crowded += 1
                oldest.abort("too many strangers")

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._strangers.pop(connection, None)
        known: dict[str, Incoming] | dict[str, Outgoing]
        for known in (self._incoming, self.up):
            if known.get(connection.peer) is connection:
                del known[connection.peer]

    def certified(self, names: frozenset[str]) -> frozenset[str]:
        cluster_id = self.me.cluster_id
        return frozenset(peer for peer in self.peers if certified_name(peer, cluster_id) in names)

    def admit(self, connection: Incoming, hello: Hello) -> str:
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
        self._strangers.pop(connection, None)
        self._incoming[hello.name] = connection
        self._nudges[hello.name].set()
        return ""

    def linked(self, connection: Outgoing) -> None:
        self.up[connection.peer] = connection
        self.counters.dialled += 1
        _log.info("link_up", peer=connection.peer)
        self.on_up(connection.peer)

    def unproven(self, connection: Connection, reason: str) -> None:
        self.counters.unproven += 1
        if isinstance(connection, Incoming):  # of one that we dialled, link_down tells
            self._complain("link_unproven", address=connection.address, reason=reason)

    def refused(self, hello: Hello, objection: str) -> None:
        self.counters.refused += 1
        self._complain("link_refused", peer=hello.name, reason=objection)

    def offended(self, peer: str, reason: str) -> None:
        self.counters.offended += 1
        if peer:
            _log.warning("link_offended", peer=peer, reason=reason)
        else:
            self._complain("link_offended", peer="stranger", reason=reason)

    def overflowed(self) -> None:
        self.counters.overflowed += 1

    def _complain(self, event: str, **fields: str) -> None:
        """Log what anybody can cause now and then only: he must not fill our disk."""
        now_s = asyncio.get_running_loop().time()
        complaint = (event, *fields.values())
        for known, logged_s in list(self._complaints.items()):
            if now_s - logged_s > _COMPLAIN_AGAIN_S:
                del self._complaints[known]
        if complaint not in self._complaints and len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints[complaint] = now_s
            _log.warning(event, **fields)


def _surface(task: asyncio.Task[None]) -> None:
    """Let a defect in a background task reach the event loop's exception handler."""
    if not task.cancelled():
        task.result()
