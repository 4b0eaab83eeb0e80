"""The change stream: what committed transactions changed, row by row, in the order of their GIDs.

Takes writesets apart: which columns a record's values are of is told by the columns that its table
had at that GID. Values are text, as PostgreSQL writes them under the settings of ``session.sql``.
Used by ``changelog``, which reads the log; does no input or output.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from pgherd_sidecar.client.answers import TableColumns
from pgherd_sidecar.core.replication.entries import Writeset
from pgherd_sidecar.core.replication.merge import Item
from pgherd_sidecar.core.replication.recordtext import split_record

_OPS = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "E": "delete",
    "R": "delete",  # what the row has become follows as an insert
    "T": "truncate",
}

Values = dict[str, str | None]


class ChangesError(Exception):
    """The log can't be read; the message says why."""


class PositionLostError(ChangesError):
    """No member holds the log from there on any more: whoever reads has to begin anew."""


class LoggedChange(msgspec.Struct, gc=False):
    """One row that a transaction changed, or one command.

    Attributes:
        gid: of the transaction; all of its changes have it.
        number: order within the transaction, from 0.
        origin: number of the member on which it ran.
        xid: its transaction id there.
        table: qualified name, quoted where SQL needs it; None for a command.
        op: insert, update, delete (of a row that may not have been there), truncate, command.
        key: the primary key's columns, or those of a unique index; of a table without, all that is
            written; None for a truncate or a command.
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

    def fields(self) -> dict[str, Any]:
        """All of them by name, as JSON has them."""
        return msgspec.structs.asdict(self)


class Shapes:
    """The columns of tables over time.

    Args:
        tables: in the order of their GIDs.
    """

    def __init__(self, tables: Iterable[TableColumns]) -> None:
        self._tables: dict[str, list[TableColumns]] = defaultdict(list)
        for one in tables:
            self._tables[one.table].append(one)

    def before(self, table: str, gid: int) -> TableColumns | None:
        """The columns that a table had just before a transaction, None if not known."""
        return next((one for one in reversed(self._tables[table]) if one.gid < gid), None)

    def newest(self, table: str) -> TableColumns | None:
        """The last that are known, None if there are none."""
        known = self._tables.get(table)
        return known[-1] if known else None

    def within(self, table: str, gid: int) -> list[TableColumns]:
        """Those that the commands of a transaction gave it, in their order."""
        return [one for one in self._tables[table] if one.gid == gid]


class _Columns:
    """Which columns the records of one transaction are of, as it goes on.

    Each of its commands may have changed those of the tables that it concerns.
    """

    def __init__(self, gid: int, items: Iterable[Item], shapes: Shapes) -> None:
        self._gid = gid
        self._shapes = shapes
        self._all: dict[str, int] = {}  # how many commands concern a table
        self._done: dict[str, int] = {}  # how many of these were met
        self._known: dict[tuple[str, int], TableColumns] = {}
        for table, _, records in items:
            if not table:
                for record in records:
                    _count(record, self._all)

    def pass_by(self, command: str) -> None:
        """A command was met."""
        _count(command, self._done)
        self._known.clear()

    def of(self, table: str, fields: int) -> TableColumns:
        """The columns of a record with so many fields.

        Raises:
            ChangesError: not known.
        """
        shape = self._known.get((table, fields))
        if shape is None:
            shape = self._known[table, fields] = self._find(table, fields)
        return shape

    def _find(self, table: str, fields: int) -> TableColumns:
        newest = self._shapes.newest(table)
        if newest is not None and newest.gid < self._gid and len(newest.columns) == fields:
            return newest  # nearly always
        within = self._shapes.within(table, self._gid)
        known = [self._shapes.before(table, self._gid), *within]
        done = self._done.get(table, 0)
        if len(within) == self._all.get(table, 0):
            known = known[done : done + 1]  # each command changed them, so there is no doubt
        fitting = [one for one in known if one is not None and len(one.columns) == fields]
        if not fitting:
            raise ChangesError(f"the columns of {table} at GID {self._gid} are not known any more")
        return fitting[-1] if done else fitting[0]


def _count(command: str, counts: dict[str, int]) -> None:
    """One more command for each of the tables that it concerns."""
    for name in json.loads(command).get("rels", ()):
        counts[name] = counts.get(name, 0) + 1


def changes_of(
    gid: int, writeset: Writeset, items: Sequence[Item], shapes: Shapes, number: int = 0
) -> Iterator[LoggedChange]:
    """The changes of one transaction, or of a part of it, in their order.

    Args:
        gid: of the transaction.
        writeset: its own.
        items: its rows and commands; a part holds rows only.
        shapes: the columns of tables.
        number: of the first change.

    Raises:
        ChangesError: the columns of a table are not known.
    """
    columns = _Columns(gid, items, shapes)
    member, xid = writeset.member, writeset.xid
    for table, _, records in items:
        if table:
            for record in records:
                op = record[0]
                key = values = None
                if op != "T":
                    start = record.index("(")
                    key, values = _values(table, record[start:], record[1:start], columns)
                    if op not in "IU":
                        values = None
                yield LoggedChange(gid, number, member, xid, table, _OPS[op], key, values)
                number += 1
        else:
            for record in records:
                for row in _command(record, columns):
                    yield LoggedChange(gid, number, member, xid, *row)
                    number += 1


_Row = tuple[str | None, str, Values | None, Values | None, str | None]


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
        for column in shape.generated:
            named.pop(column, None)
        return key or named, named
    chosen = zip(shape.columns, bitmap, strict=True)
    return key, {column: named[column] for column, bit in chosen if bit == "1"}
