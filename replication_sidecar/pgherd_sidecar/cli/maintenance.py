"""``pgherd maintain`` and ``pgherd maintenance``: what they ask, and what they print."""

import secrets
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.cli.shared import render
    from pgherd_sidecar.client import admin as admins
    from pgherd_sidecar.client import cluster, routes
    from pgherd_sidecar.client import maintenance as answers

Result = TypeVar("Result")
_LOOK_S = 0.5
_TRY_S = 30.0
_RUNS_SHOWN = 10


@click.command()
@click.option("--sql", multiple=True, help="Statements of one server only; may be repeated.")
@click.option("--vacuum-full", multiple=True, metavar="TABLE", help="Write a table anew.")
@click.option("--reindex", multiple=True, metavar="TABLE", help="Write its indexes anew.")
@click.option("--nodes", default="", help="Names, separated by commas. [default: all that vote]")
@click.option("--one-by-one", is_flag=True, help="Each begins when the one before it is back.")
@click.option(
    "--drain", is_flag=True,
    help="Take a node out of service meanwhile: VACUUM FULL and the like hold up what it applies.",
)  # fmt: skip
@click.option(
    "--grace", "grace_s", type=options.Number(min=0, max=86400), default=30, show_default=True,
    help="Seconds that sessions have to end by themselves on a node that is drained.",
)  # fmt: skip
@click.option(
    "--deadline", "deadline_s", type=options.Number(min=1, max=604800), default=21600,
    show_default=True, help="Seconds that the statements may take on one node.",
)  # fmt: skip
@click.option("--every", default="", metavar="CRON", help="Again and again: '0 3 * * 0'.")
@click.option("--time-zone", default="UTC", show_default=True, help="Of --every.")
@click.option("--name", default="", help="Of the schedule. [default: maintenance]")
@click.option("--no-wait", is_flag=True, help="Return when it is noted in the herd.")
@options.which_herd
def maintain(  # noqa: PLR0913, PLR0917 - one for each option
    sql: tuple[str, ...],
    vacuum_full: tuple[str, ...],
    reindex: tuple[str, ...],
    nodes: str,
    one_by_one: bool,
    drain: bool,
    grace_s: float,
    deadline_s: float,
    every: str,
    time_zone: str,
    name: str,
    no_wait: bool,
    directory: Path | None,
    admin: Path | None,
) -> None:
    """Have nodes do work on their own servers, now or at certain times.

    The members do it, whatever becomes of this command. A node waits until the others would be a
    majority without it. `pgherd maintenance` shows what became of it.
    """
    request = routes.MaintainRequest(
        sql=list(sql),
        vacuum_full=list(vacuum_full),
        reindex=list(reindex),
        members=[one.strip() for one in nodes.split(",") if one.strip()],
        one_by_one=one_by_one,
        drain=drain,
        grace_s=grace_s,
        deadline_s=deadline_s,
        every=every,
        time_zone=time_zone,
        schedule=name,
        run="" if every else secrets.token_hex(4),  # whoever is asked, and however often
    )
    if name and not every:
        raise click.UsageError("--name is for a schedule: give --every, too.")
    listen = options.listen(directory, admin)
    begun = options.run(_of_one(listen, lambda one: one.maintain(request)))
    members = ", ".join(begun.members)
    if begun.schedule:
        click.echo(f"schedule {begun.schedule}: {members}, at {every} {time_zone}")
        return
    if no_wait:
        click.echo(f"run {begun.run} has begun: {members}; `pgherd maintenance` tells how it is")
        return
    run = options.run(_until_over(listen, begun.run))
    click.echo(_table([run]))
    if not run.succeeded:
        sys.exit(1)


@click.group(invoke_without_command=True)
@options.which_herd
@options.as_json
@click.pass_context
def maintenance(
    context: click.Context, directory: Path | None, admin: Path | None, as_json: bool
) -> None:
    """Show maintenance: what is under way, what became of the latest runs, and all schedules."""
    context.obj = (directory, admin)
    if context.invoked_subcommand is not None:
        return
    known = options.run(_of_one(options.listen(directory, admin), lambda one: one.maintenance()))
    if as_json:
        click.echo(known.model_dump_json(indent=2))
        return
    click.echo(_table(known.runs[:_RUNS_SHOWN]))
    if known.schedules:
        click.echo()
        click.echo(_schedules(known.schedules))


