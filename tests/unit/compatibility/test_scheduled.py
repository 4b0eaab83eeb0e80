"""The files of a schedule are played, and compared with what the first server said."""

from pathlib import Path

import pytest
from compatibility.outcomes import compare, outcomes
from compatibility.scheduled import Scheduled
from compatibility.sources import FetchError, newest_first
from compatibility.suites import Server

_SCHEDULE = """# comment
test: first
test: b huge
test: a
"""


class Words(Scheduled):
    """Each server says its own name at one test of each file, and knows one test more or less."""

    name = "words"
    schedule = "list"
    always = frozenset({"first"})
    left_out = frozenset({"huge"})

    def said(self, name: str, server: Server, work: Path) -> dict[str, str]:
        return {"same": name, "user": server.user, server.user: ""}


@pytest.fixture
def words(tmp_path: Path) -> Words:
    suite = Words()
    suite.sources = tmp_path
    (tmp_path / "list").write_text(_SCHEDULE)
    return suite


def test_files_come_in_the_order_of_the_schedule(words: Words) -> None:
    assert words.names([]) == ["first", "b", "a"]
    assert words.names(["a"]) == ["first", "a"]
    with pytest.raises(FetchError, match="no c, huge"):
        words.names(["huge", "c", "a"])


def test_the_first_run_tells_what_the_next_one_should_say(words: Words, tmp_path: Path) -> None:
    reports = {user: tmp_path / f"{user}.xml" for user in ("plain", "herd")}
    for user, report in reports.items():
        words.run(Server(user, user), tmp_path, report, ["first"])
    found = compare(outcomes(reports["plain"]), outcomes(reports["herd"]))
    assert (found.plain, found.herd) == (3, 1)
    assert sorted(found.differing) == ["first::plain", "first::user"]
    assert "not played" in found.differing["first::plain"]


def test_versions_are_sorted_as_debian_does() -> None:
    assert newest_first(["15.9-1", "15.10-0+deb12u1", "15.10~rc1-1", "1:1-1", "15.9-1"]) == [
        "1:1-1", "15.10-0+deb12u1", "15.10~rc1-1", "15.9-1",
    ]  # fmt: skip
