"""Where tests put what has to be flushed often."""

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")


def in_memory(room_bytes: int) -> Path:
    """Return a directory in memory if there is so much room, else that for temporary files."""
    usable = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    roomy = usable and shutil.disk_usage(_MEMORY).free > room_bytes
    return _MEMORY if roomy else Path(tempfile.gettempdir())
