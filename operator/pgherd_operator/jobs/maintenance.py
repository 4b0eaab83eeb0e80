"""The next step for one MaintenanceSchedule: pure, and harmless when it is decided twice.

The members do the work and keep what became of it; here is the clock. The run of a time has a name
that follows from the time, so there are no two of it. While one of a schedule is under way no other
begins: the time is skipped, and said to be.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pgherd_sidecar.client.maintenance import RunAnswer
from pgherd_sidecar.client.times import BadTimesError, due_time, missed_time, next_time

from pgherd_operator.api.base import ApiObject
from pgherd_operator.api.maintenance import (
    RUNS_SHOWN,
    MaintenanceCondition,
    MaintenanceConditionType,
    MaintenanceSpec,
    MaintenanceStatus,
    MemberOutcome,
    RunOutcome,
)
from pgherd_operator.api.status import Truth
from pgherd_operator.core.actions import Event
from pgherd_operator.jobs.schedule import name_at

_WORDS = 1000
_UNSEEN_S = 300.0


class MaintenanceReason(StrEnum):
    """Reasons of Events and conditions: stable, listed in docs/maintenance.md."""

    SCHEDULED = "MaintenanceScheduled"
    SKIPPED = "MaintenanceSkipped"
    DONE = "MaintenanceDone"
    FAILED = "MaintenanceFailed"
    REFUSED = "MaintenanceRefused"
    RUNNING = "MaintenanceRunning"
    UNHEARD = "HerdNotReached"
    BAD_TIMES = "InvalidTimes"


MaintenanceResource = ApiObject[MaintenanceSpec, MaintenanceStatus]


@dataclass(frozen=True, slots=True)
class Told:
    """The answer of the herd.

    Attributes:
        runs: of this schedule, the newest first; None if nobody could be asked.
        refusal: why it will not do this, in the words of the member that was asked.
        silence: why nobody could be asked.
    """

    runs: tuple[RunAnswer, ...] | None = None
    refusal: str = ""
    silence: str = ""


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """The step to take, the status to show, Events, and when to look again at the latest.

    Attributes:
        begin: name of the run to ask for.
        due: its time.
    """

    status: MaintenanceStatus
    begin: str | None = None
    due: datetime | None = None
    events: tuple[Event, ...] = ()
    again: datetime | None = None


def request(spec: MaintenanceSpec) -> dict[str, Any]:
    """The request to a sidecar, without the name of a run."""
    return {
        "sql": list(spec.sql),
        "vacuum_full": list(spec.vacuum_full),
        "reindex": list(spec.reindex),
        "members": list(spec.members),
        "one_by_one": spec.one_by_one,
        "drain": spec.drain,
        "grace_s": spec.grace_seconds,
        "deadline_s": spec.deadline_seconds,
    }


def is_judged(schedule: MaintenanceResource) -> bool:
    """Whether the herd has said that it can do what this spec wants."""
    status = schedule.status
    ready = any(
        one.type is MaintenanceConditionType.READY and one.status == "True"
        for one in status.conditions
    )
    return ready and status.observed_generation == schedule.generation


def decide(schedule: MaintenanceResource, told: Told, now: datetime) -> MaintenancePlan:
    """Decide what to do next about one schedule."""
    spec, before = schedule.spec, schedule.status
    try:
        coming = next_time(spec.schedule, spec.time_zone, now)
        known = before.last_schedule_time or schedule.created
        due = due_time(spec.schedule, spec.time_zone, now, known, spec.starting_deadline_seconds)
    except BadTimesError as error:
        text = f"the schedule can't be used: {error}"
        return _ended(schedule, told, now, None, MaintenanceReason.BAD_TIMES, text)
    missed = None
    if due is None and not spec.suspend:
        missed = missed_time(spec.schedule, spec.time_zone, now, known)
    if missed is not None and before.observed_generation not in (0, schedule.generation):
        # It was none of this spec's, or one at which the schedule was suspended.
        known_until = before.model_copy(update={"last_schedule_time": missed})
        schedule, missed = replace(schedule, status=known_until), None
    if told.silence or told.refusal:
        reason = MaintenanceReason.UNHEARD if told.silence else MaintenanceReason.REFUSED
        return _ended(schedule, told, now, coming, reason, told.silence or told.refusal)
    plan = MaintenancePlan(
        _status(schedule, told, now, coming), events=_ends(before, told), again=coming
    )
    if missed is not None:
        text = f"nothing was begun for {missed:%F %R %Z} within its deadline"
        skipped = Event(MaintenanceReason.SKIPPED, text, "Warning")
        status = plan.status.model_copy(update={"last_schedule_time": missed})
        return replace(plan, status=status, events=(*plan.events, skipped))
    if due is None or spec.suspend:
        return plan
    active = plan.status.active
    name = name_at(schedule.name, due)
    if active is not None and active != name:
        text = f"{active} was not over at {due:%F %R %Z}"
        skipped = Event(MaintenanceReason.SKIPPED, text, "Warning")
        status = plan.status.model_copy(update={"last_schedule_time": due})
        return replace(plan, status=status, events=(*plan.events, skipped))
    return replace(plan, begin=name, due=due)


def begun(plan: MaintenancePlan, members: Iterable[str]) -> MaintenancePlan:
    """The herd has taken the run."""
    assert plan.due is not None
    told = Event(MaintenanceReason.SCHEDULED, f"{plan.begin}, on {', '.join(members)}")
    status = plan.status.model_copy(
        update={"last_schedule_time": plan.due, "active": plan.begin, "message": ""}
    )
    return replace(plan, status=status, events=(*plan.events, told))


def _ended(
    schedule: MaintenanceResource,
    told: Told,
    now: datetime,
    coming: datetime | None,
    reason: MaintenanceReason,
    text: str,
) -> MaintenancePlan:
    """Nothing can be begun: an Event says so once."""
    text = text[:_WORDS]
    status = _status(schedule, told, now, coming, reason, text)
    same = schedule.status.message == text
    events = () if same else (Event(reason, text, "Warning"),)
    return MaintenancePlan(status, events=(*_ends(schedule.status, told), *events), again=coming)


def _status(
    schedule: MaintenanceResource,
    told: Told,
    now: datetime,
    coming: datetime | None,
    reason: MaintenanceReason = MaintenanceReason.SCHEDULED,
    message: str = "",
) -> MaintenanceStatus:
    before = schedule.status
    runs = before.runs if told.runs is None else tuple(map(_outcome, told.runs[:RUNS_SHOWN]))
    active = next((one.name for one in runs if one.phase == "Running"), None)
    if active is None and before.active not in {one.name for one in runs}:
        asked = before.last_schedule_time  # the member that was asked may have yet to hear of it
        fresh = asked is not None and (now - asked).total_seconds() < _UNSEEN_S
        active = before.active if fresh else None
    conditions = [
        MaintenanceCondition.of(
            schedule, now, MaintenanceConditionType.READY,
            "False" if message else "True", reason, message or "the herd can do it",
        )
    ]  # fmt: skip
    if runs:
        conditions.append(_of_run(schedule, now, runs[0]))
    return MaintenanceStatus(
        observed_generation=schedule.generation,
        last_schedule_time=before.last_schedule_time,
        next_schedule_time=None if schedule.spec.suspend else coming,
        active=active,
        message=message,
        runs=runs,
        conditions=tuple(conditions),
    )


def _outcome(run: RunAnswer) -> RunOutcome:
    ended: Literal["Succeeded", "Failed"] = "Succeeded" if run.succeeded else "Failed"
    return RunOutcome(
        name=run.run,
        phase=ended if run.over else "Running",
        created_at=datetime.fromisoformat(run.created),
        members=tuple(
            MemberOutcome(
                name=one.member,
                state=one.state,
                begun_at=None if one.begun is None else datetime.fromisoformat(one.begun),
                seconds=None if one.seconds is None else round(one.seconds),
                error=one.error[:_WORDS],
            )
            for one in run.parts
        ),
    )


def _of_run(schedule: MaintenanceResource, now: datetime, run: RunOutcome) -> MaintenanceCondition:
    truths: dict[str, tuple[Truth, MaintenanceReason]] = {
        "Running": ("Unknown", MaintenanceReason.RUNNING),
        "Succeeded": ("True", MaintenanceReason.DONE),
        "Failed": ("False", MaintenanceReason.FAILED),
    }
    kind = MaintenanceConditionType.SUCCEEDED
    return MaintenanceCondition.of(schedule, now, kind, *truths[run.phase], _told_of(run))


def _told_of(run: RunOutcome) -> str:
    """A run in a sentence."""
    parts = [
        f"{one.name} {one.state}"
        + (f" after {one.seconds} s" if one.seconds is not None else "")
        + (f" ({one.error})" if one.error else "")
        for one in run.members
    ]
    return f"{run.name}: {', '.join(parts)}"[:_WORDS]


def _ends(before: MaintenanceStatus, told: Told) -> tuple[Event, ...]:
    """Events of the runs that have ended since the status was written."""
    ran = {one.name for one in before.runs if one.phase == "Running"} | {before.active}
    ended = [_outcome(one) for one in told.runs or () if one.over and one.run in ran]
    return tuple(
        Event(MaintenanceReason.DONE, _told_of(one))
        if one.phase == "Succeeded"
        else Event(MaintenanceReason.FAILED, _told_of(one), "Warning")
        for one in ended
    )
