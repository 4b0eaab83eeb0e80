"""``kubectl pgherd export plain``, with a kubectl that answers from a list of objects."""

import json
import subprocess
from typing import Any

import pytest
from pgherd_operator import leaving
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Retired

CLAIM = "herd-2-data"


def pod(name: str, claim: str) -> dict[str, Any]:
    server = {"name": "postgres", "image": "pgherd", "imagePullPolicy": "Never"}
    volumes = [{"name": "tmp", "emptyDir": {}}, {"persistentVolumeClaim": {"claimName": claim}}]
    return {
        "metadata": {"name": name, "labels": {names.ROLE: "database"}},
        "spec": {"containers": [server], "volumes": volumes},
    }


class Cluster:
    """The pod of the member that has left is there for some looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.asked: list[str] = []
        self.made: list[str] = []

    def kubectl(self, *words: str) -> "subprocess.CompletedProcess[bytes]":
        said: object = ""
        match words[:3]:
            case "get", "persistentvolumeclaim", name:
                labels = {names.CLUSTER: "herd", names.RETIRED: Retired.KEPT}
                said = {"metadata": {"name": name, "labels": labels}}
            case "get", "pod", "herd-2" as name:
                assert not self.made
                self.looks -= 1
                said = pod(name, CLAIM) if self.looks >= 0 else ""
            case "get", "pod", name:
                said = pod(name, f"{name}-data")
            case "exec", name, _:
                self.asked.append(name)
                said = None
            case "get", "job", _:
                said = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
        text = said if isinstance(said, str) else json.dumps(said)
        return subprocess.CompletedProcess(words, 0, text.encode(), b"")

    def apply(self, manifest: str) -> "subprocess.CompletedProcess[bytes]":
        self.made.append(manifest)
        return subprocess.CompletedProcess((), 0, b"", b"")


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_the_pod_of_the_member_that_has_left_is_waited_for_and_not_asked(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may go between two looks, and its server must not run on the volume beside the Job."""
    monkeypatch.setattr(leaving, "LOOK_S", 0.0)
    cluster = Cluster(looks)
    leaving.make_plain(cluster.kubectl, cluster.apply, ["herd-1", "herd-2"], "herd", CLAIM)
    assert cluster.looks < 0
    assert set(cluster.asked) == {"herd-1"}
    assert len(cluster.made) == 1
