"""Makes the CustomResourceDefinitions from the models.

Run as a module it writes ``crds/`` anew, and what the charts need of it; a test fails when what is
checked in differs. The API server wants *structural* schemas: no references, no ``null``, a type
everywhere.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from pgherd_operator.api import (
    CHECK,
    GROUP,
    KIND,
    MAINTENANCE,
    SCHEDULE,
    SET,
    SHORT_NAMES,
    SNAPSHOT,
    SUBSCRIPTION,
    VERSION,
    reference,
)
from pgherd_operator.api.jobs import (
    CheckSpec,
    CheckStatus,
    ScheduleSpec,
    ScheduleStatus,
    SnapshotSpec,
    SnapshotStatus,
)
from pgherd_operator.api.maintenance import MaintenanceSpec, MaintenanceStatus
from pgherd_operator.api.spec import ClusterSpec
from pgherd_operator.api.status import ClusterStatus
from pgherd_operator.api.subscriptions import (
    SetSpec,
    SetStatus,
    SubscriptionSpec,
    SubscriptionStatus,
)

NAME_MAX = 40
"""Longest name of a resource: names of its objects add up to 23 characters, a label has 63."""
_Column = tuple[str, str, str, int]
"""Name, type and path of a printer's column; 1 if it is shown by ``--output=wide`` only."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What is defined of one kind, besides its models.

    Attributes:
        default: what the API server fills in for an absent spec; None where one is needed.
        scaled: ``kubectl scale`` works.
        reserved: names that mean something else.
    """

    kind: str
    short_names: tuple[str, ...]
    description: str
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[_Column, ...]
    default: Mapping[str, Any] | None = None
    scaled: bool = False
    name_max: int = NAME_MAX
    reserved: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """As in the API's paths."""
        return f"{self.kind.lower()}s"

    @property
    def file_name(self) -> str:
        """Of the definition."""
        return f"{GROUP}_{self.plural}.yaml"


_AGE: _Column = ("Age", "date", ".metadata.creationTimestamp", 0)
_JOB: tuple[_Column, ...] = (
    ("Cluster", "string", ".spec.cluster", 0),
    ("Phase", "string", ".status.phase", 0),
)
HERD = Resource(
    KIND, tuple(SHORT_NAMES), "A herd: PostgreSQL servers that all take writes.",
    ClusterSpec, ClusterStatus,
    (
        ("Members", "string", ".status.membersReady", 0),
        ("Component", "string", ".status.component", 0),
        ("GID", "integer", ".status.gid", 0),
        ("View", "integer", ".status.view", 1),
        ("Term", "integer", ".status.term", 1),
        ("Proposer", "string", ".status.proposer", 1),
        ("Import", "string", ".status.importFrom.phase", 1),
        _AGE,
        ("Step", "string", ".status.step", 0),  # the longest, so the last
    ),
    default={"instances": 3, "witnesses": 0}, scaled=True,
)  # fmt: skip
RESOURCES = (
    HERD,
    Resource(
        SNAPSHOT, (), "A copy of a herd's rows and definitions at one GID, made once.",
        SnapshotSpec, SnapshotStatus,
        (
            *_JOB,
            ("GID", "integer", ".status.gid", 0),
            ("Rows", "integer", ".status.rows", 0),
            ("Bytes", "integer", ".status.bytes", 0),
            ("Progress", "string", ".status.progress", 1),
            ("Location", "string", ".status.location", 1),
            ("Message", "string", ".status.message", 1),
            _AGE,
        ),
    ),
    Resource(
        SCHEDULE, (), "Snapshots of a herd at certain times.", ScheduleSpec, ScheduleStatus,
        (
            ("Cluster", "string", ".spec.template.cluster", 0),
            ("Schedule", "string", ".spec.schedule", 0),
            ("Suspended", "boolean", ".spec.suspend", 0),
            ("Active", "string", ".status.active", 0),
            ("Last", "date", ".status.lastSuccessfulTime", 0),
            ("Message", "string", ".status.message", 1),
            _AGE,
        ),
        name_max=NAME_MAX - 10,  # a Snapshot's name is the schedule's and a time
    ),
    Resource(
        CHECK, (), "A comparison of all members of a herd at one GID, made once.",
        CheckSpec, CheckStatus,
        (
            *_JOB,
            ("Verdict", "string", ".status.verdict", 0),
            ("GID", "integer", ".status.gid", 0),
            ("Tables", "integer", ".status.tables", 0),
            ("Progress", "string", ".status.progress", 1),
            ("Message", "string", ".status.message", 1),
            _AGE,
        ),
    ),
    Resource(
        MAINTENANCE, (), "Work that members of a herd do on their own servers at certain times.",
        MaintenanceSpec, MaintenanceStatus,
        (
            ("Cluster", "string", ".spec.cluster", 0),
            ("Schedule", "string", ".spec.schedule", 0),
            ("Suspended", "boolean", ".spec.suspend", 0),
            ("Active", "string", ".status.active", 0),
            ("Last", "string", ".status.runs[0].phase", 0),
            ("Begun", "date", ".status.lastScheduleTime", 0),
            ("Message", "string", ".status.message", 1),
            _AGE,
        ),
        name_max=NAME_MAX - 10,  # a run's name is the schedule's and a time
    ),
    Resource(
        SET, (), "Tables and sequences of a herd that plain servers can follow together.",
        SetSpec, SetStatus,
        (
            ("Cluster", "string", ".spec.cluster", 0),
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
            ("Tables", "integer", ".status.count", 0),
            ("Subscriptions", "string", ".status.subscriptions", 1),
            _AGE,
            ("Message", "string", ".status.message", 0),
        ),
    ),
    Resource(
        SUBSCRIPTION, (), "A plain PostgreSQL server that follows a set of a herd's tables.",
        SubscriptionSpec, SubscriptionStatus,
        (
            ("Cluster", "string", ".spec.cluster", 0),
            ("Set", "string", ".spec.set", 0),
            ("State", "string", ".status.state", 0),
            ("GID", "integer", ".status.gid", 0),
            ("Lag", "integer", ".status.lagGids", 0),
            ("Seconds", "integer", ".status.lagSeconds", 0),
            ("Tables", "string", ".status.tables", 0),
            ("Provider", "string", ".spec.provider", 1),
            _AGE,
            ("Message", "string", ".status.message", 0),
        ),
        reserved=("herd",),
    ),
)  # fmt: skip


