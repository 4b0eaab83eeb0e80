"""What the operator asks of the Kubernetes API, and nothing else: an interface and its errors.

Reads are consistent (no watch cache), so the reconciler is not misled by an old list; watches only
say when to look. The real client is ``client``; the tests have a server in memory.
"""

from typing import Any, Protocol

Manifest = dict[str, Any]
Manifests = list[Manifest]


class ApiError(Exception):
    """The API server refused, or was not reached; the message is one line.

    Attributes:
        status: of HTTP; 0 when there was no answer (what was asked may have happened all the same).
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(ApiError):
    """There is no such object."""


class ConflictError(ApiError):
    """The name is taken, or the object is not the one that was meant."""


class KubernetesApi(Protocol):
    """All methods may raise ``ApiError``."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        """Return an object; ``NotFoundError`` when there is none."""

    async def list(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        """Return the objects with these labels."""

    async def warnings(self, namespace: str, uid: str) -> Manifests:
        """Return the Events about one object that say what is wrong: Warnings, and few others."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create, and return what there is now; ``ConflictError`` when the name is taken."""

    async def admit(self, manifest: Manifest) -> None:
        """Ask, without making anything, whether this would be made; a taken name is no refusal.

        Neither is an exceeded quota, which counts what is to be replaced, too, nor a web hook that
        cannot be asked: then nobody knows before it is tried.
        """

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Server-side apply under our field manager, taking over fields that others changed.

        Return what there is now. With a uid in the manifest: to that object only,
        ``ConflictError`` where it is not there.
        """

    async def patch(self, kind: str, namespace: str, name: str, patch: Manifest) -> None:
        """JSON merge patch; with a uid, of that object only."""

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, version: str = ""
    ) -> None:
        """Delete, if uid and resourceVersion (when given) are its own; else ``ConflictError``."""
