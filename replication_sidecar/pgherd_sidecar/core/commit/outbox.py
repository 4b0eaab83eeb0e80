"""The local transactions under way: sent into the ordered log, and not decided yet. Free of IO.

A transaction is one entry, its writeset, or if it is large some pieces and then its writeset. Each
entry is submitted again until it is delivered, because a submission may be lost; copies are
recognised by their identity. A session that waits for too long hears that the outcome is unknown.

Nothing survives a restart: a new incarnation in the log rules out whatever was under way.

Times are seconds of the caller's clock, which should be finer than milliseconds.
"""

from array import array
from collections.abc import Callable

import msgspec

from pgherd_sidecar.core.certification.certifier import Conflict
from pgherd_sidecar.core.commit.answers import HELD, Aborted, Committed, Failed, Session
from pgherd_sidecar.core.commit.chain import Link
from pgherd_sidecar.core.commit.keys import key_slots, wire_keys
from pgherd_sidecar.core.commit.piecesender import PieceSender
from pgherd_sidecar.core.commit.underway import (
    Outgoing,
    Pieces,
    Transaction,
    TransactionLimits,
    UnderWay,
)
from pgherd_sidecar.core.replication.entries import (
    FLAG_PIECES,
    Writeset,
    encode_entry,
    pieces_body,
)

_RESUBMIT_S = 2.0


