"""What does a job: a SparkApplication, or a Job that has a Spark of its own in one pod.

Both run the same program with the same order (``pgherd_spark.kubernetes``) in pods that meet the
*restricted* standard. Everything that the Spark operator itself has no field for is in pod
templates, so its web hook is not needed. Neither is ever changed: a changed SparkApplication would
be run again.
"""

import json
from collections.abc import Mapping

from pgherd_operator.api import GROUP, SCHEDULE, SNAPSHOT, VERSION
from pgherd_operator.api.jobs import CheckSpec, SnapshotSpec
from pgherd_operator.api.places import Destination, Volume
from pgherd_operator.api.quantity import parse_quantity
from pgherd_operator.jobs.schedule import Schedule
from pgherd_operator.jobs.steps import Look, Runner, Work
from pgherd_operator.objects import names, places, restricted
from pgherd_operator.objects.config import DATABASE, ETC
from pgherd_operator.objects.model import Manifest, Release

KEPT_S = 86400
"""How long what did a job stays, for its log."""
_SPARK_VERSION = "4"
_DRIVER_CORES = 1
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
    "spark.task.maxFailures": "4",
    "spark.kubernetes.executor.enablePollingWithResourceVersion": "true",
    # Milliseconds. By default Spark gives up on an API server that is busy for ten seconds.
    **{
        f"spark.kubernetes.{part}.{what}Timeout": "60000"
        for part in ("submission", "driver")
        for what in ("connection", "request")
    },
}
_ONE_RUN = {
    "type": "OnFailure",
    "onFailureRetries": 0,  # a second run would find its markers gone
    "onSubmissionFailureRetries": 3,
    "onSubmissionFailureRetryInterval": 10,
}


def workload_name(work: Work) -> str:
    """The name of what does a job."""
    return f"{work.name}-{'snapshot' if isinstance(work.spec, SnapshotSpec) else 'check'}"


def workload(look: Look, runner: Runner, release: Release) -> Manifest:
    """The object that does the job."""
    work = look.work
    order = json.dumps(_order(look), separators=(",", ":"))
    image = work.spec.spark.image or release.spark_image
    if runner == "Job":
        kind, spec = ("batch/v1", "Job"), _job(work, image, order)
    else:
        kind = ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
        spec = _spark_application(work, image, order)
    metadata = {
        "name": workload_name(work),
        "namespace": work.namespace,
        "labels": _labels(work),
        "ownerReferences": [owner(work.kind, work.name, work.uid)],
    }
    return {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, "spec": spec}


