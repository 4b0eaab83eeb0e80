"""Looks at the Jobs of an import online, and asks the one that runs how far it is."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pgherd_operator.api.resource import Cluster
from pgherd_operator.core import imports
from pgherd_operator.core.observed import ImportJob
from pgherd_operator.objects import names
from pgherd_operator.shell.kube.interface import KubernetesApi, Manifest, NotFoundError
from pgherd_operator.shell.observing import owners
from pgherd_operator.shell.observing.drivers import asked
from pgherd_operator.shell.observing.reading import pod_trouble, warned


class Importers(Protocol):
    """The programs that import, by the addresses of their pods."""

    async def told(self, address: str) -> Mapping[str, Any]:
        """Return what the program says; empty if it does not answer at once."""


class HttpImporters:
    """See Importers: plain HTTP, with little patience."""

    async def told(self, address: str) -> Mapping[str, Any]:
        """See Importers."""
        return _decoded(await asked(address))


async def look(api: KubernetesApi, importers: Importers, cluster: Cluster) -> dict[str, ImportJob]:
    """The Jobs of the herd's import, by their goals.

    Raises:
        ApiError: the picture would have holes.
    """
    if not imports.asked(cluster):
        return {}
    found: dict[str, Manifest] = {}
    for goal in imports.GOALS.values():  # by name: somebody may have taken our labels away
        try:
            job = await api.get("Job", cluster.namespace, names.import_job(cluster.name, goal))
        except NotFoundError:
            continue
        if owners.is_owned(job, cluster):
            found[goal] = job
    selector = f"{names.IMPORT}={cluster.name}"
    pods = await api.list("Pod", cluster.namespace, selector) if found else []
    return {goal: await _job(api, importers, item, pods) for goal, item in found.items()}


async def _job(
    api: KubernetesApi, importers: Importers, item: Manifest, pods: list[Manifest]
) -> ImportJob:
    metadata = item["metadata"]
    ended = {
        one["type"]: one["type"] == "Complete"
        for one in item.get("status", {}).get("conditions", ())
        if one["type"] in ("Complete", "Failed") and one["status"] == "True"
    }
    outcome: Mapping[str, Any] = {}
    told: Mapping[str, Any] = {}
    trouble = ""
    own = [pod for pod in pods if _is_of(metadata["uid"], pod)]
    if not own and not ended:  # who refuses to make pods says so of the Job
        trouble = await warned(api, metadata["namespace"], metadata["uid"])
    for pod in sorted(own, key=lambda one: str(one["metadata"].get("creationTimestamp"))):
        status = pod.get("status", {})
        outcome = _outcome(status) or outcome
        trouble = pod_trouble(status)
        if status.get("phase") == "Pending" and not trouble:  # a Secret that is missing, say
            trouble = await warned(api, metadata["namespace"], pod["metadata"]["uid"])
        if status.get("phase") == "Running" and status.get("podIP") and not ended:
            told = await importers.told(status["podIP"])
    return ImportJob(
        uid=metadata["uid"],
        revision=metadata.get("annotations", {}).get(names.REVISION, ""),
        ended=next(iter(ended.values()), None),
        deleting="deletionTimestamp" in metadata,
        outcome=outcome,
        told=told,
        trouble=trouble,
    )


def _is_of(job: str, pod: Manifest) -> bool:
    """Whether a pod is the Job's; anybody may give it our label."""
    return any(one["uid"] == job for one in pod["metadata"].get("ownerReferences", ()))


def _outcome(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended is not None:
            return _decoded(ended.get("message") or "")
    return {}


def _decoded(text: str | bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
