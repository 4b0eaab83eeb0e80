"""A session of the replica: what the ordered log means for the server beside it, while it lasts.

It takes each committed entry in order: the replicated state decides, and the session turns
decisions into verdicts for local transactions and work for the applier. It ends with the first
error, mostly because the server went away; ``replica`` begins another one.

Nothing of a session survives it but what is in the server, in the log, and in the checkpoint.
"""

import asyncio
import uuid
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent import startup, upkeep
from pgherd_sidecar.agent.admin import Unavailable
from pgherd_sidecar.agent.applier import Applier, Work
from pgherd_sidecar.agent.chain import BatchLink, Chain, LocalLink
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.ddlrun import DdlRunner, describe
from pgherd_sidecar.agent.errors import LeftBehindError, SupersededError
from pgherd_sidecar.agent.hook import HookServer
from pgherd_sidecar.agent.hookconnection import Pending
from pgherd_sidecar.agent.leaks import Leaks
from pgherd_sidecar.agent.loghost import LogHost
from pgherd_sidecar.agent.markers import Markers
from pgherd_sidecar.agent.outcomes import Outcomes
from pgherd_sidecar.agent.settler import Settler
from pgherd_sidecar.agent.victims import VictimWatch
from pgherd_sidecar.agent.views import no_majority
from pgherd_sidecar.agent.writers import Writers
from pgherd_sidecar.core.certifier import Conflict
from pgherd_sidecar.core.entries import (
    FLAG_DDL,
    Entry,
    Incarnation,
    Marker,
    Publish,
    Writeset,
    encode_entry,
    iter_entries,
    key_array,
)
from pgherd_sidecar.core.state import Decision, DecisionKind, ReplicatedState
from pgherd_sidecar.pg.pipeline import Pipeline
from pgherd_sidecar.pg.rows import RowStatements, TableShape

log = structlog.get_logger()

_READ_BYTES = 1 << 20
_QUEUE_BYTES = 64 << 20
_FULL_S = 0.01
_INCARNATION_RETRY_S = 1.0


