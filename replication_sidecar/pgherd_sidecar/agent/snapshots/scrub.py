"""The scrub: has members compare their tables with each other's in idle time, again and again.

``core.replication.scrub`` decides what is asked and what it means; this module orders requests
while this member is the proposer, reads what is asked for in a snapshot at the request's GID, and
keeps how far it is in ``scrub.json``. Reading is a session of its own, held for seconds at most,
that rests in between. It is no promise: who is busy says so, and nothing waits for it.

Nothing is rebuilt because of what is found: an administrator has to look.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import psycopg
import structlog
from psycopg import pq

from pgherd_sidecar.agent.admin.port import StatusValue
from pgherd_sidecar.agent.apply.applier import Applier
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.server.startup import connect
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.replication.entries import Marker, encode_entry
from pgherd_sidecar.core.replication.scrub.ledger import Conclusion, Ledger
from pgherd_sidecar.core.replication.scrub.messages import (
    Answer,
    Kind,
    Outcome,
    Purpose,
    Request,
    Subject,
    decode_message,
    encode_message,
)
from pgherd_sidecar.core.replication.scrub.pacing import (
    ROWS_MAX,
    due_s,
    first_behind,
    parts_left,
    recheck_due,
    rest_s,
    rows_next,
)
from pgherd_sidecar.core.replication.scrub.saved import Position, Saved, summary
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.env.storage import durable
from pgherd_sidecar.pg.comparison import checksum, indexes, ranges
from pgherd_sidecar.pg.comparison.checksum import TableChangedError, UnknownTable
from pgherd_sidecar.pg.comparison.ranges import TooLong

log = structlog.get_logger()

_FILE = "scrub.json"
_PACE_S = 1.0
_SAVE_S = 5.0
_LOOK_S, _LOOKS, _RETRIES = 0.02, 50, 20
"""Between looks whether what was ordered has come; how many before it is ordered again."""
_ROUND_S = 45.0
"""A round that some have not answered after so long is concluded without them."""
_IDLE_S = 30.0
"""So long it waits for a moment in which nothing is under way."""
_EXTENT_S = 300.0
_IN_TRANSACTION = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
_QUEUED_MAX_BYTES = 1 << 20
_LAG_MAX = 1_000
_LIST_MAX_BYTES = 1 << 20
_HELD_S = 40.0
_PART_TIMEOUT_MS, _WHOLE_TIMEOUT_MS = 5_000, 30_000


class Scrub:
    """The scrub of one member, for a session of the replica.

    Args:
        config: this member's.
        host: its log.
        applier: takes the snapshots, between what is applied.
        path: the commit path: is anything under way?
        state: what follows from the log, as far as it was delivered.
        ready: whether this member takes writes.
    """

    def __init__(
        self,
        config: NodeConfig,
        host: LogHost,
        *,
        applier: Applier,
        path: CommitPath,
        state: ReplicatedState,
        ready: Callable[[], bool],
    ) -> None:
        self._config = config
        self._asked = config.scrub
        self._host = host
        self._applier = applier
        self._path = path
        self._state = state
        self._ready = ready
        self._ledger = Ledger(self._load())
        self._loop = asyncio.get_running_loop()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._undelivered: set[str] = set()
        self._news = asyncio.Event()
        self._closed_s = self._opened_s = self._saved_s = self._loop.time()
        self._unsaved = False
        self._busy_since_s: float | None = None
        self._rows = ROWS_MAX
        self._planned_s = self._work_s = 0.0
        self._extent: list[tuple[str, float, int]] = []
        self._extent_of = 0, 0.0

    # ---- log ---------------------------------------------------------------------------------

    def take(self, gid: int, marker: Marker) -> bool:
        """Take a marker that was delivered; False if it is none of ours."""
        message = decode_message(marker)
        if message is None:
            return False
        if isinstance(message, Request):
            self._undelivered.discard(message.id)
        if not self._asked.interval_s:
            return True
        if isinstance(message, Answer):
            if message.member == self._config.number:
                self._undelivered.discard(f"answer {message.id}")
            self._conclude(self._ledger.answer(message))
            return True
        concluded = self._ledger.request(gid, message, self._members())
        if concluded is None:
            return True
        self._opened_s = self._loop.time()
        self._conclude(concluded)
        if self._ready():
            self._applier.queue(partial(self._begin, message))
        return True

    def _members(self) -> Collection[int]:
        return self._state.members

    def _conclude(self, concluded: list[Conclusion]) -> None:
        if not self._ledger.is_open:
            self._closed_s = self._loop.time()
        self._unsaved = True
        for one in concluded:
            _tell(one)
            self._saved_s = 0.0
        self._news.set()

    # ---- reading -----------------------------------------------------------------------------

    async def _begin(self, request: Request) -> None:
        """Take the snapshot; called when all before the request is visible and nothing after it."""
        behind = self._host.commit_position - self._state.position > _LAG_MAX
        if behind or self._turn.locked() or self._overloaded:
            self._reply(Answer(request.id, *self._me, Outcome.BUSY))
            return
        await self._turn.acquire()
        try:
            connection = await self._connected()
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await connection.execute("SELECT pgherd.last_gid()")
        except psycopg.Error as error:
            await self._disconnect()
            self._turn.release()
            self._reply(Answer(request.id, *self._me, Outcome.FAILED, note=_named(error)))
            return
        except BaseException:
            self._turn.release()
            raise
        self._start(self._answer(request, connection))

    @property
    def _overloaded(self) -> bool:
        return self._path.batches.queued_bytes > _QUEUED_MAX_BYTES

    @property
    def _me(self) -> tuple[int, str]:
        return self._config.number, self._config.name

    async def _answer(self, request: Request, connection: psycopg.AsyncConnection[Any]) -> None:
        began_s = self._loop.time()
        found: dict[str, str] = {}
        rows, note = 0, ""
        try:
            async with asyncio.timeout(_HELD_S):
                found, rows = await self._read(connection, request)
            outcome = Outcome.READ
        except TableChangedError:
            outcome = Outcome.CHANGED
        except (UnknownTable, _NoAmcheckError):
            outcome = Outcome.ABSENT
        except TooLong:
            outcome, note = Outcome.FAILED, "keys too long"
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
            outcome, note = Outcome.BUSY, _named(error)
        except TimeoutError:
            outcome = Outcome.BUSY
            await self._disconnect()
        except psycopg.Error as error:
            outcome, note = Outcome.FAILED, _named(error)
        finally:
            await self._give_back(connection)
        work_s = self._loop.time() - began_s
        self._work_s += work_s
        self._reply(Answer(request.id, *self._me, outcome, found, rows, round(work_s, 4), note))

    async def _give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """End the snapshot, whatever has happened."""
        try:
            await connection.execute("ROLLBACK")
        except psycopg.Error:
            await self._disconnect()
        finally:
            self._turn.release()

    async def _read(
        self, connection: psycopg.AsyncConnection[Any], request: Request
    ) -> tuple[dict[str, str], int]:
        """Return checksums and the number of rows that they are of."""
        subject = request.subject
        part = request.ranged or subject.kind in (Kind.ROWS, Kind.KEYS, Kind.NAMES)
        limit_ms = _PART_TIMEOUT_MS if part else _WHOLE_TIMEOUT_MS
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

    def _reply(self, answer: Answer) -> None:
        self._start(self._send(answer, f"answer {answer.id}"))

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            opened = await connect(self._config, "pgherd scrub", psycopg.AsyncCursor)
            self._connection = opened
            await opened.execute(
                "SET enable_seqscan = off; SET jit = off; SET lock_timeout = 200;"
                " SET max_parallel_workers_per_gather = 0"  # it may have a share of one core
            )
        return self._connection

    async def _disconnect(self) -> None:
        closing, self._connection = self._connection, None
        if closing is not None:
            await closing.close()

    # ---- asking ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for one part after the other whenever this member is the proposer."""
        while self._asked.interval_s:
            self._news.clear()
            await self._save()
            pause_s = _PACE_S
            if self._may_ask():
                pause_s = await self._ask()
            try:
                async with asyncio.timeout(max(pause_s, 0.01)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _may_ask(self) -> bool:
        if self._ledger.is_open and self._loop.time() >= self._opened_s + _ROUND_S:
            self._conclude(self._ledger.close())
        return (
            not self._ledger.is_open
            and self._ready()
            and len(self._members()) > 1
            and self._host.primary
            and self._host.proposer == self._config.name
        )

    async def _ask(self) -> float:
        """Order what is due; return for how long there is nothing to do, at most."""
        work_s = self._ledger.work_s + self._planned_s
        rested_s = self._closed_s + rest_s(work_s, self._asked.share) - self._loop.time()
        if rested_s > 0:
            return min(rested_s, _PACE_S)
        if not self._quiet():
            return _PACE_S / 10
        self._planned_s = 0.0
        try:
            request = await self._next()
        except (psycopg.Error, TableChangedError, UnknownTable) as error:
            log.info("scrub.not_planned", error=_named(error))
            self._extent_of = 0, 0.0  # it may have told of tables that are gone
            return _PACE_S
        if request is None:
            return _PACE_S
        await self._send(request, request.id)
        return 0.0

    def _quiet(self) -> bool:
        """Nothing is under way, or something has been all the time."""
        now_s = self._loop.time()
        if self._path.idle or self._overloaded:
            self._busy_since_s = None
            return not self._overloaded
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        return now_s >= self._busy_since_s + _IDLE_S

    async def _next(self) -> Request | None:
        saved, interval_s, now_s = self._ledger.saved, self._asked.interval_s, time.time()
        if not saved.began_s or saved.last_s > now_s + interval_s:  # or the clock was put back
            saved.began_s = saved.last_s = now_s
        if self._ledger.step is not None:
            step = self._ledger.step
            return self._request(step.purpose, step.subject, step.scanned)
        known = recheck_due(saved, interval_s, now_s)
        recheck = None
        if known is not None:
            recheck = self._request(Purpose.RECHECK, known.subject, None)
        if recheck is not None and not self._ledger.rechecked:
            return recheck
        return await self._next_scan(now_s) or recheck

    async def _next_scan(self, now_s: float) -> Request | None:
        async with self._turn:
            began_s = self._loop.time()
            connection = await self._connected()
            try:
                async with asyncio.timeout(_HELD_S):
                    return await self._scan(connection, now_s)
            except TimeoutError:
                await self._disconnect()
                return None
            finally:
                if connection.info.transaction_status in _IN_TRANSACTION:
                    await connection.execute("ROLLBACK")
                self._planned_s = self._loop.time() - began_s
                self._work_s += self._planned_s

    async def _scan(self, connection: psycopg.AsyncConnection[Any], now_s: float) -> Request | None:
        """Find the next part of the pass; None if it is not due yet."""
        saved = self._ledger.saved
        number, looked_s = self._extent_of
        if number != saved.number or self._loop.time() > looked_s + _EXTENT_S:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await connection.execute(f"SET LOCAL statement_timeout = {_PART_TIMEOUT_MS:d}")
            cursor = await connection.execute(
                checksum.STATEMENTS["extent"], {"name": saved.position.table}
            )
            self._extent = await cursor.fetchall()
            self._extent_of = saved.number, self._loop.time()
            await connection.execute("ROLLBACK")
        left = parts_left(self._extent, saved.position, self._rows)
        if now_s < due_s(saved, self._asked.interval_s, left, 0.0):
            return None
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(f"SET LOCAL statement_timeout = {_PART_TIMEOUT_MS:d}")
        position = saved.position
        while True:
            if position.table and position.index is None:
                try:
                    return await self._range(connection, position)
                except UnknownTable:
                    position = Position(position.table, None, "")
            following = await self._index_behind(connection, position)
            if following is not None:
                subject = Subject(Kind.INDEX, position.table, index=following)
                return self._request(Purpose.SCAN, subject, subject)
            name = first_behind((name for name, *_ in self._extent), position.table)
            if name is None:
                return self._request(Purpose.SCAN, Subject(Kind.NAMES), Subject(Kind.NAMES))
            position = Position(name)

    async def _range(self, connection: psycopg.AsyncConnection[Any], position: Position) -> Request:
        table = await checksum.find_table(connection, position.table)
        ranged = bool(table.key) and table.sortable
        until = None
        if ranged:
            self._rows = rows_next(self._rows, self._ledger.work_s)
            until = await ranges.end_of(connection, table, position.after, self._rows)
        after = position.after if ranged else None
        subject = Subject(Kind.RANGE, table.name, after, until)
        return self._request(Purpose.SCAN, subject, subject, ranged=ranged)

    async def _index_behind(
        self, connection: psycopg.AsyncConnection[Any], position: Position
    ) -> str | None:
        if position.index is None or not await indexes.available(connection):
            return None
        cursor = await connection.execute(checksum.STATEMENTS["indexes"], {"table": position.table})
        names = [name for (name,) in await cursor.fetchall()]
        return first_behind(names, position.index)

    def _request(
        self, purpose: Purpose, subject: Subject, scanned: Subject | None, *, ranged: bool = False
    ) -> Request:
        saved = self._ledger.saved
        return Request(
            id=uuid.uuid4().hex,
            purpose=purpose,
            subject=subject,
            number=saved.number,
            began_s=saved.began_s,
            ends_s=saved.began_s + self._asked.interval_s,
            at_s=time.time(),
            ranged=ranged,
            scanned=scanned,
        )

    async def _send(self, message: Request | Answer, delivered: str) -> None:
        """Order it; it may be lost on its way, and is ordered again for some time."""
        entry = encode_entry(encode_message(message, uuid.uuid4().bytes))
        self._undelivered.add(delivered)
        for number in range(_RETRIES * _LOOKS):
            if number % _LOOKS == 0:
                self._host.submit(entry, 1)
            await asyncio.sleep(_LOOK_S)
            if delivered not in self._undelivered:
                return
        self._undelivered.discard(delivered)
        log.debug("scrub.not_sent", id=message.id)

    # ---- life --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give everything back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._disconnect()
        self._saved_s = 0.0
        await self._save()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _load(self) -> Saved:
        try:
            content = (self._config.data_dir / _FILE).read_bytes()
            return msgspec.json.decode(content, type=Saved)
        except FileNotFoundError:
            return Saved()
        except (msgspec.DecodeError, OSError) as error:
            log.warning("scrub.begins_anew", reason=str(error))
            return Saved()

    async def _save(self) -> None:
        now_s = self._loop.time()
        if not self._unsaved or now_s < self._saved_s + _SAVE_S:
            return
        self._unsaved, self._saved_s = False, now_s
        content = msgspec.json.encode(self._ledger.saved)
        try:
            await asyncio.to_thread(durable.replace, self._config.data_dir, _FILE, content)
        except OSError as error:  # a full disk: it is no promise
            log.warning("scrub.not_saved", reason=str(error))

    def status(self) -> dict[str, StatusValue]:
        """What is known; numbers are metrics, too."""
        saved = self._ledger.saved
        return {
            "scrub": {
                "interval_s": self._asked.interval_s,
                "share": self._asked.share,
                "table": saved.position.table,
                "began": _time(saved.began_s),
                "finished": _time(saved.finished_s),
                "not_answering": sorted(self._ledger.silent),
                "differences": summary(saved),
            },
            "scrub_passes": saved.passes,
            "scrub_rows": saved.rows,
            "scrub_skipped": saved.skipped,
            "scrub_differences": len(saved.differences),
            "scrub_last_pass_time_s": saved.finished_s,
            "scrub_work_s": round(self._work_s, 3),
        }


class _NoAmcheckError(Exception):
    """The server has no amcheck."""


def _tell(one: Conclusion) -> None:
    """Log a conclusion; keys are values of rows, and are not for the log."""
    subject, found = one.subject, one.difference
    table, index = (subject.table, subject.index) if subject is not None else ("", "")
    match one.what:
        case "different" if found is not None:
            log.error(
                "scrub.different",
                table=table,
                index=index,
                members=list(found.members),
                majority=found.majority,
                keys=len(found.keys) + found.more,
                gid=one.gid,
                remedy="run verify, then rebuild the member that is wrong",
            )
        case "mended":
            log.info("scrub.mended", table=table, index=index, gid=one.gid)
        case "unconfirmed":
            log.warning("scrub.unconfirmed", table=table, gid=one.gid)
        case "skipped":
            log.warning("scrub.skipped", table=table, index=index, gid=one.gid, reason=one.note)
        case _:
            log.info("scrub.passed", gid=one.gid)


def _named(error: Exception) -> str:
    """The SQL state: messages may hold values of rows."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state or type(error).__name__


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
