"""For how long a subscriber has been behind, as housekeeping tells it."""

from pgherd_sidecar.agent.subscriptions.feeder import Ages


def test_an_age_begins_with_the_last_look_that_saw_nothing_newer() -> None:
    ages = Ages()
    assert ages.behind_s(5.0, 3) == 0.0
    for now_s, gid in [(10.0, 3), (11.0, 3), (12.0, 7), (13.0, 9)]:
        ages.note_newest(now_s, gid)
    assert ages.behind_s(14.0, 9) == 0.0
    assert ages.behind_s(14.0, 8) == 2.0
    assert ages.behind_s(14.0, 3) == 3.0
    assert ages.behind_s(14.0, 1) == 4.0


def test_what_is_long_ago_is_told_too_old_and_never_too_young() -> None:
    ages = Ages()
    for second in range(20_000):
        ages.note_newest(float(second), second)
    for gid in range(0, 20_000, 37):
        assert 20_000.0 - gid <= ages.behind_s(20_000.0, gid)
    assert ages.behind_s(20_000.0, 19_990) == 10.0
    assert ages.behind_s(20_000.0, 5_000) <= 15_000.0 + 60
