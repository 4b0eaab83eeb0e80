"""Sets of tables, and plain servers that follow them: ReplicationSet and Subscription."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pgherd_operator.api.base import Name, Quantity, Reported, Section, rules
from pgherd_operator.api.status import BY_TYPE, GENERATION, ConditionBase

TABLES_SHOWN = 500
_NO_TABLES = "give tables or table: a set has at least one"
_Pattern = Annotated[str, Field(min_length=1, max_length=512)]
_Selection = Annotated[str, Field(min_length=1, max_length=8192)]
_HerdName = Annotated[
    str,
    Field(
        max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        description="the ReplicatedCluster, in the same namespace; for good",
        json_schema_extra=rules(("self == oldSelf", "cluster is for good: make another resource")),
    ),
]  # fmt: skip
_Following = Annotated[
    str, Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
]


class SetSpec(Section):
    """Which tables and sequences of a herd can be followed together."""

    model_config = Section.model_config | {
        "json_schema_extra": rules(("size(self.tables) + size(self.table) > 0", _NO_TABLES))
    }

    cluster: _HerdName
    tables: Annotated[
        tuple[_Pattern, ...],
        Field(
            max_length=256,
            description="patterns, as sales.*; a table that is made later is added, too",
        ),
    ] = ()
    exclude: Annotated[
        tuple[_Pattern, ...],
        Field(
            max_length=256,
            description="patterns of tables that are not in it though tables means them",
        ),
    ] = ()
    table: Annotated[
        tuple[_Selection, ...],
        Field(
            max_length=64,
            description="each with a row filter or a column list, as FOR TABLE of "
            "CREATE PUBLICATION: sales.item (id, region) WHERE (region = 'EU')",
        ),
    ] = ()
    sequences: Annotated[
        tuple[_Pattern, ...],
        Field(max_length=256, description="patterns of sequences that columns of these own"),
    ] = ()
    deletion_policy: Annotated[
        Literal["Drop", "Retain"],
        Field(description="of the set in the herd; Drop waits for its Subscriptions to go"),
    ] = "Drop"

    @model_validator(mode="after")
    def _has_tables(self) -> Self:
        if not (self.tables or self.table):
            raise ValueError(_NO_TABLES)
        return self


class SubscriberSecret(Section):
    """A Secret in the same namespace that says how members reach the subscriber."""

    name: Annotated[Name, Field(description="of the Secret")]
    key: Annotated[
        str | None,
        Field(
            min_length=1, max_length=253,
            description="its key with a connection string of libpq; default: the keys host, port, "
            "user or username, password, dbname, sslmode",
        ),
    ] = None  # fmt: skip


class SubscriptionSpec(Section):
    """A plain PostgreSQL server that follows a set of a herd's tables."""

    cluster: _HerdName
    set: Annotated[
        str,
        Field(
            max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
            description="the ReplicationSet, in the same namespace; for good",
            json_schema_extra=rules(("self == oldSelf", "set is for good: make another resource")),
        ),
    ]  # fmt: skip
    secret: Annotated[SubscriberSecret, Field(description="how members reach the subscriber")]
    keep_bytes: Annotated[
        Quantity,
        Field(
            description="so much of its log each member keeps for the subscriber",
            json_schema_extra=rules(
                ("quantity(self).compareTo(quantity('1Mi')) >= 0", "keepBytes is at least 1Mi")
            ),
        ),
    ] = "8Gi"
    keep_hours: Annotated[
        int,
        Field(
            ge=1, le=744,
            description="for so long members keep it since they reached the subscriber last",
        ),
    ] = 72  # fmt: skip
    provider: Annotated[
        _Following | None,
        Field(
            description="a Subscription to the same set with forward, whose subscriber feeds this "
            "one; default: the members do",
            json_schema_extra=rules(("self != 'herd'", "the members feed it without provider")),
        ),
    ] = None
    forward: Annotated[
        bool, Field(description="the subscriber keeps what it gets, and may feed others")
    ] = False
    resume: Annotated[
        int, Field(ge=0, description="change it to go on with one that was stopped")
    ] = 0
    anew: Annotated[
        int, Field(ge=0, description="raise it to have everything copied anew")
    ] = 0  # fmt: skip
    deletion_policy: Annotated[
        Literal["Unsubscribe", "Retain"],
        Field(description="Retain: it is fed on when this resource is gone"),
    ] = "Unsubscribe"


class LeavingSpec(Reported):
    """What the end of either resource needs of its spec; the rest may be of another release."""

    cluster: _HerdName
    deletion_policy: Literal["Drop", "Unsubscribe", "Retain"] = "Unsubscribe"

    @property
    def is_retained(self) -> bool:
        """Whether the herd goes on as it is."""
        return self.deletion_policy == "Retain"


class FollowingConditionType(StrEnum):
    """The subjects of conditions."""

    READY = "Ready"
    FOLLOWING = "Following"


class FollowingCondition(ConditionBase):
    """A condition of a set or a subscription."""

    type: Annotated[FollowingConditionType, Field(description="what it is about")]


_Message = Annotated[str, Field(max_length=4096, description="how it is, in words")]
_Conditions = Annotated[
    tuple[FollowingCondition, ...],
    Field(max_length=16, description="see docs/subscriptions.md", json_schema_extra={**BY_TYPE}),
]


class SetStatus(Reported):
    """A set."""

    observed_generation: GENERATION = 0
    ordered: Annotated[int, Field(description="generation of the spec that the herd has")] = 0
    count: Annotated[int | None, Field(description="how many tables it has")] = None
    tables: Annotated[
        tuple[str, ...],
        Field(max_length=TABLES_SHOWN, description="that it has, at most 500"),
    ] = ()
    sequences: Annotated[
        tuple[str, ...], Field(max_length=TABLES_SHOWN, description="that it has, at most 500")
    ] = ()
    chosen: Annotated[
        tuple[str, ...], Field(max_length=TABLES_SHOWN, description="the tables that table names")
    ] = ()
    subscriptions: Annotated[
        tuple[str, ...], Field(max_length=TABLES_SHOWN, description="who subscribes to it")
    ] = ()
    message: _Message = ""
    conditions: _Conditions = ()


_State = Annotated[str, Field(max_length=32, pattern=r"^[a-z]+$")]
"""No list: helm never upgrades definitions, and members of a newer release may say another word."""


class SubscriptionStatus(Reported):
    """A subscription."""

    observed_generation: GENERATION = 0
    ordered: Annotated[int, Field(description="generation of the spec that the herd has")] = 0
    state: Annotated[
        _State | None,
        Field(description="copying, following, stopped, unreachable, or waiting to be heard of"),
    ] = None
    reason: Annotated[
        str, Field(max_length=4096, description="why it is stopped or unreachable, and what to do")
    ] = ""
    gid: Annotated[int | None, Field(description="position of the herd that it shows")] = None
    lag_gids: Annotated[int | None, Field(description="how many positions it is behind")] = None
    lag_seconds: Annotated[
        int | None, Field(description="for how long the herd has had something newer, at most")
    ] = None
    tables_done: Annotated[int | None, Field(description="tables that it has a copy of")] = None
    tables_all: Annotated[int | None, Field(description="tables of the set")] = None
    tables: Annotated[str, Field(description="the one of the other, as 2/3")] = ""
    copy_number: Annotated[
        int | None, Field(description="of the copy that it has; another one after each anew")
    ] = None
    anew: Annotated[int | None, Field(description="spec.anew as it was carried out last")] = None
    message: _Message = ""
    conditions: _Conditions = ()
