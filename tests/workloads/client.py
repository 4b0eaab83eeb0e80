"""One client: transactions on one node, one after the other, whatever happens to the node."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import psycopg
from checkers.history import Key, Operation, Outcome, Read, ReadList, Scan, Transaction, Write

from workloads.recorder import Recorder

Connection = psycopg.AsyncConnection[Any]
Body = Callable[["Attempt", random.Random], Awaitable[None]]

REPEATABLE_READ = "REPEATABLE READ"
READ_COMMITTED = "READ COMMITTED"

#: Nothing was committed. 23505 and 23503 are the answers that races for keys ask for.
_ABORTED = {"40001", "40P01", "25006", "23505", "23503"}
_ENDED = {"57P01", "57P02", "57P03", "57014", None}  # or cancelled: it was in the way
_UNKNOWN = {"08007"}
_PAUSE_S = 0.05  # while a node is away


class Attempt:
    """A transaction under way. What its methods read and write is recorded.

    Tables have the columns ``id`` and ``value``, or ``id`` and ``elements`` for lists.
    """

    def __init__(self, recorder: Recorder, connection: Connection, node: str, session: int) -> None:
        self.recorder = recorder
        self.connection = connection
        self.committing = False
        self._node = recorder.server_of(node)
        self._session = session
        self.number = next(recorder.numbers)
        self._invoked = next(recorder.clock)
        self._operations: list[Operation] = []
        self._position: int | None = None

    async def begin(self, level: str = REPEATABLE_READ) -> None:
        """Begin, and ask in the same snapshot how far the node is where there is one snapshot."""
        await self.connection.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        if level == REPEATABLE_READ:
            self._position = await self.value("SELECT pgherd.last_gid()")

    async def commit(self) -> None:
        """Commit, with a token to ask by if it wrote."""
        if any(isinstance(operation, Write) for operation in self._operations):
            token = await self.value("SELECT pgherd.current_token()")
            self.recorder.tokens[self.number] = str(token)
        self.committing = True
        await self.connection.execute("COMMIT")

    async def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Execute anything; the rows, if it gives any."""
        cursor = await self.connection.execute(statement.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def value(self, statement: str, *parameters: object) -> Any:
        """The first column of the first row, None without rows."""
        rows = await self.rows(statement, *parameters)
        return rows[0][0] if rows else None

    async def read(self, key: Key) -> int | None:
        """Read a row."""
        value = await self.value(f"SELECT value FROM {key[0]} WHERE id = %s", key[1])
        self._operations.append(Read(key, value))
        return None if value is None else int(value)

    async def read_list(self, key: Key) -> None:
        """Read a list."""
        elements = await self.value(f"SELECT elements FROM {key[0]} WHERE id = %s", key[1])
        self._operations.append(ReadList(key, tuple(elements or ())))

    async def scan(self, table: str) -> None:
        """Read all rows."""
        rows = await self.rows(f"SELECT id, value FROM {table}")
        self._operations.append(Scan(table, tuple((int(one), int(two)) for one, two in rows)))

    async def write(self, key: Key, assignments: str = "", *parameters: object) -> int:
        """Give an existing row a value that nobody else writes; return how many rows it was.

        Args:
            assignments: further columns to set, ", balance = balance + %s".
        """
        value = next(self.recorder.values)
        cursor = await self.connection.execute(
            f"UPDATE {key[0]} SET value = %s{assignments} WHERE id = %s".encode(),
            (value, *parameters, key[1]),
        )
        if cursor.rowcount:
            self._operations.append(Write(key, value))
        return cursor.rowcount

    async def insert(self, key: Key, columns: str = "", *parameters: object) -> None:
        """Make a row.

        Args:
            columns: values of further columns, ", %s".
        """
        value = next(self.recorder.values)
        await self.rows(
            f"INSERT INTO {key[0]} VALUES (%s, %s{columns})", key[1], value, *parameters
        )
        self._operations.append(Write(key, value))

    async def append(self, key: Key, *, there: bool = False) -> tuple[int, ...]:
        """Append to a list; return all that it holds now.

        Args:
            there: the table has no primary key, and all lists from the beginning.
        """
        table, value = key[0], next(self.recorder.values)
        if there:
            elements = await self.value(
                f"UPDATE {table} SET elements = elements || %s::int WHERE id = %s"
                " RETURNING elements",
                value,
                key[1],
            )
        else:
            elements = await self.value(
                f"INSERT INTO {table} VALUES (%s, ARRAY[%s::int]) ON CONFLICT (id) DO UPDATE"
                f" SET elements = {table}.elements || EXCLUDED.elements RETURNING elements",
                key[1],
                value,
            )
        self._operations.append(Write(key, value))
        return tuple(elements)

    def saw(self, operation: Operation) -> None:
        """Record what a statement of the workload's own has seen."""
        self._operations.append(operation)

    def ended(self, outcome: Outcome) -> None:
        """Record the transaction."""
        self.recorder.record(
            Transaction(
                self.number,
                self._node,
                self._session,
                self._invoked,
                next(self.recorder.clock),
                tuple(self._operations),
                outcome,
                self._position,
            )
        )


async def run_client(
    recorder: Recorder, node: str, dsn: str, body: Body, chance: random.Random, stop: asyncio.Event
) -> None:
    """Run transactions until ``stop``; reconnect as often as it takes."""
    while not stop.is_set():
        try:
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            await asyncio.sleep(_PAUSE_S)
            continue
        async with connection:
            session = next(recorder.sessions)
            with contextlib.suppress(psycopg.OperationalError):
                while not stop.is_set() and not connection.closed:
                    attempt = Attempt(recorder, connection, node, session)
                    if await run_once(attempt, body, chance) is Outcome.UNKNOWN:
                        # What is unknown may be finished by others, after this session goes on.
                        session = next(recorder.sessions)


async def run_once(attempt: Attempt, body: Body, chance: random.Random) -> Outcome:
    """Run one transaction to its end and record it."""
    try:
        await body(attempt, chance)
        await attempt.commit()
    except psycopg.Error as error:
        outcome = _heard(attempt, error)
        attempt.ended(outcome)
        if not attempt.connection.closed:
            await attempt.connection.execute("ROLLBACK")
        if error.sqlstate == "25006":
            await asyncio.sleep(_PAUSE_S)
        return outcome
    attempt.ended(Outcome.OK)
    return Outcome.OK


def _heard(attempt: Attempt, error: psycopg.Error) -> Outcome:
    """What an error says about the transaction."""
    code = error.sqlstate
    attempt.recorder.codes[str(code)] += 1
    if code in _ABORTED:
        return Outcome.FAILED
    if code not in _UNKNOWN | _ENDED | attempt.recorder.expected:
        attempt.recorder.surprises.append(f"{code}: {error}")
    return Outcome.UNKNOWN if attempt.committing else Outcome.FAILED


@contextlib.asynccontextmanager
async def load(
    recorder: Recorder, dsns: Mapping[str, str], body: Body, *, clients: int, seed: int
) -> AsyncIterator[None]:
    """Run ``clients`` on each node for as long as the block lasts.

    Args:
        dsns: by node.
    """
    stop = asyncio.Event()
    chance = random.Random(seed)
    async with asyncio.TaskGroup() as group:
        for node, dsn in dsns.items():
            for _ in range(clients):
                own = random.Random(chance.getrandbits(64))
                group.create_task(run_client(recorder, node, dsn, body, own, stop))
        try:
            yield
        finally:
            stop.set()
