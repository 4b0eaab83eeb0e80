"""The pod and the volume of one member.

The pod passes the *restricted* Pod Security Standard: no root, no capabilities, read-only root file
systems. It has no API token: the sidecars do not need Kubernetes.
"""

from dataclasses import replace
from typing import Any

from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.spec import ContainerResources
from pgherd_operator.objects import config, names, places, restricted
from pgherd_operator.objects.config import DATA, ETC, RUN
from pgherd_operator.objects.model import Manifest, Origin, Release, Role, Seat, digest

GRACE_S = 120
_STOP_SIDECAR_FIRST = ["/usr/local/bin/pgherd-postgres", "wait-for-sidecar-to-end"]


def pod(cluster: Cluster, cluster_id: str, seat: Seat, release: Release) -> Manifest:
    """The pod; its annotation REVISION names everything that it was made from.

    But for the founding, which may have a container of its own: a founder becomes a member like
    others without a restart.
    """
    spec = _spec(cluster, seat, release)
    seeding = _seeding(cluster, seat, release)
    files = config.member_files(cluster, cluster_id, seat)
    joiner = replace(seat, origin=Origin.JOINER)
    node = config.node_json(cluster, cluster_id, joiner, release.listen_host)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.member(cluster.name, seat.number),
            "namespace": cluster.namespace,
            "labels": names.member_labels(cluster.name, seat.number, seat.role),
            "annotations": {
                names.REVISION: digest([spec, files, node]),
                names.WISH: wish(cluster),
            },
            "ownerReferences": [cluster.owner()],
        },
        "spec": spec | seeding | {"volumes": spec["volumes"] + seeding.get("volumes", [])},
    }


def wish(cluster: Cluster) -> str:
    """What of the spec may have pods made anew; the rest of a revision is the operator's release.

    A field that a release adds makes another one of it. That costs a pod that is replaced sooner.
    """
    sections = ("images", "postgres", "resources", "scheduling", "bootstrap", "partition_policy")
    others = ("on_divergence", "capture", "maintenance")
    wanted = cluster.spec.model_dump(mode="json", include={*sections, *others}, exclude_none=True)
    for mine in ("paused", "upgrades"):  # what the operator may do says nothing of pods
        del wanted["maintenance"][mine]
    if cluster.spec.online_import is not None:  # a Job's, beside the pods
        del wanted["bootstrap"]["import_from"]
    return digest(wanted)


def volume(cluster: Cluster, cluster_id: str, seat: Seat) -> Manifest:
    """The volume claim. It has no owner: no garbage collection ever takes data away."""
    storage = cluster.spec.storage
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size(cluster, seat.role)}},
    }
    if storage.class_name is not None:
        spec["storageClassName"] = storage.class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.volume(cluster.name, seat.number),
            "namespace": cluster.namespace,
            "labels": names.member_labels(cluster.name, seat.number, seat.role)
            | {names.CLUSTER_ID: cluster_id},
            "annotations": {names.ORIGIN: seat.origin.value},
        },
        "spec": spec,
    }


def size(cluster: Cluster, role: Role) -> str:
    """The size that a member's volume shall have."""
    storage = cluster.spec.storage
    return storage.witness_size if role is Role.WITNESS else storage.size


def _spec(cluster: Cluster, seat: Seat, release: Release) -> Manifest:
    scheduling = cluster.spec.scheduling
    containers = [_sidecar(cluster, release)]
    if seat.role is not Role.WITNESS:
        containers.insert(0, _postgres(cluster, release))
    spec: Manifest = {
        "serviceAccountName": cluster.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": names.member(cluster.name, seat.number),
        "subdomain": names.peers(cluster.name),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": restricted.POD,
        "topologySpreadConstraints": _spread(cluster),
        "containers": containers,
        "volumes": _volumes(cluster, seat),
    }
    optional = {
        "nodeSelector": dict(scheduling.node_selector),
        "tolerations": list(scheduling.tolerations),
        "affinity": dict(scheduling.affinity),
        "priorityClassName": scheduling.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in cluster.spec.images.pull_secrets],
    }
    return spec | {name: value for name, value in optional.items() if value}


def _spread(cluster: Cluster) -> list[Manifest]:
    must = cluster.spec.scheduling.spread == "Required"
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            # A node that takes none of our pods is no reason to have no second one elsewhere.
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": {names.CLUSTER: cluster.name}},
        }
        for key, hard in (("topology.kubernetes.io/zone", False), ("kubernetes.io/hostname", must))
    ]


def _postgres(cluster: Cluster, release: Release) -> Manifest:
    image = cluster.spec.images.postgres or release.postgres_image.replace(
        "{version}", cluster.spec.postgres.version
    )
    return _container(cluster, "postgres", image, cluster.spec.resources.postgres) | {
        "args": ["run"],
        "env": [{"name": "PGDATA", "value": f"{DATA}/pgdata"}],
        "ports": [{"name": "postgres", "containerPort": names.POSTGRES_PORT, "protocol": "TCP"}],
        "volumeMounts": _server_mounts(cluster),
        "lifecycle": {"preStop": {"exec": {"command": _STOP_SIDECAR_FIRST}}},
    }


