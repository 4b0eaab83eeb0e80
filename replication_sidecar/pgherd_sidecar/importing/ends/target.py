"""The herd, as an import sees it: one member to write to, another one when it dies.

Every transaction says which standing it finds, in the rows of ``pgherd_import``, and changes it. So
it may be repeated: on one member the standing is another one if it was committed; where another
member has not seen it yet, certification lets one of the two through.
"""

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
from psycopg.types.json import Jsonb

from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends.connections import Destination, Members
from pgherd_sidecar.importing.ends.errors import CutOverDone, HerdRefused, ImportFailed, TakenOver
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session, is_transient, message_of

_PATIENCE_S = 120
"""How long no member may take writes before it is given up."""
_GIVE_UP_S = 300
"""How long the herd may refuse what it could take another day."""
_PAUSE_S = 0.2
_REMEDIES = {
    "53100": "make room on the disks of all members",
    "53200": "raise max_locks_per_transaction on all members or give them more memory, and restart"
    " them one by one",
}
"""What passes by itself only if somebody else lets go."""
Work = Callable[[Session], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SourcePart:
    """What is here of a transaction of the source that is too large for one of the herd.

    Attributes:
        final_lsn: where it ends, at the source.
        changes: so many of its first ones are here.
    """

    final_lsn: int
    changes: int


NO_PART = SourcePart(0, 0)


@dataclass(slots=True)
class ImportStanding:
    """How far the import is: ``pgherd_import.state``."""

    version: int
    run: UUID
    run_by: str
    phase: str
    source: str
    slot: str
    statement: int
    position: int | None
    roles: list[str]
    stopped: bool
    part: SourcePart


@dataclass(frozen=True, slots=True)
class Copied:
    """How far a table is: ``pgherd_import.tables``."""

    table: SourceTable
    pieces: int
    rows: int
    bytes: int
    done: bool
    since: int | None
    changed: int


class Target:
    """The members of the herd that have a database.

    Args:
        members: they are tried in this order.
        tell: the user, what is tried again and why.

    Attributes:
        run: of this process; another process that takes the import over has another one.
    """

    def __init__(self, members: Members, tell: Callable[[str], None] = lambda _text: None) -> None:
        self._members = list(members)
        self._tell = tell
        self._told = ""
        self._failing_since = self._failed = -math.inf
        self._session: Session | None = None
        self._at: Destination | None = None
        self.run = uuid4()
        self.version = 0
        self._in_a_hurry = False

    async def close(self) -> None:
        """End the session."""
        await self.drop()

    async def drop(self) -> None:
        """Leave the member, which has failed."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(psycopg.Error):
                await session.close()

    @property
    def members(self) -> list[Destination]:
        """All of them, the one that was used last first."""
        return self._members

    async def session(self) -> Session:
        """A session with a member that takes writes.

        Raises:
            ImportFailed: none does for a long time.
        """
        if self._session is not None and not self._session.closed:
            return self._session
        self._session = await self.another_session()
        return self._session

    async def another_session(self) -> Session:
        """A session of the caller's own; as ``session``."""
        said = "no node"
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    for member in list(self._members):
                        try:
                            return await self._open(member)
                        except psycopg.Error as error:
                            said = f"{member.name}: {message_of(error)}"
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError as error:
            raise ImportFailed(
                f"no node takes writes ({said}): `pgherd status` tells more; repeat the command"
            ) from error

    async def _open(self, member: Destination) -> Session:
        session = await member.session()
        try:
            found = await (await session.execute(query("state", "writable"))).fetchone()
            if found is None or not found["writable"]:
                raise psycopg.errors.ReadOnlySqlTransaction("it takes no writes")
        except BaseException:
            await session.close()
            raise
        return session

    def _avoid(self, session: Session) -> None:
        """Prefer another member than that of a session, which has failed."""
        at = session.pgconn.host.decode(), session.pgconn.port.decode()
        self._members.sort(key=lambda one: one.place == at)

    async def read(self, name: str, **values: Any) -> list[dict[str, Any]]:
        """What a statement of ``sql/state.sql`` gives; repeated on another member if need be."""
        while True:
            session = await self.session()
            try:
                cursor = await session.execute(query("state", name), values or None)
                return await cursor.fetchall()
            except psycopg.Error as error:
                await self.recover(session, error)

    async def recover(self, session: Session, error: psycopg.Error) -> None:
        """Go on after an error that may not come again.

        Raises:
            HerdRefused: it will.
            ImportFailed: it has come for minutes, or nothing may wait.
        """
        said = f"the herd says: {words_of(error)}"
        if not is_transient(error):
            raise HerdRefused(said) from error
        if self._in_a_hurry and remedy_of(error):
            raise ImportFailed(said) from error
        now = monotonic()
        if now - self._failed > _PATIENCE_S:  # it went on in between
            self._failing_since, self._told = now, ""
        self._failed = now
        if now - self._failing_since > _GIVE_UP_S:
            raise ImportFailed(f"{said}: it does so for minutes; repeat the command") from error
        if said != self._told and not (error.sqlstate or "").startswith("40"):  # a daily matter
            self._told = said
            self._tell(f"{said}; it is tried again")
        if session.closed or session.broken or not (error.sqlstate or "08").startswith("40"):
            self._avoid(session)
            if session is self._session:
                await self.drop()
            else:
                await session.close()
        await asyncio.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """Meanwhile nothing waits until a disk has room again, or memory."""
        self._in_a_hurry = True
        try:
            yield
        finally:
            self._in_a_hurry = False

    def progressed(self) -> None:
        """The herd has taken something: errors before it count no more."""
        self._failed = -math.inf

    async def is_under_way(self) -> bool:
        """Is there an import?"""
        return bool((await self.read("exists"))[0]["found"])

    async def standing(self) -> ImportStanding:
        """How far the import is.

        Raises:
            TakenOver: there is none any more.
        """
        row = next(iter(await self.read("read") if await self.is_under_way() else ()), None)
        if row is None:
            raise TakenOver("there is no import any more: it was ended or given up meanwhile")
        position = pgoutput.lsn(row["position"]) if row["position"] else None
        part = (
            SourcePart(pgoutput.lsn(row["part"]), row["part_changes"]) if row["part"] else NO_PART
        )
        return ImportStanding(
            row["version"], row["run"], row["run_by"], row["phase"], row["source"], row["slot"],
            row["statement"], position, row["roles"], row["stopped"], part,
        )  # fmt: skip

    async def copied(self) -> list[Copied]:
        """How far each table is."""
        return [
            Copied(
                msgspec.convert(row["definition"], SourceTable), row["pieces"], row["rows"],
                row["copied"], row["done"], pgoutput.lsn(row["since"]) if row["since"] else None,
                row["changed"],
            )
            for row in await self.read("read_tables")
        ]  # fmt: skip

    async def statements(self) -> list[SchemaStatement]:
        """The source's definitions, in the order in which they are executed."""
        return [
            SchemaStatement(row["part"], row["sql"], row["everywhere"])
            for row in await self.read("read_statements")
        ]

    async def definitions(self) -> dict[str, str]:
        """What was defined at the source in the beginning."""
        return {row["object"]: row["hash"] for row in await self.read("read_definitions")}

    async def take(self) -> ImportStanding:
        """Make the import this process's."""
        while True:
            session = await self.session()
            try:
                async with session.transaction():
                    mine = {"run": self.run, "run_by": whoami()}
                    await session.execute(query("state", "take"), mine)
                    await session.execute(query("state", "take_tables"), mine)
                break
            except psycopg.Error as error:
                await self.recover(session, error)
        standing = await self.standing()
        while standing.run != self.run:  # another member, which has not seen it yet
            await asyncio.sleep(_PAUSE_S)
            standing = await self.standing()
        self.version = standing.version
        return standing

    async def refresh(self) -> ImportStanding:
        """Learn how far this process's import is, after something went wrong.

        Raises:
            TakenOver: another process goes on with it.
        """
        while True:
            standing = await self.standing()
            if standing.run == self.run:
                self.version = standing.version
                return standing
            if standing.version > self.version:
                raise TakenOver(f"the import goes on in another process: {standing.run_by}")
            await asyncio.sleep(_PAUSE_S)  # a member that has not seen it yet

    async def advance(self, work: Work | None = None, **to: Any) -> None:
        """Do some work, and tell how far the import is then, in one transaction; exactly once.

        Args:
            work: is repeated after an error that may not come again, from its beginning.
            to: columns of ``pgherd_import.state``.

        Raises:
            TakenOver: by another process.
            CutOverDone: there is nothing to be done any more.
            ImportFailed: the herd says no, for good.
            psycopg.Error: as the work, if it is not transient, or there is no room for it.
        """
        values = standing_values(to) | {"run": self.run, "version": self.version}
        while True:
            session = await self.session()
            try:
                async with session.transaction():
                    cursor = await session.execute(query("state", "advance"), values)
                    if cursor.rowcount != 1:
                        if await self.is_beyond(session, to.get("phase")):
                            break
                        continue
                    if work is not None:
                        await work(session)
                break
            except psycopg.Error as error:
                if not is_transient(error) or (work is not None and remedy_of(error)):
                    raise
                await self.recover(session, error)
        self.version += 1
        self.progressed()

    async def is_beyond(self, session: Session, phase: str | None = None) -> bool:
        """Was the transaction committed that is to be the next? False: look again.

        Args:
            phase: to which that transaction leads.

        Raises:
            TakenOver: another process goes on with the import.
            CutOverDone: another transaction of this process has ended it.
        """
        cursor = await session.execute(query("state", "read"))
        row = await cursor.fetchone()
        if row is None or (row["run"] != self.run and row["version"] > self.version):
            raise TakenOver(f"the import goes on in another process: {row and row['run_by']}")
        if row["phase"] == "done" != phase:
            raise CutOverDone
        if row["run"] == self.run and row["version"] == self.version + 1:
            return True
        await asyncio.sleep(_PAUSE_S)
        return False


_COLUMNS = ("phase", "statement", "position", "committed", "stopped")


def standing_values(to: Mapping[str, Any]) -> dict[str, Any]:
    """Values for all columns that may be changed: None leaves one as it is."""
    values = {name: to.get(name) for name in _COLUMNS}
    if values["position"] is not None:
        values["position"] = pgoutput.lsn_text(values["position"])
    return values


def remedy_of(error: psycopg.Error) -> str | None:
    """What to do where the herd lacks room."""
    return _REMEDIES.get(error.sqlstate or "")


def words_of(error: psycopg.Error) -> str:
    """What the herd says: also of which key, and what to do where it lacks room."""
    more = remedy_of(error) or error.diag.message_detail
    return message_of(error) + (f": {' '.join(more.split())}" if more else "")


def whoami() -> str:
    """Who runs this process, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def jsonb(value: Any) -> Jsonb:
    """A value as JSON."""
    return Jsonb(msgspec.to_builtins(value))
