"""The Job that imports a running PostgreSQL into the herd, beside the members.

Its image is the sidecar's, and its program ``pgherd_sidecar.importing.job``. Members let it in as
the superuser, by a certificate that is there for as long as the import is under way.
"""

import json

from pgherd_operator.api.resource import Cluster
from pgherd_operator.objects import names, restricted
from pgherd_operator.objects.config import DATABASE, ETC
from pgherd_operator.objects.model import Manifest, Release, digest

REFUSED = 3
"""Exit status of the program where it must not be run again as it is."""
_TRIES = 100_000
"""A pod that dies is made again, as often as it takes."""
_GRACE_S = 15
_CONTAINER = "import"


def job(cluster: Cluster, goal: str, members: list[int], release: Release) -> Manifest:
    """The Job.

    Args:
        goal: ``follow``, ``cut-over`` or ``abort``.
        members: with a database, to write to.
    """
    labels = {
        "app.kubernetes.io/name": "pgherd",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
        names.IMPORT: cluster.name,
    }
    spec = {
        "backoffLimit": _TRIES,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": _CONTAINER, "operator": "In", "values": [REFUSED],
                    },
                }
            ]
        },
        "template": {
            "metadata": {"labels": labels},
            "spec": _pod(cluster, goal, members, release),
        },
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.import_job(cluster.name, goal),
            "namespace": cluster.namespace,
            "labels": labels,
            "annotations": {names.REVISION: digest(spec)},
            "ownerReferences": [cluster.owner()],
        },
        "spec": spec,
    }


def _pod(cluster: Cluster, goal: str, members: list[int], release: Release) -> Manifest:
    images, scheduling = cluster.spec.images, cluster.spec.scheduling
    online = cluster.spec.online_import
    assert online is not None
    container = {
        "name": _CONTAINER,
        "image": images.sidecar or release.sidecar_image,
        "imagePullPolicy": images.pull_policy,
        "command": ["python", "-m", "pgherd_sidecar.importing.job"],
        "args": [_order(cluster, goal, members)],
        "resources": cluster.spec.resources.sidecar.model_dump(exclude_defaults=True),
        "securityContext": restricted.CONTAINER,
        "volumeMounts": [
            {"name": "tls", "mountPath": f"{ETC}/tls", "readOnly": True},
            # All of it: certificates that the connection string names may be beside it.
            {"name": "import", "mountPath": f"{ETC}/import", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    certificate = names.import_certificate(cluster.name)
    pod: Manifest = {
        "serviceAccountName": cluster.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": restricted.POD,
        "containers": [container],
        "volumes": [
            {"name": "tls", "secret": {"secretName": certificate, "defaultMode": 0o440}},
            {"name": "import", "secret": {"secretName": online.dsn.name, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    optional = {
        "nodeSelector": dict(scheduling.node_selector),
        "tolerations": list(scheduling.tolerations),
        "priorityClassName": scheduling.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in images.pull_secrets],
    }
    return pod | {name: value for name, value in optional.items() if value}


def _order(cluster: Cluster, goal: str, members: list[int]) -> str:
    """What the program is told; ``importing.job.ImportOrder`` reads it."""
    online = cluster.spec.online_import
    assert online is not None
    order = {
        "goal": goal,
        "members": [
            {"name": names.member(cluster.name, number), "dsn": _dsn(cluster, number)}
            for number in members
        ],
        "dsn_file": f"{ETC}/import/{online.dsn.key}",
        "jobs": online.jobs,
    }
    # Kubernetes shall see no references to variables in it.
    return json.dumps(order, separators=(",", ":")).replace("$(", "$$(")


def _dsn(cluster: Cluster, number: int) -> str:
    """How the import connects to a member: as the superuser, by its certificate."""
    host = names.address(cluster.name, cluster.namespace, number)
    tls = f"{ETC}/tls"
    return (
        f"host={host} port={names.POSTGRES_PORT} dbname={DATABASE} user=postgres "
        f"sslmode=verify-full sslrootcert={tls}/ca.crt sslcert={tls}/tls.crt sslkey={tls}/tls.key"
    )
