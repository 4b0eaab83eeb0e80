"""Where a subscriber's rows come from: a member of the herd, or a subscriber that forwards.

Both give whole transactions in the order of their GIDs, and tables as they were at some GID.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

import msgspec
from psycopg import sql

from pgherd_sidecar.client.stream.changelog import ChangeLog, Portion
from pgherd_sidecar.client.stream.changes import LoggedChange, PositionLostError
from pgherd_sidecar.subscribing.copying import Provider, copy, copy_table, of_member
from pgherd_sidecar.subscribing.selecting.filtering import TablePart, selected
from pgherd_sidecar.subscribing.state import herd
from pgherd_sidecar.subscribing.state.errors import MemberError, StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import KeptRow, damaged, decode, rows_of
from pgherd_sidecar.subscribing.state.herd import (
    HerdSequence,
    HerdTable,
    Subscription,
    TableSelection,
)
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.steps import FIRST_OF_USERS, suspicion
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session

_READ_BYTES = 4 << 20
_READ_ROWS = 20
_PAUSE_S = 0.1
_WAIT_S = 300.0
_EXTENSIONS = 100
_PROVIDER = "the provider's server"

Places = Mapping[str, ShownTable]
SourceTables = Mapping[str, SourceTable]


class Source(Protocol):
    """One of them.

    Attributes:
        seen_s: when the herd had nothing newer than what the last portion tells of, in seconds
            since 1970; None if that is not known.
    """

    @property
    def seen_s(self) -> float | None:
        """See above."""

    async def visible(self) -> int:
        """The newest GID that it hands out."""

    def portions(self, after: int, places: Places) -> AsyncGenerator[Portion, None]:
        """The next changes after a GID, a few megabytes, or of one large transaction.

        Args:
            after: a GID.
            places: the tables that are followed.

        Raises:
            PositionLostError: they are not there any more.
        """

    def between(
        self, after: int, through: int, places: Places
    ) -> AsyncGenerator[list[LoggedChange], None]:
        """All changes after one GID up to another; errors as of ``portions``."""

    async def describe(self, names: Iterable[str]) -> dict[str, HerdTable]:
        """The tables that there are of these names, as they are now."""

    async def may_be_partition(self, emptied: LoggedChange, tables: SourceTables) -> bool:
        """Was a table that is not followed perhaps a partition of these when it was emptied?"""

    async def sequences(self) -> dict[str, HerdSequence]:
        """All sequences that can be followed, by name."""

    async def copy(self, subscriber: Subscriber, names: Sequence[str]) -> None:
        """Copy tables, each beside what the subscriber shows; errors as of ``copying.copy``."""

    async def extension(self, gid: int, name: str, known: SourceTable) -> HerdTable | None:
        """The shape of a table after a GID that gave it a column more; None: that is not all."""


class MemberSource:
    """A member: its own log, and its tables at markers.

    It hands out what the herd has ordered, whatever the subscriber says that it holds.

    Args:
        member: it.
        log: its own.
        subscription: what was ordered.
        session: at its server, which evaluates row filters; nobody else uses it. None if all tables
            are followed as a whole.
    """

    def __init__(
        self,
        member: Provider,
        log: ChangeLog,
        subscription: Subscription,
        session: Session | None = None,
    ) -> None:
        self._member = member
        self._log = log
        self._tables = frozenset(subscription.tables)
        self._selections = subscription.selections
        self._session = session
        self._parts: dict[str, TablePart] | None = None
        self.seen_s: float | None = None

    async def visible(self) -> int:
        """See ``Source``."""
        return await self._log.visible()

    async def portions(self, after: int, places: Places) -> AsyncGenerator[Portion, None]:
        """See ``Source``."""
        self.seen_s = time.time()
        async with aclosing(self._log.portions(after)) as portions:
            async for portion in portions:
                changes = await self._selected(portion.changes, places)
                yield Portion(portion.through, portion.visible, changes)

    async def _selected(self, changes: list[LoggedChange], places: Places) -> list[LoggedChange]:
        tables = self._tables
        ours = [
            one
            for one in changes
            if one.table in tables or one.table is None or one.op == "truncate"
        ]
        if self._session is None:
            return ours
        if self._parts is None:
            with of_member():
                types = await herd.read_types(self._session, self._selections)
            self._parts = {
                one.tab: TablePart(one, types.get(one.tab, ())) for one in self._selections
            }
        return await selected(self._session, ours, places, self._parts)

    async def between(
        self, after: int, through: int, places: Places
    ) -> AsyncGenerator[list[LoggedChange], None]:
        """See ``Source``."""
        async with aclosing(self._log.between(after, through)) as portions:
            async for changes in portions:
                yield await self._selected(changes, places)

    async def describe(self, names: Iterable[str]) -> dict[str, HerdTable]:
        """See ``Source``."""
        async with self._member.session() as session:
            with of_member():
                return await herd.describe(session, names, self._selections)

    async def may_be_partition(self, emptied: LoggedChange, tables: SourceTables) -> bool:
        """See ``Source``.

        The catalog tells of tables that are there. The command that has ended another one tells
        its name, and those of the tables above a partition.
        """
        name = emptied.table or ""
        if name in await self.describe([name]):
            return False
        through = await self._log.visible()
        async with aclosing(self._log.between(emptied.gid - 1, through)) as portions:
            async for changes in portions:
                for one in changes:
                    is_later = (one.gid, one.number) > (emptied.gid, emptied.number)
                    if one.command is None or not is_later:
                        continue
                    if (found := suspicion(one.command, tables)) is not None and found[1]:
                        return True
                    if name in json.loads(one.command).get("gone", ()):
                        return False
        return True

    async def sequences(self) -> dict[str, HerdSequence]:
        """See ``Source``."""
        async with self._member.session() as session:
            with of_member():
                return await herd.sequences(session)

    async def copy(self, subscriber: Subscriber, names: Sequence[str]) -> None:
        """See ``Source``."""
        await copy(self._member, subscriber, names, self._selections)

    async def extension(self, gid: int, name: str, known: SourceTable) -> HerdTable | None:
        """See ``Source``.

        The rest of the column is told by the catalog, so the table must be now as it was then.
        """
        changes = 0
        async with aclosing(self._log.between(gid - 1, gid)) as portions:
            async for some in portions:
                changes += len(some)
        shapes = (await self._member.admin.changed_tables()).tables
        then = [one for one in shapes if one.table == name and one.gid == gid]
        now = (await self.describe([name])).get(name)
        if changes != 1 or len(then) != 1 or now is None or not _extends(now, known):
            return None
        columns = tuple(column.name for column in now.table.columns)
        fits = (then[0].columns, then[0].types) == (columns, now.types)
        return now if fits else None


def _extends(now: HerdTable, known: SourceTable) -> bool:
    """Has the table one more column than it had, of a type of PostgreSQL's own?"""
    *before, last = now.table.columns
    return (
        [(one.name, one.type, one.modifier, one.generated) for one in before]
        == [(one.name, one.type, one.modifier, one.generated) for one in known.columns]
        and now.table.key == known.key
        and last.oid < FIRST_OF_USERS
        and not last.generated
    )


