"""A herd on a kind cluster, as the tests see it: through kubectl, and through clients in pods."""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMESPACE = "herds"
HERD = "herd"
MEMBERS = [f"{HERD}-{number}" for number in (1, 2, 3)]
PATIENCE_S = 300.0
_LOOK_S = 0.2
_WRITER = Path(__file__).with_name("writer.py")
_CLIENT = "client"

Object = dict[str, Any]


@dataclass(frozen=True)
class Kubectl:
    """Calls kubectl on one cluster, in the herd's namespace.

    Attributes:
        program: its path.
        kubeconfig: of the cluster.
    """

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Return what it prints; an error fails the test with its words."""
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        own = [str(self.program), f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}"]
        return [*own, *arguments]

    def apply(self, *manifests: Object) -> None:
        """Create or change objects."""
        self("apply", "-f", "-", stdin="\n---\n".join(json.dumps(one) for one in manifests))

    def get(self, kind: str, name: str) -> Object:
        """Return one object; empty when there is none."""
        text = self("get", kind, name, "--ignore-not-found", "--output=json")
        found: Object = json.loads(text) if text else {}
        return found

    def ready(self, pod: str) -> bool:
        """Whether a pod is ready, by the kubelet's word."""
        found = self.get("pod", pod)
        if found.get("metadata", {}).get("deletionTimestamp"):
            return False
        conditions = found.get("status", {}).get("conditions", ())
        return ("Ready", "True") in {(one["type"], one["status"]) for one in conditions}


def until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> float:
    """Wait for something and return how long it took, in seconds."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, f"not in {patience_s:g} s: {what}"
        time.sleep(_LOOK_S)
    return time.monotonic() - began_s


def until_ready(kubectl: Kubectl, *pods: str) -> float:
    """Wait until all of these are ready, which a member is while it takes writes."""
    return until(lambda: all(kubectl.ready(pod) for pod in pods), f"{', '.join(pods)} ready")


@dataclass
class Written:
    """What a writer was told, once it has ended."""

    writer: str
    acknowledged: list[int]
    gap_s: float
    errors: dict[str, int]


class Herd:
    """The herd and its clients.

    Args:
        kubectl: of the cluster, where the operator runs.
        client_image: with psql, Python and psycopg.
    """

    def __init__(self, kubectl: Kubectl, client_image: str) -> None:
        self.kubectl = kubectl
        self._client_image = client_image
        self._runs = itertools.count(1)

    def start_client(self) -> None:
        """Start the pod that the clients run in."""
        secret = {"secretKeyRef": {"name": f"{HERD}-app", "key": "password"}}
        container = {
            "name": _CLIENT,
            "image": self._client_image,
            "command": ["sleep", "infinity"],
            "env": [{"name": "PGPASSWORD", "valueFrom": secret}],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        spec = {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        }
        metadata = {"name": _CLIENT, "namespace": NAMESPACE}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        until_ready(self.kubectl, _CLIENT)

    def sql(self, service: str, statement: str) -> str:
        """Run a statement as the application does, through a service."""
        options = ["--no-psqlrc", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
        target = f"host={service} user=app dbname=app connect_timeout=5 sslmode=require"
        return self.kubectl(
            "exec", _CLIENT, "--", "psql", *options, f"--command={statement}", target
        ).strip()

    def until_true(self, service: str, query: str) -> None:
        """Wait until a query says so."""
        until(lambda: self.sql(service, query) == "t", f"{query} on {service}")

    @contextmanager
    def writing(self, *services: str) -> Iterator[list[Written]]:
        """Write through each service before, meanwhile and after; the list is filled at the end."""
        written: list[Written] = []
        writers = {f"{service} {next(self._runs)}": service for service in services}
        running = {name: self._writer(name, service) for name, service in writers.items()}
        try:
            self._await_rows(*running)
            yield written
            self._await_rows(*running)
        finally:
            for name, writer in running.items():
                output, errors = writer.communicate(timeout=PATIENCE_S)
                assert writer.returncode == 0, errors
                written.append(Written(name, **json.loads(output)))

    def _await_rows(self, *writers: str) -> None:
        """Wait until each writer has written more than it has by now."""
        for writer in writers:
            rows = f"FROM ledger WHERE writer = '{writer}'"
            count = int(self.sql(f"{HERD}-rw", f"SELECT count(*) {rows}"))
            self.until_true(f"{HERD}-rw", f"SELECT count(*) > {count} {rows}")

    def _writer(self, name: str, service: str) -> "subprocess.Popen[str]":
        program = ["/opt/pgherd/bin/python", "-c", _WRITER.read_text(), service, name]
        return subprocess.Popen(
            self.kubectl.command("exec", "--stdin", _CLIENT, "--", *program),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def tool(variable: str, name: str) -> Path | None:
    """A program that an environment variable names, or one on the PATH."""
    named = os.environ.get(variable)
    directories = os.environ.get("PATH", "").split(os.pathsep)
    candidates = [Path(named)] if named else [Path(one) / name for one in directories]
    return next((one for one in candidates if os.access(one, os.X_OK)), None)
