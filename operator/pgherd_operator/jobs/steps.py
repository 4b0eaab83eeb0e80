"""What is next for one job: pure and level-triggered, as the reconciler of herds is.

A job is begun once and never again. That its status names a runner, or how it has ended, is what
tells a job that is over from one to begin; all else is read anew at each look. How the job itself
has ended is the word of its driver; Kubernetes and Spark are believed only where that is silent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from pydantic import ValidationError

from pgherd_operator.api.jobs import (
    CheckSpec,
    CheckStatus,
    JobCondition,
    JobConditionType,
    JobStatus,
    SnapshotSpec,
    SnapshotStatus,
)
from pgherd_operator.api.status import Truth
from pgherd_operator.core.actions import Event

UNTAKEN_S = 900.0
"""A SparkApplication without a state for so long is nobody's: to submit one takes minutes."""
_WHY = 500
Runner = Literal["SparkApplication", "Job"]


class JobReason(StrEnum):
    """Reasons of Events and conditions of jobs: stable, listed in docs/operator.md."""

    STARTED = "JobStarted"
    SNAPSHOT_WRITTEN = "SnapshotWritten"
    CONSISTENT = "MembersAgree"
    DIFFERENT = "MembersDiffer"
    INCOMPLETE = "ComparisonIncomplete"
    FAILED = "JobFailed"
    DEADLINE = "DeadlineExceeded"
    UNKNOWN = "OutcomeUnknown"
    WAITING = "WaitingForHerd"
    RUNNING = "Running"
    NO_SPARK = "SparkOperatorMissing"
    SPARK_USED = "SparkOperatorUsed"
    SPARK_UNUSED = "SparkOperatorNotUsed"
    SKIPPED = "SnapshotSkipped"
    REFUSED = "SnapshotRefused"
    BAD_SCHEDULE = "InvalidSchedule"
    SCHEDULED = "SnapshotScheduled"


_VERDICTS = {
    "consistent": JobReason.CONSISTENT,
    "different": JobReason.DIFFERENT,
    "incomplete": JobReason.INCOMPLETE,
}
_ENDS: Mapping[str, bool] = {"COMPLETED": True, "FAILED": False, "Complete": True, "Failed": False}
"""States in which a workload has ended, and whether well."""


@dataclass(frozen=True, slots=True)
class Work:
    """A Snapshot or a ConsistencyCheck, as the API server gives it."""

    kind: str
    name: str
    namespace: str
    uid: str
    generation: int
    created: datetime
    spec: SnapshotSpec | CheckSpec
    status: JobStatus
    deleting: bool = False

    def new_status(self) -> JobStatus:
        """One of its kind, with nothing in it."""
        return SnapshotStatus() if isinstance(self.spec, SnapshotSpec) else CheckStatus()


