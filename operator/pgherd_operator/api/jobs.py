"""Jobs on a herd: what a Snapshot, a SnapshotSchedule and a ConsistencyCheck ask for, and tell.

A job runs once: its spec cannot be changed, and what its status says of its end is final.
"""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, field_validator

from pgherd_operator.api.base import (
    HerdName,
    Line,
    Name,
    Quantity,
    Reported,
    Section,
    Times,
    TimeZone,
    rules,
    section,
)
from pgherd_operator.api.places import Destination, Volume
from pgherd_operator.api.quantity import parse_quantity
from pgherd_operator.api.spec import ContainerResources, NodeSelector, Tolerations
from pgherd_operator.api.status import BY_TYPE, GENERATION, ConditionBase

_EMPTY: dict[str, str] = {}
_FINAL = rules(("self == oldSelf", "a job runs once and cannot be changed: make another one"))
_Share = Annotated[
    int,
    Field(
        ge=1, le=100,
        description="percent of one core of each member that may be taken, by one session that "
        "rests; 100: no rests, and as many sessions as Spark has cores",
    ),
]  # fmt: skip
_REQUESTS = {"cpu": "500m", "memory": "2Gi"}


_LEAST_HEAP, _LEAST_PART = "512Mi", "8Ki"
"""With less Spark does not start; no part is smaller than a page."""


def _too_small(least: str, name: str) -> str:
    return f"{name} is at least {least}; m is a thousandth, and Mi what Spark calls m"


def _least_rule(least: str, name: str) -> dict[str, Any]:
    return rules((f"quantity(self).compareTo(quantity('{least}')) >= 0", _too_small(least, name)))


def _at_least(least: str, name: str) -> Callable[[str], str]:
    """The same for resources that were there before the rule."""

    def checked(text: str) -> str:
        if parse_quantity(text) < parse_quantity(least):
            raise ValueError(_too_small(least, name))
        return text

    return checked


class Spark(Section):
    """What the job runs on."""

    runner: Annotated[
        Literal["Auto", "SparkApplication", "Job"],
        Field(
            description="Auto: a SparkApplication where the Spark operator is installed, else a "
            "Job with a Spark of its own in one pod"
        ),
    ] = "Auto"
    image: Annotated[Line | None, Field(description="default: the operator's own release")] = None
    service_account: Annotated[
        Name, Field(description="of the driver of a SparkApplication: it makes the executors")
    ] = "spark-operator-spark"
    executors: Annotated[int, Field(ge=1, le=1000, description="pods of a SparkApplication")] = 2
    cores: Annotated[
        int, Field(ge=1, le=64, description="tasks at a time, for each executor or in the Job")
    ] = 2
    memory: Annotated[
        Quantity,
        AfterValidator(_at_least(_LEAST_HEAP, "spark.memory")),
        Field(
            description="of Spark's heap in each pod; Python and programs take as much",
            json_schema_extra=_least_rule(_LEAST_HEAP, "spark.memory"),
        ),
    ] = "1Gi"
    resources: Annotated[
        ContainerResources, section("requests and limits of a Job's pod", requests=_REQUESTS)
    ] = ContainerResources(requests=_REQUESTS)
    cpu_request: Annotated[Quantity, Field(description="of each pod of a SparkApplication")] = (
        "500m"
    )
    node_selector: NodeSelector = _EMPTY
    tolerations: Tolerations = ()


class JobSpec(Section):
    """What all jobs have in common."""

    cluster: HerdName
    allow_missing: Annotated[
        bool, Field(description="leave out members that are not up, in place of failing")
    ] = False
    part_size: Annotated[
        Quantity,
        AfterValidator(_at_least(_LEAST_PART, "partSize")),
        Field(
            description="of a table that a task reads",
            json_schema_extra=_least_rule(_LEAST_PART, "partSize"),
        ),
    ] = "256Mi"
    deadline_seconds: Annotated[
        int, Field(ge=60, le=43200, description="after which the job is ended, and has failed")
    ] = 21600
    ttl_seconds_after_finished: Annotated[
        int | None, Field(ge=0, description="then this resource is deleted; what was written stays")
    ] = None
    spark: Annotated[Spark, section("what the job runs on")] = Spark()


class _SnapshotFields(JobSpec):
    """Fields of a snapshot, and of the snapshots of a schedule."""

    destination: Destination
    read: Annotated[
        int, Field(ge=1, le=31, description="members to read from, each a share of the tables")
    ] = 1
    share: _Share = 100


class SnapshotSpec(_SnapshotFields):
    """A copy of the herd's rows and definitions at one GID."""

    model_config = Section.model_config | {"json_schema_extra": _FINAL}

    keep: Annotated[
        int | None,
        Field(
            ge=1, le=10000,
            description="then remove all but the newest of this herd and series there",
        ),
    ] = None  # fmt: skip
    series: Annotated[
        Name | None,
        Field(description="those of no series belong to each; a schedule gives its own name"),
    ] = None


