"""The herd, as an import sees it: one member to write to, another one when it dies.

Every transaction says which standing it finds, in the rows of ``pgherd_import``, and changes it. So
it may be repeated: on one member the standing is another one if it was committed; where another
member has not seen it yet, certification lets one of the two through.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
from psycopg.types.json import Jsonb

from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends.connections import Destination, Members
from pgherd_sidecar.importing.ends.errors import ImportFailed, TakenOver
from pgherd_sidecar.importing.ends.model import SchemaStatement
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session, is_transient, message_of

_PATIENCE_S = 120
"""How long no member may take writes before it is given up."""
_PAUSE_S = 0.2
Work = Callable[[Session], Awaitable[None]]


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

    Attributes:
        run: of this process; another process that takes the import over has another one.
    """

    def __init__(self, members: Members) -> None:
        self._members = list(members)
        self._session: Session | None = None
        self._at: Destination | None = None
        self.run = uuid4()
        self.version = 0

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
            ImportFailed: it will.
        """
        if not is_transient(error):
            raise ImportFailed(f"the herd says: {message_of(error)}") from error
        if session.closed or session.broken or not (error.sqlstate or "08").startswith("40"):
            self._avoid(session)
            if session is self._session:
                await self.drop()
            else:
                await session.close()
        await asyncio.sleep(_PAUSE_S)

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
        return ImportStanding(
            row["version"], row["run"], row["run_by"], row["phase"], row["source"], row["slot"],
            row["statement"], position, row["roles"], row["stopped"],
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
            ImportFailed: the herd says no, for good.
            psycopg.Error: as the work, if it is not transient.
        """
        values = standing_values(to) | {"run": self.run, "version": self.version}
        while True:
            session = await self.session()
            try:
                async with session.transaction():
                    cursor = await session.execute(query("state", "advance"), values)
                    if cursor.rowcount != 1:
                        if await self.is_beyond(session):
                            break
                        continue
                    if work is not None:
                        await work(session)
                break
            except psycopg.Error as error:
                if not is_transient(error):
                    raise
                await self.recover(session, error)
        self.version += 1

    async def is_beyond(self, session: Session) -> bool:
        """Was the transaction committed that is to be the next? False: look again.

        Raises:
            TakenOver: another process goes on with the import.
        """
        cursor = await session.execute(query("state", "read"))
        row = await cursor.fetchone()
        if row is None or (row["run"] != self.run and row["version"] > self.version):
            raise TakenOver(f"the import goes on in another process: {row and row['run_by']}")
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


def whoami() -> str:
    """Who runs this process, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def jsonb(value: Any) -> Jsonb:
    """A value as JSON."""
    return Jsonb(msgspec.to_builtins(value))