def _seeding(cluster: Cluster, seat: Seat, release: Release) -> Manifest:
    """The part of a founder's pod that fills its volume from a snapshot before the server starts.

    By the sidecar's image, which has both a server and our code. No other member's pod could have
    it: a volume of snapshots may be on one node only.
    """
    place = None if cluster.spec.bootstrap is None else cluster.spec.bootstrap.snapshot
    if place is None or (seat.origin, seat.role) != (Origin.FOUNDER, Role.DATABASE):
        return {}
    location, endpoint = places.location(place)
    image = cluster.spec.images.sidecar or release.sidecar_image
    container = _container(cluster, "seed", image, cluster.spec.resources.postgres) | {
        "command": ["/usr/local/bin/pgherd-postgres"],
        "args": ["seed", location, *([] if endpoint is None else [endpoint])],
        "env": [{"name": "PGDATA", "value": f"{DATA}/pgdata"}],
        "volumeMounts": [*_server_mounts(cluster), *places.mounts(place.volume_claim)],
    }
    return {
        "initContainers": [container | places.environment(place)],
        "volumes": list(places.volumes(place.volume_claim)),
    }


def _sidecar(cluster: Cluster, release: Release) -> Manifest:
    image = cluster.spec.images.sidecar or release.sidecar_image
    return _container(cluster, "sidecar", image, cluster.spec.resources.sidecar) | {
        "args": ["--config", f"{ETC}/config/node.json"],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in (
                ("peer", names.PEER_PORT),
                ("admin", names.ADMIN_PORT),
                ("health", names.HEALTH_PORT),
            )
        ],
        "volumeMounts": _mounts(),
        # Ready = takes writes. Two failures a second apart take a partitioned member out of the
        # read-write service; the fence itself is in the data path and does not wait for this.
        "readinessProbe": _probe("/ready", period=1, failures=2),
        # Alive = the process turns its loop, in whatever component: a restart heals nothing else.
        "livenessProbe": _probe("/live", period=10, failures=6),
        "startupProbe": _probe("/live", period=2, failures=90),
    }


def _container(cluster: Cluster, name: str, image: str, resources: ContainerResources) -> Manifest:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": cluster.spec.images.pull_policy,
        # The end of its log says why a container has ended; the operator tells it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": resources.model_dump(exclude_defaults=True),
        "securityContext": restricted.CONTAINER,
    }


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "health", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 1 if period == 1 else 5,
        "failureThreshold": failures,
    }


def _mounts() -> list[Manifest]:
    return [
        {"name": "data", "mountPath": DATA},
        {"name": "run", "mountPath": RUN},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "config", "mountPath": f"{ETC}/config", "readOnly": True},
        {"name": "tls", "mountPath": f"{ETC}/tls", "readOnly": True},
    ]


def _server_mounts(cluster: Cluster) -> list[Manifest]:
    return [
        *_mounts(),
        {"name": "shm", "mountPath": "/dev/shm"},
        *(
            {"name": secret["name"], "mountPath": f"{ETC}/{secret['name']}", "readOnly": True}
            for secret in _server_secrets(cluster)
        ),
    ]


def _volumes(cluster: Cluster, seat: Seat) -> list[Manifest]:
    herd, number = cluster.name, seat.number
    found = [
        {"name": "data", "persistentVolumeClaim": {"claimName": names.volume(herd, number)}},
        {"name": "run", "emptyDir": {"sizeLimit": "16Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "config", "configMap": {"name": names.member(herd, number)}},
        _secret("tls", names.certificate(herd, number)),
    ]
    if seat.role is Role.WITNESS:
        return found
    # A container has 64 MB there by itself: a large parallel hash join needs more.
    shared_memory: Manifest = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    return [*found, shared_memory, *_server_secrets(cluster)]


def _server_secrets(cluster: Cluster) -> list[Manifest]:
    """Volumes that only the server's container sees."""
    found = [_secret(role, names.credentials(cluster.name, role)) for role in ("superuser", "app")]
    bootstrap = cluster.spec.bootstrap
    if bootstrap is not None and bootstrap.import_from is not None and bootstrap.online is None:
        dsn = bootstrap.import_from.dsn
        # All members' pods are alike. Nobody but the founder reads it: later it may be deleted.
        items = [{"key": dsn.key, "path": "dsn"}]
        found.append(_secret("import", dsn.name, items=items, optional=True))
    return found


def _secret(name: str, source: str, **more: Any) -> Manifest:
    return {"name": name, "secret": {"secretName": source, "defaultMode": 0o440} | more}