class ReplicaSession:
    """One session with the server, from its connections to the first error.

    Invariant: ``state.position`` is the last delivered entry; every link of the chain is a
    committed writeset (or a run of them) above the server's ``chain_end``.
    """

    def __init__(  # noqa: PLR0913 - the parts of a session, all by name
        self,
        config: NodeConfig,
        host: LogHost,
        *,
        incarnation: int,
        server: startup.Server,
        state: ReplicatedState,
        admin: psycopg.AsyncConnection[Any],
        watch: psycopg.AsyncConnection[Any],
        appliers: tuple[Pipeline, Pipeline],
        markers: Markers,
    ) -> None:
        self.state = state
        self.ready = False
        self.caught_up = asyncio.Event()
        self.markers = markers
        self._config = config
        self._host = host
        self._incarnation = incarnation
        self._admin = admin
        self._skip_to = server.chain_end
        self._old = host.commit_position
        self.chain = Chain(server.chain_end)
        rows = RowStatements(self._describe)
        writers = Writers()
        self._ddl = DdlRunner(config, writers)
        self.settler = Settler(
            connection=admin,
            pipeline=appliers[1],
            rows=rows,
            ddl=self._ddl,
            writers=writers,
            chain=self.chain,
        )
        self.applier = Applier(
            pipeline=appliers[0],
            chain=self.chain,
            rows=rows,
            first_batch=incarnation << 32,
            writers=writers,
            repair=self.settler.repair,
            on_token=self._answer_deferred,
        )
        self.hook = HookServer(
            directory=config.hook_dir,
            secret=server.secret,
            member=config.number,
            incarnation=incarnation,
            submit=host.submit,
            backend=self,
            timeout_s=config.limits.verdict_timeout_ms / 1000,
            query_max=config.limits.writeset_bytes,
        )
        self._watch = VictimWatch(watch, writers=writers, chain=self.chain, hook=self.hook)
        self._delivery: asyncio.TimerHandle | None = None
        self._deferred: deque[tuple[int, Callable[[], None]]] = deque()
        self._orders: dict[str, asyncio.Future[int]] = {}
        self._leaks = Leaks(admin, config.number)
        self._outcomes = Outcomes()
        self._began: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counts = dict.fromkeys(DecisionKind, 0)
        self._loop = asyncio.get_running_loop()

    # ---- life --------------------------------------------------------------------------------

    async def run(self, keep_house: psycopg.AsyncConnection[Any]) -> None:
        """Run until something fails.

        Raises:
            RebuildNeededError: this node must not go on.
            psycopg.Error, ServerGoneError: the server is gone.
        """
        house = upkeep.Upkeep(
            keep_house,
            self._config,
            self._host,
            chain=self.chain,
            state=self.state,
            publish=self._publish,
            leaked=lambda xid: self._leaks.order(xid, self.hook),
            refusal=self.refusal,
        )
        await self.applier.take_tokens()
        await self._leaks.look_back()
        await self.hook.start()
        self._host.on_commit = self.deliver
        self._host.on_proposer = self.hook.resubmit
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._raise_failure())
                group.create_task(self.applier.run())
                group.create_task(self.settler.run())
                group.create_task(self._watch.run())
                await self._begin()
                group.create_task(house.run())
        finally:
            self.ready = False
            if self._delivery is not None:
                self._delivery.cancel()
            self._host.on_commit = self._host.on_proposer = lambda: None
            for ordered in self._orders.values():
                if not ordered.done():
                    ordered.set_exception(Unavailable("the server went away meanwhile"))
            await self.hook.stop()

    async def _begin(self) -> None:
        """Catch up, and open this incarnation for writes."""
        self._loop.call_soon(self.deliver)
        entry = encode_entry(Incarnation(self._config.number, self._incarnation))
        while not self._began.done():
            self._host.submit(entry, 1)
            await asyncio.wait([self._began], timeout=_INCARNATION_RETRY_S)
        await self.settler.visible(min(self._began.result(), self.chain.tail_gid))
        await self._admin.execute("SELECT pgherd.sequences_after_crash()")
        await startup.set_writable(self._admin, True, "")
        self.ready = True
        self.caught_up.set()
        log.info("node.primary", gid=self.chain.settled_gid, incarnation=self._incarnation)

    async def _raise_failure(self) -> None:
        await self._failed

    async def _describe(self, table: str) -> TableShape:
        return await describe(self._admin, table)

    # ---- delivery ----------------------------------------------------------------------------

    def deliver(self) -> None:
        """Take what the log has committed, in order, as far as the applier keeps up."""
        if self._failed.done():
            return
        try:
            if self.applier.queued_bytes > _QUEUE_BYTES:
                self._deliver_again(_FULL_S)
                return
            blocks = self._host.read(self.state.position + 1, _READ_BYTES)
            behind = self.state.position < self._host.commit_position
            if not blocks and behind and not self._host.reader.mending:
                raise LeftBehindError(f"the log no longer holds entry {self.state.position + 1}")
            for block in blocks:
                self._take_block(block.first, block.data)
            if blocks and self.state.position < self._host.commit_position:
                self._deliver_again(0)  # after whatever else the loop has to do
        except Exception as error:  # noqa: BLE001 - a supervisor: the session ends with it
            self._failed.set_exception(error)

    def _deliver_again(self, delay_s: float) -> None:
        """Go on later; once, however often the log calls meanwhile."""
        if self._delivery is None:
            self._delivery = self._loop.call_later(delay_s, self._deliver_rest)

    def _deliver_rest(self) -> None:
        self._delivery = None
        self.deliver()

    def _take_block(self, first: int, data: bytes) -> None:
        taken: set[int] = set()
        for gid, entry in enumerate(iter_entries(data), first):
            if gid <= self.state.position:
                continue
            if isinstance(entry, Writeset):
                keys = key_array(entry.keys)
                decision = self.state.deliver(gid, entry, keys)
                self._take_writeset(gid, entry, keys, decision)
                if decision.kind is DecisionKind.COMMIT:
                    taken.update([key >> 2 for key in keys if key & 2])
            else:
                decision = self.state.deliver(gid, entry)
                self._take_other(gid, entry)
            self._counts[decision.kind] += 1
        if taken:
            self._tell_losers(taken)

    def _take_writeset(
        self, gid: int, writeset: Writeset, keys: "array[int]", decision: Decision
    ) -> None:
        self._outcomes.note(gid, writeset, decision)
        pending = None
        if writeset.member == self._config.number and writeset.incarnation == self._incarnation:
            pending = self.hook.take(writeset.sequence)
        decided = decision.kind in (DecisionKind.COMMIT, DecisionKind.ABORT)
        if decided and gid > self._skip_to and self._leaks.holds(writeset):
            self.applier.add_alone(gid, self._leaks.adoption(gid, writeset, decision.kind))
        elif decision.kind is DecisionKind.COMMIT:
            if gid <= self._skip_to:
                return
            if pending is not None and pending.connection is not None:
                self._commit_local(gid, pending)
            else:
                self._commit_remote(gid, writeset, keys)
        elif decision.conflict is not None and pending is not None:
            self.hook.aborted(pending, decision.conflict)
        elif decision.kind is DecisionKind.STALE and pending is not None:
            self.hook.ruled_out(pending)

    def _commit_local(self, gid: int, pending: Pending) -> None:
        tail = self.chain.tail
        prev = self.chain.tail_gid
        writeset = pending.writeset
        self.applier.close()
        self.chain.append(
            LocalLink(gid, prev, writeset.xid, pending.pid, writeset, self._loop.time())
        )
        if writeset.flags & FLAG_DDL:
            self.applier.schema_changes()
        if tail is None:
            self.hook.committed(pending, gid, prev, b"N")
        elif isinstance(tail, LocalLink):
            self.hook.committed(pending, gid, prev, b"L %d" % tail.xid)
        else:
            self._name_batch(tail, pending, gid, prev)

    def _name_batch(self, batch: BatchLink, pending: Pending, gid: int, prev: int) -> None:
        """Answer with a batch to wait for, as soon as its token is held."""
        batch.named = True

        def answer() -> None:
            if pending.connection is not None:  # else it has died meanwhile, and is repaired
                self.hook.committed(pending, gid, prev, b"B %d" % batch.number)

        if batch.number < self.applier.token_limit:
            answer()
        else:
            self._deferred.append((batch.number, answer))

    def _answer_deferred(self) -> None:
        while self._deferred and self._deferred[0][0] < self.applier.token_limit:
            self._deferred.popleft()[1]()

    def _commit_remote(self, gid: int, writeset: Writeset, keys: "array[int]") -> None:
        if not writeset.flags & FLAG_DDL:
            self.applier.add(gid, writeset, keys)
            return

        async def run(work: Work) -> None:
            await self._ddl.run(writeset, gid, work.link.prev)
            self.applier.rows.forget()

        self.applier.add_alone(gid, run, len(writeset.body))

    def _tell_losers(self, taken: set[int]) -> None:
        """Writesets still under way that have lost already: say so, they may hold locks.

        Args:
            taken: keys just taken exclusively, without their mode (and a few other numbers).
        """
        for pending in self.hook.pending.values():
            if pending.connection is not None and not taken.isdisjoint(pending.slots):
                conflict = self.state.preview(pending.keys)
                if conflict is not None:
                    self.hook.aborted(pending, conflict)

    def _take_other(self, gid: int, entry: Entry) -> None:
        if isinstance(entry, Incarnation):
            me = (self._config.number, self._incarnation)
            if (entry.member, entry.incarnation) == me and not self._began.done():
                self._begin_at(gid)
        elif isinstance(entry, Marker):
            self._take_marker(gid, uuid.UUID(bytes=entry.id).hex)

    def _begin_at(self, gid: int) -> None:
        number = self._config.number
        newest = self.state.incarnation(number)
        if self.state.has_begun(number, self._incarnation):
            self._began.set_result(gid)
        elif newest >= self._incarnation:
            raise SupersededError(newest)
        # else this member is none yet: it is announced again

    # ---- markers -----------------------------------------------------------------------------

    async def order_marker(self) -> tuple[str, int]:
        """See AdminBackend; ``Unavailable`` if the session ends meanwhile."""
        marker = uuid.uuid4()
        ordered = self._orders[marker.hex] = self._loop.create_future()
        try:
            while not ordered.done():
                self._host.submit(encode_entry(Marker(marker.bytes)), 1)
                await asyncio.wait([ordered], timeout=_INCARNATION_RETRY_S)
            return marker.hex, ordered.result()
        finally:
            del self._orders[marker.hex]

    def _take_marker(self, gid: int, marker: str) -> None:
        ordered = self._orders.get(marker)
        if gid <= self._old or not self.ready:
            return  # whoever ordered it has given up, or does not count on this node
        if ordered is not None:
            if ordered.done():
                return  # the copy of a marker that was submitted twice
            ordered.set_result(gid)

        async def run(work: Work) -> None:
            await self.markers.take_snapshot(marker, gid)

        self.markers.expect(marker)
        self.applier.add_alone(None, run)

    def _publish(self, base: int) -> None:
        self._host.submit(encode_entry(Publish(self._config.number, base)), 1)

    # ---- HookBackend -------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """See HookBackend."""
        alone = None if self._host.primary else no_majority(self._host)
        if self.ready:
            return alone
        return "it is catching up" if alone is None else f"it is catching up; {alone}"

    def when_visible(self, gid: int, wake: Callable[[], None]) -> None:
        """See HookBackend."""
        self.settler.when_visible(gid, wake)

    def lost(self, keys: "array[int]") -> Conflict | None:
        """See HookBackend."""
        return self.state.preview(keys)

    def must_yield(self, xid: int) -> bool:
        """See HookBackend."""
        return any(link.yielding for link in self.chain.locals() if link.xid == xid)

    def outcome(self, token: str) -> str:
        """See HookBackend."""
        return self._outcomes.of(token)

    def gone(self, pid: int) -> None:
        """See HookBackend."""
        self.settler.gone(pid)

    def status(self) -> dict[str, Any]:
        """Counters of this session."""
        return {
            "gid": self.chain.settled_gid,
            "delivered": self.state.position,
            "pending": len(self.hook.pending),
            "apply_queue_bytes": self.applier.queued_bytes,
            "lag_bytes": self.applier.queued_bytes,
            "lag_entries": self._host.commit_position - self.state.position,
            "batches": self.applier.batches,
            "applied_writesets": self.applier.applied_writesets,
            "repairs": self.settler.repairs,
            "victims": self._watch.victims,
            "index_keys": self.state.index_size,
            **{f"decisions_{kind.value}": count for kind, count in self._counts.items()},
        }
