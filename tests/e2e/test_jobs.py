"""Jobs as resources on a real cluster: in one pod, and by the Kubeflow Spark operator.

The image of Spark is large and its jobs are slow to start, so these are for `make test-e2e` only.
The Spark operator's chart comes from PGHERD_SPARK_OPERATOR_CHART, its image, if the nodes cannot
pull it, from PGHERD_SPARK_OPERATOR_IMAGE.
"""

import os
from typing import Any

import pytest

from .cluster import HERD, NAMESPACE, Herd, Kubectl, until
from .preparation import TAG, docker_build, run, tool
from .test_beginnings import ask, begin, until_answer, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

_IMAGE = f"pgherd/spark:{TAG}"
_SPARK = {
    "image": _IMAGE, "executors": 1, "cores": 1, "memory": "512Mi", "cpuRequest": "50m",
    "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}},
}  # fmt: skip


def _load(kubectl: Kubectl, image: str) -> None:
    name = kubectl("config", "current-context").strip().removeprefix("kind-")
    run(str(tool("PGHERD_KIND", "kind")), "load", "docker-image", f"--name={name}", image)


@pytest.fixture(scope="module")
def jobs(kubectl: Kubectl, herd: Herd) -> Kubectl:
    """A herd with a table, the image of Spark, and a volume to write to."""
    docker_build("--file=images/Dockerfile", "--target=spark", f"--tag={_IMAGE}", ".")
    _load(kubectl, _IMAGE)
    herd.repeat(f"{HERD}-rw", "CREATE TABLE IF NOT EXISTS compared (id int PRIMARY KEY, t text)")
    herd.repeat(
        f"{HERD}-rw",
        "INSERT INTO compared SELECT g, 'x' FROM generate_series(1, 1000) g ON CONFLICT DO NOTHING",
    )
    kubectl.apply(
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "backups", "namespace": NAMESPACE},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )  # fmt: skip
    return kubectl


@pytest.fixture(scope="module")
def spark_operator(jobs: Kubectl) -> None:
    """The Spark operator, which watches the herd's namespace."""
    chart = os.environ.get("PGHERD_SPARK_OPERATOR_CHART")
    if chart is None:
        pytest.skip("NO SPARK OPERATOR: PGHERD_SPARK_OPERATOR_CHART does not name its chart")
    if (image := os.environ.get("PGHERD_SPARK_OPERATOR_IMAGE")) is not None:
        _load(jobs, image)
    run(
        str(tool("PGHERD_HELM", "helm")), f"--kubeconfig={jobs.kubeconfig}", "upgrade", "--install",
        "spark-operator", chart, "--namespace=spark-operator", "--create-namespace", "--wait",
        f"--set=spark.jobNamespaces={{{NAMESPACE}}}",
    )  # fmt: skip


def submit(kubectl: Kubectl, kind: str, name: str, **spec: Any) -> None:
    """Create a job."""
    kubectl.apply(
        {
            "apiVersion": "pgherd.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"cluster": HERD, "spark": _SPARK} | spec,
        }
    )  # fmt: skip


def ended(kubectl: Kubectl, kind: str, name: str) -> dict[str, Any]:
    """The status of a job once it has ended."""

    def status() -> dict[str, Any]:
        found: dict[str, Any] = kubectl.get(kind.lower(), name).get("status", {})
        return found

    until(
        lambda: status().get("phase") in ("Succeeded", "Failed"),
        f"{kind} {name} ended",
    )
    return status()


def test_without_a_spark_operator_a_snapshot_is_made_by_one_pod(jobs: Kubectl) -> None:
    submit(jobs, "Snapshot", "first", destination={"volumeClaim": {"name": "backups"}})
    status = ended(jobs, "Snapshot", "first")
    assert status["phase"] == "Succeeded", status["message"]
    assert status["runner"] == "Job"
    assert status["rows"] >= 1000
    assert "gid-" in status["location"]
    # And a herd begins with it: with the newest of those in that place, without naming it.
    begin(
        jobs, "restored", instances=2, bootstrap={"snapshot": {"volumeClaim": {"name": "backups"}}}
    )
    counted = "SELECT count(*) FROM compared"
    for member in ("restored-1", "restored-2"):
        assert ask(jobs, member, counted) == ask(jobs, f"{HERD}-1", counted)
    write(jobs, "restored-2", "INSERT INTO compared VALUES (-1, 'after') RETURNING 1")
    until_answer(jobs, "restored-1", "SELECT t FROM compared WHERE id = -1", "after")
    jobs("delete", "replicatedcluster", "restored")


def test_what_was_changed_behind_the_herd_s_back_is_named(jobs: Kubectl, herd: Herd) -> None:
    odd = herd.members()[1]
    behind = "SET session_replication_role = replica; UPDATE compared SET t = '{}' WHERE id = 7"

    def change(value: str) -> None:
        jobs(
            "exec", odd, "--container=postgres", "--", "psql", "--host=/run/pgherd/server",
            "--username=postgres", "--dbname=app", f"--command={behind.format(value)}",
        )  # fmt: skip

    change("y")
    submit(jobs, "ConsistencyCheck", "different", report={"name": "backups", "path": "checks"})
    status = ended(jobs, "ConsistencyCheck", "different")
    change("x")
    assert (status["verdict"], status["oddMembers"]) == ("different", [odd])
    assert status["differentTables"] == ["public.compared"]
    assert status["differentRows"] == 1


@pytest.mark.usefixtures("spark_operator")
def test_with_a_spark_operator_a_check_is_a_spark_application(jobs: Kubectl) -> None:
    submit(jobs, "ConsistencyCheck", "on-spark")
    status = ended(jobs, "ConsistencyCheck", "on-spark")
    assert (status["phase"], status["runner"]) == ("Succeeded", "SparkApplication")
    assert status["verdict"] == "consistent"


@pytest.mark.usefixtures("spark_operator")
def test_a_job_whose_driver_is_killed_has_failed(jobs: Kubectl) -> None:
    submit(jobs, "ConsistencyCheck", "killed")
    driver = "killed-check-driver"
    until(
        lambda: jobs.get("pod", driver).get("status", {}).get("phase") == "Running",
        f"{driver} runs",
    )  # fmt: skip
    jobs("delete", "pod", driver, "--grace-period=0", "--force")
    assert ended(jobs, "ConsistencyCheck", "killed")["phase"] == "Failed"
