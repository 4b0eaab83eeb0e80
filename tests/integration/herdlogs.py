"""The logs of all herds that tests have made, also of those that a test makes and destroys."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.herd import sidecar_logs
from benchmarks.trouble import Logs

_KEPT_BYTES = 1 << 20
_homes: list[Path] = []


def watch(directory: Path) -> None:
    """Have the logs of a herd read from now on."""
    _homes.append(directory)


def _logs() -> Iterator[Path]:
    for directory in _homes:
        with contextlib.suppress(PermissionError):  # a directory that a test has closed
            yield from sidecar_logs(directory)


def last_words() -> dict[str, str]:
    """The ends of the logs that are there, by names for files."""
    words = {}
    for log in _logs():
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _KEPT_BYTES))
            words["-".join(log.parts[-3:])] = file.read().decode(errors="replace")
    return words


LOGS = Logs(_logs)
