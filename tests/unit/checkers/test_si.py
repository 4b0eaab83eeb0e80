"""Each anomaly that the checker with the known order names, in the smallest history that has it."""

from dataclasses import replace

import pytest
from checkers.anomalies import Kind, report
from checkers.history import History, Key, Order
from checkers.si import check, check_final, staleness
from toy_database import ToyDatabase
from written_histories import history

BAD = {
    "an acknowledged commit that the log does not have": (
        Kind.LOST_COMMIT,
        "1 n1/1 - w x 1",
    ),
    "a commit that was reported as aborted": (
        Kind.UNDEAD,
        "1 n1/1 !@3 w x 1",
    ),
    "two transactions at one place": (
        Kind.TWO_AT_ONE_GID,
        """1 n1/1 @3 w x 1
           2 n2/2 @3 w y 2""",
    ),
    "one value written twice": (
        Kind.DUPLICATE,
        """1 n1/1 @3 w x 1
           2 n2/2 @4 w y 1""",
    ),
    "a value from nowhere": (
        Kind.GARBAGE,
        """1 n1/1 @3 w x 1
           2 n2/2 - r x 7""",
    ),
    "a value of another row": (
        Kind.GARBAGE,
        """1 n1/1 @3 w x 1
           2 n2/2 - r y 1""",
    ),
    "a value of an aborted transaction": (
        Kind.G1A,
        """1 n1/1 ! w x 1
           2 n2/2 - r x 1""",
    ),
    "a value that its writer replaced itself": (
        Kind.G1B,
        """1 n1/1 @3 w x 1; w x 2
           2 n2/2 - r x 1""",
    ),
    "an own write that is not seen": (
        Kind.INTERNAL,
        "1 n1/1 @3 w x 1; r x _",
    ),
    "an own append that is not seen": (
        Kind.INTERNAL,
        "1 n1/1 @3 w x 1; l x _",
    ),
    "a list in another order than the log's": (
        Kind.INCOMPATIBLE_ORDER,
        """1 n1/1 @3 w x 1
           2 n2/2 @4 w x 2
           3 n1/3 - l x 2,1""",
    ),
    "a row that changes under a reader": (
        Kind.NON_REPEATABLE_READ,
        """1 n1/1 @3 w x 1
           2 n2/2 - r x _; r x 1""",
    ),
    "half of a transaction": (
        Kind.FRACTURED_READ,
        """1 n1/1 @3 w x 1; w y 2
           2 n2/2 - r x 1; r y _""",
    ),
    "the second of two transactions without the first": (
        Kind.READ_SKEW,
        """1 n1/1 @3 w x 1
           2 n2/2 @4 w y 2
           3 n1/3 - r x _; r y 2""",
    ),
    "a long fork: one of the two readers must be wrong": (
        Kind.READ_SKEW,
        """1 n1/1 @3 w x 1
           2 n2/2 @4 w y 2
           3 n1/3 - r x 1; r y _
           4 n2/4 - r x _; r y 2""",
    ),
    "a row that a scan should have found": (
        Kind.PHANTOM,
        """1 n1/1 @3 w t1 1
           2 n2/2 @4 w t2 2
           3 n1/3 - scan t 2=2""",
    ),
    "a row that a scan missed and a later read knows": (
        Kind.PHANTOM,
        """1 n1/1 @3 w t1 1
           2 n1/2 @4 w x 2
           3 n1/3 - scan t _; r x 2""",
    ),
    "a counter written over a version that was not read": (
        Kind.LOST_UPDATE,
        """1 n1/1 @3 w x 1
           2 n1/1 @4 r x 1; w x 2
           3 n2/2 @5 r x 1; w x 3""",
    ),
    "a row written over while another was read from before": (
        Kind.LOST_UPDATE,
        """1 n1/1 @3 w x 1; w y 2
           2 n2/2 @5 r y _; w x 3""",
    ),
    "a read of what is ordered later": (
        Kind.FUTURE_READ,
        """1 n1/1 @5 w x 1
           2 n2/2 @4 r x 1; w y 2""",
    ),
    "an own commit that the next transaction does not see": (
        Kind.NOT_READ_YOUR_WRITES,
        """1 n1/1 @3 w x 1
           2 n1/1 - r x _""",
    ),
    "a session that goes back": (
        Kind.NOT_MONOTONIC,
        """1 n1/1 @3 w x 1
           2 n2/2 - r x 1
           3 n2/2 - r x _""",
    ),
    "a session whose second commit is ordered before its first": (
        Kind.COMMIT_ORDER,
        """1 n1/1 @5 w x 1
           2 n1/1 @4 w y 2""",
    ),
    "a node that said it was further than what it showed": (
        Kind.POSITION,
        """1 n1/1 @3 w x 1
           2 n2/2 - at=3 r x _""",
    ),
    "a node that showed more than it said it had": (
        Kind.POSITION,
        """1 n1/1 @3 w x 1
           2 n2/2 - at=2 r x 1""",
    ),
}  # fmt: skip

