"""The change stream in Spark, and what is built on it: a copy that equals the database at a GID."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
from pgherd_sidecar.client.stream.changes import Values
from pgherd_sidecar.local import herd as herds
from pgherd_spark.reading.checksums import Part, parts_of
from pgherd_spark.reading.cluster import Cluster, JobError
from pgherd_spark.reading.cluster import cluster as start
from pgherd_spark.stream import lake

from .ledger import INITIAL, Ledger
from .localherd import LocalHerd, query
from .sparkherd import NEEDS_SPARK, members_of

pytestmark = [NEEDS_SPARK, pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start("tests", "local[2,1]") as running:
        yield running


def sockets(herd: LocalHerd) -> str:
    description = herds.load(herd.directory.resolve())
    return ",".join(str(description.node(one).admin_socket) for one in description.members)


def rows_of(cluster: Cluster, to: Path, table: str) -> list[Values]:
    frame = lake.read(cluster.session, to, table)
    return [] if frame is None else [row.asDict() for row in frame.collect()]


def require_a_moment_of(ledger: Ledger, rows: dict[str, list[Values]]) -> None:
    """The balances are those that the transfers in the ledger make: it is the state at one GID."""
    expected = dict.fromkeys(range(1, ledger.accounts + 1), INITIAL)
    for row in rows["ledger"]:
        expected[int(row["debit"] or 0)] -= int(row["amount"] or 0)
        expected[int(row["credit"] or 0)] += int(row["amount"] or 0)
    assert {int(row["id"] or 0): int(row["balance"] or 0) for row in rows["account"]} == expected


class Following:
    """The job that follows the stream; begun again when Spark could not start a process in time."""

    def __init__(self, herd: LocalHerd, cluster: Cluster, options: lake.LakeOptions) -> None:
        self._asked = cluster, members_of(herd)["n2"], sockets(herd), options
        self._to = options.to
        self._query = lake.follow(*self._asked)

    async def caught_up(self, gid: int) -> None:
        """Wait until the copy is of that GID or later."""
        while (found := lake.current(self._to)) is None or found.gid < gid:
            error = self._query.exception()
            if error is not None:
                assert "Python worker failed to connect back" in str(error), error
                self._query = lake.follow(*self._asked)
            await asyncio.sleep(0.2)

    def stop(self) -> None:
        self._query.stop()


async def beside_clients(dsn: str, statement: str) -> None:
    """Run what clients of other nodes may win against, again until it is done.

    In a thread: it may wait for transactions of clients who run in this loop.
    """
    while True:
        with contextlib.suppress(psycopg.errors.SerializationFailure):
            await asyncio.to_thread(query, dsn, statement)
            return


@pytest.fixture
def truncated_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[LocalHerd, str], Event]:
    """Has a table truncated once, between the marker of the next copy and the reading of rows."""

    def arrange(herd: LocalHerd, table: str) -> Event:
        done = Event()

        def truncate_first(*args: Any) -> Iterator[Part]:
            if not done.is_set():
                query(herd.app_dsn("n2"), f"TRUNCATE {table}")
                done.set()
            return parts_of(*args)

        monkeypatch.setattr(lake, "parts_of", truncate_first)
        return done

    return arrange


async def test_a_copy_goes_on_though_a_table_is_truncated_while_it_is_copied_anew(
    herd: LocalHerd,
    cluster: Cluster,
    ledger: Ledger,
    tmp_path: Path,
    truncated_at: Callable[[LocalHerd, str], Event],
) -> None:
    table, dsn = f"{ledger.schema}.account", herd.app_dsn("n2")
    options = lake.LakeOptions(to=tmp_path / "lake", tables=(table,), buckets=4)
    options.to.mkdir()
    truncated_at(herd, table)
    with pytest.raises(lake.ChangedMeanwhileError, match=rf"{table}: try again"):
        await lake.begin(cluster, members_of(herd)["n2"], options)
    query(dsn, f"INSERT INTO {table} VALUES (1, 1)")
    await lake.begin(cluster, members_of(herd)["n2"], options)
    assert [row["id"] for row in rows_of(cluster, options.to, table)] == ["1"]

    truncated = truncated_at(herd, table)
    running = Following(herd, cluster, options)
    query(dsn, f"ALTER TABLE {table} ADD note text")
    assert await asyncio.to_thread(truncated.wait, 120)
    query(dsn, f"INSERT INTO {table} VALUES (2, 1, 'after')")
    await running.caught_up(query(dsn, "SELECT pgherd.last_gid()")[0][0])
    running.stop()
    assert [row["note"] for row in rows_of(cluster, options.to, table)] == ["after"]


class Uncaught:
    """Told by Java of what ends its threads."""

    class Java:
        implements = ("java.lang.Thread$UncaughtExceptionHandler",)

    def __init__(self) -> None:
        self.errors: list[str] = []

    def uncaughtException(self, thread: Any, error: Any) -> None:
        self.errors.append(error.toString())


@pytest.fixture
def uncaught(cluster: Cluster) -> Iterator[Uncaught]:
    from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415 - only where it is

    context = cluster.session.sparkContext
    ensure_callback_server_started(context._gateway)
    handler = Uncaught()
    context._jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(handler)
    yield handler
    context._jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(None)


def test_a_stream_that_is_stopped_in_the_middle_of_a_batch_ends_without_an_error(
    cluster: Cluster, uncaught: Uncaught, tmp_path: Path
) -> None:
    from pyspark.sql.functions import udf  # noqa: PLC0415 - likewise

    def begin_and_wait(value: int) -> int:
        (tmp_path / "begun").touch()
        while not (tmp_path / "ended").exists():
            time.sleep(0.1)
        return value

    def take(batch: Any, _: int) -> None:
        waiting = udf(begin_and_wait, "bigint", useArrow=False)("value").alias("value")
        try:
            batch.select(waiting).agg({"value": "max"}).collect()
        except Exception as error:
            raise JobError("long " * 10_000) from error

    stream = cluster.session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    query = stream.load().writeStream.foreachBatch(cluster.for_batches(take)).start()
    try:
        while not (tmp_path / "begun").exists():
            assert query.exception() is None, query.exception()
        query.stop()
    finally:
        (tmp_path / "ended").touch()
    assert (query.exception(), uncaught.errors) == (None, [])


async def test_a_copy_in_parquet_equals_the_database_at_some_gid_at_any_time_under_load_and_ddl(
    herd: LocalHerd, cluster: Cluster, ledger: Ledger, tmp_path: Path
) -> None:
    name = ledger.schema
    tables = (f"{name}.account", f"{name}.ledger", f"{name}.large")
    options = lake.LakeOptions(to=tmp_path / "lake", tables=tables, buckets=4)
    options.to.mkdir()
    dsn = herd.app_dsn("n1")
    query(dsn, f"CREATE TABLE {name}.large (id int PRIMARY KEY, t text)")
    in_pieces = (
        f"INSERT INTO {name}.large SELECT g, repeat('x', 200) FROM generate_series(1, 9000) g"
    )

    def copy() -> dict[str, list[Values]]:
        return {table.split(".")[1]: rows_of(cluster, options.to, table) for table in tables}

    async with ledger.load(clients=1):
        await ledger.commits(20)
        begun = await lake.begin(cluster, members_of(herd)["n2"], options)
        require_a_moment_of(ledger, copy())
        running = Following(herd, cluster, options)
        await running.caught_up(begun.gid + 1)
        require_a_moment_of(ledger, copy())
        running.stop()
        stopped = lake.current(options.to)
        await ledger.commits(20)
        running = Following(herd, cluster, options)
        assert stopped is not None
        await running.caught_up(stopped.gid + 1)
        await beside_clients(dsn, in_pieces)
    # Clients that never pause could win against it for good.
    await beside_clients(dsn, f"ALTER TABLE {name}.account ADD note text DEFAULT 'none'")
    async with ledger.load(clients=1):
        await ledger.commits(20)
    ledger.check()
    query(dsn, f"DELETE FROM {name}.account WHERE id = 1; TRUNCATE {name}.ledger")
    await running.caught_up(query(dsn, "SELECT pgherd.last_gid()")[0][0])
    running.stop()
    rows = copy()
    assert rows["ledger"] == []
    assert sorted(int(row["id"] or 0) for row in rows["large"]) == list(range(1, 9001))
    balances = query(dsn, f"SELECT id::text, balance::text, note FROM {name}.account")
    assert sorted(balances) == sorted(
        (row["id"], row["balance"], row["note"]) for row in rows["account"]
    )

    from pgherd_spark.stream.datasource import history  # noqa: PLC0415 - only where pyspark is

    changes = history(cluster.session, sockets(herd), f"{name}.account", after=begun.gid).collect()
    assert [row.op for row in changes][-1] == "delete"
    assert {row.table for row in changes} == {f"{name}.account"}
    assert [(row.gid, row.number) for row in changes] == sorted(
        {(row.gid, row.number) for row in changes}
    )
