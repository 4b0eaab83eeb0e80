"""What the sidecars of a cluster say, followed into files: a deleted pod takes its log with it.

``kubectl logs --follow`` for each container that is seen, a file for each. A container that was
restarted is followed anew, so is one that kubectl lost while the API server was away.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.trouble import Logs

from .cluster import Kubectl, Object

_LOOK_S = 2.0
_SELECTOR = "--selector=app.kubernetes.io/name=pgherd"


@dataclass
class PodLogs:
    """The logs of all sidecars that are seen between ``begin`` and ``end``.

    Args:
        kubectl: of the cluster.
        directory: for the files.
    """

    kubectl: Kubectl
    directory: Path
    _following: "dict[tuple[str, int], subprocess.Popen[bytes]]" = field(default_factory=dict)
    _seen_s: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.logs = Logs(lambda: sorted(self.directory.glob("*.log")))
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @contextlib.contextmanager
    def followed(self) -> Iterator[Logs]:
        """Follow them during the block."""
        self._thread.start()
        try:
            yield self.logs
        finally:
            self._over.set()
            self._thread.join()
            for process in self._following.values():
                process.terminate()
                process.wait()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Follow what is not followed yet."""
        began_s = time.time()
        found = subprocess.run(
            self.kubectl.command("get", "pods", _SELECTOR, "--output=json"),
            capture_output=True,
            check=False,
        )
        if found.returncode:
            return  # the API server is away
        for pod in json.loads(found.stdout)["items"]:
            for status in pod.get("status", {}).get("containerStatuses", ()):
                if status["name"] == "sidecar" and "running" in status["state"]:
                    self._follow(pod, status["restartCount"])
        self._seen_s = began_s

    def _follow(self, pod: Object, restarts: int) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        options = ["--follow", "--container=sidecar"]
        before = self._following.get((uid, restarts))
        if before is not None:
            if before.poll() is None:
                return
            since = datetime.fromtimestamp(self._seen_s, UTC).isoformat(timespec="seconds")
            options.append(f"--since-time={since}")  # kubectl was cut off from it
        path = self.directory / f"{name}-{uid}-{restarts}.log"
        with path.open("ab") as log:
            self._following[uid, restarts] = subprocess.Popen(
                self.kubectl.command("logs", *options, name), stdout=log, stderr=subprocess.DEVNULL
            )
