"""What the end-to-end tests need before there is a cluster: programs, and the images of a herd."""

import importlib.util
import os
import shlex
import shutil
import subprocess
from pathlib import Path

TAG = os.environ.get("PGHERD_E2E_TAG", "e2e")
IMAGES = {target: f"pgherd/{target}:{TAG}" for target in ("postgres", "sidecar", "operator")}
"""By the targets of images/Dockerfile."""

REPOSITORY = Path(__file__).parents[2]
_PROBE = """
FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip
RUN pip download --no-deps --dest /tmp click
"""


class PreparationError(Exception):
    """This machine cannot run the tests, or a program that prepares them failed."""


class BrokenImagesError(Exception):
    """An image cannot be built, though this machine gets whatever images are made from."""


def tool(variable: str, name: str) -> Path | None:
    """A program that an environment variable names, or one on the PATH."""
    found = os.environ.get(variable) or shutil.which(name)
    return Path(found) if found else None


def run(*command: str, stdin: str = "") -> str:
    """Run a program in the repository's root, and return what it prints.

    Raises:
        PreparationError: it failed; with its words.
    """
    done = subprocess.run(
        command, check=False, cwd=REPOSITORY, input=stdin, capture_output=True, text=True
    )
    if done.returncode:
        raise PreparationError(f"{shlex.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


def check_machine() -> None:
    """See whether everything is there that is not fetched.

    Raises:
        PreparationError: something is missing.
    """
    missing = [] if tool("PGHERD_HELM", "helm") else ["helm"]
    if importlib.util.find_spec("pytest_kind") is None:
        missing.append("pytest-kind")
    if shutil.which("docker") is None:
        missing.append("docker")
    if missing:
        raise PreparationError(f"this machine has not got {', '.join(missing)}")
    run("docker", "info")


def build_images() -> None:
    """Build the images; quick when nothing has changed.

    Raises:
        PreparationError: this machine cannot build any, or not get what they are made from.
        BrokenImagesError: it is one of ours that cannot be built.
    """
    try:
        _build_all()
    except PreparationError:
        docker_build("--no-cache", "--tag=pgherd/probe", "-", stdin=_PROBE)
        try:
            _build_all()  # once more: what they are made from may have been out of reach
        except PreparationError as error:
            raise BrokenImagesError(str(error)) from error


def _build_all() -> None:
    for target, name in IMAGES.items():
        docker_build("--file=images/Dockerfile", f"--target={target}", f"--tag={name}", ".")


def docker_build(*arguments: str, stdin: str = "") -> None:
    """Build an image, with the options of this machine.

    Raises:
        PreparationError: docker refused.
    """
    options = shlex.split(os.environ.get("PGHERD_DOCKER_BUILD", ""))
    run("docker", "build", *options, *arguments, stdin=stdin)
