"""The change stream: what committed transactions changed, row by row, in the order of their GIDs.

Reads the ordered log of any member by its admin API and takes it apart: which columns a record's
values are of is told by the columns that its table had at that GID. Values are text, as PostgreSQL
writes them under the settings of ``session.sql``. The log is the same everywhere, so what was begun
at one member can be gone on with at another; a position is a GID, and reading again gives the same.

Used by ``datasource`` and by ``pgherd changes``; needs no Spark. Keeps nothing.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pgherd_sidecar.cli.admin import AdminClient, AdminError, ChangedTable
from pgherd_sidecar.core.entries import FLAG_DDL, FLAG_PIECES, Writeset, iter_entries
from pgherd_sidecar.core.merge import Item, decode_body
from pgherd_sidecar.core.recordtext import split_record

_GONE = 409
_PAUSE_S = 0.1
_NOWHERE = 1 << 62
"""A position that no log will ever reach."""
_OPS = {"I": "insert", "U": "update", "D": "delete", "E": "delete", "T": "truncate"}

Values = dict[str, str | None]
Answer = TypeVar("Answer")


class ChangesError(Exception):
    """The log can't be read; the message says why."""


class PositionLostError(ChangesError):
    """No member holds the log from there on any more: whoever reads has to begin anew."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row that a transaction changed, or one command.

    Attributes:
        gid: of the transaction; all of its changes have it.
        number: order within the transaction, from 0.
        origin: number of the member on which it ran.
        xid: its transaction id there.
        table: qualified name, quoted where SQL needs it; None for a command.
        op: insert, update, delete (of a row that may not have been there), truncate, command.
        key: the primary key's columns; None for a truncate or a command.
        values: all columns after an insert, those that were set by an update; without generated
            ones.
        command: a command as JSON: ``sql`` with ``role`` and ``settings``, or an ``act`` of pgherd.
    """

    gid: int
    number: int
    origin: int
    xid: int
    table: str | None
    op: str
    key: Values | None = None
    values: Values | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Portion:
    """The changes after one position ``through`` another; ``visible``: how far there are more."""

    through: int
    visible: int
    changes: list[Change]


class Shapes:
    """The columns of tables over time.

    Args:
        tables: in the order of their GIDs.
    """

    def __init__(self, tables: Iterable[ChangedTable]) -> None:
        self._tables: dict[str, list[ChangedTable]] = defaultdict(list)
        for one in tables:
            self._tables[one.table].append(one)

    def before(self, table: str, gid: int) -> ChangedTable | None:
        """The columns that a table had just before a transaction, None if not known."""
        return next((one for one in reversed(self._tables[table]) if one.gid < gid), None)

    def within(self, table: str, gid: int) -> list[ChangedTable]:
        """Those that the commands of a transaction gave it, in their order."""
        return [one for one in self._tables[table] if one.gid == gid]


class _Columns:
    """Which columns the records of one transaction are of, as it goes on.

    Each of its commands may have changed those of the tables that it concerns.
    """

    def __init__(self, gid: int, items: Iterable[Item], shapes: Shapes) -> None:
        self._gid = gid
        self._shapes = shapes
        commands = [record for table, _, records in items if not table for record in records]
        self._all = Counter(name for one in commands for name in _concerned(one))
        self._done: Counter[str] = Counter()

    def pass_by(self, command: str) -> None:
        """A command was met."""
        self._done.update(_concerned(command))

    def of(self, table: str, fields: int) -> ChangedTable:
        """The columns of a record with so many fields.

        Raises:
            ChangesError: not known.
        """
        within = self._shapes.within(table, self._gid)
        known = [self._shapes.before(table, self._gid), *within]
        done = self._done[table]
        if len(within) == self._all[table]:
            known = known[done : done + 1]  # each command changed them, so there is no doubt
        fitting = [one for one in known if one is not None and len(one.columns) == fields]
        if not fitting:
            raise ChangesError(f"the columns of {table} at GID {self._gid} are not known any more")
        return fitting[-1] if done else fitting[0]


def _concerned(command: str) -> list[str]:
    return list(json.loads(command).get("rels", ()))


