"""An example of what the change stream is for: a copy of tables as Parquet, kept up to date.

The copy always equals the database at some GID. It begins with the rows at a marker; from then on
each batch of changes rewrites the files that it concerns, and only those: a table is divided into
buckets by the hash of its key. Which files make the tables up, and at which GID, is said by
``current.json``, which is replaced when all of them are there; a reader sees the one or the other.
A batch that is taken twice is noticed by its GIDs.

All values are text; generated columns are left out. DDL that may concern one of the tables has
them copied anew.
"""

import asyncio
import json
import operator
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pgherd_sidecar.client.stream.changes import LoggedChange, Values
from pgherd_sidecar.env.storage import durable
from psycopg import sql

from pgherd_spark.reading import statements
from pgherd_spark.reading.catalog import Table, columns_changed, columns_now, describe
from pgherd_spark.reading.checksums import Part, blocks, parts_of
from pgherd_spark.reading.cluster import Cluster
from pgherd_spark.reading.leases import Member, hold_marker
from pgherd_spark.reading.sources import TableChangedError, reading, unchanging

CURRENT = "current.json"
_NAME_MAX = 100
_ATTEMPTS = 10
_BUCKETS = 16
_SQL = statements.load("lake.sql")


class LakeError(Exception):
    """The copy can't be made or gone on with; the message says why."""


class ChangedMeanwhileError(LakeError):
    """DDL has changed a table while it was copied; another copy may be luckier."""


@dataclass(frozen=True, slots=True)
class Current:
    """The copy as it is: files of each table by bucket, relative to its directory.

    Attributes:
        gid: of the database that it equals.
        files: by table and bucket; a bucket without rows has none.
        buckets: into how many each table is divided.
    """

    gid: int
    files: dict[str, dict[str, str]]
    buckets: int = _BUCKETS


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """What the user asked for.

    Attributes:
        to: the copy's directory.
        tables: their names.
        buckets: how many files a table has.
    """

    to: Path
    tables: tuple[str, ...]
    buckets: int = _BUCKETS
    part_bytes: int = 256 << 20
    lease_s: float = 300.0
    timeout_s: float = 120.0


def current(to: Path) -> Current | None:
    """What ``current.json`` says, None if there is no copy yet."""
    with suppress(FileNotFoundError):
        return Current(**json.loads((to / CURRENT).read_bytes()))
    return None


def read(session: Any, to: Path, table: str) -> Any:
    """A table of the copy as a DataFrame, None if it has no rows.

    Args:
        session: Spark's.
        to: the copy's directory.
        table: its name.
    """
    found = current(to)
    files = sorted(found.files.get(table, {}).values()) if found is not None else []
    return session.read.parquet(*(str(to / file) for file in files)) if files else None


def _begun(options: LakeOptions) -> Current:
    """The copy that is to be gone on with: in other buckets, changes would miss their rows.

    Raises:
        LakeError: there is none.
    """
    found = current(options.to)
    if found is None:
        raise LakeError(f"{options.to} holds no copy: begin with one")
    if (set(found.files), found.buckets) != (set(options.tables), options.buckets):
        names = ", ".join(sorted(found.files))
        raise LakeError(
            f"{options.to} holds a copy of {names} in {found.buckets} buckets each:"
            " go on with these, or begin anew"
        )
    return found


async def begin(cluster: Cluster, member: Member, options: LakeOptions) -> Current:
    """Copy the tables as they are at a new marker.

    Raises:
        LeaseError: the member can't hold its snapshot.
        LakeError: there is no such table, or it has no primary key.
        ChangedMeanwhileError: the rows at the marker could not be read.
        JobError, OSError: it can't be read or written.
    """
    async with hold_marker(
        {member.name: member},
        lease_s=options.lease_s,
        timeout_s=options.timeout_s,
        on_lost=cluster.cancel,
    ) as lease:
        (source,) = lease.sources
        (found,) = await cluster.in_thread(partial(cluster.each, [source], describe))
        tables = {table.name: table for table in found.tables}
        for name in options.tables:
            if name not in tables or not tables[name].key:
                raise LakeError(f"{name} is no replicated table with a primary key")
        parts = [
            part
            for relation in found.relations
            if relation.table in options.tables
            for part in parts_of(source, tables[relation.table], relation, options.part_bytes)
        ]
        bucketed = partial(_bucketed, buckets=options.buckets)
        store = partial(_store, options.to, lease.gid)
        written = await cluster.in_thread(
            partial(cluster.each_key, parts, bucketed, operator.add, store)
        )
        (now,) = await cluster.in_thread(partial(cluster.each, [source], columns_now))
        changed = set(columns_changed(found, now)).intersection(options.tables)
        files: dict[str, dict[str, str]] = {name: {} for name in options.tables}
        for name, bucket, file in written:
            if file is None:
                changed.add(name)
            else:
                files[name][str(bucket)] = file
        if changed:
            raise ChangedMeanwhileError(f"DDL has changed {', '.join(sorted(changed))}: try again")
        return _publish(options.to, Current(lease.gid, files, options.buckets))


