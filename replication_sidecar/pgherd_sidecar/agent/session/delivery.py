"""Delivers what the log has committed: each entry is decided, and all whom it concerns hear of it.

The entries come in order, as far as the applier keeps up. A writeset becomes a verdict for a local
transaction or work for the applier; other entries concern one part of the session each. The
decision on a writeset in pieces takes long: its keys are read back from the log, and delivery goes
on after it.

Nothing survives a session but what is in the server, in the log, and in the checkpoint.
"""

import asyncio
from array import array
from time import monotonic

from pgherd_sidecar.agent.apply.applying import applying, undeliverable
from pgherd_sidecar.agent.apply.piecereader import PieceReader
from pgherd_sidecar.agent.base.errors import DivergedError, LeftBehindError, SkippedError
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.commit.announcement import Announcement
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.log.news import LogListener
from pgherd_sidecar.agent.session.opening import Opening
from pgherd_sidecar.agent.session.parts import Callers, WritingParts
from pgherd_sidecar.agent.snapshots.orders import MarkerOrders
from pgherd_sidecar.agent.snapshots.scrub.scrub import Scrub
from pgherd_sidecar.core.commit.deciding import LargeDecision
from pgherd_sidecar.core.commit.path import CommitPath, Fate
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    PIECE_LAST,
    Entry,
    Incarnation,
    Intention,
    Marker,
    Members,
    Piece,
    Skip,
    Writeset,
    iter_entries,
    key_array,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind

_READ_BYTES = 1 << 20
_QUEUE_BYTES = 64 << 20
_FULL_S = 0.01


