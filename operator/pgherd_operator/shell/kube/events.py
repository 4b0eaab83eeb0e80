"""Posts Kubernetes Events about our resources; one that cannot be posted is logged instead."""

import asyncio
from datetime import UTC, datetime
from typing import Protocol
from uuid import uuid4

import structlog

from pgherd_operator.api import GROUP, KIND, VERSION
from pgherd_operator.core.actions import Event
from pgherd_operator.objects import names
from pgherd_operator.shell.kube.interface import ApiError, KubernetesApi

log = structlog.get_logger()

_MESSAGE_BYTES = 1024
"""An Event with more of them is refused."""


class Subject(Protocol):
    """A resource, as far as an Event names it."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def uid(self) -> str: ...


class EventPoster:
    """See Events of the controller."""

    def __init__(self, api: KubernetesApi, group: asyncio.TaskGroup, instance: str) -> None:
        self._api = api
        self._group = group
        self._instance = instance

    def tell(self, about: Subject, event: Event, kind: str = KIND) -> None:
        """Post an Event, in the background: nobody waits for it."""
        self._group.create_task(self._post(about, event, kind))

    async def _post(self, about: Subject, event: Event, kind: str) -> None:
        now = datetime.now(UTC)
        wanted = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{about.name}.{uuid4().hex[:16]}",
                "namespace": about.namespace,
            },
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": kind,
                "name": about.name,
                "namespace": about.namespace,
                "uid": about.uid,
            },
            "type": event.kind,
            "reason": event.reason.value,
            "action": event.reason.value,
            "message": event.message.encode()[:_MESSAGE_BYTES].decode(errors="ignore"),
            "eventTime": now.isoformat(timespec="microseconds"),
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": self._instance,
        }
        try:
            await self._api.create(wanted)
        except ApiError as error:
            log.warning("event.lost", reason=event.reason.value, text=event.message, why=str(error))
