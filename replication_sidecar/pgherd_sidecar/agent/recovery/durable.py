"""What has happened to the names in a directory, put on stable storage.

Called by the steps of a rebuild, which must not happen again after a crash, nor in another order.
"""

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Have what was created, renamed or removed in a directory survive a crash.

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, if it is there, for good.

    Raises:
        OSError: the disk failed.
    """
    path.unlink(missing_ok=True)
    sync_directory(path.parent)
