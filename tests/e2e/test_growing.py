"""Volumes that grow, or cannot, as the API server has it; who makes them larger is played here.

What a class's own resizer does to the claim and its volume, the test does: kind's class has none.
The file system is the node's, and grows by nothing.
"""

import json
from typing import Any

import pytest

from .cluster import Herd, Kubectl, until, until_well
from .test_beginnings import ask, begin, write

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

_CLASS: dict[str, Any] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "growing"},
    "provisioner": "rancher.io/local-path",
    "volumeBindingMode": "WaitForFirstConsumer",
    "allowVolumeExpansion": False,
}
_NAME = "grown"
_CLAIMS = [f"{_NAME}-1-data", f"{_NAME}-2-data"]


def patch(kubectl: Kubectl, kind: str, name: str, patch: Any, *options: str) -> None:
    kubectl("patch", kind, name, "--type=merge", f"--patch={json.dumps(patch)}", *options)


def resize(kubectl: Kubectl, size: str, **states: Any) -> None:
    """Have the controller's half done, as an external resizer does; ``states`` are the claims'."""
    for name in _CLAIMS:
        claim = kubectl.get("persistentvolumeclaim", name)
        capacity = {"spec": {"capacity": {"storage": size}}}
        patch(kubectl, "persistentvolume", claim["spec"]["volumeName"], capacity)
        patch(kubectl, "persistentvolumeclaim", name, {"status": states}, "--subresource=status")


def test_volumes_grow_where_their_class_can_and_are_told_of_where_not(
    herd: Herd, kubectl: Kubectl
) -> None:
    def sized() -> tuple[str, str, str]:
        found = kubectl.get("replicatedcluster", _NAME)
        (one,) = (c for c in found["status"]["conditions"] if c["type"] == "VolumesSized")
        return one["status"], one["reason"], one["message"]

    def change(size: str) -> None:
        patch(kubectl, "replicatedcluster", _NAME, {"spec": {"storage": {"size": size}}})

    def requested() -> list[str]:
        claims = [kubectl.get("persistentvolumeclaim", name) for name in _CLAIMS]
        return [claim["spec"]["resources"]["requests"]["storage"] for claim in claims]

    def events(reason: str) -> str:
        about = f"reason={reason},involvedObject.name={_NAME}"
        return kubectl("get", "events", f"--field-selector={about}", "--output=name")

    kubectl("delete", "storageclass", "growing", "--ignore-not-found")
    kubectl.apply(_CLASS)
    begin(kubectl, _NAME, 2, storage={"size": "1Gi", "className": "growing"})
    write(kubectl, f"{_NAME}-1", "CREATE TABLE kept (id int PRIMARY KEY)")
    pods = [kubectl.get("pod", f"{_NAME}-{number}")["metadata"]["uid"] for number in (1, 2)]

    change("2Gi")
    until(lambda: sized()[:2] == ("False", "VolumeGrowthRefused"), "it says that it cannot")
    assert "must support resize" in sized()[2]
    assert events("VolumeGrowthRefused")
    assert requested() == ["1Gi", "1Gi"]
    until_well(kubectl, 2, _NAME)
    write(kubectl, f"{_NAME}-2", "INSERT INTO kept VALUES (1)")

    patch(kubectl, "storageclass", "growing", {"allowVolumeExpansion": True})
    until(lambda: requested() == ["2Gi", "2Gi"], "every claim asks for more")
    until(lambda: sized()[:2] == ("False", "VolumeGrowing"), "it says that they grow")
    assert events("VolumeGrowing")
    pending = {
        "type": "FileSystemResizePending", "status": "True", "lastTransitionTime": None,
        "message": "waiting for the node",
    }  # fmt: skip
    resize(kubectl, "2Gi", conditions=[pending])
    until(lambda: "has 1Gi of 2Gi (FileSystemResizePending" in sized()[2], "it says how far")
    resize(kubectl, "2Gi", conditions=[], capacity={"storage": "2Gi"})
    until(lambda: sized()[0] == "True", "all volumes have the size")
    until_well(kubectl, 2, _NAME)
    write(kubectl, f"{_NAME}-1", "INSERT INTO kept VALUES (2)")
    assert ask(kubectl, f"{_NAME}-1", "SELECT count(*) FROM kept") == "2"
    with pytest.raises(AssertionError, match="a volume cannot shrink"):
        change("1Gi")
    assert requested() == ["2Gi", "2Gi"]
    assert [kubectl.get("pod", f"{_NAME}-{number}")["metadata"]["uid"] for number in (1, 2)] == pods
    kubectl("delete", "replicatedcluster", _NAME)
    kubectl("delete", "storageclass", "growing")
