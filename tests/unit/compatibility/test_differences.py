"""A difference is named by the first step that ended otherwise, and only if the docs explain it."""

import re
from pathlib import Path

import pytest
from compatibility.differences import NOT_EXPLAINED, NOT_PLAYED, SIGNS, STEPS, difference

_DOCS = Path(__file__).parents[3] / "docs"

_PLAIN = """step a: UPDATE t SET a = 1;
step b: UPDATE t
  SET a = 2; <waiting ...>
step c: COMMIT;
step b: <... completed>
step r: SELECT a FROM t;
a
-
2
(1 row)
"""
_LOST = _PLAIN.replace(
    "b: <... completed>\n",
    "b: <... completed>\nERROR:  could not serialize access due to a concurrent commit (GID 7)\n",
).replace("2\n(1", "1\n(1")


def test_the_first_step_that_ended_otherwise_decides() -> None:
    assert difference("s", _PLAIN, _LOST) == "40001, a concurrent commit"
    assert difference("s", _PLAIN, _PLAIN.replace("2\n(1", "1\n(1")) == NOT_EXPLAINED
    hidden = _LOST.replace("step c: COMMIT;", "step c: COMMIT;\nWARNING:  no transaction")
    assert difference("s", _PLAIN, hidden) == NOT_EXPLAINED


def test_a_step_that_fails_before_it_would_wait_is_named() -> None:
    refused = """step a: UPDATE t SET a = 1;
step b: UPDATE t
  SET a = 2;
ERROR:  writes at SERIALIZABLE are not supported on replicated tables
step c: COMMIT;
"""
    assert difference("s", _PLAIN, refused) == "writes at SERIALIZABLE"


def test_an_error_that_a_plain_server_gives_too_explains_nothing() -> None:
    assert difference("s", _LOST, _LOST.replace("(1 row)", "(2 rows)")) == NOT_EXPLAINED
    early = _PLAIN.replace(" <waiting ...>", "").replace("step b: <... completed>\n", "")
    assert difference("s", _PLAIN, early) == NOT_EXPLAINED


def test_what_was_not_played_has_the_class_of_the_end() -> None:
    end = (
        "setup of session s1 failed: ERROR:  c is temporary, and its parent public.p is replicated"
    )
    assert difference("s", _PLAIN, f"{NOT_PLAYED}\n{end}") == "a temporary child"
    assert difference("s", _PLAIN, end) == "a temporary child"
    assert difference("s", _PLAIN, f"{NOT_PLAYED}\nserver closed") == NOT_EXPLAINED


def test_steps_that_were_judged_may_differ_and_no_other() -> None:
    plain = "step sel1: SELECT;\n1\nstep end1: COMMIT;\n"
    herd = plain.replace("1\n", "9\n", 1)
    assert difference("reindex-concurrently", plain, herd) == "numbers of a sequence"
    assert difference("tuplelock-update", plain, herd) == NOT_EXPLAINED
    lost = herd.replace("COMMIT;", "COMMIT;\nERROR")
    assert difference("reindex-concurrently", plain, lost) == NOT_EXPLAINED


@pytest.mark.parametrize("name", [*SIGNS, *sorted(set(STEPS.values()))])
def test_the_docs_explain_each_class(name: str) -> None:
    page = (_DOCS / "compatibility.md").read_text()
    assert re.search(rf"(?m)^\| \d+ \| \d+ \| {re.escape(name)} \| .*\]\(", page)