class Log:
    """Reads the log of a herd.

    Args:
        members: their admin APIs; whoever answers is asked.
    """

    def __init__(self, members: Sequence[AdminClient]) -> None:
        self._members = list(members)
        self._shapes: Shapes | None = None

    async def portion(self, after: int, max_bytes: int = 4 << 20) -> Portion:
        """The changes of the next blocks of the log, at least one; none if there are no more.

        Raises:
            ChangesError: nobody answers.
            PositionLostError: what follows ``after`` is not there any more.
        """
        content = await self._ask(lambda one: one.read_changes(after, max_bytes))
        head, _, data = content.partition(b"\n")
        said = json.loads(head)
        committed = list(_committed(data, said["blocks"], after, said["committed"]))
        if self._shapes is None or any(one.flags & FLAG_DDL for _, one in committed):
            self._shapes = await self._read_shapes(said["through"])
        changes = [
            change
            for gid, writeset in committed
            for change in changes_of(gid, writeset, self._shapes)
        ]
        return Portion(said["through"], said["visible"], changes)

    async def _read_shapes(self, through: int) -> Shapes:
        """The columns of tables, from a member that has come so far."""
        while True:
            said = await self._ask(lambda one: one.changed_tables())
            if said.visible >= through:
                return Shapes(said.tables)
            await self._try_another()

    async def _try_another(self) -> None:
        """Begin with the next member: this one is not so far yet."""
        self._members.append(self._members.pop(0))
        await asyncio.sleep(_PAUSE_S)

    async def visible(self) -> int:
        """The newest position that the first member that answers hands out.

        Raises:
            ChangesError: nobody answers.
        """
        content = await self._ask(lambda one: one.read_changes(_NOWHERE, 1))
        return int(json.loads(content.partition(b"\n")[0])["visible"])

    async def between(self, after: int, through: int) -> AsyncIterator[list[Change]]:
        """All changes after one position up to another, which some member has handed out already.

        Raises:
            ChangesError: nobody answers.
            PositionLostError: what follows ``after`` is not there any more.
        """
        while after < through:
            found = await self.portion(after)
            if found.through == after:
                await self._try_another()
            yield [change for change in found.changes if change.gid <= through]
            after = found.through

    async def hold(self, stream: str, after: int, lease_s: float) -> None:
        """Have all members that answer keep the log after a position, for so long from now on.

        Raises:
            ChangesError: nobody answers.
            PositionLostError: none has it.
        """
        errors = []
        for member in self._members:
            try:
                await member.hold_changes(stream, after, lease_s)
            except AdminError as error:
                errors.append(error)
        if len(errors) == len(self._members):
            raise _failure(errors)

    async def _ask(self, what: Callable[[AdminClient], Awaitable[Answer]]) -> Answer:
        """Ask one member after the other; who has answered is asked first the next time."""
        errors = []
        for _ in self._members:
            try:
                return await what(self._members[0])
            except AdminError as error:
                errors.append(error)
                self._members.append(self._members.pop(0))
        raise _failure(errors)


def _failure(errors: Sequence[AdminError]) -> ChangesError:
    gone = [error for error in errors if error.code == _GONE]
    if gone:
        return PositionLostError(gone[0].reason)
    return ChangesError("; ".join(str(error) for error in errors) or "no member was named")


def _committed(
    data: bytes, blocks: Iterable[tuple[int, int]], after: int, committed: str
) -> Iterator[tuple[int, Writeset]]:
    """The writesets that committed, each with its GID; ``committed`` begins behind ``after``."""
    start = 0
    for first, size in blocks:
        for gid, entry in enumerate(iter_entries(data[start : start + size]), first):
            handed_out = after < gid <= after + len(committed)
            if handed_out and committed[gid - after - 1] == "1" and isinstance(entry, Writeset):
                yield gid, entry
        start += size


def changes_of(gid: int, writeset: Writeset, shapes: Shapes) -> Iterator[Change]:
    """The changes of one transaction, in their order.

    Raises:
        ChangesError: the columns of a table are not known, or it came in pieces.
        EntryFormatError: it is malformed.
    """
    if writeset.flags & FLAG_PIECES:
        raise ChangesError(f"GID {gid} came in pieces, which this version does not put together")
    items = decode_body(writeset.body)
    columns = _Columns(gid, items, shapes)
    number = 0
    for table, _, records in items:
        for record in records:
            for row in _row(table, record, columns) if table else _command(record, columns):
                yield Change(gid, number, writeset.member, writeset.xid, *row)
                number += 1


_Row = tuple[str | None, str, Values | None, Values | None, str | None]


def _row(table: str, record: str, columns: _Columns) -> Iterator[_Row]:
    if record[0] == "T":
        yield table, _OPS["T"], None, None, None
        return
    start = record.index("(")
    key, values = _values(table, record[start:], record[1:start], columns)
    yield table, _OPS[record[0]], key, values if record[0] in "IU" else None, None


def _command(record: str, columns: _Columns) -> Iterator[_Row]:
    """A command; or the rows that CREATE TABLE AS has put into its table."""
    said = json.loads(record)
    if "fill" not in said:
        columns.pass_by(record)
        yield None, "command", None, None, record
        return
    for literal in said["rows"]:
        key, values = _values(said["fill"], literal, "", columns)
        yield said["fill"], "insert", key, values, None


def _values(table: str, literal: str, bitmap: str, columns: _Columns) -> tuple[Values, Values]:
    """The key of a record, and its values; of an update, which has a bitmap, those that it sets."""
    fields = split_record(literal)
    shape = columns.of(table, len(fields))
    named = dict(zip(shape.columns, fields, strict=True))
    key = {column: named[column] for column in shape.key}
    if not bitmap:
        return key, {column: named[column] for column in named if column not in shape.generated}
    chosen = zip(shape.columns, bitmap, strict=True)
    return key, {column: named[column] for column, bit in chosen if bit == "1"}
