"""A session of the replica: what the ordered log means for the server beside it, while it lasts.

It takes each committed entry in order: the replicated state decides, and the session turns
decisions into verdicts for local transactions and work for the applier. It ends with the first
error, mostly because the server went away; ``replica`` begins another one.

Nothing of a session survives it but what is in the server, in the log, and in the checkpoint.
"""

import asyncio
from array import array
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import psycopg
import structlog

from pgherd_sidecar.agent import startup, upkeep
from pgherd_sidecar.agent.announcement import Announcement
from pgherd_sidecar.agent.applier import Applier, Work
from pgherd_sidecar.agent.applying import undeliverable
from pgherd_sidecar.agent.barriers import Barriers
from pgherd_sidecar.agent.chain import Chain
from pgherd_sidecar.agent.commits import Commits
from pgherd_sidecar.agent.config import NodeConfig
from pgherd_sidecar.agent.ddlrun import DdlRunner, describe
from pgherd_sidecar.agent.errors import LeftBehindError, SkippedError
from pgherd_sidecar.agent.fence import Fence
from pgherd_sidecar.agent.freshness import Freshness
from pgherd_sidecar.agent.holding import why_held
from pgherd_sidecar.agent.hook import HookServer
from pgherd_sidecar.agent.hookpieces import HookLimits
from pgherd_sidecar.agent.large import LargeTransactions, Surroundings
from pgherd_sidecar.agent.largedecider import LargeDecider
from pgherd_sidecar.agent.leaks import Leaks
from pgherd_sidecar.agent.loghost import LogHost
from pgherd_sidecar.agent.markerorders import MarkerOrders
from pgherd_sidecar.agent.markers import Markers
from pgherd_sidecar.agent.outcomes import Outcomes
from pgherd_sidecar.agent.precedence import Precedence
from pgherd_sidecar.agent.scrub import Scrub
from pgherd_sidecar.agent.settler import Settler
from pgherd_sidecar.agent.verdicts import Verdicts
from pgherd_sidecar.agent.victims import VictimWatch
from pgherd_sidecar.agent.views import no_majority
from pgherd_sidecar.agent.vigil import Vigil
from pgherd_sidecar.agent.writers import Writers
from pgherd_sidecar.core.certifier import Conflict
from pgherd_sidecar.core.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    PIECE_LAST,
    Condition,
    DatabaseState,
    Entry,
    Incarnation,
    Intention,
    Marker,
    Members,
    Piece,
    Publish,
    Skip,
    Writeset,
    encode_entry,
    iter_entries,
    key_array,
)
from pgherd_sidecar.core.state import Decision, DecisionKind, ReplicatedState
from pgherd_sidecar.pg.pipeline import Pipeline
from pgherd_sidecar.pg.rows import RowStatements

log = structlog.get_logger()

