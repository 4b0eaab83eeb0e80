"""What has pods pass the *restricted* Pod Security Standard: no root, no rights of their own."""

from typing import Any

ACCOUNT = 5432
"""User and group of all containers; the images know them as ``postgres``."""
POD: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": ACCOUNT,
    "runAsGroup": ACCOUNT,
    "fsGroup": ACCOUNT,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
