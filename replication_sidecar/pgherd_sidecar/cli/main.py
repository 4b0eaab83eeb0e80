"""The ``pgherd`` command: options, and what is printed. The work is done elsewhere.

Answers go to stdout, progress and errors (one line) to stderr; the exit statuses are listed in
``errors.py``.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from pgherd_sidecar.cli import delegate, herd, local, rebuild, render, verify
from pgherd_sidecar.cli.errors import HerdError, from_os_error, progress
from pgherd_sidecar.cli.node import NodeState

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


def _directory(command: Command) -> Command:
    return click.option(
        "--dir",
        "directory",
        required=True,
        type=click.Path(file_okay=True, path_type=Path),
        help="The herd's directory.",
    )(command)


def _timeout(default_s: float) -> Callable[[Command], Command]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True, max=3600),
        default=default_s,
        show_default=True,
        help="Give up after this many seconds.",
    )


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Commands(click.Group):
    """A group whose commands turn failed system calls and wrong options into one-line errors."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else ctx.command_path
            raise HerdError(f"{error.format_message()} See: {command} --help") from error
        except OSError as error:
            raise from_os_error(error) from error


@click.group(cls=_Commands)
@click.version_option(package_name="pgherd")
def main() -> None:
    """Ordinary PostgreSQL servers as one multi-master, synchronously replicated cluster."""
    # libpq's variables would redirect our own connections.
    for name in [name for name in os.environ if name.startswith("PG")]:
        if not name.startswith("PGHERD_"):
            del os.environ[name]


@main.group("local")
def local_group() -> None:
    """A herd on this machine: real PostgreSQL servers and their sidecars."""


@local_group.command()
@_directory
@click.option("--nodes", type=int, help="Number of nodes. [default: 3]")
@click.option(
    "--port-base", type=int, help="Node i listens on P+i, its log on P+100+i. [default: 7500]"
)
@click.option(
    "--postgres-bin",
    type=click.Path(path_type=Path),
    help="Directory of PostgreSQL's programs. [default: the newest installed]",
)
@click.option("--user", help="Account for the processes when started as root. [default: postgres]")
@_timeout(120)
@_json
def up(
    directory: Path,
    nodes: int | None,
    port_base: int | None,
    postgres_bin: Path | None,
    user: str | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Create a herd or resume it; returns when every node takes writes."""
    if delegate.is_root():
        delegate.up(directory, user)
    delegate.require_no_other(user)
    directory = directory.resolve()
    options = local.UpOptions(
        nodes=nodes,
        port_base=port_base,
        postgres_bin=postgres_bin.resolve() if postgres_bin else None,
        timeout_s=timeout_s,
    )
    states = _run(local.up(directory, options))
    click.echo(render.states(herd.load(directory), states, as_json=as_json))


@local_group.command()
@_directory
@_json
def status(directory: Path, as_json: bool) -> None:
    """Show every node."""
    description = herd.load(_owned(directory))

    async def look() -> list[NodeState]:
        return await asyncio.gather(*(node.state() for node in local.nodes_of(description)))

    click.echo(render.states(description, _run(look()), as_json=as_json))


@local_group.command()
@click.argument("node")
@_directory
@click.option(
    "--process", type=click.Choice(["postgres", "sidecar", "node"]), required=True,
    help="What gets SIGKILL; `node` is both.",
)  # fmt: skip
def kill(node: str, directory: Path, process: str) -> None:
    """Kill a node's processes with SIGKILL."""
    if _run(local.kill(_owned(directory), node, process)):
        progress(f"{node}: killed {process}")
    else:
        progress(f"{node}: {process} was not running")


@local_group.command()
@click.argument("node")
@_directory
@_timeout(120)
def start(node: str, directory: Path, timeout_s: float) -> None:
    """Start what does not run of a node; returns when it takes writes."""
    state = _run(local.start(_owned(directory), node, timeout_s))
    if not state.takes_writes:
        progress(f"{node} is {state.state}: it takes writes when a majority of the nodes runs")


@local_group.command()
@_directory
def down(directory: Path) -> None:
    """Stop the herd cleanly; `up` resumes it."""
    _run(local.down(_owned(directory)))


@local_group.command()
@_directory
def destroy(directory: Path) -> None:
    """Stop the herd and remove its directory."""
    _run(local.destroy(_owned(directory)))


@local_group.command("rebuild")
@click.argument("node")
@_directory
@click.option("--from", "partner", metavar="PARTNER", help="Whom to copy. [default: by load]")
@click.option(
    "--max-rate", type=click.FloatRange(min=0.04, max=1000), help="MB/s, to spare its clients."
)
@_timeout(600)
def rebuild_command(
    node: str, directory: Path, partner: str | None, max_rate: float | None, timeout_s: float
) -> None:
    """Replace a node's database by a copy of another node's."""
    rate_bytes_s = None if max_rate is None else int(max_rate * 1_000_000)
    options = rebuild.Options(partner, rate_bytes_s, timeout_s)
    _run(rebuild.rebuild(_owned(directory), node, options))
    click.echo(f"{node} takes writes")


@local_group.command("verify")
@_directory
@click.option("--allow-missing", is_flag=True, help="Leave out nodes that are not up.")
@click.option(
    "--max-keys", type=click.IntRange(min=1), default=100, show_default=True,
    help="Differing keys to list for each table.",
)  # fmt: skip
@_timeout(600)
@_json
def verify_command(
    directory: Path, allow_missing: bool, max_keys: int, timeout_s: float, as_json: bool
) -> None:
    """Compare every replicated table on all nodes at one GID; exit status 1 if they differ."""
    description = herd.load(_owned(directory))
    options = verify.Options(allow_missing, max_keys, timeout_s)
    result = _run(verify.verify(local.nodes_of(description), options))
    click.echo((render.comparison_json if as_json else render.comparison)(result))
    if not result.identical:
        raise SystemExit(verify.DIFFERENT)


def _owned(directory: Path) -> Path:
    """Continue as the account that owns the herd; return the herd's directory."""
    directory = directory.resolve()
    if delegate.is_root():
        delegate.command(directory)
    return directory


def _run(action: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, or until a signal asks for an orderly end."""

    async def interruptible() -> Result:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await action

    try:
        return asyncio.run(interruptible())
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        raise HerdError("interrupted") from error


if __name__ == "__main__":
    main()