class Outbox:
    """The transactions of one incarnation that are under way, and the sessions that wait.

    Invariants:

    * an xid is under way at most once, so a transaction is never ordered under two identities;
    * a session gets one answer for each request, and none after it has ended;
    * the low-water mark of a writeset is the oldest sequence that is not delivered.

    Args:
        member: number of this member.
        incarnation: of its server.
        limits: bounds of transactions.

    Attributes:
        pending: whose writesets are under way, by sequence, oldest first.
        pieces: the large ones, until their writesets are decided.
        out: what is to be told and submitted.
    """

    def __init__(self, member: int, incarnation: int, limits: TransactionLimits) -> None:
        self.pending: dict[int, Transaction] = {}
        self.out = Outgoing()
        self.pieces = PieceSender(member, incarnation, limits, self.out)
        self._member = member
        self._incarnation = incarnation
        self._limits = limits
        self._by_xid: dict[int, Transaction] = {}
        self._sessions: dict[Session, Transaction] = {}  # that wait for a verdict
        self._pids: dict[Session, int] = {}
        self._sequence = 0
        self._paused_s: float | None = None

    def __contains__(self, xid: int) -> bool:
        """Whether the writeset of a transaction is under way."""
        return xid in self._by_xid

    @property
    def paused(self) -> bool:
        """Whether deadlines stand still, as one verdict takes long."""
        return self._paused_s is not None

    def token(self, xid: int) -> str:
        """Name a transaction of this incarnation as clients do."""
        return f"{self._member}.{self._incarnation}.{xid}"

    # ---- requests --------------------------------------------------------------------------

    def request(
        self,
        session: Session | None,
        pid: int,
        xid: int,
        flags: int,
        keys: "array[int]",
        body: bytes,
        now: float,
    ) -> None:
        """Put the writeset of a transaction on its way.

        Args:
            session: waits for the verdict; None if there is none any more.
            pid: of its session, 0 if that is gone.
            keys: groups ``base, n, key1 .. keyn``.
        """
        self._sequence = sequence = self._sequence + 1
        writeset = Writeset(
            self._member,
            self._incarnation,
            sequence,
            next(iter(self.pending), sequence),
            xid,
            flags,
            wire_keys(keys).tobytes(),
            body,
        )
        transaction = Transaction(
            xid,
            pid,
            session,
            encode_entry(writeset),
            now + self._limits.wait_s,
            now,
            writeset,
            keys,
            key_slots(keys),
            now,
        )
        self.pending[sequence] = self._by_xid[xid] = transaction
        self.out.unsent.append(transaction)
        if session is not None:
            self._sessions[session] = transaction
            self._pids[session] = pid

    def resume(self, session: Session, xid: int) -> bool:
        """Have another session wait on for a transaction; False if that is not under way."""
        transaction = self._by_xid.get(xid)
        if transaction is None:
            return False
        if transaction.session is not None:
            self._sessions.pop(transaction.session, None)
        transaction.session = session
        self._sessions[session] = transaction
        self._pids[session] = transaction.pid
        return True

    def request_last(
        self, session: Session, pid: int, xid: int, tables: tuple[str, ...], now: float
    ) -> None:
        """Put the writeset of a large transaction on its way: all its pieces are ordered."""
        body = self.pieces.end_pieces(session, xid, tables)
        if body is not None:
            encoded = msgspec.json.encode(body)
            self.request(session, pid, xid, FLAG_PIECES, array("q"), encoded, now)

    def end_session(self, session: Session) -> int:
        """A session has ended: nobody is answered there any more. Return its pid, 0 if unknown."""
        if self.pieces.open:
            self.pieces.interrupt(session)
        transaction = self._sessions.pop(session, None)
        if transaction is not None:
            transaction.session = None
        return self._pids.pop(session, 0)

    # ---- transactions in the way -------------------------------------------------------------

    def awaits_verdict(self, pid: int) -> bool:
        """Whether a session waits for its verdict."""
        return any(p.pid == pid and p.session is not None for p in self.pending.values())

    def sends_pieces(self, pid: int) -> bool:
        """Whether a session sends a transaction in pieces."""
        return self.pieces.sends_pieces(pid)

    # ---- the log -----------------------------------------------------------------------------

    def pop_delivered(self, sequence: int) -> Transaction | None:
        """Remove and return what was delivered; None if this incarnation did not send it."""
        transaction = self.pending.pop(sequence, None)
        if transaction is not None:
            self._by_xid.pop(transaction.xid, None)
            if transaction.writeset.flags & FLAG_PIECES:
                self.pieces.open.pop(pieces_body(transaction.writeset.body).serial, None)
        return transaction

    def resubmit(self) -> None:
        """Send everything under way again: the proposer is another one, or it was long ago."""
        self.out.unsent = [one for one in self._under_way() if one.encoded]

    def tick(self, now: float) -> None:
        """Send again what may have been lost, and answer sessions that have waited too long."""
        stale = False
        for one in self._under_way():
            stale = stale or (bool(one.encoded) and now - one.sent_s > _RESUBMIT_S)
            if self._paused_s is None and now >= one.deadline_s and one.session is not None:
                self._expire(one)
        if stale:
            self.resubmit()

    def _expire(self, one: UnderWay) -> None:
        if isinstance(one, Transaction):
            self._answer_unknown(one, "no majority has confirmed it in time")
        elif isinstance(one, Pieces):
            self.pieces.expire(one)

    def _under_way(self) -> list[UnderWay]:
        return [*self.pieces.open.values(), *self.pending.values()]

    def pause_deadlines(self, now: float) -> None:
        """Verdicts have to wait for one that takes long, though a majority is there."""
        self._paused_s = now

    def resume_deadlines(self, now: float) -> None:
        """The verdicts of what is ordered come now: sessions wait for a majority only."""
        assert self._paused_s is not None
        for one in self._under_way():
            one.deadline_s += now - self._paused_s
        self._paused_s = None

    # ---- verdicts ----------------------------------------------------------------------------

    def answer_commit(
        self, transaction: Transaction, gid: int, prev: int, predecessor: Link | None, now: float
    ) -> None:
        """Tell a transaction to commit, if its session has not ended meanwhile."""
        session = self._detach(transaction)
        if session is not None:
            waited_s = now - transaction.began_s
            self.out.answers.append(Committed(session, gid, prev, predecessor, waited_s))

    def answer_abort(self, transaction: Transaction, conflict: Conflict) -> None:
        """Answer ABORT, if somebody still waits (it may have been told before)."""
        session = self._detach(transaction)
        if session is not None:
            self.out.answers.append(Aborted(session, conflict, transaction.writeset))

    def answer_refused(self, transaction: Transaction, reason: str) -> None:
        """Answer that it had no effect anywhere, since the herd takes no writes."""
        session = self._detach(transaction)
        if session is not None:
            message = f"this node takes no writes: {reason}"
            self.out.answers.append(Failed(session, "25006", message, hint=HELD))

    def answer_superseded(self, transaction: Transaction) -> None:
        """Answer ABORT to what the log has ruled out before it was ordered."""
        session = self._detach(transaction)
        if session is not None:
            message = "this incarnation of the member is superseded"
            self.out.answers.append(Failed(session, "40001", message))

    def answer_losers(
        self, taken: set[int] | None, preview: "Callable[[array[int]], Conflict | None]"
    ) -> None:
        """Say it to those under way that have lost already: they may hold locks.

        Args:
            taken: keys just taken exclusively, without their mode (and a few other numbers);
                None if these are too many.
            preview: says what a writeset with these keys has lost to.
        """
        for transaction in self.pending.values():
            concerned = taken is None or not taken.isdisjoint(transaction.slots)
            if transaction.session is not None and concerned:
                conflict = preview(transaction.keys)
                if conflict is not None:
                    self.answer_abort(transaction, conflict)

    def _answer_unknown(self, transaction: Transaction, why: str) -> None:
        session = self._detach(transaction)
        assert session is not None
        self.out.answers.append(
            Failed(
                session,
                "08007",
                f"the outcome of this transaction is not known yet: {why}",
                f"Its token is {self.token(transaction.xid)}.",
                "Do not repeat it before you know: "
                "SELECT pgherd.transaction_status(token) answers on any member.",
            )
        )

    def _detach(self, transaction: Transaction) -> Session | None:
        session, transaction.session = transaction.session, None
        if session is not None:
            self._sessions.pop(session, None)
        return session