@maintenance.command()
@click.argument("run")
@options.which_herd
@click.pass_context
def cancel(context: click.Context, run: str, directory: Path | None, admin: Path | None) -> None:
    """End a run: what is under way is cancelled, and its node is in service again."""
    listen = options.listen(*_chosen(context, directory, admin))
    if not options.run(_cancel(listen, run)):
        raise HerdError(f"there is no run {run}: see `pgherd maintenance`")
    click.echo(f"run {run} ends; `pgherd maintenance` shows when it has")


@maintenance.command()
@click.argument("schedule")
@options.which_herd
@click.pass_context
def drop(context: click.Context, schedule: str, directory: Path | None, admin: Path | None) -> None:
    """Forget a schedule. A run of it that has begun goes on."""
    listen = options.listen(*_chosen(context, directory, admin))
    if not options.run(_of_one(listen, lambda one: one.drop_schedule(schedule))):
        raise HerdError(f"there is no schedule {schedule}: see `pgherd maintenance`")
    click.echo(f"schedule {schedule} is dropped")


def _chosen(
    context: click.Context, directory: Path | None, admin: Path | None
) -> tuple[Path | None, Path | None]:
    """The herd that is meant, which may be named before the subcommand or after it."""
    before: tuple[Path | None, Path | None] = context.obj
    return (directory, admin) if directory is not None or admin is not None else before


async def _of_one(
    listen: "cluster.Listen", ask: "Callable[[admins.AdminClient], Awaitable[Result]]"
) -> Result:
    """Ask the first sidecar that can answer, of those that take writes before the others.

    Raises:
        HerdError: it is refused, or nobody can answer.
    """
    import asyncio  # noqa: PLC0415 - not for --help

    said = "no sidecar answers"
    until_s = asyncio.get_running_loop().time() + _TRY_S
    while True:
        voices = [one for one in await listen() if one.status.state != "witness"]
        voices.sort(key=lambda one: one.status.state != "primary")
        for voice in voices:
            try:
                return await ask(voice.admin)
            except admins.AdminError as error:
                if error.code in (400, 409):
                    raise HerdError(error.reason) from error
                said = f"{voice.status.name}: {error.reason}"
        if asyncio.get_running_loop().time() >= until_s:
            raise HerdError(f"{said}: `pgherd status` tells more")
        await asyncio.sleep(_LOOK_S)


async def _cancel(listen: "cluster.Listen", run: str) -> bool:
    """Tell all: one at work may not hear of it by the order, since its own work is in the way."""
    found, said = False, ""
    for voice in await listen():
        if voice.status.state == "witness":
            continue
        try:
            found = await voice.admin.cancel_maintenance(run) or found
        except admins.AdminError as error:
            said = f"{voice.status.name}: {error.reason}"
    if not found and said:
        raise HerdError(said)
    return found


async def _until_over(listen: "cluster.Listen", run: str) -> "answers.RunAnswer":
    import asyncio  # noqa: PLC0415 - not for --help

    told: dict[str, str] = {}
    while True:
        known = await _of_one(listen, lambda one: one.maintenance())
        found = next((one for one in known.runs if one.run == run), None)
        if found is not None:
            for part in found.parts:
                if told.get(part.member) != part.state:
                    told[part.member] = part.state
                    progress(f"{part.member}: {part.state}")
            if found.over:
                return found
        await asyncio.sleep(_LOOK_S)


def _table(runs: "Any") -> str:
    rows = [
        (
            run.run,
            part.member,
            part.state,
            _time(part.begun),
            "-" if part.seconds is None else f"{part.seconds:.1f} s",
            part.error or "; ".join(run.statements),
        )
        for run in runs
        for part in run.parts
    ]
    if not rows:
        return "no maintenance yet: `pgherd maintain --help`"
    return render.aligned(("RUN", "NODE", "STATE", "BEGUN", "TOOK", "WHAT"), rows)


def _schedules(schedules: "tuple[answers.ScheduleAnswer, ...]") -> str:
    rows = [
        (
            one.schedule,
            f"{one.cron} {one.time_zone}",
            _time(one.coming),
            ", ".join(one.members) or "all",
            one.message or "; ".join(one.statements),
        )
        for one in schedules
    ]
    return render.aligned(("SCHEDULE", "EVERY", "NEXT", "NODES", "WHAT"), rows)


def _time(text: str | None) -> str:
    return "-" if text is None else f"{datetime.fromisoformat(text).astimezone():%F %T}"
