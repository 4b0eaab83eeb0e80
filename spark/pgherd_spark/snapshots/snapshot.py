"""The snapshot job: a herd's replicated tables and its schema at one GID, as files.

Each snapshot is a folder of its own in a store. ``job.json`` is written first and names the marker,
so that a run which dies can be taken up again while the members still hold it; ``manifest.json`` is
written last, when every part has been read back: a folder without it is no snapshot (``layout``).
"""

import json
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.pg import archives
from psycopg.conninfo import conninfo_to_dict

from pgherd_spark.reading import rowhash, statements
from pgherd_spark.reading.catalog import (
    Description,
    columns_changed,
    columns_now,
    describe,
    types_changed,
    types_now,
)
from pgherd_spark.reading.checksums import NOTHING, Part, Sum, parts_of
from pgherd_spark.reading.cluster import Cluster, JobError
from pgherd_spark.reading.comparison import Say
from pgherd_spark.reading.leases import (
    Lease,
    LeaseError,
    MarkerGoneError,
    Member,
    drop_marker,
    hold_marker,
)
from pgherd_spark.reading.owners import owning
from pgherd_spark.reading.pace import FULL, in_turn
from pgherd_spark.reading.sources import Source, connected, reading
from pgherd_spark.snapshots.holds import state_before
from pgherd_spark.storing.layout import (
    CERTIFICATION,
    CONTENTS,
    FORMAT,
    JOB,
    MANIFEST,
    ROLES,
    SCHEMA,
    folder,
    remove,
    sealed,
    sha256,
    unfinished,
)
from pgherd_spark.storing.parts import Receipt, WritePart, verify_part, write_part
from pgherd_spark.storing.stores import Store

_SQL = statements.load("snapshot.sql")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_MAX = 100
"""Of a directory's name; quotes of a table's and its schema's may make theirs too long."""


class ChangedError(JobError):
    """DDL has changed what was to be dumped, so it can't be had any more at this marker."""


class UnheldError(JobError):
    """The members were not asked to keep their logs for as long as is wanted now."""


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """What the user asked for.

    Attributes:
        to: holds the snapshots of this herd, and perhaps of others.
        read: members to read; the tables are shared out among them.
        programs: directory of PostgreSQL's programs.
        cluster_id: the herd's.
        series: see ``layout.expire``.
        share: percent of one core of each member that may be taken, see ``pace``.
        lease_s: how long a run that has died can be taken up again.
        hold_s: for how long from now the members keep the log for somebody made from the snapshot.
    """

    to: Store
    read: tuple[str, ...]
    programs: Path
    cluster_id: str
    series: str | None = None
    part_bytes: int = 256 << 20
    share: int = FULL
    lease_s: float = 300.0
    hold_s: float = 0.0
    timeout_s: float = 120.0


async def snapshot(
    cluster: Cluster, members: Mapping[str, Member], options: SnapshotOptions, say: Say
) -> Store:
    """Write a snapshot, or finish one that an earlier run had begun.

    Args:
        cluster: does the work.
        members: all that are up, by name: each tells how far its sequences are.
        options: how.
        say: told what is going on.

    Returns:
        Where the snapshot is.

    Raises:
        LeaseError: a member can't hold its snapshot.
        JobError, OSError: it can't be read or written; ``ChangedError`` if DDL was in the way.
    """
    for name in unfinished(options.to):
        if await _take_up(cluster, members, options, name, say):
            return options.to.below(name)
    state = state_before(members, options.hold_s)
    async with (
        hold_marker(
            members,
            lease_s=options.lease_s,
            timeout_s=options.timeout_s,
            on_lost=cluster.cancel,
            keep=True,
        ) as lease,
        owning(members, lease.marker),
    ):
        store = options.to.below(folder(lease.gid, lease.marker))
        job = {
            "format": FORMAT,
            "cluster_id": options.cluster_id,
            "marker": lease.marker,
            "hold_s": options.hold_s,
        }
        store.put(CERTIFICATION, state)
        store.put(JOB, json.dumps(job).encode())
        await _write(cluster, lease, options, store, say)
    return store


async def _take_up(
    cluster: Cluster, members: Mapping[str, Member], options: SnapshotOptions, name: str, say: Say
) -> bool:
    """Finish what an earlier run of this herd has left, or remove it if its marker is not held.

    One for which the log is held for less than is wanted now is removed, too: the log may be gone.

    What another job may be at work on, or can't be judged just now, stays as it is.
    """
    store = options.to.below(name)
    job = json.loads(store.get(JOB))
    if job["cluster_id"] != options.cluster_id:
        say(f"{name} is an unfinished snapshot of another herd: it stays as it is")
        return False
    try:
        async with owning(members, job["marker"]):
            if store.size(MANIFEST) is not None:
                return False  # its job was at work until a moment ago, and has finished it
            try:
                if options.hold_s > job.get("hold_s", 0):
                    raise UnheldError("the log was to be kept for less when it was begun")
                await _finish(cluster, members, options, name, job["marker"], say)
            except (MarkerGoneError, ChangedError, UnheldError) as error:
                say(f"removing {name}, which can't be finished: {error}")
                remove(options.to, name, say)
                await drop_marker(members, job["marker"])
                return False
    except LeaseError as error:
        say(f"{name} is unfinished and stays as it is: {error}")
        return False
    return True