def _name_rule(longest: int) -> dict[str, str]:
    return {
        "rule": f"size(self.metadata.name) <= {longest} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": f"the name is a DNS label of at most {longest} characters "
        "that begins with a letter",
    }


def _reserved(resource: Resource) -> list[dict[str, str]]:
    return [
        {"rule": f"self.metadata.name != '{name}'", "message": f"{name} means something else here"}
        for name in resource.reserved
    ]


def definition(resource: Resource = HERD) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
                "categories": ["all"],
            },
            "versions": [_version(resource)],
        },
    }


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema in the form that the API server accepts."""
    schema = model.model_json_schema(by_alias=True)
    found = _inline(schema, schema.get("$defs", {}))
    assert isinstance(found, dict)
    return found


def _version(resource: Resource) -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if wide else {})
        for name, kind, path, wide in resource.columns
    ]
    subresources: dict[str, Any] = {"status": {}}
    if resource.scaled:
        subresources["scale"] = {
            "specReplicasPath": ".spec.instances",
            "statusReplicasPath": ".status.instances",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _schema(resource)},
    }


def _schema(resource: Resource) -> dict[str, Any]:
    """Of the whole resource."""
    default = {} if resource.default is None else {"default": dict(resource.default)}
    return {
        "description": resource.description,
        "type": "object",
        **({} if default else {"required": ["spec"]}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(resource.spec) | default,
            "status": structural(resource.status),
        },
        "x-kubernetes-validations": [_name_rule(resource.name_max), *_reserved(resource)],
    }


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Resolve references, drop what the API server does not know."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    node = dict(node)
    if "$ref" in node:
        target = dict(definitions[node.pop("$ref").rpartition("/")[2]])
        return _inline(target | node, definitions)
    if "anyOf" in node:  # always T | None here: an optional field may be left out, not null
        (one,) = [item for item in node.pop("anyOf") if item.get("type") != "null"]
        return _inline(one | node, definitions)
    return _cleaned(node, definitions)


def _cleaned(node: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    properties = node.pop("properties", None)
    is_object = node.get("type") == "object"
    for useless in ("title", "$defs"):
        node.pop(useless, None)
    if node.get("default", ...) is None:
        del node["default"]
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if properties is not None or node.get("additionalProperties") is False:
        node.pop("additionalProperties", None)  # unknown fields are refused or pruned anyway
    if is_object and properties is None and node.get("additionalProperties") in (None, True):
        node.pop("additionalProperties", None)
        node["x-kubernetes-preserve-unknown-fields"] = True
    found = {key: _inline(value, definitions) for key, value in node.items()}
    if properties is not None:
        found["properties"] = {
            name: _inline(value, definitions) for name, value in properties.items()
        }
    return found


def render(resource: Resource) -> str:
    """A definition's file."""
    head = "# Generated from operator/pgherd_operator/api: do not edit.\n"
    return head + yaml.safe_dump(definition(resource), sort_keys=False, width=100)


def values_schema() -> str:
    """The schema of the values of the chart for one herd, in which nothing may be misspelt."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": {"type": "object"},
            "name": {"type": "string", "maxLength": NAME_MAX},
            "spec": _closed(structural(ClusterSpec)),
        },
    }
    return json.dumps(schema, indent=2) + "\n"


def _closed(node: Any) -> Any:
    """A schema for validators that know nothing of Kubernetes, and prune nothing."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _closed(value) for key, value in node.items() if key[:2] != "x-"}
    if "properties" in found and found.get("type") == "object":
        found["additionalProperties"] = False
    return found


def files() -> dict[Path, str]:
    """What is generated, by path in the repository."""
    found = {Path("charts/pgherd-cluster/values.schema.json"): values_schema()}
    for resource in RESOURCES:
        for directory in ("crds", "charts/pgherd/crds"):
            found[Path(directory) / resource.file_name] = render(resource)
    found[Path("docs/reference.md")] = reference.page(
        f"{GROUP}/{VERSION}",
        {one.kind: (one.description, _schema(one)) for one in RESOURCES},
    )
    return found


def main() -> None:
    """Write all of them."""
    repository = Path(__file__).parents[3]
    for path, content in files().items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(content)


if __name__ == "__main__":
    main()