class CheckSpec(JobSpec):
    """A comparison of all rows and definitions of all members, readers too, at one GID."""

    model_config = Section.model_config | {"json_schema_extra": _FINAL}

    report: Annotated[
        Volume | None, Field(description="where to write JSON, Parquet and a page to look at")
    ] = None
    max_rows: Annotated[
        int, Field(ge=0, le=100000, description="differing rows to name for each table")
    ] = 100
    share: _Share = 15


class SnapshotTemplate(_SnapshotFields):
    """The snapshots that a schedule makes."""


class ScheduleSpec(Section):
    """Snapshots at certain times. While one runs no other begins."""

    schedule: Times
    time_zone: TimeZone = "UTC"
    suspend: Annotated[bool, Field(description="no more snapshots until it is false")] = False
    keep: Annotated[
        int | None, Field(ge=1, le=10000, description="snapshots of this schedule to keep there")
    ] = None
    starting_deadline_seconds: Annotated[
        int, Field(ge=10, description="a time that was missed by more is skipped")
    ] = 3600
    failed_history_limit: Annotated[
        int, Field(ge=0, le=100, description="failed Snapshots to keep, as resources")
    ] = 3
    template: SnapshotTemplate


Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


class JobConditionType(StrEnum):
    """What a condition of a job is about."""

    COMPLETE = "Complete"
    SPARK_OPERATOR = "SparkOperator"


class JobCondition(ConditionBase):
    """A condition of a job."""

    type: Annotated[JobConditionType, Field(description="what it is about")]


_Message = Annotated[str, Field(max_length=4096, description="how it is, in words")]


class JobStatus(Reported):
    """A job."""

    observed_generation: GENERATION = 0
    phase: Annotated[Phase, Field(description="Succeeded and Failed are for good")] = "Pending"
    runner: Annotated[str | None, Field(description="SparkApplication or Job")] = None
    progress: Annotated[str, Field(description="what it does, and how many tasks are done")] = ""
    message: _Message = ""
    started_at: Annotated[datetime | None, Field(description="when its workload was made")] = None
    finished_at: Annotated[datetime | None, Field(description="when its end was seen")] = None
    gid: Annotated[int | None, Field(description="the position that was read")] = None
    location: Annotated[str | None, Field(description="what was written, in its destination")] = (
        None
    )
    tables: Annotated[int | None, Field(description="how many were read")] = None
    conditions: Annotated[
        tuple[JobCondition, ...],
        Field(max_length=16, description="see docs/jobs.md", json_schema_extra={**BY_TYPE}),
    ] = ()

    @property
    def has_begun(self) -> bool:
        """Its workload was made, whether or not that is still there."""
        return self.phase != "Pending" or self.runner is not None

    @field_validator("phase", mode="before")
    @classmethod
    def _of_a_newer_release(cls, phase: Any) -> Any:
        """A job in a phase of a newer release has begun, and is never begun again."""
        return phase if phase in get_args(Phase) else "Running"


class SnapshotStatus(JobStatus):
    """A snapshot."""

    rows: Annotated[int | None, Field(description="how many were written")] = None
    bytes: Annotated[int | None, Field(description="that they take there")] = None


class CheckStatus(JobStatus):
    """A consistency check."""

    verdict: Annotated[
        Literal["consistent", "different", "incomplete"] | None,
        Field(
            description="incomplete: not everything could be compared, or one member of several "
            "only; it proves nothing"
        ),
    ] = None
    different_rows: Annotated[int | None, Field(description="in all tables together")] = None
    different_tables: Annotated[
        tuple[str, ...], Field(max_length=100, description="whose rows differ")
    ] = ()
    different_definitions: Annotated[
        tuple[str, ...], Field(max_length=100, description="tables, indexes and more")
    ] = ()
    not_compared: Annotated[
        tuple[str, ...], Field(max_length=100, description="what was skipped, and why")
    ] = ()
    odd_members: Annotated[
        tuple[str, ...], Field(max_length=100, description="whom a majority contradicts")
    ] = ()
    members: Annotated[
        tuple[str, ...], Field(max_length=100, description="that were compared")
    ] = ()
    left_out: Annotated[
        tuple[str, ...],
        Field(max_length=100, description="members that were not compared (allowMissing), and why"),
    ] = ()


class ScheduleStatus(Reported):
    """A schedule."""

    observed_generation: GENERATION = 0
    last_schedule_time: Annotated[
        datetime | None, Field(description="of the last Snapshot that was made")
    ] = None
    next_schedule_time: Annotated[datetime | None, Field(description="of the next one")] = None
    last_successful_time: Annotated[
        datetime | None, Field(description="when one succeeded last")
    ] = None
    active: Annotated[str | None, Field(description="the Snapshot under way")] = None
    message: _Message = ""
