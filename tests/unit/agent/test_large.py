"""Transactions in pieces as another member applies them: without a server."""

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

import pytest
from patience import until
from pgherd_sidecar.agent.apply import large
from pgherd_sidecar.agent.apply.large import LargeTransactions, Surroundings
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.core.replication.entries import FLAG_PIECES, PIECE_MORE, Piece, Writeset
from pgherd_sidecar.pg.pipeline import Prepared, RoundFailedError, ServerGoneError
from pgherd_sidecar.pg.rows import TableShape

ROWS = b'[["t",[4],["I(1,x)"]]]'
WIDE_BYTES = 4 << 20
TEXT = ('\\"' + "a" * (WIDE_BYTES - 8) + "\U0001f40f").encode()
"""Python's str of it takes four times as much."""
WIDE_ROW = b'[["t",[4],["U01(1,\\"%b\\")"]]]' % TEXT
WIDE_LINE = b'"t",1\nI(1,"\n%b")' % TEXT[2:]
LINES = b'"t",2\nI(1,x)\nI(2,)'
TRUNCATION = b'[["t",[4],["T"]]]'


class Connection:
    """Keeps what it was asked to execute; nothing fails."""

    backend_pid = 7

    def __init__(self) -> None:
        self.texts: dict[bytes, bytes] = {}
        self.executed: list[str] = []
        self.copied: list[bytes] = []
        self.ends: list[asyncio.Future[None]] = []
        self.closed = False

    def knows(self, name: bytes) -> bool:
        return name in self.texts

    def prepare(self, name: bytes, query: bytes) -> None:
        self.texts[name] = query

    def provide(self, statements: Sequence[Prepared]) -> None:
        for statement in statements:
            if not self.knows(statement.name):
                self.prepare(statement.name, statement.query)

    def run(self, statements: Sequence[Prepared]) -> "asyncio.Future[None]":
        self.executed += [self.texts[s.name].decode().split()[0] for s in statements]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def copy(self, query: bytes, data: bytes) -> "asyncio.Future[int]":
        self.executed.append(query.decode().split()[0])
        self.copied.append(data)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(data.count(b"\n"))
        return future

    def close(self) -> None:
        self.closed = True


class Node:
    """A session's transactions in pieces, beside a server and a log that are not there."""

    def __init__(self, patch: pytest.MonkeyPatch, silence_s: float = 60) -> None:
        self._generated = frozenset[int]()
        self.deciding = False
        self.refusals = 0
        self.pieces: list[Piece] = []
        self.connections: list[Connection] = []
        patch.setattr(large, "connect_pipeline", self._connect)
        patch.setattr(large, "PieceReader", self._reader)
        self.transactions = LargeTransactions(
            Surroundings(
                "",
                log=cast("Any", None),
                describe=self._describe,
                writers=Writers(),
                delivered=lambda: 1000,
                visible=self._visible,
                deciding=lambda: self.deciding,
                silence_s=silence_s,
            )
        )

    async def _connect(self, _conninfo: str) -> Connection:
        if self.refusals:
            self.refusals -= 1
            raise ServerGoneError("too many clients")
        self.connections.append(Connection())
        return self.connections[-1]

    async def _describe(self, table: str) -> TableShape:
        return TableShape(
            ("a", "b"), (0,), self._generated, "n.a = o.a", only=False, row_type=table
        )

    async def _visible(self, _position: int) -> None:
        pass

    def _reader(self, _log: object, identity: tuple[int, int, int], _first: int) -> "Reader":
        return Reader([piece for piece in self.pieces if piece.serial == identity[2]])

    def comes(self, *parts: bytes, serial: int = 1) -> None:
        """The first piece of a transaction is ordered; it is known what the others will be."""
        for number, data in enumerate(parts):
            self.pieces.append(Piece(2, 1, serial, number, 0, data))
        self.transactions.take_piece(10 * serial, self.pieces[-len(parts)])

    def comes_split(self, data: bytes, serial: int = 1) -> int:
        """The same of a row in several pieces; return how many they are."""
        size = WIDE_BYTES // 4
        starts = range(0, len(data), size)
        for number, start in enumerate(starts):
            flags = PIECE_MORE if start != starts[-1] else 0
            self.pieces.append(Piece(2, 1, serial, number, flags, data[start : start + size]))
        self.transactions.take_piece(10 * serial, self.pieces[-len(starts)])
        return len(starts)

    async def turn(self, pieces: int, serial: int = 1) -> None:
        """A transaction is decided to commit, and all before it is visible."""
        await self.decided(pieces, serial)()

    def decided(self, pieces: int, serial: int = 1) -> Callable[[], Coroutine[Any, Any, None]]:
        """A transaction is decided to commit: the applier's work on it, when its turn comes."""
        body = b'[%d,%d,["t"]]' % (serial, pieces)
        writeset = Writeset(2, 1, serial, 1, 700, FLAG_PIECES, b"", body)
        gid = 900 + serial
        self.transactions.note_commit(gid, writeset)
        return partial(self.transactions.apply_transaction, writeset, gid, 899, 10 * serial)

    async def wrote(self, number: int, *statements: str) -> None:
        """Wait until a connection has executed this."""
        await until(lambda: [c.executed for c in self.connections[number:]] == [[*statements]])


