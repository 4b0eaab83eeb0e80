"""The replica: keeps the PostgreSQL server beside it equal to the ordered log, session by session.

A *session* lasts as long as the server does. When the server goes away the session ends and
another one begins under a new incarnation; the log, and with it this member's part in the quorum,
goes on all the while. A node that can't go on from its own database, because it differs from the
others', is gone or too old, gets a copy of a partner's (``recovery``), or stops for good.

A restart keeps the checkpoint in ``data_dir``, ``pgherd.applied`` in the server, the log and the
incarnation.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent.admin.port import Refused, StatusValue, Unavailable
from pgherd_sidecar.agent.apply.applying import OF_THE_MEMBER
from pgherd_sidecar.agent.apply.attempts import Attempts
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.base.errors import (
    DivergedError,
    EntryFailedError,
    LeftBehindError,
    RebuildNeededError,
    SupersededError,
    UnreadableError,
)
from pgherd_sidecar.agent.checkpoint import verdicts
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.log.news import LogListener
from pgherd_sidecar.agent.maintenance.requests import MaintenanceRequests
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.recovery.means import LocalMeans
from pgherd_sidecar.agent.recovery.partners import NoPartnerError
from pgherd_sidecar.agent.recovery.rebuild import Rebuild
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.agent.server.advertising import advertise
from pgherd_sidecar.agent.session import lockspace, parts
from pgherd_sidecar.agent.session.backend import READS_ONLY
from pgherd_sidecar.agent.session.opening import open_server
from pgherd_sidecar.agent.session.roles import Roles
from pgherd_sidecar.agent.session.session import ReplicaSession
from pgherd_sidecar.agent.snapshots.markers import Markers
from pgherd_sidecar.agent.standing import holding
from pgherd_sidecar.agent.standing.incidents import Incidents
from pgherd_sidecar.agent.standing.standing import Standing, Way
from pgherd_sidecar.agent.standing.views import Views
from pgherd_sidecar.agent.stream.changes import Changes
from pgherd_sidecar.agent.stream.explain import Explainer
from pgherd_sidecar.agent.subscriptions.orders import SubscriptionOrders
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.env.network.tls import TlsError
from pgherd_sidecar.pg.comparison import indexes
from pgherd_sidecar.pg.failures import Trouble, judge
from pgherd_sidecar.pg.pipeline import ServerGoneError

log = structlog.get_logger()

_TABLE_HASHES = """
SELECT pgherd.name_hash('table ' || t.name), 'table ' || t.name
  FROM (SELECT format('%I.%I', n.nspname, c.relname) AS name
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_') t
UNION ALL SELECT pgherd.name_hash('schema'), 'the schema'
"""
_ABANDON = "SELECT pgherd.abandon_long($1, $2, $3)"
_LOOK_S = 0.5
_PART_S = 2.0
"""So long the end may take to tell a server of it that does not answer."""
_FATAL = (*OF_THE_MEMBER, TlsError)
"""The log or this member's standing is not what it was: the process ends, and says so."""


class Replica(LogListener):
    """The replica of one node; also answers the admin API."""

    def __init__(self, config: NodeConfig, host: LogHost, identity: StoredIdentity) -> None:
        self._config = config
        self._host = host
        self._identity = identity
        self.views = Views(config, host, lambda: self._databases)
        self.markers = Markers(config)
        self._verdicts = verdicts.load(config.data_dir)
        self.changes = Changes(host, self._verdicts, self._ready)
        self.roles = Roles(config, self._ready)
        self.maintenance = MaintenanceRequests(
            config,
            self._in_service,
            lambda: None if (known := self._databases) is None else parts.herd_of(host, known),
            lambda: parts.maintained(host),
            lambda run: self._session is not None and self._session.keeper.cancel(run),
        )
        self.subscriptions = SubscriptionOrders(config, self._in_service)
        self._explainer = Explainer(host, self._verdicts, self._table_hashes)
        recovery = config.recovery
        self._rebuild = (
            Rebuild(config, recovery, LocalMeans(config, recovery, host)) if recovery else None
        )
        self._session: ReplicaSession | None = None
        self._attempts = Attempts()
        self._incidents = Incidents(config.data_dir)
        self._reason = "starting"
        self._standing = Standing(config, host)
        self._diverged: DivergedError | None = None
        self._halted: RebuildNeededError | None = None
        self._stopping = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._behind: LeftBehindError | None = None
        self._turn = asyncio.Lock()
        host.listen(self)

    async def run(self) -> None:
        """Work until ``stop``."""
        while not self._stopping.is_set():
            async with self._turn:
                await self._until_interrupted(self._work())
        await self.markers.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PART_S):
                await self._fence("its sidecar does not run")

    async def stop(self) -> None:
        """See Service."""
        self._stopping.set()
        self._interrupted.set()

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, and judge what ended it."""
        task = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        await asyncio.wait({task, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.wait({task})
        if self._session is not None:
            self._standing.go_on_from(self._session.state)
        self._session = None
        self._interrupted.clear()
        error = None if task.cancelled() else task.exception()
        behind, self._behind = self._behind, None
        if behind is not None:
            self._need_rebuild(behind)
        elif not task.cancelled():
            await lockspace.free(self._config, _leaves(error))
            if not await self._abandon_long(error):
                self._judge(error)
            await asyncio.wait({interrupted}, timeout=self._attempts.pause_s)
        interrupted.cancel()

    async def _work(self) -> None:
        """One session, after a rebuild if there is one to do."""
        if self._diverged is not None:
            await self._choose(self._diverged)
        if self._halted is not None:
            await self._fence(f"it has stopped for good: {self._reason}")
            if isinstance(self._halted, UnreadableError):
                await self._interrupted.wait()  # its database is whole: a newer version goes on
                return
            await self._standing.failed()
            self._halted = None  # an administrator has had the entry skipped
        if self._host.splitter.sealed:
            self._reason = self._host.splitter.reason
            await self._fence(self._reason)
            await self._interrupted.wait()  # its log stands still until it is another cluster's
            return
        if self._rebuild is not None and self._rebuild.due_to_join:
            raise LeftBehindError("it joins the herd")
        if self._rebuild is not None and self._rebuild.under_way:
            await self._fence(self._rebuild.reason)
            way = Way.REBUILD
            if self._rebuild.begins:
                way = await self._standing.rebuilding(asked=self._rebuild.asked)
            if way is Way.ON:
                self._rebuild.drop()
                self._incidents.cure(rebuilt=False)
            elif not await self._standing.rebuild(self._rebuild.run()):
                self._incidents.end(self._rebuild.given_up or self._rebuild.reason)
                raise LeftBehindError(self._rebuild.cause)
            self._attempts.forget()
        if not self._host.whole.is_set():
            await self._fence("its log is damaged")
            await self._host.whole.wait()  # what its database has may be missing
        async with open_server(
            self._config,
            self._host,
            self._identity,
            self._verdicts,
            self._standing,
            singly_to=self._attempts.gid,
        ) as opening:
            self._session = ReplicaSession(
                self._config, self._host, opening, self.markers, self._verdicts
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._session.run())
                group.create_task(self._standing.speak(self._session.caught_up))
                group.create_task(self._end_incident(self._session.caught_up))
                if self._rebuild is not None:
                    group.create_task(self._rebuild.escort(self._session.caught_up))

    async def _choose(self, error: DivergedError) -> None:
        """Say in the log that this database has diverged, and see how it goes on with it."""
        await self._fence(self._reason)
        willing = self._rebuild is not None and self._rebuild.willing
        way = await self._standing.stopped(error, willing=willing)
        self._diverged = None
        if way is not Way.ON:
            self._incidents.cure(rebuilt=self._begin_rebuild(error))

    async def _end_incident(self, caught_up: asyncio.Event) -> None:
        """Whatever stopped this node before does not any more."""
        await caught_up.wait()
        self._attempts.forget()
        self._incidents.end()

    async def _fence(self, reason: str) -> None:
        """Have writes on a node that can't take them fail with the reason (C25)."""
        with contextlib.suppress(psycopg.Error):
            async with await startup.connect(self._config, "pgherd") as connection:
                await startup.set_writable(connection, False, reason)
                await advertise(connection, writes=False)

    async def _abandon_long(self, error: BaseException | None) -> bool:
        """Whether the entry that failed is tried again, since an index gives way to it.

        Its origin may have written a row that has no place in an index before it had the index, or
        after it had dropped it.
        """
        failures = [
            cause.failure
            for cause in _leaves(error)
            if isinstance(cause, DivergedError) and cause.failure is not None
        ]
        if not failures:
            return False
        failure = failures[0]
        try:
            async with await startup.connect(self._config, "pgherd") as connection:
                about = (str(failure), failure.sqlstate, failure.key)
                rows = await connection.execute(_ABANDON, about)
                row = await rows.fetchone()
                assert row is not None
        except psycopg.Error as obstacle:
            trouble = judge(obstacle).trouble
            if trouble is Trouble.REFUSED:
                return False
        else:
            if not row[0]:
                return False
            log.warning("long.gave_way", gid=failure.gid, error=failure.cause)
            trouble = Trouble.FAILED
        self._judge(EntryFailedError(replace(failure, trouble=trouble)))
        return True

    def _judge(self, error: BaseException | None) -> None:
        """Decide what an ended session means."""
        causes = _leaves(error)
        for cause in causes:
            if isinstance(cause, RebuildNeededError):
                self._need_rebuild(cause)
                return
        for cause in causes:
            if isinstance(cause, _FATAL) or not isinstance(cause, Exception):
                raise cause
            if isinstance(cause, SupersededError):
                self._identity.skip_incarnations(cause.newest)
            elif isinstance(cause, EntryFailedError):
                diverged = self._attempts.failed(cause.failure)
                if diverged is not None:
                    self._need_rebuild(diverged)
                    return
            elif not isinstance(cause, (psycopg.OperationalError, ServerGoneError)):
                # A defect beside the server must not take this member's vote from the herd.
                log.critical("session.crashed", error=str(cause), exc_info=cause)
                self._attempts.crashed()
        self._reason = f"PostgreSQL: {causes[0]}".strip() if causes else "session ended"
        log.warning("session.ended", reason=self._reason)
        rebuild = self._rebuild
        if rebuild is not None and rebuild.database_is_gone and not rebuild.under_way:
            self._need_rebuild(LeftBehindError("the database is gone"))

    def left_behind(self) -> None:
        """See LogListener: the others no longer hold the log that this member needs next."""
        if self._rebuild is not None and self._rebuild.under_way and self._rebuild.chooses:
            return
        self._behind = LeftBehindError(
            f"this member's log ends at {self._host.extent.last}, "
            f"that of the others begins at {self._host.extent.behind + 1}"
        )
        self._interrupted.set()

    @property
    def _databases(self) -> Databases | None:
        """What is known of the herd's databases, by the session or without one."""
        session = self._session
        return self._standing.databases if session is None else session.state.databases

    def _held(self) -> str | None:
        """Why the herd takes no writes, None if it does or that is not known."""
        known = self._databases
        return None if known is None else holding.why_held(known, self._host.membership)

    def _why_stopped(self) -> str:
        held = self._held()
        return self._reason if held is None else f"{self._reason}; {held}"

    def _need_rebuild(self, cause: RebuildNeededError) -> None:
        """Begin a rebuild, or stop for good; what has diverged says so first (``_choose``)."""
        self._reason = str(cause)
        log.error("node.needs_rebuild", reason=self._reason, kind=type(cause).__name__)
        if isinstance(cause, DivergedError):
            self._incidents.begin(cause, rebuilt=False)
            self._diverged = cause
            return
        joins = self._rebuild is not None and self._rebuild.due_to_join
        begun = self._begin_rebuild(cause)
        if not joins:
            self._incidents.begin(cause, rebuilt=begun)

    def _begin_rebuild(self, cause: RebuildNeededError) -> bool:
        """Begin a rebuild, or stop for good and return False."""
        curable = self._rebuild is not None and not isinstance(cause, UnreadableError)
        if curable and self._rebuild is not None and self._rebuild.begin(self._reason):
            self._halted = None
            return True
        self._halted = cause
        if self._rebuild is not None and self._rebuild.given_up is not None:
            self._reason = f"{self._reason}; {self._rebuild.given_up}"
        return False

    # ---- admin API ---------------------------------------------------------------------------

    async def status(self) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        current, rebuild = self._session, self._rebuild
        if current is None and self._standing.databases is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._standing.follow()
        refusal = current.backend.out_of_service() if current else self._why_stopped()
        failed = self._attempts.reason(_settled(current))
        if failed is not None and self._halted is None:
            refusal = failed
        if rebuild is not None and rebuild.under_way:
            refusal = rebuild.reason
        return {
            "name": self._config.name,
            "cluster_id": str(self._config.cluster_id),
            "split_from": self._identity.split_from,
            "disk_id": self._host.disk,
            "state": self._state(refusal),
            "reason": self._host.reader.trouble or (None if refusal == READS_ONLY else refusal),
            "incarnation": self._identity.incarnation,
            **self._host.status(),
            **self.views.status(),
            **holding.status(self._databases, self._host.membership),
            "log_position": self._host.commit_position,
            **(current.status() if current is not None else {}),
            **(rebuild.status() if rebuild is not None else {}),
            **self._incidents.status(),
        }

    def _state(self, refusal: str | None) -> str:
        if self._host.peers.has_left:
            return "departed"
        waits = self._diverged if self._held() is not None else None  # for an administrator
        stopped = self._halted or waits
        if stopped is not None:
            return "diverged" if isinstance(stopped, DivergedError) else "stranded"
        if self._rebuild is not None and self._rebuild.under_way:
            return "rebuilding"
        if self._session is None and not self._host.splitter.sealed:
            return "starting" if self._host.whole.is_set() else "recovering"
        if refusal in (None, READS_ONLY):
            return "primary" if refusal is None else "reader"
        ready = self._session is None or self._session.ready
        drained = self._session is not None and refusal == self._session.backend.drained
        return "maintenance" if drained else "secondary" if ready else "recovering"

    async def shutdown(self) -> None:
        """See AdminBackend."""
        await self.stop()

    async def rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        """See AdminBackend."""
        if self._rebuild is None or not self._rebuild.possible:
            raise Unavailable(f"node {self._config.name} is not configured for it")
        try:
            await self._rebuild.require_partner(partner)
        except NoPartnerError as error:
            raise Unavailable(str(error)) from error
        self._interrupted.set()
        async with self._turn:  # a step of an earlier rebuild that still ends belongs to that one
            self._rebuild.request(partner, rate_bytes_s)
            self._incidents.request()
            self._halted = self._diverged = None

    async def skip(self, gid: int, *, act: bool) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        if self._session is None and not await self._standing.follow():
            raise Unavailable(f"node {self._config.name} does not know what the log says now")
        known, names = self._databases, holding.names_of(self._host.membership)
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
            session = self._session
            databases = None if session is None else session.state.databases
            await self._standing.order_skip(gid, databases)
        return plan

    async def explain(self, gid: int, *, rows: bool) -> Mapping[str, StatusValue]:
        """See AdminBackend."""
        told: Mapping[str, StatusValue] = await self._explainer.explain(gid, rows=rows)
        if self._databases is not None and gid in self._databases.skipped:
            told = {**told, "verdict": "skipped"}
        met = self._incidents.of(gid)
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
        return await session.marker_orders.order(names)

    def _ready(self) -> ReplicaSession:
        if self._session is None or not self._session.ready:
            raise Unavailable(f"node {self._config.name} is not ready: {self._reason}")
        return self._session

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


def _leaves(error: BaseException | None) -> "list[BaseException]":
    """The single errors in a group, in order."""
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