_READ_BYTES = 1 << 20
_QUEUE_BYTES = 64 << 20
_FULL_S = 0.01
_STAND_S = 1.0
_AGE_S = 0.1
_DECIDED = (DecisionKind.COMMIT, DecisionKind.ABORT, DecisionKind.REFUSED)
_WITHOUT_EFFECT = Decision(DecisionKind.ABORT)


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
        verdicts: Verdicts,
        skips: frozenset[int],
        passed: set[int],
        singly_to: int = 0,
    ) -> None:
        self.state = state
        self.ready = False
        self.caught_up = asyncio.Event()
        self.markers = markers
        self._verdicts = verdicts
        self._config = config
        self._host = host
        self._incarnation = incarnation
        self._admin = admin
        self._skip_to = server.chain_end
        self._skips = skips
        self._passed = passed
        self._old = host.commit_position
        self.chain = Chain(server.chain_end)
        rows = RowStatements(partial(describe, admin))
        writers = Writers()
        self._large = self._large_transactions(writers)
        self._decider = LargeDecider(state, host.reader, self._take_large, self._fail)
        self._ddl = DdlRunner(config, writers)
        self.settler = Settler(
            connection=admin,
            pipeline=appliers[1],
            rows=rows,
            ddl=self._ddl,
            large=self._large,
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
            on_token=lambda: self._commits.tokens_taken(),  # noqa: PLW0108 - made below
            singly_to=singly_to,
        )
        self.hook = self._hook_server(server.secret)
        self._commits = Commits(
            chain=self.chain,
            hook=self.hook,
            applier=self.applier,
            large=self._large,
            ddl=self._ddl,
        )
        self._watch = VictimWatch(watch, writers=writers, chain=self.chain, hook=self.hook)
        self._fence = Fence(admin, self.refusal, self.held)
        self._freshness = Freshness()
        self._house: upkeep.Upkeep | None = None
        self._delivery: asyncio.TimerHandle | None = None
        self.marker_orders = MarkerOrders(config.name, host.submit, self.applier, markers)
        self._scrub = Scrub(config, host, self)
        self._leaks = Leaks(admin, config.number)
        self._outcomes = Outcomes()
        mine = Incarnation(config.number, incarnation)
        self._announcement = Announcement(mine, host.submit, state)
        self._precedence = Precedence(
            member=config.number,
            incarnation=incarnation,
            submit=host.submit,
            state=state,
            visible_before=self.settler.visible_before,
            connection=admin,
        )
        self._barriers = Barriers(
            host,
            delivered=lambda: self.state.position,
            newest=lambda: self.chain.tail_gid,
        )
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counts = dict.fromkeys(DecisionKind, 0)
        self._loop = asyncio.get_running_loop()

    def _hook_server(self, secret: str) -> HookServer:
        return HookServer(
            directory=self._config.hook_dir,
            secret=secret,
            member=self._config.number,
            incarnation=self._incarnation,
            submit=self._host.submit,
            backend=self,
            limits=HookLimits.of(self._config.limits),
        )

    def _large_transactions(self, writers: Writers) -> LargeTransactions:
        """Those of other members. Some parts that they ask are made later: they ask through us."""
        return LargeTransactions(
            Surroundings(
                startup.conninfo(self._config, "pgherd large", startup.APPLY_ROLE),
                log=self._host.reader,
                describe=partial(describe, self._admin),
                writers=writers,
                delivered=lambda: self.state.position,
                visible=lambda position: self.settler.visible_before(position),  # noqa: PLW0108
                deciding=lambda: self._decider.busy,
                silence_s=2 * self._config.limits.verdict_timeout_ms / 1000,
            )
        )

    # ---- life --------------------------------------------------------------------------------

    async def run(self, keep_house: psycopg.AsyncConnection[Any]) -> None:
        """Run until something fails.

        Raises:
            RebuildNeededError: this node must not go on.
            EntryFailedError: an entry could not be applied now.
            psycopg.Error, ServerGoneError: the server is gone.
        """
        house = self._house = upkeep.Upkeep(
            keep_house,
            self._config,
            self._host,
            chain=self.chain,
            state=self.state,
            verdicts=self._verdicts,
            publish=self._publish,
            leaked=lambda xid: self._leaks.order(xid, self.hook),
        )
        await self.applier.take_tokens()
        await self._leaks.look_back()
        await self.hook.start()
        self._host.on_commit = self.deliver
        self._host.on_proposer = self._follow_proposer
        self._host.on_barrier = self._barriers.look
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._raise_failure())
                group.create_task(self._follow_age())
                group.create_task(self.applier.run())
                group.create_task(self.settler.run())
                group.create_task(self._watch.run())
                group.create_task(self._precedence.run())
                await self._begin()
                group.create_task(self._fence.run())
                group.create_task(self._stand())
                group.create_task(house.run())
                group.create_task(self._scrub.run())
        finally:
            self.ready = False
            if self._delivery is not None:
                self._delivery.cancel()
            self._decider.stop()
            self._host.on_commit = self._host.on_proposer = self._host.on_barrier = lambda: None
            self.marker_orders.fail()
            self._barriers.close()
            await self._scrub.close()
            await self.hook.stop()
            await self._large.close()
            self._ddl.close()

    def _follow_proposer(self) -> None:
        self.hook.resubmit()
        self._barriers.reign_changed()

    async def _begin(self) -> None:
        """Catch up, and open this incarnation for writes."""
        self._loop.call_soon(self.deliver)
        began_at = await self._announcement.begun()
        await self.settler.visible(min(began_at, self.chain.tail_gid))
        await self._admin.execute("SELECT pgherd.sequences_after_crash()")
        await self._fence.open()
        self.ready = True
        self.caught_up.set()
        log.info("node.primary", gid=self.chain.settled_gid, incarnation=self._incarnation)

    async def _raise_failure(self) -> None:
        await self._failed

    async def _follow_age(self) -> None:
        """Look again and again how far readers are behind what is known."""
        while True:
            self._freshness.look(
                self._loop.time(), self._host.commit_position, self.visible, caught_up=self.ready
            )
            await asyncio.sleep(_AGE_S)

    async def _stand(self) -> None:
        """Say that this database is whole whenever the log says otherwise: it has caught up.

        Hear whether the rebuilds of others go on.
        """
        number, silent_s = self._config.number, self._config.timing.rebuild_silent_ms / 1000
        vigil = Vigil(number, silent_s, self._host.submit, self._loop.time)
        while not self._failed.done():
            own = self.state.databases.of(number)
            if own is not None and own.condition is not Condition.WHOLE:
                whole = DatabaseState(number, Condition.WHOLE, own.since)
                self._host.submit(encode_entry(whole), 1)
            else:
                vigil.listen(self.state.databases)
            await asyncio.sleep(_STAND_S)

    # ---- delivery ----------------------------------------------------------------------------

    def deliver(self) -> None:
        """Take what the log has committed, and tell readers who have waited for it."""
        self._deliver_committed()
        self._barriers.look()

    def _deliver_committed(self) -> None:
        """Take it in order, as far as the applier keeps up."""
        if self._failed.done() or self._decider.busy:
            return
        try:
            if self.applier.queued_bytes > _QUEUE_BYTES:
                self._deliver_again(_FULL_S)
                return
            blocks = self._host.reader.read(self.state.position + 1, _READ_BYTES)
            behind = self.state.position < self._host.commit_position
            if not blocks and behind and not self._host.reader.mending:
                raise LeftBehindError(f"the log no longer holds entry {self.state.position + 1}")
            for block in blocks:
                if not self._take_block(block.first, block.data):
                    return
            if blocks and self.state.position < self._host.commit_position:
                self._deliver_again(0)  # after whatever else the loop has to do
        except Exception as error:  # noqa: BLE001 - a supervisor: the session ends with it
            self._fail(error)

    def _deliver_again(self, delay_s: float) -> None:
        """Go on later; once, however often the log calls meanwhile."""
        if self._delivery is None:
            self._delivery = self._loop.call_later(delay_s, self._deliver_rest)

    def _deliver_rest(self) -> None:
        self._delivery = None
        self.deliver()

    def _take_block(self, first: int, data: bytes) -> bool:
        """Deliver a block; False if it stops before an entry that takes long to decide."""
        taken: set[int] = set()
        for gid, entry in enumerate(iter_entries(data), first):
            if gid <= self.state.position:
                continue
            if isinstance(entry, Writeset):
                if entry.flags & FLAG_PIECES and self._decider.begin(gid, entry):
                    self.hook.pause_deadlines()
                    break
                keys = key_array(entry.keys)
                decision = self.state.deliver(gid, entry, keys)
                self._take_writeset(gid, entry, keys, decision)
                if decision.kind is DecisionKind.COMMIT:
                    taken.update([key >> 2 for key in keys if key & 2])
            else:
                decision = self.state.deliver(gid, entry)
                self._take_other(gid, entry, decision)
            committed = decision.kind is DecisionKind.COMMIT and gid not in self._skips
            self._verdicts.note(gid, committed=committed)
            self._counts[decision.kind] += 1
        if taken:
            self.hook.writesets.tell_losers(taken, self.state.preview)
        self._large.prune(self.state.is_open)  # any entry may make one too old
        return not self._decider.busy

    def _take_large(self, gid: int, writeset: Writeset, decision: Decision, first: int) -> None:
        """Go on after the decision on a writeset in pieces, of which the first is at ``first``."""
        self.hook.resume_deadlines()
        self._take_writeset(gid, writeset, array("q"), decision, first)
        committed = decision.kind is DecisionKind.COMMIT and gid not in self._skips
        self._verdicts.note(gid, committed=committed, pieces_from=first)
        self._counts[decision.kind] += 1
        if committed:
            self.hook.writesets.tell_losers(None, self.state.preview)
        self._large.prune(self.state.is_open)
        self.deliver()

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(undeliverable(error, self.state.position))

    def _take_writeset(
        self,
        gid: int,
        writeset: Writeset,
        keys: "array[int]",
        decision: Decision,
        pieces_from: int = 0,
    ) -> None:
        if gid in self._skips and decision.kind is DecisionKind.COMMIT:
            self._pass_by(gid, writeset)
            return
        self._outcomes.note(gid, writeset, decision)
        if writeset.flags & FLAG_DDL:
            self._precedence.delivered()
        pending = None
        if writeset.member == self._config.number and writeset.incarnation == self._incarnation:
            pending = self.hook.take(writeset.sequence)
        decided = decision.kind in _DECIDED
        if decided and gid > self._skip_to and self._leaks.holds(writeset):
            self.applier.add_alone(gid, self._leaks.adoption(gid, writeset, decision.kind))
        elif decision.kind is DecisionKind.COMMIT:
            if gid <= self._skip_to:
                return
            if pending is not None and pending.connection is not None:
                self._commits.local(gid, pending, pieces_from)
            else:
                self._commits.remote(gid, writeset, keys, pieces_from)
        elif decision.kind is DecisionKind.REFUSED and pending is not None:
            reason = why_held(self.state.databases, self._host.membership)
            self.hook.writesets.refused(pending, reason or "the herd takes no writes")
        elif decision.conflict is not None and pending is not None:
            if writeset.flags & FLAG_DDL:
                self._precedence.lost(pending.keys)
            self.hook.writesets.aborted(pending, decision.conflict)
        elif decision.kind is DecisionKind.STALE and pending is not None:
            self.hook.writesets.ruled_out(pending)

    def _pass_by(self, gid: int, writeset: Writeset) -> None:
        """An administrator has had it skipped: it becomes a link of the chain, without effect."""
        self._outcomes.note(gid, writeset, _WITHOUT_EFFECT)
        self._passed.add(gid)
        if gid <= self._skip_to:
            return

        async def run(work: Work) -> None:
            await self._admin.execute("SELECT pgherd.pass_by($1, $2)", (gid, work.link.prev))
            log.warning("entry.skipped", gid=gid)

        self.applier.add_alone(gid, run)

    def _take_skip(self, skip: Skip) -> None:
        """Whoever has applied what is skipped needs a copy of one that has not.

        Raises:
            SkippedError: this database has.
        """
        if skip.gid in self.state.databases.skipped and skip.gid not in self._passed:
            raise SkippedError(skip.gid)

    def _take_other(self, gid: int, entry: Entry, decision: Decision) -> None:
        if isinstance(entry, Piece):
            self._take_piece(gid, entry, taken=decision.kind is DecisionKind.NOTHING)
        elif isinstance(entry, (Incarnation, Members)):
            self._large.prune(self.state.is_open)
        elif isinstance(entry, Intention):
            self._precedence.delivered()
        if isinstance(entry, Incarnation):
            self._announcement.delivered(gid, entry)
        elif isinstance(entry, Skip):
            self._take_skip(entry)
        elif isinstance(entry, Marker) and gid > self._old and self._scrub.take(gid, entry):
            pass
        elif isinstance(entry, Marker) and gid > self._old and self.ready:
            self.marker_orders.take(gid, entry)  # whoever ordered it waits, and counts on us

    def _take_piece(self, gid: int, piece: Piece, *, taken: bool) -> None:
        if (piece.member, piece.incarnation) == (self._config.number, self._incarnation):
            self.hook.pieces.ordered(piece, taken=taken)
        elif piece.flags & PIECE_LAST:
            self._large.prune(self.state.is_open)
        elif taken and gid > self._skip_to:
            self._large.came(gid, piece)

    def _publish(self, base: int) -> None:
        self._host.submit(encode_entry(Publish(self._config.number, base)), 1)

    # ---- changes -----------------------------------------------------------------------------

    @property
    def visible(self) -> int:
        """See changes.Reader."""
        settled = self.chain.settled_gid
        return settled if self.chain.tail_gid > settled else self.state.position

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """See changes.Reader."""
        return self._admin

    @property
    def idle(self) -> bool:
        """See scrub.Surroundings."""
        return not self.hook.writesets.pending and not self.applier.queued_bytes

    # ---- HookBackend -------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """See HookBackend."""
        alone = None if self._host.primary else no_majority(self._host)
        if self.ready:
            return alone or why_held(self.state.databases, self._host.membership)
        return "it is catching up" if alone is None else f"it is catching up; {alone}"

    def held(self) -> bool:
        """See HookBackend."""
        return self.ready and self._host.primary and self.state.databases.hold is not None

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

    def ask(self, xid: int, keys: "array[int]", answer: Callable[[], None]) -> None:
        """See HookBackend."""
        self._precedence.ask(xid, keys, answer)

    def when_free(self, xid: int, keys: "array[int]", go: Callable[[], None]) -> None:
        """See HookBackend."""
        self._precedence.when_free(xid, keys, go)

    def command_lost(self, keys: "array[int]") -> None:
        """See HookBackend."""
        self._precedence.lost(keys)

    def barrier(
        self, who: Hashable, wait_s: float, answer: Callable[[bytes], None], *, begins: bool
    ) -> None:
        """See HookBackend."""
        take = self._barriers.begin if begins else self._barriers.go_on
        take(who, wait_s, answer)

    def left(self, who: Hashable) -> None:
        """See HookBackend."""
        self._barriers.drop(who)

    def gone(self, pid: int) -> None:
        """See HookBackend."""
        self.settler.gone(pid)

    def status(self) -> dict[str, Any]:
        """Counters of this session."""
        return {
            "gid": self.chain.settled_gid,
            "delivered": self.state.position,
            "pending": len(self.hook.writesets.pending),
            "large_transactions": len(self.hook.pieces),
            "apply_queue_bytes": self.applier.queued_bytes,
            "lag_bytes": self.applier.queued_bytes,
            "lag_entries": self._host.commit_position - self.state.position,
            "age_s": self._freshness.age_s(self._loop.time(), self._host.secondary_s),
            "batches": self.applier.batches,
            "applied_writesets": self.applier.applied_writesets,
            "repairs": self.settler.repairs,
            "victims": self._watch.victims,
            "index_keys": self.state.index_size,
            **(self._house.status() if self._house is not None else {}),
            **self._scrub.status(),
            **self.hook.writesets.figures.status(),
            **{f"decisions_{kind.value}": count for kind, count in self._counts.items()},
        }
