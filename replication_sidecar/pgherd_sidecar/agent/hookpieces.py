"""Sends local transactions that are too large for one writeset, piece after piece.

While ``certify()`` reads what its transaction has captured it sends requests of about
``piece_bytes``. Each becomes one PIECE entry, or several where a single row is larger, and is
answered when it is ordered: so at most one piece of a transaction is under way, and a slow herd
slows the sender down. Nothing is decided by pieces: an error here means that the transaction has
not committed. The writeset that ends them is ``hook``'s.

What is given up is said to be so in the log, again until it is ordered, because the members keep
the log from the first piece of an open transaction on. Nothing survives a restart: a new
incarnation in the log ends whatever was open.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from pgherd_sidecar.agent.config import Limits
from pgherd_sidecar.agent.hookconnection import HookConnection
from pgherd_sidecar.agent.hookwritesets import REPEAT
from pgherd_sidecar.core.entries import PIECE_KEYS, PIECE_LAST, PIECE_MORE, Piece, encode_entry

log = structlog.get_logger()

_OPEN_MAX = 64
_RESUBMIT_S = 2.0
_IDLE_MAX_S = 600.0
"""The longest time between two requests of a session; certify() reads all that it captured."""


@dataclass(frozen=True, slots=True)
class HookLimits:
    """Bounds of local transactions.

    Attributes:
        row: largest request, in bytes: what one row may take.
        writeset: largest writeset that is ordered whole, in bytes.
        piece: bytes of a piece, more or less.
        transaction: bytes of all pieces of a transaction.
        keys: certification keys of a transaction in pieces, which all members hold in memory.
        wait_s: longest wait for a piece, or for a verdict.
    """

    row: int
    writeset: int
    piece: int
    transaction: int
    keys: int
    wait_s: float

    @classmethod
    def of(cls, limits: Limits) -> "HookLimits":
        """As they are configured."""
        return cls(
            limits.row_bytes,
            limits.writeset_bytes,
            limits.piece_bytes,
            limits.transaction_bytes,
            limits.transaction_keys,
            limits.verdict_timeout_ms / 1000,
        )


@dataclass(slots=True, eq=False)
class Outgoing:
    """A local transaction of which pieces are ordered.

    Attributes:
        connection: of the session; None once the transaction is given up.
        number: of the next piece.
        queue: the rest of the request under way, as flags and data.
        encoded: the entry under way, empty if there is none.
        refusal: what the next request is told, because the transaction is in the way.
    """

    serial: int
    xid: int
    pid: int
    connection: HookConnection | None
    since_s: float
    number: int = 0
    size_bytes: int = 0
    keys: int = 0
    queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    encoded: bytes = b""
    sent_s: float = 0.0
    refusal: str = ""


class PieceSender:
    """The transactions of one incarnation that are being sent in pieces.

    Args:
        submit: sends entries to the ordered log; False if that was not possible now.
    """

    def __init__(
        self,
        member: int,
        incarnation: int,
        submit: Callable[[bytes, int], bool],
        limits: HookLimits,
    ) -> None:
        self._member = member
        self._incarnation = incarnation
        self._submit = submit
        self._limits = limits
        self._serial = 0
        self._open: dict[int, Outgoing] = {}  # by serial
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        """Transactions that the log may hold pieces of, undecided."""
        return len(self._open)

    # ---- requests --------------------------------------------------------------------------

    def take_keys(self, connection: HookConnection, pid: int, xid: int, keys: "array[int]") -> None:
        """Send certification keys, in the byte order of the log; answers when they are ordered."""
        self._take(connection, pid, xid, PIECE_KEYS, keys.tobytes(), len(keys))

    def take_rows(self, connection: HookConnection, pid: int, xid: int, items: bytes) -> None:
        """Send changed rows; answers when they are ordered."""
        self._take(connection, pid, xid, 0, items, 0)

    def _take(
        self, connection: HookConnection, pid: int, xid: int, flags: int, data: bytes, keys: int
    ) -> None:
        one = self._of(xid) or self._begin(connection, pid, xid)
        one.size_bytes += len(data)
        one.keys += keys
        if one.refusal:
            self._fail(one, "40001", one.refusal, REPEAT)
        elif one.size_bytes > self._limits.transaction:
            hint = "Split it, or raise limits.transaction_bytes of its member."
            most = self._limits.transaction
            self._fail(one, "54000", f"the transaction writes more than {most} bytes", hint)
        elif one.keys > self._limits.keys:
            hint = "Split it, or raise limits.transaction_keys of its member."
            most = self._limits.keys
            self._fail(one, "54000", f"the transaction changes more than {most} keys", hint)
        elif len(self._open) > _OPEN_MAX:
            self._fail(one, "53000", "too many large transactions at a time", REPEAT)
        else:
            size = len(data) if flags & PIECE_KEYS else 2 * self._limits.piece
            starts = range(0, len(data), size)
            one.queue.extend(
                (flags | (PIECE_MORE if start != starts[-1] else 0), data[start : start + size])
                for start in starts
            )
            self._send_next(one)

    def _begin(self, connection: HookConnection, pid: int, xid: int) -> Outgoing:
        self._serial += 1
        one = Outgoing(self._serial, xid, pid, connection, self._loop.time())
        self._open[one.serial] = one
        return one

    def _of(self, xid: int) -> Outgoing | None:
        return next((one for one in self._open.values() if one.xid == xid and one.connection), None)

    def finish(self, xid: int) -> tuple[int, int, str] | None:
        """All pieces of a transaction are ordered, its writeset is next.

        Returns:
            Serial, number of pieces, and why it is refused all the same; None if it is not known.
        """
        one = self._of(xid)
        if one is None:
            return None
        if not one.refusal:
            one.connection = None  # its writeset will end it, whatever becomes of the session
        return one.serial, one.number, one.refusal

    def decided(self, serial: int) -> None:
        """The log has decided the transaction: nothing is open."""
        self._open.pop(serial, None)

    def refuse(self, pid: int) -> bool:
        """A session is in the way of what is certain to commit.

        If it sends pieces it is told at once, when it waits for one, else with its next request:
        sooner than it would be ended, so that it hears 40001.

        Returns:
            Whether it sends pieces.
        """
        sends = False
        for one in list(self._open.values()):
            if one.pid == pid and one.connection is not None:
                sends = True
                one.refusal = "could not serialize access due to a concurrent commit"
                if one.encoded:
                    self._fail(one, "40001", one.refusal, REPEAT)
        return sends

    def gone(self, connection: HookConnection) -> None:
        """A session has ended, or its transaction was interrupted."""
        for one in list(self._open.values()):
            if one.connection is connection:
                self._give_up(one)

    def goes_on(self, connection: HookConnection, xid: int) -> None:
        """A session is about a transaction: any other one of it will have no writeset."""
        for one in list(self._open.values()):
            if one.connection is connection and one.xid != xid:
                self._give_up(one)

    def stop(self) -> None:
        """The session with the server ends: nothing that is open will have a writeset."""
        for one in list(self._open.values()):
            if one.connection is not None:
                self._give_up(one)

    def give_up(self, xid: int) -> None:
        """A transaction whose pieces are ordered will have no writeset."""
        one = self._of(xid)
        if one is not None:
            self._give_up(one)

    # ---- the log ---------------------------------------------------------------------------

    def ordered(self, piece: Piece, *, taken: bool) -> None:
        """The log has delivered a piece of this incarnation.

        Args:
            taken: it counts; otherwise it is a copy, or was ruled out.
        """
        one = self._open.get(piece.serial)
        if one is None:
            return
        if piece.flags & PIECE_LAST:
            del self._open[one.serial]
        elif one.connection is not None and piece.number == one.number and one.encoded:
            if not taken:
                self._fail(one, "40001", "the transaction was overtaken by a later one", REPEAT)
                return
            one.number += 1
            one.encoded = b""
            if one.queue:
                self._send_next(one)
            else:
                one.since_s = self._loop.time()
                one.connection.done(b"OK")

    def resubmit(self) -> None:
        """Send again what is under way: it may be lost."""
        for one in self._open.values():
            self._send(one)

    def wait_longer(self, more_s: float) -> None:
        """What is ordered was not delivered for so long."""
        for one in self._open.values():
            one.since_s += more_s

    def sweep(self, *, late: bool) -> None:
        """Send again what may have been lost, and end what takes too long, if it is ``late``."""
        now = self._loop.time()
        for one in list(self._open.values()):
            waits_s = now - one.since_s
            if one.connection is not None and one.encoded and late:
                if waits_s > self._limits.wait_s:
                    self._fail(one, "25006", "no majority has confirmed a piece in time", REPEAT)
            elif one.connection is not None and waits_s > _IDLE_MAX_S:
                self._give_up(one)
            if one.encoded and now - one.sent_s > _RESUBMIT_S:
                self._send(one)

    # ---- help --------------------------------------------------------------------------------

    def _send_next(self, one: Outgoing) -> None:
        flags, data = one.queue.popleft()
        piece = Piece(self._member, self._incarnation, one.serial, one.number, flags, data)
        one.encoded = encode_entry(piece)
        one.since_s = self._loop.time()
        self._send(one)

    def _send(self, one: Outgoing) -> None:
        if one.encoded:
            one.sent_s = self._loop.time() if self._submit(one.encoded, 1) else 0.0

    def _fail(self, one: Outgoing, sqlstate: str, message: str, hint: str) -> None:
        connection = one.connection
        self._give_up(one)
        if connection is not None:
            connection.fail(sqlstate, message, "", hint)

    def _give_up(self, one: Outgoing) -> None:
        """Say in the log that the transaction has ended, if it may hold pieces of it."""
        log.info("pieces.given_up", serial=one.serial, pieces=one.number, bytes=one.size_bytes)
        one.connection = None
        one.queue.clear()
        if one.number == 0 and not one.encoded:
            del self._open[one.serial]
            return
        last = Piece(self._member, self._incarnation, one.serial, 0, PIECE_LAST, b"")
        one.encoded = encode_entry(last)
        self._send(one)
