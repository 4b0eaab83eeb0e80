"""Where known test suites come from: source distributions of the package index and of Debian.

What has been fetched once is used again. Nothing is installed but into virtual environments.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cmp_to_key
from pathlib import Path


class FetchError(Exception):
    """A source distribution cannot be had."""


def from_index(name: str, version: str, work: Path) -> Path:
    """Fetch and unpack a source distribution of the Python package index.

    Args:
        name: of the package.
        version: of it.
        work: directory for what is fetched.

    Returns:
        The directory of its sources.

    Raises:
        FetchError: the index does not give it.
    """
    target = work / f"{name.lower()}-{version}"
    if not target.exists():
        archives = work / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        _run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--no-binary={name}",
             f"--dest={archives}", f"{name}=={version}"],
            f"the package index does not give {name} {version}",
        )  # fmt: skip
        (archive,) = archives.glob(f"[{name[0].lower()}{name[0].upper()}]*-{version}.tar.gz")
        _unpack(archive, target)
    return target


def from_debian(package: str, work: Path, *, installed: bool = False) -> Path:
    """Fetch and unpack the upstream part of a Debian source package.

    The function leaves the machine's lists of package sources as they are. It uses a copy of them
    that asks for sources.

    Args:
        package: name of the source package.
        work: directory for what is fetched.
        installed: try the version that is installed here first.
            Afterwards, and otherwise, the newest version comes first.

    Returns:
        The directory of its sources.

    Raises:
        FetchError: the distribution does not give it.
    """
    apt = work / "apt"
    (apt / "sources").mkdir(parents=True, exist_ok=True)
    (apt / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    _write_sources(apt / "sources")
    options = [
        "-oDir::Etc::SourceList=/dev/null",
        f"-oDir::Etc::SourceParts={apt / 'sources'}",
        f"-oDir::State::Lists={apt / 'lists'}",
    ]
    wanted = [f"{package}={_installed(package)}" if installed else package]
    if not (work / wanted[0]).exists():
        _run(["apt-get", *options, "-qq", "update"], "apt-get cannot update its lists")
        offered = _run(["apt-cache", *options, "showsrc", package], f"nobody knows {package}")
        # The archive of security updates gives a package longer than its sources.
        versions = newest_first(re.findall(r"(?m)^Version: (.*)$", offered))
        wanted += [f"{package}={version}" for version in versions]
    refusals = []
    for one in wanted:
        target = work / one
        try:
            if not target.exists():
                _run(
                    ["apt-get", *options, "-qq", "source", "--download-only", one],
                    f"the distribution does not give the sources of {one}",
                    cwd=apt,
                )
                archives = (a for a in apt.glob(f"{package}_*.orig.tar.*") if a.suffix != ".asc")
                _unpack(max(archives, key=lambda archive: archive.stat().st_mtime), target)
        except FetchError as error:
            refusals.append(str(error))
        else:
            return target
    raise FetchError("\n".join(refusals))


def environment(name: str, requirements: Sequence[str], work: Path) -> Path:
    """Make a virtual environment with some packages, unless it is there.

    Returns:
        Its Python.

    Raises:
        FetchError: they cannot be installed.
    """
    directory = work / f"venv-{name}"
    python = directory / "bin" / "python"
    done = directory / "complete"
    if not done.exists():
        _run([sys.executable, "-m", "venv", "--clear", str(directory)], "no virtual environment")
        _run(
            [str(python), "-m", "pip", "install", "--quiet", *requirements],
            f"pip cannot install {' '.join(requirements)}",
        )
        done.touch()
    return python


def newest_first(versions: Iterable[str]) -> list[str]:
    """Sort versions as Debian orders them."""

    def order(one: str, other: str) -> int:
        compared = ["dpkg", "--compare-versions", one, "lt", other]
        return -1 if subprocess.run(compared, check=False).returncode else 1

    return sorted(set(versions), key=cmp_to_key(order))


def _installed(package: str) -> str:
    """Version of the sources that an installed package was built from."""
    return _run(
        ["dpkg-query", "--show", "--showformat=${source:Version}", package],
        f"{package} is not installed",
    )


def _write_sources(directory: Path) -> None:
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if path.suffix not in (".list", ".sources") or not path.exists():
            continue
        text = path.read_text()
        if path.suffix == ".sources":
            text = re.sub(r"(?m)^Types:.*$", "Types: deb-src", text)
        else:
            text = re.sub(r"(?m)^deb ", "deb-src ", text)
        if "debian" in text or "ubuntu" in text:
            (directory / path.name).write_text(text)


def _unpack(archive: Path, target: Path) -> None:
    partial = target.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    _run(
        ["tar", "-xf", str(archive), "--strip-components=1", f"--directory={partial}"],
        f"{archive} cannot be unpacked",
    )
    partial.rename(target)


def _run(command: Sequence[str], failure: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    except FileNotFoundError as error:
        raise FetchError(f"{failure}: there is no {command[0]} here") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(f"{failure}: {lines[-1] if lines else done.returncode}")
    return done.stdout
