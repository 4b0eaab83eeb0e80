"""Merged apply plans: equal to applying one writeset at a time, and cheap where it matters."""

from array import array
from copy import deepcopy
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.core.replication.merge import (
    Item,
    Op,
    Plan,
    Statement,
    Wave,
    decode_body,
    decode_items,
    merge_writesets,
    slots,
)
from table_model import DuplicateError, History, ModelColumns, NaiveDatabase
from writeset_strategies import groups, key, texts

T = "public.t"
TABLE_KEY = key(1000, 0)


def merge(*writesets: tuple["array[int]", list[Item]]) -> Plan:
    return merge_writesets(writesets, ModelColumns())


def merge_in_place(*writesets: tuple["array[int]", list[Item]]) -> Plan:
    return merge_writesets(writesets, ModelColumns(in_place=True))


def rows(
    *records: str, pk: int = 1, keys: list[int] | None = None
) -> tuple["array[int]", list[Item]]:
    """A writeset of rows that all have the primary-key hash ``pk`` (and take more keys)."""
    modes = {2 if record[0] == "U" else 3 for record in records}
    taken = [TABLE_KEY, *(key(pk, mode) for mode in modes), *(keys or [])]
    return groups((0, taken)), [(T, [key(pk, 0)] * len(records), list(records))]


def waves(plan: Plan) -> list[list[tuple[str, list[str]]]]:
    return [
        [(statement.op.value + statement.bitmap, texts(statement)) for statement in wave.statements]
        for wave in plan.waves
    ]


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from([2, 7, 30, 2**40]))
@example(seed=0, transactions=300, hashes=2**40)
@example(seed=1, transactions=300, hashes=5)
def test_c10_a_merged_batch_equals_one_writeset_at_a_time(
    seed: int, transactions: int, hashes: int
) -> None:
    random = Random(seed)
    history = History(random, hashes)
    merged, one_by_one = NaiveDatabase(), NaiveDatabase()
    while transactions > 0:
        size = random.randint(1, 12)
        transactions -= size
        batch = [history.transaction() for _ in range(size)]
        merged.apply(merge(*batch), random.shuffle)
        for writeset in batch:
            one_by_one.apply(merge(writeset), random.shuffle)
        assert merged.tables == one_by_one.tables == history.tables


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([2, 7, 30, 2**40]))
def test_c10_a_batch_with_rows_that_move_in_place_equals_it_too_or_meets_a_unique_value(
    seed: int, size: int, hashes: int
) -> None:
    random = Random(seed)
    history = History(random, hashes)
    database = NaiveDatabase()
    for _ in range(12):
        batch = [history.transaction() for _ in range(size)]
        before = deepcopy(database.tables)
        try:
            database.apply(merge_writesets(batch, ModelColumns(in_place=True)), random.shuffle)
        except DuplicateError:
            database.tables = before
            database.apply(merge(*batch), random.shuffle)
        assert database.tables == history.tables


@given(st.integers(0, 2**32), st.sampled_from([2, 30, 2**40]))
def test_c10_one_writeset_is_one_wave(seed: int, hashes: int) -> None:
    history = History(Random(seed), hashes)
    for _ in range(5):
        assert len(merge(history.transaction()).waves) <= 1


def test_c10_a_unique_value_that_moves_between_rows_waits_for_the_next_wave() -> None:
    value = key(50, 3)  # two rows exchange the unique value 5 in two transactions
    first = rows("D(1,,,)", "I(1,6,,)", pk=1, keys=[value, key(60, 3)])
    second = rows("D(2,,,)", "I(2,5,,)", pk=2, keys=[key(70, 3), value])
    assert waves(merge(first, second)) == [
        [("U0111", ["(1,6,,)"])],
        [("U0111", ["(2,5,,)"])],
    ]


def test_c10_the_only_row_that_moves_is_updated_between_deletes_and_inserts() -> None:
    keys = groups((0, [TABLE_KEY, *(key(n, 3) for n in (1, 2, 3, 50, 60, 70))]))
    # row 2 gives 6 up, row 1 moves from 5 to 6, row 3 takes 5
    items = [(T, [4, 8, 4, 12], ["D(1,,,)", "D(2,,,)", "I(1,6,,)", "I(3,5,,)"])]
    apart = [
        (T, [8], ["D(2,,,)"]),
        (T, [4, 4], ["D(1,,,)", "I(1,6,,)"]),
        (T, [12], ["I(3,5,,)"]),
    ]
    for body in (items, apart):
        assert waves(merge((keys, body))) == [
            [("D", ["(2,,,)"]), ("U0111", ["(1,6,,)"]), ("I", ["(3,5,,)"])]
        ]


