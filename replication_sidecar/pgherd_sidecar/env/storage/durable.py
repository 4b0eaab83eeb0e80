"""Files and names of files, put on stable storage one at a time.

Called by whoever must not forget after a crash, nor remember in another order; all of it blocks.
The ordered log has its own (``disk``), which its tests can make fail.
"""

import os
from contextlib import suppress
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


def replace(directory: Path, name: str, content: bytes, mode: int = 0o666) -> None:
    """Replace a file by one with this content; either is whole after a crash.

    Args:
        directory: of the file.
        name: of the file.
        content: all of it.
        mode: of a new file, less the umask.

    Raises:
        OSError: it can't be written; the old one is still there, and nothing of the new one: it
            may have taken all the room that there was.
    """
    new = directory / (name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(new, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(directory / name)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    sync_directory(directory)


def remove(path: Path) -> None:
    """Remove a file, if it is there, for good.

    Raises:
        OSError: the disk failed.
    """
    path.unlink(missing_ok=True)
    sync_directory(path.parent)
