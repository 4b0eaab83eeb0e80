"""``pgherd.changes``, the change stream as a data source of Spark, for batches and for streams.

    session.dataSource.register(ChangesDataSource)
    session.readStream.format("pgherd.changes").option("admin", "...").load()

Options:
    admin       where members' admin APIs are, separated by commas; any of them is asked: sockets,
                or NAME=HOST:PORT of members elsewhere
    certificates, cluster
                for those: a directory, the same on all executors, with ca.crt, and in tls.crt and
                tls.key the certificate of the herd's jobs; and the herd's cluster id
    after       read what follows this GID; by default a batch begins with the first entry of the
                log, a stream with what comes next
    through     a batch ends with this GID; by default with the newest one
    tables      only these: names as in ``table``, separated by commas, or as a JSON list; commands
                come in any case
    partitions  a range of GIDs is divided among so many tasks (1)
    positions   a stream takes no more positions at a time (100000)
    stream      under this name the members keep the log for a stream, for ``lease`` seconds (3600)
                after its last sign of life

The offset of a stream is a GID. What is between two GIDs never changes, so a sink that takes a
batch once has each change once.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.client.stream.changes import LoggedChange
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pgherd_spark.stream.reach import Certificates, clients

NAME = "pgherd.changes"
SCHEMA = """gid bigint, number int, origin int, xid bigint, table string, op string,
    key map<string, string>, values map<string, string>, command string"""
_RENEWALS = 3
"""In the time of one lease."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the user asked for, see above."""

    admin: tuple[str, ...]
    certificates: Certificates | None
    after: int | None
    through: int | None
    tables: frozenset[str] | None
    partitions: int
    positions: int
    stream: str | None
    lease_s: float

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "SourceOptions":
        """Read them.

        Raises:
            ValueError: one is missing or no number.
        """
        if not given.get("admin"):
            raise ValueError(f"{NAME} needs the option `admin`: where members' admin APIs are")
        tables = given.get("tables")
        directory, cluster_id = given.get("certificates"), given.get("cluster")
        after, through = given.get("after"), given.get("through")
        return cls(
            admin=tuple(given["admin"].split(",")),
            certificates=(
                Certificates(Path(directory), cluster_id) if directory and cluster_id else None
            ),
            after=None if after is None else int(after),
            through=None if through is None else int(through),
            tables=None if tables is None else frozenset(_names(tables)),
            partitions=int(given.get("partitions", 1)),
            positions=int(given.get("positions", 100_000)),
            stream=given.get("stream"),
            lease_s=float(given.get("lease", 3600)),
        )

    def log(self) -> ChangeLog:
        """The log of the herd.

        Raises:
            ValueError, OSError: its members can't be asked; see ``reach``.
        """
        return ChangeLog(clients(self.admin, self.certificates))


def _names(tables: str) -> Sequence[str]:
    return list(json.loads(tables)) if tables.startswith("[") else tables.split(",")


class Range(InputPartition):  # type: ignore[misc]
    """The work of a task: what follows one GID up to another."""

    def __init__(self, after: int, through: int) -> None:
        super().__init__((after, through))
        self.after, self.through = after, through


def ranges(after: int, through: int, pieces: int) -> list[Range]:
    """Divide a range of GIDs."""
    size = through - after
    cuts = [after + size * piece // pieces for piece in range(pieces + 1)]
    return [Range(*cut) for cut in pairwise(cuts) if cut[0] < cut[1]]


def rows(options: SourceOptions, part: Range) -> Iterator[tuple[Any, ...]]:
    """The rows of a range; the work of a task.

    Raises:
        ChangesError: the log can't be read.
    """
    portions = options.log().between(part.after, part.through)

    async def following() -> list[LoggedChange] | None:
        return await anext(portions, None)

    with asyncio.Runner() as runner:
        while (changes := runner.run(following())) is not None:
            for one in changes:
                if options.tables is None or one.table is None or one.table in options.tables:
                    yield (
                        one.gid, one.number, one.origin, one.xid, one.table, one.op,
                        one.key, one.values, one.command,
                    )  # fmt: skip


class ChangesDataSource(DataSource):  # type: ignore[misc]
    """See above."""

    @classmethod
    def name(cls) -> str:
        """See PySpark; so all that follows."""
        return NAME

    def schema(self) -> str:
        """One row for each change of a row, and for each command."""
        return SCHEMA

    def reader(self, schema: Any) -> "ChangesReader":
        """For a batch."""
        return ChangesReader(SourceOptions.of(self.options))

    def streamReader(self, schema: Any) -> "ChangesStream":
        """For a stream."""
        return ChangesStream(SourceOptions.of(self.options))


class ChangesReader(DataSourceReader):  # type: ignore[misc]
    """A batch."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[Range]:
        """Ranges of GIDs."""
        return ranges(*asyncio.run(self._bounds()), self._options.partitions)

    async def _bounds(self) -> tuple[int, int]:
        options, log = self._options, self._options.log()
        after = await log.begins() - 1 if options.after is None else options.after
        return after, await log.visible() if options.through is None else options.through

    def read(self, partition: Range) -> Iterator[tuple[Any, ...]]:
        """The rows of a range."""
        return rows(self._options, partition)


class ChangesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream; lives in the driver, but for ``read``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._end: int | None = None
        self._held: int | None = None
        self._renewed_s = 0.0

    def initialOffset(self) -> dict[str, int]:
        """Where a stream begins that has no checkpoint."""
        after = self._options.after
        if after is None:
            after = asyncio.run(self._options.log().visible())
        self._hold(after)
        return {"gid": after}

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where a query ends that takes what is there now."""
        self._end = asyncio.run(self._options.log().visible())

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """How far the next batch goes."""
        self._hold(self._held if self._held is not None else start["gid"])
        newest = asyncio.run(self._options.log().visible())
        if self._end is not None:
            newest = min(newest, self._end)
        return {"gid": max(min(newest, start["gid"] + self._options.positions), start["gid"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        """Ranges of GIDs."""
        return ranges(start["gid"], end["gid"], self._options.partitions)

    def read(self, partition: Range) -> Iterator[tuple[Any, ...]]:
        """The rows of a range."""
        return rows(self._options, partition)

    def commit(self, end: dict[str, int]) -> None:
        """The sink has everything up to there: the log before is not needed any more."""
        self._hold(end["gid"])

    def _hold(self, after: int) -> None:
        """Have the members keep the log after a GID, unless that was done a moment ago."""
        options, now_s = self._options, time.monotonic()
        if options.stream is None or (
            after == self._held and now_s - self._renewed_s < options.lease_s / _RENEWALS
        ):
            return
        asyncio.run(options.log().hold(options.stream, after, options.lease_s))
        self._held, self._renewed_s = after, now_s


def history(session: Any, admin: str, table: str, after: int | None = None) -> Any:
    """All changes of a table that the log still holds, as a DataFrame in their order.

    Args:
        session: Spark's.
        admin: see the options.
        table: its qualified name.
        after: only those after this GID; by default all.
    """
    session.dataSource.register(ChangesDataSource)
    frame = session.read.format(NAME).option("admin", admin).option("tables", json.dumps([table]))
    changes = (frame if after is None else frame.option("after", str(after))).load()
    return changes.where(changes["table"] == table).orderBy("gid", "number")
