"""``python -m fuzz.planted``: each mend is taken out of a copy of the sidecar, and must be missed.

A *plant* is a few texts of the sidecar's source, Python or SQL, put back to how a mistake of the
border to PostgreSQL once looked. A herd whose sidecars run such a copy plays the remembered cases
of that mistake; the plant is found when one of them fails. A text that is not there, because the
code has changed, is an error: the plant needs to be written anew.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pgherd_sidecar

from fuzz.__main__ import remembered, say
from fuzz.plants import PLANTS, Plant
from fuzz.play import Tally, play
from fuzz.servers import Servers, place

WANTED = 17
"""Of the nineteen ways in which members once came to differ."""
_SCRIPT = """
import sys
sys.path.insert(0, {path!r})
import pgherd_sidecar
assert pgherd_sidecar.__file__.startswith({path!r}), pgherd_sidecar.__file__
from pgherd_sidecar.agent.main import main
main()
"""


class PlantError(Exception):
    """A plant does not fit to the code any more."""


def plant(found: Plant, directory: Path) -> Path:
    """Make a copy of the sidecar with a mistake in it; return the script that runs it.

    Raises:
        PlantError: a text is not in its file, or there more than once.
    """
    path = directory / "planted"
    source = Path(pgherd_sidecar.__file__).parent
    package = path / source.name
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    for patch in found.patches:
        file = package / patch.file
        text = file.read_text() if file.exists() else ""
        if text.count(patch.mended) != 1:
            raise PlantError(f"{found.name}: {patch.file} has not once: {patch.mended[:60]}")
        file.write_text(text.replace(patch.mended, patch.broken))
    for one in (path, *path.rglob("*")):
        one.chmod(0o755 if one.is_dir() else 0o644)
    script = directory / "planted.py"
    script.write_text(_SCRIPT.format(path=str(path)))
    script.chmod(0o644)
    return script


def is_found(found: Plant) -> bool:
    """Play the remembered cases of a mistake with the mistake planted."""
    with tempfile.TemporaryDirectory(
        prefix="pgherd-planted-", dir=place(), ignore_cleanup_errors=True
    ) as base:
        directory = Path(base)
        directory.chmod(0o755)
        script = plant(found, directory)
        environment = {"PGHERD_SIDECAR_SCRIPT": str(script)}
        servers = Servers(directory, environment=environment, extremes=False)
        try:
            servers.start()
            for case in remembered([found.name]):
                failed = play(servers, case, Tally())
                if failed is not None:
                    say(f"{found.name}: found by «{case.name}»: {failed.kind}")
                    return True
        finally:
            servers.close()
    say(f"{found.name}: NOT FOUND ({found.mistake})")
    return False


def main(arguments: Sequence[str]) -> int:
    """Plant all, or those that are named; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="of plants")
    names = parser.parse_args(arguments).names
    plants = [one for one in PLANTS if not names or one.name in names]
    found = sum(is_found(one) for one in plants)
    say(f"{found} of {len(plants)} planted mistakes found")
    return 0 if found >= min(len(plants), WANTED) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
