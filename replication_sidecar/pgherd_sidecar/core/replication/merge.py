"""Merging: one set-oriented apply plan for a run of consecutive committed remote writesets.

All writesets of a batch become one transaction, so only their joint effect is ever visible, and
the rows of all of them can go into one statement per table and operation. What PostgreSQL checks
row by row are unique keys (C10); so the plan is a list of *waves*, executed in order, and inside
a wave truncations come first, then deletes, updates and inserts:

* The rows of one writeset are a net effect. Rows whose unique columns changed come as delete and
  insert, an update never touches a unique column. So one writeset fits into one wave.
* Such a pair becomes an update again, or a put where the row need not have been there. So a local
  transaction that waits for this row finds it (``UPDATE 1``), as on one server. What the writeset
  deletes goes before it, and what it inserts comes after it, so nothing is in the way of a row
  that is alone. Rows that move together may take each other's values. Which ones do, no hash
  tells. PostgreSQL does, and then the table's rows are kept apart (``Columns.together``).
* A row deleted and another one inserted beside it are taken for one row whose primary key has
  changed, and become a move. Capture puts the two of a changed key beside each other where a
  statement changes one row. Where they were two rows, the rows are the same in the end.
* A writeset goes into the first wave after every wave in which an earlier one of the batch took
  one of its keys exclusively (NO KEY UPDATE or UPDATE mode), with two exceptions:
* an insert may share the wave in which its key was last taken: what it inserts was deleted there
  or before, and deletes run first. A deleted row has no key of an exclusion constraint, so an
  insert goes into no wave before one that deletes rows of its table;
* an update of a row that the batch updated last is folded into that earlier update, if its
  writeset moved no row.

Rows of a table without identity come as deletes, inserts and replacements of whole images. An
insert takes no key there, as equal rows don't exclude each other; a delete takes the image's. So
the images inserted count as taken, too: a later delete must find them. A replacement is two
records: what the row was, and what it has become; without the second it is a delete.

Keys are hashes, so equal hashes may be different rows. That only ever costs a wave: rows are
folded only if their primary keys are equal as text, column by column.

Called by the applier, which bounds the batch by rows and bytes and must find the affected row
counts equal to the expected ones. Knows neither SQL nor types; writesets with DDL are not merged.
Keeps nothing between batches.
"""

from array import array
from collections.abc import Iterable, Sequence, Set
from enum import Enum
from itertools import chain, pairwise
from typing import AnyStr, Protocol

import msgspec

from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.core.replication.lines import (
    LinesFormatError,
    holds_lines,
    read_lines,
    row_records,
)
from pgherd_sidecar.core.replication.recordtext import join_record, split_record

Item = tuple[str, list[int], list[str]]
"""Rows of one table: quoted qualified name, primary-key hash of each row, record of each row."""

Records = list[str] | list[bytes]

FINGERPRINT = "="
"""In place of a table: an item that tells how the rows of the items before it look at the end.

What it says is PostgreSQL's business alone: ``pg/sql/035_fingerprint.sql``."""


class Columns(Protocol):
    """The columns of tables, as far as merging needs them. A table is its quoted qualified name."""

    def key_columns(self, table: str) -> Sequence[int]:
        """Positions of its primary-key columns among its live columns, from 0."""

    def other_columns(self, table: str) -> str:
        """Bitmap of an update of a whole row: '1' for each live column that it sets, or else '0'.

        Those that it does not set are the primary key's, and generated ones. The bitmap is empty if
        a row can't be updated whole.
        """

    def settable_columns(self, table: str) -> str:
        """Bitmap of a move: '1' for each live column that it sets, of the primary key's, too.

        The bitmap is empty if a row can't be updated whole.
        """

    def together(self, table: str) -> bool:
        """Rows of a known table that move in one writeset may be updated in place, too; and a
        row's primary key.

        A caller that says so merges anew if the server refuses that.
        """


_decoder = msgspec.json.Decoder(list[Item])