def test_c10_a_row_that_may_have_been_there_is_put() -> None:
    plan = merge(rows("E(1,,,)", "I(1,6,,)", keys=[key(60, 3)]), rows("U0001(1,,,c)"))
    assert waves(plan) == [[("P0111", ["(1,6,,)"])], [("U0001", ["(1,,,c)"])]]
    assert plan.waves[0].statements[0].expected_rows == 1


def test_c10_rows_that_move_together_are_updated_in_place() -> None:
    keys = groups((0, [TABLE_KEY, *(key(n, 3) for n in (1, 2, 3, 4, 50, 60, 70, 80))]))
    records = ["D(1,,,)", "D(3,,,)", "E(2,,,)", "I(1,6,,)", "I(2,8,,)", "I(4,7,,)", "I(3,9,,)"]
    items = [(T, [4, 12, 8, 4, 8, 16, 12], records)]
    assert waves(merge_writesets([(keys, items)], ModelColumns(in_place=True))) == [
        [("U0111", ["(1,6,,)", "(3,9,,)"]), ("P0111", ["(2,8,,)"]), ("I", ["(4,7,,)"])]
    ]


def test_c10_rows_that_may_take_each_others_values_are_deleted_and_inserted() -> None:
    keys = groups((0, [TABLE_KEY, *(key(n, 3) for n in (1, 2, 50, 60))]))
    items = [(T, [4, 8, 4, 8], ["D(1,,,)", "D(2,,,)", "I(1,6,,)", "I(2,5,,)"])]
    assert waves(merge((keys, items))) == [
        [("D", ["(1,,,)", "(2,,,)"]), ("I", ["(1,6,,)", "(2,5,,)"])]
    ]
    split = [(T, [4, 4], ["D(1,,,)", "I(1,6,,)"]), (T, [8, 8], ["D(2,,,)", "I(2,5,,)"])]
    assert [op for op, _ in waves(merge((keys, split)))[0]] == ["D", "I"]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]])
def test_c10_a_row_whose_primary_key_changes_is_moved_between_deletes_and_inserts(
    order: list[int],
) -> None:
    records = [("D(1,,,)", 4), ("I(2,5,,)", 8), ("D(3,,,)", 12)]
    keys = groups((0, [TABLE_KEY, *(key(n, 3) for n in (1, 2, 3))]))
    chosen = [records[place] for place in order]
    items = [(T, [pk for _, pk in chosen], [record for record, _ in chosen])]
    assert waves(merge_in_place((keys, items))) in (
        [[("D", ["(3,,,)"]), ("M1111", ["(1,,,)", "(2,5,,)"])]],
        [[("D", ["(1,,,)"]), ("M1111", ["(3,,,)", "(2,5,,)"])]],
    )


def test_c10_a_key_that_is_written_in_two_ways_is_moved() -> None:
    (statement,) = merge_in_place(rows("D(1,,,)", "I(1.0,6,,)")).waves[0].statements
    assert statement.op is Op.MOVE
    assert statement.expected_rows == 1


def test_c10_what_need_not_have_been_there_is_not_moved() -> None:
    keys = groups((0, [TABLE_KEY, key(1, 3), key(2, 3)]))
    plan = merge_in_place((keys, [(T, [4, 8], ["E(1,,,)", "I(2,5,,)"])]))
    assert [op for op, _ in waves(plan)[0]] == ["E", "I"]


def test_c10_a_row_is_updated_after_it_has_moved_and_taken_for_none_before() -> None:
    moved = groups((0, [TABLE_KEY, key(1, 3), key(2, 3)])), [(T, [4, 8], ["D(1,,,)", "I(2,5,,)"])]
    first, last = rows("U0001(1,,,c)", pk=1), rows("U0001(2,,,d)", pk=2)
    assert [[op for op, _ in wave] for wave in waves(merge_in_place(first, moved, last))] == [
        ["U0001"],
        ["M1111"],
        ["U0001"],
    ]


def test_c10_a_column_that_cannot_be_set_keeps_its_row_from_moving() -> None:
    class Fixed(ModelColumns):
        def settable_columns(self, _table: str) -> str:
            return "0111"

    table = '"My S"."T"'  # its key are the columns 3 and 1
    keys = groups((0, [TABLE_KEY, key(1, 3), key(2, 3)]))
    plan = merge_writesets(
        [(keys, [(table, [4, 8], ["D(,a,,1)", "I(x,a,,2)"])])], Fixed(in_place=True)
    )
    assert [op for op, _ in waves(plan)[0]] == ["M0111"]
    plan = merge_writesets([(keys, [(T, [4, 8], ["D(1,,,)", "I(2,,,)"])])], Fixed(in_place=True))
    assert [op for op, _ in waves(plan)[0]] == ["D", "I"]


