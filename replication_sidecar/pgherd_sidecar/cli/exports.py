"""``pgherd export``: options, and what is printed. The work is done elsewhere."""

import contextlib
import getpass
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.local import binaries, delegate, herd
    from pgherd_sidecar.local import psql as psqls
    from pgherd_sidecar.local.export import dumping, leaving


@click.group("export")
def export() -> None:
    """The way out: a member or a dump for plain PostgreSQL, with nothing of pgherd in it."""


@contextlib.contextmanager
def _provided(wanted: Path, directory: Path) -> Iterator[None]:
    """Make a directory if only root can; remove it when the command has put nothing into it."""
    if not delegate.is_root():
        yield
        return
    click.get_current_context().params["into"] = wanted  # the account's home has another name
    existed = wanted.exists()
    delegate.provide(wanted, directory)
    try:
        yield
    finally:
        if not existed:
            with contextlib.suppress(OSError):
                wanted.rmdir()


@export.command()
@click.argument("node")
@options.herd_directory
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path),
    help="Empty directory on the same file system, for the server. [default: the herd's directory"
    " with -NODE at its end]",
)  # fmt: skip
@click.option(
    "--allow-missing", is_flag=True, help="Compare with, and ask, only those that take writes."
)
@options.timeout(600)
def plain(
    node: str, directory: Path, into: Path | None, allow_missing: bool, timeout_s: float
) -> None:
    """Have a node leave its herd and go on as a plain PostgreSQL server, with its rows.

    Its rows are compared with the others' first. Repeat the command if it was interrupted.
    """
    wanted = (into or directory.with_name(f"{directory.name}-{node}")).resolve()
    with _provided(wanted, directory):
        directory = options.owned(directory)
    asked = leaving.LeavingOptions(wanted, allow_missing, timeout_s)
    left = options.run(leaving.leave(directory, node, asked))
    server = left.server
    control = shlex.join([str(server.pg_ctl), "-D", str(server.pgdata)])
    log = shlex.quote(str(server.log))
    click.echo(
        f"{node} is a plain PostgreSQL server now, with all rows up to GID {left.gid}\n"
        f"connect: psql '{server.dsn}'\n"
        f"stop:    {control} stop\n"
        f"start:   {control} -l {log} start\n"
        f"The last two are for the account {getpass.getuser()}; passwords are in {server.passfile}"
    )


@export.command(
    context_settings={"ignore_unknown_options": True},
    options_metavar="[--dir D] [--to FILE] [--format F]",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[NODE] [PG_DUMP-ARGUMENT]...")
@options.herd_directory
@click.option(
    "--to", "target", type=click.Path(path_type=Path),
    help="File or directory to make. [default: standard output]",
)  # fmt: skip
@click.option(
    "--format", "layout", type=click.Choice(["plain", "custom", "directory"]), default="plain",
    show_default=True, help="As of pg_dump.",
)  # fmt: skip
def dump(
    words: tuple[str, ...],
    directory: Path,
    target: Path | None,
    layout: Literal["plain", "custom", "directory"],
) -> None:
    """Dump a node by pg_dump, by default the first that takes writes, for a plain server.

    Nothing of pgherd is in the dump, and sequences have the increments that their users gave them.
    """
    description = herd.load(options.read_only(directory))
    name, rest = psqls.split(words)
    asked = dumping.arguments(rest, layout)
    member = options.run(dumping.chosen(description, name))
    dumping.dump(description, member, asked, layout, target)


@export.command()
@click.argument("node", required=False)
@options.herd_directory
def roles(node: str | None, directory: Path) -> None:
    """Print the roles of a node as pg_dumpall does, for a plain server; with their verifiers."""
    description = herd.load(options.read_only(directory))
    member = options.run(dumping.chosen(description, node))
    dumping.roles(description, member, sys.stdout.buffer)


@export.command()
@click.argument("location", type=options.LOCATION, metavar="SNAPSHOT")
@click.option(
    "--to", "target", required=True, metavar="DSN",
    help="Connection string of an empty database of a plain server, as a superuser.",
)  # fmt: skip
@options.s3_endpoint
@click.option(
    "--jobs", type=click.IntRange(min=1, max=1024), default=os.cpu_count() or 1,
    help="Parts to load at a time. [default: one for each CPU]",
)  # fmt: skip
@click.option(
    "--postgres-bin", type=click.Path(path_type=Path),
    help="Directory of PostgreSQL's programs. [default: the newest installed]",
)  # fmt: skip
def snapshot(
    location: Path | str, target: str, endpoint: str | None, jobs: int, postgres_bin: Path | None
) -> None:
    """Put a snapshot, by default the newest whole one of a folder, into a plain server."""
    from pgherd_spark.restoring import plain as plains  # noqa: PLC0415 - takes longer than most commands
    from pgherd_spark.restoring import seeding  # noqa: PLC0415
    from pgherd_spark.storing import stores  # noqa: PLC0415

    try:
        gid = plains.put(
            stores.at(str(location), endpoint),
            conninfo=target, programs=binaries.find(postgres_bin), jobs=jobs, say=progress,
        )  # fmt: skip
    except seeding.SeedError as error:
        raise HerdError(str(error)) from error
    click.echo(f"the database has all rows up to GID {gid}, and nothing of pgherd's")