class Op(Enum):
    """What a statement does with its records; in a wave they run in this order."""

    TRUNCATE = "T"
    DELETE = "D"
    #: Delete if it exists.
    ERASE = "E"
    #: Update rows without identity: its records are in pairs, old image and new image.
    REPLACE = "R"
    UPDATE = "U"
    #: Update the row and its primary key: its records are in pairs, old key and new row. No record
    #: comes so, see ``_in_place``.
    MOVE = "M"
    #: Insert, or update the row with that primary key: likewise.
    PUT = "P"
    INSERT = "I"

    __hash__ = object.__hash__  # Enum's own is a call of Python


IN_PAIRS = (Op.REPLACE, Op.MOVE)
"""Two records are one row."""
_ORDER = {op: rank for rank, op in enumerate(Op)}
_OPS = {op.value: op for op in Op}


class Statement(msgspec.Struct, frozen=True):
    """One statement of a wave.

    Attributes:
        op: what to do.
        table: quoted qualified name.
        bitmap: for an update, a move or a put '1' for each live column that it sets, '0' for the
            others; else "".
        records: record literals of the table's row type; none for a truncation. They are in bytes
            where they may be large.
    """

    op: Op
    table: str
    bitmap: str
    records: Records

    @property
    def expected_rows(self) -> int | None:
        """Rows the statement must affect, None if any number is right."""
        if self.op in (Op.TRUNCATE, Op.ERASE):
            return None
        return len(self.records) // (2 if self.op in IN_PAIRS else 1)


class Wave(msgspec.Struct, frozen=True):
    """Statements in the order of their execution."""

    statements: list[Statement]


class Plan(msgspec.Struct, frozen=True):
    """The joint effect of a batch: waves in the order of their execution."""

    waves: list[Wave]


def decode_body(body: bytes) -> list[Item]:
    """Decode what a writeset's body changes.

    Raises:
        EntryFormatError: not a body of version 1.
    """
    items = decode_items(body)
    if items and items[-1][0] == FINGERPRINT:
        items.pop()
    return items


def decode_items(body: bytes) -> list[Item]:
    """Decode a writeset's body with its fingerprint, if it has one, or the data of a piece.

    Rows that come as lines bring no hashes of their keys: 0 stands in their place.

    Raises:
        EntryFormatError: not a body of version 1.
    """
    if holds_lines(body):
        try:
            lines = read_lines(body)
            return [(lines.table, [0] * lines.count, row_records(lines))]
        except LinesFormatError as error:
            raise EntryFormatError(str(error)) from None
    try:
        items = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EntryFormatError(f"writeset body: {error}") from None
    for _, pk_keys, records in items:
        if len(pk_keys) != len(records) or not records or not all(records):
            raise EntryFormatError("writeset body: an empty row, or not one key for each")
    return items


def merge_writesets(writesets: "Iterable[tuple[array[int], list[Item]]]", columns: Columns) -> Plan:
    """Merge consecutive committed writesets of other members.

    Args:
        writesets: certification keys (groups, see ``entries.key_array``) and decoded body of
            each, in GID order.
        columns: says where a table's primary key is; asked only for rows updated twice, and for
            rows that are deleted and inserted.

    Raises:
        EntryFormatError: a record has an unknown operation or is malformed.
    """
    batch = _Batch(columns)
    try:
        for keys, items in writesets:
            batch.add(exclusive_keys(keys), items)
    except ValueError as error:
        raise EntryFormatError(f"writeset body: {error}") from None
    return Plan([Wave(statements_of(wave)) for wave in batch.waves])


# Where the plan holds the update of a row: table, wave, prefix, record literals, place in them.
_Update = tuple[str, int, str, list[str], int]
_Groups = dict[str, dict[str, list[str]]]  # table -> op letter and bitmap -> record literals
_NO_KEYS: frozenset[int] = frozenset()
_INSERTS = {"I"}


