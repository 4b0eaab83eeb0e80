"""The sidecars of a cluster are followed, each container once; kubectl is played by a script."""

import json
from pathlib import Path

import pytest
from e2e.cluster import Kubectl, Object
from e2e.podlogs import PodLogs
from patience import wait_until

_SCRIPT = """#!/bin/sh
echo "$@" >> {here}/asked
case "$*" in
*" get pods "*) cat {here}/pods;;
*" logs "*) cat {here}/said;;
esac
"""
_DIVERGED = {"event": "node.needs_rebuild", "reason": "a row is missing", "kind": "DivergedError"}


class Cluster:
    """A stand-in for a cluster with one pod."""

    def __init__(self, here: Path) -> None:
        self.here = here
        program = here / "kubectl"
        program.write_text(_SCRIPT.format(here=here))
        program.chmod(0o755)
        (here / "logs").mkdir()
        (here / "said").write_text("")
        self.pods = PodLogs(Kubectl(program, here / "config"), here / "logs")

    def has(self, *, restarts: int) -> None:
        """Show a pod, and have it looked at."""
        containers: list[Object] = [
            {"name": name, "restartCount": restarts, "state": {"running": {}}}
            for name in ("postgres", "sidecar")
        ]
        pod = {
            "metadata": {"name": "herd-1", "uid": "u"},
            "status": {"containerStatuses": containers},
        }
        (self.here / "pods").write_text(json.dumps({"items": [pod]}))
        self.pods.look()

    def followed(self) -> list[str]:
        """The logs that were asked for."""
        asked = (self.here / "asked").read_text().splitlines()
        return [line for line in asked if " logs " in line]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def until_ended(cluster: Cluster) -> None:
    """Wait for kubectl, which here ends at once."""
    following = cluster.pods._following.values()
    wait_until(lambda: all(process.poll() is not None for process in following))


def test_trouble_in_a_pod_is_found(cluster: Cluster) -> None:
    (cluster.here / "said").write_text(json.dumps(_DIVERGED) + "\n")
    cluster.has(restarts=0)
    until_ended(cluster)
    assert [one.kind for one in cluster.pods.logs.pop()] == ["DivergedError"]


def test_a_container_that_was_restarted_is_followed_anew(cluster: Cluster) -> None:
    cluster.has(restarts=0)
    until_ended(cluster)
    cluster.has(restarts=1)
    until_ended(cluster)
    assert len(cluster.followed()) == 2
    assert not any("--since-time" in line for line in cluster.followed())


def test_a_log_that_was_lost_is_followed_from_where_it_was_seen_last(cluster: Cluster) -> None:
    cluster.has(restarts=0)
    until_ended(cluster)
    cluster.has(restarts=0)
    until_ended(cluster)
    first, second = cluster.followed()
    assert "--since-time" not in first
    assert "--since-time" in second


def test_no_pods_are_no_trouble(cluster: Cluster) -> None:
    (cluster.here / "pods").write_text(json.dumps({"items": []}))
    cluster.pods.look()
    assert cluster.pods.logs.pop() == []