def test_c10_a_row_of_a_table_that_is_kept_apart_does_not_move() -> None:
    keys = groups((0, [TABLE_KEY, key(1, 3), key(2, 3)]))
    plan = merge((keys, [(T, [4, 8], ["D(1,,,)", "I(2,5,,)"])]))
    assert [op for op, _ in waves(plan)[0]] == ["D", "I"]


def test_c10_a_row_that_moves_is_not_folded_into_its_earlier_update() -> None:
    # row 1 is updated, row 2 gives the value 6 up, row 1 takes it
    first = rows("U0010(1,,a,)", pk=1)
    second = rows("D(2,,,)", "I(2,7,,)", pk=2, keys=[key(60, 3), key(70, 3)])
    third = rows("D(1,,,)", "I(1,6,a,)", pk=1, keys=[key(50, 3), key(60, 3)])
    assert waves(merge(first, second, third)) == [
        [("U0010", ["(1,,a,)"]), ("U0111", ["(2,7,,)"])],
        [("U0111", ["(1,6,a,)"])],
    ]


def test_c10_an_update_is_folded_into_that_of_a_row_that_moved() -> None:
    plan = merge(rows("D(1,,,)", "I(1,6,a,b)", keys=[key(50, 3)]), rows("U0001(1,,,c)"))
    assert waves(plan) == [[("U0111", ["(1,6,a,c)"])]]


def test_c10_a_table_whose_rows_cannot_be_updated_whole_keeps_both() -> None:
    class Fixed(ModelColumns):
        def settable_columns(self, _table: str) -> str:
            return ""

    plan = merge_writesets([rows("D(1,,,)", "I(1,6,,)")], Fixed())
    assert [op for op, _ in waves(plan)[0]] == ["D", "I"]


def test_c10_an_insert_shares_the_wave_of_the_delete_before_it() -> None:
    plan = merge(rows("D(1,,,)"), rows("I(1,,a,)"))
    assert waves(plan) == [[("D", ["(1,,,)"]), ("I", ["(1,,a,)"])]]


def test_c10_a_delete_waits_for_the_insert_before_it() -> None:
    plan = merge(rows("I(1,,a,)"), rows("D(1,,,)"))
    assert waves(plan) == [[("I", ["(1,,a,)"])], [("D", ["(1,,,)"])]]


def test_c10_an_insert_waits_for_the_deletes_of_its_table_though_they_take_no_key_of_it() -> None:
    excluding = [key(500, 3)]  # as an exclusion constraint has it, for inserted rows only
    plan = merge(
        rows("I(1,,a,)", pk=1, keys=excluding),
        rows("D(1,,,)", pk=1),
        rows("I(2,,a,)", pk=2, keys=excluding),
    )
    first, second = [("I", ["(1,,a,)"])], [("D", ["(1,,,)"]), ("I", ["(2,,a,)"])]
    assert waves(plan) == [first, second]


def test_c10_inserts_under_one_coarse_key_share_a_wave() -> None:
    coarse = [key(500, 3)]
    plan = merge(rows("I(1,,,)", pk=1, keys=coarse), rows("I(2,,,)", pk=2, keys=coarse))
    assert waves(plan) == [[("I", ["(1,,,)", "(2,,,)"])]]


def test_c10_updates_of_a_hot_row_become_its_last_state() -> None:
    plan = merge(*(rows(f"U0010(1,,{value},)") for value in range(100)))
    assert waves(plan) == [[("U0010", ["(1,,99,)"])]]


def test_c10_updates_of_different_columns_of_a_row_are_joined() -> None:
    plan = merge(
        rows('U0010(1,,"a b",)'), rows("U0001(1,,,c)"), rows("U0010(1,,,)"), rows("U0001(1,,,d)")
    )
    assert waves(plan) == [[("U0011", ["(1,,,d)"])]]


def test_c10_an_update_that_set_no_column_writes_nothing_but_joins_one_that_does() -> None:
    assert waves(merge(rows("U0000(1,,,)"))) == [[]]
    plan = merge(rows("U0000(1,,,)"), rows("U0010(1,,a,)"))
    assert waves(plan) == [[("U0010", ["(1,,a,)"])]]


def test_c10_colliding_hashes_never_merge_two_rows() -> None:
    plan = merge(rows("U0010(1,,a,)"), rows("U0010(2,,b,)"), rows("U0010(1,,c,)"))
    assert waves(plan) == [
        [("U0010", ["(1,,a,)"])],
        [("U0010", ["(2,,b,)"])],
        [("U0010", ["(1,,c,)"])],
    ]


