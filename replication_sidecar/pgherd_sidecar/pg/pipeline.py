"""One connection to the server beside us, driven in libpq's pipeline mode from the event loop.

The applier's hot path: a *round* is a list of prepared statements sent in one go, ending in a
sync point, so it is one transaction; its outcome comes back as one future. psycopg's own async
interface costs several times more CPU per statement, and the applier runs on every member for
every transaction of the herd.

Knows no SQL. Nothing survives the connection.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from psycopg import Error, pq
from psycopg.pq.abc import PGresult

PLPGSQL: Final = "pl_exec.c"
"""Where in PostgreSQL's source an error comes from that a statement RAISE has made."""
KEPT_MAX: Final = 1000
"""Statements for rows kept prepared at most, unless one round has more: each is 60 kB of a server.
There are as many as shapes of changes, and a command makes all of them anew."""
_OK: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class ServerGoneError(Exception):
    """The connection broke; whether the last round committed is not known."""


class NoConnectionError(ServerGoneError):
    """No connection could be made: nothing was begun on it."""


class RoundFailedError(Exception):
    """The server refused a statement; the round was rolled back as a whole.

    Attributes:
        sqlstate: five characters.
        primary: the message, without details.
        statement: which of the round's statements failed, from 0.
        table, constraint: those that the server names, empty if it names none.
        raised: a statement RAISE of PL/pgSQL chose the SQLSTATE.
        detail: the server's, empty if there is none.
    """

    def __init__(
        self,
        sqlstate: str,
        message: str,
        statement: int,
        *,
        table: str = "",
        constraint: str = "",
        raised: bool = False,
        detail: str = "",
    ) -> None:
        super().__init__(f"{sqlstate}: {message}")
        self.sqlstate = sqlstate
        self.primary = message
        self.statement = statement
        self.table = table
        self.constraint = constraint
        self.raised = raised
        self.detail = detail


class Prepared(msgspec.Struct, frozen=True):
    """A statement by the name under which it was prepared, with its parameters.

    Attributes:
        formats: libpq's format code of each parameter.
        query: its text, if it is one for ``provide``.
    """

    name: bytes
    parameters: Sequence[bytes | None]
    formats: Sequence[int]
    query: bytes = b""


@dataclass(slots=True)
class _Copy:
    future: "asyncio.Future[int]"
    data: bytes
    rows: int = 0
    error: RoundFailedError | None = None


@dataclass(slots=True)
class _Round:
    future: "asyncio.Future[None]"
    prepares: deque[bytes]
    results: int = 0
    error: RoundFailedError | None = None


