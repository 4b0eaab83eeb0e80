"""Long commands: what each member does on its own, beside the commits it applies.

``sql/055_long_commands.sql`` has the rows that say what is under way, and how they are ordered. A
member that is not the origin builds the index and reports it. The sidecar of the origin says who is
waited for, and has all members undo the command when its client's session does not get to the end.
If the origin is silent for long, the first of the other members does that. A member that is silent
for long, or drained for maintenance, is not waited for: a member that comes back builds what it
lacks before it goes on.

A drop (``sql/055_long_drops.sql``) goes the same way, with one step more: the others begin when
PostgreSQL has done the first part at the origin. From then on it is finished, whatever becomes of
the session.

Nothing here survives a restart: the rows do, and what was begun is dropped and begun again.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog
from psycopg.rows import class_row

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.server.startup import connect, conninfo
from pgherd_sidecar.agent.standing.holding import names_of
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.pg.failures import Trouble, judge_error

log = structlog.get_logger()

_PACE_S: Final = 1.0
_LEAST_S: Final = 0.02
"""Not more often, whoever sends notifications: every user of the server can."""
_AGAIN_S: Final = 2.0
"""Between two attempts to build."""
_LONGEST_S: Final = 10.0
_SILENT_S: Final = 10.0
"""A member that was not heard of for so long counts as away."""
_CREATE: Final = "CREATE INDEX "
_UNIQUE: Final = "CREATE UNIQUE INDEX "
_ABANDON: Final = "UPDATE pgherd.long_commands SET abandoned = $1, state = $2 WHERE token = $3"
_READY: Final = "SELECT pgherd.ready_unique($1, $2)"
_WRITERS: Final = "SELECT pgherd.writers_of_long($1)"
_DUPLICATE: Final = "23505"
_LOOK_S: Final = 0.1
_WAITED_FOR: Final = "UPDATE pgherd.long_commands SET missing = $1 WHERE token = $2"
_PASSING: Final = (Trouble.INTERRUPTED, Trouble.LOST)
"""Somebody stood in the way: what was begun is begun again."""
_BUILDER: Final = (
    "SET search_path = pg_catalog; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres';"
    " SET TimeZone = 'UTC'; SET lc_monetary = 'C'; SET default_tablespace = '';"
    " SET default_transaction_isolation = 'read committed';"
    " SET default_transaction_read_only = off"
)


@dataclass(frozen=True, slots=True)
class LongCommand:
    """A row of ``pgherd.long_commands_here``; see there."""

    token: str
    member: int
    definition: str
    tab: str
    index: str
    done: list[int]
    failed: str | None
    abandoned: str | None
    missing: str | None
    here: bool
    begun: bool
    at_work: bool
    phase: str | None
    kind: str
    go: bool
    valid: bool
    dead: bool
    ready: bool
    state: str | None
    built: bool


class LongCommands:
    """Does this member's part of the long commands.

    Args:
        host: the log, which knows who belongs to the herd and who is there.
        databases: what the log says of their databases.
        away: names of the members that are drained: nobody waits for them.
    """

    def __init__(
        self, config: NodeConfig, host: LogHost, databases: Databases, away: Set[str]
    ) -> None:
        self._config = config
        self._host = host
        self._last_heard: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self._databases = databases
        self._away = away
        self._known: list[LongCommand] = []
        self._building: asyncio.Task[None] | None = None
        self._built_token = ""
        self._failure = ""
        self._announcing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Do it for ever.

        Raises:
            psycopg.Error: the server is gone.
        """
        try:
            async with await connect(self._config, "pgherd long watch", idle=True) as connection:
                await connection.execute("SELECT pgherd.end_old('pgherd long')")
                await connection.execute("LISTEN pgherd_long")
                while True:
                    await self._look(connection)
                    await asyncio.sleep(_LEAST_S)
                    wait_s = _PACE_S - _LEAST_S
                    async for _ in connection.notifies(timeout=wait_s, stop_after=1):
                        pass
        finally:
            for task in self._announcing:
                task.cancel()
            await self._stop_building()

    def status(self) -> dict[str, Any]:
        """Return what is under way, as of the last look."""
        names = names_of(self._host.membership)
        return {
            "long_commands": [
                {
                    "index": one.index,
                    "table": one.tab,
                    "origin": names.get(one.member, str(one.member)),
                    "done": [names.get(number, str(number)) for number in one.done],
                    "here": one.here,
                    "phase": one.phase or "",
                    "failed": one.failed or one.abandoned or "",
                    "kind": one.kind,
                }
                for one in self._known
            ]
        }

    def _listen(self) -> None:
        now = self._loop.time()
        heard = self._host.peers.members_heard()
        for name in names_of(self._host.membership).values():
            if name in heard or name not in self._last_heard:
                self._last_heard[name] = now

    async def _look(self, connection: psycopg.AsyncConnection[Any]) -> None:
        cursor = connection.cursor(row_factory=class_row(LongCommand))
        await cursor.execute("SELECT * FROM pgherd.long_commands_here ORDER BY token")
        self._known = await cursor.fetchall()
        if self._building is not None and self._built_token not in {
            one.token for one in self._known if one.failed is None
        }:
            await self._stop_building()
        self._listen()
        for one in self._known:
            await self._see(connection, one)

    async def _see(self, connection: psycopg.AsyncConnection[Any], one: LongCommand) -> None:
        number, present = self._config.number, self._present()
        if one.abandoned is not None and one.failed is None:
            reason = f"{self._config.name}: {one.abandoned}"
            await self._order(one, "long_failed", reason=reason, state=one.state or "")
        if one.member == number:
            await self._see_own(connection, one, present)
        elif one.member not in present and number == min(present, default=number):
            gave_way = one.kind == "drop" and one.here  # to rows that it would not allow
            await self._order(one, "long_end" if one.go or gave_way else "long_undo")
        elif one.kind == "drop" and not one.go:
            pass  # its origin may still refuse
        elif one.failed is None and one.abandoned is None and not self._busy:
            if not (one.here and one.ready):
                self._begin(one)
            elif number not in one.done:
                await self._order(one, "long_done", value=number)

    @property
    def _busy(self) -> bool:
        return self._building is not None and not self._building.done()

    def _begin(self, one: LongCommand) -> None:
        self._built_token = one.token
        self._building = asyncio.create_task(self._build(one))

    async def _see_own(
        self, connection: psycopg.AsyncConnection[Any], one: LongCommand, present: dict[int, str]
    ) -> None:
        if not one.at_work:
            refused = one.kind == "build" or (one.valid and not one.go)
            await self._order(one, "long_undo" if refused else "long_end")
            return
        if one.kind == "drop" and not one.go:
            if one.dead:
                await self._order(one, "long_go")
            return
        done = [*one.done]
        if one.ready and not self._busy:
            done.append(one.member)
        elif one.built and not self._busy:
            self._begin(one)
        waited_for = [present[n] for n in sorted(present) if n not in done]
        missing = ", ".join(waited_for)
        if missing != one.missing:
            await connection.execute(_WAITED_FOR, (missing, one.token))

    def _present(self) -> dict[int, str]:
        """Number and name of the voters that are heard of and whose databases are whole."""
        membership, now = self._host.membership, self._loop.time()
        view, whole = membership.view, self._databases.whole
        if view is None:
            return {}
        return {
            number: name
            for number, name in names_of(membership).items()
            if name in view.voters
            and number in whole
            and name not in self._away
            and now - self._last_heard.get(name, now) <= _SILENT_S
        }

    async def _order(
        self, one: LongCommand, act: str, *, value: int = 0, reason: str = "", state: str = ""
    ) -> None:
        """Have all members know; repeated at the next look where it fails."""
        why = {"reason": reason, "state": state or None} if reason else {}
        said = json.dumps({"token": one.token} | why)
        try:
            await self._request(act, said, value)
        except (psycopg.Error, TimeoutError) as error:
            self._tell(act, error)
        else:
            self._failure = ""
            log.info("long.ordered", act=act, index=one.index)

    async def _request(self, act: str, said: str, value: int) -> None:
        async with (
            asyncio.timeout(_LONGEST_S),
            await psycopg.AsyncConnection[Any].connect(
                conninfo(self._config, "pgherd long order"), autocommit=True
            ) as connection,
        ):
            await connection.execute(
                "INSERT INTO pgherd.request (act, object, value) VALUES (%s, %s, %s)",
                (act, said, value),
            )

    def announce_drop(self, what: str, answer: Callable[[str, str], None]) -> None:
        """Have all members know that a session will drop an index CONCURRENTLY.

        Args:
            what: which, as ``pgherd.begin_drop`` takes it.
            answer: called once, with an SQLSTATE and a message; empty if all know.
        """
        task = asyncio.create_task(self._announce(what, answer))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _announce(self, what: str, answer: Callable[[str, str], None]) -> None:
        try:
            await self._request("long_drop", what, 0)
        except psycopg.Error as error:
            message = error.diag.message_primary or type(error).__name__
            answer(error.sqlstate or "40001", message)
        except TimeoutError:
            answer(
                "40001", "the other members were not told in time that the index will be dropped"
            )
        else:
            answer("", "")

    def _tell(self, act: str, error: Exception) -> None:
        diag = getattr(error, "diag", None)
        message = getattr(diag, "message_primary", None) or type(error).__name__
        if message != self._failure:
            self._failure = message
            log.warning("long.not_ordered", act=act, error=message)

    async def _build(self, one: LongCommand) -> None:
        """Build or drop an index, beside everything else.

        What was left of one that is to be built is dropped first. At the origin the client's
        session builds it.
        """
        try:
            async with await connect(self._config, "pgherd long") as connection:
                await connection.execute(_BUILDER)
                try:
                    if (one.built and one.member == self._config.number) or one.here:
                        await self._ready(connection, one)
                        return
                    await connection.execute(_READY, (one.token, False))
                    if one.begun:
                        await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {one.index}")
                    if one.kind == "drop":
                        return
                    create = _UNIQUE if one.definition.startswith(_UNIQUE) else _CREATE
                    what = one.definition.removeprefix(create)
                    await connection.execute(f"{create}CONCURRENTLY {what}")
                    await self._ready(connection, one)
                except psycopg.Error as error:
                    found = judge_error(error)
                    if found.trouble in _PASSING:
                        raise
                    log.warning("long.abandoned", index=one.index, error=found.cause)
                    state = _DUPLICATE if found.sqlstate == _DUPLICATE else None
                    await connection.execute(_ABANDON, (found.cause, state, one.token))
        except psycopg.Error as error:
            log.info("long.interrupted", index=one.index, error=judge_error(error).cause)
            await asyncio.sleep(_AGAIN_S)

    async def _ready(self, connection: psycopg.AsyncConnection[Any], one: LongCommand) -> None:
        """Have rows of a unique index that is built captured as such, and wait for older ones.

        Transactions that wrote before would make the command lose, which is all: so none of this
        is needed for what is promised.
        """
        await connection.execute(_READY, (one.token, True))
        before: set[str] | None = None
        while before is None or before:
            rows = await connection.execute(_WRITERS, (one.token,))
            row = await rows.fetchone()
            assert row is not None
            before = set(row[0]) & (set(row[0]) if before is None else before)
            if before:
                await asyncio.sleep(_LOOK_S)

    async def _stop_building(self) -> None:
        task, self._building = self._building, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
