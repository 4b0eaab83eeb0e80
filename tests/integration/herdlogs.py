"""The logs of all herds that tests have made, also of those that a test makes and destroys."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.herd import sidecar_logs
from benchmarks.trouble import Logs

_homes: list[Path] = []


def watch(directory: Path) -> None:
    """Have the logs of a herd read from now on."""
    _homes.append(directory)


def _logs() -> Iterator[Path]:
    for directory in _homes:
        with contextlib.suppress(PermissionError):  # a directory that a test has closed
            yield from sidecar_logs(directory)


LOGS = Logs(_logs)
