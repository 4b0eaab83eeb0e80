"""Makes the CustomResourceDefinition from the models.

Run as a module it writes ``crds/`` anew, and what the charts need of it; a test fails when what is
checked in differs. The API server wants *structural* schemas: no references, no ``null``, a type
everywhere.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from pgherd_operator.api import GROUP, KIND, PLURAL, SHORT_NAMES, VERSION
from pgherd_operator.api.spec import ClusterSpec
from pgherd_operator.api.status import ClusterStatus

FILE_NAME = f"{GROUP}_{PLURAL}.yaml"
NAME_MAX = 40
"""Longest name of a herd: names of its objects add up to 23 characters, a label has 63."""

_COLUMNS = (
    ("Members", "string", ".status.membersReady", 0),
    ("Component", "string", ".status.component", 0),
    ("GID", "integer", ".status.gid", 0),
    ("View", "integer", ".status.view", 1),
    ("Term", "integer", ".status.term", 1),
    ("Proposer", "string", ".status.proposer", 1),
    ("Step", "string", ".status.step", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
_SPEC_DEFAULT = {"instances": 3, "witnesses": 0}
_NAME_RULE = {
    "rule": f"size(self.metadata.name) <= {NAME_MAX} && "
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "message": f"the name of a herd is a DNS label of at most {NAME_MAX} characters "
    "that begins with a letter",
}


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": SHORT_NAMES,
                "categories": ["all"],
            },
            "versions": [_version()],
        },
    }


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema in the form that the API server accepts."""
    schema = model.model_json_schema(by_alias=True)
    found = _inline(schema, schema.get("$defs", {}))
    assert isinstance(found, dict)
    return found


def _version() -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if wide else {})
        for name, kind, path, wide in _COLUMNS
    ]
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.instances",
                "statusReplicasPath": ".status.instances",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": columns,
        "schema": {
            "openAPIV3Schema": {
                "description": "A herd: PostgreSQL servers that all take writes.",
                "type": "object",
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": structural(ClusterSpec) | {"default": _SPEC_DEFAULT},
                    "status": structural(ClusterStatus),
                },
                "x-kubernetes-validations": [_NAME_RULE],
            }
        },
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


def render() -> str:
    """The file's content."""
    head = "# Generated from operator/pgherd_operator/api: do not edit.\n"
    return head + yaml.safe_dump(definition(), sort_keys=False, width=100)


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
    return {
        Path("crds") / FILE_NAME: render(),
        Path("charts/pgherd/crds") / FILE_NAME: render(),
        Path("charts/pgherd-cluster/values.schema.json"): values_schema(),
    }


def main() -> None:
    """Write all of them."""
    repository = Path(__file__).parents[3]
    for path, content in files().items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(content)


if __name__ == "__main__":
    main()
