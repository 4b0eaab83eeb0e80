"""A kind cluster with the images loaded and the operator installed, and a herd in it.

The tests have one of each for a whole session; a benchmark makes herds anew. What differs between
machines comes from the environment: see ``conftest``.
"""

import importlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from .cluster import HERD, NAMESPACE, Herd, Kubectl, Object, until_well
from .preparation import (
    IMAGES,
    REPOSITORY,
    PreparationError,
    build_images,
    check_machine,
    run,
    tool,
)

_KEPT = os.environ.get("PGHERD_KIND_KEEP")
SMALL = {
    "storage": {"size": "1Gi"},
    "deletionPolicy": "Delete",
    "scheduling": {"spread": "Required"},
    # Small requests: a cluster of tests has two cores.
    "resources": {
        "postgres": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "sidecar": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    },
}
"""Spec of a herd."""
_LEDGER = """
CREATE TABLE IF NOT EXISTS mark (id bigserial PRIMARY KEY);
CREATE TABLE IF NOT EXISTS ledger (writer text, number int, PRIMARY KEY (writer, number))
"""


class InstallationError(Exception):
    """There is a cluster, but the operator does not come up in it: a defect of ours."""


@contextmanager
def installed() -> Iterator[Kubectl]:
    """A cluster with the operator in it.

    Raises:
        PreparationError: this machine can have none.
        InstallationError: it has one.
    """
    try:
        check_machine()
        build_images()
        cluster = _describe_cluster()
    except OSError as error:
        raise PreparationError(str(error)) from error
    try:
        yield _start(cluster)
    finally:
        if not _KEPT:
            cluster.delete()


def found_herd(kubectl: Kubectl) -> float:
    """Make three members that take writes; return how long it took, in seconds."""
    resource = from_readme()
    assert resource["metadata"]["name"] == HERD
    kubectl.apply(resource | {"spec": resource["spec"] | SMALL})
    return until_well(kubectl, resource["spec"]["instances"])


def from_readme() -> Object:
    """The resource that the README has a newcomer apply."""
    text = (REPOSITORY / "README.md").read_text().partition("kubectl apply -f - <<'END'\n")[2]
    resource: Object = yaml.safe_load(text.partition("\nEND\n")[0])
    return resource


def provide_clients(kubectl: Kubectl) -> Herd:
    """Start the clients' pod, and make what they write into."""
    herd = Herd(kubectl, IMAGES["sidecar"])
    herd.start_client()
    herd.repeat(f"{HERD}-rw", _LEDGER)
    for member in herd.members():  # what one has committed the others have soon, not at once
        herd.until_true(member, "SELECT to_regclass('ledger') IS NOT NULL")
    return herd


def _describe_cluster() -> Any:
    pytest_kind = importlib.import_module("pytest_kind")
    cluster = pytest_kind.KindCluster(
        _KEPT or "pgherd-test",
        image=os.environ.get("PGHERD_KIND_NODE_IMAGE"),
        kind_path=tool("PGHERD_KIND", "kind"),
        kubectl_path=tool("PGHERD_KUBECTL", "kubectl"),
    )
    cluster.ensure_kubectl()
    return cluster


def _start(cluster: Any) -> Kubectl:
    """Start the cluster and install the operator, for one namespace."""
    kubectl = Kubectl(cluster.kubectl_path, cluster.kubeconfig_path.absolute())
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"name": NAMESPACE, "labels": enforced}
    try:
        cluster.create(Path(__file__).with_name("kind.yaml"))
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    except (OSError, subprocess.CalledProcessError, AssertionError) as error:
        raise PreparationError(f"there is no cluster: {error}") from error
    kind = str(cluster.kind_path)
    run(kind, "load", "docker-image", f"--name={cluster.name}", *IMAGES.values())
    repository, _, tag = IMAGES["operator"].partition(":")
    values = {
        "image.repository": repository,
        "image.tag": tag,
        "image.pullPolicy": "Never",
        "postgresImage": IMAGES["postgres"],
        "sidecarImage": IMAGES["sidecar"],
        "namespaces": f"{{{NAMESPACE}}}",
    }
    try:
        run(
            str(tool("PGHERD_HELM", "helm")), f"--kubeconfig={kubectl.kubeconfig}", "upgrade",
            "--install", "pgherd", "charts/pgherd", "--namespace=pgherd-system",
            "--create-namespace", "--wait",
            *(f"--set={name}={value}" for name, value in values.items()),
        )  # fmt: skip
    except PreparationError as error:
        raise InstallationError(str(error)) from error
    if _KEPT:  # its operator may be one of another image by the same name
        deployment = ["deployment/pgherd", "--namespace=pgherd-system"]
        kubectl("rollout", "restart", *deployment)
        kubectl("rollout", "status", *deployment)
    return kubectl
