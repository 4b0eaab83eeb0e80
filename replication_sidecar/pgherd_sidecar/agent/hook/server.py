"""Where ``pgherd.certify()`` calls: the socket on which local transactions wait for their verdict.

Each session of the server has one dblink connection here. Requests, one query each::

    W secret pid xid flags \\n keys \\n body    order this writeset, answer its verdict
    B secret pid xid flags \\n data    order a piece of a large transaction
    R secret xid       go on waiting for it (after a cancel)
    P secret xid gid   answer when this GID is visible here
    Y secret xid       may the certified transaction go on?
    T secret token     what became of this transaction?
    D secret pid \\n index  a session is going to drop an index CONCURRENTLY: have all know
    I secret xid \\n keys   a command begins that takes these keys at least: may it go on?
    S secret ms        which GID covers all that was acknowledged before? So long: "WAIT" then
    G secret ms        go on waiting for that
    E secret gid ms    do the other members show this GID? For so long it waits for them at most

The body of a writeset that comes after pieces (flag 2) lists the tables, and it has no keys.

``HookServer`` takes the requests, checks what can be checked before the log has ordered anything,
and refuses. The rest goes through the outbox to be ordered, and its effects are carried out here.
Nothing survives a restart.
"""

import asyncio
import hmac
from array import array
from collections.abc import Callable, Hashable
from pathlib import Path
from time import monotonic
from typing import Protocol

import msgspec
import structlog

from pgherd_sidecar.agent.admin.port import StatusValue
from pgherd_sidecar.agent.base.beat import until_next_s
from pgherd_sidecar.agent.base.config import LimitSettings
from pgherd_sidecar.agent.base.defaults import HOOK_SOCKET
from pgherd_sidecar.agent.hook.answering import Answering
from pgherd_sidecar.agent.hook.connection import HookConnection
from pgherd_sidecar.agent.hook.judging import Judging
from pgherd_sidecar.agent.hook.voting import Veto
from pgherd_sidecar.core.commit.answers import HELD, OVERTAKEN, REPEAT
from pgherd_sidecar.core.commit.keys import parse_keys
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.commit.underway import TransactionLimits
from pgherd_sidecar.core.replication.entries import FLAG_DDL, FLAG_PIECES, PIECE_KEYS
from pgherd_sidecar.core.replication.merge import decode_items
from pgherd_sidecar.pg.ddl.judging import Judged, are_long, judge_commands, unjudged
from pgherd_sidecar.pg.ddl.needs import Need
from pgherd_sidecar.pg.hookwire import OVERSIZED

log = structlog.get_logger()

_TICK_S = 0.2
_XID_MASK = (1 << 32) - 1


class HookBackend(Protocol):
    """The replica, as far as the hook needs it."""

    def refusal(self) -> str | None:
        """Why this node takes no writes now, None if it does."""

    def held(self) -> bool:
        """Whether that is only because the herd takes none."""

    def when_visible(self, gid: int, wake: Callable[[], None]) -> None:
        """Call ``wake`` once ``gid`` is visible on this node; repair it if need be."""

    def begin_command(self, xid: int, keys: "array[int]", answer: Callable[[], None]) -> None:
        """A command is about to begin (see ``precedence``)."""

    def when_free(self, xid: int, keys: "array[int]", go: Callable[[], None]) -> None:
        """A writeset is to be ordered by ``go``, now or soon (see ``precedence``)."""

    def vote(
        self, keys: "array[int]", needs: list[Need], answer: Callable[[Veto | None], None]
    ) -> None:
        """Ask the other members whether they could execute a transaction (see ``voting``)."""

    def announce_drop(self, what: str, answer: Callable[[str, str], None]) -> None:
        """Have all members know that an index will be dropped; SQLSTATE and message, or empty."""

    def command_lost(self, keys: "array[int]") -> None:
        """A command of this node lost before it was ordered."""

    def barrier(
        self, who: Hashable, wait_s: float, answer: Callable[[bytes], None], *, begins: bool
    ) -> None:
        """A reader wants to see all that was acknowledged before (see ``barriers``)."""

    def when_shown(self, gid: int, rest_s: float, answer: Callable[[bytes], None]) -> None:
        """A command has been ordered: do the other members show it (see ``showing``)?"""

    def drop_waiter(self, who: Hashable) -> None:
        """Let nobody wait on this connection any more."""

    def end_session(self, pid: int) -> None:
        """A session ended; what it was certified for may have to be repaired."""


def transaction_limits(limits: LimitSettings) -> TransactionLimits:
    """Bounds of local transactions as they are configured."""
    return TransactionLimits(
        limits.row_bytes,
        limits.writeset_bytes,
        limits.piece_bytes,
        limits.transaction_bytes,
        limits.transaction_keys,
        limits.verdict_timeout_ms / 1000,
    )


