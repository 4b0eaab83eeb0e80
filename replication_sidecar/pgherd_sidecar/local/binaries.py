"""Which PostgreSQL installation a herd uses, and whether it will do."""

import re
import shutil
import subprocess
from pathlib import Path

from pgherd_sidecar.client.errors import HerdError

OLDEST_MAJOR = 15
_NEEDED = ("postgres", "initdb", "pg_ctl", "pg_config", "psql")
_ANOTHER = "give --postgres-bin the directory of PostgreSQL's server programs"
_DISTRIBUTION_DIRS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")


def find(chosen: Path | None, *, remedy: str | None = _ANOTHER) -> Path:
    """Return the directory of PostgreSQL's programs: the chosen one, or the newest installed.

    Args:
        chosen: this one and no other.
        remedy: what the user can do in place of installing PostgreSQL, None: nothing.

    Raises:
        HerdError: none that is new enough and has contrib.
    """
    if chosen is not None:
        _require_usable(chosen, remedy)
        return chosen
    candidates = {
        major_version(path): path
        for pattern in _DISTRIBUTION_DIRS
        for path in sorted(Path("/").glob(pattern.lstrip("/")))
        if _is_complete(path)
    }
    on_path = shutil.which("postgres")
    if not candidates and on_path is not None:
        path = Path(on_path).resolve().parent
        candidates[major_version(path)] = path
    if not candidates:
        raise HerdError(
            f"PostgreSQL is not installed: {_or('`apt-get install postgresql`', remedy)}"
        )
    newest = candidates[max(candidates)]
    _require_usable(newest, remedy)
    return newest


def major_version(postgres_bin: Path) -> int:
    """Return the major version of an installation.

    Raises:
        HerdError: there is no PostgreSQL server in this directory.
    """
    answer = _ask(postgres_bin / "postgres", "--version")
    number = re.search(r"\(PostgreSQL\) (\d+)", answer)
    if number is None:
        raise HerdError(f"{postgres_bin}/postgres does not look like PostgreSQL: {answer}")
    return int(number.group(1))


def _is_complete(path: Path) -> bool:
    return all((path / program).exists() for program in _NEEDED)


def _or(installing: str, remedy: str | None) -> str:
    return installing if remedy is None else f"{installing} or {remedy}"


def _require_usable(postgres_bin: Path, remedy: str | None) -> None:
    missing = [program for program in _NEEDED if not (postgres_bin / program).exists()]
    if missing:
        raise HerdError(f"{postgres_bin} has no {missing[0]}: {remedy or 'install postgresql'}")
    major = major_version(postgres_bin)
    if major < OLDEST_MAJOR:
        raise HerdError(
            f"{postgres_bin} is PostgreSQL {major}, pgherd needs {OLDEST_MAJOR} or newer: "
            f"{_or(f'install postgresql-{OLDEST_MAJOR}', remedy)}"
        )
    share = Path(_ask(postgres_bin / "pg_config", "--sharedir"))
    if not (share / "extension" / "dblink.control").exists():
        raise HerdError(
            f"PostgreSQL {major} in {postgres_bin} lacks the contrib extension dblink: "
            f"install postgresql-contrib (it is missing in {share}/extension)"
        )


def _ask(program: Path, option: str) -> str:
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise HerdError(f"there is no {program}: give another --postgres-bin") from error
    except (PermissionError, subprocess.CalledProcessError) as error:
        raise HerdError(
            f"{program} cannot be run ({error}): give another --postgres-bin"
        ) from error
    return done.stdout.strip()
