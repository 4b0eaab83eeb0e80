"""``kubectl pgherd``, with a kubectl that knows two pods and says what it was asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PODS = {
    "items": [
        {"metadata": {"name": "herd-1"}, "status": {}},
        {
            "metadata": {"name": "herd-2"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        },
    ]
}
KUBECTL = """#!/bin/sh
case "$*" in
    *"get pods --selector=pgherd.dev/cluster=herd --output=json") cat "$PODS" ;;
    *"get pods"*) echo '{"items": []}' ;;
    *) echo "$@" ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kubectl, pods = tmp_path / "kubectl", tmp_path / "pods.json"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    pods.write_text(json.dumps(PODS))
    root = Path(__file__).parents[3]
    return os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PODS": str(pods),
        "PYTHONPATH": os.pathsep.join(
            str(root / one) for one in ("operator", "replication_sidecar")
        ),
    }


def asked(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    program = "import sys; from pgherd_operator.kubectl import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["-n", "prod", "members", "herd", "--json"],
            "--namespace=prod exec herd-2 --container=sidecar -- "
            "pgherd members --admin=/run/pgherd/server/admin.sock --json",
        ),
        (
            ["evict", "--on", "herd-1", "herd", "herd-3"],
            "exec herd-1 --container=sidecar -- "
            "pgherd evict --admin=/run/pgherd/server/admin.sock herd-3",
        ),
        (
            ["split", "--on", "herd-1", "herd", "herd-1", "--yes"],
            "exec herd-1 --container=sidecar -- "
            "pgherd split --admin=/run/pgherd/server/admin.sock herd-1 --yes",
        ),
        (
            ["explain", "herd", "29", "--on", "herd-1"],
            "exec herd-1 --container=sidecar -- "
            "pgherd explain --admin=/run/pgherd/server/admin.sock 29",
        ),
        (
            ["status", "herd", "--on=herd-1", "--json"],
            "exec herd-1 --container=sidecar -- "
            "pgherd status --admin=/run/pgherd/server/admin.sock --json",
        ),
        (
            ["psql", "herd", "--on", "herd-1", "-c", "SELECT 1"],
            "exec --stdin herd-1 --container=postgres -- "
            "psql -c SELECT 1 host=/run/pgherd/server user=postgres dbname=app",
        ),
        (
            ["psql", "herd", "-c", "SELECT 1"],
            "exec --stdin herd-2 --container=postgres -- "
            "psql -c SELECT 1 host=/run/pgherd/server user=postgres dbname=app",
        ),
        (
            ["logs", "herd", "--since=1m"],
            "logs --selector=pgherd.dev/cluster=herd --all-containers --prefix --since=1m",
        ),
    ],
)
def test_a_command_is_carried_out_in_a_pod_that_takes_writes_or_is_named(
    environment: dict[str, str], arguments: list[str], expected: str
) -> None:
    assert asked(environment, *arguments) == (0, expected)


@pytest.mark.parametrize(
    "arguments",
    [["status", "flock"], ["status", "--on", "herd-9", "herd"], ["view", "herd", "--on", "herd-9"]],
)
def test_who_is_not_there_is_one_line(environment: dict[str, str], arguments: list[str]) -> None:
    code, text = asked(environment, *arguments)
    assert code == 1
    assert text.startswith("Error: herd ") and len(text.splitlines()) == 1


def test_on_without_a_pod_is_an_error(environment: dict[str, str]) -> None:
    code, text = asked(environment, "status", "herd", "--on")
    assert code == 2
    assert "--on needs the name of a pod" in text
