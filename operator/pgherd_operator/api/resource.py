"""A ReplicatedCluster as the API server gives it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pgherd_operator.api import GROUP, KIND, OPERATOR, VERSION
from pgherd_operator.api.base import reported
from pgherd_operator.api.spec import OWNED_PARAMETERS, OWNED_PREFIXES, ClusterSpec
from pgherd_operator.api.status import ClusterStatus


class InvalidSpec(Exception):
    """The spec passed the API server and cannot be used all the same; the message is one line."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The resource, without what nobody here needs.

    Attributes:
        status: as last written; for transition times only.
        operator: the release of the operator that looks after it; empty while none has said so.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    finalizers: tuple[str, ...]
    spec: ClusterSpec
    status: ClusterStatus
    operator: str = ""

    def owner(self) -> dict[str, Any]:
        """The owner reference that makes an object go with the resource."""
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def without_owned(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec without those parameters of PostgreSQL that are pgherd's own."""
    found = dict(spec)
    postgres = found.get("postgres")
    if isinstance(postgres, dict) and isinstance(postgres.get("parameters"), dict):
        kept = {
            name: value
            for name, value in postgres["parameters"].items()
            if name not in OWNED_PARAMETERS and not name.startswith(OWNED_PREFIXES)
        }
        found["postgres"] = {**postgres, "parameters": kept}
    return found


def parse_resource(body: Mapping[str, Any]) -> Cluster:
    """Read a resource.

    Raises:
        InvalidSpec: the spec is not usable (an older CRD let it pass, say).
    """
    metadata = body["metadata"]
    try:
        spec = ClusterSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["spec", *(str(part) for part in first["loc"])])
        raise InvalidSpec(f"{where}: {first['msg']}") from error
    return Cluster(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers", ())),
        spec=spec,
        status=reported(ClusterStatus, body),
        operator=(metadata.get("annotations") or {}).get(OPERATOR, ""),
    )
