"""What the commands have in common: options, errors of one line, and how they are run."""

import contextlib
import math
import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from pgherd_sidecar.client.errors import HerdError, from_os_error
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.client import admin as admins
    from pgherd_sidecar.client import cluster
    from pgherd_sidecar.local import delegate, herd
    from pgherd_sidecar.local.operations import growing

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


class _HerdDirectory(click.Path):
    """A directory, as a Path; an empty word, as of an unset variable, is not the current one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        if not str(value):
            self.fail("it is empty: name the herd's directory", param, ctx)
        return super().convert(value, param, ctx)


HERD_DIRECTORY = _HerdDirectory(path_type=Path)
DIRECTORY_VARIABLE = "PGHERD_DIR"
SUBSCRIBER = "PGHERD_SUBSCRIBER"
"""The variable that holds the connection string of a subscriber."""
_ROOTS = Path("/var/lib/pgherd/herd")


def which_herd(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which herd is meant."""
    directory = click.option(
        "--dir",
        "directory",
        type=HERD_DIRECTORY,
        help="Directory of a herd on this machine. [default: as of `pgherd local up`]",
    )
    admin = click.option(
        "--admin",
        type=click.Path(path_type=Path),
        help="Socket of the admin API of any of its sidecars.",
    )
    return directory(admin(command))


def default_directory() -> Path:
    """Where a herd is if no ``--dir`` says so: each account has one.

    Root's is not below its home, because the account that the servers run as could not enter it.

    Raises:
        HerdError: the account has no home.
    """
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    if os.geteuid() == 0:
        return _ROOTS
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # then it is to be ignored, as the standard says
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise HerdError("this account has no home directory: give a --dir") from error
    return state / "pgherd" / "herd"


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
show_passwords = click.option(
    "--show-passwords", is_flag=True,
    help="Show them in the connection strings, in place of the file that holds them.",
)  # fmt: skip
herd_directory = click.option(
    "--dir",
    "directory",
    default=default_directory,
    type=HERD_DIRECTORY,
    help="The herd's directory. [default: ~/.local/state/pgherd/herd, root's is"
    f" {_ROOTS}; {DIRECTORY_VARIABLE} names another]",
)


def is_default(name: str) -> bool:
    """Say whether a parameter of the command was left out."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.DEFAULT


class _Location(click.Path):
    """A directory, as a Path, or ``s3://BUCKET/PREFIX``, as it was written."""

    name = "location"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        return value if str(value).startswith("s3://") else super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number in a range. Neither infinity nor "not a number" is one, whatever the range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be counted with.", param, ctx)
        return number


LOCATION = _Location(file_okay=False, path_type=Path)
s3_endpoint = click.option(
    "--s3-endpoint", "endpoint", help="URL of an S3-compatible server. [default: Amazon's]"
)


def timeout(default_s: float) -> Callable[[Command], Command]:
    """The option ``--timeout``."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=Number(min=0, min_open=True, max=3600),
        default=default_s,
        show_default=True,
        help="Give up after this many seconds.",
    )


class Commands(click.Group):
    """A group whose commands turn failed system calls and wrong options into one-line errors."""

    def invoke(self, ctx: click.Context) -> Any:
        """See click."""
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else ctx.command_path
            raise HerdError(f"{error.format_message()} See: {command} --help") from error
        except OSError as error:
            raise from_os_error(error) from error


def owned(directory: Path) -> Path:
    """Continue as the account that owns the herd; return the herd's directory."""
    directory = directory.resolve()
    if delegate.is_root():
        delegate.command(directory)
    return directory


def listen(directory: Path | None, admin: Path | None) -> "cluster.Listen":
    """How to ask the sidecars of the herd that ``which_herd`` says."""
    if admin is None:
        directory = directory or default_directory()
        return partial(growing.voices, herd.load(owned(directory)))
    if directory is not None:
        raise click.UsageError("Give either --dir or --admin.")
    return partial(cluster.listen, admins.AdminClient(admin))


def read_only(directory: Path) -> Path:
    """Return where a herd's files are, for a command that stays who it is and changes none."""
    return delegate.home_of(directory.resolve())


def run(action: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, or until a signal asks for an orderly end.

    Raises:
        HerdError: a signal came first.
    """
    import asyncio  # noqa: PLC0415 - not for --help

    try:
        return asyncio.run(_interruptible(action))
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        raise HerdError("interrupted") from error


def serve(action: Coroutine[Any, Any, None]) -> None:
    """Run what has no end of its own, until a signal ends it: that is no error."""
    import asyncio  # noqa: PLC0415 - not for --help

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_interruptible(action))


async def _interruptible(action: Coroutine[Any, Any, Result]) -> Result:
    import asyncio  # noqa: PLC0415 - not for --help

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await action


async def within(timeout_s: float, action: Coroutine[Any, Any, Result]) -> Result:
    """Give up after a time.

    Raises:
        HerdError: it took longer.
    """
    import asyncio  # noqa: PLC0415 - not for --help

    try:
        async with asyncio.timeout(timeout_s):
            return await action
    except TimeoutError as error:
        raise HerdError(f"it is not done after {timeout_s:g} s") from error
