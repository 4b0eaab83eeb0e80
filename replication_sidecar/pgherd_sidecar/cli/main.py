"""The ``pgherd`` command: what is asked of a running herd, wherever it runs.

Its members are found in a herd's directory on this machine, or one of them by the socket of its
admin API. ``localcommands.py`` has what is done to a herd on this machine only. Answers go to
stdout, progress and errors (one line) to stderr; the exit statuses are listed in ``errors.py``.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgherd_sidecar.cli import changes, exports, founding, imports, jobs, maintenance
from pgherd_sidecar.cli.following import cascade, moving, setcommands, subscriptions
from pgherd_sidecar.cli.localcommands import local_group, show
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.lazily import lazily

if TYPE_CHECKING:
    from pgherd_sidecar.client.answers import Status

with lazily():
    from pgherd_sidecar.cli import explaining
    from pgherd_sidecar.cli import top as tops
    from pgherd_sidecar.cli.shared import render
    from pgherd_sidecar.client import admin as admins
    from pgherd_sidecar.client import cluster, skipping
    from pgherd_sidecar.client import split as splits
    from pgherd_sidecar.local import delegate, herd, sidecar
    from pgherd_sidecar.local import psql as psqls
    from pgherd_sidecar.local.operations import lifecycle as local
    from pgherd_sidecar.local.operations import promoting, splitting


@click.group(cls=options.Commands)
@click.version_option(package_name="pgherd")
def main() -> None:
    """Ordinary PostgreSQL servers as one multi-master, synchronously replicated cluster."""
    # libpq's variables would redirect our own connections.
    for name in [name for name in os.environ if name.startswith("PG")]:
        if not name.startswith("PGHERD_"):
            del os.environ[name]


main.add_command(local_group)
main.add_command(jobs.check)
main.add_command(jobs.snapshot)
main.add_command(jobs.seed)
main.add_command(changes.changes)
main.add_command(changes.history)
main.add_command(exports.export)
main.add_command(imports.import_)
main.add_command(founding.found)
main.add_command(maintenance.maintain)
main.add_command(maintenance.maintenance)
main.add_command(setcommands.set_)
main.add_command(subscriptions.subscribe)
main.add_command(subscriptions.subscriptions)
main.add_command(subscriptions.unsubscribe)
main.add_command(moving.switchover)
main.add_command(cascade.forward)
main.add_command(cascade.failover)


@main.command()
@options.which_herd
@options.show_passwords
@options.as_json
def status(directory: Path | None, admin: Path | None, show_passwords: bool, as_json: bool) -> None:
    """Show every node or, given --admin, that one."""
    if admin is None:
        directory = directory or options.default_directory()
        show(options.owned(directory), as_json=as_json, passwords=show_passwords)
        return
    said = _speaker(directory, admin)
    click.echo(render.one(said, as_json=as_json))


@main.command(
    context_settings={"ignore_unknown_options": True},
    options_metavar="[--dir D] [--superuser]",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[NODE] [PSQL-ARGUMENT]...")
@options.herd_directory
@click.option("--superuser", is_flag=True, help="As `postgres`. [default: as `app`]")
def psql(words: tuple[str, ...], directory: Path, superuser: bool) -> None:
    """Run psql on a node of a herd on this machine, by default the first that takes writes."""
    directory = options.read_only(directory)
    options.run(psqls.connect(directory, words, superuser=superuser))


@main.command()
@options.which_herd
@options.as_json
def members(directory: Path | None, admin: Path | None, as_json: bool) -> None:
    """Show the members of the view, and how far behind each of them is."""
    click.echo(render.members(_speaker(directory, admin), as_json=as_json))


@main.command()
@options.which_herd
@options.as_json
def view(directory: Path | None, admin: Path | None, as_json: bool) -> None:
    """Show the view: who votes, who proposes, and whether they are a quorum."""
    click.echo(render.view(_speaker(directory, admin), as_json=as_json))


@main.command()
@options.which_herd
@click.option(
    "--interval", "interval_s", type=options.Number(min=0.1, max=3600), default=1,
    show_default=True, help="Seconds from one look to the next.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print what is seen in one interval, and end.")
def top(directory: Path | None, admin: Path | None, interval_s: float, once: bool) -> None:
    """Show what the herd does now: members, rates, waits in COMMIT, conflicts. `q` ends it.

    Given --admin, only that sidecar is asked.
    """
    listen = options.listen(directory, admin)
    names: tuple[str, ...] = ()
    if admin is None:
        description = herd.load(options.owned(directory or options.default_directory()))
        names = tuple(member.name for member in description.members)
    options.run(tops.top(listen, tops.TopOptions(interval_s, once, names)))


@main.command()
@click.argument("node")
@options.which_herd
@options.timeout(60)
def evict(node: str, directory: Path | None, admin: Path | None, timeout_s: float) -> None:
    """Throw a member out of the view that does not answer. Its disk can never vote again."""
    listen = options.listen(directory, admin)
    options.run(options.within(timeout_s, cluster.evict(listen, node)))
    click.echo(f"{node} is out of the view")


@main.command()
@click.argument("hold")
@options.which_herd
def release(hold: str, directory: Path | None, admin: Path | None) -> None:
    """Have all members give back a HOLD of their logs, as `status` names it.

    Who is still there takes it anew; who is not has to begin anew, if what it needs is trimmed.
    """
    names = options.run(cluster.release(options.listen(directory, admin), hold))
    click.echo(f"{', '.join(names)}: nothing is kept for {hold} any more")


@main.command()
@click.argument("gid", type=click.IntRange(min=1))
@options.which_herd
@click.option("--on", metavar="NODE", help="Ask this node; by default one that knows the most.")
@click.option("--rows", is_flag=True, help="Show the values of rows, too: they may be private.")
@options.as_json
def explain(
    gid: int, directory: Path | None, admin: Path | None, on: str | None, rows: bool, as_json: bool
) -> None:
    """Show what the entry of the log at a GID is: of whom, what it changes, and its verdict."""
    listen = options.listen(directory, admin)
    told = options.run(explaining.explain(listen, gid, rows=rows, on=on))
    click.echo(json.dumps(told, indent=2) if as_json else explaining.text(told))


@main.command()
@click.argument("gid", type=click.IntRange(min=1))
@options.which_herd
@click.option("--yes", is_flag=True, help="What is told to be lost may be lost.")
def skip(gid: int, directory: Path | None, admin: Path | None, yes: bool) -> None:
    """Have the transaction at a GID count as without effect, which some nodes can't apply.

    They go on behind it with their own databases; nodes that have applied it are rebuilt from them.
    """
    plan = options.run(skipping.skip(options.listen(directory, admin), gid, yes=yes))
    click.echo(
        f"GID {plan.gid} is skipped: {', '.join(plan.stopped) or 'nobody'} went on behind it; "
        "`pgherd status` shows who is being rebuilt"
    )


@main.command(hidden=True)
@click.option("--admin", required=True, type=click.Path(path_type=Path))
def relay(admin: Path) -> None:
    """Pass a request on standard input to a sidecar, and its answer to standard output.

    What asks from outside of a container is `kubectl pgherd`, by `kubectl exec`.
    """
    answer = options.run(admins.AdminClient(admin).exchange(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(answer)


@main.command()
@click.argument("nodes", nargs=-1, required=True)
@options.which_herd
@click.option(
    "--stopped",
    is_flag=True,
    help="The whole herd is down: have this one node go on, when no quorum will ever return.",
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Move them, running or not, to this empty directory, with certificates of their own.",
)
@click.option("--yes", is_flag=True, help="What is told to be lost may be lost.")
@options.timeout(180)
def split(
    nodes: tuple[str, ...],
    directory: Path | None,
    admin: Path | None,
    stopped: bool,
    into: Path | None,
    yes: bool,
    timeout_s: float,
) -> None:
    """Have nodes without a majority go on, for good, as a cluster of their own."""
    if admin is not None and (stopped or into is not None):
        raise click.UsageError("--stopped and --into are for a herd in a --dir.")
    if stopped:
        if len(nodes) != 1 or into is not None:
            raise click.UsageError("--stopped is for one node, and goes without --into.")
        directory = directory or options.default_directory()
        _split_stopped(directory, nodes[0], yes=yes)
        return
    if into is not None:
        directory = directory or options.default_directory()
        _split_into(directory, into.resolve(), nodes, yes=yes, timeout_s=timeout_s)
        return
    options.listen(directory, admin)  # checks them
    if admin is None:
        description = herd.load(options.owned(directory or options.default_directory()))
        client = sidecar.Sidecar(description, description.member(nodes[0])).admin
    else:
        client = admins.AdminClient(admin)
    plan = options.run(options.within(timeout_s, splits.split_herd(client, nodes, yes=yes)))
    click.echo(
        f"{' and '.join(plan.members)} are cluster {plan.cluster_id}; "
        "evict them where the others go on: `pgherd evict`"
    )


def _split_stopped(directory: Path, node: str, *, yes: bool) -> None:
    options.run(splitting.split_off(options.owned(directory), node, yes=yes))
    click.echo(f"{node} is a cluster of its own: start it with `pgherd local up`, then add nodes")


# Two former names of `pgherd split`: they go in a later version.
main.add_command(
    click.Command(
        "promote-partition",
        callback=split.callback,
        params=split.params,
        help="Split nodes off for good: the former name of `pgherd split`.",
        hidden=True,
    )
)


@main.command(hidden=True)
@click.argument("node")
@options.herd_directory
@click.option("--force", is_flag=True)
@click.option("--yes", is_flag=True)
def bootstrap(node: str, directory: Path, force: bool, yes: bool) -> None:
    """Split a stopped node off, as `pgherd split --stopped` does."""
    if not force:
        raise click.UsageError("Without --force a herd is founded by `pgherd local up`.")
    _split_stopped(directory, node, yes=yes)


def _split_into(
    directory: Path, into: Path, nodes: tuple[str, ...], *, yes: bool, timeout_s: float
) -> None:
    if delegate.is_root():
        delegate.provide(into, directory)
    fresh = options.run(promoting.promote(options.owned(directory), into, nodes, yes=yes))
    options.run(local.up(into, local.UpOptions(None, None, None, timeout_s)))
    names = " and ".join(member.name for member in fresh.members)
    click.echo(
        f"{names} are cluster {fresh.cluster_id} in {into}; "
        "evict them where the others go on: `pgherd evict`"
    )


def _speaker(directory: Path | None, admin: Path | None) -> "Status":
    """Return the status of the node that speaks for the herd."""
    voices = options.run(_all(options.listen(directory, admin)))
    said = cluster.speaker(voice.status for voice in voices)
    if said is None:
        raise HerdError("no sidecar answers: start the herd with `pgherd local up`")
    return said


async def _all(listen: "cluster.Listen") -> "list[cluster.Voice]":
    return await listen()


if __name__ == "__main__":
    main()