def _store(
    to: Path, gid: int, found: tuple[tuple[str, int | None], list[tuple[str, Values]]]
) -> tuple[str, int | None, str | None]:
    """Write a bucket of a new copy; the end of a task. Without a file: its rows are not known."""
    (name, bucket), rows = found
    return name, bucket, None if bucket is None else write(to, name, bucket, gid, dict(rows))


def follow(cluster: Cluster, member: Member, admin: str, options: LakeOptions) -> Any:
    """Begin to keep the copy up to date; goes on, also after a stop, where it was.

    Args:
        cluster: does the work.
        member: is read anew where DDL makes that necessary.
        admin: see ``datasource``: whose log is read.
        options: as of ``begin``.

    Returns:
        Spark's streaming query, which runs until it is stopped.

    Raises:
        LakeError: there is no copy, or one of other tables or buckets.
    """
    from pgherd_spark.stream.datasource import NAME, ChangesDataSource  # noqa: PLC0415 - needs PySpark

    begun = _begun(options)

    def take(batch: Any, _: int) -> None:
        batch.persist()  # the log is read once; what does not fit into memory is on disk
        try:
            if apply(cluster, options, batch) is None:
                asyncio.run(_begin_anew(cluster, member, options))
        finally:
            batch.unpersist()

    cluster.session.dataSource.register(ChangesDataSource)
    stream = cluster.session.readStream.format(NAME).option("admin", admin)
    stream = stream.option("stream", f"lake {options.to}"[-_NAME_MAX:])
    stream = stream.option("after", begun.gid).option("tables", json.dumps(options.tables))
    checkpoint = (options.to / "checkpoint").absolute().as_uri()
    writer = stream.load().writeStream.foreachBatch(cluster.for_batches(take))
    writer = writer.option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="1 second").start()


async def _begin_anew(cluster: Cluster, member: Member, options: LakeOptions) -> None:
    """As ``begin``, in spite of further DDL, unless there is no end of it."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(ChangedMeanwhileError):
            await begin(cluster, member, options)
            return
    await begin(cluster, member, options)


_Rows = list[tuple[str, Values]]
"""With the text of their keys."""


def _bucketed(part: Part, buckets: int) -> Iterator[tuple[tuple[str, int | None], _Rows]]:
    """The rows of a part by bucket; the work of a task. No bucket: they can't be read any more."""
    found: dict[int, _Rows] = defaultdict(list)
    try:
        for row in _rows(part):
            key = identity({column: row[column] for column in part.table.key})
            found[bucket_of(key, buckets)].append((key, row))
    except TableChangedError:
        yield (part.table.name, None), []
        return
    for bucket, rows in found.items():
        yield (part.table.name, bucket), rows


def _rows(part: Part) -> Iterator[Values]:
    """The rows of a part as text."""
    table: Table = part.table
    values = sql.SQL(", ").join(
        _SQL["text"].format(column=sql.Identifier(column)) for column in table.stored
    )
    with reading(part.source) as connection:
        query = _SQL["rows"].format(
            values=values, relation=part.relation.identifier, range=blocks(part.first, part.end)
        )
        with unchanging(connection, part.relation):
            for row in connection.execute(query):
                yield dict(zip(table.stored, row, strict=True))


def identity(key: Mapping[str, str | None]) -> str:
    """A key as one text."""
    return json.dumps(sorted(key.items()))


def bucket_of(identity_: str, buckets: int) -> int:
    """The bucket of a row, by its key."""
    return zlib.crc32(identity_.encode()) % buckets


