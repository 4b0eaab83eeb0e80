"""The charts: rights that are exactly those used, and manifests that helm makes of them.

What needs helm runs where helm is (PGHERD_HELM, or on the PATH) and is skipped elsewhere.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from following_world import life_of_followers
from jobs_world import life
from maintenance_world import life_of_maintenance
from operator_world import NAME, World
from pgherd_operator.objects.model import Release
from pgherd_operator.shell.kube.client import _PATHS

CHARTS = Path(__file__).parents[3] / "charts"
HELM = os.environ.get("PGHERD_HELM") or shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: the charts were NOT rendered")

#: Used by kopf, and by the API server on our behalf (owner references that block deletion).
OURS = (
    "replicatedclusters", "snapshots", "snapshotschedules", "consistencychecks",
    "maintenanceschedules", "replicationsets", "subscriptions",
)  # fmt: skip
WATCHED = {("list", plural) for plural in (*OURS, "pods", "services")} | {
    ("watch", plural) for plural in (*OURS, "pods", "persistentvolumeclaims", "services")
}
ON_OUR_BEHALF = {("update", "replicatedclusters/finalizers")}
#: By parts of the shell that the world stands in for: posting Events, finding a herd's identity.
REPLACED = {("create", "events"), ("get", "configmaps")}
#: In a life without trouble nobody asks what was said of a pod that waits.
IN_TROUBLE = {("list", "events")}


def declared() -> set[tuple[str, str]]:
    """Verbs and resources in the chart's rules, optional ones included."""
    text = (CHARTS / "pgherd/templates/_helpers.tpl").read_text()
    block = text.split('define "pgherd.rules" -}}')[1]
    lines = [line for line in block.splitlines() if "{{" not in line]
    return {
        (verb, resource)
        for rule in yaml.safe_load("\n".join(lines))
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


async def used() -> set[tuple[str, str]]:
    """What the operator calls in a life that has everything in it."""
    world = World()
    world.submit(
        instances=3, deletionPolicy="Delete", monitoring={"podMonitor": True},
        storage={"size": "1Gi"},
    )  # fmt: skip
    await world.settle()
    await world.changed(
        instances=2, storage={"size": "2Gi"}, monitoring={"podMonitor": False}
    )  # fmt: skip
    world.objects["Service", f"{NAME}-rw"]["spec"]["selector"] = {}
    world.objects["PodDisruptionBudget", NAME]["spec"] = {}
    await world.settle()
    await world.removed()
    certified = World()
    certified.submit(tls={"mode": "CertManager", "issuer": {"name": "ours"}})
    await certified.settle()
    await certified.changed(instances=2)
    jobs = (await life()).calls | (await life_of_maintenance()).calls
    jobs |= (await life_of_followers()).calls
    found = set()
    for verb, kind in world.calls | certified.calls | jobs:
        name, _, subresource = kind.partition("/")
        plural = _PATHS[name][1]
        found.add((verb, f"{plural}/{subresource}" if subresource else plural))
    return found


async def test_the_rights_are_those_that_are_used() -> None:
    assert declared() == await used() | WATCHED | ON_OUR_BEHALF | REPLACED | IN_TROUBLE


@pytest.mark.parametrize("image", ["r/postgres:{major}", "r/postgres:{}", "r/postgres:{version"])
async def test_an_image_with_a_wrong_place_for_the_version_is_told_of(image: str) -> None:
    rules = yaml.safe_load((CHARTS / "pgherd/values.schema.json").read_text())
    values = yaml.safe_load((CHARTS / "pgherd/values.yaml").read_text())
    jsonschema.validate(values, rules)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"postgresImage": image}, rules)
    world = World(release=Release(postgres_image=image))  # of a Deployment that was edited
    world.submit(instances=1)
    await world.settle()
    (container, _) = world.objects["Pod", f"{NAME}-1"]["spec"]["containers"]
    assert container["image"] == image  # and the kubelet says what is wrong with it


