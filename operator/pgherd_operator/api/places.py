"""Places outside of a herd where jobs write, and a new herd reads: volumes and buckets."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from pgherd_operator.api.base import Line, Name, Section, rules

_ONE_PLACE = (
    "has(self.volumeClaim) != has(self.s3)",
    "snapshots are either in a volumeClaim or in s3",
)
Path = Annotated[
    str,
    Field(
        max_length=256, pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?$"
    ),
]
"""A directory below another: relative, without dots that lead out of it."""


class Volume(Section):
    """A directory on a volume; all pods of the job mount it, so on one node, or ReadWriteMany."""

    name: Annotated[Name, Field(description="PersistentVolumeClaim in the same namespace")]
    path: Annotated[Path, Field(description="directory in the volume")] = ""


class S3(Section):
    """A bucket of an S3-compatible object store."""

    bucket: Annotated[
        str,
        Field(
            min_length=3, max_length=63, pattern=r"^[a-z0-9][a-z0-9.-]*$",
            description="its name; it has to be there",
        ),
    ]  # fmt: skip
    prefix: Annotated[Path, Field(description="what the names of all objects begin with")] = ""
    endpoint: Annotated[Line | None, Field(description="URL of the server; default: Amazon's")] = (
        None
    )
    credentials: Annotated[
        Name | None,
        Field(
            description="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what else "
            "Amazon's tools read from the environment; default: the pods' own identity"
        ),
    ] = None


class Destination(Section):
    """Where snapshots are kept."""

    model_config = Section.model_config | {"json_schema_extra": rules(_ONE_PLACE)}

    volume_claim: Volume | None = None
    s3: S3 | None = None

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        if (self.volume_claim is None) == (self.s3 is None):
            raise ValueError(_ONE_PLACE[1])
        return self