class _Batch:
    """Waves under construction. Keys are held without their mode bits."""

    __slots__ = ("_columns", "_deleted", "_floor", "_taken", "_updates", "waves")

    def __init__(self, columns: Columns) -> None:
        self.waves: list[_Groups] = []
        self._columns = columns
        self._floor = 0  # the wave of the last truncation: no later writeset goes below
        # key -> last wave in which it was taken, or a row inserted under it
        self._taken: dict[int, int] = {}
        self._updates: dict[int, _Update] = {}  # primary-key hash -> update, if it came last
        self._deleted: dict[str, int] = {}  # table -> last wave that deletes rows of it

    def add(self, exclusive: list[int], items: list[Item]) -> None:
        """Add the next writeset, with the keys (and modes) that it took exclusively."""
        operations = {record[0] for _, _, records in items for record in records}
        keys = [key & -4 for key in exclusive]
        if "T" in operations:
            self._floor = len(self.waves)
        moved = False
        if "I" in operations and not operations.isdisjoint("DE"):
            items, moved = self._in_place(items)
        if self._taken.keys().isdisjoint(keys):
            wave = self._floor
        else:
            inserted = _inserted_keys(operations, exclusive, items)
            if not moved:  # an update of a unique column must not run before its keys are free
                items, keys = self._fold(exclusive, items)
            wave = self._wave(keys, inserted)
        if not items:
            return
        if "I" in operations:  # a deleted row has no key of an exclusion constraint
            wave = max(wave, *(self._deleted.get(table, 0) for table, _, _ in items))
        if wave == len(self.waves):
            self.waves.append({})
        if not operations.isdisjoint("DE"):
            for table, _, _ in items:
                self._deleted[table] = max(wave, self._deleted.get(table, 0))
        self._taken.update(dict.fromkeys(keys, wave))
        place = self._place_new if operations == _INSERTS else self._place
        for item in items:
            place(wave, item)

    def _wave(self, keys: list[int], inserted: Set[int]) -> int:
        """The first wave that a writeset which took these keys may go into."""
        wave = self._floor
        for key in keys:
            taken = self._taken.get(key)
            if taken is not None:
                wave = max(wave, taken if key in inserted else taken + 1)
        return wave

    def _in_place(self, items: list[Item]) -> tuple[list[Item], bool]:
        """Update a row where it is deleted and inserted; also say whether one is."""
        tables: dict[str, Item] = {}
        for table, pk_keys, records in items:
            before = tables.get(table)
            keys, rows = (before[1], before[2]) if before else ([], [])
            tables[table] = table, keys + pk_keys, rows + records
        joined = list(tables.values())
        updated = [self._rows_in_place(*item) or item for item in joined]
        return updated, updated != joined

    def _rows_in_place(self, table: str, pk_keys: list[int], records: list[str]) -> Item | None:
        """The item with updates in place of the rows that it deletes and inserts."""
        pairs = _pairs(pk_keys, records)
        moved = self._columns.settable_columns(table) if pairs else ""
        together = moved != "" and self._columns.together(table)
        if not moved or (len(pairs) > 1 and not together):
            return None
        kept = self._columns.other_columns(table)
        columns = self._columns.key_columns(table)
        count = max(columns) + 1
        places: list[int] = []  # of the records that are replaced
        keys: list[int] = []
        rows: list[str] = []
        for deleted, inserted in pairs:
            gone = split_record(records[deleted][1:], count)
            made = split_record(records[inserted][1:], count)
            if not len(gone) == len(made) == count:
                continue
            changed = [column for column in columns if gone[column] != made[column]]
            certain = records[deleted][0] == "D"
            if not changed and "1" in kept:
                rows.append(f"{'U' if certain else 'P'}{kept}{records[inserted][1:]}")
                keys.append(pk_keys[inserted])
            elif changed and certain and together and all(moved[c] == "1" for c in changed):
                rows += (f"M{moved}{records[deleted][1:]}", records[inserted])
                keys += (pk_keys[deleted], pk_keys[inserted])
            else:
                continue
            places += (deleted, inserted)
        if not places:
            return None
        others = sorted({*range(len(records))}.difference(places))
        return (
            table,
            [*(pk_keys[place] for place in others), *keys],
            [*(records[place] for place in others), *rows],
        )

    def _place(self, wave: int, item: Item) -> None:
        table, pk_keys, records = item
        groups = self.waves[wave].setdefault(table, {})
        old: tuple[str, str] | None = None  # prefix and literal of what becomes the next record
        for place, (pk_key, record) in enumerate(zip(pk_keys, records, strict=True), 1):
            operation = record[0]
            if old is not None:
                prefix, literal = old
                groups.setdefault(prefix, []).extend((literal, record[1:]))
                self._updates.pop(pk_key, None)
                self._insert(pk_key, wave)
                old = None
                continue
            if operation == "R":
                if place < len(records) and records[place][0] == "I":
                    old = "R", record[1:]
                    continue
                operation = "D"
            if operation in "UPM":
                start = record.index("(")
                prefix, literal = record[:start], record[start:]
                if operation == "M":
                    old = prefix, literal
                    self._updates.pop(pk_key, None)
                    continue
            else:
                prefix, literal = operation, record[1:]
            group = groups.get(prefix)
            if group is None:
                group = groups[prefix] = []
            if operation == "U":
                self._updates[pk_key] = table, wave, prefix, group, len(group)
            else:
                if pk_key in self._updates:
                    del self._updates[pk_key]
                if operation in "PI":
                    self._insert(pk_key, wave)
            group.append(literal)

    def _place_new(self, wave: int, item: Item) -> None:
        """Place rows that are all inserted, as most rows of large transactions are."""
        table, pk_keys, records = item
        group = self.waves[wave].setdefault(table, {}).setdefault("I", [])
        group += [record[1:] for record in records]
        if not self._updates.keys().isdisjoint(pk_keys):
            for pk_key in pk_keys:
                self._updates.pop(pk_key, None)
        for pk_key in pk_keys:
            self._insert(pk_key, wave)

    def _insert(self, pk_key: int, wave: int) -> None:
        if self._taken.get(pk_key, -1) < wave:
            self._taken[pk_key] = wave

    def _fold(self, exclusive: list[int], items: list[Item]) -> tuple[list[Item], list[int]]:
        """Fold what can be folded; return the other rows, and the keys that they took."""
        folded: set[int] = set()
        kept: set[int] = set()
        others: list[Item] = []
        for table, pk_keys, records in items:
            rows = []
            for pk_key, record in zip(pk_keys, records, strict=True):
                if record[0] == "U" and self._fold_row(table, pk_key, record):
                    folded.add(pk_key)
                else:
                    kept.add(pk_key)
                    rows.append((pk_key, record))
            if rows:
                others.append((table, [row[0] for row in rows], [row[1] for row in rows]))
        folded -= kept  # a key that equals another row's still counts
        keys = [key & -4 for key in exclusive if key & 1 or key & -4 not in folded]
        return others, keys

    def _fold_row(self, table: str, pk_key: int, record: str) -> bool:
        """Fold an update into the row's earlier one, if that came last and is of the same row."""
        last = self._updates.get(pk_key)
        if last is None or last[0] != table:
            return False
        _, _, last_prefix, last_records, place = last
        start = record.index("(")
        prefix, literal = record[:start], record[start:]
        columns = self._columns.key_columns(table)
        count = max(columns) + 1
        earlier, later = split_record(last_records[place], count), split_record(literal, count)
        if not len(earlier) == len(later) == count:
            raise EntryFormatError(f"update of {table} without its primary key")
        if any(earlier[column] != later[column] for column in columns):
            return False
        if prefix == last_prefix:
            last_records[place] = literal
        else:
            self._overlay(pk_key, last, prefix, literal)
        return True

    def _overlay(self, pk_key: int, last: _Update, prefix: str, literal: str) -> None:
        """Join two updates of one row that set different columns."""
        table, wave, last_prefix, last_records, place = last
        earlier, later = split_record(last_records[place]), split_record(literal)
        if not len(earlier) == len(later) == len(prefix) - 1 == len(last_prefix) - 1:
            raise EntryFormatError("updates of one row have different numbers of columns")
        choice = zip(earlier, later, prefix[1:], strict=True)
        fields = [new if bit == "1" else old for old, new, bit in choice]
        joint = "".join(map(max, last_prefix, prefix))
        group = self.waves[wave][table].setdefault(joint, [])
        last_records[place] = ""
        self._updates[pk_key] = table, wave, joint, group, len(group)
        group.append(join_record(fields))


