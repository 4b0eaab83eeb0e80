"""The jobs on Apache Spark, run by this machine's own JVM on a herd of this machine.

Only what a user asks and is told; the jobs are in the package ``pgherd_spark``, which is the same
on Kubernetes. It is imported when a job is asked for, since that takes longer than most commands.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import COULD_NOT, HerdError, progress
from pgherd_sidecar.lazily import lazily

if TYPE_CHECKING:
    from pgherd_spark.checking.findings import Findings
    from pgherd_spark.reading.cluster import Cluster
    from pgherd_spark.reading.leases import Member

with lazily():
    from pgherd_sidecar.cli.shared import render
    from pgherd_sidecar.local import delegate, herd
    from pgherd_sidecar.local import node as noding
    from pgherd_sidecar.local.operations import lifecycle as local
    from pgherd_sidecar.local.operations import rebuild, seeding

DIFFERENT = 1
"""Exit status when the members differ, as of ``verify``."""
_REBUILD_S = 3600.0
_BAR = 40
_MISSING = "the jobs need PySpark and a Java runtime: install them with `scripts/setup spark`"

_cores = click.option(
    "--cores",
    type=click.IntRange(min=1, max=1024),
    default=os.cpu_count() or 1,
    help="Tasks at a time. [default: one for each CPU]",
)
_part = click.option(
    "--part-size", "part_mb", type=options.Number(min=0.01, max=1 << 20), default=256,
    show_default=True, help="MB of a table that a task reads.",
)  # fmt: skip
_share = partial(
    click.option, "--share", type=click.IntRange(min=1, max=100), show_default=True,
    help="Percent of one core of each node to take, by one session that rests; 100: no rests, and "
    "as many sessions as --cores.",
)  # fmt: skip
_allow_missing = click.option(
    "--allow-missing", is_flag=True, help="Leave out nodes that are not up."
)


@click.command()
@options.herd_directory
@click.option(
    "--report", type=click.Path(file_okay=False, path_type=Path),
    help="Write report.json, report.html and Parquet into this directory.",
)  # fmt: skip
@click.option(
    "--max-rows", type=click.IntRange(min=0), default=100, show_default=True,
    help="Differing rows to name for each table.",
)  # fmt: skip
@_share(default=15)
@_part
@_cores
@click.option(
    "--repair", is_flag=True,
    help="Rebuild nodes that a majority contradicts, then compare again.",
)  # fmt: skip
@_allow_missing
@options.as_json
def check(  # noqa: PLR0913, PLR0917 - click's way to hand over options
    directory: Path,
    report: Path | None,
    max_rows: int,
    share: int,
    part_mb: float,
    cores: int,
    repair: bool,
    allow_missing: bool,
    as_json: bool,
) -> None:
    """Compare all rows and definitions on all nodes at one GID, by a job on Spark.

    Exit status 1 if they differ, 2 if not everything could be compared.
    """
    if report is not None and delegate.is_root():
        delegate.provide(report, directory)
    directory = options.owned(directory)
    members, left_out = _members(directory, allow_missing=allow_missing)
    with _errors():
        from pgherd_spark.checking import report as reports  # noqa: PLC0415 - see above
        from pgherd_spark.checking.check import check as compare  # noqa: PLC0415
        from pgherd_spark.reading.comparison import CheckOptions  # noqa: PLC0415

        asked = CheckOptions(int(part_mb * 1_000_000), max_rows, share=share)
        with _spark("pgherd check", cores) as spark:
            findings = options.run(compare(spark, members, asked, progress, left_out))
            if repair and findings.verdict == "different":
                _repair(directory, findings)
                findings = options.run(compare(spark, members, asked, progress, left_out))
            if report is not None:
                reports.write(spark, findings, report)
    if as_json:
        click.echo(json.dumps(reports.as_json(findings)))
    else:
        click.echo("\n".join(_told(findings)))
    if findings.verdict != "consistent":
        raise SystemExit(DIFFERENT if findings.verdict == "different" else COULD_NOT)


def _repair(directory: Path, findings: "Findings") -> None:
    """Replace the databases of the members that a majority contradicts by copies of another's.

    A member's other databases go with it, so not where roles alone differ: a command mends these.

    Raises:
        HerdError: there are none, or too many to know who is right, or it fails.
    """
    odd = findings.odd_databases
    right = [member for member in findings.members if member not in odd]
    if findings.contested:
        raise HerdError(
            f"nobody knows who has {', '.join(findings.contested)} right: look at the differences "
            "without --repair, then choose with `pgherd local rebuild NODE --from PARTNER`"
        )
    if not odd:
        raise HerdError(
            "nothing but roles differs, and no node is rebuilt for that: have a node that is right"
            " order it, like SELECT pgherd.run_everywhere('ALTER ROLE shop NOCREATEDB')"
        )
    if len(right) <= len(odd):
        raise HerdError(
            "the nodes differ, and no majority of them agrees: look at the differences without "
            "--repair, then choose with `pgherd local rebuild NODE --from PARTNER`"
        )
    for line in _told(findings):
        progress(line)
    for name in odd:
        asked = rebuild.RebuildOptions(right[0], None, _REBUILD_S)
        options.run(rebuild.rebuild(directory, name, asked))


@click.command()
@options.herd_directory
@click.option(
    "--to", type=options.LOCATION, required=True,
    help="Directory or s3://BUCKET/PREFIX that holds snapshots; a new one is made in it.",
)  # fmt: skip
@options.s3_endpoint
@click.option("--from", "nodes", help="Nodes to read, like n1,n2. [default: the first that is up]")
@click.option("--keep", type=click.IntRange(min=1), help="Then remove all but the newest N.")
@click.option(
    "--hold", "hold_hours", type=options.Number(min=0, max=24 * 30), default=0,
    help="Hours for which the nodes keep their logs, so that a node can join from it.",
)  # fmt: skip
@_share(default=100)
@_part
@_cores
@_allow_missing
def snapshot(  # noqa: PLR0913, PLR0917 - click's way to hand over options
    directory: Path,
    to: Path | str,
    endpoint: str | None,
    nodes: str | None,
    keep: int | None,
    hold_hours: float,
    share: int,
    part_mb: float,
    cores: int,
    allow_missing: bool,
) -> None:
    """Write all replicated tables and the schema as they are at one GID, by a job on Spark.

    A run that dies can be repeated within five minutes, and goes on where it was.
    """
    if delegate.is_root() and isinstance(to, Path):
        delegate.provide(to, directory)
    directory = options.owned(directory)
    description = herd.load(directory)
    members, _ = _members(directory, allow_missing=allow_missing)
    read = tuple((nodes or next(iter(members))).split(","))
    for name in read:
        if name not in members:
            raise HerdError(f"no node {name} with a database is up: choose others with --from")
    with _errors():
        from pgherd_spark.snapshots import snapshot as job  # noqa: PLC0415
        from pgherd_spark.storing import layout, stores  # noqa: PLC0415 - see above

        asked = job.SnapshotOptions(
            to=stores.at(str(to), endpoint),
            read=read,
            programs=description.programs_of(description.member(read[0])),
            cluster_id=str(description.cluster_id),
            part_bytes=int(part_mb * 1_000_000),
            share=share,
            hold_s=hold_hours * 3600,
        )
        with _spark("pgherd snapshot", cores) as spark:
            click.echo(options.run(job.snapshot(spark, members, asked, progress)))
        if keep is not None:
            for old in layout.expire(asked.to, asked.cluster_id, keep, progress):
                progress(f"removed {old}")


@click.command()
@options.herd_directory
@click.option(
    "--snapshot", "source", type=options.LOCATION, required=True,
    help="Directory or s3://BUCKET/PREFIX of one snapshot.",
)  # fmt: skip
@options.s3_endpoint
@click.option("--nodes", type=int, help="Number of nodes. [default: 3]")
@click.option("--port-base", type=int, help="As of `pgherd local up`. [default: 7500]")
@click.option("--user", help="Account for the processes when started as root. [default: postgres]")
@_cores
@options.timeout(3600)
def seed(  # noqa: PLR0913, PLR0917 - see above
    directory: Path,
    source: Path | str,
    endpoint: str | None,
    nodes: int | None,
    port_base: int | None,
    user: str | None,
    cores: int,
    timeout_s: float,
) -> None:
    """Make a new herd, with a cluster id of its own, from a snapshot; needs no Spark."""
    if delegate.is_root():
        delegate.up(directory, user)
    delegate.require_no_other(user)
    if herd.is_herd(directory):
        raise HerdError(f"{directory} holds a herd: choose an empty or new --dir")
    from pgherd_spark.storing import stores  # noqa: PLC0415 - see above

    asked = local.UpOptions(nodes, port_base, None, timeout_s)
    snapshot_ = stores.at(str(source), endpoint)
    filled = replace(asked, fill=partial(seeding.fill, source=snapshot_, jobs=cores))
    states = options.run(local.up(directory.resolve(), filled))
    click.echo(render.states(herd.load(directory.resolve()), states, as_json=False))


def _members(directory: Path, *, allow_missing: bool) -> "tuple[dict[str, Member], list[str]]":
    """The nodes with a database that are up; and those that are not, with their state.

    Raises:
        HerdError: one is not, and may not be left out, or none is.
    """
    from pgherd_spark.reading.leases import Member  # noqa: PLC0415
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    description = herd.load(directory)
    nodes = [node for node in local.nodes_of(description) if not node.member.witness]
    states = options.run(noding.states_of(nodes))
    missing = [one for one in states if not one.is_up]
    if not allow_missing:
        noding.require_all_up(missing)
    left_out = [f"{one.member.name} is {one.state}" for one in missing]
    if left_out:
        progress(f"left out: {', '.join(left_out)}")
    up = {one.member.name for one in states if one.is_up}
    if not up:
        raise HerdError("no node is up: start the herd with `pgherd local up`")
    members = {
        node.member.name: Member(
            node.member.name,
            node.sidecar.admin,
            make_conninfo(
                host="127.0.0.1",
                port=node.member.port,
                user="postgres",
                dbname="app",
                passfile=str(description.node(node.member).passfile),
            ),
        )
        for node in nodes
        if node.member.name in up
    }
    return members, left_out


@contextlib.contextmanager
def _spark(name: str, cores: int) -> "Iterator[Cluster]":
    from pgherd_spark.reading.cluster import cluster, require_installed  # noqa: PLC0415

    require_installed()
    progress(f"starting Spark with {cores} cores")
    with cluster(name, f"local[{cores},3]") as spark:
        if sys.stderr.isatty():
            spark.on_progress = _bar
        yield spark


def _bar(done: int, tasks: int) -> None:
    """Draw how many tasks are done, on a line that the next one replaces."""
    filled = _BAR * done // tasks
    end = "\n" if done == tasks else ""
    print(f"\r[{'#' * filled:{_BAR}}] {done}/{tasks}", end=end, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn what a job may fail with into a line for the user."""
    from pgherd_spark.reading.cluster import JobError, NoSparkError  # noqa: PLC0415
    from pgherd_spark.reading.leases import LeaseError  # noqa: PLC0415

    try:
        yield
    except NoSparkError as error:
        raise HerdError(_MISSING) from error
    except (JobError, LeaseError) as error:
        raise HerdError(f"the job could not be done: {error}") from error


