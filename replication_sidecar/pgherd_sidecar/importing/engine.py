"""Runs an import, from its beginning or from where it is, until rows follow the source."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgherd_sidecar.importing import copying, following, preflight
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import SourceAddress, without_password
from pgherd_sidecar.importing.ends.errors import CutOverDone, ImportFailed, TakenOver
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.importing.ends.source import Names
from pgherd_sidecar.importing.ends.target import (
    Copied,
    ImportStanding,
    Target,
    jsonb,
    whoami,
    words_of,
)
from pgherd_sidecar.importing.stream import Stream
from pgherd_sidecar.tables.sessions import Session, message_of

_LOOK_S = 10.0
"""How often the source is asked whether its definitions are the same."""
REMOVED = "the import is being removed: `pgherd import abort` ends that"
_LOCK = "SELECT pg_try_advisory_lock(hashtext('pgherd import'), hashtext(%s)) AS mine"
_LOCK_TRIES = 100
_END_HOLDER = """
SELECT pg_terminate_backend(l.pid) FROM pg_locks l
 WHERE l.locktype = 'advisory'
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND l.classid = (hashtext('pgherd import')::int8 & 4294967295)::oid
   AND l.objid = (hashtext(%s)::int8 & 4294967295)::oid AND l.pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Ways:
    """What an import works with, and how it tells the user.

    Attributes:
        say: a line about a step.
        show: a line in place of the last one: progress.
        tell_lag: how far behind the source it is, in seconds and in bytes.
    """

    address: SourceAddress
    target: Target
    pg_dump: Path
    jobs: int
    say: Callable[[str], None]
    show: Callable[[str], None]
    tell_lag: Callable[[float, int], None] = lambda _seconds, _bytes: None