@dataclass(frozen=True, slots=True)
class Workload:
    """The SparkApplication or Job that does it.

    Attributes:
        owner: uid of the resource that it was made for.
        state: in its own words; empty while nobody has taken it.
        message: why it is so.
    """

    runner: Runner
    name: str
    uid: str
    owner: str
    created: datetime
    state: str = ""
    message: str = ""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Driver:
    """The pod of the driver: what it has said at its end, and how far it is before.

    Attributes:
        outcome: None while it runs, or if it ended without a word.
        ended: why its container ended, if it did.
        trouble: why it does not run, in the words of the scheduler or the kubelet.
    """

    outcome: Mapping[str, Any] | None = None
    ended: str | None = None
    progress: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """Everything about one job at one moment.

    Attributes:
        herd: numbers of the members that take writes; empty while there is none to work on.
        readers: numbers of the others with a database.
        waits_for: what of the herd is missing.
        has_spark: the API server knows SparkApplications.
    """

    work: Work
    herd: tuple[int, ...] = ()
    readers: tuple[int, ...] = ()
    cluster_id: str = ""
    waits_for: str = ""
    workload: Workload | None = None
    driver: Driver = field(default_factory=Driver)
    has_spark: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, the status to show, and Events to tell once that is done.

    Attributes:
        start: make the workload, of this kind.
        stop: delete the workload.
        remove: delete the resource itself.
    """

    status: JobStatus
    start: Runner | None = None
    stop: bool = False
    remove: bool = False
    events: tuple[Event, ...] = ()

    @property
    def finished(self) -> bool:
        """Nothing happens any more but the end of its time."""
        return self.status.phase in ("Succeeded", "Failed") and not self.stop


def decide(look: Look, now: datetime) -> Decision:
    """Decide what to do next about one job."""
    work, status = look.work, look.work.status
    if status.phase in ("Succeeded", "Failed"):
        return _over(look, now)
    if look.workload is None:
        return _unseen(look, now) if status.has_begun else _begin(look, now)
    if look.workload.owner != work.uid:
        text = f"an older {look.workload.runner} of the name {look.workload.name} has to go first"
        return Decision(_pending(look, now, text))
    outcome = look.driver.outcome
    if outcome is not None:
        return _said(look, now, outcome)
    return _running(look, now)


def _over(look: Look, now: datetime) -> Decision:
    """Keep the end of a job on record, for as long as is wanted."""
    work, workload = look.work, look.workload
    seconds, finished = work.spec.ttl_seconds_after_finished, work.status.finished_at
    remove = (
        seconds is not None
        and finished is not None
        and now >= finished + timedelta(seconds=seconds)
    )
    runs = workload is not None and workload.owner == work.uid and workload.state not in _ENDS
    # One that has ended stays for its log, until its own time is over.
    ended = look.driver.outcome is not None or look.driver.ended is not None
    return Decision(work.status, stop=runs and not ended, remove=remove)


def _unseen(look: Look, now: datetime) -> Decision:
    """The job's workload is gone, and its driver's word with it: it may have ended well."""
    runner = look.work.status.runner or "workload"
    text = f"nobody has seen how it ended: its {runner} is gone, "
    text += "deleted by hand or a day after its end"
    return _end(look, now, JobReason.UNKNOWN, error=text)


def _begin(look: Look, now: datetime) -> Decision:
    work = look.work
    if now >= work.created + timedelta(seconds=work.spec.deadline_seconds):
        why = look.waits_for or "no Spark operator"
        return _end(look, now, JobReason.DEADLINE, error=f"it could not begin in time: {why}")
    if look.waits_for:
        return Decision(_pending(look, now, look.waits_for))
    wanted = work.spec.spark.runner
    if wanted == "SparkApplication" and not look.has_spark:
        return Decision(_pending(look, now, "SparkApplications are not known to this cluster"))
    runner: Runner = "SparkApplication" if look.has_spark and wanted != "Job" else "Job"
    status = _pending(look, now, f"making the {runner}").model_copy(update={"runner": runner})
    count = len(look.herd) + (len(look.readers) if isinstance(work.spec, CheckSpec) else 0)
    events = [Event(JobReason.STARTED, f"as a {runner}, on {count} members")]
    if wanted == "Auto" and not look.has_spark:
        text = "there is no Spark operator: the job runs in one pod, with a Spark of its own"
        events.append(Event(JobReason.NO_SPARK, text))
    return Decision(status, start=runner, events=tuple(events))


def _running(look: Look, now: datetime) -> Decision:
    work, workload = look.work, look.workload
    assert workload is not None
    # There is one driver in a job: when its pod has ended nobody needs to say so besides.
    if look.driver.ended is not None or workload.state in _ENDS:
        why = look.driver.ended or workload.message[:_WHY] or f"its state is {workload.state}"
        return _end(look, now, error=f"the driver ended without an outcome: {why}")
    age_s = (now - workload.created).total_seconds()
    if age_s >= work.spec.deadline_seconds:
        text = f"not done within {work.spec.deadline_seconds} s"
        return _end(look, now, JobReason.DEADLINE, error=text, stop=True)
    if workload.runner == "SparkApplication" and not workload.state and age_s >= UNTAKEN_S:
        text = (
            f"no Spark operator has taken SparkApplication {workload.name}: is {work.namespace} "
            "among the namespaces that it watches (spark.jobNamespaces)?"
        )
        return _end(look, now, JobReason.NO_SPARK, error=text, stop=True)
    status = work.new_status().model_copy(
        update={
            "observed_generation": work.generation,
            "phase": "Running",
            "runner": workload.runner,
            "started_at": workload.created,
            "progress": look.driver.progress,
            # While it runs, an error is one of an earlier attempt to submit it.
            "message": look.driver.trouble
            or ("" if workload.state == "RUNNING" else workload.message[:_WHY]),
            "conditions": _conditions(look, now, "Unknown", JobReason.RUNNING, "it runs"),
        }
    )
    return Decision(status)


def not_started(look: Look, why: str, now: datetime) -> Decision:
    """What to show where the workload could not be made: the words of who refused it."""
    if now >= look.work.created + timedelta(seconds=look.work.spec.deadline_seconds):
        error = f"it could not begin in time: {why}"
        return _end(look, now, JobReason.DEADLINE, error=error)
    return Decision(_pending(look, now, why[:_WHY]))


def _pending(look: Look, now: datetime, why: str) -> JobStatus:
    return look.work.new_status().model_copy(
        update={
            "observed_generation": look.work.generation,
            "message": why,
            "conditions": _conditions(look, now, "Unknown", JobReason.WAITING, why),
        }
    )


def _said(look: Look, now: datetime, outcome: Mapping[str, Any]) -> Decision:
    """End with the driver's word; anybody who may write to pods can have put it there."""
    if outcome.get("error") is not None:
        return _end(look, now, error=str(outcome["error"]))
    model = type(look.work.new_status())
    said = {key: value for key, value in outcome.items() if key in model.model_fields}
    if str(said.get("verdict")) not in _VERDICTS:
        said.pop("verdict", None)  # of a newer release; it is told of in the message
    try:
        found = model.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return _end(look, now, error=f"the driver's outcome is none: {where}: {first['msg']}")
    return _end(look, now, found=found, error=None, outcome=outcome)


