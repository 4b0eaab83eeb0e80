"""Watches what belongs to herds, and wakes the herd that something changed for.

The API server picks the objects by their label and sends their metadata only. So the operator's
memory and time follow from the herds, not from what else is in the cluster. Nothing is kept: a
watch begins with everything that is there, and what is missed the resync finds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import structlog

from pgherd_operator.objects import names
from pgherd_operator.shell.kube.interface import ApiError

log = structlog.get_logger()

KINDS = ("Pod", "PersistentVolumeClaim", "Service")
_AGAIN_S, _DOUBLINGS = 1.0, 5


class WatchApi(Protocol):
    """What is asked of the API server."""

    def watch(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the metadata of what is there and of what changes, until the server ends it.

        Raises:
            ApiError: it cannot be watched, or the connection broke.
        """


async def follow(
    api: WatchApi,
    kind: str,
    namespace: str,
    wake: Callable[[str, str], None],
    sleep: Callable[[float], Any] = asyncio.sleep,
) -> None:
    """Wake herds for ever; where a watch fails it is tried again, each time later.

    Args:
        namespace: empty for all.
        wake: is given a namespace and the name of a herd.
    """
    failures = 0
    while True:
        try:
            async for metadata in api.watch(kind, namespace, names.CLUSTER):
                failures = 0
                herd = (metadata.get("labels") or {}).get(names.CLUSTER)
                if herd and metadata.get("namespace"):
                    wake(metadata["namespace"], herd)
        except ApiError as error:
            log.warning("watch.failed", kind=kind, namespace=namespace, reason=str(error))
            failures += 1
        await sleep(_AGAIN_S * 2 ** min(failures, _DOUBLINGS))
