"""The replica: keeps the PostgreSQL server beside it equal to the ordered log.

``Sessions`` does that; here its parts are made, and what it answers to the admin API.
"""

import asyncio
import contextlib
from collections.abc import Mapping

import psycopg

from pgherd_sidecar.agent.admin.port import Refused, StatusValue, Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import DivergedError
from pgherd_sidecar.agent.checkpoint import verdicts
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.maintenance.requests import MaintenanceRequests
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.recovery.means import LocalMeans
from pgherd_sidecar.agent.recovery.partners import NoPartnerError
from pgherd_sidecar.agent.recovery.rebuild import Rebuild
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.agent.service.fitness import Fitness
from pgherd_sidecar.agent.service.sessions import Sessions
from pgherd_sidecar.agent.session import parts
from pgherd_sidecar.agent.session.backend import READS_ONLY
from pgherd_sidecar.agent.session.roles import Roles
from pgherd_sidecar.agent.session.session import ReplicaSession
from pgherd_sidecar.agent.snapshots.markers import Markers
from pgherd_sidecar.agent.standing import holding
from pgherd_sidecar.agent.standing.standing import Standing
from pgherd_sidecar.agent.standing.views import Views
from pgherd_sidecar.agent.stream.changes import Changes
from pgherd_sidecar.agent.stream.explain import Explainer
from pgherd_sidecar.agent.subscriptions.orders import SubscriptionOrders
from pgherd_sidecar.pg.comparison import indexes

_TABLE_HASHES = """
SELECT pgherd.name_hash('table ' || t.name), 'table ' || t.name
  FROM (SELECT format('%I.%I', n.nspname, c.relname) AS name
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_') t
UNION ALL SELECT pgherd.name_hash('schema'), 'the schema'
"""
_LOOK_S = 0.5