def _end(
    look: Look,
    now: datetime,
    reason: JobReason = JobReason.FAILED,
    *,
    error: str | None,
    found: JobStatus | None = None,
    outcome: Mapping[str, Any] | None = None,
    stop: bool = False,
) -> Decision:
    """Put the end on record: nothing changes it any more."""
    work = look.work
    message = error or ""
    if error is None:
        reason, message = _result(work, outcome or {})
    truth: Truth = "True" if error is None else "False"
    if reason is JobReason.UNKNOWN:
        truth = "Unknown"
    status = (found or work.new_status()).model_copy(
        update={
            "observed_generation": work.generation,
            "phase": "Succeeded" if error is None else "Failed",
            "runner": look.workload.runner if look.workload else work.status.runner,
            "started_at": look.workload.created if look.workload else work.status.started_at,
            "finished_at": now,
            "message": message[:4096],
            "conditions": _conditions(look, now, truth, reason, message),
        }
    )
    alarming = error is not None or reason in (JobReason.DIFFERENT, JobReason.INCOMPLETE)
    told = Event(reason, message, "Warning" if alarming else "Normal")
    return Decision(status, stop=stop, events=(told,))


def _result(work: Work, outcome: Mapping[str, Any]) -> tuple[JobReason, str]:
    """The driver's outcome in a sentence."""
    where = f"at GID {outcome.get('gid')}"
    if isinstance(work.spec, SnapshotSpec):
        rows, tables = outcome.get("rows"), outcome.get("tables")
        text = f"{rows} rows of {tables} tables {where} in {outcome.get('location')}"
        removed = outcome.get("removed")
        return JobReason.SNAPSHOT_WRITTEN, f"{text}; {removed} older removed" if removed else text
    reason = _VERDICTS.get(str(outcome.get("verdict")), JobReason.INCOMPLETE)
    names = [*outcome.get("different_tables", ()), *outcome.get("different_definitions", ())]
    odd, skipped = outcome.get("odd_members", ()), outcome.get("not_compared", ())
    members, left_out = outcome.get("members", ()), outcome.get("left_out", ())
    parts = [f"{outcome.get('verdict')} {where}: {outcome.get('tables')} tables"]
    if members:
        parts[0] += f" on {', '.join(members)}"
    if left_out:
        parts.append(f"left out: {', '.join(left_out)}")
    if names:
        rows = outcome.get("different_rows")
        parts.append(f"{', '.join(names)} differ, in {rows} rows")
    if odd:
        parts.append(f"a majority contradicts {', '.join(odd)}")
    if skipped:
        parts.append(f"not compared: {', '.join(skipped)}")
    return reason, "; ".join(parts)


def _conditions(
    look: Look,
    now: datetime,
    truth: Truth,
    reason: JobReason,
    message: str,
) -> tuple[JobCondition, ...]:
    spark: tuple[Literal["True", "False"], JobReason, str] = (
        "True", JobReason.SPARK_USED, "the API server knows SparkApplications",
    )  # fmt: skip
    if not look.has_spark:
        text = "there is no Spark operator; without one a job runs in one pod"
        spark = "False", JobReason.NO_SPARK, text
    elif look.work.spec.spark.runner == "Job":
        spark = "True", JobReason.SPARK_UNUSED, "the spec asks for a Job"
    wanted = (
        (JobConditionType.COMPLETE, truth, reason, message),
        (JobConditionType.SPARK_OPERATOR, *spark),
    )
    return tuple(JobCondition.of(look.work, now, *one) for one in wanted)