GOOD = {
    "write skew": """
        1 n1/1 @3 w x 1; w y 2
        2 n1/2 @4 r x 1; r y 2; w x 3
        3 n2/3 @5 r x 1; r y 2; w y 4""",
    "a reader that lags on another node": """
        1 n1/1 @3 w x 1
        2 n2/2 - r x _""",
    "an outcome that the client never heard, committed": """
        1 n1/1 ?@3 w x 1
        2 n2/2 - r x 1""",
    "an outcome that the client never heard, not committed": """
        1 n1/1 ? w x 1
        2 n2/2 - r x _""",
    "rows appearing between two scans of two transactions": """
        1 n1/1 @3 w t1 1
        2 n1/2 - at=3 scan t 1=1
        3 n1/1 @4 w t2 2
        4 n1/2 - at=4 scan t 1=1,2=2""",
    "appends to one list, each seeing the others": """
        1 n1/1 @3 w x 1; l x 1
        2 n2/2 @7 l x 1; w x 2; w x 3
        3 n1/1 - l x 1,2,3""",
}


@pytest.mark.parametrize(("kind", "text"), BAD.values(), ids=BAD)
def test_names(kind: Kind, text: str) -> None:
    found = check(history(text))
    assert [anomaly.kind for anomaly in found] == [kind], report(history(text), found)


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_accepts(text: str) -> None:
    assert check(history(text)) == []


LAGGING = """
    1 n1/1 @3 w x 1
    2 {node}/2 - r x _"""


@pytest.mark.parametrize(
    ("node", "order", "stale"),
    [
        ("n1", Order.SESSION, False),
        ("n1", Order.NODE, True),
        ("n2", Order.NODE, False),
        ("n2", Order.HERD, True),
        ("n2", Order.NONE, False),
    ],
)
def test_stale_is_what_the_mode_promises_to_be_fresh(node: str, order: Order, stale: bool) -> None:
    found = check(history(LAGGING.format(node=node)), order)
    assert [anomaly.kind for anomaly in found] == [Kind.STALE_READ] * stale


def test_what_overlaps_in_time_is_not_stale() -> None:
    overlapping = history("1 n1/1 @3 w x 1\n2 n1/2 - r x _")
    first, second = overlapping.transactions
    slow = replace(first, returned=100)
    assert check(History((slow, second), overlapping.gids), Order.NODE) == []


def test_the_smallest_snapshots_are_chosen_so_that_no_good_session_is_refused() -> None:
    # The first read fits to GID 0 up to 8, the second only up to 4.
    good = history("1 n1/1 @5 w x 1\n2 n1/2 @9 w y 2\n3 n2/3 - r y _\n4 n2/3 - r x _")
    assert check(good) == []


def test_a_final_state_is_the_replay_of_the_log() -> None:
    good = history("1 n1/1 @3 w x 1; w y 2\n2 n2/2 @4 r x 1; w x 3\n3 n2/3 ! w y 4")
    x, y = ("x", 0), ("y", 0)
    assert check_final(good, {"n1": {x: 3, y: 2}}) == []
    assert check_final(good, {"n1": {x: (1, 3), y: (2,)}}) == []
    wrongs: list[dict[Key, int | tuple[int, ...]]] = [
        {x: 1, y: 2},
        {x: 3},
        {x: 3, y: 4},
        {x: (3,), y: 2},
        {x: (3, 1), y: (2,)},
    ]
    for wrong in wrongs:
        found = check_final(good, {"n1": {x: 3, y: 2}, "n2": wrong})
        assert [anomaly.kind for anomaly in found] == [Kind.FINAL_STATE]
        assert found[0].story.startswith("n2: ")


def test_a_report_shows_the_operations_that_clash() -> None:
    bad = history("1 n1/1 @3 w x 1\n2 n1/2 @4 r x 1; w x 2\n3 n2/3 @5 r x 1; w x 3")
    assert report(bad, check(bad)) == (
        "1 anomalies in 3 transactions\n"
        "LOST_UPDATE (a row was written over a version that the writer had not seen): it wrote x/0"
        " over the version of T2 (snapshot >= 4), but it read x/0 of T1, which T2 replaced"
        " (snapshot <= 3.0)\n"
        "    GID 5: T3 (n2, session 3, ok): read x/0 = 1; write x/0 3\n"
        "    GID 4: T2 (n1, session 2, ok): read x/0 = 1; write x/0 2"
    )


def test_staleness_counts_what_was_acknowledged_anywhere_before() -> None:
    lagging = history(
        "1 n1/1 @3 w x 1\n2 n2/2 - at=1 r x _\n3 n1/1 - at=3 r x 1\n4 n2/2 - at=9 r x 1"
    )
    assert staleness(lagging) == [0, 0, 2]


def test_a_thousand_transactions_of_a_good_database_are_good() -> None:
    assert check(ToyDatabase(1, length=1000).history(), Order.NODE) == []
