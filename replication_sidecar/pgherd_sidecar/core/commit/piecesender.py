"""Large local transactions: their pieces, until their writesets are on their way. Free of IO.

While ``certify()`` reads what a large transaction has captured it sends requests of about
``piece`` bytes. Each becomes one PIECE entry, or several where a single row is larger, and is
answered when it is ordered: so at most one piece of a transaction is under way, and a slow herd
slows the sender down. Nothing is decided by pieces: an error there means that the transaction has
not committed. What is given up is said to be so in the log, again until it is ordered, because the
members keep the log from the first piece of an open transaction on.
"""

from array import array
from collections.abc import Iterable

from pgherd_sidecar.core.commit.answers import (
    OVERTAKEN,
    REPEAT,
    Failed,
    GivenUp,
    PieceOrdered,
    Session,
)
from pgherd_sidecar.core.commit.keys import wire_keys
from pgherd_sidecar.core.commit.underway import Outgoing, Pieces, TransactionLimits
from pgherd_sidecar.core.replication.entries import (
    PIECE_KEYS,
    PIECE_LAST,
    PIECE_MORE,
    Piece,
    PiecesBody,
    encode_entry,
)

_OPEN_MAX = 64
_IDLE_MAX_S = 600.0
"""The longest time between two requests of a session; certify() reads all that it captured."""


