"""The admin API from elsewhere: the routes of ``admin`` over TLS 1.3, for two callers.

Both sides show certificates. ``operator.CLUSTER_ID.pgherd`` may ask for anything, the herd's jobs,
``jobs.CLUSTER_ID.pgherd``, for the status, markers and changes. The members' own certificates are
of the same authority and are refused, so a member that was taken over cannot remove the others.

Started by ``process``; keeps nothing. Certificates that are replaced on disk are used from the next
connection on.
"""

import ssl

import structlog
from aiohttp import web

from pgherd_sidecar.agent.admin.api import Handler, runner
from pgherd_sidecar.agent.admin.port import AdminBackend
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.defaults import JOBS, OPERATOR
from pgherd_sidecar.env.network.tls import Credentials, TlsError

_log = structlog.get_logger()


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

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is in use.
        """
        await self._runner.setup()
        context = self._credentials.server
        context.sni_callback = self._use_newest
        await web.TCPSite(self._runner, *self._address, ssl_context=context).start()

    async def stop(self) -> None:
        """Answer what was asked, unless that takes long, then close the port."""
        await self._runner.cleanup()

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
