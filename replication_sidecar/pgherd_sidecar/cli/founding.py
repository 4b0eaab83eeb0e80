"""``pgherd found``: a plain server that runs becomes a herd. The work is done elsewhere."""

import sys
from functools import partial
from pathlib import Path

import click

from pgherd_sidecar.cli import imports
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.importing import engine
    from pgherd_sidecar.local import delegate, herd
    from pgherd_sidecar.local.operations import founding
    from pgherd_sidecar.local.operations import lifecycle as local
    from pgherd_sidecar.subscribing import care as cares

_UP_S = 120.0


@click.command()
@click.option(
    "--from", "dsn", required=True, metavar="DSN",
    help="Connection string of the plain server; `-` reads it from the standard input.",
)  # fmt: skip
@options.herd_directory
@click.option(
    "--take-over", "takes_over", is_flag=True,
    help="It follows a herd that is lost for good: have it take writes first.",
)  # fmt: skip
@click.option("--nodes", type=int, help="Number of nodes. [default: 3]")
@click.option("--port-base", type=int, help="As of `pgherd local up`. [default: 7500]")
@click.option(
    "--postgres-bin", type=click.Path(path_type=Path),
    help="Directory of PostgreSQL's programs, of the plain server's version or newer. [default: the"
    " newest installed]",
)  # fmt: skip
@click.option("--user", help="Account for the processes when started as root. [default: postgres]")
@imports.jobs_at_a_time
@click.option("--check", is_flag=True, help="Only look for what is in the way at the server.")
def found(  # noqa: PLR0913, PLR0917 - click's way to hand over options
    dsn: str,
    directory: Path,
    takes_over: bool,
    nodes: int | None,
    port_base: int | None,
    postgres_bin: Path | None,
    user: str | None,
    jobs: int,
    check: bool,
) -> None:
    """Make a herd of a plain server that runs, such as a subscriber that has taken over.

    The herd is made in --dir, gets roles, definitions, rows and sequences while the server takes
    writes, and takes the writes in its place. Repeat the command if it was interrupted.
    """
    if delegate.is_root():
        delegate.up(directory, user)
    delegate.require_no_other(user)
    cares.log_to_standard_error()
    dsn = sys.stdin.readline().strip() if dsn == "-" else dsn
    directory = directory.resolve()
    programs = postgres_bin.resolve() if postgres_bin else None
    asked = founding.FoundOptions(
        dsn, takes_over, local.UpOptions(nodes, port_base, programs, _UP_S)
    )
    lines = imports.ProgressLines()
    ways_of = partial(_ways, dsn=dsn, jobs=jobs, lines=lines)
    work = founding.FoundRun(directory, asked, ways_of, lines.say)
    if check:
        server = imports.run(work.look())
        click.echo("nothing is in the way" if server.state == "begun" else _DONE)
        return
    founded = imports.run(work.run())
    if founded.before:
        click.echo(_DONE)
    imports.tell_cut_over(founded.description, founded.done)


_DONE = "the herd has taken the server over: nothing is left to do"


def _ways(
    description: "herd.Herd", dsn: str, jobs: int, lines: imports.ProgressLines
) -> "engine.Ways":
    return imports.ways_into(description, dsn, jobs, description.postgres_bin, lines)
