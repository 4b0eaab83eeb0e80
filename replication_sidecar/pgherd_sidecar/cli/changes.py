"""``pgherd changes``: the change stream as lines of JSON, for pipes and for eyes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.client import admin
    from pgherd_sidecar.local import herd

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
    from pgherd_sidecar.client.stream.changes import ChangesError  # noqa: PLC0415 - takes longer than most commands

    description = herd.load(options.owned(directory))
    members = [
        admin.AdminClient(description.node(member).admin_socket) for member in description.databases
    ]
    try:
        options.run(_print(members, after, through, tables.split(",") if tables else ()))
    except ChangesError as error:
        raise HerdError(str(error)) from error


@click.command()
@options.herd_directory
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@options.as_json
def history(directory: Path, table: str, key: tuple[str, ...], as_json: bool) -> None:
    """Print what has happened to the row of TABLE with this KEY, as far back as the log is kept.

    TABLE is qualified, unless it is in the schema public. KEY is one value for each column of the
    primary key.
    """
    from pgherd_sidecar.client.stream.changes import ChangesError  # noqa: PLC0415

    description = herd.load(options.owned(directory))
    members = [
        admin.AdminClient(description.node(member).admin_socket) for member in description.databases
    ]
    names = {member.number: member.name for member in description.databases}
    try:
        options.run(_print_history(members, names, table, key, as_json=as_json))
    except ChangesError as error:
        raise HerdError(str(error)) from error


async def _print_history(
    members: "Sequence[admin.AdminClient]",
    names: Mapping[int, str],
    table: str,
    key: Sequence[str],
    *,
    as_json: bool,
) -> None:
    from pgherd_sidecar.client.stream.changelog import ChangeLog  # noqa: PLC0415
    from pgherd_sidecar.client.stream.history import History, RowName  # noqa: PLC0415

    first = None
    history = History(ChangeLog(members), RowName.of(table, key))
    async for change in history.changes():
        first = first or change
        if as_json:
            click.echo(json.dumps(change.fields()))
        else:
            origin = names.get(change.origin, f"member {change.origin}")
            values = "" if change.values is None else f"  {json.dumps(change.values)}"
            click.echo(f"GID {change.gid}  {origin}  xid {change.xid}  {change.op}{values}")
    if first is None:
        progress(
            f"no transaction since GID {history.begins}, where the log begins, has changed this row"
        )
    elif first.op != "insert":
        progress(f"the row is older than GID {history.begins}, where the log begins")


async def _print(
    members: "Sequence[admin.AdminClient]",
    after: int | None,
    through: int | None,
    tables: Sequence[str],
) -> None:
    import asyncio  # noqa: PLC0415

    from pgherd_sidecar.client.stream.changelog import ChangeLog  # noqa: PLC0415

    log = ChangeLog(members)
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
                    click.echo(json.dumps(change.fields()))
            after = found.through
            if through is not None and after >= through:
                return
        if after == begun:
            await asyncio.sleep(_PACE_S)