def exclusive_keys(keys: "array[int]") -> list[int]:
    """The keys taken in NO KEY UPDATE or UPDATE mode."""
    exclusive: list[int] = []
    position, end = 0, len(keys)
    while position < end:
        first = position + 2
        position = first + keys[position + 1]
        exclusive += [key for key in keys[first:position] if key & 2]
    return exclusive


def slots(keys: "array[int]") -> set[int]:
    """All keys of all groups, with their mode bits clear."""
    found: set[int] = set()
    position, end = 0, len(keys)
    while position < end:
        first = position + 2
        position = first + keys[position + 1]
        found.update(key & -4 for key in keys[first:position])
    return found


def _inserted_keys(operations: Set[str], exclusive: list[int], items: list[Item]) -> Set[int]:
    """The keys that this writeset surely took by inserts only.

    A writeset that also deletes does not say which of its unique keys are whose, and a hash that
    an updated row shares with an inserted one is not sure either.
    """
    if "I" not in operations or not operations.isdisjoint("DER"):
        return _NO_KEYS
    inserted = {key & -4 for key in exclusive if key & 1}
    if "U" in operations:
        for _, pk_keys, records in items:
            inserted.difference_update(
                pk_key for pk_key, record in zip(pk_keys, records, strict=True) if record[0] == "U"
            )
    return inserted


