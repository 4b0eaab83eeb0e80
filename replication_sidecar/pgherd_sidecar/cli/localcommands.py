"""``pgherd local``: options, and what is printed. The work is done elsewhere."""

from pathlib import Path
from typing import Literal

import click

from pgherd_sidecar.agent.base.defaults import FINGERPRINT_EVERY
from pgherd_sidecar.cli import comparing
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.cli.shared import render
    from pgherd_sidecar.local import delegate, herd
    from pgherd_sidecar.local import node as noding
    from pgherd_sidecar.local.operations import drills, growing, rebuild, verify
    from pgherd_sidecar.local.operations import lifecycle as local

_max_rate = click.option(
    "--max-rate",
    type=options.Number(min=0.04, max=1000),
    help="MB/s at most. [default: 67 while clients of who is copied are at work]",
)


def _bytes_s(megabytes_s: float | None) -> int | None:
    return None if megabytes_s is None else int(megabytes_s * 1_000_000)


@click.group("local")
def local_group() -> None:
    """A herd on this machine: real PostgreSQL servers and their sidecars."""


@local_group.command()
@options.herd_directory
@click.option("--nodes", type=int, help="Number of nodes. [default: 3]")
@click.option(
    "--witness", "witnesses", type=int,
    help="Number of further members that vote and have no database. [default: 0]",
)  # fmt: skip
@click.option(
    "--evict-after", "evict_s", type=options.Number(min=0, max=86400),
    help="Seconds of silence that cost a member its place, 4 or more. [default: 0, never]",
)  # fmt: skip
@click.option(
    "--split-after", "split_s", type=options.Number(min=0, max=86400),
    help="Seconds after which members without a majority become a cluster of their own, for good;"
    " 4 or more. [default: 0, never]",
)  # fmt: skip
@click.option(
    "--scrub-interval", "scrub_s", type=options.Number(min=0),
    help="Seconds in which all rows of all members are compared once; 0: never. [default: a week]",
)  # fmt: skip
@click.option(
    "--scrub-share", type=options.Number(min=0, min_open=True, max=100),
    help="Percent of one core that this may take. [default: 2]",
)  # fmt: skip
@click.option(
    "--fingerprint-every", type=click.IntRange(min=1),
    help="One of so many transactions ships hashes of its rows, which the others compare; 1: all."
    f" [default: {FINGERPRINT_EVERY}]",
)  # fmt: skip
@click.option(
    "--capture", type=click.Choice(["auto", "sql"]),
    help="By the native module where it is installed, or always in SQL. [default: auto]",
)  # fmt: skip
@click.option(
    "--on-divergence", type=click.Choice(["rebuild", "pause"]),
    help="When one whole database is left: take writes while others are rebuilt from it, or none"
    " until you have chosen. [default: rebuild]",
)  # fmt: skip
@click.option(
    "--port-base", type=int,
    help="Node i listens on P+i, its log on P+100+i, its health port is P+200+i. [default: 7500]",
)  # fmt: skip
@click.option(
    "--postgres-bin",
    type=click.Path(path_type=Path),
    help="Directory of PostgreSQL's programs. [default: the newest installed]",
)
@click.option("--user", help="Account for the processes when started as root. [default: postgres]")
@options.timeout(120)
@options.show_passwords
@options.as_json
def up(  # noqa: PLR0913, PLR0917 - click's way to hand over options
    directory: Path,
    nodes: int | None,
    witnesses: int | None,
    evict_s: float | None,
    split_s: float | None,
    scrub_s: float | None,
    scrub_share: float | None,
    fingerprint_every: int | None,
    capture: Literal["auto", "sql"] | None,
    on_divergence: Literal["rebuild", "pause"] | None,
    port_base: int | None,
    postgres_bin: Path | None,
    user: str | None,
    timeout_s: float,
    show_passwords: bool,
    as_json: bool,
) -> None:
    """Create a herd or resume it; returns when every node takes writes."""
    if options.is_default("directory"):
        progress(f"the herd's directory is {directory}; `pgherd psql` connects to it")
    if delegate.is_root():
        delegate.up(directory, user)
    delegate.require_no_other(user)
    directory = directory.resolve()
    asked = local.UpOptions(
        nodes=nodes,
        witnesses=witnesses,
        evict_s=evict_s,
        split_s=split_s,
        scrub_s=scrub_s,
        scrub_share=scrub_share,
        fingerprint_every=fingerprint_every,
        capture=capture,
        on_divergence=on_divergence,
        port_base=port_base,
        postgres_bin=postgres_bin.resolve() if postgres_bin else None,
        timeout_s=timeout_s,
    )
    states = options.run(local.up(directory, asked))
    text = render.states(herd.load(directory), states, as_json=as_json, passwords=show_passwords)
    click.echo(text)


@local_group.command()
@options.herd_directory
@options.show_passwords
@options.as_json
def status(directory: Path, show_passwords: bool, as_json: bool) -> None:
    """Show every node."""
    show(options.owned(directory), as_json=as_json, passwords=show_passwords)


def show(directory: Path, *, as_json: bool, passwords: bool = False) -> None:
    """Print the state of every node of a herd on this machine."""
    description = herd.load(directory)
    states = options.run(noding.states_of(local.nodes_of(description)))
    click.echo(render.states(description, states, as_json=as_json, passwords=passwords))