async def _finish(
    cluster: Cluster,
    members: Mapping[str, Member],
    options: SnapshotOptions,
    name: str,
    marker: str,
    say: Say,
) -> None:
    async with hold_marker(
        members,
        lease_s=options.lease_s,
        timeout_s=options.timeout_s,
        on_lost=cluster.cancel,
        marker=marker,
        keep=True,
    ) as lease:
        say(f"going on with {name}, which an earlier run has begun")
        await _write(cluster, lease, options, options.to.below(name), say)


async def _write(
    cluster: Cluster, lease: Lease, options: SnapshotOptions, store: Store, say: Say
) -> None:
    say(f"every member holds a snapshot at GID {lease.gid}")
    try:
        await cluster.in_thread(partial(_run, cluster, lease, options, store, say))
    except JobError as error:
        if lease.lost is not None:
            raise LeaseError(lease.lost) from error
        raise


def _run(cluster: Cluster, lease: Lease, options: SnapshotOptions, store: Store, say: Say) -> None:
    started = datetime.now(UTC)
    sources = {source.member: source for source in lease.sources}
    first = sources[options.read[0]]
    files = _dump_schema(first, options.programs)
    for name, content in files.items():
        store.put(name, content)
    positions = cluster.each(list(lease.sources), _own_sequences)
    (carried,) = cluster.each([first], _carried)
    found = {one.member: one for one in cluster.each([sources[m] for m in options.read], describe)}
    _require_usable(found)
    tasks = _tasks(sources, found, options, store)
    say(f"rows of {len({task.part.table.name for task in tasks})} tables: {len(tasks)} parts")
    receipts = in_turn(
        cluster, tasks, write_part, options.share, lambda one: one.part.source.member
    )
    say("reading all parts back")
    cluster.each(receipts, partial(verify_part, store))
    _require_values(cluster, [sources[member] for member in found], found)
    positions += cluster.each(list(lease.sources), _own_sequences)
    manifest = {
        "format": FORMAT,
        "cluster_id": options.cluster_id,
        "series": options.series,
        "gid": lease.gid,
        "started": started.isoformat(),
        "finished": datetime.now(UTC).isoformat(),
        "members": {source.member: source.visible for source in lease.sources},
        "servers": {member: asdict(one.server) for member, one in found.items()},
        "certification": _described(store.get(CERTIFICATION)),
        "files": {name: sha256(content) for name, content in files.items()},
        "tables": _tables(found[first.member], tasks, receipts),
        "sequences": _sequences(positions),
        **carried,
        "not_included": found[first.member].not_replicated,
    }
    store.put(MANIFEST, sealed(manifest))


def _require_usable(found: Mapping[str, Description]) -> None:
    """Check that the members that are read agree, and that what was dumped was not changed before.

    Raises:
        ChangedError: ``pg_dump`` writes some definitions as they are by now, not at the marker.
        JobError: the members differ.
    """
    changing = sorted({name for one in found.values() for name in one.changing})
    if changing:
        raise ChangedError(f"changed since the marker: {', '.join(changing)}; try again")
    if len({one.tables for one in found.values()}) > 1:
        raise JobError(f"{', '.join(found)} hold different tables: run `pgherd check`")


def _require_values(
    cluster: Cluster, sources: Sequence[Source], found: Mapping[str, Description]
) -> None:
    """Check, when all rows have been read, that they were the marker's columns, of its types.

    Raises:
        ChangedError: of some table they may not have been.
    """
    columns = cluster.each(list(sources), columns_now)
    types = cluster.each(list(sources), types_now)
    for source, its_columns, its_types in zip(sources, columns, types, strict=True):
        known = found[source.member]
        changed = columns_changed(known, its_columns) or types_changed(known, its_types)
        if changed:
            raise ChangedError(
                f"{source.member}: columns or types changed since the marker:"
                f" {', '.join(changed)}; try again"
            )


def _tasks(
    sources: Mapping[str, Source],
    found: Mapping[str, Description],
    options: SnapshotOptions,
    store: Store,
) -> list[WritePart]:
    """Share the tables out among the members, the largest first, each to whom has least yet."""
    first = found[options.read[0]]
    sizes: dict[str, int] = {table.name: 0 for table in first.tables}
    for relation in first.relations:
        sizes[relation.table] += relation.blocks * relation.block_bytes
    loads = dict.fromkeys(options.read, 0)
    tasks: list[WritePart] = []
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        member = min(loads, key=lambda one: loads[one])
        loads[member] += sizes[name]
        tasks += _tasks_of_table(sources[member], found[member], name, options, store)
    return tasks


