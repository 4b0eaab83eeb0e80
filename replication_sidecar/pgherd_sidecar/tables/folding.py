"""Joins the row changes of consecutive whole transactions into few sets of rows for each table.

The tables that are written have no foreign keys and no triggers that write, so they don't depend on
each other, and of a row only what becomes of it counts. What is kept for each table is: is it
emptied first; rows to delete by their keys; rows to replace, which were deleted and inserted again;
rows to update, by the keys that they have where they are written; rows to insert. In that order
they give what the changes give one by one, unless values of unique indexes move from one row to
another on the way: whoever applies them then hears of a duplicate, rolls back, and applies them one
by one, in their order.

Rows of tables without a key are known by all of their columns, and equal ones are interchangeable.
An update is there a deletion and an insertion, and what cancels out is left out.

Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from pgherd_sidecar.tables.values import UNCHANGED, Row, Unchanged, Value

Key = tuple[Value, ...]


class FoldingError(Exception):
    """A change that does not fit to those before it."""


class RowChange(msgspec.Struct, gc=False):
    """One row: ``old`` is its key or, of a table without one, the whole row.

    Attributes:
        old: None of an insertion.
        new: None of a deletion; all columns, of which some may be ``UNCHANGED`` if there is a key.
    """

    table: str
    old: Key | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class Emptied:
    """Tables that are emptied together."""

    tables: tuple[str, ...]


Step = RowChange | Emptied


@dataclass(slots=True)
class Net:
    """What becomes of one table."""

    emptied: bool = False
    deletes: list[Key] = field(default_factory=list)
    replaced: list[tuple[Key, Row]] = field(default_factory=list)
    updates: list[tuple[Key, Row]] = field(default_factory=list)
    inserts: list[Row] = field(default_factory=list)


class Folding:
    """Takes changes in their order.

    Args:
        keys: for each table, the positions of its key's columns; empty where it has none.
    """

    def __init__(self, keys: dict[str, tuple[int, ...]]) -> None:
        self._keys = keys
        self._tables: dict[str, _TableRows] = {}

    def add(self, step: Step) -> None:
        """Take a change.

        Raises:
            FoldingError: a row that was just inserted comes again, or a part of it is not known.
        """
        if isinstance(step, Emptied):
            for name in step.tables:
                self._tables[name] = _TableRows(self._keys[name], emptied=True)
            return
        table = self._tables.get(step.table)
        if table is None:
            table = self._tables[step.table] = _TableRows(self._keys[step.table])
        table.add(step)

    def result(self) -> dict[str, Net]:
        """What becomes of each table that is concerned."""
        return {name: table.result() for name, table in self._tables.items()}


class _TableRows:
    """The rows of one table that are concerned, by the keys that they will have."""

    def __init__(self, key: tuple[int, ...], *, emptied: bool = False) -> None:
        self._key = key
        self._emptied = emptied
        self._rows: dict[Key, Row] = {}
        self._origins: dict[Key, Key] = {}  # the keys that these have there now; not of new ones
        self._gone: dict[Key, None] = {}
        self._bag: Counter[Row] = Counter()  # so many more than before, or fewer

    def add(self, change: RowChange) -> None:
        if not self._key:
            if change.old is not None:
                self._bag[change.old] -= 1
            if change.new is not None:
                self._bag[_known(change.new)] += 1
        elif change.old is None:
            self._insert(_known(change.new))
        elif change.new is None:
            self._delete(change.old)
        else:
            self._update(change.old, change.new)

    def _insert(self, row: Row) -> None:
        key = tuple([row[position] for position in self._key])
        if key in self._rows:
            raise FoldingError("a row is inserted whose key is there")
        self._rows[key] = row

    def _delete(self, key: Key) -> None:
        is_new = self._rows.pop(key, None) is not None and key not in self._origins
        if not is_new:
            self._gone[self._origins.pop(key, key)] = None

    def _update(self, old: Key, new: Row) -> None:
        row = self._rows.pop(old, None)
        is_new = row is not None and old not in self._origins
        origin = self._origins.pop(old, old)
        values = list(new)
        if row is not None and UNCHANGED in values:
            values = [
                before if value is UNCHANGED else value
                for before, value in zip(row, values, strict=True)
            ]
        for index, position in enumerate(self._key):
            if isinstance(values[position], Unchanged):
                values[position] = old[index]
        key = tuple([values[position] for position in self._key])
        if key in self._rows:
            raise FoldingError("a row is given a key that is there")
        self._rows[key] = tuple(values)
        if not is_new:
            self._origins[key] = origin

    def result(self) -> Net:
        net = Net(self._emptied, list((-self._bag).elements()))
        net.inserts.extend((+self._bag).elements())
        net.deletes += [key for key in self._gone if key not in self._rows or key in self._origins]
        for key, row in self._rows.items():
            if key in self._origins:
                net.updates.append((self._origins[key], row))
            elif key in self._gone:
                net.replaced.append((key, row))
            else:
                net.inserts.append(row)
        return net


def _known(row: Row | None) -> Row:
    if row is None or UNCHANGED in row:
        raise FoldingError("a new row of which a part is missing")
    return row


def alike(
    updates: Iterable[tuple[Key, Row]], key: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Sort updates by the columns that they set: positions of columns, and of updates.

    Args:
        updates: by the keys that the rows have.
        key: positions of the key's columns. One that stays is not set beside others, since nobody
            may set a column that is always generated as identity.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for number, (old, row) in enumerate(updates):
        told = [at for at, value in enumerate(row) if value is not UNCHANGED]
        stays = {at for at, value in zip(key, old, strict=True) if row[at] == value}
        found.setdefault(tuple([at for at in told if at not in stays] or told), []).append(number)
    yield from found.items()
