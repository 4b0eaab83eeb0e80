"""The simulator's model of a server and a real PostgreSQL: the same schedules, step by step.

Three sessions lock, read and write four rows at both isolation levels, take tokens and the lock of
a table, and end their transactions; others cancel or terminate them. After each step both servers
must agree: who is done and with which result or error, and who waits, and for whom.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from model_server import EXCLUSIVE, SHARED, TABLE, Key, Server
from patience import in_time
from places import free_port

from .installations import usable
from .plainpostgres import PlainPostgres, plain_postgres

ROWS = 4
SESSIONS = (1, 2, 3)
STEPS = 25
DEADLOCK_TIMEOUT_S = 0.05

Result = str | int | None
Statement = tuple[str, Key | None, str]
"""What is done (``read``, ``lock``, ``write``), to what, and in which mode."""


class ModelSessions:
    """Sessions of the model: each runs one statement at a time, which may wait."""

    def __init__(self) -> None:
        self.server = Server()
        self.results: dict[int, Result] = {}  # of statements that are done
        self.running: dict[int, tuple[Statement, int]] = {}  # those that wait, oldest first
        for row in range(ROWS):
            self.server.versions[row] = [(0, 0)]

    def begin(self, session: int, *, repeatable: bool) -> None:
        """Begin a transaction, and take its snapshot."""
        self.server.begin(session, repeatable=repeatable)
        self.server.base(session)

    def start(self, session: int, statement: Statement, value: int) -> None:
        """Begin a statement; it is done, or waits then."""
        if statement[1] != TABLE:
            self.server.base(session)
        self.running[session] = (statement, value)
        self.go_on()

    def go_on(self) -> None:
        """Let all go on that can, and end the one that waits for itself."""
        progress = True
        while progress:
            progress = False
            for session, (statement, value) in list(self.running.items()):
                done, result = self._try(session, statement, value)
                if done:
                    del self.running[session]
                    self.results[session] = result
                    progress = True
        newest = next(reversed(self.running), None)
        if newest is not None and self.server.in_deadlock(newest):
            self.fail(newest, "40P01")

    def _try(self, session: int, statement: Statement, value: int) -> tuple[bool, Result]:
        what, key, mode = statement
        server = self.server
        if what == "read":
            assert isinstance(key, int)
            return True, server.read(session, key)
        assert key is not None
        if isinstance(key, int) and not server.is_unchanged(session, key):
            server.end(session, "aborted")
            return True, "40001"
        if not server.lock(session, key, mode):
            return False, None
        if not isinstance(key, int):
            return True, None
        if what == "write":
            server.write(session, key, value)
            return True, value
        return True, server.read(session, key)

    def fail(self, session: int, sqlstate: str) -> None:
        """A statement that waits fails, and with it its transaction."""
        del self.running[session]
        self.results[session] = sqlstate
        self.server.end(session, "aborted")
        self.go_on()

    def end(self, session: int, *, commit: bool) -> None:
        """End a transaction."""
        server, gid = self.server, self.server.last_gid + 1
        rows = server.open[session].pending
        if commit and rows:
            assert server.show(gid, gid - 1, [gid], rows)
        server.end(session, "committed" if commit else "aborted")
        self.go_on()


class RealSessions:
    """The same sessions on a real server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.tasks: dict[int, asyncio.Task[Result]] = {}
        self.xids: dict[int, str] = {}

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Open the connections."""
        self._sessions = {session: await self._connect() for session in SESSIONS}
        self._admin = await self._connect()
        try:
            yield
        finally:
            for task in self.tasks.values():
                task.cancel()
            for connection in (*self._sessions.values(), self._admin):
                connection.pgconn.finish()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection[Any].connect(self._dsn, autocommit=True)

    async def begin(self, session: int, *, repeatable: bool) -> None:
        """Begin a transaction, and take its snapshot."""
        connection = self._sessions[session]
        level = "REPEATABLE READ" if repeatable else "READ COMMITTED"
        await connection.execute(f"BEGIN ISOLATION LEVEL {level}")
        cursor = await connection.execute("SELECT pg_current_xact_id()::text")
        row = await cursor.fetchone()
        assert row is not None
        self.xids[session] = row[0]

    def start(self, session: int, statement: Statement, value: int) -> None:
        """Begin a statement."""
        self.tasks[session] = asyncio.create_task(self._run(session, statement, value))

    async def _run(self, session: int, statement: Statement, value: int) -> Result:
        what, key, mode = statement
        if what == "read":
            query = f"SELECT value FROM model WHERE id = {key}"
        elif key == TABLE:
            query = f"LOCK TABLE guard IN {'SHARE' if mode == SHARED else 'EXCLUSIVE'} MODE"
        elif isinstance(key, tuple):
            shared = "_shared" if mode == SHARED else ""
            query = f"SELECT NULL::int FROM pg_advisory_xact_lock{shared}({key[1]})"
        elif what == "write":
            query = f"UPDATE model SET value = {value} WHERE id = {key} RETURNING value"
        else:
            query = f"SELECT value FROM model WHERE id = {key} FOR UPDATE"
        try:
            cursor = await self._sessions[session].execute(query)
        except psycopg.Error as error:
            return error.sqlstate
        row = await cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    async def result(self, session: int) -> Result:
        """What a statement that must be done has given."""
        async with in_time():
            return await self.tasks.pop(session)

    async def blockers(self, session: int) -> set[int]:
        """Those that a statement waits for; it must wait, and go on to do so."""
        backend = self._sessions[session].info.backend_pid
        by_backend = {one.info.backend_pid: n for n, one in self._sessions.items()}
        async with in_time():
            while True:
                cursor = await self._admin.execute("SELECT pg_blocking_pids(%s)", (backend,))
                row = await cursor.fetchone()
                assert row is not None
                assert not self.tasks[session].done(), (session, self.tasks[session])
                if row[0]:
                    return {by_backend[pid] for pid in row[0]}

    async def end(self, session: int, *, commit: bool) -> None:
        """End a transaction."""
        await self._sessions[session].execute("COMMIT" if commit else "ROLLBACK")

    async def harm(self, session: int, *, terminate: bool) -> None:
        """Cancel a statement, or end a session; a new one takes its place."""
        how = "terminate" if terminate else "cancel"
        backend = self._sessions[session].info.backend_pid
        await self._admin.execute(f"SELECT pg_{how}_backend({backend})")
        if terminate:
            await asyncio.wait([self.tasks[session]])
            self._sessions[session].pgconn.finish()
            self._sessions[session] = await self._connect()

    async def status(self, session: int) -> str:
        """What has become of a session's last transaction."""
        cursor = await self._admin.execute("SELECT pg_xact_status(%s::xid8)", (self.xids[session],))
        row = await cursor.fetchone()
        assert row is not None
        return str(row[0])