def _told(findings: "Findings") -> Iterator[str]:
    """What was found, in lines: differences first, the verdict last."""
    for one in findings.definitions:
        versions = ", ".join(
            f"{member}: {'missing' if text is None else text}"
            for member, text in one.versions.items()
        )
        yield f"{one.kind} {one.name} differs: {versions}"
    for row in findings.rows:
        missing = [member for member, version in row.versions.items() if version is None]
        what = f"missing on {', '.join(missing)}" if missing else f"in {', '.join(row.columns)}"
        odd = f"; against the majority: {', '.join(row.odd)}" if row.odd else ""
        yield f"{row.table} {row.key} differs: {what}{odd}"
    for table in findings.tables:
        if table.reason is not None:
            yield f"{table.name} could not be compared: {table.reason}"
        elif table.more:
            yield f"{table.name}: more rows differ than are named here"
    for name in findings.changing:
        yield f"{name} was changed during the check and is not compared"
    for name in (*findings.unread, *findings.beyond):
        yield f"not compared: {name}"
    left_out = f"; left out: {', '.join(findings.left_out)}" if findings.left_out else ""
    yield (
        f"{findings.verdict} at GID {findings.gid}: {len(findings.tables)} tables on "
        f"{', '.join(findings.members)}{left_out}"
    )
    if findings.odd_databases:
        yield (
            f"a majority contradicts {', '.join(findings.odd_databases)}: "
            "`pgherd local rebuild NODE` replaces a node's database by a copy"
        )
