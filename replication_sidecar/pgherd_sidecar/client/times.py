"""Times of day at which something is to happen, as cron writes them: for herds and on Kubernetes.

Plain functions of the time that they are given.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_FIELDS = 5


class BadTimesError(ValueError):
    """There are no such times; the message says why."""


def next_time(cron: str, zone: str, now: datetime) -> datetime | None:
    """The first time after now, in UTC; None if there is none.

    Args:
        cron: five fields: minute, hour, day, month, weekday.
        zone: the time zone in which they are meant, as ``Europe/Berlin``.
        now: with its own time zone.

    Raises:
        BadTimesError: one of them is not understood.
    """
    try:
        there = now.astimezone(ZoneInfo(zone))
        return next((time.astimezone(UTC) for time in CronSim(_five(cron), there)), None)
    except (CronSimError, ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadTimesError(_why(error, zone)) from error


def due_time(
    cron: str, zone: str, now: datetime, known: datetime, within_s: float
) -> datetime | None:
    """The newest time that has come and was not yet dealt with, in UTC; None if there is none.

    Args:
        cron, zone, now: see ``next_time``.
        known: times up to this one were dealt with.
        within_s: a time that has come more seconds ago is missed.

    Raises:
        BadTimesError: one of them is not understood.
    """
    try:
        there = now.astimezone(ZoneInfo(zone))
        # `reverse` tells of times before the one given; one of just now is due, too.
        latest = next(iter(CronSim(_five(cron), there + timedelta(seconds=1), reverse=True)), None)
    except (CronSimError, ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadTimesError(_why(error, zone)) from error
    if latest is None or latest <= known or now - latest > timedelta(seconds=within_s):
        return None
    return latest.astimezone(UTC)


def missed_time(cron: str, zone: str, now: datetime, known: datetime) -> datetime | None:
    """The newest time that has come and was not yet dealt with, however long ago.

    Args, returns and errors: see ``due_time``, by which it is not due.
    """
    return due_time(cron, zone, now, known, (now - known).total_seconds())


def _five(cron: str) -> str:
    """Times of less than a minute are not meant."""
    if len(cron.split()) != _FIELDS:
        raise CronSimError("times have five fields: minute, hour, day, month, weekday")
    return cron


def _why(error: Exception, zone: str) -> str:
    if isinstance(error, CronSimError):
        return str(error)
    return f"there is no time zone {zone}"