def _tasks_of_table(
    source: Source, description: Description, name: str, options: SnapshotOptions, store: Store
) -> Iterable[WritePart]:
    table = next(one for one in description.tables if one.name == name)
    place = [one.name for one in description.tables].index(name)
    parts: list[Part] = [
        part
        for relation in description.relations
        if relation.table == name
        for part in parts_of(source, table, relation, options.part_bytes, options.share)
    ]
    place_of_table = f"data/{place:05}.{_UNSAFE.sub('_', name)[:_NAME_MAX]}"
    for number, part in enumerate(parts):
        path = f"{place_of_table}/part-{number:06}.copy.zst"
        yield WritePart(part, store, path, options.programs / "psql")


def _tables(
    description: Description, tasks: Sequence[WritePart], receipts: Sequence[Receipt]
) -> list[dict[str, Any]]:
    parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    sums: dict[str, Sum] = defaultdict(lambda: NOTHING)
    for task, receipt in zip(tasks, receipts, strict=True):
        part = task.part
        sums[part.table.name] += receipt.sum
        parts[part.table.name].append(
            {
                "path": receipt.path,
                "bytes": receipt.bytes,
                "sha256": receipt.sha256,
                "rows": receipt.sum.rows,
                "checksum": receipt.sum.hex(),
                "relation": [part.relation.schema, part.relation.name],
                "member": part.source.member,
                "blocks": [part.first, part.end],
            }
        )
    return [
        {
            "name": table.name,
            "columns": dict(zip(table.columns, table.types, strict=True)),
            "key": table.key,
            "stored": table.stored,
            "form": table.form,
            "rows": sums[table.name].rows,
            "hash": rowhash.KIND,
            "checksum": sums[table.name].hex(),
            "parts": parts[table.name],
        }
        for table in description.tables
    ]


def _own_sequences(source: Source) -> list[tuple[Any, ...]]:
    """A member's at the marker, and how far they are by now, as long as they are there.

    The work of a task, as all that asks a server that may be gone by now.
    """
    with reading(source) as connection:
        sequences = connection.execute(_SQL["sequences"]).fetchall()
    with connected(source) as connection:
        last = dict(connection.execute(_SQL["positions"]).fetchall())
    return [(*own, last.get(oid)) for oid, *own in sequences]


def _sequences(positions: Iterable[Sequence[tuple[Any, ...]]]) -> list[dict[str, Any]]:
    """Each sequence as its user made it, and the last number that any member gave out.

    Args:
        positions: what each member has said, before and after the rows were read: one that was
            dropped or restarted meanwhile is not further afterwards.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for sequences in positions:
        for schema, own, step, start, last in sequences:
            known = found.setdefault(
                (schema, own),
                {"name": [schema, own], "step": step, "start": start, "last_value": None},
            )
            if last is not None:
                further = max if step > 0 else min
                before = known["last_value"]
                known["last_value"] = last if before is None else further(before, last)
    return list(found.values())


def _carried(source: Source) -> dict[str, Any]:
    """What a member made from the snapshot has to know, too.

    Tables that users keep local, materialized views that have contents, what of the users' uses
    functions of ours, and what every member has of roles and settings: the member read from may
    have changed some that others do not know yet.
    """
    with reading(source) as connection:
        ((uses_ours,),) = connection.execute(_SQL["uses_ours"]).fetchall()
        return {
            "uses_ours": uses_ours or [],
            "populated": [[*view] for view in connection.execute(_SQL["populated"])],
            "local_tables": [name for (name,) in connection.execute(_SQL["local_tables"])],
            "shared": [[*pair] for pair in connection.execute(_SQL["shared"])],
            "role_limits": dict(connection.execute(_SQL["role_limits"])),
        }


def _described(data: bytes) -> dict[str, Any]:
    state = certstate.unpack(data)
    return {
        "file": CERTIFICATION,
        "position": state.position,
        "last_commit": state.last_commit,
        "sha256": sha256(data),
    }


def _dump_schema(source: Source, programs: Path) -> dict[str, bytes]:
    """Definitions by ``pg_dump`` in the same snapshot, roles by ``pg_dumpall``, which has none.

    Raises:
        JobError: one of them failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        schema = Path(directory) / SCHEMA
        _program(
            programs / "pg_dump", "--schema-only", "--format=custom",
            f"--snapshot={source.snapshot}", "--exclude-schema=pgherd",
            "--exclude-schema=pgherd_gen", "--lock-wait-timeout=60s",
            f"--file={schema}", f"--dbname={source.conninfo}",
        )  # fmt: skip
        contents = _program(programs / "pg_restore", "--list", str(schema)).decode()
        dump = schema.read_bytes()
    # pg_dumpall ignores the database in a conninfo, and may not be let into any other.
    database = conninfo_to_dict(source.conninfo)["dbname"]
    roles = _program(
        programs / "pg_dumpall", "--roles-only", f"--dbname={source.conninfo}",
        f"--database={database}",
    )  # fmt: skip
    return {SCHEMA: dump, CONTENTS: archives.of_users(contents).encode(), ROLES: roles}


def _program(program: Path, *arguments: str) -> bytes:
    done = subprocess.run(
        [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise JobError(f"{program.name}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
