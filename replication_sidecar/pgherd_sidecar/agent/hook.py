"""Where ``pgherd.certify()`` calls: the socket on which local transactions wait for their verdict.

Each session of the server has one dblink connection here. Requests, one query each::

    W secret pid xid flags \\n keys \\n body    order this writeset, answer its verdict
    B secret pid xid flags \\n data    order a piece of a large transaction (see ``hookpieces``)
    R secret xid       go on waiting for it (after a cancel)
    P secret xid gid   answer when this GID is visible here
    Y secret xid       may the certified transaction go on?
    T secret token     what became of this transaction?
    I secret xid \\n keys   a command begins that takes these keys at least: may it go on?
    S secret ms        which GID covers all that was acknowledged before? So long: "WAIT" then
    G secret ms        go on waiting for that

The body of a writeset that comes after pieces (flag 2) lists the tables, and it has no keys.

``HookServer`` takes the requests, checks what can be checked before the log has ordered anything,
and refuses. What is to be ordered goes through ``hookwritesets``, or ``hookpieces`` if it is large.
It decides nothing: ``session`` does when the log delivers. Nothing survives a restart.
"""

import asyncio
import hmac
from array import array
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from pgherd_sidecar.agent.hookconnection import HookConnection, Pending
from pgherd_sidecar.agent.hookpieces import HookLimits, PieceSender
from pgherd_sidecar.agent.hooktext import explain, parse_keys, wire_keys
from pgherd_sidecar.agent.hookwritesets import HELD, REPEAT, WritesetSender
from pgherd_sidecar.core.certifier import Conflict
from pgherd_sidecar.core.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    PIECE_KEYS,
    PiecesBody,
    pieces_body,
)
from pgherd_sidecar.core.merge import decode_items
from pgherd_sidecar.pg.ddl import DdlNotSupported, resolve_commands
from pgherd_sidecar.pg.hookwire import OVERSIZED

log = structlog.get_logger()

_SWEEP_S = 0.25


class HookBackend(Protocol):
    """What the hook needs of the replica."""

    def refusal(self) -> str | None:
        """Why this node takes no writes now, None if it does."""

    def held(self) -> bool:
        """Whether that is only because the herd takes none."""

    def when_visible(self, gid: int, wake: Callable[[], None]) -> None:
        """Call ``wake`` once ``gid`` is visible on this node; repair it if need be."""

    def lost(self, keys: "array[int]") -> Conflict | None:
        """What a writeset with these keys loses against, wherever it would be ordered."""

    def must_yield(self, xid: int) -> bool:
        """The certified transaction has to give way to the applier."""

    def outcome(self, token: str) -> str:
        """What became of a transaction, by its token ``member.incarnation.xid``."""

    def ask(self, xid: int, keys: "array[int]", answer: Callable[[], None]) -> None:
        """A command is about to begin (see ``precedence``)."""

    def when_free(self, xid: int, keys: "array[int]", go: Callable[[], None]) -> None:
        """A writeset is to be ordered by ``go``, now or soon (see ``precedence``)."""

    def command_lost(self, keys: "array[int]") -> None:
        """A command of this node lost before it was ordered."""

    def barrier(
        self, who: Hashable, wait_s: float, answer: Callable[[bytes], None], *, begins: bool
    ) -> None:
        """A reader wants to see all that was acknowledged before (see ``barriers``)."""

    def left(self, who: Hashable) -> None:
        """Whoever waited on this connection does not any more."""

    def gone(self, pid: int) -> None:
        """A session ended; what it was certified for may have to be repaired."""