class Engine:
    """One run of an import."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._target = ways.target

    async def check(self, *, follows: bool = False) -> preflight.ImportPlan:
        """Look for what keeps the source from being taken over.

        Args:
            follows: as of ``preflight.look``.

        Raises:
            Unfit: there is something.
            ImportFailed: a side can't be reached.
        """
        ways = self._ways
        return await preflight.look(ways.address, ways.target, ways.pg_dump, follows=follows)

    async def run(self, *, follow: bool = True) -> None:
        """Begin, or go on, and follow the source until this task is cancelled.

        Args:
            follow: else end when the source can be followed.

        Raises:
            ImportFailed: it can't go on.
        """
        begin = not await self._target.is_under_way()
        async with self.locked(begin=begin) as (session, standing):
            if standing.phase == "done":
                raise CutOverDone
            if standing.stopped:
                await self.take_back(session)
            await self.fill(session, standing)
            if follow:
                await self.follow()

    @asynccontextmanager
    async def locked(
        self, *, begin: bool = False, take_over: bool = False
    ) -> AsyncIterator[tuple[Session, ImportStanding]]:
        """Make the import ours: a session of the source that holds its lock, and how far it is.

        Args:
            begin: there is none yet.
            take_over: end the process that runs it.

        Raises:
            ImportFailed: a side says no.
        """
        session = await self._ways.address.session()
        try:
            if begin:
                standing = await self._begun(session)
            else:
                standing = await self._resumed(session, take_over=take_over)
            yield session, standing
        except psycopg.Error as error:
            raise ImportFailed(
                f"{message_of(error)}: nothing is lost, repeat the command"
            ) from error
        except TakenOver:
            raise
        except ImportFailed:
            if self._target.version:  # it was ours: who takes it over ends our sessions
                await self._target.refresh()
            raise
        finally:
            await source.close_quietly([session])

    async def take_back(self, session: Session) -> None:
        """Let the source take writes again, after a cut-over that was not finished.

        The herd has to know first: from then on that cut-over can't be committed any more. That
        writes are stopped it knows until they are not, so that this may be interrupted.

        Raises:
            CutOverDone: it was finished.
            ImportFailed: a side says no.
        """
        await self._target.advance()
        await source.allow_writes(session)
        await self._target.advance(stopped=False)
        self._ways.say("the source takes writes again")

    async def _begun(self, session: Session) -> ImportStanding:
        self._ways.say("looking at the source")
        plan = await self.check()
        for note in plan.notes:
            self._ways.say(note)
        names = Names(f"pgherd_import_{secrets.token_hex(4)}")
        await self._lock(session, names)
        await self._write_down(plan, names)
        return await self._target.take()

    async def _write_down(self, plan: preflight.ImportPlan, names: Names) -> None:
        """Everything that a later run needs, at once; nothing else has been made."""
        target = self._target
        statements = [
            *(("before", True, command) for command in plan.roles.commands),
            *((one.part, one.everywhere, one.sql) for one in plan.statements),
        ]
        begun = {
            "run": target.run, "run_by": whoami(), "slot": names.slot,
            "source": without_password(self._ways.address.dsn), "roles": jsonb(plan.roles.made),
        }  # fmt: skip
        while True:
            if await target.is_under_way():
                return  # a commit that was in doubt
            session = await target.session()
            try:
                async with session.transaction():
                    for name in (
                        "make",
                        "make_state",
                        "make_tables",
                        "make_statements",
                        "make_definitions",
                    ):
                        await session.execute(query("state", name))
                    await session.execute(query("state", "begin"), begun)
                    async with session.cursor() as cursor:
                        await cursor.executemany(
                            query("state", "add_table"),
                            [
                                {
                                    "name": one.name, "run": target.run, "definition": jsonb(one),
                                    "changed": plan.changed[one.relid],
                                }
                                for one in plan.tables
                            ],
                        )  # fmt: skip
                        await cursor.executemany(
                            query("state", "add_statement"),
                            [
                                {
                                    "number": number,
                                    "part": part,
                                    "everywhere": everywhere,
                                    "sql": text,
                                }
                                for number, (part, everywhere, text) in enumerate(statements)
                            ],
                        )
                        await cursor.executemany(
                            query("state", "add_definition"),
                            [
                                {"object": name, "hash": value}
                                for name, value in plan.definitions.items()
                            ],
                        )
                return
            except psycopg.Error as error:
                await target.recover(session, error)

    async def _lock(self, session: Session, names: Names, *, take_over: bool = False) -> None:
        for _ in range(_LOCK_TRIES if take_over else 1):
            cursor = await session.execute(_LOCK, (names.slot,))
            row = await cursor.fetchone()
            if row is not None and row["mine"]:
                return
            if take_over:
                await session.execute(_END_HOLDER, (names.slot,))
                await asyncio.sleep(0.1)
        raise ImportFailed(
            "another process runs this import: look at it with `pgherd import status`, or end it"
        )

    async def _resumed(self, session: Session, *, take_over: bool) -> ImportStanding:
        standing = await self._target.standing()
        names = Names(standing.slot)
        if not take_over:
            await self._lock(session, names)
        standing = await self._target.take()
        if take_over:
            await self._lock(session, names, take_over=True)
        return standing

    async def fill(self, session: Session, standing: ImportStanding) -> None:
        """Go on to the point from which the source is followed.

        Raises:
            ImportFailed: it can't be reached.
        """
        if standing.phase == "abort":
            raise ImportFailed(REMOVED)
        definitions = await self._target.definitions()
        source.require_same(definitions, await source.definitions(session))
        names = Names(standing.slot)
        if standing.phase == "begun":
            await self._execute("before", standing)
            await self._copied_first(session, names)
        elif standing.phase == "copy":
            await self._copied_on(session, names)
        standing = await self._target.refresh()
        if standing.phase == "keys":
            await self._execute("keys", standing)
            await self._target.advance(phase="follow")
        source.require_same(definitions, await source.definitions(session))

    async def _execute(self, part: str, standing: ImportStanding) -> None:
        """Execute those of the statements that were not executed yet, up to the end of a part."""
        statements = await self._target.statements()
        last = max((at for at, one in enumerate(statements) if one.part == part), default=-1)
        for number in range(standing.statement, last + 1):
            one = statements[number]

            async def work(session: Session) -> None:
                await preflight.execute(session, one)  # noqa: B023 - it is awaited here

            self._ways.show(f"definitions: {number + 1} of {len(statements)}")
            try:
                await self._target.advance(work, statement=number + 1)
            except psycopg.Error as error:
                raise ImportFailed(
                    f"the herd does not execute {' '.join(one.sql.split())[:60]}:"
                    f" {words_of(error)}; repeat the command, or `pgherd import abort`"
                ) from error

    async def _copied_first(self, session: Session, names: Names) -> None:
        """Make the slot, and copy what its snapshot sees."""
        copied = await self._target.copied()
        await source.forget(session, names)  # of an earlier attempt, which did not tell the herd
        await source.publish(session, names, [one.table for one in copied])
        async with source.make_slot(self._ways.address, names.slot, temporary=False) as exported:
            source.require_same(await self._target.definitions(), await source.definitions(session))
            await self._target.advance(phase="copy", position=exported.position)
            await self._copy(exported)

    async def _copied_on(self, session: Session, names: Names) -> None:
        """Copy what an earlier run has left, as it is now."""
        if not await source.rows(session, "slot", slot=names.slot):
            raise _lost(names)
        name = f"{names.slot}_{secrets.token_hex(4)}"
        async with source.make_slot(self._ways.address, name, temporary=True) as exported:
            await self._copy(exported)

    async def _copy(self, exported: source.Exported) -> None:
        work = copying.Copying(self._ways.address, self._target, await self._target.copied())
        shown = asyncio.create_task(self._show_copying(work))
        try:
            await work.run(exported, self._ways.jobs)
        finally:
            shown.cancel()
        await self._target.advance(phase="keys")

    async def _show_copying(self, work: copying.Copying) -> None:
        loop = asyncio.get_running_loop()
        began, before = loop.time(), work.figures.bytes
        while True:
            await asyncio.sleep(0.5)
            now = work.figures
            share = now.weight / now.total if now.total else 1.0
            speed = (now.bytes - before) / max(loop.time() - began, 0.001)
            self._ways.show(
                f"copying {bar(share)} {now.done} of {now.tables} tables,"
                f" {size(now.bytes)}, {size(speed)}/s"
            )

    async def follow(self, *, until: int | None = None) -> int:
        """Apply what the source commits; return the number of changes.

        Args:
            until: end when everything before this position is applied.

        Raises:
            ImportFailed: it can't go on.
        """
        ways, changes = self._ways, 0
        session = await ways.address.session()
        try:
            while True:
                standing = await self._target.refresh()
                names = Names(standing.slot)
                assert standing.position is not None
                if not await source.free_slot(session, names.slot):
                    raise _lost(names)
                copied = await self._target.copied()
                definitions = await self._target.definitions()
                work = following.Following(self._target, copied, standing.position, standing.part)
                async with await Stream.open(
                    ways.address, names.slot, names.publications, standing.position
                ) as stream:
                    with contextlib.suppress(following.MoveOnError):
                        watch = self._watch(session, definitions, _without_identity(copied))
                        await self._together(work, stream, watch, until)
                        return changes + work.figures.changes
                changes += work.figures.changes
        finally:
            await source.close_quietly([session])

    async def _together(
        self,
        work: following.Following,
        stream: Stream,
        watch: Coroutine[Any, Any, None],
        until: int | None,
    ) -> None:
        """Apply, and look after the source and the user meanwhile."""
        tasks = [
            asyncio.create_task(work.run(stream, until=until)),
            asyncio.create_task(watch),
            asyncio.create_task(self._show_following(work)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(
        self, session: Session, definitions: Mapping[str, str], changed: Mapping[int, int]
    ) -> None:
        """Notice DDL, and changes that can't be told.

        Raises:
            Changed: somebody has made them.
        """
        while True:
            source.require_same(definitions, await source.definitions(session))
            await source.require_no_changes(session, changed)
            await asyncio.sleep(_LOOK_S)

    async def _show_following(self, work: following.Following) -> None:
        before = 0
        while True:
            await asyncio.sleep(0.5)
            now = work.figures
            rate, before = (now.changes - before) * 2, now.changes
            self._ways.tell_lag(now.lag_s, now.lag_bytes)
            self._ways.show(
                f"following: {now.lag_s:.1f} s and {size(now.lag_bytes)} behind, {rate} changes/s;"
                " `pgherd import cut-over` ends it"
            )


def _without_identity(copied: Sequence[Copied]) -> dict[int, int]:
    return {one.table.relid: one.changed for one in copied if one.table.identity == "none"}


def _lost(names: Names) -> ImportFailed:
    return ImportFailed(
        f"slot {names.slot} of the source is gone, and with it what has changed since:"
        " `pgherd import abort`, and begin anew"
    )


def bar(share: float, width: int = 20) -> str:
    """A bar that is full to some share."""
    full = round(min(max(share, 0), 1) * width)
    return f"[{'#' * full}{'-' * (width - full)}] {share:4.0%}"


def size(count: float) -> str:
    """A number of bytes, as people like it."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