def test_c10_colliding_hashes_never_merge_rows_of_two_tables() -> None:
    one, other = (
        (groups((0, [key(1, 2)])), [(table, [key(1, 0)], ["U01(1,a)"])]) for table in ("t", "u")
    )

    class Narrow(ModelColumns):
        def key_columns(self, _table: str) -> tuple[int, ...]:
            return (0,)

    plan = merge_writesets([one, other], Narrow())
    assert [wave.statements[0].table for wave in plan.waves] == ["t", "u"]


def test_c10_an_update_is_not_folded_across_a_delete_of_its_row() -> None:
    plan = merge(rows("U0010(1,,a,)"), rows("D(1,,,)"), rows("I(1,,b,)"), rows("U0010(1,,c,)"))
    assert waves(plan) == [
        [("U0010", ["(1,,a,)"])],
        [("D", ["(1,,,)"]), ("I", ["(1,,b,)"])],
        [("U0010", ["(1,,c,)"])],
    ]


def test_c10_truncate_divides_a_batch() -> None:
    truncate = groups((0, [key(1000, 3)])), [(T, [0], ["T"])]
    plan = merge(rows("I(1,,a,)", pk=1), truncate, rows("I(2,,b,)", pk=2))
    assert waves(plan) == [[("I", ["(1,,a,)"])], [("T", []), ("I", ["(2,,b,)"])]]


def test_c10_the_plan_says_how_many_rows_each_statement_must_affect() -> None:
    plan = merge(rows("E(1,,,)"), rows("D(2,,,)", pk=2), rows("I(3,,a,)", pk=3))
    assert [(s.op, s.expected_rows) for s in plan.waves[0].statements] == [
        (Op.DELETE, 1),
        (Op.ERASE, None),
        (Op.INSERT, 1),
    ]


def test_independent_rows_of_many_writesets_make_one_statement() -> None:
    plan = merge(*(rows(f"U0010({n},,a,)", pk=n) for n in range(100)))
    assert plan.waves == [
        Wave([Statement(Op.UPDATE, T, "0010", [f"({n},,a,)" for n in range(100)])])
    ]


def test_columns_are_asked_for_only_where_rows_meet() -> None:
    class Forbidden:
        def key_columns(self, table: str) -> tuple[int, ...]:
            raise AssertionError(table)

        def other_columns(self, table: str) -> str:
            raise AssertionError(table)

        def settable_columns(self, table: str) -> str:
            raise AssertionError(table)

        def together(self, table: str) -> bool:
            raise AssertionError(table)

    writesets = [rows(f"U0010({n},,a,)", pk=n) for n in range(9)]
    merge_writesets([*writesets, rows("I(9,,,)", pk=9), rows("D(10,,,)", pk=10)], Forbidden())


def test_an_empty_batch_is_an_empty_plan() -> None:
    assert merge() == Plan([])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[[]]",
        b'[["t",[1],[]]]',
        b'[["t",[1,2],["I(1)"]]]',
        b'[["t",[1],[""]]]',
        b'[["t",[1.5],["I(1)"]]]',
        b'[["t",[1],["I(\xff)"]]]',
    ],
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(EntryFormatError):
        decode_body(body)


@pytest.mark.parametrize("record", ["X(1,,,)", "U0010", "U00x0(1,,,)", "Uabc(1,,,)"])
def test_a_malformed_row_is_refused(record: str) -> None:
    with pytest.raises(EntryFormatError):
        merge(rows(record))


@pytest.mark.parametrize("record", ["U0010(1", 'U0010("1)', "U01(1,,,)"])
def test_a_malformed_second_update_is_refused(record: str) -> None:
    with pytest.raises(EntryFormatError):
        merge(rows("U0010(1,,a,)"), rows(record))


def test_a_fingerprint_is_no_row() -> None:
    body = b'[["public.t",[-8],["I(1)"]],["=",[0],["[1,[\\"public.t\\",[7]]]"]]]'
    row = ("public.t", [-8], ["I(1)"])
    assert decode_body(body) == [row]
    assert decode_items(body) == [row, ("=", [0], ['[1,["public.t",[7]]]'])]


def test_a_key_is_guarded_in_every_mode_and_group() -> None:
    assert slots(array("q", [5, 2, 8 | 3, 12, 6, 0, 7, 1, -16 | 2])) == {8, 12, -16}


def test_bodies_are_decoded() -> None:
    assert decode_body(b'[["public.t",[-8],["I(1,\\"a b\\")"]]]') == [
        ("public.t", [-8], ['I(1,"a b")'])
    ]
