"""The change stream: what committed transactions changed, row by row, in the order of their GIDs.

Takes writesets apart: which columns a record's values are of is told by the columns that its table
had at that GID. Values are text, as PostgreSQL writes them under the settings of ``session.sql``.
Used by ``changelog``, which reads the log; does no input or output.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pgherd_sidecar.cli.admin import ChangedTable
from pgherd_sidecar.core.entries import Writeset
from pgherd_sidecar.core.merge import Item
from pgherd_sidecar.core.recordtext import split_record

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


def changes_of(
    gid: int, writeset: Writeset, items: Sequence[Item], shapes: Shapes, number: int = 0
) -> Iterator[Change]:
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
        written = {column: named[column] for column in named if column not in shape.generated}
        return key or written, written
    chosen = zip(shape.columns, bitmap, strict=True)
    return key, {column: named[column] for column, bit in chosen if bit == "1"}
