"""A kind cluster with the images loaded and the operator installed, for the whole session.

Everything that differs between machines comes from the environment:

    PGHERD_KIND, PGHERD_KUBECTL, PGHERD_HELM   programs, else from the PATH or pytest-kind
    PGHERD_KIND_NODE_IMAGE                     image of the nodes; by default kind's own
    PGHERD_DOCKER_BUILD                        more options for `docker build`
    PGHERD_KIND_KEEP                           name of a cluster: use it if it is there, and keep it
    PGHERD_E2E=required                        fail where there can be no cluster; else skip
"""

import importlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .cluster import HERD, MEMBERS, NAMESPACE, Herd, Kubectl, until_ready
from .preparation import IMAGES, PreparationError, build_images, check_machine, run, tool

_KEPT = os.environ.get("PGHERD_KIND_KEEP")
_HERD = {
    "instances": 3,
    "storage": {"size": "1Gi"},
    # Small requests: a cluster of tests has two cores.
    "resources": {
        "postgres": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "sidecar": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    },
}


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """A cluster with the operator in it."""
    try:
        check_machine()
        build_images()
        cluster = _describe_cluster()
    except (PreparationError, OSError) as error:
        _do_without(error)
    try:
        yield _start(cluster)
    except (PreparationError, AssertionError, subprocess.CalledProcessError, OSError) as error:
        _do_without(error)
    finally:
        if not _KEPT:
            cluster.delete()


def _do_without(error: Exception) -> NoReturn:
    """Run no tests. That a machine can have no cluster is not a defect of ours, but it is said."""
    text = f"NO END-TO-END TESTS: {error}"
    if os.environ.get("PGHERD_E2E") == "required":
        pytest.fail(text)
    pytest.skip(text)


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
    cluster.create(Path(__file__).with_name("kind.yaml"))
    kubectl = Kubectl(cluster.kubectl_path, cluster.kubeconfig_path.absolute())
    kind = str(cluster.kind_path)
    run(kind, "load", "docker-image", f"--name={cluster.name}", *IMAGES.values())
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"name": NAMESPACE, "labels": enforced}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    repository, _, tag = IMAGES["operator"].partition(":")
    values = {
        "image.repository": repository,
        "image.tag": tag,
        "image.pullPolicy": "Never",
        "postgresImage": IMAGES["postgres"],
        "sidecarImage": IMAGES["sidecar"],
        "namespaces": f"{{{NAMESPACE}}}",
    }
    run(
        str(tool("PGHERD_HELM", "helm")), f"--kubeconfig={kubectl.kubeconfig}", "upgrade",
        "--install", "pgherd", "charts/pgherd", "--namespace=pgherd-system", "--create-namespace",
        "--wait", *(f"--set={name}={value}" for name, value in values.items()),
    )  # fmt: skip
    if _KEPT:  # its operator may be one of another image by the same name
        deployment = ["deployment/pgherd", "--namespace=pgherd-system"]
        kubectl("rollout", "restart", *deployment)
        kubectl("rollout", "status", *deployment)
    return kubectl


@pytest.fixture(scope="session")
def herd(kubectl: Kubectl) -> Herd:
    """Three members that take writes, in a namespace that lets restricted pods in only."""
    found = Herd(kubectl, IMAGES["sidecar"])
    kubectl.apply(
        {
            "apiVersion": "pgherd.dev/v1alpha1", "kind": "ReplicatedCluster",
            "metadata": {"name": HERD, "namespace": NAMESPACE}, "spec": _HERD,
        },
    )  # fmt: skip
    until_ready(kubectl, *MEMBERS)
    kubectl("wait", "--for=condition=Ready", f"replicatedcluster/{HERD}", "--timeout=60s")
    found.start_client()
    found.write(
        f"{HERD}-rw",
        "CREATE TABLE IF NOT EXISTS mark (id bigserial PRIMARY KEY);"
        "CREATE TABLE IF NOT EXISTS ledger (writer text, number int, PRIMARY KEY (writer, number))",
    )
    for member in MEMBERS:  # what one member has committed the others have soon, not at once
        found.until_true(member, "SELECT to_regclass('ledger') IS NOT NULL")
    return found
