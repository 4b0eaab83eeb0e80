"""Cases are text that a person can read, and nothing is lost on the way there and back."""

import pytest
from fuzz.case import Case, CaseError, Step, begins, ends, parse, units

CASE = """-- case: one
-- on n1
CREATE TABLE t (id int PRIMARY KEY);
DO $d$ BEGIN
    DELETE FROM t;
END $d$;
-- on n2 a at once guarded
BEGIN;
SELECT 'a;
b';
-- together
-- on n3 as fuzz_bob
COMMIT;
-- apart
-- on all to postgres
SELECT 1;
"""


def test_a_case_is_what_its_text_says() -> None:
    (case,) = parse(CASE)
    table, block = case.steps[0].statements
    assert table == "CREATE TABLE t (id int PRIMARY KEY)"
    assert block.startswith("DO $d$ BEGIN")
    assert block.endswith("END $d$")
    assert case.steps[1].session == "a"
    assert case.steps[1].at_once
    assert case.steps[1].guarded
    assert [one.act for one in case.steps] == ["", "", "together", "", "apart", ""]
    assert case.steps[3].role == "fuzz_bob"
    assert (case.steps[5].member, case.steps[5].database) == ("all", "postgres")


def test_its_text_is_the_same_again() -> None:
    text = CASE.replace("SELECT 'a;\nb'", "SELECT 'a'")
    (case,) = parse(text)
    assert parse(case.text()) == [case]
    assert case.text() == text


@pytest.mark.parametrize(
    "text",
    ["-- case: x\nSELECT 1;\n", "-- case: x\n-- on n4\n", "-- case: x\n-- on n1\nSELECT 1\n"],
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(CaseError):
        parse(text)


def test_steps_are_cut_into_transactions() -> None:
    said = (
        "SELECT 1",
        "BEGIN",
        "SELECT 2",
        "ROLLBACK TO s",
        "COMMIT",
        "SELECT 3",
        "begin",
        "SELECT 4",
    )
    assert list(units(said, inside=False)) == [
        ("SELECT 1",),
        ("BEGIN", "SELECT 2", "ROLLBACK TO s", "COMMIT"),
        ("SELECT 3",),
        ("begin", "SELECT 4"),
    ]
    assert list(units(("SELECT 5", "END", "SELECT 6"), inside=True)) == [
        ("SELECT 5", "END"),
        ("SELECT 6",),
    ]


def test_beginnings_and_ends_are_told_from_others() -> None:
    assert begins("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert not begins("SELECT 'BEGIN'")
    assert all(ends(one) for one in ("COMMIT", "rollback", "END", "ABORT"))
    assert not any(ends(one) for one in ("ROLLBACK TO s", "SELECT 1", "ROLLBACK TO SAVEPOINT s"))


def test_a_case_without_steps_is_empty_text() -> None:
    assert Case("none", ()).text() == "-- case: none\n"
    assert Step("n1", ("SELECT 1",)).text() == "-- on n1\nSELECT 1;\n"
