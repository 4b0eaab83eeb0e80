"""Looks at the herd's maintenance every second, and does this member's part of it.

* A time of a schedule that has come becomes a run. Any member sees to it; of two one loses.
* A part of this member that waits is begun when the member can be spared (``guard``): in one
  transaction with the turn that everybody takes who begins one.
* Work that was begun by a sidecar that is no more, or by another session with the server, has
  failed: the member is in service again.
* A member that was not heard of for long has failed. It gives up by itself before the others say
  so, as soon as it has been without a majority for a while; and it has no majority if nobody
  hears of it. So no other one is taken while it may still be at work.
* Outcomes that could not be told yet are told again.

Nothing here survives a restart but the rows.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.maintenance import guard, rows
from pgherd_sidecar.agent.maintenance.rows import Connection, MemberPart
from pgherd_sidecar.agent.maintenance.work import MemberService, MemberWork
from pgherd_sidecar.client.times import BadTimesError, due_time
from pgherd_sidecar.pg.failures import judge_error

log = structlog.get_logger()

CANCELLED: Final = "cancelled"
"""Why it was given up, if somebody wanted that."""
_NAME: Final = "pgherd maintenance keeper"
_PACE_S: Final = 1.0
_PATIENCE_S: Final = 10.0
_ALONE_S: Final = 10.0
"""A member at work that has been without a majority for so long gives up."""
_STILL_S: Final = 20.0
"""Likewise one whose sidecar has stood still for so long: nobody has heard of it meanwhile."""
_SILENT_S: Final = 30.0
"""A member that was not heard of for so long has given up."""
_MISSED_S: Final = 3600.0
"""A time of a schedule that came longer ago is skipped."""


@dataclass(frozen=True, slots=True)
class KnownHerd:
    """The herd and the member itself, as far as the member knows them.

    Attributes:
        ready: it takes writes.
        alone_s: for how long it has been without a majority, in seconds; 0 if it has one.
        herd: who votes, is heard of and is whole; None where that is not known.
        members: the names of the voters that have a database.
        others_away: takes the names of the members that nobody is to wait for.
    """

    ready: Callable[[], bool]
    alone_s: Callable[[], float]
    herd: Callable[[], guard.SeenHerd | None]
    members: Callable[[], list[str]]
    others_away: Callable[[frozenset[str]], None]


class Keeper:
    """Does this member's part of the herd's maintenance.

    Args:
        config: of the member.
        known: what it knows.
        service: how it is taken out of service.
    """

    def __init__(self, config: NodeConfig, known: KnownHerd, service: MemberService) -> None:
        self._config = config
        self._known = known
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._session = secrets.token_hex(8)
        self._work: MemberWork | None = None
        self._task: asyncio.Task[str] | None = None
        self._wake = asyncio.Event()
        self._begun_s = 0.0
        self._looked_s = self._loop.time()
        self._why = ""
        self._outcome: tuple[MemberPart, str, str] | None = None
        self._last_heard: dict[str, float] = {}
        self._complaint = ""
        self._waits = ""
        self._open: list[MemberPart] = []
        self._done = self._failed = 0

    async def run(self) -> None:
        """Do it for ever.

        Raises:
            psycopg.Error: the server is gone.
        """
        try:
            first = True
            while True:
                async with await rows.connect(self._config, _NAME) as connection:
                    if first:
                        await connection.execute("SELECT pgherd.end_old('pgherd maintenance')")
                    first = False
                    while not connection.closed:  # it may be in the applier's way
                        self._wake.clear()
                        if await self._look(connection):
                            self._complaint = ""
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_PACE_S):
                                await self._wake.wait()
        finally:
            await self._stop()

    def status(self) -> dict[str, Any]:
        """The work under way, as of the last look."""
        work = self._work
        mine = None
        if work is not None:
            mine = {
                "run": work.part.run,
                "schedule": work.part.schedule,
                "phase": work.phase,
                "statement": work.statement,
                "seconds": round(self._loop.time() - self._begun_s, 1),
            }
        return {
            "maintenance": mine,
            "maintenance_waits": self._waits,
            "maintenance_waiting": sum(one.state == "waiting" for one in self._open),
            "maintenance_working": sum(one.state == "working" for one in self._open),
            "maintenance_done_total": self._done,
            "maintenance_failed_total": self._failed,
        }

    def cancel(self, run: str) -> bool:
        """Give up what this member does of a run; False if it does nothing of it."""
        if self._work is None or self._work.part.run != run:
            return False
        self._give_up(CANCELLED)
        return True

    # ---- looking -----------------------------------------------------------------------------

    async def _look(self, connection: Connection) -> bool:
        """Look once; False if something that others hold up could not be done."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if await rows.is_kept(connection):
                    self._listen()
                    await self._see(connection)
        except rows.CONFLICTS:
            return True  # somebody else was first: the next look tells
        except (psycopg.Error, TimeoutError) as error:
            self._complain(
                judge_error(error).cause if isinstance(error, psycopg.Error) else "too slow"
            )
            return False
        finally:
            self._end_if_alone()
        return True

    async def _see(self, connection: Connection) -> None:
        self._open = found = await rows.open_parts(connection)
        working = frozenset(one.member for one in found if one.state == "working")
        drained = [one for one in found if one.state == "working" and one.wanted.drain]
        self._known.others_away(frozenset(one.member for one in drained) - {self._config.name})
        await self._see_own(connection, found)
        if not self._known.ready():
            return
        await self._see_lost(connection, found)
        await self._see_schedules(connection, found)
        await self._claim(connection, found, working)

    async def _see_own(self, connection: Connection, found: list[MemberPart]) -> None:
        mine = next(
            (one for one in found if (one.member, one.state) == (self._config.name, "working")),
            None,
        )
        if self._work is not None and self._task is not None:
            if mine is None or mine.token != self._work.part.token:
                self._give_up("others have given it up")
            elif mine.cancelled:
                self._give_up(CANCELLED)
            if self._task.done():
                self._take_outcome()
        if self._outcome is not None:
            if self._known.ready():
                part, state, error = self._outcome
                await rows.finish(connection, part, state, error)
                self._outcome = None
        elif mine is not None and self._work is None:
            if mine.token.startswith(self._session):
                self._begin(mine)
            elif self._known.ready():
                why = "it was interrupted: its sidecar or its server was started anew"
                await rows.finish(connection, mine, "failed", why)

    def _begin(self, part: MemberPart) -> None:
        log.info("maintenance.begun", run=part.run)
        self._work = MemberWork(self._config, self._service, part)
        self._begun_s, self._why = self._loop.time(), ""
        self._task = self._loop.create_task(self._work.run())
        self._task.add_done_callback(lambda _: self._wake.set())

    def _take_outcome(self) -> None:
        assert self._work is not None and self._task is not None
        work, task = self._work, self._task
        self._work = self._task = None
        if task.cancelled():
            error = self._why
        elif (raised := task.exception()) is not None:
            error = judge_error(raised).cause if isinstance(raised, psycopg.Error) else str(raised)
        else:
            error = task.result()
        state = "done" if not error else "cancelled" if error == CANCELLED else "failed"
        self._done += state == "done"
        self._failed += state == "failed"
        tell = log.info if state == "done" else log.warning
        tell("maintenance.ended", run=work.part.run, outcome=state)
        self._outcome = (work.part, state, error)

    def _give_up(self, why: str) -> None:
        if self._task is not None and not self._task.done() and not self._why:
            self._why = why
            self._task.cancel()

    def _end_if_alone(self) -> None:
        before_s, self._looked_s = self._looked_s, self._loop.time()
        if self._known.alone_s() > _ALONE_S:
            self._give_up("it has lost the majority of the herd")
        elif self._looked_s - before_s > _STILL_S:
            self._give_up("its sidecar has stood still")

    def _listen(self) -> None:
        now, herd = self._loop.time(), self._known.herd()
        if herd is not None:
            for name in herd.view.voters:
                if name in herd.heard or name not in self._last_heard:
                    self._last_heard[name] = now

    async def _see_lost(self, connection: Connection, found: list[MemberPart]) -> None:
        """Say what became of members that can't say so themselves, and of waiting for too long."""
        members, now = self._known.members(), self._loop.time()
        for one in found:
            if one.member == self._config.name and one.state == "working":
                continue
            silent_s = now - self._last_heard.get(one.member, now)
            waits_s = (one.now - one.created).total_seconds()
            all_s = one.wanted.deadline_s * (1 + sum(other.run == one.run for other in found))
            if one.member not in members:
                await rows.finish(connection, one, "failed", "it is no member any more")
            elif one.state == "working" and silent_s > _SILENT_S:
                why = f"it was not heard of for {_SILENT_S:g} s"
                await rows.finish(connection, one, "failed", why)
            elif one.state == "waiting" and waits_s > all_s:
                await rows.finish(connection, one, "failed", "its turn did not come in time")

    async def _see_schedules(self, connection: Connection, found: list[MemberPart]) -> None:
        for one in await rows.schedules(connection):
            try:
                due = due_time(one.cron, one.time_zone, one.now, one.known, _MISSED_S)
            except BadTimesError as error:
                self._complain(f"schedule {one.name}: {error}")
                continue
            if due is None:
                continue
            busy = [part.run for part in found if part.schedule == one.name]
            message = f"{busy[0]} was not over at {due:%F %R} UTC" if busy else ""
            members = [
                name
                for name in self._known.members()
                if name in one.wanted.members or not one.wanted.members
            ]
            if not members:
                message = "none of its members belongs to the herd any more"
            if await rows.deal_with(connection, one, due, message, members):
                log.info("maintenance.due", schedule=one.name, skipped=message)

    async def _claim(self, connection: Connection, found: list[MemberPart], working: Any) -> None:
        """Begin what waits for this member, if it can be spared; the oldest run first."""
        self._waits = ""
        part = next(
            (one for one in found if (one.member, one.state) == (self._config.name, "waiting")),
            None,
        )
        if part is None or self._work is not None or self._outcome is not None:
            return
        self._waits = self._why_not(part, found)
        if self._waits:
            return
        token = f"{self._session}-{secrets.token_hex(4)}"
        async with connection.transaction():
            await rows.take_turn(connection)
            again = await rows.open_parts(connection)
            if self._why_not(part, again) or not await rows.claim(connection, part, token):
                raise psycopg.Rollback
            self._wake.set()

    def _why_not(self, part: MemberPart, found: list[MemberPart]) -> str:
        """Why a part of this member does not begin now; empty if it does."""
        herd = self._known.herd()
        if herd is None:
            return "it does not know the herd yet"
        working = [one for one in found if one.state == "working"]
        name, work = self._config.name, part.wanted
        if any(one.member == name for one in working):
            return "it is in maintenance"
        before = [one.member for one in working if one.run == part.run]
        if work.one_by_one and before:
            return f"{before[0]} goes first"
        taken = frozenset(one.member for one in working)
        seen = guard.SeenHerd(herd.view, herd.heard, herd.whole, taken)
        return guard.why_not(seen, name, drain=work.drain) or ""

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            log.warning("maintenance.not_done", error=text)

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