def test_no_right_is_unlimited() -> None:
    text = "".join(path.read_text() for path in (CHARTS / "pgherd/templates").glob("*"))
    for word in ('"*"', "'*'", "[*]", "escalate", "impersonate", "bind]", "pods/exec"):
        assert word not in text
    assert ("list", "secrets") not in declared()
    assert ("watch", "secrets") not in declared()


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    assert HELM is not None
    command = [HELM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def render(chart: str, *arguments: str, release: str = "it") -> list[dict[str, Any]]:
    """The manifests that helm makes of a chart."""
    done = helm(
        "template", release, str(CHARTS / chart), "--kube-version", "1.34.0",
        "--namespace", "system", *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


@needs_helm
@pytest.mark.parametrize("chart", ["pgherd", "pgherd-cluster"])
def test_helm_finds_nothing_wrong(chart: str) -> None:
    done = helm("lint", "--strict", str(CHARTS / chart))
    assert done.returncode == 0, done.stdout


@needs_helm
def test_the_operator_meets_the_restricted_standard() -> None:
    (deployment,) = [item for item in render("pgherd") if item["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


@needs_helm
def test_with_namespaces_there_are_no_rights_elsewhere() -> None:
    kinds = {item["kind"] for item in render("pgherd", "--set", "namespaces={a,b}")}
    assert not {"ClusterRole", "ClusterRoleBinding"} & kinds
    roles = [item for item in render("pgherd", "--set", "namespaces={a,b}")
             if item["kind"] == "Role"]  # fmt: skip
    assert {role["metadata"]["namespace"] for role in roles} == {"system", "a", "b"}


@needs_helm
def test_who_may_edit_a_namespace_may_edit_herds() -> None:
    roles = {
        item["metadata"]["name"]: item
        for item in render("pgherd")
        if item["kind"] == "ClusterRole" and item["metadata"]["name"] != "it"
    }
    labels = {name: set(role["metadata"]["labels"]) for name, role in roles.items()}
    prefix = "rbac.authorization.k8s.io/aggregate-to"
    assert f"{prefix}-view" in labels["it-view"]
    assert {f"{prefix}-edit", f"{prefix}-admin"} <= labels["it-edit"]
    for role in roles.values():
        assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"pgherd.dev"}
        assert {*OURS} <= {name for rule in role["rules"] for name in rule["resources"]}


@pytest.mark.parametrize("chart", ["pgherd", "pgherd-cluster"])
def test_every_value_is_in_the_chart_s_readme(chart: str) -> None:
    text = (CHARTS / chart / "README.md").read_text()
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    assert [name for name in values if f"`{name}" not in text] == []


@needs_helm
@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_herd_s_release_says_how_to_connect(tmp_path: Path, policy: str) -> None:
    # Helm shows its notes after an installation only: here they are made a manifest.
    chart = shutil.copytree(CHARTS / "pgherd-cluster", tmp_path / "chart") / "templates"
    notes = (chart / "NOTES.txt").read_text()
    (chart / "_notes.tpl").write_text(f'{{{{- define "notes" -}}}}\n{notes}{{{{- end }}}}\n')
    (chart / "notes.yaml").write_text('notes: |\n{{ include "notes" . | indent 2 }}\n')
    options = ["--kube-version=1.34.0", "--namespace=shop", f"--set=spec.deletionPolicy={policy}"]
    done = helm("template", "it", str(chart.parent), *options)
    (text,) = [one["notes"] for one in yaml.safe_load_all(done.stdout) if "notes" in one]
    assert "it-rw.shop.svc" in text
    assert "get secret it-app" in text
    assert ("keeps volumes" in text) == (policy == "Retain")


@needs_helm
def test_two_releases_in_a_namespace_have_each_a_lease_of_its_own() -> None:
    def lease(release: str) -> tuple[str, list[str]]:
        """What a release calls its lease, and which ones it may write."""
        items = render("pgherd", release=release)
        (deployment,) = [item for item in items if item["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        given = {one["name"]: one.get("value") for one in container["env"]}
        allowed = [
            name
            for item in items
            if item["kind"] == "Role"
            for rule in item["rules"]
            for name in rule.get("resourceNames", ())
        ]
        return given["PGHERD_RELEASE"], allowed

    assert [lease(one) for one in ("it", "other")] == [("it", ["it"]), ("other", ["other"])]


@needs_helm
@pytest.mark.parametrize(
    ("chart", "value"),
    [("pgherd", "replicsa=2"), ("pgherd", "replicas=0"), ("pgherd-cluster", "spec.instancs=3"),
     ("pgherd-cluster", "spec.instances=0"), ("pgherd-cluster", "spec.storage.size=ten")],
)  # fmt: skip
def test_misspelt_values_are_errors(chart: str, value: str) -> None:
    done = helm("template", "it", str(CHARTS / chart), "--kube-version", "1.34.0", "--set", value)
    assert done.returncode != 0
    assert value.split("=", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1] in done.stderr
