"""``pgherd switchover``: a set goes to one of its subscribers as planned."""

from pathlib import Path

import click

from pgherd_sidecar.cli.following.working import NAMED, in_herd, set_named
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.subscribing.failover import switchover as moves
    from pgherd_sidecar.subscribing.state import errors
    from pgherd_sidecar.subscribing.state import herd as herds
    from pgherd_sidecar.tables import sessions


@click.command()
@click.argument("set_name", metavar="SET", type=NAMED)
@click.option(
    "--to", "target", type=NAMED, metavar="NAME", help="The subscription that it goes to."
)
@click.option(
    "--undo", is_flag=True, help="Have the herd take writes again, if the subscriber does not yet."
)
@options.timeout(60)
@click.option("--yes", is_flag=True, help="Do it. Without, it is only checked and said.")
@options.herd_directory
def switchover(
    set_name: str, target: str | None, undo: bool, timeout_s: float, yes: bool, directory: Path
) -> None:
    """Have a subscriber take a set over from the herd, as planned: nothing is lost.

    The set's tables take no writes in the herd from then on, and the subscriber takes them as soon
    as it shows all that the herd has committed. If it does not get there in time, all is as it was.
    Repeat the command if it was interrupted.
    """
    import psycopg  # noqa: PLC0415 - not for --help

    if undo == (target is not None):
        raise click.UsageError("give --to NAME, or --undo")

    async def work(session: "sessions.Session") -> str:
        await set_named(session, set_name)
        move = moves.Switchover(session, set_name, timeout_s)
        if target is None:
            await move.undo()
            return f"set {set_name} takes writes in the herd"
        one = await move.require(target)
        (row,) = await herds.ask(session, "visible")
        if not yes:
            return (
                f"set {set_name} would go to the subscriber of {target}, at GID {row['gid']} or"
                " later\nnothing was done: give --yes"
            )
        await move.level(one, row["gid"])  # so that the herd refuses writes for a moment only
        try:
            gid = await move.lock(one)
        except psycopg.Error as error:
            if session.closed:
                raise
            raise HerdError(
                f"{sessions.message_of(error)}; repeat the command, or see that the herd takes"
                f" writes with `pgherd switchover {set_name} --undo`"
            ) from error
        progress(f"the set's tables take no writes in the herd after GID {gid}")
        try:
            await move.level(one, gid)
            await move.release(one, gid)
        except (errors.StoppedError, psycopg.Error) as error:
            if session.closed:
                raise
            await _put_back(move, error)
        await move.finish(one)
        return (
            f"the subscriber of {target} takes writes, at GID {gid}; the herd's tables stand"
            f" still\n`pgherd unsubscribe {target} --herd-only` ends what is left of it"
        )

    # Each step may be repeated, and the lock may cost the session where others write at the time.
    click.echo(in_herd(directory, work, again_s=timeout_s))


async def _put_back(move: "moves.Switchover", error: Exception) -> None:
    """Undo a move that can't be gone on with, and say so."""
    import psycopg  # noqa: PLC0415 - not for --help

    try:
        await move.undo()
    except (errors.StoppedError, psycopg.Error) as other:
        raise HerdError(f"{error}; and it is not undone ({other}): give --undo") from error
    raise HerdError(f"{error}; the herd takes writes as before") from error
