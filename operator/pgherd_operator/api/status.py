"""The status of a ReplicatedCluster: what is, as far as anybody told the operator.

Written whole by the reconciler, which does not decide by it: a user may edit it, a backup may
bring back an old one. Only ``cluster_id`` says something: which volumes go with a resource that is
deleted with its data, after its ledger.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, WithJsonSchema

from pgherd_operator.api.base import Reported


class ConditionType(StrEnum):
    """What a condition is about; the set is fixed, so that ``kubectl wait`` can rely on it."""

    READY = "Ready"
    PRIMARY_COMPONENT = "PrimaryComponent"
    PROGRESSING = "Progressing"
    RECOVERY_BLOCKED = "RecoveryBlocked"
    CERTIFICATES_VALID = "CertificatesValid"
    CAPTURE_ON = "CaptureOn"
    MEMBERS_AGREE = "MembersAgree"
    DATABASES_SUFFICE = "DatabasesSuffice"
    USERS_READY = "UsersReady"
    VOLUMES_SIZED = "VolumesSized"
    RECONCILED = "Reconciled"
    UPGRADED = "Upgraded"
    IMPORTED = "Imported"
    """Of herds whose spec has an import online."""


GENERATION = Annotated[int, Field(description="generation of the spec that this is about")]


Truth = Literal["True", "False", "Unknown"]
MESSAGE_MAX = 4096


class _JudgedStatus(Protocol):
    @property
    def conditions(self) -> "tuple[ConditionBase, ...]":
        """The conditions that were written last."""


class _Judged(Protocol):
    @property
    def generation(self) -> int:
        """The generation of the spec."""

    @property
    def status(self) -> _JudgedStatus:
        """The status that was written last."""


class ConditionBase(Reported):
    """As the Kubernetes API conventions define it, but for its type."""

    status: Annotated[Truth, Field(description="whether it is as its type says")]
    reason: Annotated[
        str, Field(pattern=r"^[A-Za-z]+$", max_length=128, description="why, in one word")
    ]
    message: Annotated[str, Field(max_length=MESSAGE_MAX, description="why, in words")] = ""
    observed_generation: GENERATION = 0
    last_transition_time: Annotated[datetime, Field(description="when the status changed last")]
    type: StrEnum

    @classmethod
    def of(
        cls, one: _Judged, now: datetime, kind: StrEnum, truth: Truth, reason: str, message: str
    ) -> Self:
        """Make a condition of a resource; its time is that of the last change of its status."""
        before = next((seen for seen in one.status.conditions if seen.type is kind), None)
        same = before is not None and before.status == truth
        return cls(
            type=kind,
            status=truth,
            reason=reason,
            message=message[:MESSAGE_MAX],
            observed_generation=one.generation,
            last_transition_time=before.last_transition_time if before and same else now,
        )


class Condition(ConditionBase):
    """A condition of a herd."""

    type: Annotated[
        ConditionType,
        # Without a list of the types: helm never upgrades definitions, and a newer operator's
        # status would be refused as a whole.
        WithJsonSchema({"type": "string", "pattern": "^[A-Za-z]+$", "maxLength": 64}),
        Field(description="what it is about"),
    ]


BY_TYPE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
"""A list of which each writer may own some items: what differs by its type."""


class MemberStatus(Reported):
    """One member, in its sidecar's words; without an answer only what Kubernetes shows."""

    name: Annotated[str, Field(description="of the member, and of its pod")]
    number: Annotated[int, Field(description="of the member, and of its volume")]
    role: Annotated[
        Literal["Database", "Witness", "Reader"], Field(description="what it is there for")
    ] = "Database"
    state: Annotated[str, Field(description="the sidecar's word, or Silent")] = "Silent"
    reason: Annotated[
        str | None,
        Field(description="of that state; of a silent one, why its pod does not run"),
    ] = None
    in_view: Annotated[
        Literal["Voter", "Reader", "Learner", "No", "Unknown"],
        Field(description="as the primary component says"),
    ] = "Unknown"
    gid: Annotated[int | None, Field(description="newest position applied")] = None
    lag_bytes: Annotated[
        int | None, Field(description="of the log that it has not applied yet")
    ] = None
    incidents: Annotated[
        int, Field(description="how often its database was stopped by an entry, or rebuilt")
    ] = 0
    last_incident: Annotated[
        str | None, Field(description="the newest of them, and how it ended", max_length=1024)
    ] = None
    up_to_date: Annotated[bool, Field(description="runs what the spec asks for")] = True


class ImportStatus(Reported):
    """An import online, in the words of the program that runs it."""

    phase: Annotated[
        Literal[
            "Waiting", "Looking", "Definitions", "Copying", "Indexes", "Following", "CuttingOver",
            "Finishing", "Done", "Aborting", "Aborted", "Unknown",
        ],
        Field(description="how far it is"),
    ] = "Waiting"  # fmt: skip
    message: Annotated[str, Field(description="progress, in words", max_length=4096)] = ""
    tables: Annotated[int, Field(description="of the source")] = 0
    tables_done: Annotated[int, Field(description="that are copied")] = 0
    rows_copied: Annotated[int, Field(description="so far")] = 0
    bytes_copied: Annotated[int, Field(description="so far, as text")] = 0
    bytes_of_tables: Annotated[int, Field(description="as the source has them")] = 0
    lag_seconds: Annotated[
        float | None, Field(description="how far behind the source, while it is followed")
    ] = None
    lag_bytes: Annotated[int | None, Field(description="the same, of the source's WAL")] = None


class ClusterStatus(Reported):
    """One herd."""

    observed_generation: GENERATION = 0
    cluster_id: Annotated[
        str | None, Field(description="identity of the herd, on each of its volumes")
    ] = None
    component: Annotated[
        Literal["Primary", "None", "Unknown"],
        Field(description="None: members answer and none is in a primary component"),
    ] = "Unknown"
    view: Annotated[int | None, Field(description="number of the view in force")] = None
    term: Annotated[int | None, Field(description="number of the last election")] = None
    proposer: Annotated[str | None, Field(description="the member that orders commits for all")] = (
        None
    )
    gid: Annotated[int | None, Field(description="newest position known")] = None
    members: Annotated[
        tuple[MemberStatus, ...], Field(max_length=1023, description="each by its number")
    ] = ()
    members_ready: Annotated[str, Field(description="writable of wanted, as 3/3")] = "0/0"
    instances: Annotated[int, Field(description="members with a volume, for scaling")] = 0
    selector: Annotated[str, Field(description="labels of the pods, for autoscalers")] = ""
    step: Annotated[str, Field(description="what is being done, or waited for")] = ""
    import_from: Annotated[
        ImportStatus | None, Field(description="how far an import online is")
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        Field(max_length=16, description="see docs/operator.md", json_schema_extra={**BY_TYPE}),
    ] = ()
