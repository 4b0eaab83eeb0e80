"""Clients of the simulated herd: transactions as sessions of PostgreSQL run them."""

from __future__ import annotations

from array import array
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from checkers.history import Operation, Outcome, Read, Transaction, Write
from model_server import EXCLUSIVE, SHARED, TABLE, Key, Violation
from pgherd_sidecar.core.commit.answers import Aborted, Committed, Failed, PieceOrdered
from pgherd_sidecar.core.commit.chain import BatchLink, Link, LocalLink
from pgherd_sidecar.core.replication.entries import FLAG_DDL
from sim_processes import Cancelled, DeadlockDetected, Process, Step, Steps, Terminated

if TYPE_CHECKING:
    from sim_sidecar import CommitNode

ROWS = 6
SCHEMA: Final = 1000
"""The row that stands for the schema: each command writes it."""
_TABLE_SLOT = 2000
DEADLOCK_TIMEOUT_S = 0.1

Answer = Committed | Aborted | Failed | PieceOrdered


class SerializationFailure(Exception):
    """40001: a row was changed after the transaction's snapshot."""


class RolledBack(Exception):
    """The transaction has failed before its COMMIT was sent, or has lost."""


class Connection:
    """A session's connection to the sidecar's socket."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def hear(self, answer: Answer) -> None:
        """Hand an answer on."""
        self._client.hear(self, answer)


class Client:
    """A client's session: what it is about, and what it is told.

    Attributes:
        idle_since: it thinks.
        waits_since: it waits for a lock.
        asked_s: when it asked the sidecar, without the time in which deadlines stood still.
        connection: to the sidecar's socket.
        certifying: it is certified, and on its way to commit.
        predecessor: whom it waits for then.
    """

    def __init__(self, node: CommitNode, pid: int) -> None:
        self.pid = pid
        self.xid = 0
        self.idle_since: float | None = None
        self.waits_since: float | None = None
        self.asked_s: float | None = None
        self.certifying = False
        self.predecessor: Link | None = None
        self.connection = Connection(self)
        self._answer: Answer | None = None
        self._node = node
        self._world = node.world
        self._rng = node.world.rng
        self._server = node.server
        self._process: Process | None = None

    def start(self) -> None:
        """Begin to work."""
        self._process = Process(self._world, self._work())

    def end(self, error: Exception) -> None:
        """Cancel what it does, or end it."""
        if self._process is not None and self._process.alive:
            self._process.resume(error)

    def hear(self, connection: Connection, answer: Answer) -> None:
        """Take the sidecar's answer.

        Raises:
            Violation: it has not asked there, or was answered.
        """
        if connection is not self.connection or self.asked_s is None or self._answer is not None:
            raise Violation(f"answered: xid {self.xid} hears {answer} and has not asked")
        self._answer = answer

    def _work(self) -> Steps:
        """Run transactions until the session dies."""
        world, node = self._world, self._node
        try:
            while True:
                yield self._rng.uniform(0.0, 0.3)
                yield lambda: node.ready and world.disturbed and world.is_primary(node.member)
                if node.member not in world.writing:
                    yield from self._look()
                    continue
                yield from self._transaction()
        finally:
            node.left(self)

    # ---- transactions ------------------------------------------------------------------------

    def _look(self) -> Steps:
        """Read some rows in one snapshot, and write nothing."""
        self._server.begin(self.pid, repeatable=True)
        invoked = self._world.tick()
        operations: list[Operation] = []
        try:
            for row in range(ROWS):
                operations.append(Read(("t", row), self._server.read(self.pid, row)))
                yield self._rng.uniform(0.0, 0.01)
            self._record((0, 0, 0), invoked, operations, "committed")
        finally:
            self._server.end(self.pid, "committed")

    def _transaction(self) -> Steps:
        rng, server, world = self._rng, self._server, self._world
        repeatable = rng.random() < 0.5
        self.xid = server.begin(self.pid, repeatable=repeatable)
        token = (self._node.member, self._node.incarnation, self.xid)
        outcome, committed, invoked = "unknown", False, world.tick()
        operations: list[Operation] = []
        try:
            try:
                if rng.random() < 0.06:
                    answer = yield from self._command(operations)
                else:
                    answer = yield from self._change_rows(operations, repeatable=repeatable)
                if isinstance(answer, Committed):
                    committed = yield from self._commit(answer)
                    outcome = f"committed {answer.gid}" if committed else "unknown"
                elif isinstance(answer, Aborted):
                    outcome = "aborted"
                else:
                    outcome = _meaning(answer)
            except (RolledBack, SerializationFailure, DeadlockDetected):
                outcome = "aborted"
        finally:
            self.certifying, self.predecessor = False, None
            self.idle_since = self.waits_since = self.asked_s = None
            server.end(self.pid, "committed" if committed else "aborted")
            world.tell(token, outcome)
            if outcome == "unknown":
                world.after(rng.uniform(0.5, 5.0), world.ask_status, token)
            self._record(token, invoked, operations, outcome)

    def _record(
        self, token: tuple[int, int, int], invoked: int, operations: list[Operation], outcome: str
    ) -> None:
        world, told = self._world, outcome.split(maxsplit=1)[0]
        said = {"committed": Outcome.OK, "aborted": Outcome.FAILED, "unknown": Outcome.UNKNOWN}
        world.tokens.append(token)
        world.history.append(
            Transaction(
                len(world.history),
                f"n{self._node.member}",
                self.pid,
                invoked,
                world.tick(),
                tuple(operations),
                said[told],
            )
        )

    def _command(self, operations: list[Operation]) -> Generator[Step, None, Answer]:
        """Change the schema."""
        yield from self._lock(TABLE, EXCLUSIVE)
        base, value = self._server.base(self.pid), next(self._world.values)
        yield from self._lock(SCHEMA, EXCLUSIVE)
        self._server.write(self.pid, SCHEMA, value)
        operations.append(Write(("t", SCHEMA), value))
        yield self._rng.uniform(0.0, 0.05)
        keys = array("q", [base, 1, _TABLE_SLOT << 2 | 3])
        body = f'[["t",[0],["D({SCHEMA},{value})"]]]'.encode()
        return (yield from self._request(FLAG_DDL, keys, body))

    def _change_rows(
        self, operations: list[Operation], *, repeatable: bool
    ) -> Generator[Step, None, Answer]:
        """Read, lock and update some rows, in any order; some transactions are large."""
        rng, server = self._rng, self._server
        yield from self._lock(TABLE, SHARED)
        keys = array("q", [server.base(self.pid), 1, _TABLE_SLOT << 2])
        locked = rng.sample(range(ROWS), rng.randint(1, 3))
        changed: dict[int, int] = {}
        for number, row in enumerate(locked):
            if repeatable:
                operations.append(Read(("t", row), server.read(self.pid, row)))
            yield from self._lock_row(row)
            if number == 0 or rng.random() < 0.7:  # else it is locked only (SELECT FOR UPDATE)
                keys.extend((server.base(self.pid), 1, row << 2 | 2))
                changed[row] = value = next(self._world.values)
                server.write(self.pid, row, value)
                operations.append(Write(("t", row), value))
            yield from self._pause()
        items = [(row, f'[["t",[{row << 2}],["D({row},{v})"]]]') for row, v in changed.items()]
        if rng.random() < 0.1:
            return (yield from self._request_pieces(keys, [text.encode() for _, text in items]))
        body = "[" + ",".join(text[1:-1] for _, text in items) + "]"
        return (yield from self._request(0, keys, body.encode()))

    def _pause(self) -> Steps:
        """Go on at once, think, or work for long."""
        rng, chance = self._rng, self._rng.random()
        if chance < 0.06:
            self.idle_since = self._world.now
            yield rng.uniform(0.0, 0.5) if rng.random() < 0.8 else 1000.0
            self.idle_since = None
        elif chance < 0.08:
            yield 1000.0  # a statement that takes for ever
        else:
            yield rng.uniform(0.0, 0.02)

    def _lock_row(self, row: int) -> Steps:
        """Lock a row, if the transaction's snapshot shows its newest version."""
        server = self._server
        if server.is_unchanged(self.pid, row):
            yield from self._lock(row, EXCLUSIVE)
        if not server.is_unchanged(self.pid, row):
            raise SerializationFailure

    def _lock(self, key: Key, mode: str) -> Steps:
        """Take a lock; the deadlock detector looks once, when it has been waited for some time."""
        if not self._server.lock(self.pid, key, mode):
            self.waits_since = now = self._world.now
            self._world.after(DEADLOCK_TIMEOUT_S, self._node.detect_deadlock, self, now)
            yield lambda: self._server.lock(self.pid, key, mode)
            self.waits_since = None

    # ---- the sidecar -------------------------------------------------------------------------

    def _ask(self, *, interrupted: bool = False) -> Generator[Step, None, Answer]:
        """Have what was requested submitted, and wait for the answer."""
        self._answer, self.asked_s = None, self._world.now - self._node.paused_s
        self._node.carry_out()
        if interrupted:
            until = self._world.now + self._rng.uniform(0.0, 0.05)
            yield lambda: self._answer is not None or self._world.now >= until
            if self._answer is None and not self._resume():
                self.asked_s = None
                return self._find_out()
        yield lambda: self._answer is not None
        self.asked_s = None
        answer = self._answer
        assert answer is not None
        return answer

    def _request(self, flags: int, keys: array[int], body: bytes) -> Generator[Step, None, Answer]:
        outbox, now = self._node.path.outbox, self._world.now
        outbox.pieces.begin_request(self.connection, self.xid)
        outbox.request(self.connection, self.pid, self.xid, flags, keys, body, now)
        return (yield from self._ask(interrupted=self._rng.random() < 0.05))

    def _resume(self) -> bool:
        """A cancel has broken the connection: wait on with another one, see ``HookServer``."""
        outbox = self._node.path.outbox
        outbox.end_session(self.connection)
        self.connection = Connection(self)
        return outbox.resume(self.connection, self.xid)

    def _find_out(self) -> Failed:
        """The transaction was decided, and nobody was told."""
        path = self._node.path
        committed = path.outcomes.of(path.outbox.token(self.xid)).startswith("committed")
        return Failed(self.connection, "08007" if committed else "40001", "interrupted")

    def _request_pieces(
        self, keys: array[int], parts: list[bytes]
    ) -> Generator[Step, None, Answer]:
        """Send keys, then rows, then the writeset; what fails before that is rolled back."""
        pieces, outbox = self._node.path.outbox.pieces, self._node.path.outbox
        half = 3 * (len(keys) // 6)
        for part in (keys[:half], keys[half:]):
            if part:
                pieces.request_keys(self.connection, self.pid, self.xid, part, self._world.now)
                yield from self._ask_for_piece()
        for items in parts:
            pieces.request_rows(self.connection, self.pid, self.xid, items, self._world.now)
            yield from self._ask_for_piece()
        outbox.request_last(self.connection, self.pid, self.xid, ("t",), self._world.now)
        return (yield from self._ask())

    def _ask_for_piece(self) -> Steps:
        answer = yield from self._ask()
        if not isinstance(answer, PieceOrdered):
            raise RolledBack
        yield from self._pause()

    def _commit(self, answer: Committed) -> Generator[Step, None, bool]:
        """Wait for the predecessor as ``certify()`` does, and commit."""
        self.certifying = True
        waiting = self._wait_for(answer)
        fate = self._rng.random() if self._world.disturbed else 1.0
        while True:
            try:
                yield from waiting
                if fate < 0.01:
                    yield 1000.0  # it is stuck in its commit
                yield self._rng.uniform(0.0, 0.01)
                if fate < 0.04:
                    raise Terminated
                break
            except Cancelled:
                if self._node.path.must_yield(self.xid):
                    return False
                waiting = self._wait_for(answer)
            except DeadlockDetected:
                return False
        rows = self._server.open[self.pid].pending
        return self._server.show(answer.gid, answer.prev, [answer.gid], rows)

    def _wait_for(self, answer: Committed) -> Steps:
        node, link = self._node, answer.predecessor
        self.predecessor = link
        if isinstance(link, LocalLink):
            yield node.ended(link.xid)
        elif isinstance(link, BatchLink):
            yield lambda: link.number not in self._server.tokens
        else:
            return
        self.predecessor = None
        if link.gid not in {gid for gid, _ in self._server.applied}:
            yield from node.until_visible(answer.prev)


def _meaning(answer: Failed | PieceOrdered) -> str:
    """What an error says about a transaction that was to be ordered.

    Raises:
        Violation: that is no error of a verdict.
    """
    if isinstance(answer, PieceOrdered) or answer.sqlstate not in ("40001", "08007"):
        raise Violation(f"told: {answer}")
    return "aborted" if answer.sqlstate == "40001" else "unknown"
