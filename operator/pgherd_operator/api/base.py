"""What all models of the custom resource share: spelling, strictness, and rules in CEL.

A rule that only the API server can check (it needs the old object, or quantities) is written in CEL
beside the field it is about, with the sentence that ``kubectl apply`` shows.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

RULES = "x-kubernetes-validations"

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""A name of a Kubernetes object that is also a DNS label."""
Quantity = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=30, pattern=r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPEm])?$"
    ),
]
"""A Kubernetes quantity without sign and exponent: ``500m``, ``10Gi``."""
Line = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\n\r\x00]*$")]
"""One line of text: cannot smuggle a second one into a file."""
HerdName = Annotated[
    str,
    Field(
        max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        description="the ReplicatedCluster, in the same namespace",
    ),
]  # fmt: skip
Times = Annotated[
    str,
    Field(
        min_length=9, max_length=100, pattern=r"^[0-9A-Z*,/#L-]+( [0-9A-Z*,/#L-]+){4}$",
        description="five fields as of cron: minute, hour, day, month, weekday",
    ),
]  # fmt: skip
TimeZone = Annotated[
    str, Field(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$", description="as Europe/Berlin")
]


class Section(BaseModel):
    """A part of the spec: immutable; unknown fields are errors, as they are in the CRD."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class Reported(BaseModel):
    """A part of the status: written by us, read back tolerantly (an older operator's)."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )


AnySpec = TypeVar("AnySpec", bound=BaseModel)
AnyStatus = TypeVar("AnyStatus", bound=Reported)


@dataclass(frozen=True, slots=True)
class ApiObject(Generic[AnySpec, AnyStatus]):
    """A resource beside the herd, as the API server gives it.

    Attributes:
        deleted: when its deletion was asked for; None: it was not.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    created: datetime
    spec: AnySpec
    status: AnyStatus
    deleted: datetime | None = None


def reported(model: type[AnyStatus], body: Mapping[str, Any]) -> AnyStatus:
    """Read the status of a resource, without what this release does not understand.

    A newer release has written that, or somebody's edit: a condition, a phase. The rest counts.

    Args:
        model: of the status.
        body: the resource.
    """
    data = copy.deepcopy(body.get("status"))
    while data and isinstance(data, dict):
        try:
            return model.model_validate(data)
        except ValidationError as error:
            field, item, *_ = (*error.errors()[0]["loc"], None, None)
            if field not in data:
                break
            if isinstance(item, int) and isinstance(data[field], list):
                del data[field][item]
            else:
                del data[field]
    return model()


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules, each with the message that is shown when it is false."""
    return {RULES: [{"rule": rule, "message": message} for rule, message in pairs]}


def section(description: str, **default: Any) -> Any:
    """A part of the spec that is complete by its own defaults.

    The CRD gets ``default`` (none: ``{}``), below which the API server fills in the inner defaults.
    It has to keep the part's own rules as it stands, for the API server checks it before that.
    """
    return Field(description=description, json_schema_extra={"default": default})
