"""A herd on a kind cluster, as the tests see it: through kubectl, and through clients in pods."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from patience import wait_until

NAMESPACE = "herds"
HERD = "herd"
PATIENCE_S = 300.0
_SLOW = 3.0  # pods that start on a busy machine
_WRITER = Path(__file__).with_name("writer.py")
_CLIENT = "client"

Object = dict[str, Any]


@dataclass(frozen=True)
class Kubectl:
    """Calls kubectl on one cluster, in one namespace.

    Attributes:
        program: its path.
        kubeconfig: of the cluster.
        namespace: of what is named, unless an option says otherwise.
    """

    program: Path
    kubeconfig: Path
    namespace: str = NAMESPACE

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Return what it prints; an error fails the test with its words."""
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        own = [
            str(self.program),
            f"--kubeconfig={self.kubeconfig}",
            f"--namespace={self.namespace}",
        ]
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


def until(condition: Callable[[], object], what: str) -> float:
    """Wait for something and return how long it took, in seconds."""
    began_s = time.monotonic()
    wait_until(condition, slow=_SLOW, told=lambda: what)
    return time.monotonic() - began_s


def is_well(kubectl: Kubectl, instances: int, herd: str = HERD) -> bool:
    """Whether the operator has nothing more to do and so many members take writes."""
    found = kubectl.get("replicatedcluster", herd)
    status = found.get("status", {})
    ready = [
        one["status"] == "True" and one["observedGeneration"] == found["metadata"]["generation"]
        for one in status.get("conditions", ())
        if one["type"] == "Ready"
    ]
    return status.get("membersReady") == f"{instances}/{instances}" and ready == [True]


def until_well(kubectl: Kubectl, instances: int, herd: str = HERD) -> float:
    """Wait until that is so."""
    return until(
        lambda: is_well(kubectl, instances, herd), f"{instances} members of {herd} are well"
    )


def tried(answer: Callable[[], str]) -> str:
    """An answer; nothing while there is none, as of a member that is just restarting."""
    try:
        return answer()
    except AssertionError:
        return ""


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

    def repeat(self, service: str, statement: str) -> str:
        """Run a statement that may be run twice, until the member takes it; return the answer.

        A member that has just been elected, or is about to be, refuses: an honest answer. And a
        service may not know yet that a pod is ready.
        """
        return wait_until(
            lambda: self.sql(service, statement),
            lambda _: True,
            slow=_SLOW,
            despite=(AssertionError,),
        )

    def members(self) -> list[str]:
        """Who votes in the view, by the resource's status."""
        members = self.kubectl.get("replicatedcluster", HERD)["status"]["members"]
        return [one["name"] for one in members if one["inView"] == "Voter"]

    def disks(self) -> dict[str, str]:
        """The uid of each member's volume claim, if that is there."""
        claims = {
            one: self.kubectl.get("persistentvolumeclaim", f"{one}-data") for one in self.members()
        }
        return {one: claim["metadata"]["uid"] for one, claim in claims.items() if claim}

    def change(self, **spec: object) -> None:
        """Change fields of the resource's spec."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "replicatedcluster", HERD, "--type=merge", f"--patch={patch}")

    def assert_nothing_is_lost(self, members: Iterable[str], written: Iterable[Written]) -> None:
        """What was acknowledged is on every member, and no table differs between members."""
        rows = {}
        for member in members:
            # A commit of its own: all that was acknowledged before is visible on it afterwards.
            self.repeat(member, "INSERT INTO mark DEFAULT VALUES")
            found = self.repeat(member, "SELECT writer || ' ' || number FROM ledger")
            rows[member] = set(found.split("\n"))
        for one in written:
            assert one.acknowledged, f"{one.writer} wrote nothing: {one.errors}"
            wanted = {f"{one.writer} {number}" for number in one.acknowledged}
            for member, there in rows.items():
                lost = sorted(wanted - there)
                assert not lost, f"{member} lost {lost[:5]} of {one.writer}"
        until_well(self.kubectl, len(rows))
        self.verify()

    def verify(self) -> None:
        """Compare the members at one GID, as their owner would."""
        kubectl = self.kubectl
        options = ["-m", "pgherd_operator.kubectl", f"--namespace={NAMESPACE}", "verify", HERD]
        path = f"{kubectl.program.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, *options], capture_output=True, text=True, check=False,
            env=os.environ | {"KUBECONFIG": str(kubectl.kubeconfig), "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def until_true(self, service: str, query: str) -> None:
        """Wait until a query says so."""
        until(lambda: self.repeat(service, query) == "t", f"{query} on {service}")

    @contextmanager
    def writing(self, *services: str) -> Iterator[list[Written]]:
        """Write through each service before, meanwhile and after; the list is filled at the end."""
        written: list[Written] = []
        writers = {str(uuid4()): service for service in services}
        for writer, service in writers.items():
            self._start_writer(writer, service)
        try:
            self._await_rows(*writers)
            yield written
            self._await_rows(*writers)
        finally:
            written += [self._stop_writer(writer) for writer in writers]

    def _await_rows(self, *writers: str) -> None:
        """Wait until each writer has written more than it has by now."""
        for writer in writers:
            rows = f"FROM ledger WHERE writer = '{writer}'"
            count = int(self.repeat(f"{HERD}-rw", f"SELECT count(*) {rows}"))
            self.until_true(f"{HERD}-rw", f"SELECT count(*) > {count} {rows}")

    def _start_writer(self, writer: str, service: str) -> None:
        """Start a program in the clients' pod; it needs neither us nor the API server any more."""
        files = [f"/tmp/{writer}.{suffix}" for suffix in ("stop", "json")]
        program = ["python", "-c", _WRITER.read_text(), service, writer, *files]
        background = f'"$@" >/tmp/{writer}.log 2>&1 </dev/null &'
        self.kubectl("exec", _CLIENT, "--", "sh", "-c", background, "sh", *program)

    def _stop_writer(self, writer: str) -> Written:
        stop = f"touch /tmp/{writer}.stop; until cat /tmp/{writer}.json 2>&-; do sleep 0.1; done"
        limit = ["timeout", f"{PATIENCE_S:g}"]
        found = self.kubectl("exec", _CLIENT, "--", *limit, "sh", "-c", stop)
        return Written(writer, **json.loads(found))
