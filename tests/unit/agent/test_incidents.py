"""No entry is tried for ever, and what stopped a database is never forgotten."""

import json
from pathlib import Path

import psycopg
import pytest
from pgherd_sidecar.agent.apply.applying import applying, undeliverable
from pgherd_sidecar.agent.apply.attempts import Attempts
from pgherd_sidecar.agent.base.errors import (
    DivergedError,
    EntryFailedError,
    Failure,
    LeftBehindError,
    SupersededError,
    UnreadableError,
)
from pgherd_sidecar.agent.membership.identity import IdentityError
from pgherd_sidecar.agent.standing.incidents import FILE, KEPT, TOLD, Incidents
from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError
from pgherd_sidecar.core.replication.entries import EntryFormatError
from pgherd_sidecar.env.storage.segments import StorageError
from pgherd_sidecar.pg.failures import Trouble
from pgherd_sidecar.pg.pipeline import RoundFailedError


def failure(trouble: Trouble = Trouble.FAILED, gid: int = 8, prev: int = 7) -> Failure:
    return Failure(gid, prev, trouble, "58030", "could not read", "rows", "INSERT", "public.t")


# ---- applying ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [TypeError("None"), EntryFormatError("body"), AssertionError(), RecursionError()]
)
def test_whatever_goes_wrong_with_an_entry_is_a_divergence_with_its_gid(error: Exception) -> None:
    with pytest.raises(DivergedError, match="GID 8") as diverged, applying(8, 7):
        raise error
    assert diverged.value.failure is not None
    assert (diverged.value.failure.gid, diverged.value.failure.prev) == (8, 7)
    assert diverged.value.__cause__ is error


def test_what_may_work_the_next_time_is_no_divergence() -> None:
    with pytest.raises(EntryFailedError) as failed, applying(8, 7) as about:
        about.statement = "CREATE INDEX"
        raise psycopg.errors.DiskFull("no space left on device")
    assert failed.value.failure.trouble is Trouble.DISK
    assert failed.value.failure.sqlstate == "53100"
    assert failed.value.failure.statement == "CREATE INDEX"


@pytest.mark.parametrize(
    "error",
    [
        StorageError("disk"),
        LocalProtocolError("x"),
        IdentityError("lost"),
        LeftBehindError("gone"),
        EntryFailedError(failure()),
    ],
)
def test_what_is_wrong_with_the_log_or_is_judged_already_passes_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as passed, applying(9, 8):
        raise error
    assert passed.value is error


def test_a_divergence_that_names_no_entry_gets_one() -> None:
    cause = RoundFailedError("42P01", "relation does not exist", 0)
    with pytest.raises(DivergedError) as diverged, applying(8, 7):
        raise DivergedError("table public.t") from cause
    assert diverged.value.failure is not None
    assert (diverged.value.failure.gid, diverged.value.failure.sqlstate) == (8, "42P01")


def test_an_entry_that_cannot_be_read_stops_this_database_and_no_copy_is_made() -> None:
    error = undeliverable(EntryFormatError("entry version 2, this member reads 1"), 41)
    assert isinstance(error, UnreadableError)
    assert "entry 42" in str(error)


def test_a_defect_while_entries_are_delivered_stops_this_database_only() -> None:
    assert isinstance(undeliverable(KeyError(3), 41), DivergedError)
    for known in (StorageError("x"), LeftBehindError("x"), SupersededError(3)):
        assert undeliverable(known, 41) is known


# ---- attempts ------------------------------------------------------------------------------------


def test_the_same_failure_of_the_same_entry_three_times_in_a_row_is_a_divergence() -> None:
    attempts = Attempts()
    assert attempts.failed(failure()) is None
    assert attempts.failed(failure(gid=12)) is None  # more writesets were tried together
    diverged = attempts.failed(failure())
    assert diverged is not None and "3 times in a row" in str(diverged)
    assert diverged.failure is not None and diverged.failure.gid == 8


def test_progress_between_two_failures_begins_the_count_anew() -> None:
    attempts = Attempts()
    for prev in (7, 7, 8, 8, 9, 9):
        assert attempts.failed(failure(prev=prev)) is None


def test_failures_of_two_kinds_by_turns_are_counted_each() -> None:
    attempts = Attempts()
    for _ in range(2):
        assert attempts.failed(failure(Trouble.LOST)) is None
        assert attempts.failed(failure(Trouble.FAILED)) is None
    assert attempts.failed(failure(Trouble.FAILED)) is not None


