"""Writes docs/reference.md: every field of every resource, from the same models as the definitions.

Written by ``python -m pgherd_operator.api.schema`` with all else that is generated.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = """# Reference of the resources

Generated from the operator's models by `python -m pgherd_operator.api.schema`: do not edit. All are
`apiVersion: {version}`. The API server checks them; what is below *Rules* is what `kubectl apply`
answers.
"""


def page(version: str, resources: Mapping[str, tuple[str, Mapping[str, Any]]]) -> str:
    """The page.

    Args:
        version: of the API.
        resources: description and the schema of the whole resource, by kind.
    """
    parts = [_HEAD.format(version=version)]
    for kind, (description, schema) in resources.items():
        parts.append(f"## {kind}\n\n{description}\n")
        for section in ("spec", "status"):
            node = schema["properties"][section]
            parts.append(_table(section, node, required=schema.get("required", ())))
        rules = [*_rules(schema)]
        if rules:
            parts.append("Rules:\n\n" + "\n".join(f"- {rule}" for rule in rules) + "\n")
    return "\n".join(parts)


def _table(section: str, node: Mapping[str, Any], required: Any) -> str:
    lines = [f"| `{section}` | type | default | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{path}` | {_type(field)} | {_default(field, needed=needed)} | {_about(field)} |"
        for path, field, needed in _fields(node, "")
    ]
    return "\n".join(lines) + "\n"


def _fields(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Fields with their paths, those of a part right below it."""
    needed = set(node.get("required", ()))
    for name, field in node.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, field, name in needed
        yield from _fields(field, here)
        if isinstance(field.get("items"), dict):
            yield from _fields(field["items"], f"{here}[]")


def _type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"map of {_type(field['additionalProperties'])}"
    kind = str(field["type"])
    return "time" if field.get("format") == "date-time" else kind


def _default(field: Mapping[str, Any], *, needed: bool) -> str:
    if needed:
        return "*needed*"
    if "default" not in field or field["default"] in ({}, []):
        return ""
    return f"`{json.dumps(field['default'])}`"


def _about(field: Mapping[str, Any]) -> str:
    described = str(field.get("description", "")).split("\n", 1)[0]
    low, high = field.get("minimum"), field.get("maximum")
    limits = [f"{low} to {high}"] if high is not None else [f"at least {low}"] if low else []
    return "; ".join([*([described] if described else []), *limits])


def _rules(node: Any) -> Iterator[str]:
    """The sentences of all rules, each once, in the order of the fields."""
    seen: dict[str, None] = {}

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            for rule in part.get("x-kubernetes-validations", ()):
                seen[rule["message"]] = None
            for value in part.values():
                collect(value)
        elif isinstance(part, list):
            for value in part:
                collect(value)

    collect(node)
    return iter(seen)