class PieceSender:
    """The transactions of one incarnation that the log may hold pieces of, undecided.

    Args:
        member: number of this member.
        incarnation: of its server.
        limits: bounds of transactions.
        out: takes answers, and entries to submit.

    Attributes:
        open: by serial, oldest first.
    """

    def __init__(
        self, member: int, incarnation: int, limits: TransactionLimits, out: Outgoing
    ) -> None:
        self.open: dict[int, Pieces] = {}
        self._member = member
        self._incarnation = incarnation
        self._limits = limits
        self._out = out
        self._serial = 0

    # ---- requests --------------------------------------------------------------------------

    def request_keys(
        self, session: Session, pid: int, xid: int, keys: "array[int]", now: float
    ) -> None:
        """Send certification keys of a large transaction; answered when they are ordered."""
        self._request_piece(
            session, pid, xid, PIECE_KEYS, wire_keys(keys).tobytes(), len(keys), now
        )

    def request_rows(self, session: Session, pid: int, xid: int, items: bytes, now: float) -> None:
        """Send changed rows of a large transaction; answered when they are ordered."""
        self._request_piece(session, pid, xid, 0, items, 0, now)

    def _request_piece(
        self,
        session: Session,
        pid: int,
        xid: int,
        flags: int,
        data: bytes,
        keys: int,
        now: float,
    ) -> None:
        large = self._sending_pieces_of(xid) or self._begin(session, pid, xid, now)
        limits = self._limits
        large.size_bytes += len(data)
        large.keys += keys
        if large.refusal:
            self._fail(large, "40001", large.refusal, REPEAT)
        elif large.size_bytes > limits.transaction:
            hint = "Split it, or raise limits.transaction_bytes of its member."
            message = f"the transaction writes more than {limits.transaction} bytes"
            self._fail(large, "54000", message, hint)
        elif large.keys > limits.keys:
            hint = "Split it, or raise limits.transaction_keys of its member."
            message = f"the transaction changes more than {limits.keys} keys"
            self._fail(large, "54000", message, hint)
        elif len(self.open) > _OPEN_MAX:
            self._fail(large, "53000", "too many large transactions at a time", REPEAT)
        else:
            size = len(data) if flags & PIECE_KEYS else 2 * limits.piece
            starts = range(0, len(data), size)
            large.queue.extend(
                (flags | (PIECE_MORE if start != starts[-1] else 0), data[start : start + size])
                for start in starts
            )
            self._send_next_piece(large, now)

    def end_pieces(self, session: Session, xid: int, tables: tuple[str, ...]) -> PiecesBody | None:
        """The writeset of a transaction on these tables follows; return its body.

        None if there can't be one: the session is told.
        """
        large = self._sending_pieces_of(xid)
        if large is None or large.refusal:
            self.give_up(xid)
            reason = large.refusal if large is not None else "its pieces are gone"
            self._out.answers.append(Failed(session, "40001", reason))
            return None
        large.session = None  # its writeset will end it, whatever becomes of the session
        return PiecesBody(large.serial, large.number, tables)

    def begin_request(self, session: Session, xid: int) -> None:
        """A session is about a transaction: any other large one of it will have no writeset."""
        for large in list(self.open.values()):
            if large.session is session and large.xid != xid:
                self._give_up(large)

    def give_up(self, xid: int) -> None:
        """A transaction whose pieces are ordered will have no writeset."""
        large = self._sending_pieces_of(xid)
        if large is not None:
            self._give_up(large)

    def interrupt(self, session: Session) -> None:
        """A session ends the transaction that it sends in pieces."""
        for large in list(self.open.values()):
            if large.session is session:
                self._give_up(large)

    def end_all(self) -> None:
        """The server ends: no large transaction that is open will have a writeset."""
        for large in list(self.open.values()):
            if large.session is not None:
                self._give_up(large)

    # ---- transactions in the way -------------------------------------------------------------

    def sends_pieces(self, pid: int) -> bool:
        """Whether a session sends a transaction in pieces."""
        return any(p.pid == pid and p.session is not None for p in self.open.values())

    def refuse_pieces(self, pid: int) -> None:
        """A session that sends pieces is in the way of what is certain to commit.

        It is told at once, when it waits for one, else with its next request.
        """
        for large in list(self.open.values()):
            if large.pid == pid and large.session is not None:
                large.refusal = OVERTAKEN
                if large.encoded:
                    self._fail(large, "40001", large.refusal, REPEAT)

    # ---- the log and time ------------------------------------------------------------------

    def deliver_piece(self, piece: Piece, now: float, *, counts: bool) -> None:
        """The log has delivered a piece of this incarnation.

        Args:
            piece: the entry.
            now: the time.
            counts: otherwise it is a copy, or was ruled out.
        """
        large = self.open.get(piece.serial)
        if large is None:
            return
        if piece.flags & PIECE_LAST:
            del self.open[large.serial]
        elif large.session is not None and piece.number == large.number and large.encoded:
            if not counts:
                message = "the transaction was overtaken by a later one"
                self._fail(large, "40001", message, REPEAT)
                return
            large.number += 1
            large.encoded = b""
            if large.queue:
                self._send_next_piece(large, now)
            else:
                large.deadline_s = now + _IDLE_MAX_S
                self._out.answers.append(PieceOrdered(large.session))

    def expire(self, large: Pieces) -> None:
        """A transaction has waited too long: for an order, or for its session's next request."""
        if large.encoded:
            self._fail(large, "25006", "no majority has confirmed a piece in time", REPEAT)
        else:
            self._give_up(large)

    # ---- steps -----------------------------------------------------------------------------

    def _begin(self, session: Session, pid: int, xid: int, now: float) -> Pieces:
        self._serial = serial = self._serial + 1
        self.open[serial] = large = Pieces(xid, pid, session, b"", now, now, serial)
        return large

    def _sending_pieces_of(self, xid: int) -> Pieces | None:
        opened: Iterable[Pieces] = self.open.values()
        return next((one for one in opened if one.xid == xid and one.session is not None), None)

    def _send_next_piece(self, large: Pieces, now: float) -> None:
        flags, data = large.queue.popleft()
        piece = Piece(self._member, self._incarnation, large.serial, large.number, flags, data)
        large.encoded = encode_entry(piece)
        large.deadline_s = now + self._limits.wait_s
        self._out.unsent.append(large)

    def _fail(self, large: Pieces, sqlstate: str, message: str, hint: str) -> None:
        session = large.session
        self._give_up(large)
        if session is not None:
            self._out.answers.append(Failed(session, sqlstate, message, hint=hint))

    def _give_up(self, large: Pieces) -> None:
        """Say in the log that the transaction has ended, if it may hold pieces of it."""
        self._out.answers.append(GivenUp(large.serial, large.number, large.size_bytes))
        large.session = None
        large.queue.clear()
        if large.number == 0 and not large.encoded:
            del self.open[large.serial]
            return
        last = Piece(self._member, self._incarnation, large.serial, 0, PIECE_LAST, b"")
        large.encoded = encode_entry(last)
        self._out.unsent.append(large)
