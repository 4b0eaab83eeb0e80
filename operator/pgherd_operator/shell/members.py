"""Finds a member of a herd that takes writes, for who asks the herd on behalf of a resource."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pgherd_sidecar.client import routes

from pgherd_operator.api import KIND
from pgherd_operator.api.resource import Cluster, parse_resource
from pgherd_operator.shell.jobs import database_members
from pgherd_operator.shell.kube.interface import KubernetesApi, NotFoundError
from pgherd_operator.shell.observing.sidecars import SidecarError, Sidecars

WAIT_S = 35.0
"""The others have to hear of it, under load; the sidecar gives up before."""


@dataclass(frozen=True, slots=True)
class WritableMember:
    """A member that takes writes, and so knows of all that was asked for."""

    sidecars: Sidecars
    number: int

    async def post(self, route: routes.Route, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Sidecars.request."""
        return await self.sidecars.request(self.number, route.path, body, WAIT_S)


async def writable(
    api: KubernetesApi, sidecars_of: Callable[[Cluster], Sidecars], namespace: str, herd: str
) -> tuple[WritableMember | None, str]:
    """A member that can be asked; or why there is none.

    Raises:
        ApiError: something could not be read.
    """
    numbers, _, waits_for = await database_members(api, namespace, herd)
    if waits_for:
        return None, waits_for
    try:
        body = await api.get(KIND, namespace, herd)
        # Who is asked does not depend on the spec: the herd goes on under one that can't be used.
        sidecars = sidecars_of(parse_resource({**body, "spec": {}}))
        await sidecars.prepare()
    except (NotFoundError, SidecarError) as error:
        return None, f"ReplicatedCluster {herd}: {error}"
    said = "no member takes writes"
    for number in numbers:
        try:
            status = await sidecars.status(number)
        except SidecarError as error:
            said = str(error)
            continue
        if status.get("state") == "primary":
            return WritableMember(sidecars, number), ""
    return None, said