def owner(kind: str, name: str, uid: str) -> Manifest:
    """The reference that makes an object go with the resource that it was made for."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def snapshot(schedule: Schedule, name: str) -> Manifest:
    """The Snapshot that a schedule makes."""
    template = schedule.spec.template.model_dump(mode="json", by_alias=True, exclude_none=True)
    more: Manifest = {"series": schedule.name}
    more |= {} if schedule.spec.keep is None else {"keep": schedule.spec.keep}
    metadata = {
        "name": name,
        "namespace": schedule.namespace,
        "labels": {names.SCHEDULE: schedule.name},
        "ownerReferences": [owner(SCHEDULE, schedule.name, schedule.uid)],
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": SNAPSHOT,
        "metadata": metadata,
        "spec": template | more,
    }


def _order(look: Look) -> Manifest:
    """What the driver is told; ``pgherd_spark.kubernetes.Order`` reads it."""
    work, spec = look.work, look.work.spec
    order: Manifest = {
        "cluster_id": look.cluster_id,
        "database": DATABASE,
        "postgres_port": names.POSTGRES_PORT,
        "admin_port": names.ADMIN_PORT,
        "members": [_address(work, number) for number in look.herd],
        "part_bytes": int(parse_quantity(spec.part_size)),
        "share": spec.share,
        "allow_missing": spec.allow_missing,
    }
    if isinstance(spec, CheckSpec):
        order["members"] += [_address(work, number) | {"reader": True} for number in look.readers]
        place = {} if spec.report is None else {"destination": places.directory(spec.report)}
        return order | {"job": "check", "max_rows": spec.max_rows} | place
    destination, endpoint = places.location(spec.destination)
    order |= {"job": "snapshot", "read": spec.read, "destination": destination}
    order |= {} if endpoint is None else {"endpoint": endpoint}
    order |= {} if spec.series is None else {"series": spec.series}
    return order if spec.keep is None else order | {"keep": spec.keep}


def _address(work: Work, number: int) -> Manifest:
    cluster = work.spec.cluster
    return {
        "name": names.member(cluster, number),
        "host": names.address(cluster, work.namespace, number),
    }


def _labels(work: Work) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "pgherd",
        "app.kubernetes.io/instance": work.name,
        "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
        names.JOB: work.uid,
        names.JOB_OF: work.spec.cluster,
    }


def _job(work: Work, image: str, order: str) -> Manifest:
    """One try: what is done once more would have to be a new GID, so a new resource."""
    spark = work.spec.spark
    memory = f"--memory={_spark_memory(spark.memory)}"
    container = _container(work, "driver") | {
        "image": image,
        "args": ["job", f"--master=local[{spark.cores}]", memory, _literal(order)],
        "resources": spark.resources.model_dump(exclude_defaults=True),
    }
    pod = _pod(work, container) | {
        "restartPolicy": "Never",
        "serviceAccountName": work.spec.cluster,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    return {
        "backoffLimit": 0,
        "activeDeadlineSeconds": work.spec.deadline_seconds,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {"metadata": {"labels": _labels(work)}, "spec": pod},
    }


def _literal(text: str) -> str:
    """An argument in which Kubernetes shall not see references to variables."""
    return text.replace("$(", "$$(")


def _spark_application(work: Work, image: str, order: str) -> Manifest:
    spark = work.spec.spark
    memory = _spark_memory(spark.memory)
    size = {
        "coreRequest": spark.cpu_request,
        "memory": memory,
        # Tasks are Python and PostgreSQL's programs, outside of the heap.
        "memoryOverhead": memory,
    }
    of_herd = {names.JOB_OF: work.spec.cluster}

    def template(container: str, labels: Mapping[str, str]) -> Manifest:
        return {"metadata": {"labels": labels}, "spec": _pod(work, _container(work, container))}

    return {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": _SPARK_VERSION,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "mainApplicationFile": "local:///opt/pgherd/job.py",
        "arguments": [order],
        "restartPolicy": dict(_ONE_RUN),
        "timeToLiveSeconds": KEPT_S,
        "sparkConf": dict(_SETTINGS),
        "driver": size
        | {
            "cores": _DRIVER_CORES,
            "podName": f"{workload_name(work)}-driver",
            "serviceAccount": spark.service_account,
            "labels": _labels(work),
            "template": template("spark-kubernetes-driver", _labels(work)),
        },
        "executor": size
        | {
            "cores": spark.cores,
            "instances": spark.executors,
            "labels": of_herd,
            "template": template("spark-kubernetes-executor", of_herd),
        },
    }


def _pod(work: Work, container: Manifest) -> Manifest:
    secret = {"secretName": names.jobs_certificate(work.spec.cluster), "defaultMode": 0o440}
    volumes: list[Manifest] = [
        {"name": "tls", "secret": secret},
        {"name": "tmp", "emptyDir": {}},
    ]
    volumes += places.volumes(_claim(work))
    pod = {"securityContext": restricted.POD, "containers": [container], "volumes": volumes}
    spark = work.spec.spark
    optional = {"nodeSelector": dict(spark.node_selector), "tolerations": list(spark.tolerations)}
    return pod | {name: value for name, value in optional.items() if value}


def _container(work: Work, name: str) -> Manifest:
    mounts: list[Manifest] = [
        {"name": "tls", "mountPath": f"{ETC}/tls", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    mounts += places.mounts(_claim(work))
    found: Manifest = {
        "name": name,
        "securityContext": restricted.CONTAINER,
        "volumeMounts": mounts,
    }
    return found | places.environment(_destination(work))


def _claim(work: Work) -> Volume | None:
    if isinstance(work.spec, CheckSpec):
        return work.spec.report
    return work.spec.destination.volume_claim


def _destination(work: Work) -> Destination | None:
    return work.spec.destination if isinstance(work.spec, SnapshotSpec) else None


def _spark_memory(quantity: str) -> str:
    """A quantity as Spark writes it."""
    return f"{int(parse_quantity(quantity)) >> 20}m"
