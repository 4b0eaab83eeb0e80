"""``kubectl pgherd report``: everything that helps somebody else to understand a herd, in one file.

What is collected: our resources and what belongs to the herd, Events, logs of all containers and of
those before them, and what each sidecar says. Never a Secret. What looks like a password in the
rest is replaced; somebody should look at the file all the same before it leaves the house, since
logs may hold values of rows. One thing that can't be had is noted in the file and keeps no other
from being in it.
"""

import io
import json
import re
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pgherd_operator.answers import Run
from pgherd_operator.objects import names
from pgherd_operator.objects.config import RUN

REDACTED = "[redacted]"
_LOG_LINES = 20000
_NAMES = rb"(?:passw(?:or)?d(?!_enc)[a-z_]{0,32}|radiussecrets)"
"""Of passwords, in SQL, connection strings and pg_hba.conf."""
_QUOTE, _QUOTED = rb"(?P<q>[\"'])", rb"(?:(?!(?P=q))[^\\\n]|\\.|(?P=q){2})*"
"""A quote, and text up to the next one; two quotes, or one with a backslash, stand for one."""
_SECRETS = (
    re.compile(rb"(?i)(" + _NAMES + rb"[\"']?\s*[:=]?\s*\\*" + _QUOTE + rb")" + _QUOTED),
    re.compile(rb"(?i)(" + _QUOTE + rb"(?:ldapbindpasswd|radiussecrets)\s*=)" + _QUOTED),
    re.compile(rb"(?i)(" + _NAMES + rb"\s*=\s*(?!\\*[\"']))[^\s\"'&]+"),
    re.compile(rb"(?i)(\b[a-z][a-z0-9+.-]*://[^\s:/@\"']*:)[^\s@/\"']+(?=@)"),
    re.compile(rb"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]*"),
    re.compile(rb"(SCRAM-SHA-256\$)[A-Za-z0-9+/=:$]+"),
)
_OF_HERD = (
    "pods", "persistentvolumeclaims", "services", "configmaps", "poddisruptionbudgets",
    "networkpolicies", "serviceaccounts",
)  # fmt: skip
_OURS = (
    "replicatedclusters", "snapshots", "snapshotschedules", "consistencychecks",
    "maintenanceschedules",
)  # fmt: skip
_SAID = ("status", "view", "members")


def write(path: Path, herd: str, run: Run, operator: str) -> list[str]:
    """Write a report.

    Args:
        path: the file, a gzipped tar archive; one that is there is not replaced.
        herd: whose.
        run: see Run.
        operator: the namespace that it runs in.

    Returns:
        What could not be had, in lines.

    Raises:
        FileExistsError: there is such a file.
        OSError: it can't be written.
    """
    failures: list[str] = []
    now = datetime.now(UTC)
    with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:

        def add(name: str, content: bytes) -> None:
            entry = tarfile.TarInfo(f"{herd}-report/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(content))

        for name, arguments in _questions(herd, run, operator):
            done = run(*arguments)
            if done.returncode == 0:
                add(name, redacted(done.stdout))
            else:
                words = redacted(done.stderr).decode(errors="replace").strip()
                failures.append(f"{name}: {words or done.returncode}")
        add("about.txt", "\n".join([f"{herd}, {now:%F %T} UTC", *failures, ""]).encode())
    return failures


def redacted(content: bytes) -> bytes:
    """The same without what looks like a password or a private key."""
    for pattern in _SECRETS:
        content = pattern.sub(rb"\g<1>" + REDACTED.encode(), content)
    return content


def _questions(herd: str, run: Run, operator: str) -> Iterator[tuple[str, list[str]]]:
    """Names of files, and how kubectl is asked for what goes into them."""
    selector = f"--selector={names.CLUSTER}={herd}"
    yield "versions.json", ["version", "--output=json"]
    yield "nodes.yaml", ["get", "nodes", "--output=yaml"]
    for kind in _OURS:
        yield f"resources/{kind}.yaml", ["get", f"{kind}.pgherd.dev", "--output=yaml"]
    for kind in _OF_HERD:
        yield f"resources/{kind}.yaml", ["get", kind, selector, "--output=yaml"]
    yield "events.txt", ["get", "events", "--sort-by=.lastTimestamp", "--output=wide"]
    yield from _of_pods(run, selector, with_sidecars=True)
    yield from _of_pods(run, f"--selector={names.JOB_OF}={herd}", with_sidecars=False)
    yield (
        "operator.log",
        ["logs", f"--namespace={operator}", "--prefix",
         "--selector=app.kubernetes.io/name=pgherd-operator", f"--tail={_LOG_LINES}"],
    )  # fmt: skip


def _of_pods(run: Run, selector: str, *, with_sidecars: bool) -> Iterator[tuple[str, list[str]]]:
    """Logs of each container, and what its sidecar says."""
    listed = run("get", "pods", selector, "--output=json")
    items = json.loads(listed.stdout)["items"] if listed.returncode == 0 else []
    for item in items:
        pod = item["metadata"]["name"]
        for status in item.get("status", {}).get("containerStatuses", ()):
            container = status["name"]
            logs = ["logs", pod, f"--container={container}", f"--tail={_LOG_LINES}"]
            yield f"logs/{pod}.{container}.log", logs
            if status.get("restartCount"):
                yield f"logs/{pod}.{container}.previous.log", [*logs, "--previous"]
        if with_sidecars:
            for command in _SAID:
                asked = ["pgherd", command, f"--admin={RUN}/server/admin.sock", "--json"]
                exec_ = ["exec", pod, "--container=sidecar", "--", *asked]
                yield f"sidecars/{pod}.{command}.json", exec_
