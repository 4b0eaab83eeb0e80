"""Links between the members: one TCP connection for each direction of each pair.

Every member dials every peer and sends only on the connection that it dialled. Two connections
where one would do, but no rule is needed for who keeps which when both dial at once, and each
side repairs what it sends on by itself. Who is dialled may change at any time; who dials us need
not be dialled by us: a member that is yet to join isn't.

A link may lose everything that was sent and not yet received, without notice: the log protocol
expects it. Hence the bound on what waits for a slow peer is simply to drop the link. What arrives
on one connection arrives in order, decoded, in a synchronous call.

Knows the log's messages, not what they mean. Nothing survives a restart.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import structlog

from pgherd_sidecar.core.consensus import Message
from pgherd_sidecar.core.consensus.model.codec import encode
from pgherd_sidecar.env.network.complaints import Complaints
from pgherd_sidecar.env.network.connections import (
    Bounds,
    Connection,
    IncomingConnection,
    OutgoingConnection,
    Peer,
)
from pgherd_sidecar.env.network.frames import Hello, to_frame
from pgherd_sidecar.env.network.tls import Credentials, TlsError

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
        peers: whom to dial.
        bounds: see ``Bounds``.
        objection: says why the member with this hello is no peer; empty if it is one.
        has_left: says whether it was one and is none any more; it is told so.
        known_disk: says on which disk a peer of this name is known to be; see ``Hello.yours``.
        met: called with a peer's name and disk before anything is received from it or sent to it.
        receive: called with each message and the name of its sender. ``RemoteProtocolError`` from
            it closes the connection; any other exception is a defect of this member.
        on_up: called with a peer's name when there is a new connection to send on.
        on_ended: called with a peer's name when its process seems to have ended: its machine is
            there, and says that nobody listens on its port, and its own connection is closed.
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
        objection: Callable[[Hello], str],
        has_left: Callable[[Hello], bool] = lambda _: False,
        known_disk: Callable[[str], str] = lambda _: "",
        met: Callable[[str, str], None],
        receive: Callable[[str, Message], None],
        on_up: Callable[[str], None],
        on_ended: Callable[[str], None] = lambda _: None,
        credentials: Credentials | None = None,
    ) -> None:
        self.me = me
        self.peers = {peer.name: peer for peer in peers}
        self.bounds = bounds
        self.counters = Counters()
        self._objection = objection
        self.has_left = has_left
        self._known_disk = known_disk
        self.met = met
        self.receive = receive
        self.on_up = on_up
        self._on_ended = on_ended
        #: why there was no link to a peer last though it answers, until there is one
        self.refusals: dict[str, str] = {}
        #: peers that say that this member has left, until there is a link
        self.left_by: set[str] = set()
        self.up: dict[str, OutgoingConnection] = {}
        self.connections: set[Connection] = set()
        self.credentials = credentials
        self._address = (host, port)
        self._server: asyncio.Server | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._nudges: dict[str, asyncio.Event] = {}
        self._blocked: frozenset[str] = frozenset()
        self._unsent: frozenset[str] = frozenset()
        self._incoming: dict[str, IncomingConnection] = {}
        self._strangers: dict[Connection, None] = {}
        self._complaints = Complaints()
        self._stopped = False

    async def start(self) -> None:
        """Listen, and dial every peer from now on.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._answer, *self._address)
        if self.credentials is not None:
            self._renewing = loop.create_task(self._keep_renewing())
            self._renewing.add_done_callback(_surface)
        for peer in self.peers.values():
            self._begin_dialling(peer)

    async def stop(self) -> None:
        """Close everything."""
        self._stopped = True
        tasks = [*self._dialling.values(), *([self._renewing] if self._renewing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in self.connections))

    def set_peers(self, peers: Iterable[Peer]) -> None:
        """Dial these from now on, and nobody else."""
        wanted = {peer.name: peer for peer in peers}
        former, self.peers = self.peers, wanted
        if self._server is None or self._stopped:
            return
        for name, peer in former.items():
            if wanted.get(name) != peer:
                self._end_dialling(name)
        for peer in wanted.values():
            if peer.name not in self._dialling:
                self._begin_dialling(peer)

    def hang_up(self, unwanted: Callable[[str, str], bool]) -> None:
        """Close the connections with peers that are not wanted, by their names and disks."""
        for connection in list(self.connections):
            if connection.peer and unwanted(connection.peer, connection.disk):
                connection.abort("no longer a member")

    def block(self, names: Iterable[str], unsent: Iterable[str] = ()) -> None:
        """Have no connection with these in either direction until called again: for drills.

        Args:
            names: of peers.
            unsent: peers that nothing is sent to, though what they send is taken.
        """
        self._blocked, self._unsent = frozenset(names), frozenset(unsent)
        for connection in list(self.connections):
            unwanted = connection.peer in self._blocked
            if unwanted or (
                isinstance(connection, OutgoingConnection) and connection.peer in self._unsent
            ):
                connection.abort("blocked by an administrator")
        for nudge in self._nudges.values():
            nudge.set()

    @property
    def linked(self) -> frozenset[str]:
        """Peers that are connected in both directions."""
        return frozenset(self.up.keys() & self._incoming.keys())

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
            self._complaints.warn("certificates.refused", reason=str(error))
            return
        if credentials.expires_s - time.time() < _EXPIRES_SOON_S:
            self._complaints.warn("certificate.expiring", at_s=str(credentials.expires_s))
        if renewed:
            _log.info("certificates.renewed", expires_s=credentials.expires_s)
            if not trusted <= credentials.authorities:
                for connection in list(self.connections):
                    connection.abort("an authority is trusted no more")

    async def _keep_renewing(self) -> None:
        while True:
            self.renew()
            await asyncio.sleep(_RENEW_S)

    # ---- dialling ----------------------------------------------------------------------------

    def _begin_dialling(self, peer: Peer) -> None:
        self._nudges[peer.name] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._keep_dialling(peer))
        task.add_done_callback(_surface)
        self._dialling[peer.name] = task

    def _end_dialling(self, name: str) -> None:
        self._dialling.pop(name).cancel()
        del self._nudges[name]
        self.refusals.pop(name, None)
        self.left_by.discard(name)
        if name in self.up:
            self.up[name].abort("no longer dialled")

    async def _keep_dialling(self, peer: Peer) -> None:
        backoff_s, problem, nudge = _BACKOFF_MIN_S, "", self._nudges[peer.name]
        while True:
            nudge.clear()
            if peer.name in self._blocked | self._unsent:
                await nudge.wait()
                continue
            reason, held_s = await self._dial(peer)
            if reason != problem:
                _log.warning("link.lost", peer=peer.name, reason=reason)
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
        connection = self._dialled(peer)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_connection(lambda: connection, peer.host, peer.port)
        # ValueError: no machine can have that name. What a joiner says of itself is in the log.
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            connection.abandon()
            if isinstance(error, ConnectionRefusedError) and peer.name not in self._incoming:
                self._on_ended(peer.name)
            return str(error) or "no answer", 0.0
        except asyncio.CancelledError:
            connection.abandon()
            raise
        made_s = loop.time()
        try:
            return await asyncio.shield(connection.closed), loop.time() - made_s
        except asyncio.CancelledError:
            connection.abort("no longer dialled")
            raise

    def _dialled(self, peer: Peer) -> OutgoingConnection:
        credentials = self.credentials
        if credentials is None:
            return OutgoingConnection(self, None, peer)
        return OutgoingConnection(
            self, credentials.dialling(credentials.certified(peer.name)), peer
        )

    def _answer(self) -> IncomingConnection:
        credentials = self.credentials
        return IncomingConnection(self, None if credentials is None else credentials.answering())

    # ---- called by the connections: see Hub --------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._stopped:  # it was accepted just before
            connection.abort()
        elif isinstance(connection, IncomingConnection):
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
        known: dict[str, IncomingConnection] | dict[str, OutgoingConnection]
        for known in (self._incoming, self.up):
            if known.get(connection.peer) is connection:
                del known[connection.peer]

    def certified(self, names: frozenset[str]) -> frozenset[str]:
        assert self.credentials is not None, "who else looks at names in certificates?"
        return self.credentials.members(names)

    def hello_to(self, peer: str) -> Hello:
        return msgspec.structs.replace(self.me, yours=self._known_disk(peer))

    def admit(self, connection: IncomingConnection, hello: Hello) -> str:
        objection = self.objection(hello)
        if objection:
            self.refused(hello, objection)
            return objection
        former, link = self._incoming.get(hello.name), self.up.get(hello.name)
        if former is not None:
            former.abort()
        if link is not None and link.disk != hello.disk:
            link.abort("another disk has come under its name")
        self._strangers.pop(connection, None)
        connection.disk = hello.disk
        self._incoming[hello.name] = connection
        self.met(hello.name, hello.disk)
        if hello.name in self._nudges:
            self._nudges[hello.name].set()
        return ""

    def objection(self, hello: Hello) -> str:
        if hello.name in self._blocked:
            return f"{hello.name} is blocked by an administrator"
        return self._objection(hello)

    def established(self, connection: OutgoingConnection) -> None:
        incoming = self._incoming.get(connection.peer)
        if incoming is not None and incoming.disk != connection.disk:
            incoming.abort("another disk has come under its name")
        self.refusals.pop(connection.peer, None)
        self.left_by.discard(connection.peer)
        self.up[connection.peer] = connection
        self.met(connection.peer, connection.disk)
        self.counters.dialled += 1
        _log.info("link.opened", peer=connection.peer)
        self.on_up(connection.peer)

    def unproven(self, connection: Connection, reason: str) -> None:
        self.counters.unproven += 1
        if isinstance(connection, IncomingConnection):  # of one that we dialled, link_down tells
            self._complaints.warn("link.unproven", address=connection.address, reason=reason)

    def refused(self, hello: Hello, objection: str) -> None:
        self.counters.refused += 1
        self._complaints.warn("link.refused", peer=hello.name, reason=objection)

    def offended(self, peer: str, reason: str) -> None:
        self.counters.offended += 1
        if peer:
            _log.warning("link.violated", peer=peer, reason=reason)
        else:
            self._complaints.warn("link.violated", peer="stranger", reason=reason)

    def turned_away(self, peer: str, reason: str, *, left: bool = False) -> None:
        self.refusals[peer] = reason
        self.left_by.discard(peer)
        if left:
            self.left_by.add(peer)

    def overflowed(self) -> None:
        self.counters.overflowed += 1


def _surface(task: asyncio.Task[None]) -> None:
    """Let a defect in a background task reach the event loop's exception handler."""
    if not task.cancelled():
        task.result()
