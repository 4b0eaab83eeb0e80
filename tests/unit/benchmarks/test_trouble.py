"""Trouble in sidecars' logs is found, once, wherever it stands; joining is none."""

import json
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.herd import Herd
from benchmarks.trouble import Logs, troubles_in

DIVERGED = {
    "event": "node.needs_rebuild",
    "reason": "table t: 0 rows affected instead of 1",
    "kind": "DivergedError",
}
LOST = {"event": "node.needs_rebuild", "reason": "the database is gone", "kind": "LeftBehindError"}
JOINS = {"event": "node.needs_rebuild", "reason": "it joins the herd", "kind": "LeftBehindError"}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (json.dumps(DIVERGED), "DivergedError"),
        (json.dumps(LOST), "LeftBehindError"),
        (
            json.dumps({"event": "process.crashed", "level": "critical", "error": "SQL values"}),
            "process.crashed",
        ),
        (json.dumps({"event": "fingerprint.diverged", "gid": 7}), "fingerprint.diverged"),
        ("Traceback (most recent call last):", "process.crashed"),
        ("Fatal Python error: Aborted", "process.crashed"),
    ],
)
def test_each_kind_of_trouble_is_found(line: str, kind: str) -> None:
    assert [one.kind for one in troubles_in([line], "n1")] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(JOINS),
        json.dumps({"event": "session.ended", "reason": "PostgreSQL: crashed"}),
        "no event",
        "[1]",
        "",
    ],
)
def test_what_else_is_said_is_no_trouble(line: str) -> None:
    assert list(troubles_in([line], "n1")) == []


def test_trouble_is_told_once_and_only_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "sidecar.log"
    logs = Logs(lambda: [log])
    assert logs.pop() == []  # there is none yet
    line = json.dumps(DIVERGED)
    log.write_text(line[:20])
    assert logs.pop() == []
    log.write_text(f"{line}\n")
    assert [one.kind for one in logs.pop()] == ["DivergedError"]
    assert logs.pop() == []


def test_what_was_seen_before_a_log_was_removed_is_not_forgotten(tmp_path: Path) -> None:
    log = tmp_path / "sidecar.log"
    logs = Logs(lambda: [log])
    log.write_text(json.dumps(DIVERGED) + "\n")
    logs.look()
    log.unlink()
    assert len(logs.pop()) == 1


def test_a_benchmark_hears_of_trouble_since_it_began_and_of_no_other(tmp_path: Path) -> None:
    (tmp_path / "n2").mkdir()
    log = tmp_path / "n2" / "sidecar.log"
    log.write_text(json.dumps(DIVERGED) + "\n")
    herd = Herd(tmp_path)
    herd.require_no_trouble()
    with log.open("a") as end:
        end.write(json.dumps(LOST) + "\n")
    with pytest.raises(BenchmarkError, match="the database is gone"):
        herd.require_no_trouble()