class Pipeline:
    """A connection in pipeline mode.

    Invariant: results arrive in the order of the rounds; a failed round fails no other.
    """

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._pg = connection
        self._socket = connection.socket  # a connection that is lost knows it no more
        self._loop = asyncio.get_running_loop()
        self._rounds: deque[_Round] = deque()
        self._prepared: set[bytes] = set()
        self._passing: dict[bytes, None] = {}  # the least recently used first
        self._pending_prepares: deque[bytes] = deque()
        self._writing = False
        self._copy: _Copy | None = None
        self.closed = False

    @classmethod
    async def connect(cls, conninfo: str, setup: Sequence[str]) -> "Pipeline":
        """Connect and run the set-up statements.

        Raises:
            ServerGoneError: the server does not answer or refuses a statement.
        """
        pg = await asyncio.get_running_loop().run_in_executor(None, _connect, conninfo, setup)
        return cls(pg).attach()

    def attach(self) -> "Pipeline":
        """Start reading."""
        self._loop.add_reader(self._socket, self._readable)
        return self

    @property
    def backend_pid(self) -> int:
        """The server process at the other end."""
        return self._pg.backend_pid

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not self._rounds and self._copy is None

    def knows(self, name: bytes) -> bool:
        """The statement has been prepared."""
        return name in self._prepared

    def prepare(self, name: bytes, query: bytes) -> None:
        """Prepare a statement as part of the next round; an error there is the round's error."""
        if self.closed:
            return  # the next round says so
        try:
            self._pg.send_prepare(name, query)
        except Error:
            self.close()
            return
        self._prepared.add(name)
        self._pending_prepares.append(name)

    def provide(self, statements: Sequence[Prepared]) -> None:
        """Prepare what the next round needs, and close what was not used for the longest time.

        Args:
            statements: of the round.
        """
        needed = {statement.name: statement.query for statement in statements if statement.query}
        for name in needed:
            self._passing.pop(name, None)
            self._passing[name] = None
        # Before all else of the round, or the server would keep it if that were refused.
        while len(self._passing) > max(KEPT_MAX, len(needed)):
            self._close(next(iter(self._passing)))
        for name, query in needed.items():
            if name not in self._prepared:
                self.prepare(name, query)

    def _close(self, name: bytes) -> None:
        del self._passing[name]
        self._prepared.discard(name)
        if self.closed:
            return
        try:
            self._pg.send_query_params(b"DEALLOCATE " + name, None)
        except Error:
            self.close()
        else:
            self._pending_prepares.append(name)

    def run(self, statements: Sequence[Prepared], *, more: bool = False) -> "asyncio.Future[None]":
        """Send a round: one transaction.

        Args:
            statements: what to execute.
            more: another round follows at once, and they are sent together.

        Returns:
            A future that ends when the round has committed, with RoundFailedError when it was
            rolled back, with ServerGoneError when nobody knows.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self.closed:
            future.set_exception(ServerGoneError("not connected"))
            return future
        pg = self._pg
        self._rounds.append(_Round(future, self._pending_prepares))
        self._pending_prepares = deque()
        try:
            for statement in statements:
                pg.send_query_prepared(
                    statement.name, statement.parameters, param_formats=statement.formats
                )
            pg.pipeline_sync()
        except Error:
            self.close()
        else:
            if not more:
                self._flush()
        return future

    def copy(self, query: bytes, data: bytes) -> "asyncio.Future[int]":
        """Run a COPY ... FROM STDIN inside the transaction that is open.

        Nothing else may be under way, and nothing may be sent before it has ended: libpq has no
        COPY in pipeline mode.

        Args:
            query: the statement.
            data: all that it reads.

        Returns:
            A future that ends with the number of rows, with RoundFailedError when the server has
            refused a row, with ServerGoneError when nobody knows.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        if self.closed:
            future.set_exception(ServerGoneError("not connected"))
            return future
        assert self.idle, "a COPY has the connection for itself"
        self._copy = _Copy(future, data)
        try:
            self._pg.exit_pipeline_mode()
            self._pg.send_query(query)
        except Error:
            self.close()
        else:
            self._flush()
        return future

    def close(self) -> None:
        """Break the connection; rounds under way end with ServerGoneError."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket)
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._pg.finish()
        if self._copy is not None and not self._copy.future.done():
            self._copy.future.set_exception(ServerGoneError("connection closed"))
        self._copy = None
        while self._rounds:
            future = self._rounds.popleft().future
            if not future.done():
                future.set_exception(ServerGoneError("connection closed"))

    def _flush(self) -> None:
        try:
            pending = self._pg.flush()
        except Error:
            self.close()
            return
        if bool(pending) != self._writing:
            self._writing = bool(pending)
            if self._writing:
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        pg = self._pg
        try:
            pg.consume_input()
        except Error:
            self.close()
            return
        if self._copy is not None:
            self._read_copy(self._copy)
            return
        ended = False
        while self._rounds and not pg.is_busy():
            result = pg.get_result()
            if result is not None:
                self._take(result)
            elif ended:
                break  # one None ends a statement, two say that nothing is to come
            ended = result is None
        if pg.status == pq.ConnStatus.BAD:
            self.close()

    def _read_copy(self, copy: _Copy) -> None:
        pg = self._pg
        try:
            while not pg.is_busy():
                result = pg.get_result()
                if result is None:
                    self._copy = None
                    pg.enter_pipeline_mode()
                    break
                if result.status == pq.ExecStatus.COPY_IN:
                    pg.put_copy_data(copy.data)
                    pg.put_copy_end()
                    self._flush()
                    if self.closed:
                        return
                elif result.status in _OK:
                    copy.rows = result.command_tuples or 0
                elif copy.error is None:
                    copy.error = _failure(result, 0)
        except Error:
            self.close()
            return
        if pg.status == pq.ConnStatus.BAD:
            self._copy = copy  # its outcome is not known, whatever was read of it
            self.close()
        elif self._copy is None and not copy.future.done():
            if copy.error is None:
                copy.future.set_result(copy.rows)
            else:
                copy.future.set_exception(copy.error)

    def _take(self, result: PGresult) -> None:
        round_ = self._rounds[0]
        status = result.status
        if status == pq.ExecStatus.PIPELINE_SYNC:
            self._rounds.popleft()
            if round_.future.done():
                return
            if round_.error is None:
                round_.future.set_result(None)
            else:
                round_.future.set_exception(round_.error)
            return
        if round_.prepares:
            name = round_.prepares.popleft()
            if status not in _OK:
                self._prepared.discard(name)  # it was refused, or left out after another one
                self._passing.pop(name, None)
        else:
            round_.results += 1
        if status not in _OK and status != pq.ExecStatus.PIPELINE_ABORTED and round_.error is None:
            round_.error = _failure(result, max(round_.results - 1, 0))


def _failure(result: PGresult, statement: int) -> RoundFailedError:
    def field(name: pq.DiagnosticField) -> str:
        return (result.error_field(name) or b"").decode(errors="replace")

    named = (field(pq.DiagnosticField.SCHEMA_NAME), field(pq.DiagnosticField.TABLE_NAME))
    return RoundFailedError(
        field(pq.DiagnosticField.SQLSTATE),
        field(pq.DiagnosticField.MESSAGE_PRIMARY),
        statement,
        table=".".join(filter(None, named)),
        constraint=field(pq.DiagnosticField.CONSTRAINT_NAME),
        raised=field(pq.DiagnosticField.SOURCE_FILE) == PLPGSQL,
        detail=field(pq.DiagnosticField.MESSAGE_DETAIL),
    )


def _connect(conninfo: str, setup: Sequence[str]) -> pq.abc.PGconn:
    pg = pq.PGconn.connect(conninfo.encode())
    if pg.status != pq.ConnStatus.OK:
        raise NoConnectionError(pg.get_error_message())
    for statement in setup:
        result = pg.exec_(statement.encode())
        if result.status not in _OK:
            raise NoConnectionError(result.get_error_message())
    pg.nonblocking = 1
    pg.enter_pipeline_mode()
    return pg
