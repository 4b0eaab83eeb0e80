"""Maintenance at certain times: what a MaintenanceSchedule asks for, and tells."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pgherd_operator.api.base import HerdName, Reported, Section, Times, TimeZone, rules
from pgherd_operator.api.status import BY_TYPE, GENERATION, ConditionBase

RUNS_SHOWN = 10
_Table = Annotated[str, Field(min_length=1, max_length=253)]
_Statement = Annotated[str, Field(min_length=1, max_length=8192)]
_Member = Annotated[
    str, Field(min_length=3, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?-[0-9]+$")
]
_SOMETHING = rules(
    (
        "size(self.sql) + size(self.vacuumFull) + size(self.reindex) > 0",
        "there is nothing to do: give sql, vacuumFull or reindex",
    )
)


class MaintenanceSpec(Section):
    """Work that members of a herd do on their own servers. While it runs no other time begins."""

    model_config = Section.model_config | {"json_schema_extra": _SOMETHING}

    cluster: HerdName
    schedule: Times
    time_zone: TimeZone = "UTC"
    suspend: Annotated[bool, Field(description="no more of it until it is false")] = False
    starting_deadline_seconds: Annotated[
        int, Field(ge=10, description="a time that was missed by more is skipped")
    ] = 3600
    sql: Annotated[
        tuple[_Statement, ...],
        Field(max_length=64, description="statements of one server only, see docs/maintenance.md"),
    ] = ()
    vacuum_full: Annotated[
        tuple[_Table, ...], Field(max_length=64, description="tables to write anew")
    ] = ()
    reindex: Annotated[
        tuple[_Table, ...],
        Field(max_length=64, description="tables whose indexes are to be written anew"),
    ] = ()
    members: Annotated[
        tuple[_Member, ...],
        Field(max_length=64, description="as herd-1; default: all that vote and have a database"),
    ] = ()
    one_by_one: Annotated[
        bool, Field(description="none begins before the one before it is in service again")
    ] = False
    drain: Annotated[bool, Field(description="a member is taken out of the services meanwhile")] = (
        False
    )
    grace_seconds: Annotated[
        int,
        Field(ge=0, le=86400, description="that sessions have to end by themselves"),
    ] = 30
    deadline_seconds: Annotated[
        int, Field(ge=1, le=604800, description="that the statements may take on one member")
    ] = 21600

    @model_validator(mode="after")
    def _has_something_to_do(self) -> Self:
        if not (self.sql or self.vacuum_full or self.reindex):
            raise ValueError("there is nothing to do: give sql, vacuumFull or reindex")
        return self


class MaintenanceConditionType(StrEnum):
    """The subjects of conditions."""

    READY = "Ready"
    SUCCEEDED = "Succeeded"


class MaintenanceCondition(ConditionBase):
    """A condition of a schedule of maintenance."""

    type: Annotated[MaintenanceConditionType, Field(description="what it is about")]


class MemberOutcome(Reported):
    """One member in a run."""

    name: Annotated[str, Field(description="of the member")]
    state: Annotated[str, Field(description="waiting, working, done, failed or cancelled")]
    begun_at: Annotated[datetime | None, Field(description="when it was taken")] = None
    seconds: Annotated[int | None, Field(description="that it took, or has taken")] = None
    error: Annotated[str, Field(max_length=1024, description="why it has failed")] = ""


class RunOutcome(Reported):
    """One time that it was done."""

    name: Annotated[str, Field(description="as `pgherd maintenance` shows it")]
    phase: Annotated[
        Literal["Running", "Succeeded", "Failed"],
        Field(description="Succeeded: on all members"),
    ] = "Running"
    created_at: Annotated[datetime | None, Field(description="when it was asked for")] = None
    members: Annotated[
        tuple[MemberOutcome, ...], Field(max_length=64, description="what became of each")
    ] = ()


class MaintenanceStatus(Reported):
    """A schedule of maintenance."""

    observed_generation: GENERATION = 0
    last_schedule_time: Annotated[
        datetime | None, Field(description="of the last run that was asked for")
    ] = None
    next_schedule_time: Annotated[datetime | None, Field(description="of the next one")] = None
    active: Annotated[str | None, Field(description="the run under way")] = None
    message: Annotated[str, Field(max_length=4096, description="how it is, in words")] = ""
    runs: Annotated[
        tuple[RunOutcome, ...], Field(max_length=RUNS_SHOWN, description="the newest first")
    ] = ()
    conditions: Annotated[
        tuple[MaintenanceCondition, ...],
        Field(max_length=16, description="see docs/maintenance.md", json_schema_extra={**BY_TYPE}),
    ] = ()