def _pairs(pk_keys: list[int], records: list[str]) -> list[tuple[int, int]]:
    """Places of each delete and insert that share a key; and of others, beside each other."""
    gone = {
        pk_key: place
        for place, (pk_key, record) in enumerate(zip(pk_keys, records, strict=True))
        if record[0] in "DE"
    }
    pairs = [
        (gone.pop(pk_key), place)
        for place, (pk_key, record) in enumerate(zip(pk_keys, records, strict=True))
        if record[0] == "I" and pk_key in gone
    ]
    left = ["" if record[0] not in "DI" else record[0] for record in records]
    for place in chain.from_iterable(pairs):
        left[place] = ""
    for order in ("DI", "ID"):
        for place, (first, second) in enumerate(pairwise(left)):
            if first + second == order and left[place] and left[place + 1]:
                left[place] = left[place + 1] = ""
                pairs.append((place, place + 1) if order == "DI" else (place + 1, place))
    return pairs


def statements_of(groups: dict[str, dict[str, list[AnyStr]]]) -> list[Statement]:
    """The statements of a wave, ordered so that equal work gives equal statements."""
    statements = []
    for table in sorted(groups):
        for prefix in sorted(groups[table]):
            op, bitmap = _OPS.get(prefix[0]), prefix[1:]
            if op is None or bitmap.strip("01"):
                raise EntryFormatError(f"unknown row operation {prefix!r}")
            if op is Op.UPDATE and "1" not in bitmap:
                continue  # it set every column to what it was: certified, but nothing to write
            records = [literal for literal in groups[table][prefix] if literal]
            if records or op is Op.TRUNCATE:
                statements.append(Statement(op, table, bitmap, records))
    return sorted(statements, key=lambda statement: _ORDER[statement.op])