class HookServer:
    """The socket, and what came through it.

    Attributes:
        writesets: that are under way;
        pieces: likewise, of large transactions.

    Args:
        directory: where the socket is made; only the server's account may reach it.
        secret: what each message must carry.
        submit: sends entries to the ordered log; False if that was not possible now.
        backend: see `HookBackend`.
        limits: bounds of transactions, and of the wait for a verdict before 08007.
    """

    def __init__(
        self,
        *,
        directory: Path,
        secret: str,
        member: int,
        incarnation: int,
        submit: Callable[[bytes, int], bool],
        backend: HookBackend,
        limits: HookLimits,
    ) -> None:
        self.backend = backend
        self.query_max = limits.row
        self.writesets = WritesetSender(member, incarnation, submit, limits.wait_s)
        self.pieces = PieceSender(member, incarnation, submit, limits)
        self._path = directory / ".s.PGSQL.1"
        self._secret = secret.encode()
        self._member = member
        self._incarnation = incarnation
        self._writeset_max = limits.writeset
        self._paused_s: float | None = None
        self._server: asyncio.AbstractServer | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._connections: set[HookConnection] = set()
        self._waiting: dict[
            int, HookConnection
        ] = {}  # xid -> who waits until its writeset is ordered
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Listen."""
        self._path.unlink(missing_ok=True)
        self._server = await self._loop.create_unix_server(
            lambda: HookConnection(self), str(self._path)
        )
        self._path.chmod(0o600)
        self._sweep()

    async def stop(self) -> None:
        """Close everything; who still waits learns that the outcome is unknown here."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)
        self.pieces.stop()
        for connection in list(self._connections):
            connection.close()

    # ---- requests --------------------------------------------------------------------------

    def request(self, connection: "HookConnection", query: bytes) -> None:
        """Handle one query of a session."""
        if query == OVERSIZED:
            connection.fail(
                "54000",
                f"a row of the transaction takes more than {self.query_max} bytes",
                hint="Store such values elsewhere, or raise limits.row_bytes of every member.",
            )
            self.pieces.gone(connection)
            return
        head, _, rest = query.partition(b"\n")
        words = head.split(b" ")
        if len(words) < 3 or not hmac.compare_digest(words[1], self._secret):
            # A stranger, or a transaction older than this incarnation of the sidecar. What it
            # asks to be ordered never will be; of anything else this incarnation knows nothing.
            code = "40001" if words[0] in (b"W", b"B") else "08006"
            connection.fail(code, "the sidecar has begun anew during this transaction")
            return
        if words[0] in (b"W", b"B"):
            self.pieces.goes_on(connection, int(words[3]))
        match words[0]:
            case b"W":
                self._order(connection, words, rest)
            case b"B":
                self._order_piece(connection, words, rest)
            case b"R":
                self._resume(connection, int(words[2]))
            case b"P":
                self.backend.when_visible(int(words[3]), lambda: connection.done(b"OK"))
            case b"Y":
                yields = self.backend.must_yield(int(words[2]))
                connection.done(b"YIELD" if yields else b"GO")
            case b"I":
                keys = array("q", [int(key) for key in rest.split(b",") if key])
                self.backend.ask(int(words[2]), keys, lambda: connection.done(b"OK"))
            case b"S" | b"G":
                wait_s, begins = int(words[2]) / 1000, words[0] == b"S"
                self.backend.barrier(connection, wait_s, connection.done, begins=begins)
            case b"T":
                connection.done(self.backend.outcome(words[2].decode()).encode())
            case _:
                connection.fail("08P01", "unknown request")

    def _order(self, connection: "HookConnection", words: list[bytes], rest: bytes) -> None:
        flags, xid = int(words[4]), int(words[3])
        if self._refuses(connection):
            self.pieces.give_up(xid)
            return
        keys_text, _, body = rest.partition(b"\n")
        if xid in self.writesets or xid in self._waiting:
            connection.fail("08007", "this transaction has been sent before")
            return
        if flags & FLAG_PIECES:
            self._order_last(connection, int(words[2]), xid, body)
            return
        if len(rest) > self._writeset_max:
            connection.fail(
                "54000",
                f"the transaction writes more than {self._writeset_max} bytes"
                + (", and holds DDL" if flags & FLAG_DDL else " and was not sent in pieces"),
                hint="Write the rows in a transaction of their own."
                if flags & FLAG_DDL
                else "Raise limits.writeset_bytes of its member above limits.piece_bytes.",
            )
            return
        if flags & FLAG_DDL:
            try:
                items = resolve_commands(decode_items(body))
                body = msgspec.json.encode(items)
            except DdlNotSupported as error:
                connection.fail("0A000", str(error), hint=error.hint)
                return
        keys, pid = parse_keys(keys_text), int(words[2])
        self._waiting[xid] = connection
        self.backend.when_free(
            xid, keys, lambda: self._send(connection, xid, flags, keys, body, pid)
        )

    def _send(
        self,
        connection: "HookConnection",
        xid: int,
        flags: int,
        keys: "array[int]",
        body: bytes,
        pid: int,
    ) -> None:
        """Order a writeset, unless it has lost, or its session has not waited for this."""
        if self._waiting.pop(xid, None) is not connection or self._refuses(connection):
            return
        conflict = self.backend.lost(keys)
        if conflict is None:
            self.writesets.send(xid, flags, keys, body, pid)
            self.writesets.await_verdict(connection, xid)
        else:  # no need to order what has lost already
            if flags & FLAG_DDL:
                self.backend.command_lost(keys)
            connection.fail("40001", *explain(conflict, body), REPEAT)
            self.writesets.figures.lost(conflict, body)

    def _refuses(self, connection: "HookConnection") -> bool:
        """Tell a session so, if this node takes no writes."""
        refusal = self.backend.refusal()
        if refusal is not None:
            connection.fail(
                "25006",
                f"this node takes no writes: {refusal}",
                hint=HELD if self.backend.held() else "Connect to a member whose state is primary.",
            )
        return refusal is not None

    def _order_piece(self, connection: "HookConnection", words: list[bytes], rest: bytes) -> None:
        flags, xid, pid = int(words[4]), int(words[3]), int(words[2])
        if self._refuses(connection):
            self.pieces.give_up(xid)
        elif not flags & PIECE_KEYS:
            self.pieces.take_rows(connection, pid, xid, rest)
        else:
            keys = parse_keys(rest)
            conflict = self.backend.lost(keys)
            if conflict is None:
                self.pieces.take_keys(connection, pid, xid, wire_keys(keys))
            else:
                self.pieces.give_up(xid)
                connection.fail("40001", *explain(conflict, b"[]"), REPEAT)
                self.writesets.figures.lost(conflict, b"[]")

    def _order_last(self, connection: "HookConnection", pid: int, xid: int, tables: bytes) -> None:
        """Order the writeset that ends a transaction in pieces."""
        found = self.pieces.finish(xid)
        if found is None or found[2]:
            self.pieces.give_up(xid)
            connection.fail("40001", found[2] if found else "its pieces are gone", hint=REPEAT)
            return
        names = msgspec.json.decode(tables, type=tuple[str, ...])
        body = msgspec.json.encode(PiecesBody(found[0], found[1], names))
        self.writesets.send(xid, FLAG_PIECES, array("q"), body, pid)
        self.writesets.await_verdict(connection, xid)

    def adopt(self, xid: int, flags: int, keys_text: bytes, body: bytes) -> None:
        """Order what a transaction wrote that committed without being certified (C1)."""
        self.writesets.send(xid, flags, parse_keys(keys_text), body, 0)

    def _resume(self, connection: "HookConnection", xid: int) -> None:
        self._waiting.pop(xid, None)  # it is told that it was interrupted, and so it must not go on
        if self.writesets.await_verdict(connection, xid):
            return
        outcome = self.backend.outcome(f"{self._member}.{self._incarnation}.{xid}")
        if outcome.startswith("committed"):
            connection.fail("08007", f"the transaction is {outcome}, its session was too late")
        else:
            connection.fail("40001", "the transaction was interrupted", hint=REPEAT)

    # ---- the log ---------------------------------------------------------------------------

    def take(self, sequence: int) -> Pending | None:
        """Remove and return what was delivered; None if this incarnation did not send it."""
        pending = self.writesets.take(sequence)
        if pending is not None and pending.writeset.flags & FLAG_PIECES:
            self.pieces.decided(pieces_body(pending.writeset.body).serial)
        return pending

    def resubmit(self) -> None:
        """Send everything under way again: the proposer is another one."""
        self.writesets.resubmit()
        self.pieces.resubmit()

    def _sweep(self) -> None:
        late = self._paused_s is None
        self.writesets.sweep(late=late)
        self.pieces.sweep(late=late)
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def pause_deadlines(self) -> None:
        """Verdicts have to wait for one that takes long, though a majority is there."""
        self._paused_s = self._loop.time()

    def resume_deadlines(self) -> None:
        """The verdicts of what is ordered come now: who waits waits for a majority only."""
        assert self._paused_s is not None
        paused_s, self._paused_s = self._loop.time() - self._paused_s, None
        self.writesets.wait_longer(paused_s)
        self.pieces.wait_longer(paused_s)

    # ---- connections -----------------------------------------------------------------------

    def opened(self, connection: "HookConnection") -> None:
        """Note a new session."""
        self._connections.add(connection)

    def closed(self, connection: "HookConnection") -> None:
        """Note the end of a session."""
        self._connections.discard(connection)
        self.backend.left(connection)
        self._waiting = {xid: who for xid, who in self._waiting.items() if who is not connection}
        self.pieces.gone(connection)
        if connection.pending is not None:
            connection.pending.connection = None
        if connection.pid:
            self.backend.gone(connection.pid)
