"""Resources beside the herd itself, as the API server has them: read, and their status written.

Shared by those that look after jobs, schedules and maintenance. It keeps nothing.
"""

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from pgherd_operator.api import GROUP, VERSION
from pgherd_operator.api.base import AnySpec, AnyStatus, ApiObject, reported
from pgherd_operator.shell.kube.interface import (
    ConflictError,
    KubernetesApi,
    Manifest,
    NotFoundError,
)

log = structlog.get_logger()

SETTLED_S = 300.0
"""So often a resource is looked at of which nothing is to be done."""
_SCHEDULE_S = 60.0
_ATTEMPTS = 5


async def show_status(api: KubernetesApi, body: Manifest, status: BaseModel) -> None:
    """Write the status of a resource, unless it is there already, or the resource is gone.

    Args:
        api: of the cluster.
        body: the resource, as it was read.
        status: all of it.

    Raises:
        ApiError: it could not be written.
    """
    await _write(api, body, status.model_dump(mode="json", by_alias=True, exclude_none=True))


async def show_invalid(
    api: KubernetesApi, body: Manifest, error: ValidationError, *, more: str = ""
) -> None:
    """Say what is wrong with the spec of a resource.

    Args:
        more: what follows from it; other arguments and errors: see ``show``.
    """
    first = error.errors()[0]
    where = ".".join(["spec", *map(str, first["loc"])])
    log.warning("resource.invalid", name=body["metadata"]["name"], where=where)
    message = f"{where}: {first['msg']}{more}"
    await _write(api, body, {**(body.get("status") or {}), "message": message})


async def _write(api: KubernetesApi, body: Manifest, status: Manifest) -> None:
    """Write a status to the resource that was read, never to a later one of its name.

    The API server does not look at a uid that comes with a status, but at the version it does.
    """
    if body.get("status") == status:
        return
    kind, metadata = body["kind"], body["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    wanted = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "status": status}
    with contextlib.suppress(NotFoundError):  # its deletion has just been completed
        for left in reversed(range(_ATTEMPTS)):
            found = (await api.get(kind, namespace, name))["metadata"]
            if found["uid"] != metadata["uid"]:
                return
            version = {"resourceVersion": found["resourceVersion"]}
            wanted["metadata"] = {"name": name, "namespace": namespace, **version}
            try:
                await api.apply(wanted, subresource="status")
            except ConflictError:
                if not left:
                    raise
            else:
                return


async def claim_resource(
    api: KubernetesApi, body: Manifest, finalizer: str, *, wanted: bool
) -> bool:
    """Have the deletion of a resource wait for us, or not any more.

    The list is everybody's, so it is written only over what was read.

    Returns:
        Whether it is so. If not, the resource is gone or going, or others change it all the time.

    Raises:
        ApiError: it could not be read or written.
    """
    kind, metadata = body["kind"], body["metadata"]
    namespace, name, uid = (metadata[key] for key in ("namespace", "name", "uid"))
    for _ in range(_ATTEMPTS):
        found = metadata.get("finalizers") or []
        if wanted == (finalizer in found):
            return True
        if wanted and "deletionTimestamp" in metadata:
            return False
        finalizers = [one for one in found if one != finalizer] + [finalizer] * wanted
        version = metadata.get("resourceVersion", "")
        patch = {"metadata": {"finalizers": finalizers, "uid": uid, "resourceVersion": version}}
        try:
            try:
                await api.patch(kind, namespace, name, patch)
            except ConflictError:
                metadata = (await api.get(kind, namespace, name))["metadata"]
            else:
                return True
        except NotFoundError:
            return False
        if metadata["uid"] != uid:
            return False
    return False


def identity(body: Mapping[str, Any]) -> dict[str, Any]:
    """Which resource a body is of: its name, namespace, uid, generation, and creation."""
    metadata = body["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
        "generation": metadata.get("generation", 0),
        "created": datetime.fromisoformat(metadata["creationTimestamp"]),
    }


def read_resource(
    body: Mapping[str, Any], spec: type[AnySpec], status: type[AnyStatus]
) -> ApiObject[AnySpec, AnyStatus]:
    """Read a resource.

    Raises:
        ValidationError: its spec can't be used.
    """
    deleted = body["metadata"].get("deletionTimestamp")
    return ApiObject(
        **identity(body),
        spec=spec.model_validate(body.get("spec") or {}),
        status=reported(status, body),
        deleted=None if deleted is None else datetime.fromisoformat(deleted),
    )


def until_again(again: datetime | None, now: datetime) -> float:
    """In how many seconds to look at a schedule again, whose next time is this one."""
    wait_s = (again - now).total_seconds() if again is not None else SETTLED_S
    return min(max(wait_s, 0.1), _SCHEDULE_S)
