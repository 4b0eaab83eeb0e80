"""The admin API from elsewhere: the routes of ``admin`` over TLS 1.3, for two callers.

Both sides show certificates. ``operator.CLUSTER_ID.pgherd`` may ask for anything, the herd's jobs,
``jobs.CLUSTER_ID.pgherd``, for the status, markers and changes. The members' own certificates are
of the same authority and are refused, so a member that was taken over cannot remove the others.

Started by ``process``; keeps nothing. Certificates that are replaced on disk are used from the next
connection on. The cost of somebody without a certificate is bounded, as at the port of the log.
"""

import asyncio
import contextlib
import socket
import ssl

import structlog
from aiohttp import web

from pgherd_sidecar.agent.admin.api import Handler, runner
from pgherd_sidecar.agent.admin.port import AdminBackend
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.defaults import JOBS, OPERATOR
from pgherd_sidecar.env.network.tls import Credentials, TlsError

_log = structlog.get_logger()
_STRANGERS_MAX = 64
"""Connections in the middle of their handshake. The oldest is closed for one more."""
_HANDSHAKE_S = 5.0
_PAUSE_S = 0.2
"""After a connection that could not be accepted: this process has too many files open, say."""


class RemoteAdmin:
    """The admin port of one sidecar.

    Args:
        config: with ``tls`` and ``admin_port``.
        backend: answers.

    Raises:
        TlsError: this member's certificate can't be used.
    """

    def __init__(self, config: NodeConfig, backend: AdminBackend) -> None:
        assert config.tls is not None and config.admin_port is not None
        self._address = config.listens_on, config.admin_port
        self._operator = config.certified(OPERATOR)
        self._jobs = config.certified(JOBS)
        self._credentials = Credentials(config.tls.directory, config.certified(config.name))
        self._runner = runner(backend, self._refuse_others)
        self._listening: list[asyncio.Task[None]] = []
        self._strangers: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is in use.
        """
        await self._runner.setup()
        context = self._credentials.server
        context.sni_callback = self._use_newest
        loop = asyncio.get_running_loop()
        places = await loop.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
        for family, _, _, _, place in places:
            listener = socket.create_server(place, family=family)
            self._listening.append(asyncio.create_task(self._accept(listener, context)))

    async def stop(self) -> None:
        """Answer what was asked, unless that takes long, then close the port."""
        tasks = [*self._listening, *self._strangers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runner.cleanup()

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            listener.setblocking(False)
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:
                    _log.warning("admin.not_accepted", reason=str(error))
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if len(self._strangers) >= _STRANGERS_MAX:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    oldest.cancel()
                task = asyncio.create_task(self._meet(connection, context))
                self._strangers[task] = None
                task.add_done_callback(lambda done: self._strangers.pop(done, None))
                await asyncio.sleep(0)  # a crowd that is there already does not stop the loop

    async def _meet(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        """Shake hands; what comes then is the web server's."""
        server = self._runner.server
        assert server is not None
        with contextlib.suppress(OSError):  # no TLS, not the right certificate, or not in time
            await asyncio.get_running_loop().connect_accepted_socket(
                server, connection, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S
            )

    def _use_newest(
        self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext
    ) -> int | None:
        """Begin a handshake with the certificates as they are on disk now.

        OpenSSL takes the own certificate and the trusted authorities from the context set here.
        """
        try:
            if self._credentials.refresh():
                _log.info("certificates.renewed", expires_s=self._credentials.expires_s)
        except TlsError as error:
            _log.warning("certificates.refused", reason=str(error))
        connection.context = self._credentials.server
        return None

    @web.middleware
    async def _refuse_others(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        names = (certificate or {}).get("subjectAltName", ())
        if ("DNS", self._operator) not in names and not (
            ("DNS", self._jobs) in names and _is_of_jobs(request.path)
        ):
            raise web.HTTPForbidden(text=f"only {self._operator} may ask")
        return await handler(request)


def _is_of_jobs(path: str) -> bool:
    """Say whether jobs need this: how the member is, its snapshots at markers, and its log."""
    return path == "/status" or path.split("/")[1] in ("marker", "changes")
