"""Which PostgreSQL the tests use: their herds, and the servers beside these.

``PGHERD_TEST_POSTGRES`` names the directory of the programs that the tests' herds run on, by
default the newest that is installed. ``PGHERD_TEST_OTHER_POSTGRES`` names directories of other
major versions, separated as in ``PATH``: sources of imports and dumps, second versions of a herd.
``scripts/setup postgresql-versions`` fetches some. A source may lack all programs but the server's.
"""

import os
import shutil
from pathlib import Path

from pgherd_sidecar.local import binaries

OWN = "PGHERD_TEST_POSTGRES"
OTHERS = "PGHERD_TEST_OTHER_POSTGRES"
_DEBIAN = Path("/usr/lib/postgresql")


def own() -> list[str]:
    """The arguments of ``up`` that choose the installation of the tests' herds."""
    chosen = os.environ.get(OWN)
    return ["--postgres-bin", chosen] if chosen else []


def others() -> dict[int, Path]:
    """Directories of programs by major version, the oldest first; none unless they are named."""
    named = [Path(one) for one in os.environ.get(OTHERS, "").split(os.pathsep) if one]
    return dict(sorted((binaries.major_version(path), path) for path in named))


def usable() -> dict[int, Path]:
    """Installations that a herd can run on, by major version, the oldest first."""
    found = {binaries.major_version(path): path for path in _DEBIAN.glob("*/bin")}
    known = sorted((found | others()).items())
    return {major: path for major, path in known if major >= binaries.OLDEST_MAJOR}


def program(name: str, major: int) -> str:
    """A program of PostgreSQL, as it belongs to a server of this major version."""
    chosen = os.environ.get(OWN)
    named = [others().get(major), _DEBIAN / str(major) / "bin"]
    if chosen and binaries.major_version(Path(chosen)) == major:
        named.insert(0, Path(chosen))
    for directory in named:
        if directory is not None and (directory / name).exists():
            return str(directory / name)
    path = shutil.which(name)
    assert path is not None, f"{name} is missing"
    return path
