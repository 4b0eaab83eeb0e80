"""``pgherd changes``: the change stream as lines of JSON, for pipes and for eyes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgherd_sidecar.cli import options
from pgherd_sidecar.cli.errors import HerdError, progress
from pgherd_sidecar.cli.lazily import lazily

if TYPE_CHECKING:
    from pgherd_sidecar.cli import admin, herd
else:
    admin = lazily("pgherd_sidecar.cli.admin")
    herd = lazily("pgherd_sidecar.cli.herd")

_PACE_S = 0.5


@click.command()
@options.herd_directory
@click.option("--after", type=click.IntRange(min=0), help="A GID. [default: the newest one]")
@click.option("--through", type=click.IntRange(min=0), help="End with this GID.")
@click.option("--tables", help="Only these: names as they are printed, separated by commas.")
def changes(directory: Path, after: int | None, through: int | None, tables: str | None) -> None:
    """Print what transactions change, one row a line, in the order of their GIDs.

    Goes on until it is interrupted, unless --through says where to end.
    """
    from pgherd_spark.changes import ChangesError  # noqa: PLC0415 - takes longer than most commands

    description = herd.load(options.owned(directory))
    members = [
        admin.AdminClient(description.node(member).admin_socket) for member in description.databases
    ]
    try:
        options.run(_print(members, after, through, tables.split(",") if tables else ()))
    except ChangesError as error:
        raise HerdError(str(error)) from error


async def _print(
    members: "Sequence[admin.AdminClient]",
    after: int | None,
    through: int | None,
    tables: Sequence[str],
) -> None:
    import asyncio  # noqa: PLC0415

    from pgherd_spark.changelog import Log  # noqa: PLC0415

    log = Log(members)
    newest = await log.visible()
    if after is None:
        after = newest
    elif after > newest:
        progress(
            f"GID {after} is not there yet, the newest is {newest}: waiting for those after it"
        )
    while through is None or after < through:
        begun = after
        async for found in log.portions(begun):
            for change in found.changes:
                wanted = not tables or change.table in tables or change.table is None
                if wanted and (through is None or change.gid <= through):
                    click.echo(json.dumps(asdict(change)))
            after = found.through
            if through is not None and after >= through:
                return
        if after == begun:
            await asyncio.sleep(_PACE_S)
