"""Joined changes give what the changes give one by one: a naive table is the twin."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.tables.folding import (
    Emptied,
    Folding,
    FoldingError,
    Net,
    RowChange,
    Step,
    alike,
)
from pgherd_sidecar.tables.values import UNCHANGED, Row, Value

Rows = dict[tuple[Value, ...], list[Value]]


def apply_one_by_one(rows: Rows, steps: list[Step]) -> None:
    for step in steps:
        if isinstance(step, Emptied):
            rows.clear()
        elif step.old is None:
            assert step.new is not None
            rows[(step.new[0],)] = list(step.new)
        elif step.new is None:
            del rows[step.old]
        else:
            update(rows, [(step.old, step.new)])


def update(rows: Rows, updates: list[tuple[tuple[Value, ...], Row]]) -> None:
    """All at once, as one UPDATE does."""
    moved = []
    for old, new in updates:
        values = rows.pop(old)
        for at, value in enumerate(new):
            if value is not UNCHANGED:
                values[at] = value
        moved.append(values)
    for values in moved:
        assert (values[0],) not in rows
        rows[(values[0],)] = values


def apply_joined(rows: Rows, net: Net) -> None:
    if net.emptied:
        rows.clear()
    for key in net.deletes:
        del rows[key]
    for key, row in net.replaced:
        assert key in rows or net.emptied
        rows[key] = list(row)
    update(rows, net.updates)
    for row in net.inserts:
        assert (row[0],) not in rows
        rows[(row[0],)] = list(row)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Rows, list[Step]]:
    """What a source could have sent of a table with a key, a value and a large value."""
    keys = [str(number) for number in range(6)]
    first: Rows = {(key,): [key, "first", "large"] for key in draw(st.sets(st.sampled_from(keys)))}
    rows = {key: list(values) for key, values in first.items()}
    steps: list[Step] = []
    for number in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from("iuuudt"))
        free = sorted(set(keys) - {str(key[0]) for key in rows})
        step: Step
        if kind == "i" and free:
            step = RowChange(
                "t", None, (draw(st.sampled_from(free)), str(number), f"large {number}")
            )
        elif kind == "t" and draw(st.booleans()):
            step = Emptied(("t",))
        elif rows:
            old = draw(st.sampled_from(sorted(rows, key=str)))
            new_key = draw(st.sampled_from([str(old[0]), *free]))
            known: list[Value] = [UNCHANGED, f"large {number}"]
            large = draw(st.sampled_from(known))
            step = RowChange("t", old, None if kind == "d" else (new_key, str(number), large))
        else:
            continue
        steps.append(step)
        apply_one_by_one(rows, [step])
    return first, steps


@given(histories())
def test_joined_changes_give_the_same_rows(history: tuple[Rows, list[Step]]) -> None:
    first, steps = history
    expected = {key: list(values) for key, values in first.items()}
    apply_one_by_one(expected, steps)
    folding = Folding({"t": (0,)})
    for step in steps:
        folding.add(step)
    found = {key: list(values) for key, values in first.items()}
    for net in folding.result().values():
        apply_joined(found, net)
    assert found == expected


def test_a_row_that_comes_and_goes_is_nowhere() -> None:
    folding = Folding({"t": (0,)})
    folding.add(RowChange("t", None, ("1", "a")))
    folding.add(RowChange("t", ("1",), ("2", UNCHANGED)))
    folding.add(RowChange("t", ("2",), None))
    assert folding.result() == {"t": Net()}


def test_what_was_before_an_emptied_table_is_forgotten() -> None:
    folding = Folding({"t": (0,), "u": (0,)})
    folding.add(RowChange("t", ("1",), ("1", "a")))
    folding.add(RowChange("u", ("1",), None))
    folding.add(Emptied(("t",)))
    folding.add(RowChange("t", None, ("1", "b")))
    assert folding.result() == {
        "t": Net(emptied=True, inserts=[("1", "b")]),
        "u": Net(deletes=[("1",)]),
    }


def test_a_row_that_is_deleted_and_inserted_again_is_replaced() -> None:
    folding = Folding({"t": (0,)})
    folding.add(RowChange("t", ("1",), None))
    folding.add(RowChange("t", ("2",), None))
    folding.add(RowChange("t", None, ("1", "a")))
    assert folding.result() == {"t": Net(deletes=[("2",)], replaced=[(("1",), ("1", "a"))])}


@given(st.lists(st.tuples(*[st.sampled_from([None, ("a",), ("b",), ("c",)])] * 2)))
def test_equal_rows_without_a_key_are_counted(
    changes: list[tuple[Row | None, Row | None]],
) -> None:
    folding = Folding({"t": ()})
    folding.add(Emptied(("t",)))
    rows: Counter[Row] = Counter()
    for old, new in changes:
        if old is None or rows[old]:
            folding.add(RowChange("t", old, new))
            rows.subtract([old] if old else [])
            rows.update([new] if new else [])
    net = folding.result()["t"]
    assert (net.emptied, net.deletes, net.updates) == (True, [], [])
    assert Counter(net.inserts) == +rows


def test_as_many_of_equal_rows_go_as_the_source_has_deleted() -> None:
    folding = Folding({"t": ()})
    for change in (("a",), None), (("a",), ("b",)), (("b",), None), (None, ("c",)):
        folding.add(RowChange("t", *change))
    assert folding.result() == {"t": Net(deletes=[("a",), ("a",)], inserts=[("c",)])}


def test_two_rows_with_one_key_are_refused() -> None:
    folding = Folding({"t": (0,)})
    folding.add(RowChange("t", None, ("1",)))
    with pytest.raises(FoldingError):
        folding.add(RowChange("t", None, ("1",)))
    with pytest.raises(FoldingError):
        folding.add(RowChange("t", ("2",), ("1",)))


def test_a_new_row_of_which_a_part_is_missing_is_refused() -> None:
    with pytest.raises(FoldingError):
        Folding({"t": (0,)}).add(RowChange("t", None, ("1", UNCHANGED)))


def test_updates_are_sorted_by_what_they_tell() -> None:
    updates: list[tuple[tuple[Value, ...], Row]] = [
        (("1",), ("11", UNCHANGED)), (("2",), ("12", "x")), (("3",), ("13", UNCHANGED)),
    ]  # fmt: skip
    assert dict(alike(updates, (0,))) == {(0,): [0, 2], (0, 1): [1]}


def test_a_key_that_stays_is_set_only_where_nothing_else_is() -> None:
    updates: list[tuple[tuple[Value, ...], Row]] = [
        (("1",), ("1", "x")), (("2",), ("3", "x")), (("4",), ("4", UNCHANGED)),
    ]  # fmt: skip
    assert dict(alike(updates, (0,))) == {(1,): [0], (0, 1): [1], (0,): [2]}
