"""Run the programs that the benchmarks are made of (psql, initdb, mariadbd, ...).

Does not know what they do: finds them, runs them as the right account, turns a failure into one
line. Called by everything here that starts a process. Keeps no state.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from benchmarks.errors import BenchmarkError

DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
OLDEST_POSTGRES = 15


@contextmanager
def scratch(disk: Path) -> Iterator[Path]:
    """Lend a directory for servers on a disk; all of it goes with the block."""
    with tempfile.TemporaryDirectory(prefix="pgherd-bench-", dir=disk) as directory:
        # The servers run as other accounts, which have to reach their directories.
        Path(directory).chmod(0o755)
        yield Path(directory)


def program(name: str, *, package: str) -> str:
    """Return the path of a program.

    Args:
        name: The program, e.g. ``sysbench``.
        package: The Debian package to name when it is missing.

    Raises:
        BenchmarkError: It is not installed.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise BenchmarkError(f"{name} is not installed: run benchmarks/setup or install {package}")
    return found


def postgres_bin() -> Path:
    """Return the directory with the newest PostgreSQL's programs.

    Raises:
        BenchmarkError: No PostgreSQL of a supported version is installed.
    """
    versions = [
        (int(path.parent.name), path)
        for path in DEBIAN_POSTGRES.glob("*/bin")
        if path.parent.name.isdigit() and (path / "postgres").exists()
    ]
    if versions and max(versions)[0] >= OLDEST_POSTGRES:
        return max(versions)[1]
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).parent
    raise BenchmarkError(f"PostgreSQL {OLDEST_POSTGRES} or newer is not installed: run make setup")


def server_account(name: str) -> str | None:
    """Return the account for servers, or None for the caller's own.

    PostgreSQL refuses to run as root and MariaDB complains, so root hands over to ``name``.
    """
    return name if os.geteuid() == 0 else None


def owned_directory(path: Path, account: str | None) -> Path:
    """Create a directory that belongs to ``account`` and return it."""
    path.mkdir(parents=True)
    if account is not None:
        shutil.chown(path, account, account)
    return path


def client_environment(dsn: str) -> dict[str, str]:
    """Return the environment that makes libpq programs connect to ``dsn``.

    The environment and not the command line, where every user of the machine could read the
    password.
    """
    names = {
        "host": "PGHOST",
        "port": "PGPORT",
        "user": "PGUSER",
        "password": "PGPASSWORD",
        "dbname": "PGDATABASE",
    }
    given = conninfo_to_dict(dsn)
    chosen = {names[key]: str(value) for key, value in given.items() if key in names}
    return {**os.environ, "PGCONNECT_TIMEOUT": "10", **chosen}


def run(
    command: Sequence[str | Path],
    *,
    account: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    Args:
        command: Program and arguments.
        account: Run as this account, with its group only.
        environment: The whole environment; the caller's by default.

    Raises:
        BenchmarkError: It failed; carries the last line that it said.
    """
    done = subprocess.run(
        [str(part) for part in command],
        user=account,
        group=account,
        extra_groups=None if account is None else [],
        env=environment,
        # The servers' account may not be able to enter the directory we were called from.
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{Path(command[0]).name}: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def psql_file(path: Path, dsn: str, **variables: int | str) -> None:
    """Run a .sql file with psql, its variables set, stopping at the first error.

    Raises:
        BenchmarkError: A statement failed.
    """
    settings = [f"--set={name}={value}" for name, value in variables.items()]
    run(
        [postgres_bin() / "psql", "-Xq", "--set=ON_ERROR_STOP=1", *settings, f"--file={path}"],
        environment={**client_environment(dsn), "PGOPTIONS": "-c client_min_messages=warning"},
    )


def wait_until(probe: Callable[[], bool], *, timeout_s: float, failure: str) -> None:
    """Return as soon as ``probe`` says yes.

    Raises:
        BenchmarkError: It did not within ``timeout_s``; carries ``failure``.
    """
    deadline = time.monotonic() + timeout_s
    while not probe():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{failure} within {timeout_s:.0f} s")
        time.sleep(0.1)


def last_line(text: str) -> str:
    """Return the last line with something in it: where programs put their reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed without a word"