class Replica:
    """The service of a node with a database; see ``Service``."""

    def __init__(self, config: NodeConfig, host: LogHost, identity: StoredIdentity) -> None:
        self._config = config
        self._host = host
        self._identity = identity
        recovery, recorded = config.recovery, verdicts.load(config.data_dir)
        self.markers = Markers(config)
        self._standing = Standing(config, host)
        rebuild = None
        if recovery is not None:
            rebuild = Rebuild(config, recovery, LocalMeans(config, recovery, host))
            rebuild.make_room()  # the log is opened next, and may need it
        self._fitness = Fitness(config, identity, rebuild)
        self._sessions = Sessions(
            config,
            host,
            identity,
            recorded,
            markers=self.markers,
            standing=self._standing,
            fitness=self._fitness,
        )
        self.views = Views(config, host, lambda: self._sessions.databases)
        self.changes = Changes(host, recorded, self._ready)
        self.roles = Roles(config, self._ready)
        self.maintenance = MaintenanceRequests(
            config,
            self._in_service,
            lambda: (
                None if (known := self._sessions.databases) is None else parts.herd_of(host, known)
            ),
            lambda: parts.maintained(host),
            self._cancel,
        )
        self.subscriptions = SubscriptionOrders(config, self._in_service)
        self._explainer = Explainer(host, recorded, self._table_hashes)

    async def run(self) -> None:
        """See Service."""
        await self._sessions.run()

    async def stop(self) -> None:
        """See Service."""
        await self._sessions.stop()

    async def status(self) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        current, rebuild = self._sessions.current, self._fitness.rebuild
        if current is None and self._standing.databases is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._standing.follow_log()
        refusal = current.backend.out_of_service() if current else self._why_stopped()
        failed = self._fitness.attempts.reason(_settled(current))
        if failed is not None and self._fitness.halted is None:
            refusal = failed
        if rebuild is not None and rebuild.under_way:
            refusal = rebuild.reason
        return {
            "name": self._config.name,
            "cluster_id": str(self._config.cluster_id),
            "split_from": self._identity.split_from,
            "disk_id": self._host.disk,
            "state": self._state(current, refusal),
            "reason": self._host.reader.trouble or (None if refusal == READS_ONLY else refusal),
            "incarnation": self._identity.incarnation,
            **self._host.status(),
            **self.views.status(),
            **holding.status(self._sessions.databases, self._host.membership),
            "log_position": self._host.commit_position,
            **(current.status() if current is not None else {}),
            **(rebuild.status() if rebuild is not None else {}),
            **self._fitness.incidents.status(),
        }

    def _why_stopped(self) -> str:
        reason, held = self._fitness.reason, self._held()
        return reason if held is None else f"{reason}; {held}"

    def _held(self) -> str | None:
        """Why the herd takes no writes, None if it does or that is not known."""
        known = self._sessions.databases
        return None if known is None else holding.why_held(known, self._host.membership)

    def _state(self, current: ReplicaSession | None, refusal: str | None) -> str:
        fitness, rebuild = self._fitness, self._fitness.rebuild
        if self._host.peers.has_left:
            return "departed"
        waits = fitness.diverged if self._held() is not None else None  # for an administrator
        stopped = fitness.halted or waits
        if stopped is not None:
            return "diverged" if isinstance(stopped, DivergedError) else "stranded"
        if rebuild is not None and rebuild.under_way:
            return "rebuilding"
        if current is None and not self._host.splitter.sealed:
            return "starting" if self._host.whole.is_set() else "recovering"
        if refusal in (None, READS_ONLY):
            return "primary" if refusal is None else "reader"
        ready = current is None or current.ready
        drained = current is not None and refusal == current.backend.drained
        return "maintenance" if drained else "secondary" if ready else "recovering"

    async def shutdown(self) -> None:
        """See AdminBackend."""
        await self.stop()

    async def rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        """See AdminBackend."""
        rebuild = self._fitness.rebuild
        if rebuild is None or not rebuild.possible:
            raise Unavailable(f"node {self._config.name} is not configured for it")
        try:
            await rebuild.require_partner(partner)
        except NoPartnerError as error:
            raise Unavailable(str(error)) from error
        async with self._sessions.ended():  # what ends of an earlier rebuild belongs to that one
            self._fitness.request_rebuild(partner, rate_bytes_s)

    async def skip(self, gid: int, *, act: bool) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        current = self._sessions.current
        if current is None and not await self._standing.follow_log():
            raise Unavailable(f"node {self._config.name} does not know what the log says now")
        known, names = self._sessions.databases, holding.names_of(self._host.membership)
        assert known is not None
        done, stopped = gid in known.skipped, known.stopped_at(gid)
        if not (done or stopped):
            raise Refused(holding.nothing_to_skip(gid, known, names))
        plan: dict[str, StatusValue] = {
            "gid": gid,
            "stopped": [names.get(number, str(number)) for number in stopped],
            "rebuilt": [name for number, name in names.items() if number not in stopped],
        }
        if act and not done:
            await self._standing.order_skip(gid, None if current is None else known)
        return plan

    async def explain(self, gid: int, *, rows: bool) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        told: Mapping[str, StatusValue] = await self._explainer.explain(gid, rows=rows)
        if self._sessions.databases is not None and gid in self._sessions.databases.skipped:
            told = {**told, "verdict": "skipped"}
        met = self._fitness.incidents.of(gid)
        return {**told, "incidents": met} if met else told

    async def _table_hashes(self) -> Mapping[int, str]:
        """See ``explain.TableHashes``."""
        try:
            async with await startup.connect(self._config, "pgherd") as connection:
                rows = await connection.execute(_TABLE_HASHES)
                return dict(await rows.fetchall())
        except psycopg.Error:
            return {}

    async def order_marker(self, names: tuple[str, ...]) -> tuple[str, int]:
        """See AdminBackend."""
        session = self._ready()
        self.markers.require_room()
        return await session.marker_orders.order_marker(names)

    def _ready(self) -> ReplicaSession:
        current = self._sessions.current
        if current is None or not current.ready:
            raise Unavailable(f"node {self._config.name} is not ready: {self._fitness.reason}")
        return current

    def _cancel(self, run: str) -> bool:
        current = self._sessions.current
        return current is not None and current.keeper.cancel(run)

    def _in_service(self) -> None:
        """Raise ``Unavailable`` unless this member takes writes of anybody."""
        refusal = self._ready().backend.out_of_service()
        if refusal is not None:
            raise Unavailable(f"node {self._config.name} takes no writes: {refusal}")

    async def check_indexes(self) -> indexes.IndexReport:
        """See AdminBackend."""
        self._ready()
        try:
            async with await startup.connect(
                self._config, "pgherd indexes", psycopg.AsyncCursor
            ) as connection:
                return await indexes.check_all(connection)
        except psycopg.OperationalError as error:
            raise Unavailable(f"node {self._config.name}: {error}") from error


def _settled(session: ReplicaSession | None) -> int | None:
    return None if session is None else session.path.chain.settled_gid