@pytest.mark.parametrize("trouble", [Trouble.DISK, Trouble.RESOURCES, Trouble.INTERRUPTED])
def test_what_only_lasts_never_becomes_a_divergence(trouble: Trouble) -> None:
    attempts = Attempts()
    for _ in range(1000):
        assert attempts.failed(failure(trouble)) is None
        assert attempts.pause_s <= 30


def test_a_full_disk_is_told_and_waited_for_with_growing_pauses() -> None:
    attempts = Attempts()
    pauses = []
    for _ in range(12):
        attempts.failed(failure(Trouble.DISK))
        pauses.append(attempts.pause_s)
    assert pauses == sorted(pauses) and pauses[-1] == 30
    reason = attempts.reason(None)
    assert reason is not None and "disk" in reason and "no copy" in reason and "GID 8" in reason
    assert attempts.reason(7) == reason
    assert attempts.reason(8) is None  # it has gone on
    attempts.forget()
    assert attempts.reason(None) is None
    assert attempts.pause_s < 1


def test_a_session_that_crashes_again_and_again_is_begun_less_and_less_often() -> None:
    attempts = Attempts()
    for _ in range(2000):
        attempts.crashed()
    assert attempts.pause_s == 30


# ---- incidents -----------------------------------------------------------------------------------


def test_an_incident_outlives_its_cure_and_the_process(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    incidents.begin(DivergedError("GID 8: it differs", failure()), rebuilt=True)
    restarted = Incidents(tmp_path)
    assert restarted.open is not None
    restarted.end()
    status = Incidents(tmp_path).status()
    (one,) = json.loads(json.dumps(status["incidents"]))
    assert (one["gid"], one["sqlstate"], one["table"], one["statement"]) == (
        8,
        "58030",
        "public.t",
        "INSERT",
    )
    assert (one["kind"], one["cure"], one["outcome"]) == ("diverged", "rebuild", "rebuilt")
    assert one["at"] <= one["ended_at"]
    assert status["divergences_total"] == {"rows": 1}
    assert status["rebuilds_total"] == {"done": 1}
    assert [found["number"] for found in json.loads(json.dumps(incidents.of(8)))] == [1]
    assert incidents.of(9) == []


def test_the_same_one_met_at_each_restart_is_one(tmp_path: Path) -> None:
    for _ in range(3):
        Incidents(tmp_path).begin(DivergedError("GID 8: it differs", failure()), rebuilt=False)
    incidents = Incidents(tmp_path)
    assert incidents.open is not None and incidents.open.times == 3
    assert incidents.status()["divergences_total"] == {"rows": 1}
    incidents.request()
    assert incidents.open.cure == "rebuild"
    incidents.end("no partner")
    assert incidents.status()["rebuilds_total"] == {"given_up": 1}
    incidents.end()  # nothing is open
    assert incidents.status()["rebuilds_total"] == {"given_up": 1}


def test_the_newest_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    for gid in range(1, KEPT + 21):
        incidents.begin(DivergedError(f"GID {gid}", failure(gid=gid)), rebuilt=True)
        incidents.end()
    found = json.loads((tmp_path / FILE).read_text())
    assert len(found["incidents"]) == KEPT
    assert found["incidents"][-1]["number"] == KEPT + 20
    told = incidents.status()["incidents"]
    assert isinstance(told, list) and len(told) == TOLD
    assert incidents.status()["divergences_total"] == {"rows": KEPT + 20}


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    incidents.begin(LeftBehindError("the log is gone"), rebuilt=True)
    incidents.begin(UnreadableError("entry 42"), rebuilt=False)
    incidents.begin(DivergedError("the commit chain is broken at GID 3"), rebuilt=True)
    incidents.end()
    incidents.request()
    kinds = [one["kind"] for one in json.loads((tmp_path / FILE).read_text())["incidents"]]
    assert kinds == ["left behind", "unreadable", "diverged", "requested"]
    assert incidents.status()["divergences_total"] == {"chain": 1}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"incidents": [{"number": 1}]}', "null"])
def test_a_damaged_file_stops_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    incidents = Incidents(tmp_path)
    assert incidents.status()["incidents"] == []
    incidents.begin(LeftBehindError("x"), rebuilt=True)
    assert Incidents(tmp_path).open is not None


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path / "nowhere")
    incidents.begin(LeftBehindError("x"), rebuilt=True)
    assert incidents.open is not None
