"""One command at a time changes a herd: an advisory lock on ``herd.lock`` in its directory.

The kernel gives the lock back when its holder dies, so a stale lock cannot exist. Reading commands
(``status``, ``verify``) take none.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pgherd_sidecar.client.errors import HerdError

LOCK_FILE = "herd.lock"
_RETRY_S = 0.05


@asynccontextmanager
async def locked(directory: Path, timeout_s: float = 60.0) -> AsyncIterator[None]:
    """Hold the herd's lock; wait up to ``timeout_s`` for another command to finish.

    Raises:
        HerdError: another command holds the lock for longer, or the directory is gone.
    """
    descriptor = await _acquire(directory / LOCK_FILE, timeout_s)
    try:
        yield
    finally:
        os.close(descriptor)


async def _acquire(path: Path, timeout_s: float) -> int:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HerdError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            if asyncio.get_running_loop().time() > deadline:
                raise HerdError(
                    f"another pgherd command is at work in {path.parent}: wait until it is done"
                ) from error
            await asyncio.sleep(_RETRY_S)
            continue
        if _is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # the former holder removed the directory or the file: start anew


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
