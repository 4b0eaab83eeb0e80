"""``kubectl pgherd export plain``: the volume of a member that has left becomes a plain server's.

The members are asked for the numbers that they have dealt out. Then a Job on the volume takes out
of the database what is pgherd's. The operator takes no part: the herd has forgotten the member.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from pgherd_operator.answers import LOOK_S, Run, read_json, require_done
from pgherd_operator.objects import names, restricted
from pgherd_operator.objects.config import DATA, DATABASE, RUN
from pgherd_operator.objects.model import Manifest, Retired

_TRIES = 2


def make_plain(kubectl: Run, apply: Run, pods: Sequence[str], herd: str, claim: str) -> None:
    """Do it, and say what there is then.

    Args:
        apply: makes an object of its text.
        pods: of the members that there are.

    Raises:
        ClickException: the claim is not one of a member that has left, or a step failed.
    """
    _require_left(read_json(kubectl("get", "persistentvolumeclaim", claim, "--output=json")), herd)
    databases = _databases(kubectl, pods, claim)
    if not databases:
        raise click.ClickException(f"herd {herd} has no member that could be asked")
    members = [str(pod["metadata"]["name"]) for pod in databases]
    obstacles = _ask(kubectl, members[0], "SELECT to_json(pgherd.leaving_obstacles())")
    if obstacles:
        raise click.ClickException(
            f"{obstacles[0]}: a plain server has nothing in its place; change or drop it, have the "
            "members apply that, and another one leave"
        )
    standings = [_ask(kubectl, one, "SELECT pgherd.sequence_standings()") for one in members]
    containers = databases[0]["spec"]["containers"]
    server = next(one for one in containers if one["name"] == "postgres")
    job = _job(claim, server, json.dumps(standings))
    require_done(apply(json.dumps(job)))
    name = job["metadata"]["name"]
    click.echo(_wait(kubectl, name).strip())
    require_done(kubectl("delete", "job", name))
    click.echo(
        f"volume claim {claim} holds a plain PostgreSQL server in pgdata: docs/leaving.md has a "
        f"Deployment for it. Its passwords are those of the Secrets {herd}-app and {herd}-superuser"
    )


def _require_left(claim: Manifest, herd: str) -> None:
    name, labels = claim["metadata"]["name"], claim["metadata"].get("labels", {})
    if labels.get(names.CLUSTER) != herd:
        raise click.ClickException(f"volume claim {name} is not one of herd {herd}")
    if labels.get(names.RETIRED) != Retired.KEPT:
        raise click.ClickException(
            f"the member of {name} is in the herd: set storage.onScaleDown to Retain and ask for "
            "fewer instances, then name the claim that has the label "
            f"{names.RETIRED}={Retired.KEPT}"
        )


def _databases(kubectl: Run, pods: Sequence[str], claim: str) -> list[Manifest]:
    """The pods of members, once none of them uses the claim: who has left ends a while later."""
    found = []
    for name in pods:
        pod = _pod(kubectl, name)
        while pod is not None and claim in _claims_of(pod):
            click.echo(f"pod {name} still uses the volume: waiting for its end")
            time.sleep(LOOK_S)
            pod = _pod(kubectl, name)
        if pod is not None and pod["metadata"]["labels"].get(names.ROLE) == "database":
            found.append(pod)
    return found


def _pod(kubectl: Run, name: str) -> Manifest | None:
    """None: it has gone since the pods were listed."""
    done = require_done(kubectl("get", "pod", name, "--ignore-not-found", "--output=json"))
    return json.loads(done.stdout) if done.stdout.strip() else None


def _claims_of(pod: Manifest) -> list[str]:
    volumes = pod["spec"].get("volumes", ())
    return [
        one["persistentVolumeClaim"]["claimName"]
        for one in volumes
        if "persistentVolumeClaim" in one
    ]


def _ask(kubectl: Run, pod: str, query: str) -> Any:
    """What a member's server answers, as JSON; None if that is null."""
    command = (
        "psql", "--no-psqlrc", "--tuples-only", "--no-align", f"--host={RUN}/server",
        "--username=postgres", f"--dbname={DATABASE}", f"--command={query}",
    )  # fmt: skip
    done = require_done(kubectl("exec", pod, "--container=postgres", "--", *command))
    text = done.stdout.decode().strip()
    return json.loads(text) if text else None


def _job(claim: str, server: Manifest, standings: str) -> Manifest:
    container = {
        "name": "plain",
        "image": server["image"],
        "imagePullPolicy": server["imagePullPolicy"],
        "args": ["plain", standings.replace("$(", "$$(")],
        "env": [{"name": "PGDATA", "value": f"{DATA}/pgdata"}],
        "securityContext": restricted.CONTAINER,
        "volumeMounts": [
            {"name": "data", "mountPath": DATA}, {"name": "tmp", "mountPath": "/tmp"},
        ],
    }  # fmt: skip
    pod = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": restricted.POD,
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{claim}-plain"},
        "spec": {"backoffLimit": _TRIES, "template": {"spec": pod}},
    }


def _wait(kubectl: Run, job: str) -> str:
    """Wait for a Job's end; return what it has printed."""
    while True:
        status = read_json(kubectl("get", "job", job, "--output=json")).get("status", {})
        ended = {
            one["type"]
            for one in status.get("conditions", ())
            if one["status"] == "True" and one["type"] in ("Complete", "Failed")
        }
        if ended:
            said = str(kubectl("logs", f"job/{job}").stdout.decode(errors="replace"))
            if "Failed" in ended:
                raise click.ClickException(f"Job {job} has failed: {said.strip()}")
            return said
        time.sleep(LOOK_S)
