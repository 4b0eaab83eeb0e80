"""The end of an import: writes stop at the source, and begin in the herd; or all is taken back.

The one transaction that counts is the herd's: it sets the sequences, makes foreign keys and
triggers, and says that the import is done. Before it the source can take writes again, after it
never; both are decided by the import's version, so that the two can't happen together.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgherd_sidecar.importing import comparing, preflight, schema
from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import SourceAddress
from pgherd_sidecar.importing.ends.errors import CutOverDone, HerdRefused, ImportFailed
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.importing.ends.source import Names
from pgherd_sidecar.importing.ends.target import ImportStanding, Target, words_of
from pgherd_sidecar.importing.engine import REMOVED, Engine, Ways
from pgherd_sidecar.tables.sessions import Session, message_of

_CLOSE_S, _ROUNDS = 2.0, 30
"""So close to the source its writes are stopped; so often we try to come there."""
FROM = ("follow", "done")
"""The phases of an import in which a cut-over may begin, or be ended."""
_TOLD = ImportFailed, psycopg.Error, pgoutput.ProtocolError
"""What may happen to a cut-over, in the words of the error."""
_SETTING = re.compile(r'(ALTER DATABASE "app") SET (\S+) TO ')


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it.

    Attributes:
        tables: that were compared.
        without_writes_s: from the moment at which writes stopped to that at which the herd takes
            them.
    """

    tables: int
    without_writes_s: float


