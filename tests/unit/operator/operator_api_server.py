"""The Kubernetes API server in memory, for tests of the operator.

It keeps raw manifests, gives uids, honours preconditions, removes what a deleted object owned, and
fails when told to. Pods and volumes that are deleted stay until somebody lets them go. Nothing is
checked against a schema.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pgherd_operator.shell.kube.interface import (
    ApiError,
    ConflictError,
    Manifest,
    Manifests,
    NotFoundError,
)

Fault = Literal["error", "lost-answer", "killed-before", "killed-after"]
_NEVER_WRITTEN = "0"
"""The version of what a test has put there."""


class Killed(Exception):
    """The operator's process ended here."""


@dataclass
class ApiServer:
    """See KubernetesApi."""

    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    now: datetime = datetime(2030, 1, 1, tzinfo=UTC)
    writes: list[str] = field(default_factory=list)
    calls: set[tuple[str, str]] = field(default_factory=set)
    """Verbs and kinds, as the rights to them are granted."""
    fault: tuple[int, Fault] | None = None
    """After how many writes one fails, and how."""
    meanwhile: Callable[[], None] | None = None
    """What happens between a look and the next write."""
    counter: int = 0
    refused: dict[str, ApiError] = field(default_factory=dict)
    """Refusals for ever, by verb and kind: "list PodMonitor", "create Pod"."""
    quota: int = 1000
    """How many pods there may be."""
    webhook: Callable[[Manifest], None] = lambda _: None
    """What a mutating web hook makes of each object that is written."""
    volumes_grow: bool = True
    """What the class of the volumes allows."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        """See KubernetesApi."""
        self.calls.add(("get", kind))
        self._refuse("get", kind)
        found = copy.deepcopy(self._object(kind, name))
        found["metadata"].setdefault("resourceVersion", _NEVER_WRITTEN)
        return found

    async def list(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        """See KubernetesApi."""
        self.calls.add(("list", kind))
        self._refuse("list", kind)
        key, _, value = selector.partition("=")
        return [
            copy.deepcopy(item)
            for (found, _), item in self.objects.items()
            if found == kind and item["metadata"].get("labels", {}).get(key) == value
        ]

    async def warnings(self, namespace: str, uid: str) -> Manifests:
        """See KubernetesApi."""
        self.calls.add(("list", "Event"))
        self._refuse("list", "Event")
        return [
            copy.deepcopy(item)
            for (kind, _), item in self.objects.items()
            if kind == "Event" and item["involvedObject"]["uid"] == uid
        ]

    async def create(self, manifest: Manifest) -> Manifest:
        """See KubernetesApi."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._refuse("create", kind)
        with self.writing("create", kind, name):
            if (kind, name) in self.objects:
                raise ConflictError(409, f"{name} exists")
            if kind == "Pod" and sum(found == kind for found, _ in self.objects) >= self.quota:
                raise ApiError(403, "exceeded quota: pods")
            self.calls.add(("create", kind))
            self._check_creation(kind, manifest)
            item = copy.deepcopy(manifest)
            item["metadata"] |= {"uid": self.uid(), "creationTimestamp": self.now.isoformat()}
            item["metadata"]["resourceVersion"] = self.uid()
            self.webhook(item)
            self.objects[kind, name] = item
            return copy.deepcopy(item)

    async def admit(self, manifest: Manifest) -> None:
        """See KubernetesApi."""
        self.calls.add(("create", manifest["kind"]))
        self._refuse("create", manifest["kind"])

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """See KubernetesApi."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self.calls.add(("patch", f"{kind}/{subresource}" if subresource else kind))
        if subresource:
            item = self._object(kind, name)
            # As with custom resources: of the metadata nothing but the version is looked at.
            _require(item, "resourceVersion", manifest["metadata"].get("resourceVersion", ""))
            item["status"] = copy.deepcopy(manifest["status"])
            item["metadata"]["resourceVersion"] = self.uid()
            return copy.deepcopy(item)
        with self.writing("apply", kind, name):
            if (kind, name) not in self.objects:
                self.calls.add(("create", kind))  # an apply that creates needs both rights
            old = self.objects.get((kind, name), {"metadata": {"uid": self.uid(), "name": name}})
            _require(old, "uid", manifest["metadata"].get("uid", ""))
            item = copy.deepcopy(manifest)
            item["metadata"] = old["metadata"] | item["metadata"]
            self.webhook(item)
            self.objects[kind, name] = item
            return copy.deepcopy(item)

    async def patch(self, kind: str, namespace: str, name: str, patch: Manifest) -> None:
        """See KubernetesApi."""
        self._refuse("patch", kind)
        with self.writing("patch", kind, name):
            self.calls.add(("patch", kind))
            if kind == "PersistentVolumeClaim" and "spec" in patch and not self.volumes_grow:
                raise ApiError(403, "the storageclass that provisions the pvc must support resize")
            item = self._object(kind, name)
            for field in ("uid", "resourceVersion"):
                _require(item, field, patch.get("metadata", {}).get(field, ""))
            _merge(item, patch)
            self.webhook(item)
            item["metadata"]["resourceVersion"] = self.uid()
            self._collect(kind, name)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, version: str = ""
    ) -> None:
        """See KubernetesApi."""
        with self.writing("delete", kind, name):
            self.calls.add(("delete", kind))
            item = self._object(kind, name)
            _require(item, "uid", uid)
            _require(item, "resourceVersion", version)
            self._check_deletion(kind, item)
            self.mark_deleted((kind, name))

    def _refuse(self, verb: str, kind: str) -> None:
        if f"{verb} {kind}" in self.refused:
            raise self.refused[f"{verb} {kind}"]

    def uid(self) -> str:
        """A new uid."""
        self.counter += 1
        return f"uid-{self.counter}"

    def _object(self, kind: str, name: str) -> Manifest:
        if (kind, name) not in self.objects:
            raise NotFoundError(404, f"no {kind} {name}")
        return self.objects[kind, name]

    def writing(self, verb: str, kind: str, name: str) -> "_Write":
        """Note a write, and let it fail if it is its turn."""
        return _Write(self, f"{verb} {kind} {name}")

    def mark_deleted(self, key: tuple[str, str]) -> None:
        """Delete an object; its finalizers, and pods and volumes, are waited for."""
        metadata = self.objects[key]["metadata"]
        metadata["deletionTimestamp"] = self.now.isoformat()
        if key[0] not in ("Pod", "PersistentVolumeClaim"):
            self._collect(*key)

    def _collect(self, kind: str, name: str) -> None:
        """Remove an object that waits for nothing any more, and what it owns."""
        metadata = self.objects[kind, name]["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return
        del self.objects[kind, name]
        for key, item in list(self.objects.items()):
            owners = item["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == metadata["uid"] for owner in owners):
                self.mark_deleted(key)

    # ---- what a test forbids -----------------------------------------------------------------

    def _check_creation(self, kind: str, manifest: Manifest) -> None:
        """Raise if this must not be created; called before it is."""

    def _check_deletion(self, kind: str, item: Manifest) -> None:
        """Raise if this must not be deleted; called before it is."""


class _Write:
    """A write to the API server, which may fail before or after it had its effect."""

    def __init__(self, server: ApiServer, text: str) -> None:
        self._server = server
        self._text = text
        self._fault: Fault | None = None

    def __enter__(self) -> None:
        server = self._server
        if server.meanwhile is not None:
            act, server.meanwhile = server.meanwhile, None
            act()
        if server.fault is not None:
            left, kind = server.fault
            server.fault = (left - 1, kind) if left else None
            self._fault = None if left else kind
        if self._fault == "error":
            raise ApiError(500, "internal error")
        if self._fault == "killed-before":
            raise Killed
        server.writes.append(self._text)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            return
        if self._fault == "lost-answer":
            raise ApiError(0, "connection reset")
        if self._fault == "killed-after":
            raise Killed


def _require(item: Manifest, field: str, value: str) -> None:
    metadata = item["metadata"]
    if value and metadata.get(field, _NEVER_WRITTEN) != value:
        raise ConflictError(409, f"{metadata['name']} has another {field}")


def _merge(item: Manifest, patch: Manifest) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(item.setdefault(key, {}), value)
        elif value is None:
            item.pop(key, None)
        else:
            item[key] = value