class HookServer:
    """The socket, and what came through it.

    Args:
        directory: where the socket is made; only the server's account may reach it.
        secret: what each message must carry.
        path: the node's commit path.
        submit: sends entries to the ordered log; False if that was not possible now.
        backend: see `HookBackend`.
        limits: bounds of transactions.
    """

    def __init__(
        self,
        *,
        directory: Path,
        secret: str,
        path: CommitPath,
        submit: Callable[[bytes, int], bool],
        backend: HookBackend,
        limits: TransactionLimits,
    ) -> None:
        self.backend = backend
        self.query_max = limits.row
        self._path = path
        self._outbox = path.outbox
        self._submit = submit
        self._answering = Answering()
        self._judging = Judging()
        self._socket = directory / HOOK_SOCKET
        self._secret = secret.encode()
        self._writeset_max = limits.writeset
        self._server: asyncio.AbstractServer | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._stopped = False
        self._connections: set[HookConnection] = set()
        self._waiting: dict[int, HookConnection] = {}  # by xid, before its writeset is ordered
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Listen."""
        self._socket.unlink(missing_ok=True)
        self._server = await self._loop.create_unix_server(
            lambda: HookConnection(self), str(self._socket)
        )
        self._socket.chmod(0o600)
        self._tick()

    async def stop(self) -> None:
        """Close everything; who still waits learns that the outcome is unknown here."""
        self._stopped = True
        if self._ticking is not None:
            self._ticking.cancel()
        if self._server is not None:
            self._server.close()
        self._socket.unlink(missing_ok=True)
        self._judging.close()
        self._outbox.pieces.end_all()
        self.carry_out()
        for connection in list(self._connections):
            connection.close()

    # ---- requests --------------------------------------------------------------------------

    def request(  # noqa: PLR0912 - a table of cases
        self, connection: "HookConnection", query: bytes
    ) -> None:
        """Handle one query of a session."""
        if query == OVERSIZED:
            connection.fail(
                "54000",
                f"a row of the transaction takes more than {self.query_max} bytes",
                hint="Store such values elsewhere, or raise limits.row_bytes of every member.",
            )
            self._outbox.pieces.interrupt(connection)
            self._schedule()
            return
        head, _, rest = query.partition(b"\n")
        words = head.split(b" ")
        if len(words) < 3 or not hmac.compare_digest(words[1], self._secret):
            # A stranger, or a transaction older than this incarnation of the sidecar.
            # Its order will never be carried out; of anything else this incarnation knows nothing.
            code = "40001" if words[0] in (b"W", b"B") else "08006"
            connection.fail(code, "the sidecar has begun anew during this transaction")
            return
        if words[0] in (b"W", b"B"):
            self._outbox.pieces.begin_request(connection, int(words[3]))
            self._schedule()
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
                yields = self._path.must_yield(int(words[2]))
                connection.done(b"YIELD" if yields else b"GO")
            case b"I":
                self._begin_command(connection, int(words[2]), rest)
            case b"D":
                self.backend.announce_drop(
                    rest.decode(),
                    lambda state, why: (
                        connection.fail(state, why) if state else connection.done(b"OK")
                    ),
                )
            case b"S" | b"G":
                wait_s, begins = int(words[2]) / 1000, words[0] == b"S"
                self.backend.barrier(connection, wait_s, connection.done, begins=begins)
            case b"E":
                gid, rest_s = int(words[2]), int(words[3]) / 1000
                self._path.chain.note_wait(gid, asyncio.get_running_loop().time() + rest_s)
                self.backend.when_shown(gid, rest_s, connection.done)
            case b"T":
                connection.done(self._path.outcomes.of(words[2].decode()).encode())
            case _:
                connection.fail("08P01", "unknown request")

    def _begin_command(self, connection: "HookConnection", xid: int, keys: bytes) -> None:
        def go() -> None:
            if self._waiting.get(xid) is connection:
                del self._waiting[xid]
                connection.done(b"OK")

        self._waiting[xid] = connection
        wanted = array("q", [int(key) for key in keys.split(b",") if key])
        self.backend.begin_command(xid, wanted, go)

    def refuse(self, xid: int) -> bool:
        """Tell a transaction 40001 that waits here before it is ordered; False: it does not.

        Args:
            xid: 32 bits of the transaction's.
        """
        for waiting, connection in self._waiting.items():
            if waiting & _XID_MASK == xid:
                del self._waiting[waiting]
                connection.fail("40001", OVERTAKEN, hint=REPEAT)
                return True
        return False

    def _order(self, connection: "HookConnection", words: list[bytes], rest: bytes) -> None:
        flags, xid = int(words[4]), int(words[3])
        if self._refuses(connection):
            self._outbox.pieces.give_up(xid)
            return
        keys_text, _, body = rest.partition(b"\n")
        if xid in self._outbox or xid in self._waiting:
            connection.fail("08007", "this transaction has been sent before")
            return
        if flags & FLAG_PIECES:
            tables = msgspec.json.decode(body, type=tuple[str, ...])
            self._outbox.request_last(connection, int(words[2]), xid, tables, monotonic())
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
        keys, pid = parse_keys(keys_text), int(words[2])
        items = decode_items(body) if flags & FLAG_DDL else []

        def judged(found: Judged) -> None:
            self._judged(connection, xid, flags, keys, found, pid)

        if are_long(items):
            self._waiting[xid] = connection
            self._judging.begin(items, judged)
            return
        found = judge_commands(items) if flags & FLAG_DDL else unjudged(body)
        self._waiting[xid] = connection
        judged(found)

    def _judged(
        self,
        connection: "HookConnection",
        xid: int,
        flags: int,
        keys: "array[int]",
        found: Judged,
        pid: int,
    ) -> None:
        """Go on with a transaction whose commands are known, unless they can't be replicated."""
        if self._waiting.get(xid) is not connection:
            return
        if found.refusal:
            del self._waiting[xid]
            connection.fail("0A000", found.refusal, hint=found.hint)
            return
        if found.unread:
            log.warning("vote.not_parsed", error=found.unread)
        body = bytes(found.body)

        def go() -> None:
            self.backend.when_free(
                xid, keys, lambda: self._send(connection, xid, flags, keys, body, pid)
            )

        if found.needs:
            self.backend.vote(
                keys, found.needs, lambda veto: self._voted(connection, xid, veto, go)
            )
        else:
            go()

    def _voted(
        self, connection: "HookConnection", xid: int, veto: Veto | None, go: Callable[[], None]
    ) -> None:
        """Go on with a transaction that the others were asked about, unless one of them can't."""
        if self._waiting.get(xid) is not connection:
            return
        if veto is None:
            go()
            return
        del self._waiting[xid]
        connection.fail(
            "0A000",
            f"member {veto.member} can't execute this: {veto.reason}",
            hint=f"Install on {veto.member} what it lacks, and repeat the transaction.",
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
        conflict = self._path.preview(keys)
        if conflict is None:
            self._outbox.request(connection, pid, xid, flags, keys, body, monotonic())
            self._schedule()
        else:  # no need to order what has lost already
            if flags & FLAG_DDL:
                self.backend.command_lost(keys)
            self._answering.abort(connection, conflict, body)

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
            self._outbox.pieces.give_up(xid)
        elif not flags & PIECE_KEYS:
            self._outbox.pieces.request_rows(connection, pid, xid, rest, monotonic())
        else:
            keys = parse_keys(rest)
            conflict = self._path.preview(keys)
            if conflict is None:
                self._outbox.pieces.request_keys(connection, pid, xid, keys, monotonic())
            else:
                self._outbox.pieces.give_up(xid)
                self._answering.abort(connection, conflict, b"[]")

    def _resume(self, connection: "HookConnection", xid: int) -> None:
        self._waiting.pop(xid, None)  # it is told that it was interrupted, and so it must not go on
        if self._outbox.resume(connection, xid):
            return
        outcome = self._path.outcome(xid)
        if outcome.startswith("committed"):
            connection.fail("08007", f"the transaction is {outcome}, its session was too late")
        else:
            connection.fail("40001", "the transaction was interrupted", hint=REPEAT)

    # ---- effects ---------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Answer sessions and submit entries: after all that the commit path was told."""
        self._scheduled = False
        effects = self._path.take_effects(monotonic())
        try:
            for answer in effects.answers:
                self._answering.write(answer)
        finally:
            for submission in effects.submissions:
                if not self._submit(submission.data, len(submission.sent)):
                    self._outbox.out.keep(submission.sent)

    def _schedule(self) -> None:
        """Carry out soon, so that the requests of several sessions are submitted together."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.carry_out)

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(until_next_s(_TICK_S), self._tick)
        self._outbox.tick(monotonic())
        self.carry_out()

    def status(self) -> dict[str, StatusValue]:
        """Return what the commits of this server's sessions have met."""
        return self._answering.figures.status()

    # ---- connections -----------------------------------------------------------------------

    def opened(self, connection: "HookConnection") -> None:
        """Note a new session.

        One that the loop accepted before the socket was closed may come after that.
        """
        if self._stopped:
            connection.close()
            return
        self._connections.add(connection)

    def closed(self, connection: "HookConnection") -> None:
        """Note the end of a session."""
        self._connections.discard(connection)
        self.backend.drop_waiter(connection)
        self._waiting = {xid: who for xid, who in self._waiting.items() if who is not connection}
        pid = self._outbox.end_session(connection)
        self._schedule()
        if pid:
            self.backend.end_session(pid)
