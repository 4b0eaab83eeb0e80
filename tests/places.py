"""Where tests put what has to be flushed often, and at which ports they listen."""

import contextlib
import os
import random
import shutil
import socket
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PORTS = range(12000, 20000)
_given: set[int] = set()


def in_memory(room_bytes: int) -> Path:
    """Return a directory in memory if there is so much room, else that for temporary files."""
    usable = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    roomy = usable and shutil.disk_usage(_MEMORY).free > room_bytes
    return _MEMORY if roomy else Path(tempfile.gettempdir())


def free_port() -> int:
    """Return a port of loopback that is free, and not given to this process before.

    Below those that the kernel gives to whoever connects: somebody could, before it is used here.
    Each of the processes that run tests side by side has ports of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    for port in random.sample(own, len(own)):
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise AssertionError("no free ports on this machine")
