"""A naive database and a generator of histories, to judge merged apply plans by.

The database checks unique columns after every single row, in an order of rows within a statement
that the test chooses, as PostgreSQL does in heap order. It verifies row counts. It does not know
writesets: the generator computes them as the net effect of random transactions, the way capture
does, with hashes that may collide as often as the test likes.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from pgherd_sidecar.core.replication.merge import Item, Op, Plan, Statement
from pgherd_sidecar.core.replication.recordtext import join_record, split_record
from writeset_strategies import groups, key, texts

Row = tuple[str | None, ...]
Pk = tuple[str | None, ...]
Tables = dict[str, dict[Pk, Row]]

COLUMNS = 4
PK_COLUMNS = {"public.t": (0,), '"My S"."T"': (3, 1)}
UNIQUE_COLUMN = {"public.t": 1, '"My S"."T"': 0}
VALUES = ("1", "2", "", "a b", 'q"', "\\", "(,)", "é")


class DuplicateError(AssertionError):
    """A row has the key or the unique value of another one."""


@dataclass
class ModelColumns:
    """The columns of these tables, for the merge. Every one of them can be updated.

    Args:
        in_place: rows that move together are updated in place, too.
    """

    in_place: bool = False

    def key_columns(self, table: str) -> tuple[int, ...]:
        return PK_COLUMNS[table]

    def other_columns(self, table: str) -> str:
        return "".join("01"[column not in PK_COLUMNS[table]] for column in range(COLUMNS))

    def settable_columns(self, _table: str) -> str:
        return "1" * COLUMNS

    def together(self, _table: str) -> bool:
        return self.in_place


def pk_of(table: str, row: Row) -> Pk:
    return tuple(row[column] for column in PK_COLUMNS[table])


def payload_columns(table: str) -> list[int]:
    taken = {*PK_COLUMNS[table], UNIQUE_COLUMN[table]}
    return [column for column in range(COLUMNS) if column not in taken]


@dataclass
class NaiveDatabase:
    """Tables as dictionaries; every violation is an AssertionError."""

    tables: Tables = field(default_factory=lambda: {table: {} for table in PK_COLUMNS})

    def apply(self, plan: Plan, shuffle: Callable[[list[str]], None]) -> None:
        for wave in plan.waves:
            for statement in wave.statements:
                rows = texts(statement)
                if statement.op is Op.MOVE:
                    affected = self._move(statement.table, rows, shuffle)
                else:
                    shuffle(rows)
                    affected = self._execute(statement, rows)
                assert statement.expected_rows in (None, affected)

    def _execute(self, statement: Statement, records: list[str]) -> int:
        table, rows = statement.table, self.tables[statement.table]
        if statement.op is Op.TRUNCATE:
            rows.clear()
        affected = 0
        for record in records:
            new = tuple(split_record(record))
            pk = pk_of(table, new)
            if statement.op is Op.INSERT:
                self._insert(table, pk, new)
            elif statement.op is Op.PUT:
                old = rows.pop(pk, new)
                choice = zip(old, new, statement.bitmap, strict=True)
                self._insert(table, pk, tuple(n if bit == "1" else o for o, n, bit in choice))
            elif statement.op is Op.UPDATE and pk in rows:
                choice = zip(rows.pop(pk), new, statement.bitmap, strict=True)
                self._insert(table, pk, tuple(n if bit == "1" else o for o, n, bit in choice))
            elif rows.pop(pk, None) is None:
                continue
            affected += 1
        return affected

    def _move(self, table: str, records: list[str], shuffle: Callable[[list[str]], None]) -> int:
        pairs = dict(zip(records[::2], records[1::2], strict=True))
        order = list(pairs)
        shuffle(order)
        affected = 0
        for old in order:
            row = tuple(split_record(pairs[old]))
            if self.tables[table].pop(pk_of(table, tuple(split_record(old))), None) is not None:
                self._insert(table, pk_of(table, row), row)
                affected += 1
        return affected

    def _insert(self, table: str, pk: Pk, new: Row) -> None:
        rows, unique = self.tables[table], UNIQUE_COLUMN[table]
        if pk in rows:
            raise DuplicateError(f"duplicate key {pk} in {table}")
        values = [row[unique] for row in rows.values() if row[unique] is not None]
        if new[unique] in values:
            raise DuplicateError(f"duplicate value {new[unique]} in {table}")
        rows[pk] = new


@dataclass
class History:
    """Random transactions on a growing database, as writesets.

    Args:
        random: source of all choices.
        hashes: number of different key hashes; few make rows collide.
    """

    random: Random
    hashes: int
    tables: Tables = field(default_factory=lambda: {table: {} for table in PK_COLUMNS})

    def transaction(self) -> tuple["array[int]", list[Item]]:
        """Run one transaction; return its certification keys and its body."""
        before = {table: dict(rows) for table, rows in self.tables.items()}
        truncated = set()
        for _ in range(self.random.choice([1, 1, 1, 2, 4])):
            table = self.random.choice(list(PK_COLUMNS))
            if self._change(table):
                truncated.add(table)
                before[table] = {}
        items: list[Item] = []
        keys: set[int] = set()
        for table in PK_COLUMNS:
            keys.add(self._key(0, "table", table))
            if table in truncated:
                items.append((table, [0], ["T"]))
                keys.add(self._key(3, "table", table))
            self._net_effect(table, before[table], items, keys)
        return groups((0, self.random.sample(sorted(keys), len(keys)))), items

    def _key(self, mode: int, *identity: object) -> int:
        return key(Random(repr(identity)).randrange(self.hashes) - self.hashes // 2, mode)

    def _change(self, table: str) -> bool:
        """Do one random statement; say whether it was a TRUNCATE."""
        rows, random = self.tables[table], self.random
        unique = UNIQUE_COLUMN[table]
        kind = random.choice("IIIUUUUUUDDMSKT" if random.random() < 0.2 else "IIUUUUDMSK")
        if kind == "I":
            self._try_put(table, None, tuple(random.choice(VALUES) for _ in range(COLUMNS)))
        elif kind == "T":
            rows.clear()
        elif rows:
            pk = random.choice(list(rows))
            row = list(rows[pk])
            if kind == "D":
                del rows[pk]
            elif kind == "U":
                row[random.choice(payload_columns(table))] = random.choice((None, *VALUES))
                rows[pk] = tuple(row)
            elif kind == "M":
                row[unique] = random.choice((None, *VALUES))
                self._try_put(table, pk, tuple(row))
            elif kind == "K":
                row[random.choice(PK_COLUMNS[table])] = random.choice(VALUES)
                self._try_put(table, pk, tuple(row))
            else:
                self._swap(table, pk, random.choice(list(rows)))
        return kind == "T"

    def _try_put(self, table: str, old_pk: Pk | None, new: Row) -> None:
        rows, unique = self.tables[table], UNIQUE_COLUMN[table]
        others = {pk: row for pk, row in rows.items() if pk != old_pk}
        taken = {row[unique] for row in others.values() if row[unique] is not None}
        if pk_of(table, new) not in others and new[unique] not in taken:
            others[pk_of(table, new)] = new
            self.tables[table] = others

    def _swap(self, table: str, one: Pk, other: Pk) -> None:
        rows, unique = self.tables[table], UNIQUE_COLUMN[table]
        first, second = list(rows[one]), list(rows[other])
        first[unique], second[unique] = second[unique], first[unique]
        rows[one], rows[other] = tuple(first), tuple(second)

    def _net_effect(
        self, table: str, before: dict[Pk, Row], items: list[Item], keys: set[int]
    ) -> None:
        after, unique = self.tables[table], UNIQUE_COLUMN[table]
        records: list[tuple[int, str]] = []
        for pk in {**before, **after}:
            old, new = before.get(pk), after.get(pk)
            if old == new:
                continue
            pk_key = self._key(0, table, pk)
            if old and new and old[unique] == new[unique] and self.random.random() < 0.9:
                keys.add(pk_key | 2)
                records.append((pk_key, self._update(table, old, new)))
                continue
            keys.add(pk_key | 3)
            values = {row[unique] for row in (old, new) if row} - {None}
            keys |= {self._key(3, table, unique, value) for value in values}
            records += [(pk_key, record) for record in self._replace(table, old, new)]
        self.random.shuffle(records)
        if records:
            items.append((table, [pk_key for pk_key, _ in records], [rec for _, rec in records]))

    def _update(self, table: str, old: Row, new: Row) -> str:
        changed = [o != n for o, n in zip(old, new, strict=True)]
        sent = [changed[c] or c in PK_COLUMNS[table] for c in range(COLUMNS)]
        fields = [value if send else None for value, send in zip(new, sent, strict=True)]
        return "U" + "".join("01"[bit] for bit in changed) + join_record(fields)

    def _replace(self, table: str, old: Row | None, new: Row | None) -> list[str]:
        """Delete and insert; now and then as final state, where deletes need not find a row."""
        final_state = self.random.random() < 0.1
        records = []
        gone = old or (new if final_state else None)
        if gone:
            fields = [v if c in PK_COLUMNS[table] else None for c, v in enumerate(gone)]
            records.append(("E" if final_state else "D") + join_record(fields))
        return [*records, "I" + join_record(new)] if new else records
