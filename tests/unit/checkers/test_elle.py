"""Each anomaly that the lists alone give away, in the smallest history that has it."""

import pytest
from checkers.anomalies import Kind, report, violations
from checkers.elle import check
from checkers.history import Order
from toy_database import ToyDatabase
from written_histories import history

BAD = {
    "write cycle": (
        {Kind.G0},
        """1 n1/1 @3 w x 1; w y 2
           2 n2/2 @4 w x 3; w y 4
           3 n1/3 - l x 1,3; l y 4,2""",
    ),
    "appends of two transactions mixed in one list": (
        {Kind.G0},
        """1 n1/1 @3 w x 1; w x 3
           2 n2/2 @4 w x 2
           3 n1/3 - l x 1,2,3""",
    ),
    "an aborted append": (
        {Kind.G1A},
        """1 n1/1 ! w x 1
           2 n2/2 - l x 1""",
    ),
    "half of a transaction's appends": (
        {Kind.G1B},
        """1 n1/1 @3 w x 1; w x 2
           2 n2/2 - l x 1""",
    ),
    "two transactions that read each other": (
        {Kind.G1C},
        """1 n1/1 @3 w x 1; l y 2
           2 n2/2 @4 w y 2; l x 1""",
    ),
    "a write that is overtaken by what depends on it": (
        {Kind.G1C},
        """1 n1/1 @3 w x 1; w y 2
           2 n2/2 @4 l y 2; w x 3
           3 n1/3 - l x 3,1""",
    ),
    "read skew": (
        {Kind.G_SINGLE},
        """1 n1/1 @3 w x 1; w y 2
           2 n2/2 - l x 1; l y _
           3 n1/3 - l x 1; l y 2""",
    ),
    "long fork": (
        {Kind.G_NONADJACENT},
        """1 n1/1 @3 w x 1
           2 n2/2 @4 w y 2
           3 n1/3 - l x 1; l y _
           4 n2/4 - l x _; l y 2
           5 n1/5 - l x 1; l y 2""",
    ),
    "lost update": (
        {Kind.LOST_UPDATE, Kind.G_SINGLE},
        """1 n1/1 @3 l x _; w x 1
           2 n2/2 @4 l x _; w x 2
           3 n1/3 - l x 1,2""",
    ),
    "an own append that is not seen": (
        {Kind.INTERNAL},
        "1 n1/1 @3 w x 1; l x _",
    ),
    "one element twice": (
        {Kind.DUPLICATE},
        """1 n1/1 @3 w x 1
           2 n2/2 - l x 1,1""",
    ),
    "an element from nowhere": (
        {Kind.GARBAGE},
        """1 n1/1 @3 w x 1
           2 n2/2 - l x 1,7""",
    ),
    "two orders of one list": (
        {Kind.INCOMPATIBLE_ORDER},
        """1 n1/1 @3 w x 1
           2 n2/2 @4 w x 2
           3 n1/3 - l x 1,2
           4 n2/4 - l x 2,1""",
    ),
}  # fmt: skip

SKEWED = """
    1 n1/1 @3 l x _; l y _; w x 1
    2 n2/2 @4 l x _; l y _; w y 2
    3 n1/3 - l x 1; l y 2"""


def kinds(text: str, order: Order = Order.NONE, *, log: bool = False) -> set[Kind]:
    return {anomaly.kind for anomaly in check(history(text), order, log=log)}


@pytest.mark.parametrize(("expected", "text"), BAD.values(), ids=BAD)
def test_names(expected: set[Kind], text: str) -> None:
    assert kinds(text) == expected, report(history(text), check(history(text)))


def test_write_skew_is_named_and_is_no_violation() -> None:
    assert kinds(SKEWED) == {Kind.WRITE_SKEW}
    assert violations(check(history(SKEWED), Order.SESSION, log=True)) == []


def test_write_skew_beside_a_violation_does_not_hide_it() -> None:
    assert kinds(SKEWED + "\n4 n1/4 @5 w z 3\n5 n1/5 - l z _; l z 3") == {
        Kind.WRITE_SKEW,
        Kind.G_SINGLE,
    }


def test_an_unknown_outcome_counts_if_anybody_has_seen_it() -> None:
    assert kinds("1 n1/1 ? w x 1\n2 n2/2 - l x 1") == set()
    assert kinds("1 n1/1 ? w x 1; l y 9\n2 n2/2 - l x _") == set()


BACKWARDS = """
    1 n1/1 @3 w x 1
    2 n2/{reader} - l x 1
    3 n2/{reader} - l x _"""


def test_a_session_that_goes_back_is_found_only_if_sessions_count() -> None:
    assert kinds(BACKWARDS.format(reader=2)) == set()
    assert kinds(BACKWARDS.format(reader=2), Order.SESSION) == {Kind.G_SINGLE}


def test_a_stale_read_is_found_only_in_real_time() -> None:
    stale = "1 n1/1 @3 w x 1\n2 n2/2 - l x _\n3 n1/3 - l x 1"
    assert kinds(stale, Order.NODE) == set()
    assert kinds(stale, Order.HERD) == {Kind.G_SINGLE}


def test_what_is_no_prefix_of_the_log_is_found_only_with_the_log() -> None:
    """Without it any order of the two writers is as good."""
    no_prefix = "1 n1/1 @3 w x 1\n2 n2/2 @4 w y 2\n3 n1/3 - l x _; l y 2\n4 n1/4 - l x 1; l y 2"
    assert kinds(no_prefix) == set()
    assert kinds(no_prefix, log=True) == {Kind.G_SINGLE}


def test_a_cycle_is_told_with_its_rows() -> None:
    (anomaly,) = check(history(BAD["two transactions that read each other"][1]))
    assert "T1 -wr x/0 1-> T2" in anomaly.story and "T2 -wr y/0 2-> T1" in anomaly.story


def test_a_thousand_transactions_of_a_good_database_are_good() -> None:
    good = ToyDatabase(1, length=1000).history()
    assert violations(check(good, Order.NODE, log=True)) == []
