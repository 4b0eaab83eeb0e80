"""A Python that another account can run.

Root's virtual environment, or the interpreter below it, often lies where no other account can read
(/root is 0700, and pyenv installs below it). Then the herd runs from a copy in the machine's cache
directory, made once for each environment: hard links where the file system allows, so that it
takes no space. pgherd's own package is copied separately, anew when it has changed.

The copies are a cache: those that no command used for a month are removed, and all can be whenever
no herd runs.
"""

import compileall
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import pydantic_core

import pgherd_sidecar
from pgherd_sidecar.client.errors import HerdError, last_words, progress

CACHE = Path("/var/cache/pgherd")
_KEEP_S = 30 * 24 * 3600
"""How long a copy is kept after its last use by a command; its herds should run no longer."""
_NOT_NEEDED = shutil.ignore_patterns(
    "test", "tests", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo",
    "config-*", "site-packages", "dist-packages",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How to start Python: the command's first words, and what its environment needs."""

    command: tuple[str, ...]
    environment: dict[str, str]


OWN = Interpreter((sys.executable, "-P"), {})
"""The one that runs this."""


def can_enter(account: pwd.struct_passwd, directory: Path) -> bool:
    """Say whether an account can reach what lies in a directory."""
    return _as_account(account, ["test", "-x", str(directory)]).returncode == 0


def interpreter_for(account: pwd.struct_passwd) -> Interpreter:
    """Return a Python with this package that ``account`` can run.

    Raises:
        HerdError: neither this one nor a copy works for the account.
    """
    if _can_read(account, _telling_files()):
        return OWN
    copy, tested = _copied(account)
    if not tested.exists():
        trouble = _trouble(account, copy)
        if trouble is not None:
            if not any(tested.parent.glob("works-for-*")):  # else herds of others run from it
                shutil.rmtree(tested.parent)
            raise HerdError(
                f"{account.pw_name} can run neither {sys.executable} nor a copy of it in {CACHE} "
                f"({trouble}): install pgherd where {account.pw_name} can read it, for example "
                "with `python3 -m venv /opt/pgherd`"
            )
        tested.touch()
    return copy


def _trouble(account: pwd.struct_passwd, copy: Interpreter) -> str | None:
    """Say why an account can't run a copy, None if it can."""
    probe = [*copy.command, "-c", "import pgherd_sidecar.cli.main"]
    try:
        done = _as_account(account, probe, copy.environment)
    except OSError as error:
        return str(error.strerror)
    return last_words(done.stderr) if done.returncode != 0 else None


def _telling_files() -> list[Path]:
    """One file of each tree that is needed: interpreter, library, packages, this package."""
    files = (os.__file__, click.__file__, pydantic_core.__file__, pgherd_sidecar.__file__)
    return [Path(sys.executable), *(Path(str(file)) for file in files)]


def _can_read(account: pwd.struct_passwd, files: Iterable[Path]) -> bool:
    script = 'for file; do test -r "$file" || exit 1; done'
    return _as_account(account, ["sh", "-c", script, "sh", *map(str, files)]).returncode == 0


def _as_account(
    account: pwd.struct_passwd, command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=os.environ | (environment or {}),
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=os.getgrouplist(account.pw_name, account.pw_gid),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def _copied(account: pwd.struct_passwd) -> tuple[Interpreter, Path]:
    """Return the copy, and the file that says it has been tested with this account."""
    CACHE.mkdir(parents=True, exist_ok=True)
    CACHE.chmod(0o755)  # whatever root's umask is
    base = _once("python", _environment_key(), _copy_environment)
    package = _once("package", _package_key(), _copy_package)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = Interpreter(
        (str(base / "bin" / version), "-P"),
        {
            "PYTHONHOME": str(base),
            "PYTHONPATH": f"{package}:{base / 'packages'}",
            "LD_LIBRARY_PATH": str(base / "lib"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    return interpreter, base / f"works-for-{account.pw_uid}"


def _once(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the copy of that key; make it whole under another name first if it is missing."""
    target = CACHE / f"{kind}-{key}"
    if not target.exists():
        unfinished = Path(tempfile.mkdtemp(prefix=f"{kind}-", suffix=".new", dir=CACHE))
        try:
            make(unfinished)
            for path in [unfinished, *unfinished.rglob("*")]:
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)
            unfinished.rename(target)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not target.exists():  # else another command was faster
                raise
        _forget_old_copies()
    os.utime(target)
    return target


def _forget_old_copies() -> None:
    for copy in CACHE.iterdir():
        if copy.stat().st_mtime < time.time() - _KEEP_S:
            shutil.rmtree(copy)


def _copy_environment(target: Path) -> None:
    """Copy interpreter, standard library and installed packages."""
    progress(f"{sys.prefix} is not open to other accounts: making a copy in {CACHE}")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (target / "bin").mkdir()
    _link(str(Path(sys.executable).resolve()), str(target / "bin" / version))
    library = sysconfig.get_path("stdlib", vars={"base": sys.base_prefix})
    shutil.copytree(library, target / "lib" / version, copy_function=_link, ignore=_NOT_NEEDED)
    shared = Path(str(sysconfig.get_config_var("LIBDIR"))) / str(
        sysconfig.get_config_var("INSTSONAME")
    )
    if shared.suffix != ".a" and shared.exists():
        _link(str(shared), str(target / "lib" / shared.name))
    for packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        shutil.copytree(packages, target / "packages", copy_function=_link, dirs_exist_ok=True)


def _copy_package(target: Path) -> None:
    """Copy our packages (never linked: a developer edits them in place) and compile them."""
    for source in _sources():
        shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(target, quiet=2)
    for path in target.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


def _link(source: str, target: str) -> str:
    """Link a file that every account can read; copy another, or where there are no such links."""
    mode = Path(source).stat().st_mode
    if mode & stat.S_IROTH:
        with suppress(OSError):  # another file system, or one without hard links
            os.link(source, target)
            return target
    shutil.copy2(source, target)
    Path(target).chmod(0o755 if mode & stat.S_IXUSR else 0o644)
    return target


def _environment_key() -> str:
    installed = sorted(
        f"{distribution.name}=={distribution.version}"
        for distribution in importlib.metadata.distributions()
    )
    return _digest([sys.version, sys.base_prefix, sys.prefix, *installed])


def _package_key() -> str:
    return _digest(
        f"{path.relative_to(source.parent)} {path.stat().st_mtime_ns} {path.stat().st_size}"
        for source in _sources()
        for path in sorted(source.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    )


def _sources() -> list[Path]:
    """This package and, where it is installed, that of the jobs."""
    jobs = importlib.util.find_spec("pgherd_spark")
    own = [str(pgherd_sidecar.__file__)]
    return [Path(file).parent for file in [*own, *([str(jobs.origin)] if jobs else [])]]


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
