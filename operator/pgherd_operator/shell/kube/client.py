"""The Kubernetes API over HTTP, as a pod's service account: the few calls that we make.

No generated client library: it would be most of the operator's memory, and does not know
server-side apply better than ten lines do.
"""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pgherd_operator.api import (
    CHECK,
    GROUP,
    KIND,
    MAINTENANCE,
    SCHEDULE,
    SET,
    SNAPSHOT,
    SUBSCRIPTION,
    VERSION,
)
from pgherd_operator.objects import names
from pgherd_operator.shell.kube.interface import (
    ApiError,
    ConflictError,
    Manifest,
    Manifests,
    NotFoundError,
)

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_WATCH_S = 300
"""After so long the API server ends a watch, and a new one begins."""
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=_WATCH_S + 30, sock_connect=10)
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_WAITS = ("FailedBinding", "ExternalProvisioning")
"""Reasons why a claim has no volume, which Kubernetes tells of in Events of type Normal."""
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_PATHS = {
    "ConfigMap": ("api/v1", "configmaps"),
    "Event": ("api/v1", "events"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("apis/monitoring.coreos.com/v1", "podmonitors"),
    "Certificate": ("apis/cert-manager.io/v1", "certificates"),
    "Job": ("apis/batch/v1", "jobs"),
    "SparkApplication": ("apis/sparkoperator.k8s.io/v1beta2", "sparkapplications"),
    **{
        kind: (f"apis/{GROUP}/{VERSION}", f"{kind.lower()}s")
        for kind in (KIND, SNAPSHOT, SCHEDULE, CHECK, MAINTENANCE, SET, SUBSCRIPTION)
    },
}


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and how it is spoken to.

    Attributes:
        token_file: read anew for each request: tokens are rotated.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def of_pod(cls, environment: Mapping[str, str]) -> "Access":
        """What Kubernetes gives a pod; KUBERNETES_URL (`kubectl proxy`) for development."""
        if "KUBERNETES_URL" in environment:
            return cls(environment["KUBERNETES_URL"])
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", _ACCOUNT / "token", _ACCOUNT / "ca.crt")


class Client:
    """See KubernetesApi."""

    def __init__(self, access: Access) -> None:
        self._access = access
        trusted = ssl.create_default_context(cafile=access.ca_file) if access.ca_file else True
        # Each watch holds a connection, and each namespace has several: no number would be enough.
        self._session = aiohttp.ClientSession(
            timeout=_TIMEOUT, connector=aiohttp.TCPConnector(ssl=trusted, limit=0)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        """See KubernetesApi."""
        return await self._call("GET", _path(kind, namespace, name))

    async def list(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        """See KubernetesApi."""
        return await self._listed(kind, namespace, {"labelSelector": selector})

    async def warnings(self, namespace: str, uid: str) -> Manifests:
        """See KubernetesApi."""
        found = await self._listed(
            "Event", namespace, {"fieldSelector": f"involvedObject.uid={uid}"}
        )
        return [one for one in found if one.get("type") == "Warning" or one.get("reason") in _WAITS]

    async def _listed(self, kind: str, namespace: str, parameters: Mapping[str, str]) -> Manifests:
        found = await self._call("GET", _path(kind, namespace), parameters=parameters)
        items = found.get("items")
        if not isinstance(items, list):
            raise ApiError(0, f"GET {_path(kind, namespace)}: the answer is no list")
        # A list names its kind once, for all items.
        own = {"apiVersion": found.get("apiVersion"), "kind": kind}
        return [own | item for item in items]

    async def watch(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Manifest]:
        """See WatchApi. Without a version to begin at, all that is there comes first."""
        path = _path(kind, namespace)
        parameters = {"watch": "true", "labelSelector": selector, "timeoutSeconds": f"{_WATCH_S}"}
        url, what = f"{self._access.url}/{path}", f"watching {path}"
        try:
            async with self._session.get(
                url, params=parameters, headers=self._headers(_METADATA), timeout=_WATCH_TIMEOUT
            ) as response:
                if response.status >= 400:
                    raise _refusal(response.status, what, _decode(await response.read()))
                async for line in _lines(response.content):
                    yield _changed(line, what)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(0, f"{what}: {error or type(error).__name__}") from error

    async def create(self, manifest: Manifest) -> Manifest:
        """See KubernetesApi."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        return await self._call("POST", path, manifest, {"fieldManager": names.FIELD_MANAGER})

    async def admit(self, manifest: Manifest) -> None:
        """See KubernetesApi.

        The API server looks for the name last, when all that may refuse an object has been asked.
        """
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        parameters = {"fieldManager": names.FIELD_MANAGER, "dryRun": "All"}
        try:
            await self._call("POST", path, manifest, parameters)
        except ConflictError:
            return
        except ApiError as error:
            if not _says_nothing(error):
                raise

    async def replace(self, manifest: Manifest) -> None:
        """Put an object in place of the one with its resourceVersion; ConflictError if changed."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        await self._call("PUT", path, manifest)

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """See KubernetesApi."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"], subresource)
        parameters = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", path, manifest, parameters, _APPLY)

    async def patch(self, kind: str, namespace: str, name: str, patch: Manifest) -> None:
        """See KubernetesApi."""
        parameters = {"fieldManager": names.FIELD_MANAGER}
        await self._call("PATCH", _path(kind, namespace, name), patch, parameters, _MERGE)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, version: str = ""
    ) -> None:
        """See KubernetesApi."""
        given = {"uid": uid, "resourceVersion": version}
        conditions = {key: value for key, value in given.items() if value}
        options: Manifest = {"preconditions": conditions} if conditions else {}
        if kind == "Job":  # else the API server would leave its pods, and they would go on
            options["propagationPolicy"] = "Background"
        await self._call("DELETE", _path(kind, namespace, name), options)

    async def _call(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        parameters: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        headers = {"Content-Type": content_type} | self._headers("application/json")
        # JSON is YAML, too, which is what the type of an apply patch asks for.
        try:
            async with self._session.request(
                method,
                f"{self._access.url}/{path}",
                params=parameters,
                json=body,
                headers=headers,
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(0, f"{method} {path}: {error or type(error).__name__}") from error
        found = _decode(content)
        if response.status >= 400:
            raise _refusal(response.status, f"{method} {path}", found)
        if not isinstance(found, dict):
            raise ApiError(response.status, f"{method} {path}: the answer is no object: {found!r}")
        return found

    def _headers(self, accepted: str) -> dict[str, str]:
        headers = {"Accept": accepted}
        if self._access.token_file is not None:
            headers["Authorization"] = f"Bearer {self._access.token_file.read_text().strip()}"
        return headers


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a stream, however long: an object's metadata may have a megabyte."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


def _changed(line: bytes, what: str) -> Manifest:
    """The metadata of what an event of a watch is about.

    Raises:
        ApiError: it is the end of the watch, in the server's words, or no event.
    """
    event = _decode(line)
    found = event.get("object") if isinstance(event, dict) else None
    if not isinstance(found, dict):
        raise ApiError(0, f"{what}: no event of a watch: {line[:100]!r}")
    if event.get("type") == "ERROR":
        raise _refusal(int(found.get("code") or 0), what, found)
    metadata = found.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    group, plural = _PATHS[kind]
    where = ["namespaces", namespace] if namespace else []
    parts = [group, *where, plural, name, subresource]
    return "/".join(part for part in parts if part)


def _decode(content: bytes) -> Any:
    """Return what a body holds; its first text if a proxy on the way answered, and not in JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return content[:200].decode(errors="replace")


def _says_nothing(error: ApiError) -> bool:
    """Whether this refusal of a dry run is none of what it would be about."""
    unasked = error.status == 400 and "does not support dry run" in str(error)
    return unasked or (error.status == 403 and "exceeded quota" in str(error))


def _refusal(status: int, what: str, answer: Any) -> ApiError:
    message = answer.get("message", "") if isinstance(answer, dict) else str(answer)[:200]
    kind = {404: NotFoundError, 409: ConflictError}.get(status, ApiError)
    if status == 422 and _names_another(answer):
        kind = ConflictError
    return kind(status, f"{what}: {status} {message}")


def _names_another(answer: Any) -> bool:
    """Whether a patch was refused for its uid: to the API server that is a change of a field."""
    details = answer.get("details") if isinstance(answer, dict) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return any(one.get("field") == "metadata.uid" for one in causes or ())
