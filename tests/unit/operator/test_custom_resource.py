"""The definition that is checked in is the models', and is one that an API server takes.

Whether its rules in CEL compile and cost little enough only an API server's own code can say; here
they are compared with what the models refuse themselves.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pgherd_operator.api import schema
from pgherd_operator.api.quantity import parse_quantity
from pgherd_operator.api.resource import InvalidSpec, parse_resource
from pgherd_operator.api.spec import OWNED_PARAMETERS, OWNED_PREFIXES, ClusterSpec
from pgherd_sidecar.agent.base.config import LimitSettings

REPOSITORY = Path(__file__).parents[3]


def spec_schema() -> dict[str, Any]:
    """The schema of the spec."""
    version = schema.definition()["spec"]["versions"][0]
    found = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert isinstance(found, dict)
    return found


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and the schemas in it."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}.{key}")


@pytest.mark.parametrize("path", schema.files(), ids=str)
def test_what_is_generated_is_checked_in(path: Path) -> None:
    assert (REPOSITORY / path).read_text() == schema.files()[path]


def test_the_schema_is_structural() -> None:
    allowed = {
        "type", "description", "default", "enum", "properties", "required", "items", "pattern",
        "additionalProperties", "minLength", "maxLength", "minimum", "maximum", "maxItems",
        "maxProperties", "format", "x-kubernetes-validations", "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields",
    }  # fmt: skip
    version = schema.definition()["spec"]["versions"][0]
    for path, node in nodes(version["schema"]["openAPIV3Schema"]):
        assert node.keys() <= allowed, path
        assert "type" in node, path
        assert not {"properties", "additionalProperties"} <= node.keys(), path


def test_defaults_of_the_definition_are_those_of_the_models() -> None:
    def filled(node: dict[str, Any], value: Any) -> Any:
        """What the API server makes of a value."""
        if node["type"] == "object" and "properties" in node:
            found = dict(value)
            for name, child in node["properties"].items():
                if name not in found and "default" in child:
                    found[name] = child["default"]
                if name in found:
                    found[name] = filled(child, found[name])
            return found
        return value

    by_server = filled(spec_schema(), {})
    by_models = ClusterSpec().model_dump(mode="json", by_alias=True, exclude_none=True)
    assert ClusterSpec.model_validate(by_server) == ClusterSpec()
    assert by_server == by_models


def test_lists_are_bounded() -> None:
    # The API server estimates what a rule may cost, and refuses one over lists without a bound.
    for path, node in nodes(spec_schema()):
        if node["type"] == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_defaults_have_what_the_rules_beside_them_name() -> None:
    # An API server checks a default against the rules before it fills in the inner defaults.
    for path, node in nodes(spec_schema()):
        if isinstance(node.get("default"), dict) and "properties" in node:
            text = " ".join(rule["rule"] for rule in node.get("x-kubernetes-validations", ()))
            named = set(re.findall(r"self\.(\w+)", text)) - set(
                re.findall(r"has\(self\.(\w+)", text)
            )
            assert named <= node["default"].keys(), path


def test_every_rule_says_what_is_wrong() -> None:
    found = [rule for _, node in nodes(spec_schema())
             for rule in node.get("x-kubernetes-validations", ())]  # fmt: skip
    assert len(found) >= 9
    assert all(rule["message"] and rule["rule"] for rule in found)


@pytest.mark.parametrize(
    "spec",
    [
        {"instances": 0},
        {"instances": 1, "witnesses": 1},
        {"instancs": 3},
        {"postgres": {"version": "14"}},
        {"postgres": {"version": "16"}},
        {"postgres": {"version": "16"}, "images": {"postgres": "p:16"}},
        {"postgres": {"pgHba": ["host all all all trust\nhost all"]}},
        {"postgres": {"parameters": {"fsync": "off"}}},
        {"postgres": {"parameters": {"event_triggers": "off"}}},
        {"postgres": {"parameters": {"include_if_exists": "/tmp/more.conf"}}},
        {"postgres": {"parameters": {"pgherd.token": "x"}}},
        {"storage": {"size": "-1Gi"}},
        {"storage": {"size": "ten"}},
        {"storage": {"size": "10K"}},
        {"resources": {"sidecar": {"requests": {"memory": "262144K"}}}},
        {"images": {"postgres": "image\n"}},
        {"images": {"pullSecrets": ["Not A Name"]}},
        {"tls": {"mode": "CertManager"}},
        {"bootstrap": {"snapshot": "s3://elsewhere"}},
        {"bootstrap": {"snapshot": {}}},
        {"bootstrap": {"snapshot": {"volumeClaim": {"name": "v", "path": "../up"}}}},
        {
            "bootstrap": {
                "importFrom": {"dsn": {"name": "d"}},
                "snapshot": {"volumeClaim": {"name": "v"}},
            }
        },
    ],
    ids=str,
)
def test_nonsense_is_refused(spec: dict[str, Any]) -> None:
    body = {"metadata": {"name": "herd", "namespace": "n", "uid": "u"}, "spec": spec}
    with pytest.raises(InvalidSpec, match=r"^spec"):
        parse_resource(body)


@pytest.mark.parametrize("resource", schema.RESOURCES, ids=lambda one: str(one.kind))
def test_every_field_is_described(resource: schema.Resource) -> None:
    (version,) = schema.definition(resource)["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    bare = [
        f"{part}{path}.{name}"
        for part in ("spec", "status")
        for path, node in nodes(parts[part])
        for name, field in node.get("properties", {}).items()
        if not field.get("description")
    ]
    assert bare == []


def rules_of(*path: str) -> dict[str, str]:
    """Rules of a part of the spec, by what they say."""
    node = spec_schema()
    for name in path:
        node = node["properties"][name]
    return {one["message"]: one["rule"] for one in node["x-kubernetes-validations"]}


def test_what_breaks_running_members_cannot_be_changed() -> None:
    (rule,) = [rule for text, rule in rules_of("tls").items() if "cannot change" in text]
    assert "self.mode == oldSelf.mode" in rule
    assert "self.issuer == oldSelf.issuer" in rule


def test_a_storage_class_that_is_wrong_or_retired_can_be_left() -> None:
    assert "x-kubernetes-validations" not in spec_schema()["properties"]["storage"]


@pytest.mark.parametrize("container", ["postgres", "sidecar"])
def test_no_request_is_larger_than_its_limit(container: str) -> None:
    (rule,) = rules_of("resources", container).values()
    assert "quantity(self.requests[name]).compareTo(quantity(self.limits[name])) <= 0" in rule


def test_a_sidecar_has_room_for_the_largest_row() -> None:
    resources = ClusterSpec().resources.sidecar
    under_load = 142_000_000  # docs/sizing.md
    copies = 8  # docs/limits.md
    assert LimitSettings().row_bytes * copies + under_load < parse_quantity(
        resources.limits["memory"]
    )


@pytest.mark.parametrize("name", OWNED_PARAMETERS)
def test_parameters_that_keep_the_herd_safe_are_not_the_users(name: str) -> None:
    rules = spec_schema()["properties"]["postgres"]["properties"]["parameters"]
    assert f"'{name}'" in rules["x-kubernetes-validations"][0]["rule"]


@pytest.mark.parametrize("prefix", OWNED_PREFIXES)
def test_files_and_settings_of_pgherd_are_not_the_users(prefix: str) -> None:
    rules = spec_schema()["properties"]["postgres"]["properties"]["parameters"]
    assert f"!name.startsWith('{prefix}')" in rules["x-kubernetes-validations"][0]["rule"]


def test_the_chart_of_a_herd_refuses_misspelt_fields() -> None:
    values = yaml.safe_load((REPOSITORY / "charts/pgherd-cluster/values.yaml").read_text())
    rules = yaml.safe_load(schema.values_schema())
    jsonschema.validate(values, rules)
    misspelt: list[dict[str, Any]] = [
        {"spec": {"instancs": 3}}, {"spec": {"storage": {"sise": "1Gi"}}}, {"sepc": {}},
    ]  # fmt: skip
    for wrong in misspelt:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, rules)


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "Ki", "M", "Mi", "Gi", "T", "Ei"]))
def test_quantities_compare_as_kubernetes_does(number: int, suffix: str) -> None:
    factors = {"": 1, "k": 10**3, "Ki": 2**10, "M": 10**6, "Mi": 2**20, "Gi": 2**30,
               "T": 10**12, "Ei": 2**60}  # fmt: skip
    assert parse_quantity(f"{number}{suffix}") == number * factors[suffix]
    assert parse_quantity(f"{number}500m") * 1000 == int(f"{number}500")


@pytest.mark.parametrize("text", ["1Kib", "10K"])
def test_what_is_no_quantity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)


def test_a_status_of_another_release_is_read_without_what_is_not_understood() -> None:
    when = "2030-01-01T00:00:00Z"
    known = {"type": "Ready", "status": "True", "reason": "All", "lastTransitionTime": when}
    status = {
        "clusterId": "c", "component": "Half", "conditions": [known | {"type": "Warm"}, known],
        "members": "three", "importFrom": {"phase": "Painting"},
    }  # fmt: skip
    metadata = {"name": "herd", "namespace": "test", "uid": "u"}
    read = parse_resource({"metadata": metadata, "status": status}).status
    assert (read.cluster_id, read.component, read.members) == ("c", "Unknown", ())
    assert [one.type for one in read.conditions] == ["Ready"]
    odds: tuple[Any, ...] = (None, [], "x", {"conditions": {"a": 1}})
    for odd in odds:
        assert parse_resource({"metadata": metadata, "status": odd}).status.conditions == ()
