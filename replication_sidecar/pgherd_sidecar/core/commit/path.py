"""The commit path of one node: the face that a session sees. Free of IO.

``CommitPath`` composes the outbox, the decider, the chain, the applier's queue, the rules for
victims and the memory of outcomes, and says what becomes of each delivered writeset on this node.
Use::

    path.outbox.request(...), path.outbox.tick(now), ...    what sessions and time bring
    path.decider.decide(gid, entry, keys, now)              what the log brings, see ``deciding``
    path.deliver_writeset(gid, writeset, keys, decision, now)   what that means here
    path.end_block()                                        after the entries of a block
    path.victims.judge(...)                                 what the server tells of locks
    path.batches.pop_ready(now), path.batches.finish_item(work)  what the applier writes

    effects = path.take_effects(now)
    effects.answers        tell sessions
    effects.submissions    submit; submission.sent goes to path.outbox.out.keep if that can't be

An answer that names a batch is handed out once the applier holds its token.
"""

from array import array
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

import msgspec

from pgherd_sidecar.core.certification.certifier import Conflict
from pgherd_sidecar.core.commit.answers import SessionAnswer
from pgherd_sidecar.core.commit.batches import Adopt, ApplyPieces, Batches, PassBy, RunDdl
from pgherd_sidecar.core.commit.chain import BatchLink, Chain, LocalLink
from pgherd_sidecar.core.commit.deciding import Decider
from pgherd_sidecar.core.commit.outbox import Outbox
from pgherd_sidecar.core.commit.outcomes import Outcomes
from pgherd_sidecar.core.commit.underway import Submission, Transaction, TransactionLimits
from pgherd_sidecar.core.commit.victims import Victims
from pgherd_sidecar.core.replication.entries import FLAG_DDL, FLAG_PIECES, Piece, Writeset
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState

_WITHOUT_EFFECT = Decision(DecisionKind.ABORT)


class Fate(Enum):
    """What becomes of a delivered writeset on this node."""

    #: It commits, and a session of this node waits for that: it is told, and commits.
    LOCAL = "local"
    #: It commits, and nobody waits: it is applied here.
    REMOTE = "remote"
    #: It commits, and is visible here since before this session began.
    VISIBLE = "visible"
    #: An administrator has had it skipped: it becomes a link without effect.
    SKIPPED = "skipped"
    #: A transaction of this node that committed uncertified: only its link is missing (C1).
    ADOPTED = "adopted"
    #: Likewise, and it has lost: this node differs from the others.
    LEAK_LOST = "leak lost"
    #: A transaction of this node has lost.
    LOST = "lost"
    #: A transaction of this node has no effect, since the herd takes no writes.
    REFUSED = "refused"
    #: The log had ruled a transaction of this node out before.
    STALE = "stale"
    #: It concerns nobody here.
    NOTHING = "nothing"


def fate_of(
    decision: Decision, transaction: Transaction | None, *, skipped: bool, visible: bool, leak: bool
) -> Fate:
    """Decide what becomes of a delivered writeset.

    Args:
        decision: the herd's.
        transaction: of this node, if it is one that is under way.
        skipped: an administrator has had it skipped.
        visible: its GID was visible when the session began.
        leak: its rows are here, and it has no link.
    """
    kind, fate = decision.kind, Fate.NOTHING
    if kind is DecisionKind.COMMIT:
        if skipped:
            fate = Fate.SKIPPED
        elif visible:
            fate = Fate.VISIBLE
        elif leak:
            fate = Fate.ADOPTED
        else:
            waits = transaction is not None and transaction.session is not None
            fate = Fate.LOCAL if waits else Fate.REMOTE
    elif leak and not visible and kind in (DecisionKind.ABORT, DecisionKind.REFUSED):
        fate = Fate.LEAK_LOST
    elif transaction is not None:
        if kind is DecisionKind.REFUSED:
            fate = Fate.REFUSED
        elif decision.conflict is not None:
            fate = Fate.LOST
        elif kind is DecisionKind.STALE:
            fate = Fate.STALE
    return fate


