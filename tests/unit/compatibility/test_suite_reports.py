"""Reports of known suites are read and compared as their runners wrote them."""

from pathlib import Path

from compatibility.outcomes import PASSED, cause, compare, outcomes

_REPORT = """<?xml version="1.0"?>
<testsuites><testsuite>
  <testcase classname="a.B" name="passes"/>
  <testcase classname="a.B" name="fails"><failure message="boom">
Traceback
E   psycopg.errors.FeatureNotSupported: table "x7" is not supported 12 times
  </failure></testcase>
  <testcase classname="a.B" name="breaks"><error message="at set-up"/></testcase>
  <testcase classname="a.B" name="is skipped"><skipped/></testcase>
</testsuite></testsuites>
"""


def test_a_report_tells_of_each_test(tmp_path: Path) -> None:
    (tmp_path / "one.xml").write_text(_REPORT)
    found = outcomes(tmp_path)
    assert found == outcomes(tmp_path / "one.xml")
    assert found["a.B::passes"] == PASSED
    assert found["a.B::is skipped"] is None
    assert found["a.B::breaks"] == "at set-up\n"
    assert cause(found["a.B::fails"] or "") == (
        "psycopg.errors.FeatureNotSupported: table ... is not supported N times"
    )


def test_a_test_whose_set_up_or_end_fails_has_failed(tmp_path: Path) -> None:
    (tmp_path / "one.xml").write_text(
        '<testsuite><testcase classname="c" name="n"/>'
        '<testcase classname="c" name="n"><error message="at its end"/></testcase></testsuite>'
    )
    assert outcomes(tmp_path) == {"c::n": "at its end\n"}


def test_only_what_passes_on_a_plain_server_is_compared() -> None:
    plain = {"a": PASSED, "b": PASSED, "c": PASSED, "d": "fails", "e": None}
    herd = {"a": PASSED, "b": "ValueError: 3", "d": PASSED, "e": PASSED}
    found = compare(plain, herd)
    assert (found.plain, found.herd, found.skipped) == (3, 1, 1)
    assert found.differing == {"b": "ValueError: 3", "c": "not run"}
    assert found.causes() == {"ValueError: N": 1, "not run": 1}


def test_a_file_is_whole_if_nothing_of_it_differs() -> None:
    plain = {"a::1": PASSED, "a::2": PASSED, "b::1": PASSED, "b::2": "fails", "c::1": "fails"}
    found = compare(plain, {"a::1": "differs", "a::2": PASSED, "b::1": PASSED})
    assert (found.whole, found.files) == (1, 2)


def test_a_file_is_spoilt_by_a_cause_if_it_has_no_other() -> None:
    plain = dict.fromkeys(("a::1", "a::2", "b::1", "b::2", "c::1"), PASSED)
    herd = {"a::1": "refused 1", "a::2": "refused 2", "b::1": "refused 3", "b::2": "lost"}
    found = compare(plain, herd | {"c::1": PASSED})
    assert found.files_spoilt_by("refused N") == 1
    assert found.files_spoilt_by("lost") == 0
