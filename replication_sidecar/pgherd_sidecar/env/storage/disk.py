"""Files as the log needs them: a directory of files with positioned reads and writes.

`Directory` and `File` are the seam between the log's storage and the machine. The real ones are
here; tests have ones that lose what was not synced, tear writes and fail on demand. No caching
and no retries: an error is the caller's to judge (`OSError`).

All of it blocks; the storage above is called from a worker thread.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pgherd_sidecar.env.storage import durable

_ZEROS = bytes(1 << 20)


class File(Protocol):
    """An open file. Writes are durable after `sync` only."""

    def size(self) -> int:
        """Return the size in bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer at the end of the file only."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`."""

    def sync(self) -> None:
        """Make all writes so far durable."""

    def close(self) -> None:
        """Release the file."""


class Directory(Protocol):
    """A directory. Creations, renames and removals are durable after `sync` only."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def create(self, name: str, size: int) -> File:
        """Create or empty a file and fill it with `size` zero bytes, written out, not synced.

        One for which there is no room is removed again.
        """

    def open(self, name: str) -> File:
        """Open an existing file for reading and writing."""

    def replace(self, name: str, new_name: str) -> None:
        """Rename a file, atomically replacing what has the new name."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync(self) -> None:
        """Make names durable."""


class RealFile:
    """A file of the operating system."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._fd).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer at the end of the file only."""
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`."""
        written = os.pwrite(self._fd, data, offset)
        while written < len(data):
            written += os.pwrite(self._fd, memoryview(data)[written:], offset + written)

    def sync(self) -> None:
        """Make all writes so far durable."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)


class RealDirectory:
    """A directory of the operating system, created if it doesn't exist."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path

    def names(self) -> list[str]:
        """Return the names of all files."""
        return sorted(entry.name for entry in self._path.iterdir())

    def create(self, name: str, size: int) -> RealFile:
        """Create or empty a file and fill it with zeros.

        Real zeros, not a hole: writing into allocated and initialised blocks changes no metadata,
        which makes each later `fdatasync` one write of the disk instead of two.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        file = RealFile(os.open(self._path / name, flags, 0o600))
        try:
            for offset in range(0, size, len(_ZEROS)):
                file.write(offset, _ZEROS[: size - offset])
        except OSError:
            file.close()
            with suppress(OSError):
                self.remove(name)
            raise
        return file

    def open(self, name: str) -> RealFile:
        """Open an existing file for reading and writing."""
        return RealFile(os.open(self._path / name, os.O_RDWR | os.O_CLOEXEC))

    def replace(self, name: str, new_name: str) -> None:
        """Rename a file, atomically replacing what has the new name."""
        (self._path / name).replace(self._path / new_name)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._path / name).unlink()

    def sync(self) -> None:
        """Make names durable."""
        durable.sync_directory(self._path)
