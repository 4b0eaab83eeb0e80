"""The replica: keeps the PostgreSQL server beside it equal to the ordered log, session by session.

A *session* lasts as long as the server does. When the server goes away the session ends and
another one begins under a new incarnation; the log, and with it this member's part in the quorum,
goes on all the while. A node that finds itself different from the others stops for good.

Called by ``process``. Survives a restart: the checkpoint in ``data_dir``, ``pgherd.applied`` in
the server, the log, the incarnation.
"""

import asyncio
import contextlib
from collections.abc import Mapping

import psycopg
import structlog

from pgherd_sidecar.agent import startup
from pgherd_sidecar.agent.admin import StatusValue, Unavailable
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.errors import DivergedError
from pgherd_sidecar.agent.identity import Identity
from pgherd_sidecar.agent.loghost import LogHost
from pgherd_sidecar.agent.markers import Markers
from pgherd_sidecar.agent.opening import session
from pgherd_sidecar.agent.session import ReplicaSession
from pgherd_sidecar.pg.checksum import TableChecksum
from pgherd_sidecar.pg.pipeline import ServerGoneError

log = structlog.get_logger()

_RETRY_S = 0.2


class Replica:
    """The replica of one node; also answers the admin API."""

    def __init__(self, config: NodeConfig, host: LogHost, identity: Identity) -> None:
        self._config = config
        self._host = host
        self._identity = identity
        self._markers = Markers(config)
        self._session: ReplicaSession | None = None
        self._reason = "starting"
        self._diverged = False
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until ``stop``."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        while not self._stopping.is_set():
            session_task = asyncio.ensure_future(self._one_session())
            await asyncio.wait({session_task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            session_task.cancel()
            await asyncio.wait({session_task})
            self._session = None
            if session_task.cancelled():
                break
            self._judge(session_task.exception())
            if self._diverged:
                await self._fence()
                await self._stopping.wait()
            await asyncio.wait({stopped}, timeout=_RETRY_S)
        await self._markers.close()

    async def stop(self) -> None:
        """See Service."""
        self._stopping.set()

    async def _one_session(self) -> None:
        async with session(self._config, self._host, self._identity, self._markers) as opened:
            self._session, keep_house = opened
            await self._session.run(keep_house)

    async def _fence(self) -> None:
        """Have writes on a node that stopped for good fail with the reason (C25)."""
        with contextlib.suppress(psycopg.Error):
            async with await startup.connect(self._config, "pgherd") as connection:
                await startup.set_writable(connection, False, f"it has diverged: {self._reason}")

    def _judge(self, error: BaseException | None) -> None:
        """Decide what an ended session means."""
        causes = list(_leaves(error)) if error is not None else []
        for cause in causes:
            if isinstance(cause, DivergedError):
                self._diverged = True
                self._reason = str(cause)
                log.error("node.diverged", reason=self._reason)
                return
        for cause in causes:
            if not isinstance(cause, (psycopg.OperationalError, ServerGoneError)):
                raise cause
        self._reason = f"PostgreSQL: {causes[0]}".strip() if causes else "session ended"
        log.warning("session.ended", reason=self._reason)

    # ---- admin API ---------------------------------------------------------------------------

    async def status(self) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        current = self._session
        refusal = current.refusal() if current is not None else self._reason
        return {
            "name": self._config.name,
            "cluster_id": str(self._config.cluster_id),
            "state": self._state(refusal),
            "reason": refusal,
            "incarnation": self._identity.incarnation,
            **self._host.status(),
            "log_position": self._host.commit_position,
            **(current.status() if current is not None else {}),
        }

    def _state(self, refusal: str | None) -> str:
        if self._diverged:
            return "diverged"
        if self._session is None:
            return "starting"
        if refusal is None:
            return "primary"
        return "secondary" if self._session.ready else "recovering"

    async def shutdown(self) -> None:
        """See AdminBackend."""
        self._stopping.set()

    async def order_marker(self) -> tuple[str, int]:
        """See AdminBackend."""
        if self._session is None or not self._session.ready:
            raise Unavailable(f"node {self._config.name} is not ready: {self._reason}")
        return await self._session.order_marker()

    async def marker_ready(self, marker: str, timeout_s: float) -> int:
        """See AdminBackend."""
        return await self._markers.ready(marker, timeout_s)

    async def marker_tables(self, marker: str) -> Mapping[str, TableChecksum]:
        """See AdminBackend."""
        return await self._markers.tables(marker)

    async def marker_buckets(self, marker: str, table: str) -> Mapping[int, str]:
        """See AdminBackend."""
        return await self._markers.buckets(marker, table)

    async def marker_keys(self, marker: str, table: str, bucket: int) -> Mapping[str, str]:
        """See AdminBackend."""
        return await self._markers.keys(marker, table, bucket)

    async def drop_marker(self, marker: str) -> None:
        """See AdminBackend."""
        await self._markers.drop(marker)


def _leaves(error: BaseException) -> "list[BaseException]":
    """The single errors in a group, in order."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