def apply(cluster: Cluster, options: LakeOptions, changes: Any) -> Current | None:
    """Bring the copy from its GID to that of the last change; changes up to its own are left out.

    Args:
        cluster: does the work.
        options: as of ``begin``.
        changes: whole transactions, as a DataFrame that is read more than once.

    Returns:
        None if DDL may concern one of the tables: then nothing is done, ``begin`` anew.

    Raises:
        LakeError: there is no copy, or one of other tables or buckets.
        JobError: a file can't be read or written.
    """
    before = _begun(options)
    new = changes.where(changes["gid"] > before.gid)
    commands = new.where(new["command"].isNotNull()).select("command").collect()
    if any(_concerns(row["command"], options.tables) for row in commands):
        return None
    ((gid,),) = new.agg({"gid": "max"}).collect()
    if gid is None:
        return before
    rows = new.where(new["table"].isin(*options.tables))
    rewrite = partial(_rewrite, options.to, gid, before.files)
    files = {name: dict(known) for name, known in before.files.items()}
    for name, bucket, file in cluster.rows_by_key(rows, partial(_by_bucket, options), rewrite):
        files[name].pop(str(bucket), None)
        if file is not None:
            files[name][str(bucket)] = file
    after = _publish(options.to, Current(gid, files, options.buckets))
    _remove_unused(options.to, {before.gid: before, after.gid: after}.values())
    return after


def _by_bucket(
    options: LakeOptions, fields: dict[str, Any]
) -> Iterator[tuple[tuple[str, int], LoggedChange]]:
    """The buckets that a change concerns."""
    change = LoggedChange(**fields)
    assert change.table is not None
    buckets = [bucket_of(identity(change.key or {}), options.buckets)]
    for bucket in range(options.buckets) if change.op == "truncate" else buckets:
        yield (change.table, bucket), change


def _concerns(command: str, tables: Iterable[str]) -> bool:
    """Say whether a command may have changed one of these tables."""
    said = json.loads(command)
    return bool(said.get("everything")) or not set(tables).isdisjoint(said.get("rels", ()))


def _rewrite(
    to: Path,
    gid: int,
    files: Mapping[str, Mapping[str, str]],
    found: tuple[tuple[str, int], Iterable[LoggedChange]],
) -> tuple[str, int, str | None]:
    """Write a bucket with changes; the work of a task."""
    (name, bucket), changes = found
    file = files[name].get(str(bucket))
    rows = load(to / file) if file is not None else {}
    for change in sorted(changes, key=operator.attrgetter("gid", "number")):
        key = identity(change.key or {})
        if change.op == "truncate":
            rows.clear()
        elif change.op == "delete":
            rows.pop(key, None)
        elif change.op == "insert":
            rows[key] = dict(change.values or {})
        else:
            rows[key] |= change.values or {}
    return name, bucket, write(to, name, bucket, gid, rows) if rows else None


def load(file: Path) -> dict[str, Values]:
    """The rows of a bucket by key, as ``write`` got them."""
    import pyarrow.parquet  # noqa: PLC0415 - an extra

    table = pyarrow.parquet.read_table(file)
    key = json.loads(table.schema.metadata[b"pgherd.key"])
    return {identity({one: row[one] for one in key}): row for row in table.to_pylist()}


def write(to: Path, name: str, bucket: int, gid: int, rows: Mapping[str, Values]) -> str:
    """Write a bucket's rows; return the file's name in the copy."""
    import pyarrow  # noqa: PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415

    identities = iter(rows)
    key = [column for column, _ in json.loads(next(identities))]
    columns = list(next(iter(rows.values())))
    fields = [pyarrow.field(column, pyarrow.string()) for column in columns]
    schema = pyarrow.schema(fields, metadata={"pgherd.key": json.dumps(key)})
    folder = f"table-{zlib.crc32(name.encode()):08x}"
    (to / folder).mkdir(parents=True, exist_ok=True)
    durable.sync_directory(to)
    file = f"{bucket:05}-{gid:012}.parquet"
    content = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(list(rows.values()), schema=schema), content, compression="zstd"
    )
    # It has to be there whole before ``current.json`` names it.
    durable.replace(to / folder, file, content.getvalue().to_pybytes())
    return f"{folder}/{file}"


def _publish(to: Path, new: Current) -> Current:
    durable.replace(to, CURRENT, json.dumps(asdict(new), indent=1).encode())
    return new


def _remove_unused(to: Path, kept: Iterable[Current]) -> None:
    """Remove files of neither this copy nor the one before, which somebody may still be reading."""
    used = {to / file for one in kept for files in one.files.values() for file in files.values()}
    for file in to.glob("table-*/*.parquet"):
        if file not in used:
            file.unlink()
