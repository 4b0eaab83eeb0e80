"""Joins the row changes of consecutive whole transactions into few sets of rows for each table.

While a source is followed, the herd's tables have no foreign keys and no triggers of users yet, so
tables don't depend on each other, and of a row only what becomes of it counts. What is kept for
each table is: is it emptied first; rows to delete by their keys; rows to update, by the keys that
they have in the herd; rows to insert. In that order they give what the changes give one by one,
unless values of unique indexes move from one row to another on the way: whoever applies them then
hears of a duplicate, rolls back, and applies them one by one, in their order.

Rows of tables without a key are known by all of their columns, and equal ones are interchangeable.
An update is there a deletion and an insertion, and what cancels out is left out.

Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pgherd_sidecar.importing.pgoutput import Row, Unchanged, Value

Key = tuple[Value, ...]


class FoldingError(Exception):
    """A change that does not fit to those before it."""


@dataclass(frozen=True, slots=True)
class Change:
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


Step = Change | Emptied


@dataclass(slots=True)
class _Entry:
    """A row: the key that it has in the herd now, and its values as they will be."""

    origin: Key | None
    values: list[Value]


@dataclass(slots=True)
class Net:
    """What becomes of one table."""

    emptied: bool = False
    deletes: list[Key] = field(default_factory=list)
    updates: list[tuple[Key, Row]] = field(default_factory=list)
    inserts: list[Row] = field(default_factory=list)


class Folding:
    """Takes changes in their order.

    Args:
        keys: for each table, the positions of its key's columns; empty where it has none.
    """

    def __init__(self, keys: dict[str, tuple[int, ...]]) -> None:
        self._keys = keys
        self._tables: dict[str, _Table] = {}

    def add(self, step: Step) -> None:
        """Take a change.

        Raises:
            FoldingError: a row that was just inserted comes again, or a part of it is not known.
        """
        if isinstance(step, Emptied):
            for name in step.tables:
                self._tables[name] = _Table(self._keys[name], emptied=True)
            return
        table = self._tables.get(step.table)
        if table is None:
            table = self._tables[step.table] = _Table(self._keys[step.table])
        table.add(step)

    def result(self) -> dict[str, Net]:
        """What becomes of each table that is concerned."""
        return {name: table.result() for name, table in self._tables.items()}


class _Table:
    """The rows of one table that are concerned, by the keys that they will have."""

    def __init__(self, key: tuple[int, ...], *, emptied: bool = False) -> None:
        self._key = key
        self._emptied = emptied
        self._rows: dict[Key, _Entry] = {}
        self._gone: dict[Key, None] = {}
        self._bag: Counter[Row] = Counter()  # so many more than before, or fewer

    def add(self, change: Change) -> None:
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
        key = tuple(row[position] for position in self._key)
        if key in self._rows:
            raise FoldingError("a row is inserted whose key is there")
        self._rows[key] = _Entry(None, list(row))

    def _delete(self, key: Key) -> None:
        entry = self._rows.pop(key, None)
        if entry is None:
            self._gone[key] = None
        elif entry.origin is not None:
            self._gone[entry.origin] = None

    def _update(self, old: Key, new: Row) -> None:
        entry = self._rows.pop(old, None)
        if entry is None:
            entry = _Entry(old, list(new))
        else:
            for position, value in enumerate(new):
                if not isinstance(value, Unchanged):
                    entry.values[position] = value
        key = tuple(
            old[index] if isinstance(entry.values[position], Unchanged) else entry.values[position]
            for index, position in enumerate(self._key)
        )
        for index, position in enumerate(self._key):
            entry.values[position] = key[index]
        if key in self._rows:
            raise FoldingError("a row is given a key that is there")
        self._rows[key] = entry

    def result(self) -> Net:
        net = Net(self._emptied, [*self._gone, *(-self._bag).elements()])
        net.inserts.extend((+self._bag).elements())
        for entry in self._rows.values():
            if entry.origin is None:
                net.inserts.append(tuple(entry.values))
            else:
                net.updates.append((entry.origin, tuple(entry.values)))
        return net


def _known(row: Row | None) -> Row:
    if row is None or any(isinstance(value, Unchanged) for value in row):
        raise FoldingError("a new row of which a part is missing")
    return row


def alike(updates: Iterable[tuple[Key, Row]]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Sort updates by the columns that they tell: positions of columns, and of updates."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, (_, row) in enumerate(updates):
        told = tuple(at for at, value in enumerate(row) if not isinstance(value, Unchanged))
        found.setdefault(told, []).append(number)
    yield from found.items()
