"""Copies a snapshot out of a store into a directory of this machine, in two steps.

First what says whether it will do, then the rest, which may take long. Nothing is compared with
the manifest: whoever uses the copy does that.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath
from shutil import copyfileobj

from pgherd_spark.storing.layout import MANIFEST, described, parts_in, unsealed
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import DirectoryStore, Store

_CHUNK = 1 << 20


def fetch_head(source: Store, target: DirectoryStore) -> None:
    """Copy the manifest, and all files that it names but the parts.

    Raises:
        PartError: it names a file outside of the snapshot, or is damaged.
        OSError: a store fails; FileNotFoundError if a file is missing.
    """
    content = source.get(MANIFEST)
    for name in _inside(described(unsealed(content))):
        _copy(source, target, name)
    target.put(MANIFEST, content)


def fetch_parts(
    source: Store, target: DirectoryStore, *, jobs: int, fetched: Callable[[int], None]
) -> None:
    """Copy the parts that the copied manifest names.

    Args:
        source: the snapshot.
        target: has its manifest.
        jobs: how many at a time.
        fetched: told the bytes of each part that is there.

    Raises:
        PartError, OSError: as for ``fetch_head``.
    """
    parts = parts_in(unsealed(target.get(MANIFEST)))
    names = _inside(part["path"] for part in parts)
    with ThreadPoolExecutor(jobs) as pool:
        copied = pool.map(partial(_copy, source, target), names)
        for part, _ in zip(parts, copied, strict=True):
            fetched(part["bytes"])


def _copy(source: Store, target: DirectoryStore, name: str) -> None:
    with source.read(name) as file, target.create(name) as copy:
        copyfileobj(file, copy, _CHUNK)


def _inside(names: Iterable[str]) -> list[str]:
    """The names, which come from the store: none may lead out of the directory."""
    found = list(names)
    for name in found:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise PartError(f"{MANIFEST} names a file outside of the snapshot: {name}")
    return found
