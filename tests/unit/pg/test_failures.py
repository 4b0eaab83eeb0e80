"""What an error means for an entry that was being applied."""

import errno

import psycopg
import pytest
from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.pg.failures import Trouble, judge_error, patience, trouble_of
from pgherd_sidecar.pg.pipeline import NoConnectionError, RoundFailedError, ServerGoneError


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("", Trouble.LOST),
        ("08006", Trouble.INTERRUPTED),
        ("40001", Trouble.INTERRUPTED),
        ("40P01", Trouble.INTERRUPTED),
        ("53300", Trouble.INTERRUPTED),
        ("55P03", Trouble.INTERRUPTED),
        ("57014", Trouble.INTERRUPTED),
        ("57P01", Trouble.INTERRUPTED),
        ("57P02", Trouble.INTERRUPTED),
        ("53100", Trouble.DISK),
        ("53200", Trouble.RESOURCES),
        ("53000", Trouble.RESOURCES),
        ("53400", Trouble.RESOURCES),
        ("55000", Trouble.FAILED),
        ("58030", Trouble.FAILED),
        ("54000", Trouble.REFUSED),
        ("54001", Trouble.REFUSED),
        ("23505", Trouble.REFUSED),
        ("42P01", Trouble.REFUSED),
        ("PH001", Trouble.REFUSED),
        ("XX000", Trouble.REFUSED),
        ("40002", Trouble.REFUSED),
    ],
)
def test_a_sqlstate_says_whether_to_try_again(sqlstate: str, expected: Trouble) -> None:
    assert trouble_of(sqlstate) is expected
    assert judge_error(RoundFailedError(sqlstate, "x", 0)).trouble is expected


@pytest.mark.parametrize("message", ["tuple concurrently updated", "tuple concurrently deleted"])
def test_a_race_for_a_row_of_the_catalog_is_tried_again(message: str) -> None:
    assert judge_error(RoundFailedError("XX000", message, 0)).trouble is Trouble.INTERRUPTED
    assert judge_error(RoundFailedError("XX001", message, 0)).trouble is Trouble.REFUSED
    assert judge_error(psycopg.errors.InternalError_(message)).trouble is Trouble.INTERRUPTED
    assert trouble_of("XX000", message, raised=True) is Trouble.FAILED


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "53000", "53100", "53200", "57P01"])
def test_what_a_function_raises_is_never_taken_for_the_server_s_word(sqlstate: str) -> None:
    assert trouble_of(sqlstate, raised=True) is Trouble.FAILED
    assert trouble_of("23514", raised=True) is Trouble.REFUSED


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TypeError("SQL values must be strings"), Trouble.REFUSED),
        (KeyError("t"), Trouble.REFUSED),
        (AssertionError("a row of t is twice in one transaction"), Trouble.REFUSED),
        (RecursionError("maximum recursion depth exceeded"), Trouble.REFUSED),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), Trouble.REFUSED),
        (EntryFormatError("writeset body"), Trouble.REFUSED),
        (psycopg.errors.StatementTooComplex("stack depth"), Trouble.REFUSED),
        (psycopg.errors.ProgramLimitExceeded("index row size"), Trouble.REFUSED),
        (psycopg.errors.UndefinedTable("t"), Trouble.REFUSED),
        (psycopg.DataError("text fields cannot contain NUL bytes"), Trouble.REFUSED),
        (psycopg.errors.DiskFull("no space"), Trouble.DISK),
        (psycopg.errors.OutOfMemory("no memory"), Trouble.RESOURCES),
        (psycopg.errors.AdminShutdown("shutdown"), Trouble.INTERRUPTED),
        (psycopg.OperationalError("server closed the connection"), Trouble.LOST),
        (psycopg.InterfaceError("the connection is closed"), Trouble.LOST),
        (ServerGoneError("connection closed"), Trouble.LOST),
        (NoConnectionError("too many clients already"), Trouble.INTERRUPTED),
        (MemoryError(), Trouble.RESOURCES),
        (OSError(errno.ENOSPC, "no space"), Trouble.DISK),
        (ConnectionResetError("reset"), Trouble.LOST),
    ],
)
def test_an_exception_of_any_type_is_judged(error: BaseException, expected: Trouble) -> None:
    assert judge_error(error).trouble is expected


def test_what_has_to_do_with_the_machine_is_waited_for_as_long_as_it_lasts() -> None:
    for_ever = {trouble for trouble in Trouble if patience(trouble) is None}
    assert for_ever == {Trouble.DISK, Trouble.RESOURCES, Trouble.INTERRUPTED}
    assert patience(Trouble.REFUSED) == 1
    assert patience(Trouble.FAILED) == 3


def test_a_message_about_data_is_told_without_the_value() -> None:
    error = RoundFailedError("22P02", 'malformed record literal: "(1,secret)"', 0)
    assert judge_error(error).cause == 'malformed record literal: "..."'
    named = RoundFailedError("23505", 'duplicate key, constraint "t_pkey"', 0, table="public.t")
    assert judge_error(named).cause == 'duplicate key, constraint "t_pkey"'
    assert judge_error(named).table == "public.t"


def test_the_key_of_a_row_that_differs_is_told_apart_from_the_message() -> None:
    error = RoundFailedError("PH003", "a row is not the same", 0, table="t", detail="id = 7")
    found = judge_error(error)
    assert (found.trouble, found.cause, found.table, found.row) == (
        Trouble.REFUSED,
        "a row is not the same",
        "t",
        "id = 7",
    )
    assert judge_error(RoundFailedError("23505", "duplicate", 0, detail="Key (id)=(7)")).row == ""
