"""Two checkers that share no method judge the same histories, and must agree on every one."""

from dataclasses import replace

import pytest
from checkers import elle, si
from checkers.anomalies import report, violations
from checkers.history import History, Order
from toy_database import ToyDatabase, spoilt

PORTIONS = 10
HISTORIES = 10_000


def seeds(portion: int) -> range:
    return range(portion, HISTORIES, PORTIONS)


def blind(history: History) -> History:
    """Without the positions of the nodes, which only one of the checkers can use."""
    return History(tuple(replace(t, position=None) for t in history.transactions), history.gids)


def assert_agreement(seed: int, history: History, order: Order) -> bool:
    """Return whether both find the history good."""
    one = si.check(history, order)
    other = violations(elle.check(history, order, log=True))
    if bool(one) != bool(other):
        raise AssertionError(f"seed {seed}\n{report(history, one)}\n{report(history, other)}")
    return not one


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_good_histories_are_good_to_both(portion: int) -> None:
    for seed in seeds(portion):
        assert assert_agreement(seed, ToyDatabase(seed).history(), Order.NODE), f"seed {seed}"


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_of_spoilt_histories_both_find_the_same_ones_bad(portion: int) -> None:
    orders = list(Order)
    good = 0
    for seed in seeds(portion):
        history = spoilt(blind(ToyDatabase(seed).history()), seed)
        good += assert_agreement(seed, history, orders[seed // PORTIONS % len(orders)])
    # Some changes harm nobody; if most did, the test would show little.
    assert good < len(seeds(portion)) // 2


def test_what_is_stale_across_nodes_is_found_by_both_and_does_occur() -> None:
    stale = sum(
        not assert_agreement(seed, blind(ToyDatabase(seed).history()), Order.HERD)
        for seed in range(300)
    )
    assert 30 < stale < 300
