"""What is next for one SnapshotSchedule: pure, and harmless when it is decided twice.

The Snapshot of a time has a name that follows from the time, so there are no two of it. While one
of a schedule is under way no other begins: the time is skipped, and said to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pgherd_sidecar.client.times import BadTimesError, due_time, missed_time, next_time

from pgherd_operator.api.base import ApiObject
from pgherd_operator.api.jobs import ScheduleSpec, ScheduleStatus
from pgherd_operator.core.actions import Event
from pgherd_operator.jobs.steps import JobReason

_WORDS = 1000

Schedule = ApiObject[ScheduleSpec, ScheduleStatus]


@dataclass(frozen=True, slots=True)
class Made:
    """A Snapshot that the schedule has made."""

    name: str
    uid: str
    phase: str
    created: datetime
    finished: datetime | None = None

    @property
    def over(self) -> bool:
        """It has ended, well or not."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What to do, the status to show, Events, and when to look again.

    Attributes:
        make: name of the Snapshot to make.
        drop: Snapshots, as resources, of which enough newer ones are there.
    """

    status: ScheduleStatus
    make: str | None = None
    drop: tuple[Made, ...] = ()
    events: tuple[Event, ...] = ()
    again: datetime | None = None


def decide(schedule: Schedule, made: Sequence[Made], now: datetime) -> SchedulePlan:
    """Decide what to do next about one schedule."""
    spec, status = schedule.spec, schedule.status
    try:
        coming = next_time(spec.schedule, spec.time_zone, now)
        due = due_time(
            spec.schedule,
            spec.time_zone,
            now,
            status.last_schedule_time or schedule.created,
            spec.starting_deadline_seconds,
        )
    except BadTimesError as error:
        text = f"the schedule can't be used: {error}"
        events = () if status.message == text else (Event(JobReason.BAD_SCHEDULE, text, "Warning"),)
        return SchedulePlan(_status(schedule, made, None, text), events=events)
    drop = _outdated(schedule, made)
    if due is None or spec.suspend:
        same = status.observed_generation == schedule.generation
        idle = _status(schedule, made, coming, status.message if same else "")
        plan = SchedulePlan(idle, drop=drop, again=coming)
        return plan if spec.suspend else _missing(schedule, plan, now)
    status = _status(schedule, made, coming).model_copy(update={"last_schedule_time": due})
    active = next((one for one in made if not one.over), None)
    if active is not None and active.name != name_at(schedule.name, due):
        told = Event(JobReason.SKIPPED, f"{active.name} still runs at {due:%F %R %Z}", "Warning")
        return SchedulePlan(status, drop=drop, events=(told,), again=coming)
    name = name_at(schedule.name, due)
    events = (Event(JobReason.SCHEDULED, f"{name}, for {due:%F %R %Z}"),)
    return SchedulePlan(status, make=name, drop=drop, events=events, again=coming)


def _missing(schedule: Schedule, plan: SchedulePlan, now: datetime) -> SchedulePlan:
    """Say once that a time has passed, with its deadline, for which no Snapshot was made."""
    spec, known = schedule.spec, schedule.status.last_schedule_time or schedule.created
    missed = missed_time(spec.schedule, spec.time_zone, now, known)
    if missed is None:
        return plan
    why = f" ({plan.status.message})" if plan.status.message else ""
    if schedule.status.observed_generation not in (0, schedule.generation):
        # It was none of this spec's, or one at which the schedule was suspended.
        return replace(plan, status=plan.status.model_copy(update={"last_schedule_time": missed}))
    text = f"no Snapshot was made for {missed:%F %R %Z} within its deadline{why}"[:_WORDS]
    told = Event(JobReason.SKIPPED, text, "Warning")
    status = plan.status.model_copy(update={"last_schedule_time": missed, "message": text})
    return replace(plan, status=status, events=(told,))


def refused(schedule: Schedule, made: Sequence[Made], plan: SchedulePlan, why: str) -> SchedulePlan:
    """Nobody lets the Snapshot be made: an Event says so once, and it is tried until it is missed.

    Args:
        plan: with the Snapshot to make.
        why: in the words of who refuses.
    """
    text = f"{plan.make} refused: {why}"[:_WORDS]
    status = _status(schedule, made, plan.status.next_schedule_time, text)
    told = () if schedule.status.message == text else (Event(JobReason.REFUSED, text, "Warning"),)
    return replace(plan, status=status, make=None, events=told)


def name_at(schedule: str, time: datetime) -> str:
    """The name of what a schedule has made at a time."""
    return f"{schedule}-{int(time.timestamp()) // 60}"


def _status(
    schedule: Schedule, made: Sequence[Made], coming: datetime | None, message: str = ""
) -> ScheduleStatus:
    successes = [one.finished for one in made if one.phase == "Succeeded" and one.finished]
    before = schedule.status.last_successful_time
    return ScheduleStatus(
        observed_generation=schedule.generation,
        last_schedule_time=schedule.status.last_schedule_time,
        next_schedule_time=None if schedule.spec.suspend else coming,
        last_successful_time=max([*successes, *([before] if before else [])], default=None),
        active=next((one.name for one in made if not one.over), None),
        message=message,
    )


def _outdated(schedule: Schedule, made: Sequence[Made]) -> tuple[Made, ...]:
    """Resources of snapshots that were removed from the store, and of old failures."""
    newest = sorted(made, key=lambda one: one.created, reverse=True)
    whole = [one for one in newest if one.phase == "Succeeded"]
    failed = [one for one in newest if one.phase == "Failed"]
    kept = schedule.spec.keep
    old = whole[kept:] if kept is not None else []
    return (*old, *failed[schedule.spec.failed_history_limit :])
