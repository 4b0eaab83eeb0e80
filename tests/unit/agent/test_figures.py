"""What a member's own commits have met, as counted for people."""

import json

import pytest
from pgherd_sidecar.agent.hook.figures import BOUNDS_S, HOT_TOLD, CommitFigures
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict

KEY = 40


def body(table: str = "public.account", pk: int = KEY) -> bytes:
    return json.dumps([[table, [pk], ["D(1)"]]]).encode()


def conflict(key: int = KEY, winner: int = 7) -> Conflict:
    return Conflict(AbortReason.CONFLICT, key, winner)


def test_at_first_there_is_nothing() -> None:
    assert CommitFigures().status() == {
        "own_commits": 0,
        "own_conflicts": 0,
        "commit_waits": {},
        "commit_waited_s": 0.0,
        "hot_keys": [],
    }


@pytest.mark.parametrize("waited_s", [0.0, 0.0001, 0.0012, 0.5, 50.0])
def test_a_wait_is_counted_in_the_range_that_holds_it(waited_s: float) -> None:
    figures = CommitFigures()
    figures.committed(waited_s)
    waits = figures.status()["commit_waits"]
    assert isinstance(waits, dict)
    [(bound, count)] = waits.items()
    assert count == 1
    assert waited_s <= float(bound)
    assert waited_s >= float(bound) / 1.26 or float(bound) == BOUNDS_S[0]


def test_a_wait_beyond_all_ranges_is_counted_too() -> None:
    figures = CommitFigures()
    figures.committed(3600.0)
    assert figures.status()["commit_waits"] == {"inf": 1}


def test_a_key_is_told_with_its_table_its_losses_and_its_last_winner() -> None:
    figures = CommitFigures()
    figures.lost(conflict(winner=7), body())
    figures.lost(conflict(KEY + 3, winner=9), body())  # another lock mode on the same key
    figures.lost(conflict(88, winner=8), body())
    status = figures.status()
    assert status["own_conflicts"] == 3
    assert status["hot_keys"] == [
        {"table": "public.account", "key": f"{KEY:016x}", "count": 2, "gid": 9},
        {"table": "public.account", "key": f"{88:016x}", "count": 1, "gid": 8},
    ]


def test_a_loss_by_no_key_is_told_with_its_reason() -> None:
    figures = CommitFigures()
    figures.lost(Conflict(AbortReason.TOO_OLD, 0, 5), body())
    assert figures.status()["hot_keys"] == [
        {"table": "too old", "key": "", "count": 1, "gid": 5},
    ]


def test_the_hottest_stay_when_there_are_too_many_keys() -> None:
    figures = CommitFigures()
    for _ in range(3):
        figures.lost(conflict(4), body(pk=4))
    for key in range(8, 8 + 4 * 5000, 4):
        figures.lost(conflict(key), body(pk=key))
    hot = figures.status()["hot_keys"]
    assert isinstance(hot, list)
    assert len(hot) == HOT_TOLD
    assert hot[0] == {"table": "public.account", "key": f"{4:016x}", "count": 3, "gid": 7}
    assert len(figures._hot) <= 512
    assert figures.status()["own_conflicts"] == 5003
