"""Reads what a request of the scrub asks for, in a snapshot at the request's GID, and answers it.

A snapshot is held for seconds at most. A member that has enough to do says so instead.

Nothing survives it.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import psycopg

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.snapshots.scrub.connection import (
    HELD_S,
    PART_TIMEOUT_MS,
    ScrubConnection,
    error_name,
)
from pgherd_sidecar.agent.snapshots.scrub.sending import ScrubSender
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.replication.scrub.messages import Answer, Kind, Outcome, Request
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.pg.comparison import checksum, indexes, ranges
from pgherd_sidecar.pg.comparison.checksum import TableChangedError, UnknownTable
from pgherd_sidecar.pg.comparison.ranges import TooLong, UnknownKey

_QUEUED_MAX_BYTES = 1 << 20
_LAG_MAX = 1_000
_LIST_MAX_BYTES = 1 << 20
_WHOLE_TIMEOUT_MS = 30_000


class PartReader:
    """Answers the requests that the log delivers to one member.

    Args:
        config: this member's.
        host: its log.
        path: the commit path: is much under way?
        state: what follows from the log, as far as it was delivered.
        connection: the scrub's session with the server.
        sender: sends the answers.
    """

    def __init__(
        self,
        config: NodeConfig,
        host: LogHost,
        *,
        path: CommitPath,
        state: ReplicatedState,
        connection: ScrubConnection,
        sender: ScrubSender,
    ) -> None:
        self._me = config.number, config.name
        self._host = host
        self._path = path
        self._state = state
        self._connection = connection
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin_answer(self, request: Request) -> None:
        """Take the snapshot; called when all before the request is visible and nothing after it."""
        turn = self._connection.turn
        behind = self._host.commit_position - self._state.position > _LAG_MAX
        if behind or turn.locked() or overloaded(self._path):
            self._reply(Answer(request.id, *self._me, Outcome.BUSY))
            return
        await turn.acquire()
        try:
            connection = await self._connection.connected()
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await connection.execute("SELECT pgherd.last_gid()")
        except psycopg.Error as error:
            await self._connection.disconnect()
            turn.release()
            self._reply(Answer(request.id, *self._me, Outcome.FAILED, note=error_name(error)))
            return
        except BaseException:
            turn.release()
            raise
        self._start(self._answer(request, connection))

    async def close(self) -> None:
        """Answer nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, request: Request, connection: psycopg.AsyncConnection[Any]) -> None:
        began_s = self._loop.time()
        found: dict[str, str] = {}
        rows, note = 0, ""
        try:
            async with asyncio.timeout(HELD_S):
                found, rows = await _read_part(connection, request)
            outcome = Outcome.READ
        except TableChangedError:
            outcome = Outcome.CHANGED
        except (UnknownTable, UnknownKey, _NoAmcheckError):
            outcome = Outcome.ABSENT
        except TooLong:
            outcome, note = Outcome.FAILED, "keys too long"
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
            outcome, note = Outcome.BUSY, error_name(error)
        except TimeoutError:
            outcome = Outcome.BUSY
            await self._connection.disconnect()
        except psycopg.Error as error:
            outcome, note = Outcome.FAILED, error_name(error)
        finally:
            await self._give_back(connection)
        work_s = self._loop.time() - began_s
        self._connection.work_s += work_s
        self._reply(Answer(request.id, *self._me, outcome, found, rows, round(work_s, 4), note))

    async def _give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """End the snapshot, whatever has happened."""
        try:
            await connection.execute("ROLLBACK")
        except psycopg.Error:
            await self._connection.disconnect()
        finally:
            self._connection.turn.release()

    def _reply(self, answer: Answer) -> None:
        self._start(self._sender.send(answer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _NoAmcheckError(Exception):
    """The server has no amcheck."""


def overloaded(path: CommitPath) -> bool:
    """Whether so much is to be applied that the scrub would be in its way."""
    return path.batches.queued_bytes > _QUEUED_MAX_BYTES


async def _read_part(
    connection: psycopg.AsyncConnection[Any], request: Request
) -> tuple[dict[str, str], int]:
    """Return checksums and the number of rows that they are of."""
    subject = request.subject
    part = request.ranged or subject.kind in (Kind.ROWS, Kind.KEYS, Kind.NAMES)
    limit_ms = PART_TIMEOUT_MS if part else _WHOLE_TIMEOUT_MS
    await connection.execute(f"SET LOCAL statement_timeout = {limit_ms:d}")
    if subject.kind is Kind.NAMES:
        tables = await checksum.list_tables(connection)
        return {table.name: table.columns for table in tables}, 0
    if subject.kind is Kind.INDEX:
        if not await indexes.available(connection):
            raise _NoAmcheckError
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        fault = await indexes.check(connection, subject.index)
        return {} if fault is None else {"": fault}, 0
    table = await checksum.find_table(connection, subject.table)
    after, until = subject.after, subject.until
    if subject.kind is Kind.KEYS:
        found = await ranges.rows_between(connection, table, after, until, _LIST_MAX_BYTES)
        return found, 0
    if subject.kind is Kind.ROWS:
        keys = [ranges.from_json(key) for key in subject.keys]
        return await ranges.rows_of(connection, table, keys), 0
    rows, summed = await ranges.checksum_of(connection, table, after, until)
    return {"": f"{table.columns} {rows} {summed}"}, rows