class Comparison:
    """One schedule on both."""

    def __init__(self, seed: int, real: RealSessions) -> None:
        self.met: set[str] = set()
        self._rng = Random(seed)
        self._model = ModelSessions()
        self._real = real
        self._xids: dict[int, int] = {}
        self._values = 0

    async def run(self) -> None:
        """Run it; whatever differs fails."""
        for _ in range(STEPS):
            await self._step()
            await self._agree()
        while self._model.server.open:
            idle = [one for one in self._model.server.open if one not in self._model.running]
            await self._end(idle[0], commit=self._rng.random() < 0.5)
            await self._agree()

    async def _step(self) -> None:
        rng, model = self._rng, self._model
        session = rng.choice(SESSIONS)
        if session in model.running:
            await self._harm(session)
        elif session not in model.server.open:
            await self._begin(session)
        elif rng.random() < 0.2:
            await self._end(session, commit=rng.random() < 0.7)
        else:
            token = ("token", rng.randrange(2))
            key: Key = token if rng.random() < 0.15 else rng.randrange(ROWS)
            what = "lock" if key == token else rng.choice(("read", "lock", "write", "write"))
            mode = SHARED if key == token and self._may_share(session, key) else EXCLUSIVE
            self._start(session, (what, key, mode))

    def _may_share(self, session: int, key: Key) -> bool:
        """Locks are not made stronger: PostgreSQL lets who does that go first."""
        lock = self._model.server.locks.get(key)
        return lock is None or session not in lock.holders

    async def _begin(self, session: int) -> None:
        repeatable = self._rng.random() < 0.5
        self._model.begin(session, repeatable=repeatable)
        self._xids[session] = self._model.server.open[session].xid
        await self._real.begin(session, repeatable=repeatable)
        if self._rng.random() < 0.4:
            self._start(session, ("lock", TABLE, self._rng.choice((SHARED, SHARED, EXCLUSIVE))))

    def _start(self, session: int, statement: Statement) -> None:
        self._values += 1
        self._model.start(session, statement, self._values)
        self._real.start(session, statement, self._values)

    async def _end(self, session: int, *, commit: bool) -> None:
        self._model.end(session, commit=commit)
        await self._real.end(session, commit=commit)
        await self._agree_on_status(session)

    async def _harm(self, session: int) -> None:
        terminate = self._rng.random() < 0.3
        await self._real.harm(session, terminate=terminate)
        self._model.fail(session, "57P01" if terminate else "57014")

    async def _agree(self) -> None:
        model, real = self._model, self._real
        while model.results:
            session, expected = model.results.popitem()
            assert await real.result(session) == expected, (session, expected)
            if isinstance(expected, str):
                self.met.add(expected)
                with contextlib.suppress(psycopg.Error):
                    await real.end(session, commit=False)
                await self._agree_on_status(session)
        if model.running:
            await asyncio.sleep(2 * DEADLOCK_TIMEOUT_S)
        for session in model.running:
            self.met.add("waits")
            known = set(model.server.blockers(session))
            found = await real.blockers(session)
            assert found <= known, (session, found, known)

    async def _agree_on_status(self, session: int) -> None:
        assert await self._real.status(session) == self._model.server.status[self._xids[session]]


@pytest.fixture(scope="module")
def plain(work_directory: Path) -> Iterator[PlainPostgres]:
    settings = f"deadlock_timeout = {1000 * DEADLOCK_TIMEOUT_S:.0f}ms\nfsync = off\n"
    with plain_postgres(work_directory / "model", free_port(), max(usable()), settings) as server:
        yield server


@pytest.mark.parametrize("seeds", [8, pytest.param(40, marks=pytest.mark.long)])
async def test_the_model_and_a_real_server_agree(plain: PlainPostgres, seeds: int) -> None:
    met: set[str] = set()
    for seed in range(seeds):
        async with await psycopg.AsyncConnection[Any].connect(plain.dsn()) as connection:
            await connection.execute("DROP TABLE IF EXISTS model, guard")
            await connection.execute("CREATE TABLE guard ()")
            await connection.execute(
                "CREATE TABLE model AS"
                f" SELECT n AS id, 0 AS value FROM generate_series(0, {ROWS - 1}) n"
            )
        real = RealSessions(plain.dsn())
        async with real.connected():
            comparison = Comparison(seed, real)
            try:
                await comparison.run()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        met |= comparison.met
    assert met == {"waits", "40001", "40P01", "57014", "57P01"} or seeds < 40