@local_group.command()
@click.argument("node", required=False)
@options.herd_directory
@click.option("--witness", is_flag=True, help="It gets a log and a vote, no database.")
@click.option("--reader", is_flag=True, help="It follows the others: no vote, no writes.")
@click.option(
    "--method", type=click.Choice(["basebackup", "dump"]), default="basebackup", show_default=True,
    help="Copy another node's files, or load its rows into a new server.",
)  # fmt: skip
@click.option(
    "--snapshot", type=options.LOCATION,
    help="Directory or s3://BUCKET/PREFIX of a snapshot to begin from, in place of another node.",
)  # fmt: skip
@options.s3_endpoint
@click.option(
    "--postgres-bin", "--bin-dir", "postgres_bin", type=click.Path(path_type=Path),
    help="Directory of this node's own PostgreSQL. [default: the herd's]",
)  # fmt: skip
@_max_rate
@options.timeout(600)
def add(  # noqa: PLR0913, PLR0917 - click's way to hand over options
    node: str | None,
    directory: Path,
    witness: bool,
    reader: bool,
    method: Literal["basebackup", "dump"],
    snapshot: Path | str | None,
    endpoint: str | None,
    postgres_bin: Path | None,
    max_rate: float | None,
    timeout_s: float,
) -> None:
    """Add a node by a copy of another's database; returns when it takes writes."""
    if witness and reader:
        raise HerdError("a witness has no database to read from: leave out --witness or --reader")
    kind: herd.NodeKind = "witness" if witness else "reader" if reader else "database"
    directory = options.owned(directory)
    origin = herd.HerdNodeOrigin(
        postgres_bin=postgres_bin.resolve() if postgres_bin else None,
        method=method,
        snapshot=growing.whole_snapshot(snapshot, endpoint) if snapshot else None,
        snapshot_endpoint=endpoint,
    )
    asked = growing.AddOptions(node, kind, _bytes_s(max_rate), timeout_s, origin)
    member = options.run(growing.add(directory, asked))
    click.echo(f"{member.name} {member.purpose}")


@local_group.command()
@click.argument("node")
@options.herd_directory
@options.timeout(120)
def promote(node: str, directory: Path, timeout_s: float) -> None:
    """Have a reader vote and take writes; returns when it does."""
    member = options.run(growing.promote(options.owned(directory), node, timeout_s))
    click.echo(f"{member.name} {member.purpose}")


@local_group.command()
@click.argument("node")
@options.herd_directory
@click.option("--dead", is_flag=True, help="It does not run, and will not come back.")
@options.timeout(60)
def remove(node: str, directory: Path, dead: bool, timeout_s: float) -> None:
    """Remove a node: from the view, then its processes, then its files."""
    asked = growing.RemoveOptions(dead, timeout_s)
    options.run(growing.remove(options.owned(directory), node, asked))
    click.echo(f"{node} is removed")


@local_group.command()
@click.argument("sides")
@options.herd_directory
def partition(sides: str, directory: Path) -> None:
    """Cut the links between the SIDES, like 'n1,n2|n3', until `heal`."""
    options.run(drills.partition(options.owned(directory), sides))


@local_group.command()
@options.herd_directory
def heal(directory: Path) -> None:
    """Open all links between the nodes again."""
    options.run(drills.heal(options.owned(directory)))


@local_group.command()
@click.argument("node")
@options.herd_directory
@click.option(
    "--process", type=click.Choice(["postgres", "sidecar", "node"]), required=True,
    help="What gets SIGKILL; `node` is both.",
)  # fmt: skip
def kill(node: str, directory: Path, process: str) -> None:
    """Kill a node's processes with SIGKILL."""
    if options.run(local.kill(options.owned(directory), node, process)):
        progress(f"{node}: killed {process}")
    else:
        progress(f"{node}: {process} was not running")


@local_group.command()
@click.argument("node")
@options.herd_directory
@options.timeout(120)
def start(node: str, directory: Path, timeout_s: float) -> None:
    """Start what does not run of a node; returns when it takes writes."""
    _tell_started(options.run(local.start(options.owned(directory), node, timeout_s)))


@local_group.command()
@click.argument("node")
@options.herd_directory
@options.timeout(120)
def restart(node: str, directory: Path, timeout_s: float) -> None:
    """Stop a node's server and sidecar cleanly, and start them; returns when it takes writes."""
    _tell_started(options.run(local.restart(options.owned(directory), node, timeout_s)))


def _tell_started(state: "noding.NodeState") -> None:
    if not state.is_up:
        name = state.member.name
        progress(f"{name} is {state.state}: it goes on when a majority of the nodes runs")


@local_group.command()
@options.herd_directory
def down(directory: Path) -> None:
    """Stop the herd cleanly; `up` resumes it."""
    options.run(local.down(options.owned(directory)))


@local_group.command()
@options.herd_directory
def destroy(directory: Path) -> None:
    """Stop the herd and remove its directory."""
    options.run(local.destroy(options.owned(directory)))


@local_group.command("rebuild")
@click.argument("node")
@options.herd_directory
@click.option("--from", "partner", metavar="PARTNER", help="Whom to copy. [default: by load]")
@_max_rate
@options.timeout(600)
def rebuild_command(
    node: str, directory: Path, partner: str | None, max_rate: float | None, timeout_s: float
) -> None:
    """Replace a node's database by a copy of another node's."""
    asked = rebuild.RebuildOptions(partner, _bytes_s(max_rate), timeout_s)
    member = options.run(rebuild.rebuild(options.owned(directory), node, asked))
    click.echo(f"{node} {member.purpose}")


@local_group.command("verify")
@options.herd_directory
@comparing.comparison
def verify_command(
    directory: Path, allow_missing: bool, max_keys: int, timeout_s: float, as_json: bool
) -> None:
    """Compare every replicated table on all nodes at one GID; exit status 1 if they differ."""
    description = herd.load(options.owned(directory))
    asked = verify.VerifyOptions(allow_missing, max_keys, timeout_s)
    result = options.run(verify.verify(local.nodes_of(description), asked))
    comparing.tell(result, as_json=as_json)
