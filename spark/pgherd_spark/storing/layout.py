"""The files of a snapshot in a store, and when they are one: docs/spark.md says what they mean.

``job.json`` is there from the beginning, ``manifest.json`` when all else has been read back. What
has no manifest is no snapshot. Used by the job that writes them and by whoever restores.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from pgherd_spark.reading.checksums import NOTHING
from pgherd_spark.storing.parts import PartError, Receipt, verify_part
from pgherd_spark.storing.stores import Store

FORMAT = 2
MANIFEST, JOB = "manifest.json", "job.json"
SCHEMA, CONTENTS, ROLES, CERTIFICATION = "schema.dump", "schema.list", "roles.sql", "certification"
_PREFIX = "gid-"
_SEAL = "manifest_sha256"


def folder(gid: int, marker: str) -> str:
    """The name of a snapshot's folder; names sort by GID."""
    return f"{_PREFIX}{gid:012}-{marker[:8]}"


def snapshots(store: Store) -> list[str]:
    """The folders of a store that hold snapshots, whole or not, the oldest first.

    Raises:
        OSError: the store fails.
    """
    return [name for name in store.folders() if name.startswith(_PREFIX)]


def unfinished(store: Store) -> list[str]:
    """The folders of snapshots that were begun and have no manifest.

    Raises:
        OSError: the store fails.
    """
    found = [(name, store.below(name)) for name in snapshots(store)]
    return [name for name, one in found if one.size(MANIFEST) is None and one.size(JOB) is not None]


def expire(
    store: Store,
    cluster_id: str,
    keep: int,
    say: Callable[[str], None],
    series: str | None = None,
) -> list[str]:
    """Remove the oldest whole snapshots of a series of a herd; nothing else is counted or removed.

    Args:
        store: holds the snapshots' folders.
        cluster_id: the herd's.
        keep: how many of the newest to leave, at least one.
        say: told which could not be removed, and the next snapshot job tries it again; and whose
            manifests are damaged.
        series: those of no series belong to each.

    Returns:
        What was removed.

    Raises:
        OSError: it can't be read which there are.
    """
    counted = [(cluster_id, None), (cluster_id, series)]
    whole = []
    for name in snapshots(store):
        try:
            if _belongs_to(store.below(name)) in counted:
                whole.append(name)
        except (ValueError, KeyError) as error:
            say(f"{name} is damaged, and stays as it is: {error}")
    old = whole[: -max(1, keep)]
    return [name for name in old if remove(store, name, say)]


def remove(store: Store, name: str, say: Callable[[str], None]) -> bool:
    """Remove a snapshot's folder; whether that was possible, and said why if not."""
    one = store.below(name)
    try:
        one.delete(MANIFEST)  # first: from now on it is none
        one.clear(say)
    except OSError as error:
        say(f"{name} could not be removed: {error}")
        return False
    return True


def herd_of(store: Store) -> str | None:
    """The cluster id in a snapshot's manifest; None if it is not whole.

    Raises:
        OSError: the store fails.
        ValueError, KeyError: the manifest is damaged.
    """
    return _belongs_to(store)[0]


def _belongs_to(store: Store) -> tuple[str | None, str | None]:
    """The herd, as ``herd_of`` tells it, and the series."""
    try:
        manifest = json.loads(store.get(MANIFEST))
        return str(manifest["cluster_id"]), manifest.get("series")
    except FileNotFoundError:
        return None, None


def sha256(data: bytes) -> str:
    """As the manifest has it."""
    return hashlib.sha256(data).hexdigest()


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is stored: with a checksum of itself."""
    return json.dumps({**manifest, _SEAL: _seal(manifest)}, indent=1).encode()


def unsealed(stored: bytes) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        PartError: it is damaged.
        ValueError: it is no JSON.
    """
    manifest: dict[str, Any] = json.loads(stored)
    if manifest.pop(_SEAL, None) != _seal(manifest):
        raise PartError(f"{MANIFEST} is damaged")
    return manifest


def _seal(manifest: Mapping[str, Any]) -> str:
    return sha256(json.dumps(manifest, sort_keys=True).encode())


def require_whole(store: Store) -> dict[str, Any]:
    """Read a snapshot's manifest, and check every file against it.

    Raises:
        PartError: something is missing or damaged.
        OSError: the store fails.
    """
    manifest = require_described(store)
    for part in parts_in(manifest):
        try:
            verify_part(store, Receipt(part["path"], "", part["bytes"], part["sha256"], NOTHING))
        except FileNotFoundError as error:
            raise PartError(f"{store} holds no whole snapshot: {error}") from error
    return manifest


def require_described(store: Store) -> dict[str, Any]:
    """The same without the parts, for who reads those anyway and compares them then.

    Raises:
        PartError: something is missing or damaged.
        OSError: the store fails.
    """
    try:
        manifest = unsealed(store.get(MANIFEST))
        for name, known in described(manifest).items():
            if sha256(store.get(name)) != known:
                raise PartError(f"{name} is damaged")
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise PartError(f"{store} holds no whole snapshot: {error}") from error
    if manifest["format"] != FORMAT:
        raise PartError(f"{store} has format {manifest['format']}, this pgherd reads {FORMAT}")
    return manifest


def described(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of each of a snapshot's files but the manifest and the parts, by name."""
    state = manifest["certification"]
    return {state["file"]: state["sha256"], **manifest["files"]}


def parts_in(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the manifest says of each part."""
    return [part for table in manifest["tables"] for part in table["parts"]]


def parts_bytes(manifest: Mapping[str, Any]) -> int:
    """How large all of its parts are."""
    return sum(part["bytes"] for part in parts_in(manifest))
