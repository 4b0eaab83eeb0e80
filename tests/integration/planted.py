"""One failure of each kind. ``test_canary.py`` has them judged; no other run finds them."""

import os

import psycopg
from checkers import si
from checkers.history import History, Order, Outcome, Read, Transaction, Write
from patience import wait_until

from .localherd import NODES, LocalHerd, put, query
from .test_histories import assert_good


def test_an_assertion() -> None:
    assert NODES == 4


def test_a_violation_in_a_history() -> None:
    """The second writer had not seen what the first one wrote."""
    row = ("t", 1)
    first, second = (
        Transaction(number, f"n{number}", number, invoked, returned, operations, Outcome.OK)
        for number, invoked, returned, operations in (
            (1, 1, 3, (Read(row, None), Write(row, 10))),
            (2, 2, 4, (Read(row, None), Write(row, 20))),
        )
    )
    history = History((first, second), {1: 1, 2: 2})
    assert_good(history, si.check(history, Order.NODE))


def test_a_member_diverges(mortal: LocalHerd) -> None:
    """Nothing here fails: the log of the member tells, though it repairs itself."""
    query(mortal.app_dsn("n1"), "CREATE TABLE t (id int PRIMARY KEY, v int)")
    put(mortal, mortal.app_dsn("n1"), "INSERT INTO t VALUES (1, 1)")
    query(mortal.dsn("n2"), "SET session_replication_role = replica; DELETE FROM t")
    query(mortal.app_dsn("n1"), "UPDATE t SET v = 2")
    wait_until(
        lambda: query(mortal.dsn("n2"), "SELECT v FROM t"),
        lambda rows: rows == [(2,)],
        despite=(psycopg.Error,),
    )


def test_a_wait_that_never_ends() -> None:
    wait_until(lambda: False)


def test_the_second_attempt_only() -> None:
    wait_until(lambda: os.environ.get("PGHERD_SECOND_ATTEMPT"))
