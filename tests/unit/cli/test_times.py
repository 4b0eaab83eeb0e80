"""Times as cron writes them: the next one, and the one that is due."""

from datetime import UTC, datetime, timedelta

import pytest
from pgherd_sidecar.client.times import BadTimesError, due_time, missed_time, next_time

NOW = datetime(2030, 3, 15, 12, 30, 20, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)


def test_the_next_time_is_after_now_and_in_its_zone() -> None:
    assert next_time("30 12 * * *", "UTC", NOW) == datetime(2030, 3, 16, 12, 30, tzinfo=UTC)
    assert next_time("45 13 * * *", "Europe/Berlin", NOW) == NOW.replace(minute=45, second=0)


def test_a_time_is_due_until_it_was_dealt_with_or_missed() -> None:
    time = NOW.replace(second=0)
    assert due_time("30 12 * * *", "UTC", NOW, LONG_AGO, 3600) == time
    assert due_time("30 12 * * *", "UTC", time, LONG_AGO, 3600) == time
    assert due_time("30 12 * * *", "UTC", NOW, time, 3600) is None
    assert due_time("30 12 * * *", "UTC", NOW, LONG_AGO, 10) is None
    assert due_time("31 12 * * *", "UTC", NOW, LONG_AGO, 3600) is None


def test_a_time_is_missed_however_long_ago_it_was_unless_it_was_dealt_with() -> None:
    assert missed_time("0 3 1 3 *", "UTC", NOW, LONG_AGO) == datetime(2030, 3, 1, 3, tzinfo=UTC)
    assert missed_time("0 3 1 3 *", "UTC", NOW, NOW - timedelta(days=10)) is None


@pytest.mark.parametrize(
    ("cron", "zone", "said"),
    [
        ("61 * * * *", "UTC", "minute"),
        ("* * *", "UTC", "five fields"),
        ("* * * * * *", "UTC", "five fields"),
        ("0 0 30 2 *", "UTC", "day-of-month"),
        ("* * * * *", "Mars/Olympus", "no time zone Mars/Olympus"),
        ("* * * * *", "../etc/passwd", "no time zone"),
        ("* * * * *", "", "no time zone"),
    ],
)
def test_what_is_no_time_says_why(cron: str, zone: str, said: str) -> None:
    with pytest.raises(BadTimesError, match=f"(?i){said}"):
        next_time(cron, zone, NOW)
    with pytest.raises(BadTimesError, match=f"(?i){said}"):
        due_time(cron, zone, NOW, LONG_AGO, 60)
