"""``pgherd import``: options, and what is printed. The work is done in ``importing``."""

import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.importing import cutover, engine, overview
    from pgherd_sidecar.importing.ends import connections, errors, target
    from pgherd_sidecar.local import binaries, herd

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])
_OPEN = (
    "ALTER DATABASE ... RESET default_transaction_read_only and DROP SCHEMA pgherd_import CASCADE"
    " there undo that"
)
_LINE_S = 5.0
"""How often progress is a line of its own, where there is no terminal."""


def _source(*, required: bool) -> Callable[[Command], Command]:
    help_text = "Connection string of the source, a running database of plain PostgreSQL."
    if not required:
        help_text += " [default: as in the beginning, without a password]"
    return click.option("--from", "dsn", metavar="DSN", help=help_text)


jobs_at_a_time = click.option(
    "--jobs", type=click.IntRange(min=1, max=64), default=min(os.cpu_count() or 1, 4),
    show_default=True, help="Tables at a time.",
)  # fmt: skip


@click.group(
    "import", invoke_without_command=True, options_metavar="--from DSN [--dir D] [--jobs N]",
    subcommand_metavar="[status|cut-over|abort]",
)  # fmt: skip
@_source(required=True)
@options.herd_directory
@jobs_at_a_time
@click.option(
    "--postgres-bin", type=click.Path(path_type=Path),
    help="Directory of PostgreSQL's programs, of the source's version or newer. [default: the"
    " herd's; for root the newest installed]",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Only look for what is in the way.")
@click.pass_context
def import_(
    context: click.Context,
    dsn: str | None,
    directory: Path,
    jobs: int,
    postgres_bin: Path | None,
    check: bool,
) -> None:
    """Take a running PostgreSQL over while it takes writes: roles, definitions, rows, sequences.

    It begins, or goes on where it was, copies, and follows the source until `pgherd import
    cut-over`. Repeat the command if it was interrupted.
    """
    if context.invoked_subcommand is not None:
        if not options.is_default("dsn"):
            raise click.UsageError(f"Give --from behind {context.invoked_subcommand}.")
        return
    if dsn is None:
        raise click.UsageError("Missing option '--from'.")
    ways = _ways(directory, dsn, jobs, postgres_bin)
    if check:
        _run(ways, _check(ways))
        click.echo("nothing is in the way")
        return
    _run(ways, engine.Engine(ways).run())


@import_.command()
@_source(required=False)
@options.herd_directory
@options.as_json
def status(dsn: str | None, directory: Path, as_json: bool) -> None:
    """Show how far the import is, and how far behind the source."""
    ways = _ways(directory, dsn, 1, None)
    told = _run(ways, overview.look(ways.target, dsn))
    click.echo(json.dumps(told, indent=2) if as_json else overview.text(told))


@import_.command("cut-over")
@_source(required=False)
@options.herd_directory
@jobs_at_a_time
def cut_over(dsn: str | None, directory: Path, jobs: int) -> None:
    """Stop writes at the source, apply the rest, compare all tables, and say how to connect.

    If anything goes wrong the source takes writes again, and the import goes on.
    """
    description = herd.load(options.read_only(directory))
    ways = _run_with_source(directory, dsn, jobs)
    tell_cut_over(description, _run(ways, _cut_over(ways)))


@import_.command()
@_source(required=False)
@options.herd_directory
@click.option(
    "--herd-only", is_flag=True,
    help="The source is gone: leave what is there, which keeps its WAL until it is dropped.",
)  # fmt: skip
def abort(dsn: str | None, directory: Path, herd_only: bool) -> None:
    """Remove everything that the import has made, at the source and in the herd."""
    ways = _run_with_source(directory, dsn, 1)
    address = None if herd_only else ways.address
    standing = _run(ways, cutover.abort(ways.target, address))
    where = "in the herd" if herd_only else "at the source and in the herd"
    click.echo(f"nothing is left of the import {where}")
    if herd_only:
        progress(f"slot {standing.slot} of the source keeps its WAL: drop it")
    if herd_only and standing.stopped:
        progress(f"the source may still refuse writes: {_OPEN}")


def tell_cut_over(description: "herd.Herd", done: "cutover.Done | None") -> None:
    """Print what a cut-over has done, and how to connect.

    Args:
        description: of the herd that takes writes.
        done: None if an earlier run has done it.
    """
    if done is not None:
        click.echo(
            f"all {done.tables} tables are equal; no writes for {done.without_writes_s:.1f} s"
        )
    click.echo(
        f"connect: {description.application_dsn(password=False)}\n"
        f"The source is read-only now: {_OPEN}"
    )


async def _check(ways: "engine.Ways") -> None:
    if await ways.target.is_under_way():
        raise errors.ImportFailed("an import is under way: `pgherd import status` tells more")
    for note in (await engine.Engine(ways).check()).notes:
        progress(note)


async def _cut_over(ways: "engine.Ways") -> "cutover.Done | None":
    done = await cutover.CutOver(ways).run()
    progress("the herd takes writes; foreign keys look at the rows")
    await cutover.finish(ways)
    return done


def _run_with_source(directory: Path, dsn: str | None, jobs: int) -> "engine.Ways":
    """With the source that is known since the beginning, if none is named."""
    ways = _ways(directory, dsn, jobs, None)
    if dsn is not None:
        return ways
    return _ways(directory, _run(ways, _known_source(ways)), jobs, None)


async def _known_source(ways: "engine.Ways") -> str:
    if not await ways.target.is_under_way():
        raise errors.ImportFailed(
            "no import is under way: begin one with `pgherd import --from DSN`"
        )
    return (await ways.target.standing()).source


def _ways(directory: Path, dsn: str | None, jobs: int, programs: Path | None) -> "engine.Ways":
    description = herd.load(options.read_only(directory))
    if programs is None:  # root runs none that the herd's account has named
        programs = description.postgres_bin if os.geteuid() != 0 else binaries.find(None)
    return ways_into(description, dsn or "", jobs, programs, ProgressLines())


def ways_into(
    description: "herd.Herd", dsn: str, jobs: int, programs: Path, lines: "ProgressLines"
) -> "engine.Ways":
    """The servers, programs and lines of an import into a herd.

    Args:
        description: of the herd.
        dsn: connection string of the source.
        jobs: tables at a time.
        programs: directory of PostgreSQL's programs, of the source's version or newer.
        lines: how the user hears of it.
    """
    members = [
        connections.Destination(member.name, description.dsn(member))
        for member in description.writers
    ]
    return engine.Ways(
        connections.SourceAddress(dsn), target.Target(members, lines.say), programs / "pg_dump",
        jobs, lines.say, lines.show,
    )  # fmt: skip


def _run(ways: "engine.Ways", action: Coroutine[Any, Any, Result]) -> Result:
    async def closed() -> Result:
        try:
            return await action
        finally:
            await ways.target.close()

    return run(closed())


def run(action: Coroutine[Any, Any, Result]) -> Result:
    """Run what imports, and tell in words what stops it.

    Raises:
        HerdError: it can't go on.
    """
    try:
        return options.run(action)
    except errors.TakenOver as error:
        progress("")
        click.echo(str(error))
        raise SystemExit(0) from error
    except errors.Unfit as error:
        for reason in error.reasons:
            progress(f"- {' '.join(str(reason).split())}")
        raise HerdError(
            f"the source can't be taken over, for {len(error.reasons)} reasons; {error.made}"
        ) from error
    except errors.ImportFailed as error:
        raise HerdError(str(error)) from error


class ProgressLines:
    """Steps are lines; progress is one line that changes, or a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False
        self._last = 0.0

    def say(self, text: str) -> None:
        """A step."""
        if self._shown:
            print(file=sys.stderr)
        self._shown = False
        progress(text)

    def show(self, text: str) -> None:
        """Progress, in place of what was shown before."""
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            self._shown = True
        elif time.monotonic() - self._last >= _LINE_S:
            self._last = time.monotonic()
            progress(text)