class _Head(msgspec.Struct, frozen=True):
    """How a subscriber that forwards is, in one snapshot of it.

    Attributes:
        gid: that it shows.
        as_of_s: the herd had nothing newer then.
        begins: its log has all after this GID.
        gone: number of the last row of the log that was removed.
        last: number of the last row.
        tables: since which GID each is shown.
        before: number of the last row that is not wanted.
    """

    cluster: str
    gid: int | None
    as_of_s: float | None
    begins: int
    gone: int
    last: int
    tables: dict[str, int]
    before: int | None


class ForwarderSource:
    """A subscriber that forwards: the log that it keeps, and its own tables.

    Args:
        session: at it; nobody else uses it.
        name: of its subscription.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name
        self._extended: dict[tuple[int, str], HerdTable] = {}
        self.seen_s: float | None = None

    async def cluster(self) -> str:
        """The herd of which it has its rows."""
        async with self._snapshot() as head:
            return head.cluster

    async def visible(self) -> int:
        """See ``Source``."""
        async with self._snapshot() as head:
            return _gid(head, self._name)

    @asynccontextmanager
    async def _snapshot(
        self, after: int = 0, locked: sql.Composed | None = None
    ) -> AsyncIterator[_Head]:
        """A transaction that sees one state of it.

        Args:
            after: a GID.
            locked: tables that keep their shape until the end.
        """
        session = self._session
        with of_member(_PROVIDER):
            await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            with of_member(_PROVIDER):
                if locked is not None:  # before the snapshot is taken
                    await session.execute(
                        sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(locked)
                    )
                found = await rows_of(session, "head", name=self._name, after=after)
            if not found:
                raise MemberError(f"subscription {self._name} does not forward yet")
            try:
                head = msgspec.convert(found[0], _Head)
            except msgspec.ValidationError as error:
                raise damaged(self._name, "somebody has changed it") from error
            yield head
        finally:
            if not session.closed:
                with of_member(_PROVIDER):
                    await session.execute("ROLLBACK")

    async def portions(self, after: int, places: Places) -> AsyncGenerator[Portion, None]:
        """See ``Source``."""
        async with self._snapshot(after) as head:
            gid = _gid(head, self._name)
            self._require(head, places)
            self.seen_s = head.as_of_s if gid >= after else None
            if gid <= after:
                yield Portion(after, after, [])
                return
            async with aclosing(self._rows(head, after)) as rows:
                async for portion in rows:
                    yield portion

    async def _rows(self, head: _Head, after: int) -> AsyncGenerator[Portion, None]:
        """The rows of the log after a GID, and then that all of them were handed out.

        A row is handed out when the next one tells whether its last transaction goes on there.
        """
        gid = _gid(head, self._name)
        expected = max(head.gone, head.before or 0) + 1
        last, n, size = after, 1 << 62, 0
        waiting: tuple[int, list[LoggedChange]] | None = None
        while True:
            with of_member(_PROVIDER):
                found = await rows_of(
                    self._session, "read", name=self._name, last=last, n=n, rows=_READ_ROWS
                )
            for values in found:
                row = msgspec.convert(values, KeptRow)
                if row.n != expected:
                    raise damaged(self._name, f"row {expected} is missing")
                changes, extended = decode(self._name, row)
                if extended is not None:
                    self._note(row.last, extended)
                if waiting is not None:
                    whole = waiting[0] if row.first > waiting[0] else waiting[0] - 1
                    yield Portion(whole, gid, waiting[1])
                    if size >= _READ_BYTES and whole == waiting[0]:
                        return
                waiting = row.last, [one for one in changes if one.gid > after]
                last, n, expected = row.last, row.n, row.n + 1
                size += len(row.body)
            if len(found) < _READ_ROWS:
                break
        if expected != head.last + 1:
            raise damaged(self._name, f"row {expected} is missing")
        yield Portion(gid, gid, waiting[1] if waiting is not None else [])

    def _note(self, gid: int, extended: HerdTable) -> None:
        while len(self._extended) >= _EXTENSIONS:
            del self._extended[next(iter(self._extended))]
        self._extended[gid, extended.table.name] = extended

    def _require(self, head: _Head, places: Places) -> None:
        """Check that the log has all changes of these tables since their own GIDs.

        Raises:
            MemberError: it does not show one of them.
            PositionLostError: changes are missing.
        """
        for name, place in places.items():
            since = head.tables.get(name)
            if since is None:
                raise MemberError(f"subscription {self._name} does not show {name}")
            if max(since, head.begins) > place.gid:
                raise PositionLostError(
                    f"what subscription {self._name} keeps of {name} begins after GID"
                    f" {max(since, head.begins)}, and GID {place.gid} is where it would go on"
                )

    async def between(
        self, after: int, through: int, places: Places
    ) -> AsyncGenerator[list[LoggedChange], None]:
        """See ``Source``."""
        until_s = time.monotonic() + _WAIT_S
        while after < through:
            begun = after
            async with aclosing(self.portions(begun, places)) as portions:
                async for found in portions:
                    after = found.through
                    yield [change for change in found.changes if change.gid <= through]
                    if after >= through:
                        return
            if after == begun:
                if time.monotonic() >= until_s:
                    raise MemberError(f"subscription {self._name} has not come to GID {through}")
                await asyncio.sleep(_PAUSE_S)

    async def describe(self, names: Iterable[str]) -> dict[str, HerdTable]:
        """See ``Source``."""
        with of_member(_PROVIDER):
            found = await rows_of(self._session, "describe", name=self._name, names=list(names))
        return {one.table.name: one for one in map(_described, found)}

    async def may_be_partition(self, emptied: LoggedChange, tables: SourceTables) -> bool:
        """See ``Source``: its provider has judged, and keeps no such change."""
        return False

    async def sequences(self) -> dict[str, HerdSequence]:
        """See ``Source``."""
        known: dict[str, HerdSequence] = {}
        with of_member(_PROVIDER):
            found = await rows_of(self._session, "sequences", name=self._name)
            told = msgspec.convert(found[0]["sequences"] if found else [], list[HerdSequence])
            for one in told:
                at: list[dict[str, Any]] = await rows_of(self._session, "sequence_at", seq=one.name)
                last = at[0]["last"] if at else None
                known[one.name] = msgspec.structs.replace(one, last=one.further(one.last, last))
        return known

    async def copy(self, subscriber: Subscriber, names: Sequence[str]) -> None:
        """See ``Source``: its rows, and the GID that it shows, in one snapshot of it."""
        known = await self.describe(names)
        for name in names:
            if name not in known:
                raise MemberError(f"subscription {self._name} does not show {name} yet")
        locked = sql.SQL(", ").join(
            sql.Identifier(one.table.schema, one.table.relation) for one in known.values()
        )
        async with self._snapshot(locked=locked) as head:
            gid = _gid(head, self._name)
            now = await self.describe(names)
            for name in names:
                if name not in now:
                    raise MemberError(f"subscription {self._name} does not show {name} any more")
                if now[name].chosen != subscriber.wanted(name):
                    raise MemberError(
                        f"subscription {self._name} does not show {subscriber.wanted(name)} yet"
                    )
                # Partitions of the herd are one plain table there.
                await copy_table(self._session, subscriber, now[name], gid, with_parts=False)

    async def extension(self, gid: int, name: str, known: SourceTable) -> HerdTable | None:
        """See ``Source``: its provider has said so, or its log."""
        return self._extended.get((gid, name))


def _gid(head: _Head, name: str) -> int:
    if head.gid is None:
        raise MemberError(f"the first copy of subscription {name} is not whole yet")
    return head.gid


def _described(row: Mapping[str, Any]) -> HerdTable:
    try:
        table = msgspec.convert(row["definition"], SourceTable)
        of = msgspec.convert(row["definition"].get("of"), TableSelection | None)
        types = msgspec.convert(row["definition"].get("read_types", []), tuple[str, ...])
    except msgspec.ValidationError as error:
        raise StoppedError(
            "somebody has changed pgherd_subscriber.tables at the provider: `pgherd subscribe SET"
            " --anew` for that one"
        ) from error
    declared = row["declared"]
    if table.key:
        names = sql.SQL(", ").join(sql.Identifier(table.stored[at].name) for at in table.key)
        declared += f", PRIMARY KEY ({names.as_string(None)})"
    return HerdTable(table, row["parts"], declared, "", tuple(row["types"]), of, types)
