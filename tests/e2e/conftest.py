"""A kind cluster with the images loaded and the operator installed, for the whole session.

Everything that differs between machines comes from the environment:

    PGHERD_KIND, PGHERD_KUBECTL, PGHERD_HELM   programs, else from the PATH or pytest-kind
    PGHERD_KIND_NODE_IMAGE                     image of the nodes; by default kind's own
    PGHERD_DOCKER_BUILD                        more options for `docker build`
    PGHERD_KIND_KEEP                           not empty: use a cluster that is there, and keep it
    PGHERD_E2E=required                        fail where something is missing, in place of skipping
"""

import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import HERD, MEMBERS, NAMESPACE, Herd, Kubectl, tool, until_ready

_REPOSITORY = Path(__file__).parents[2]
_CLUSTER = "pgherd-e2e"
_IMAGES = {target: f"pgherd/{target}:e2e" for target in ("postgres", "sidecar", "operator")}
_HERD = {
    "instances": 3,
    "storage": {"size": "1Gi"},
    # Small requests: a cluster of tests has two cores.
    "resources": {
        "postgres": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "sidecar": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    },
}


def _missing() -> list[str]:
    """What these tests need and this machine has not got."""
    missing = [] if tool("PGHERD_HELM", "helm") else ["helm"]
    if shutil.which("docker") is None or _done("docker", "info").returncode:
        missing.append("a running docker")
    if importlib.util.find_spec("pytest_kind") is None:
        missing.append("pytest-kind")
    return missing


def _done(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, check=False, cwd=_REPOSITORY, capture_output=True, text=True)


def _run(*command: str) -> None:
    done = _done(*command)
    assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """A cluster with the operator in it."""
    missing = _missing()
    if missing:
        text = f"NO END-TO-END TESTS: this machine has not got {', '.join(missing)}"
        (pytest.fail if os.environ.get("PGHERD_E2E") == "required" else pytest.skip)(text)
    pytest_kind = importlib.import_module("pytest_kind")
    cluster = pytest_kind.KindCluster(
        _CLUSTER,
        image=os.environ.get("PGHERD_KIND_NODE_IMAGE"),
        kind_path=tool("PGHERD_KIND", "kind"),
        kubectl_path=tool("PGHERD_KUBECTL", "kubectl"),
    )
    cluster.ensure_kubectl()
    _build_images()
    try:
        cluster.create(Path(__file__).with_name("kind.yaml"))
        kind, kubeconfig = str(cluster.kind_path), cluster.kubeconfig_path.absolute()
        _run(kind, "load", "docker-image", f"--name={_CLUSTER}", *_IMAGES.values())
        _install(kubeconfig)
        yield Kubectl(cluster.kubectl_path, kubeconfig)
    finally:
        if not os.environ.get("PGHERD_KIND_KEEP"):
            cluster.delete()


def _build_images() -> None:
    options = shlex.split(os.environ.get("PGHERD_DOCKER_BUILD", ""))
    for target, name in _IMAGES.items():
        _run(
            "docker", "build", *options, "--file=images/Dockerfile", f"--target={target}",
            f"--tag={name}", ".",
        )  # fmt: skip


def _install(kubeconfig: Path) -> None:
    repository, _, tag = _IMAGES["operator"].partition(":")
    values = {
        "image.repository": repository,
        "image.tag": tag,
        "image.pullPolicy": "Never",
        "postgresImage": _IMAGES["postgres"],
        "sidecarImage": _IMAGES["sidecar"],
    }
    _run(
        str(tool("PGHERD_HELM", "helm")), f"--kubeconfig={kubeconfig}", "upgrade", "--install",
        "pgherd", "charts/pgherd", "--namespace=pgherd-system", "--create-namespace", "--wait",
        *(f"--set={name}={value}" for name, value in values.items()),
    )  # fmt: skip


@pytest.fixture(scope="session")
def herd(kubectl: Kubectl) -> Herd:
    """Three members that take writes, in a namespace that lets restricted pods in only."""
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    found = Herd(kubectl, _IMAGES["sidecar"])
    namespace = {"name": NAMESPACE, "labels": enforced}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": namespace},
        {
            "apiVersion": "pgherd.dev/v1alpha1", "kind": "ReplicatedCluster",
            "metadata": {"name": HERD, "namespace": NAMESPACE}, "spec": _HERD,
        },
    )  # fmt: skip
    until_ready(kubectl, *MEMBERS)
    kubectl("wait", "--for=condition=Ready", f"replicatedcluster/{HERD}", "--timeout=60s")
    found.start_client()
    found.sql(
        f"{HERD}-rw",
        "CREATE TABLE mark (id bigserial PRIMARY KEY);"
        "CREATE TABLE ledger (writer text, number int, PRIMARY KEY (writer, number))",
    )
    for member in MEMBERS:  # what one member has committed the others have soon, not at once
        found.until_true(member, "SELECT to_regclass('ledger') IS NOT NULL")
    return found