class Reader:
    """All pieces of a transaction."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.count = 0
        self._pieces = pieces

    async def fetch(self, _last: int) -> list[tuple[int, Piece]]:
        found, self._pieces = self._pieces, []
        self.count += len(found)
        return list(enumerate(found, 10))


async def quiet() -> None:
    """Whatever could have happened has."""
    await asyncio.sleep(0.1)


async def test_rows_are_written_early(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    node.comes(ROWS)
    await node.wrote(0, "BEGIN", "WITH")
    await node.transactions.close()
    assert node.connections[0].closed


async def test_lines_are_copied_and_what_copy_cant_take_is_written_as_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch)
    node.comes(LINES, b'"t",1\nI(3,"\n\\\\.")', ROWS)
    await node.wrote(0, "BEGIN", "COPY", "WITH", "WITH")
    assert node.connections[0].copied == [b"1,x\n2,\n"]
    await node.transactions.close()


async def test_copy_takes_no_generated_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    monkeypatch.setattr(node, "_generated", frozenset({1}))
    node.comes(LINES)
    await node.wrote(0, "BEGIN", "WITH")
    await node.transactions.close()


async def test_where_copy_wrote_other_rows_nothing_of_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch)
    monkeypatch.setattr(Connection, "copy", _copies_none)
    node.comes(LINES)
    await node.wrote(0, "BEGIN")
    await node.turn(pieces=1)
    early, anew, by_row = node.connections
    assert early.closed
    assert anew.closed
    assert early.executed == anew.executed == ["BEGIN"]
    assert by_row.executed == ["BEGIN", "SAVEPOINT", "SELECT", "WITH", "WITH", "INSERT", "COMMIT"]


def _copies_none(_self: Connection, _query: bytes, _data: bytes) -> "asyncio.Future[int]":
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(0)
    return future


@pytest.mark.parametrize(("data", "statement"), [(WIDE_ROW, "WITH"), (WIDE_LINE, "COPY")])
async def test_a_wide_row_is_never_held_as_text(
    monkeypatch: pytest.MonkeyPatch, data: bytes, statement: str
) -> None:
    node = Node(monkeypatch)
    tracemalloc.start()
    try:
        node.comes_split(data)
        before, _ = tracemalloc.get_traced_memory()
        await node.wrote(0, "BEGIN", statement)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - before < 4.5 * WIDE_BYTES
    await node.transactions.close()


async def _write_wide_rows(node: Node, transactions: int) -> list[int]:
    """The first of so many transactions writes its wide row early; return their pieces."""
    pieces = [node.comes_split(WIDE_ROW, serial=serial + 1) for serial in range(transactions)]
    for connection in [await _begun(node, number) for number in range(transactions)]:
        connection.ends.pop().set_result(None)  # BEGIN
    await until(lambda: bool(node.connections[0].ends))
    return pieces


async def test_one_at_a_time_holds_a_wide_row_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "run", _runs_when_told)
    node = Node(monkeypatch)
    pieces = await _write_wide_rows(node, 3)
    await until(lambda: node.connections[0].executed[1:] == ["WITH"])
    await quiet()
    assert [len(connection.ends) for connection in node.connections] == [1, 0, 0]
    # whose turn has come waits for nobody
    turn = asyncio.ensure_future(node.turn(pieces[2], serial=3))
    await until(lambda: bool(node.connections[2].ends))
    assert not node.connections[1].ends
    # and the next one holds its row when libpq keeps that of the first no more
    node.connections[0].ends.pop().set_result(None)
    await quiet()
    assert not node.connections[1].ends
    first = asyncio.ensure_future(node.turn(pieces[0], serial=1))
    await until(lambda: bool(node.connections[0].ends))
    node.connections[0].ends.pop().set_result(None)  # COMMIT
    await first
    assert node.connections[0].closed
    await until(lambda: bool(node.connections[1].ends))
    turn.cancel()
    await asyncio.wait({turn})
    await node.transactions.close()


async def test_who_was_ended_holds_no_wide_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "run", _runs_when_told)
    node = Node(monkeypatch)
    await _write_wide_rows(node, 2)
    node.transactions.prune(lambda _member, serial: serial != 1)
    await until(lambda: bool(node.connections[1].ends))
    await node.transactions.close()


async def test_who_failed_early_holds_a_wide_row_until_it_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Connection, "run", _runs_when_told)
    node = Node(monkeypatch)
    pieces = await _write_wide_rows(node, 2)
    node.connections[0].ends.pop().set_exception(RoundFailedError("55P03", "locked", 0))
    await quiet()
    assert not node.connections[1].ends
    turn = asyncio.ensure_future(node.turn(pieces[0], serial=1))
    await until(lambda: bool(node.connections[1].ends))
    assert node.connections[0].closed
    turn.cancel()
    await asyncio.wait({turn})
    await node.transactions.close()


async def test_who_failed_early_keeps_no_text_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "run", _runs_when_told)
    node = Node(monkeypatch)
    tracemalloc.start()
    try:
        node.comes_split(WIDE_ROW)
        before, _ = tracemalloc.get_traced_memory()
        connection = await _begun(node, 0)
        connection.ends.pop().set_result(None)
        await until(lambda: bool(connection.ends))
        connection.ends.pop().set_exception(RoundFailedError("55P03", "locked", 0))
        await quiet()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < WIDE_BYTES / 2
    await node.transactions.close()


async def _begun(node: Node, number: int) -> Connection:
    await until(lambda: len(node.connections) > number and bool(node.connections[number].ends))
    return node.connections[number]


def _runs_when_told(self: Connection, statements: Sequence[Prepared]) -> "asyncio.Future[None]":
    self.executed += [self.texts[s.name].decode().split()[0] for s in statements]
    self.ends.append(asyncio.get_running_loop().create_future())
    return self.ends[-1]


async def test_a_table_is_truncated_only_when_its_turn_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch)
    node.comes(ROWS, TRUNCATION)
    await node.wrote(0, "BEGIN", "WITH")
    await quiet()
    assert len(node.connections[0].executed) == 2
    await node.turn(pieces=2)
    assert node.connections[0].executed == ["BEGIN", "WITH", "SELECT", "INSERT", "COMMIT"]


async def test_who_is_silent_for_long_keeps_no_locks_and_is_written_at_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch, silence_s=0.05)
    node.deciding = True
    node.comes(ROWS)
    await node.wrote(0, "BEGIN", "WITH")
    await quiet()
    assert not node.connections[0].closed
    node.deciding = False
    await until(lambda: node.connections[0].closed)
    await node.turn(pieces=1)
    assert node.connections[1].executed == ["BEGIN", "WITH", "INSERT", "COMMIT"]


async def test_none_outlives_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    node.comes(ROWS, serial=1)
    node.comes(ROWS, serial=2)
    await node.wrote(1, "BEGIN", "WITH")
    node.decided(pieces=1, serial=2)
    await node.transactions.close()
    assert [connection.closed for connection in node.connections] == [True, True]


async def test_few_are_begun_early_while_others_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch)
    for serial in range(1, 9):
        node.comes(ROWS, serial=serial)
        node.decided(pieces=1, serial=serial)
    await quiet()
    assert len(node.connections) == 4
    await node.transactions.close()


async def test_who_gets_no_connection_at_its_turn_tries_again_and_others_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large, "_RETRY_S", 0.001)
    node = Node(monkeypatch)
    node.comes(ROWS, serial=1)
    node.comes(ROWS, serial=2)
    await node.wrote(1, "BEGIN", "WITH")
    second = node.decided(pieces=1, serial=2)
    node.pieces.append(Piece(2, 1, 3, 0, 0, ROWS))
    node.refusals = 3
    await node.turn(pieces=1, serial=3)
    assert node.connections[2].executed == ["BEGIN", "WITH", "INSERT", "COMMIT"]
    await until(lambda: node.connections[0].closed and node.connections[1].closed)
    await second()
    assert node.connections[3].executed == ["BEGIN", "WITH", "INSERT", "COMMIT"]


async def test_a_server_that_is_gone_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_RETRY_S", 0)
    node = Node(monkeypatch)
    node.pieces.append(Piece(2, 1, 1, 0, 0, ROWS))
    node.refusals = 1000
    with pytest.raises(ServerGoneError):
        await node.turn(pieces=1)
