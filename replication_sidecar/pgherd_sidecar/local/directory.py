"""Creating and removing the herd's directory, and only a herd's."""

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from pgherd_sidecar.client.errors import HerdError, disk_full
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.local.lock import LOCK_FILE

_NODE_NEEDS_BYTES = 200 << 20


def create_directory(directory: Path) -> list[Path]:
    """Create the directory and its parents; return those that did not exist, deepest first.

    Raises:
        HerdError: one of them is a file.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise HerdError(f"{error.filename} is not a directory: choose another --dir") from error
    return missing


def require_empty(directory: Path) -> None:
    """Check that there is nothing in the directory that a herd could get mixed with.

    Raises:
        HerdError: there is.
    """
    _refuse(directory, _content(directory) - {LOCK_FILE})


def require_empty_or_claimed(directory: Path) -> None:
    """Check the same before the lock is taken, where another command may be making a herd.

    That command's lock file comes before all else and goes last, so it is there whenever there is
    something of a herd. The holder of the lock checks again.

    Raises:
        HerdError: there is something, and no lock file.
    """
    content = _content(directory)
    if LOCK_FILE not in content:
        _refuse(directory, content)


def _content(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def _refuse(directory: Path, strangers: set[str]) -> None:
    if strangers:
        raise HerdError(
            f"{directory} is not empty and not a herd directory (it has {min(strangers)}): "
            "choose an empty or new --dir"
        )


def require_space(herd: Herd, nodes: int) -> None:
    """Check that the device has room for so many new nodes, empty as they are.

    Raises:
        HerdError: it has not.
    """
    needed = _NODE_NEEDS_BYTES * nodes
    free = shutil.disk_usage(herd.directory).free
    if free < needed:
        raise HerdError(
            f"{disk_full(herd.directory).message} ({needed >> 20} MB needed, {free >> 20} MB free)"
        )


def remove_content(directory: Path) -> None:
    """Empty the directory, the lock file last: who waits for it then sees that it is gone."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()
    (directory / LOCK_FILE).unlink(missing_ok=True)


def remove_if_empty(directories: Iterable[Path]) -> None:
    """Remove directories, deepest first, as long as they are empty and we may."""
    with contextlib.suppress(OSError):
        for directory in directories:
            directory.rmdir()
