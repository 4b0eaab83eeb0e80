"""Merged apply plans of tables without identity: as many of equal rows as the origins left."""

from array import array
from collections import Counter
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pgherd_sidecar.core.replication.merge import Item, Op, Plan, merge_writesets
from writeset_strategies import groups, key, texts

BAG, KEYED = "public.bag", "public.t"
IMAGES = ("(1,)", "(2,)", "(,)", '(1,"a b")')
TABLE_KEYS = {BAG: key(1000, 0), KEYED: key(1001, 0)}


class Bags:
    """A table of rows that may be equal, and one with a key that is its only column."""

    def __init__(self) -> None:
        self.tables: dict[str, Counter[str]] = {BAG: Counter(), KEYED: Counter()}

    def apply(self, plan: Plan) -> None:
        """Execute a plan; every row that is to be taken away must be there."""
        for wave in plan.waves:
            for statement in wave.statements:
                rows = self.tables[statement.table]
                match statement.op:
                    case Op.TRUNCATE:
                        rows.clear()
                    case Op.DELETE:
                        rows.subtract(texts(statement))
                    case Op.INSERT:
                        rows.update(texts(statement))
                    case Op.REPLACE:
                        rows.subtract(texts(statement)[::2])
                        assert all(count >= 0 for count in rows.values()), statement
                        rows.update(texts(statement)[1::2])
                    case _:
                        raise AssertionError(statement)
                assert all(count >= 0 for count in rows.values()), statement
                assert statement.table == BAG or max(rows.values(), default=0) < 2, statement

    def content(self) -> dict[str, Counter[str]]:
        return {table: +rows for table, rows in self.tables.items()}


class History:
    """Random transactions as they are captured: the net effect of each, and keys by image.

    Args:
        random: source of all choices.
        hashes: number of different key hashes; few make images collide.
    """

    def __init__(self, random: Random, hashes: int) -> None:
        self.random = random
        self.hashes = hashes
        self.state = Bags()

    def transaction(self) -> tuple["array[int]", list[Item]]:
        random, items, keys = self.random, list[Item](), set[int]()
        for table, rows in self.state.tables.items():
            truncated = random.random() < 0.03
            if truncated:
                rows.clear()
                items.append((table, [0], ["T"]))
                keys.add(TABLE_KEYS[table] | 3)
            before = Counter(rows)
            for _ in range(random.choice([0, 1, 1, 2, 5])):
                self._change(table, rows, keys)
            keys.add(TABLE_KEYS[table])
            gone, made = list((before - rows).elements()), list((rows - before).elements())
            random.shuffle(gone)
            random.shuffle(made)
            pairs = random.randint(0, min(len(gone), len(made))) if table == BAG else 0
            parts = [[f"R{gone.pop()}", f"I{made.pop()}"] for _ in range(pairs)]
            parts += [[f"D{image}"] for image in gone] + [[f"I{image}"] for image in made]
            random.shuffle(parts)
            records = [record for part in parts for record in part]
            if records:
                hashes = [self._key(table, record[1:]) for record in records]
                items.append((table, hashes, records))
        return groups((0, sorted(keys))), items

    def _change(self, table: str, rows: Counter[str], keys: set[int]) -> None:
        """Insert, delete or update one row."""
        kind = self.random.choice("IDU" if table == BAG else "ID")
        if kind in "DU" and (+rows):
            gone = self.random.choice(list((+rows).elements()))
            rows[gone] -= 1
            keys.add(self._key(table, gone) | 3)
        elif kind != "I":
            return
        made = self.random.choice(IMAGES)
        if kind == "D" or (table == KEYED and rows[made] > 0):
            return
        rows[made] += 1
        if table == KEYED:
            keys.add(self._key(table, made) | 3)

    def _key(self, table: str, image: str) -> int:
        return key(Random(repr((table, image))).randrange(self.hashes) - self.hashes // 2, 0)


class NoIdentity:
    """Columns of tables whose rows have no identity: merging may not ask for a key."""

    def key_columns(self, table: str) -> list[int]:
        raise AssertionError(f"nothing is updated in {table}")

    def other_columns(self, table: str) -> str:
        raise AssertionError(f"nothing is updated in {table}")

    def settable_columns(self, _table: str) -> str:
        return ""

    def together(self, table: str) -> bool:
        raise AssertionError(f"nothing is updated in {table}")


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from([2, 7, 2**40]))
@example(seed=0, transactions=300, hashes=2**40)
@example(seed=1, transactions=300, hashes=3)
def test_a_merged_batch_leaves_as_many_of_equal_rows_as_one_writeset_at_a_time(
    seed: int, transactions: int, hashes: int
) -> None:
    random = Random(seed)
    history, merged, one_by_one = History(random, hashes), Bags(), Bags()
    while transactions > 0:
        size = random.randint(1, 12)
        transactions -= size
        batch = [history.transaction() for _ in range(size)]
        merged.apply(merge_writesets(batch, NoIdentity()))
        for writeset in batch:
            one_by_one.apply(merge_writesets([writeset], NoIdentity()))
        assert merged.content() == one_by_one.content() == history.state.content()


def test_inserts_of_equal_rows_share_a_statement() -> None:
    insert = groups((0, [TABLE_KEYS[BAG]])), [(BAG, [key(1, 0)], ["I(1,)"])]
    (wave,) = merge_writesets([insert, insert, insert], NoIdentity()).waves
    (statement,) = wave.statements
    assert statement.records == ["(1,)"] * 3


def test_a_delete_waits_for_an_insert_that_took_no_key() -> None:
    insert = groups((0, [TABLE_KEYS[BAG]])), [(BAG, [key(1, 0)], ["I(1,)"])]
    delete = groups((0, [TABLE_KEYS[BAG], key(1, 3)])), [(BAG, [key(1, 0)], ["D(1,)"])]
    plan = merge_writesets([insert, delete, insert], NoIdentity())
    waves = [[s.op for s in wave.statements] for wave in plan.waves]
    assert waves == [[Op.INSERT], [Op.DELETE, Op.INSERT]]
