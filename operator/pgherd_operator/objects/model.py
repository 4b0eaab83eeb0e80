"""What builders are given besides the resource, and what they share."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.spec import ClusterSpec
from pgherd_operator.objects import names

Manifest = dict[str, Any]
ANY_HOST = "0.0.0.0"
"""All addresses of IPv4."""


class Role(StrEnum):
    """What a member is there for."""

    DATABASE = "database"
    WITNESS = "witness"
    READER = "reader"


def wanted(spec: ClusterSpec, role: Role) -> int:
    """How many members of a role are asked for."""
    match role:
        case Role.DATABASE:
            return spec.instances
        case Role.WITNESS:
            return spec.witnesses
        case Role.READER:
            return spec.readers


class Origin(StrEnum):
    """What a member may do on a volume that is empty."""

    FOUNDER = "Founder"
    """Found the herd with the others: only until this disk is known as a member's."""
    JOINER = "Joiner"
    """Copy another member's database and ask to be let in."""


class Retired(StrEnum):
    """What becomes of a volume whose member is none any more; no pod is made for it."""

    KEPT = "true"
    """It is kept, and never used again."""
    DOOMED = "delete"
    """It is deleted when its pod has ended, and nobody has its member in the view even then."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in the herd: a number and what sits there."""

    number: int
    role: Role
    origin: Origin


@dataclass(frozen=True, slots=True)
class Release:
    """What this release of the operator brings.

    Attributes:
        version: of the operator.
        postgres_image: with ``{version}`` for the major version.
        operator: this release's own namespace and name; empty where it has none.
        operator_namespace: where the operator runs, for network policies.
        listen_host: where the sidecars listen: all addresses of the family that pods have here.
    """

    version: str = "development"
    postgres_image: str = "ghcr.io/pgherd/postgres:{version}"
    sidecar_image: str = "ghcr.io/pgherd/sidecar:0.1.0"
    spark_image: str = "ghcr.io/pgherd/spark:0.1.0"
    operator: str = ""
    operator_namespace: str = "pgherd-system"
    listen_host: str = ANY_HOST

    @property
    def id(self) -> str:
        """Another one wherever pods would be made from other images or by another operator."""
        return digest([self.version, self.postgres_image, self.sidecar_image])


def digest(value: object) -> str:
    """A short hash of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def manifest(
    cluster: Cluster,
    api_version: str,
    kind: str,
    name: str,
    content: Mapping[str, Any],
    *,
    owned: bool = True,
) -> Manifest:
    """An object of the herd; its annotation says what was applied, so drift can be seen."""
    metadata: Manifest = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": names.labels(cluster.name),
        "annotations": {names.APPLIED: digest(content)},
    }
    if owned:
        metadata["ownerReferences"] = [cluster.owner()]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata} | dict(content)
