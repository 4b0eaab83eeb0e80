"""Errors put into the commit path on purpose, to prove that its simulator would find them.

Each replaces one method by a version that forgets one rule. The invariants are those of
``sim_commits``; a bug may be found by any of those that are named, "assert" being one that the
product makes itself.

Of the rules C1 to C27 these can't be broken in the commit path of a model: those of SQL that runs
in the server (C2, C3, C6, C10, C13, C22, C23), of the log and of membership (C18 to C21, C24, C26),
and of what is decided outside of a transaction's way (C1, C14, C25, C27).
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_server import Violation
from pgherd_sidecar.core.certification.certifier import AbortReason, Certifier, Conflict
from pgherd_sidecar.core.certification.examination import Examination
from pgherd_sidecar.core.commit import path as commit_path
from pgherd_sidecar.core.commit import victims
from pgherd_sidecar.core.commit.answers import Failed
from pgherd_sidecar.core.commit.batches import Batches, Work
from pgherd_sidecar.core.commit.chain import Chain, LocalLink
from pgherd_sidecar.core.commit.deciding import LargeDecision
from pgherd_sidecar.core.commit.outbox import Outbox
from pgherd_sidecar.core.commit.outcomes import Outcomes
from pgherd_sidecar.core.commit.path import CommitPath, Fate, fate_of
from pgherd_sidecar.core.commit.piecesender import PieceSender
from pgherd_sidecar.core.commit.underway import Pieces, Transaction, UnderWay
from pgherd_sidecar.core.commit.victims import Act, Situation, rule
from pgherd_sidecar.core.replication.entries import Piece, Writeset
from pgherd_sidecar.core.replication.pieces import OpenPieces
from pgherd_sidecar.core.replication.state import Decision, DecisionKind


@dataclass(frozen=True)
class CommitBug:
    """A replacement for `owner.attribute`.

    Attributes:
        rule: what it forgets.
        found_by: names of the invariants that may notice.
    """

    rule: str
    found_by: tuple[str, ...]
    owner: Any
    attribute: str
    replacement: Any

    def explains(self, error: AssertionError) -> bool:
        """Whether it may have led to this: a violation, or an assertion of the product itself."""
        name = str(error).split(":")[0] if isinstance(error, Violation) else "assert"
        return name in self.found_by


def _expire_as_abort(self: Outbox, one: UnderWay) -> None:
    session = one.session
    assert isinstance(one, Transaction) and session is not None
    self._detach(one)
    self.out.answers.append(Failed(session, "40001", "no majority has confirmed it in time"))


def _answer_everyone(
    self: Outbox, taken: set[int] | None, preview: "Callable[[array[int]], Conflict | None]"
) -> None:
    for transaction in self.pending.values():
        if taken is None or not taken.isdisjoint(transaction.slots):
            self.answer_abort(transaction, Conflict(AbortReason.CONFLICT, 0, 0))


def _tick_without_deadlines(self: Outbox, now: float) -> None:
    if any(now - one.sent_s > 2.0 for one in self.pending.values()):
        self.resubmit()


def _finish_and_take_over(self: Batches, work: Work) -> bool:
    self.queued_bytes -= work.bytes
    self._chain.settle_to(work.link.gid)
    self._unused.append(work.link.number)
    return False


def _pop_newest(self: Batches, now: float) -> Work | None:
    if self.ready_in_s(now) != 0.0:
        return None
    work = self._queue.pop()
    if work is self._open:
        self.close_batch()
    return work


def _close_never(self: Batches) -> None:
    pass


def _append_without_predecessor(
    self: CommitPath, gid: int, transaction: Transaction, pieces_from: int, now: float
) -> None:
    writeset, prev = transaction.writeset, self.chain.tail_gid
    self.batches.close_batch()
    self.chain.append(LocalLink(gid, prev, writeset.xid, transaction.pid, writeset, now))
    self.outbox.answer_commit(transaction, gid, prev, None, now)


def _append_without_name(
    self: CommitPath, gid: int, transaction: Transaction, pieces_from: int, now: float
) -> None:
    writeset, prev, tail = transaction.writeset, self.chain.tail_gid, self.chain.tail
    self.batches.close_batch()
    self.chain.append(LocalLink(gid, prev, writeset.xid, transaction.pid, writeset, now))
    self.outbox.answer_commit(transaction, gid, prev, tail, now)


def _fate_of_nobody(decision: Decision, transaction: Transaction | None, **flags: bool) -> Fate:
    return fate_of(decision, None, **flags)


def _fate_of_what_is_visible(
    decision: Decision, transaction: Transaction | None, **flags: bool
) -> Fate:
    return fate_of(decision, transaction, **(flags | {"visible": False}))


def _fate_of_the_dead(decision: Decision, transaction: Transaction | None, **flags: bool) -> Fate:
    fate = fate_of(decision, transaction, **flags)
    return Fate.VISIBLE if fate is Fate.REMOTE and transaction is not None else fate


def _repair_nothing(self: Chain, statuses: Mapping[int, str]) -> LocalLink | None:
    return None


def _repair_all_that_has_not_ended(self: Chain, statuses: Mapping[int, str]) -> LocalLink | None:
    for link in self.locals():
        if self.settled_gid < link.prev:
            return None
        if statuses.get(link.xid) != "committed" and link.gid > self.settled_gid:
            return link
    return None


def _settle_ahead(self: Chain, gid: int) -> None:
    _settle(self, self.tail_gid)


def _wake_nobody(self: Chain, gid: int, wake: Callable[[], None]) -> None:
    if gid <= self.settled_gid:
        wake()


def _link_after_settled(self: Chain) -> int:
    return self.settled_gid


def _never_for(*spared: Situation) -> Callable[[Situation, float], Act | None]:
    def spare(situation: Situation, age_s: float) -> Act | None:
        return None if situation in spared else rule(situation, age_s)

    return spare


_settle = Chain.settle_to
_note = Outcomes.note_writeset
_deliver_piece = PieceSender.deliver_piece
_certify = Certifier.certify
_finish = Batches.finish_item


# ---- verdicts and fates -----------------------------------------------------------------------


def _certify_all(self: Certifier, gid: int, keys: "array[int]") -> Conflict | None:
    _certify(self, gid, keys)
    return None


def _certify_without_shared_keys(self: Certifier, gid: int, keys: "array[int]") -> Conflict | None:
    """Forget the keys in the weakest mode, which only exclude commands (C16)."""
    strong = array("q")
    position = 0
    while position < len(keys):
        base, number = keys[position], keys[position + 1]
        group = [key for key in keys[position + 2 : position + 2 + number] if key & 3]
        if group:
            strong.extend((base, len(group), *group))
        position += 2 + number
    return _certify(self, gid, strong)


def _fate_without_others(
    decision: Decision, transaction: Transaction | None, **flags: bool
) -> Fate:
    fate = fate_of(decision, transaction, **flags)
    return Fate.NOTHING if fate is Fate.REMOTE and transaction is None else fate


def _fate_of_the_lost(decision: Decision, transaction: Transaction | None, **flags: bool) -> Fate:
    fate = fate_of(decision, transaction, **flags)
    lost = decision.kind is DecisionKind.ABORT and transaction is None and not flags["visible"]
    return Fate.REMOTE if lost else fate


def _fate_of_a_copy(decision: Decision, transaction: Transaction | None, **flags: bool) -> Fate:
    copy = decision.kind is DecisionKind.DUPLICATE and decision.conflict is None
    if copy and not flags["visible"]:
        return Fate.REMOTE
    return fate_of(decision, transaction, **flags)


def _fate_of_losers(decision: Decision, transaction: Transaction | None, **flags: bool) -> Fate:
    fate = fate_of(decision, transaction, **flags)
    waits = transaction is not None and transaction.session is not None
    return Fate.LOCAL if fate is Fate.LOST and waits else fate


def _note_copies(self: Outcomes, gid: int, writeset: Writeset, decision: Decision) -> None:
    if decision.kind in (DecisionKind.DUPLICATE, DecisionKind.STALE):
        decision = Decision(DecisionKind.ABORT)
    _note(self, gid, writeset, decision)


# ---- requests -----------------------------------------------------------------------------------


def _resubmit_nothing(self: Outbox) -> None:
    pass


def _detach_nobody(self: Outbox, transaction: Transaction) -> Any:
    return transaction.session


def _resume_for_nobody(self: Outbox, session: Any, xid: int) -> bool:
    return xid in self


# ---- batches and tokens -------------------------------------------------------------------------


def _finish_without_settling(self: Batches, work: Work) -> bool:
    settle, self._chain = self._chain, Chain(0)
    try:
        return _finish(self, work)
    finally:
        self._chain = settle


def _finish_and_keep_the_token(self: Batches, work: Work) -> bool:
    _finish(self, work)
    return False


def _pass_the_same_token(self: Batches, work: Work) -> tuple[int, int]:
    work.passed = True
    return work.link.number, self._next_token - 1


def _hold_nothing(self: Batches) -> None:
    pass


def _name_without_a_token(
    self: CommitPath, gid: int, transaction: Transaction, pieces_from: int, now: float
) -> None:
    """Forget an answer that names a batch whose token is not held yet."""
    _append_local(self, gid, transaction, pieces_from, now)
    self._deferred.clear()


def _schema_stays(self: Batches) -> None:
    pass


def _add_alone_beside_a_batch(self: Batches, gid: int | None, task: Any, size: int = 0) -> None:
    work = self._append(self._chain.tail_gid if gid is None else gid)
    work.link.closed = True
    work.task = task
    work.bytes = size
    self.queued_bytes += size


def _add_without_body(
    self: Batches, gid: int, writeset: Writeset, keys: "array[int]", now: float
) -> None:
    """Forget the rows of what joins a batch that collects."""
    joins = self._open is not None
    _add(self, gid, writeset, keys, now)
    if joins and self._open is not None and len(self._open.writesets) > 1:
        self._open.writesets.pop()


def _add_before(
    self: Batches, gid: int, writeset: Writeset, keys: "array[int]", now: float
) -> None:
    """Put what joins a batch before what is in it."""
    _add(self, gid, writeset, keys, now)
    if self._open is not None:
        self._open.writesets.insert(0, self._open.writesets.pop())


# ---- large transactions ------------------------------------------------------------------------


def _take_no_keys(self: LargeDecision, pieces: Sequence[Piece]) -> Iterator[None]:
    self._left -= len(pieces)
    return iter(())


def _wants_one_piece(self: LargeDecision) -> bool:
    return self._left > 0 and not self.examination.collected.count


def _end_without_judging(self: Examination) -> Iterator[None]:
    yield from self.collected.sort()


def _give_up_in_silence(self: PieceSender, large: Pieces) -> None:
    large.session = None
    self.open.pop(large.serial, None)


def _pop_and_keep_pieces(self: Outbox, sequence: int) -> Transaction | None:
    transaction = self.pending.pop(sequence, None)
    if transaction is not None:
        self._by_xid.pop(transaction.xid, None)
    return transaction


def _deliver_piece_in_silence(self: PieceSender, piece: Piece, now: float, *, counts: bool) -> None:
    before = len(self._out.answers)
    _deliver_piece(self, piece, now, counts=counts)
    del self._out.answers[before:]


def _apply_pieces_from_the_writeset(
    self: CommitPath, gid: int, writeset: Writeset, keys: "array[int]", pieces_from: int, now: float
) -> None:
    _append_remote(self, gid, writeset, keys, gid if pieces_from else 0, now)


def _end_nothing(self: OpenPieces, member: int, serial: int) -> None:
    pass


_append_local = CommitPath._append_local
_append_remote = CommitPath._append_remote
_add = Batches.add_writeset


COMMIT_BUGS = {
    "a late verdict is told as an abort": CommitBug(
        "nobody is told aborted who commits (C4)", ("told",), Outbox, "_expire", _expire_as_abort
    ),
    "who shares a key is told that it has lost": CommitBug(
        "nobody is told aborted who commits", ("told",), Outbox, "answer_losers", _answer_everyone
    ),
    "a waiter has no deadline": CommitBug(
        "every waiter is answered in time", ("answered",), Outbox, "tick", _tick_without_deadlines
    ),
    "the token of a named batch is taken over": CommitBug(
        "a token that was named is never recycled",
        ("token", "progress", "order", "once", "answered"),
        Batches,
        "finish_item",
        _finish_and_take_over,
    ),
    "the newest item is applied first": CommitBug(
        "visibility is GID order (C8)",
        ("order", "once", "progress"),
        Batches,
        "pop_ready",
        _pop_newest,
    ),
    "a batch collects past a local transaction": CommitBug(
        "a batch ends where a local transaction follows",
        ("order", "once", "progress", "token"),
        Batches,
        "close_batch",
        _close_never,
    ),
    "a local transaction waits for nobody": CommitBug(
        "visibility is GID order (C8)",
        ("order", "rows"),
        CommitPath,
        "_append_local",
        _append_without_predecessor,
    ),
    "a batch is named without a note of it": CommitBug(
        "a token that was named is handed on",
        ("token", "progress", "order", "rows", "answered"),
        CommitPath,
        "_append_local",
        _append_without_name,
    ),
    "a transaction that waits is applied as if remote": CommitBug(
        "every waiter is answered",
        ("answered", "progress", "told"),
        commit_path,
        "fate_of",
        _fate_of_nobody,
    ),
    "what is visible already is applied again": CommitBug(
        "each committed GID is written once",
        ("once", "assert"),
        commit_path,
        "fate_of",
        _fate_of_what_is_visible,
    ),
    "what nobody waits for is forgotten": CommitBug(
        "each committed GID is written once",
        ("once", "progress"),
        commit_path,
        "fate_of",
        _fate_of_the_dead,
    ),
    "nothing is repaired": CommitBug(
        "what a dead session left is written (C8)",
        ("progress", "answered"),
        Chain,
        "next_to_repair",
        _repair_nothing,
    ),
    "what has not ended is repaired": CommitBug(
        "each committed GID is written once",
        ("once", "order", "progress"),
        Chain,
        "next_to_repair",
        _repair_all_that_has_not_ended,
    ),
    "more is settled than is visible": CommitBug(
        "visibility is GID order (C8)", ("order", "progress"), Chain, "settle_to", _settle_ahead
    ),
    "who waits for visibility is not woken": CommitBug(
        "every waiter is answered", ("progress", "answered"), Chain, "when_settled", _wake_nobody
    ),
    "a certified transaction in the way is left alone": CommitBug(
        "the applier is never out of order (C9)",
        ("progress", "answered"),
        victims,
        "rule",
        _never_for(Situation.CERTIFIED_LATER, Situation.YIELDING),
    ),
    "an idle session in the way is left alone": CommitBug(
        "what is certain to commit is not kept waiting",
        ("progress", "answered"),
        victims,
        "rule",
        _never_for(Situation.IDLE),
    ),
    # ---- victims
    "a session that waits for a lock in its turn is left alone": CommitBug(
        "what is certain to commit is not kept waiting",
        ("progress", "answered"),
        victims,
        "rule",
        _never_for(Situation.WAITS_FOR_LOCK),
    ),
    "a statement that takes for ever is left alone": CommitBug(
        "what is certain to commit is not kept waiting",
        ("progress", "answered"),
        victims,
        "rule",
        _never_for(Situation.WORKS, Situation.PAUSES),
    ),
    "who sends pieces for ever is left alone": CommitBug(
        "what is certain to commit is not kept waiting",
        ("progress", "answered"),
        victims,
        "rule",
        _never_for(Situation.SENDS_PIECES),
    ),
    "who does not commit is left alone": CommitBug(
        "a certified transaction ends in bounded time (C2)",
        ("progress", "answered"),
        victims,
        "rule",
        _never_for(Situation.FIRST_OF_CHAIN),
    ),
    # ---- verdicts and fates
    "every writeset commits": CommitBug(
        "who has lost aborts (C7)", ("lost",), Certifier, "certify", _certify_all
    ),
    "a command excludes no writers": CommitBug(
        "keys of the table count (C15, C16)",
        ("lost",),
        Certifier,
        "certify",
        _certify_without_shared_keys,
    ),
    "what others commit is left out": CommitBug(
        "each committed GID is written once",
        ("once", "progress"),
        commit_path,
        "fate_of",
        _fate_without_others,
    ),
    "what has lost is written": CommitBug(
        "each committed GID is written once",
        ("once", "order"),
        commit_path,
        "fate_of",
        _fate_of_the_lost,
    ),
    "a copy is written again": CommitBug(
        "a copy is no second commit (C11)",
        ("once", "order"),
        commit_path,
        "fate_of",
        _fate_of_a_copy,
    ),
    "who has lost is told to commit": CommitBug(
        "nobody is told committed who has lost",
        ("told", "once", "order", "rows"),
        commit_path,
        "fate_of",
        _fate_of_losers,
    ),
    "a copy is remembered as an abort": CommitBug(
        "nobody is told aborted who commits (C4)",
        ("told",),
        Outcomes,
        "note_writeset",
        _note_copies,
    ),
    # ---- requests
    "what was lost is not sent again": CommitBug(
        "what is under way is decided (C11)",
        ("kept", "progress"),
        Outbox,
        "resubmit",
        _resubmit_nothing,
    ),
    "a transaction is answered twice": CommitBug(
        "one answer for each request", ("answered",), Outbox, "_detach", _detach_nobody
    ),
    "another session waits on in vain": CommitBug(
        "every waiter is answered", ("answered",), Outbox, "resume", _resume_for_nobody
    ),
    # ---- batches and tokens
    "what is written is not settled": CommitBug(
        "every waiter is answered",
        ("progress", "once", "order", "token"),
        Batches,
        "finish_item",
        _finish_without_settling,
    ),
    "a token that was named is not handed on": CommitBug(
        "a token that was named is handed on",
        ("progress", "answered"),
        Batches,
        "finish_item",
        _finish_and_keep_the_token,
    ),
    "the token that is handed on is taken again": CommitBug(
        "the applier holds the tokens of batches to come",
        ("answered", "progress", "token"),
        Batches,
        "pass_token",
        _pass_the_same_token,
    ),
    "tokens that are held are not counted": CommitBug(
        "every waiter is answered",
        ("answered", "progress", "token"),
        Batches,
        "hold_next",
        _hold_nothing,
    ),
    "an answer that waits for a token is forgotten": CommitBug(
        "every waiter is answered",
        ("answered", "progress"),
        CommitPath,
        "_append_local",
        _name_without_a_token,
    ),
    "a changed schema is not noted": CommitBug(
        "rows are written with the catalog of their moment (C16)",
        ("rows",),
        Batches,
        "note_schema_change",
        _schema_stays,
    ),
    "what stands alone passes a batch that collects": CommitBug(
        "visibility is GID order (C8)",
        ("order", "once", "progress", "assert"),
        Batches,
        "add_alone",
        _add_alone_beside_a_batch,
    ),
    "rows of a batch are left out": CommitBug(
        "each link writes all rows of its transactions",
        ("rows",),
        Batches,
        "add_writeset",
        _add_without_body,
    ),
    "a batch is merged in the wrong order": CommitBug(
        "each link writes the newest rows (C9)", ("rows",), Batches, "add_writeset", _add_before
    ),
    # ---- large transactions
    "keys in pieces are not examined": CommitBug(
        "a verdict does not depend on the size (C17)",
        ("once", "told", "order", "progress"),
        LargeDecision,
        "take_pieces",
        _take_no_keys,
    ),
    "only the first keys are examined": CommitBug(
        "a verdict does not depend on the size (C17)",
        ("once", "told", "order", "progress"),
        LargeDecision,
        "wants_pieces",
        property(_wants_one_piece),
    ),
    "what has lost by keys in pieces commits": CommitBug(
        "who has lost aborts (C7)", ("lost",), Examination, "find_verdict", _end_without_judging
    ),
    "what is given up is not said in the log": CommitBug(
        "the log is kept for open transactions only (C17)",
        ("kept",),
        PieceSender,
        "_give_up",
        _give_up_in_silence,
    ),
    "a transaction that is decided stays open": CommitBug(
        "nothing is open for ever", ("kept",), Outbox, "pop_delivered", _pop_and_keep_pieces
    ),
    "a piece is ordered and nobody hears": CommitBug(
        "every waiter is answered",
        ("answered",),
        PieceSender,
        "deliver_piece",
        _deliver_piece_in_silence,
    ),
    "pieces are read from the wrong place": CommitBug(
        "each link writes all rows of its transactions",
        ("rows",),
        CommitPath,
        "_append_remote",
        _apply_pieces_from_the_writeset,
    ),
    "pieces of what is decided are kept": CommitBug(
        "the log is kept for open transactions only (C17)",
        ("kept",),
        OpenPieces,
        "end_transaction",
        _end_nothing,
    ),
}