class Delivery(LogListener):
    """The delivery of one session, from its beginning to the first error.

    Invariant: the state's position is the last delivered entry; every link of the chain is a
    committed writeset (or a run of them) above the server's ``chain_end``.

    Args:
        host: the log.
        opening: where the session begins.
        path: the commit path, which decides.
        callers: hear verdicts.
        writing: gets work.
        announcement: hears that this incarnation has begun.
        marker_orders: hear of markers.
        scrub: hears of its own markers.
        verdicts: remember what was decided, for readers of the log.

    Attributes:
        counts: of decisions, by kind.
        failed: set to the error that ends the session.
    """

    def __init__(  # noqa: PLR0913 - all who hear of entries, by name
        self,
        host: LogHost,
        opening: Opening,
        *,
        path: CommitPath,
        callers: Callers,
        writing: WritingParts,
        announcement: Announcement,
        marker_orders: MarkerOrders,
        scrub: Scrub,
        verdicts: Verdicts,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.counts = dict.fromkeys(DecisionKind, 0)
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._host = host
        self._state = opening.state
        self._chain_end = opening.server.chain_end
        self._skips = opening.skips
        self._path = path
        self._decider = path.decider
        self._callers = callers
        self._hook = callers.hook
        self._applier = writing.applier
        self._large = writing.large
        self._announcement = announcement
        self._marker_orders = marker_orders
        self._scrub = scrub
        self._verdicts = verdicts
        self._old = host.commit_position
        self._again: asyncio.TimerHandle | None = None
        self._deciding: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Wait for the error that ends the session, and raise it."""
        await self.failed

    def stop(self) -> None:
        """Deliver nothing more."""
        if self._again is not None:
            self._again.cancel()
        if self._deciding is not None:
            self._deciding.cancel()

    # ---- the log -----------------------------------------------------------------------------

    def entries_committed(self) -> None:
        """See LogListener."""
        self.deliver()

    def proposer_changed(self) -> None:
        """See LogListener."""
        self._path.outbox.resubmit()
        self._hook.carry_out()
        self._callers.barriers.reign_changed()

    def barrier_reached(self) -> None:
        """See LogListener."""
        self._callers.barriers.serve_readers()

    def deliver(self) -> None:
        """Take what the log has committed, and tell sessions and readers who have waited for it."""
        try:
            self._deliver_committed()
            self._hook.carry_out()
            self._applier.wake()
        except Exception as error:  # noqa: BLE001 - a supervisor: the session ends with it
            self._fail(error)
        self._callers.barriers.serve_readers()

    def _deliver_committed(self) -> None:
        """Take it in order, as far as the applier keeps up."""
        if self.failed.done() or self._decider.large is not None:
            return
        if self._path.batches.queued_bytes > _QUEUE_BYTES:
            self._deliver_again(_FULL_S)
            return

        position = self._state.position
        blocks = self._host.reader.read(position + 1, _READ_BYTES)
        behind = position < self._host.commit_position
        if not blocks and behind and not self._host.reader.mending:
            raise LeftBehindError(f"the log no longer holds entry {position + 1}")
        for block in blocks:
            if not self._deliver_block(block.first, block.data):
                return
        if blocks and self._state.position < self._host.commit_position:
            self._deliver_again(0)  # after whatever else the loop has to do

    def _deliver_again(self, delay_s: float) -> None:
        """Go on later; once, however often the log calls meanwhile."""
        if self._again is None:
            self._again = self._loop.call_later(delay_s, self._deliver_rest)

    def _deliver_rest(self) -> None:
        self._again = None
        self.deliver()

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(undeliverable(error, self._state.position))

    # ---- entries -----------------------------------------------------------------------------

    def _deliver_block(self, first: int, data: bytes) -> bool:
        """Deliver a block; False if it stops before an entry that takes long to decide."""
        decide, now = self._decider.decide, monotonic()
        for gid, entry in enumerate(iter_entries(data), first):
            if gid <= self._state.position:
                continue
            keys = key_array(entry.keys) if isinstance(entry, Writeset) else None
            decision = decide(gid, entry, keys, now)
            if decision is None:
                assert self._decider.large is not None
                self._deciding = self._loop.create_task(self._decide_large(self._decider.large))
                break
            if isinstance(entry, Writeset):
                assert keys is not None
                self._deliver_writeset(gid, entry, keys, decision, now)
            else:
                self._deliver_other(gid, entry, decision)
                self._note(gid, decision)
        self._end_block()
        return self._decider.large is None

    async def _decide_large(self, large: LargeDecision) -> None:
        """Make a decision that takes long, step by step, and go on after it."""
        try:
            reader = PieceReader(self._host.reader, large.identity, large.first)
            while large.wants_pieces:
                pieces = await reader.fetch(large.gid)
                for _ in large.take_pieces([piece for _, piece in pieces]):
                    await asyncio.sleep(0)
            for _ in large.conclude():
                await asyncio.sleep(0)
            decision = self._decider.finish(large, monotonic())
            now, keys = monotonic(), array("q")
            self._deliver_writeset(large.gid, large.writeset, keys, decision, now, large.first)
            self._end_block()
        except Exception as error:  # noqa: BLE001 - a supervisor: the session ends with it
            self._fail(error)
        self.deliver()

    def _end_block(self) -> None:
        self._path.end_block()
        self._large.prune(self._state.is_open)  # any entry may make one too old

    def _deliver_writeset(
        self,
        gid: int,
        writeset: Writeset,
        keys: "array[int]",
        decision: Decision,
        now: float,
        pieces_from: int = 0,
    ) -> None:
        refusal = None
        if decision.kind is DecisionKind.REFUSED:
            refusal = self._callers.backend.why_held()
        try:
            fate = self._path.deliver_writeset(
                gid,
                writeset,
                keys,
                decision,
                now,
                pieces_from=pieces_from,
                refusal=refusal or "",
            )
        except Exception:  # of any type: what is wrong with an entry concerns this database only
            with applying(gid, self._path.chain.settled_gid):
                raise

        if fate is Fate.LEAK_LOST:
            raise DivergedError(
                f"transaction {writeset.xid} committed here without certification, and lost"
            )
        if fate is Fate.REMOTE and pieces_from:
            self._large.note_commit(gid, writeset)
        if writeset.flags & FLAG_DDL:
            self._callers.precedence.delivered()
            if fate is Fate.LOST:
                self._callers.precedence.lost(keys)
        self._note(gid, decision, pieces_from)

    def _deliver_other(self, gid: int, entry: Entry, decision: Decision) -> None:
        match entry:
            case Piece():
                self._deliver_piece(gid, entry, taken=decision.kind is DecisionKind.NOTHING)
            case Members():
                self._large.prune(self._state.is_open)
            case Incarnation():
                self._large.prune(self._state.is_open)
                self._announcement.delivered(gid, entry)
            case Intention():
                self._callers.precedence.delivered()
            case Skip():
                self._deliver_skip(entry)
            case Marker():
                self._deliver_marker(gid, entry)
            case _:
                pass

    def _deliver_piece(self, gid: int, piece: Piece, *, taken: bool) -> None:
        if self._path.deliver_piece(piece, monotonic(), counts=taken):
            return
        if piece.flags & PIECE_LAST:
            self._large.prune(self._state.is_open)
        elif taken and gid > self._chain_end:
            self._large.take_piece(gid, piece)

    def _deliver_marker(self, gid: int, marker: Marker) -> None:
        if gid <= self._old or self._scrub.take_marker(gid, marker):
            return
        if self._callers.backend.ready:  # then whoever ordered it counts on us
            self._marker_orders.take_marker(gid, marker)

    def _deliver_skip(self, skip: Skip) -> None:
        """Check that this database has not applied what is skipped; else it needs another's copy.

        Raises:
            SkippedError: this database has.
        """
        if skip.gid in self._state.databases.skipped and skip.gid not in self._path.passed:
            raise SkippedError(skip.gid)

    def _note(self, gid: int, decision: Decision, pieces_from: int = 0) -> None:
        committed = decision.kind is DecisionKind.COMMIT and gid not in self._skips
        self._verdicts.note_decision(gid, committed=committed, pieces_from=pieces_from or None)
        self.counts[decision.kind] += 1