class CommitEffects(msgspec.Struct):
    """Everything to do after one or several inputs."""

    answers: list[SessionAnswer]
    submissions: list[Submission]


@dataclass(slots=True)
class _Deferred:
    """An answer that names a batch whose token is not held yet."""

    batch: BatchLink
    transaction: Transaction
    gid: int
    prev: int


class CommitPath:
    """The commit path of one node, while one session with its server lasts.

    Args:
        member: number of this member.
        incarnation: of its server.
        state: the replicated state; nobody else delivers to it.
        chain_end: the newest GID that is visible as the session begins.
        limits: bounds of transactions.
        skips: GIDs that an administrator has had skipped.
        passed: those of them whose links are without effect here already.
        singly_to: up to this GID each writeset is applied by itself.

    Attributes:
        leaks: xids of transactions that committed here uncertified and have no link.
        passed: those of ``skips`` whose links are without effect here.
    """

    def __init__(  # noqa: PLR0913 - where a session begins, the rest by name
        self,
        member: int,
        incarnation: int,
        state: ReplicatedState,
        chain_end: int,
        limits: TransactionLimits,
        *,
        skips: Collection[int] = (),
        passed: Collection[int] = (),
        singly_to: int = 0,
    ) -> None:
        self.chain = Chain(chain_end)
        self.outbox = Outbox(member, incarnation, limits)
        self.batches = Batches(self.chain, incarnation << 32, singly_to=singly_to)
        self.decider = Decider(state, self.outbox)
        self.victims = Victims(self.chain, self.outbox)
        self.outcomes = Outcomes()
        self.leaks: set[int] = set()
        self.passed = set(passed)
        self._origin = member, incarnation
        self._state = state
        self._chain_end = chain_end
        self._skips = skips
        self._taken: set[int] = set()
        self._took_much = False
        self._deferred: deque[_Deferred] = deque()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and nothing is to be applied."""
        return not self.outbox.pending and not self.batches.queued_bytes

    @property
    def visible_gid(self) -> int:
        """All up to this GID is visible to readers of this node."""
        settled = self.chain.settled_gid
        return settled if self.chain.tail_gid > settled else self._state.position

    # ---- the log -----------------------------------------------------------------------------

    def deliver_writeset(
        self,
        gid: int,
        writeset: Writeset,
        keys: "array[int]",
        decision: Decision,
        now: float,
        *,
        pieces_from: int = 0,
        refusal: str = "",
    ) -> Fate:
        """Take a writeset that the log has delivered.

        Args:
            gid: its position.
            writeset: the entry.
            keys: its ``key_array``, empty if it came in pieces.
            decision: the replicated state's.
            now: the time.
            pieces_from: position of its first piece, 0 if it came in one.
            refusal: why the herd takes no writes, where that is the decision.

        Returns:
            What becomes of it here.
        """
        transaction = None
        skipped = gid in self._skips
        if (writeset.member, writeset.incarnation) == self._origin and not skipped:
            transaction = self.outbox.pop_delivered(writeset.sequence)
        fate = fate_of(
            decision,
            transaction,
            skipped=skipped,
            visible=gid <= self._chain_end,
            leak=writeset.member == self._origin[0] and writeset.xid in self.leaks,
        )
        effective = _WITHOUT_EFFECT if fate is Fate.SKIPPED else decision
        self.outcomes.note_writeset(gid, writeset, effective)
        if decision.kind is DecisionKind.COMMIT and self.outbox.pending:  # else nobody can lose
            self._taken.update([key >> 2 for key in keys if key & 2])
            self._took_much = self._took_much or bool(pieces_from)
        if fate is Fate.REMOTE:
            self._append_remote(gid, writeset, keys, pieces_from, now)
        elif transaction is not None:
            self._conclude(fate, gid, transaction, decision, refusal, pieces_from, now)
        if fate is Fate.ADOPTED:
            self.batches.add_alone(gid, Adopt(writeset.xid))
        elif fate is Fate.SKIPPED:
            self.passed.add(gid)
            if gid > self._chain_end:
                self.batches.add_alone(gid, PassBy())
        return fate

    def deliver_piece(self, piece: Piece, now: float, *, counts: bool) -> bool:
        """Take a piece that the log has delivered; False if it is not of this incarnation.

        Args:
            piece: the entry.
            now: the time.
            counts: otherwise it is a copy, or was ruled out.
        """
        own = (piece.member, piece.incarnation) == self._origin
        if own:
            self.outbox.pieces.deliver_piece(piece, now, counts=counts)
        return own

    def end_block(self) -> None:
        """Tell transactions under way that have lost to what was delivered since the last call."""
        if self._took_much:
            self.outbox.answer_losers(None, self._state.preview)
        elif self._taken:
            self.outbox.answer_losers(self._taken, self._state.preview)
        self._taken = set()
        self._took_much = False

    def preview(self, keys: "array[int]") -> Conflict | None:
        """What a writeset with these keys loses against, wherever it would be ordered."""
        return self._state.preview(keys)

    def must_yield(self, xid: int) -> bool:
        """Whether a certified transaction has to give way to the applier (C9)."""
        return any(link.yielding for link in self.chain.locals() if link.xid == xid)

    def outcome(self, xid: int) -> str:
        """What became of a transaction of this incarnation; see ``Outcomes``.

        One that was told to commit and has not ended is known however much came after it.
        """
        told = next((link.gid for link in self.chain.locals() if link.xid == xid), None)
        return f"committed {told}" if told else self.outcomes.of(self.outbox.token(xid))

    # ---- effects -----------------------------------------------------------------------------

    def take_effects(self, now: float) -> CommitEffects:
        """What is to be done after all inputs since the last call."""
        while self._deferred and self._deferred[0].batch.number < self.batches.token_limit:
            one = self._deferred.popleft()
            self.outbox.answer_commit(one.transaction, one.gid, one.prev, one.batch, now)
        out = self.outbox.out
        return CommitEffects(out.take_answers(), out.take_submissions(now))

    # ---- the chain ---------------------------------------------------------------------------

    def _append_remote(
        self, gid: int, writeset: Writeset, keys: "array[int]", pieces_from: int, now: float
    ) -> None:
        """Have a writeset applied as the next link."""
        if writeset.flags & FLAG_PIECES:
            self.batches.add_alone(gid, ApplyPieces(writeset, pieces_from))
        elif writeset.flags & FLAG_DDL:
            self.batches.add_alone(gid, RunDdl(writeset), len(writeset.body))
        else:
            self.batches.add_writeset(gid, writeset, keys, now)

    def _conclude(
        self,
        fate: Fate,
        gid: int,
        transaction: Transaction,
        decision: Decision,
        refusal: str,
        pieces_from: int,
        now: float,
    ) -> None:
        """Tell a transaction of this node its verdict."""
        if fate is Fate.LOCAL:
            self._append_local(gid, transaction, pieces_from, now)
        elif fate is Fate.LOST and decision.conflict is not None:
            self.outbox.answer_abort(transaction, decision.conflict)
        elif fate is Fate.REFUSED:
            self.outbox.answer_refused(transaction, refusal or "the herd takes no writes")
        elif fate is Fate.STALE:
            self.outbox.answer_superseded(transaction)

    def _append_local(
        self, gid: int, transaction: Transaction, pieces_from: int, now: float
    ) -> None:
        """Tell a transaction that waits to commit, after the last link of the chain."""
        tail, prev = self.chain.tail, self.chain.tail_gid
        writeset = transaction.writeset
        self.batches.close_batch()
        self.chain.append(
            LocalLink(gid, prev, writeset.xid, transaction.pid, writeset, now, pieces_from)
        )
        if writeset.flags & FLAG_DDL:
            self.batches.note_schema_change()
        if isinstance(tail, BatchLink):
            tail.named = True
            if tail.number >= self.batches.token_limit:
                self._deferred.append(_Deferred(tail, transaction, gid, prev))
                return
        self.outbox.answer_commit(transaction, gid, prev, tail, now)