class CutOver:
    """One attempt."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._target = ways.target
        self._engine = Engine(ways)

    async def run(self) -> Done | None:
        """Do it, in place of the process that runs the import; None: an earlier attempt has.

        Raises:
            ImportFailed: it was taken back, if the message does not say otherwise.
        """
        if not await self._target.is_under_way():
            raise ImportFailed("no import is under way: begin one with `pgherd import --from DSN`")
        phase = (await self._target.standing()).phase
        if phase == "abort":
            raise ImportFailed(REMOVED)
        if phase not in FROM:
            raise ImportFailed(
                "rows are still being copied: repeat this when `pgherd import` follows the source"
            )
        async with self._engine.locked(take_over=True) as (session, standing):
            if standing.phase == "done":
                await source.forget(session, Names(standing.slot))
                return None
            if standing.stopped:  # an earlier attempt has died
                await self._engine.take_back(session)
            await self._engine.fill(session, standing)
            await self._catch_up(session)
            return await self._stop_and_switch(session, Names(standing.slot))

    async def _catch_up(self, session: Session) -> None:
        """Come so close that what is left takes a moment."""
        self._ways.say("applying what is left")
        for _ in range(_ROUNDS):
            began = time.monotonic()
            await self._engine.follow(until=await source.mark(session))
            if time.monotonic() - began < _CLOSE_S:
                return
        raise ImportFailed(
            "the source writes faster than the herd applies: repeat it when there is less to do"
        )

    async def _stop_and_switch(self, session: Session, names: Names) -> Done:
        if any(row["moved"] for row in await source.rows(session, "guarded")):
            raise ImportFailed(  # and a take-back would open it for both
                "tables of the source refuse writes since a cut-over to another herd: `pgherd"
                " import abort`, if that herd is in use; else DROP SCHEMA pgherd_import CASCADE"
            )
        began = time.monotonic()
        try:
            await self._target.advance(stopped=True)
            self._ways.say("stopping writes at the source")
            with self._target.in_a_hurry():
                await source.stop_writes(session)
                await self._switch(session)
        except BaseException as error:
            if not await self._is_committed(session, error):
                raise
        taken = time.monotonic() - began
        await source.forget(session, names)
        return Done(len(await self._target.copied()), taken)

    async def _is_committed(self, session: Session, error: BaseException) -> bool:
        """Take it back after an error, or a signal, unless it was committed though nobody heard.

        Returns:
            False also after a signal, or a mistake of ours: the user was told the rest.

        Raises:
            ImportFailed: what the error says, and whether the source takes writes again.
        """
        said = words_of(error) if isinstance(error, psycopg.Error) else str(error)
        is_told = isinstance(error, _TOLD)
        # In a task of its own: this one may have been cancelled.
        work = asyncio.create_task(self._take_back(session))
        try:
            taken_back = await asyncio.shield(work)
        except (*_TOLD, asyncio.CancelledError) as failure:  # the latter of a second signal
            text = (
                f"{said or 'interrupted'}; the source may still refuse writes: repeat the command,"
                " or `pgherd import abort`"
            )
            if is_told and isinstance(failure, Exception):
                raise ImportFailed(text) from error
            self._ways.say(text)
            return False
        if is_told and taken_back:
            raise ImportFailed(f"{said}; the source takes writes again") from error
        return is_told

    async def _take_back(self, session: Session) -> bool:
        """False: it was committed."""
        await self._target.drop()  # it may be in the middle of something
        try:
            await self._target.refresh()
            await self._engine.take_back(session)
        except CutOverDone as error:
            self._ways.say(str(error))
            return False
        return True

    async def _switch(self, session: Session) -> None:
        [server] = await source.rows(session, "server")
        if server["prepared"]:
            raise ImportFailed(
                f"the source has {server['prepared']} prepared transactions: COMMIT PREPARED or"
                " ROLLBACK PREPARED them"
            )
        end = await source.mark(session)
        await self._engine.follow(until=end)
        definitions = await self._target.definitions()
        source.require_same(definitions, await source.definitions(session))
        tables = [one.table for one in await self._target.copied()]
        self._ways.say("comparing")
        different = await comparing.different(
            self._ways.address, self._target, tables, self._ways.jobs,
            lambda done, of: self._ways.show(f"comparing: {done} of {of} tables"),
        )  # fmt: skip
        if different:
            raise ImportFailed(f"tables differ: {comparing.few(different)}")
        await self._require_silence(session)
        self._ways.say("sequences, foreign keys and triggers")
        sequences = await source.sequences(session)
        late = [one for one in await self._target.statements() if one.part == "late"]

        async def work(here: Session) -> None:
            await _set_sequences(here, sequences)
            await _execute(here, late)

        await self._target.advance(work, phase="done")

    async def _require_silence(self, session: Session) -> None:
        """Check that nobody has written to the source since it was stopped.

        A write that passes by the fence shows as another position of the tables.
        """
        if await self._engine.follow(until=await source.mark(session)):
            raise ImportFailed(
                "somebody still writes to the source, in spite of its triggers pgherd_import: end"
                " that first"
            )


async def _set_sequences(session: Session, sequences: Sequence[tuple[str, int, bool]]) -> None:
    for name, value, called in sequences:
        await session.execute(
            "SELECT pg_catalog.setval(%s::regclass, %s, %s)", (name, value, called)
        )


async def _execute(session: Session, statements: Sequence[SchemaStatement]) -> None:
    for one in statements:
        await preflight.execute(session, one)


async def finish(ways: Ways) -> list[str]:
    """What is left when the herd takes writes: foreign keys look at the rows, and we leave.

    It may be repeated.

    Returns:
        What the user has to do, and was told: rows may violate a foreign key, which a superuser of
        the source could pass by; and somebody may have dropped the key.

    Raises:
        ImportFailed: no member takes writes.
    """
    target = ways.target
    left = []
    for one in await target.statements():
        if one.part == "after":
            try:
                await _once_more(target, one.sql)
            except HerdRefused as error:
                left.append(f"execute this when the rows are mended: {one.sql}: {error}")
    await _once_more(target, query("state", "leave"))
    for line in left:
        ways.say(line)
    return left


async def _once_more(target: Target, command: str) -> None:
    while True:
        session = await target.session()
        try:
            await session.execute(command.encode())
            return
        except psycopg.Error as error:
            await target.recover(session, error)


async def abort(target: Target, address: SourceAddress | None) -> ImportStanding:
    """Remove everything that was made, at the source and in the herd; it may be repeated.

    Args:
        target: the herd.
        address: of the source; None: leave it as it is.

    Raises:
        ImportFailed: the cut-over is done, something would go that the import has not made, or a
            side says no.
    """
    standing = await target.standing()
    if standing.phase == "done":
        raise CutOverDone
    await _require_nothing_else(target, standing)
    session = await address.session() if address is not None else None
    try:
        standing = await target.take()  # whoever runs it hears of it
        await target.advance(phase="abort")  # from then on no cut-over can begin or end
        if session is not None:
            await _leave_source(session, standing)
    finally:
        if session is not None:
            await source.close_quietly([session])
    await _empty(target, standing)
    await _once_more(target, query("state", "leave"))
    return standing


async def _leave_source(session: Session, standing: ImportStanding) -> None:
    try:
        if standing.stopped:
            await source.allow_writes(session)
        await source.forget(session, Names(standing.slot))
    except psycopg.Error as error:
        raise ImportFailed(f"the source says: {message_of(error)}") from error


@dataclass(frozen=True, slots=True)
class _Made:
    """What an import has made in the herd, beside roles.

    Attributes:
        schemas: ``public`` is among them: it is made anew.
        settings: commands that reset those of the database.
    """

    schemas: list[str]
    extensions: list[str]
    settings: list[str]


async def _made(target: Target, standing: ImportStanding) -> _Made:
    executed = (await target.statements())[: standing.statement]
    made = _Made(["public"] if executed else [], [], [])
    for one in executed:
        if one.sql.startswith("CREATE SCHEMA "):
            made.schemas.append(schema.created(one.sql))
        if one.sql.startswith("CREATE EXTENSION "):
            made.extensions.append(schema.created(one.sql))
        if found := _SETTING.match(one.sql):
            made.settings.append(f"{found[1]} RESET {found[2]}")
    return made


async def _require_nothing_else(target: Target, standing: ImportStanding) -> None:
    made = await _made(target, standing)
    others = await target.read(
        "others", schemas=made.schemas, extensions=made.extensions, roles=standing.roles
    )
    if others:
        raise ImportFailed(
            "this would remove what the import has not made: "
            f"{comparing.few([row['name'] for row in others])}; move it to a schema of its own"
            " that needs nothing of the import, or drop it, and repeat the command"
        )


async def _empty(target: Target, standing: ImportStanding) -> None:
    made = await _made(target, standing)
    for name in made.schemas:
        await _once_more(target, _text("DROP SCHEMA IF EXISTS {} CASCADE", name))
        if name == "public":
            await _once_more(target, "CREATE SCHEMA public AUTHORIZATION pg_database_owner")
            await _once_more(target, "GRANT USAGE ON SCHEMA public TO PUBLIC")
            await _once_more(target, "COMMENT ON SCHEMA public IS 'standard public schema'")
    for name in made.extensions:
        await _once_more(target, _text("DROP EXTENSION IF EXISTS {} CASCADE", name))
    for command in made.settings:
        reset = sql.Literal(command).as_string(None)
        await _once_more(target, f"SELECT pgherd.run_everywhere({reset})")
    present = {row["name"] for row in await target.read("own_roles")}
    for name in standing.roles:
        if name in present:
            await _once_more(target, _text("DROP OWNED BY {}", name))
    for name in standing.roles:
        if name in present:
            drop = sql.Literal(_text("DROP ROLE {}", name)).as_string(None)
            await _once_more(target, f"SELECT pgherd.run_everywhere({drop})")


def _text(command: str, name: str) -> str:
    return command.replace("{}", sql.Identifier(name).as_string(None))
