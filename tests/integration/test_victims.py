"""Who stands in the way of what is certain to commit gives way, and is told the truth."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from patience import in_time, wait_until_async

from .ledger import create_everywhere, new_ledger
from .localherd import NATIVE, LocalHerd, query, settle
from .nodes import complaints

Connection = psycopg.AsyncConnection[Any]
Holds = Callable[[Connection, Connection], Awaitable[None]]

_TOKEN_OF_XID = 5785081970366611456
_TOKEN_OF_BATCH = 5786207870273454080
_NEWEST_TOKEN = """
SELECT max(token) FROM (SELECT classid::int8 << 32 | objid::int8 AS token FROM pg_locks
                         WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock') t
 WHERE token >= %s"""


@pytest.fixture
def schema(herd: LocalHerd) -> Iterator[str]:
    """A table ``t`` of ten rows on all nodes."""
    name = f"v_{random.getrandbits(40):x}"
    create_everywhere(
        herd,
        f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY, v int NOT NULL);"
        f"INSERT INTO {name}.t SELECT g, 0 FROM generate_series(1, 10) g",
    )
    yield name
    query(herd.nodes()[0].dsn, f"DROP SCHEMA {name} CASCADE")


@contextlib.asynccontextmanager
async def connect(herd: LocalHerd, node: str, schema: str) -> AsyncIterator[Connection]:
    """A connection of the ordinary role."""
    async with await psycopg.AsyncConnection.connect(
        herd.app_dsn(node), autocommit=True, options=f"-c search_path={schema}"
    ) as connection:
        yield connection


async def value(connection: Connection, row: int) -> int:
    cursor = await connection.execute("SELECT v FROM t WHERE id = %s", (row,))
    found = await cursor.fetchone()
    assert found is not None
    return int(found[0])


async def add_one(connection: Connection, row: int) -> None:
    await connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", (row,))


async def assert_everywhere(herd: LocalHerd, schema: str, row: int, wanted: int) -> None:
    """Check that all nodes show this value when they have what is committed anywhere."""
    await asyncio.to_thread(settle, herd)
    for node in ("n1", "n2", "n3"):
        async with connect(herd, node, schema) as connection:
            assert await value(connection, row) == wanted, node


async def idle(victim: Connection, other: Connection) -> None:
    await victim.execute("UPDATE t SET v = -1 WHERE id = 1")


async def idle_in_a_subtransaction(victim: Connection, other: Connection) -> None:
    await victim.execute("SAVEPOINT s")
    await victim.execute("UPDATE t SET v = -1 WHERE id = 1")
    await victim.execute("SAVEPOINT t")


async def holding_a_table(victim: Connection, other: Connection) -> None:
    await victim.execute("LOCK TABLE t IN EXCLUSIVE MODE")


async def holding_a_row_for_update(victim: Connection, other: Connection) -> None:
    await victim.execute("SELECT FROM t WHERE id = 1 FOR UPDATE")


async def running(victim: Connection, other: Connection) -> None:
    await victim.execute("UPDATE t SET v = -1 WHERE id = 1")
    await victim.execute("SELECT pg_sleep(600)")


async def reading(victim: Connection, other: Connection) -> None:
    await victim.execute("LOCK TABLE t IN SHARE MODE")
    await victim.execute("SELECT count(*) FROM t, pg_sleep(600)")


async def waiting_for_a_row(victim: Connection, other: Connection) -> None:
    await victim.execute("UPDATE t SET v = -1 WHERE id = 1")
    await other.execute("BEGIN")
    await other.execute("UPDATE t SET v = -1 WHERE id = 2")
    await victim.execute("UPDATE t SET v = -1 WHERE id = 2")


async def catching_a_cancel(victim: Connection, other: Connection) -> None:
    await victim.execute("UPDATE t SET v = -1 WHERE id = 1")
    await victim.execute(
        "DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(600);"
        " EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$"
    )


async def copying(victim: Connection, other: Connection) -> None:
    """A session that waits for rows of its client hears of no cancel."""
    await victim.execute("UPDATE t SET v = -1 WHERE id = 1")
    async with victim.cursor().copy("COPY t FROM STDIN"):
        while await value(other, 1) != 7:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


@pytest.mark.family(every=3)
@pytest.mark.parametrize(
    "holds",
    [
        idle,
        idle_in_a_subtransaction,
        holding_a_table,
        holding_a_row_for_update,
        running,
        reading,
        waiting_for_a_row,
        catching_a_cancel,
        copying,
    ],
    ids=lambda holds: holds.__name__,
)
async def test_a_session_in_the_way_of_another_node_s_commit_is_closed(
    herd: LocalHerd, schema: str, holds: Holds
) -> None:
    async with (
        connect(herd, "n1", schema) as victim,
        connect(herd, "n1", schema) as other,
        connect(herd, "n2", schema) as winner,
    ):
        await victim.execute("BEGIN")
        holding = asyncio.ensure_future(holds(victim, other))
        await blocks(herd, schema, victim)
        await winner.execute("UPDATE t SET v = 7 WHERE id = 1")
        await assert_everywhere(herd, schema, 1, 7)
        with pytest.raises(psycopg.OperationalError) as closed:
            await holding
            await victim.execute("COMMIT")
        assert closed.value.sqlstate in ("57P01", "40001", "40P01", None)  # never 57014
        if NATIVE and holds in (running, waiting_for_a_row):
            assert closed.value.sqlstate in ("40001", "40P01")
            await victim.execute("ROLLBACK")
            assert await value(victim, 1) == 7
        await other.execute("ROLLBACK")
    herd.must("verify")


async def blocks(herd: LocalHerd, schema: str, victim: Connection) -> None:
    """Wait until ``victim`` holds what an update of row 1 needs."""
    async with connect(herd, "n1", schema) as probe, in_time():
        while True:
            await asyncio.sleep(0.01)
            await probe.execute("BEGIN")
            try:
                await probe.execute("LOCK TABLE t IN ROW EXCLUSIVE MODE NOWAIT")
                await probe.execute("SELECT FROM t WHERE id = 1 FOR NO KEY UPDATE NOWAIT")
            except psycopg.errors.LockNotAvailable:
                return
            finally:
                await probe.execute("ROLLBACK")


async def test_a_command_that_waits_behind_another_node_s_commit_hears_40001(
    herd: LocalHerd, schema: str
) -> None:
    """It waits until all before it is visible here, which waits for its row; its session stays."""
    async with connect(herd, "n1", schema) as victim, connect(herd, "n2", schema) as winner:
        command = asyncio.ensure_future(
            victim.execute(
                "UPDATE t SET v = -1 WHERE id = 1; SELECT pg_sleep(0.3);"
                f" ALTER SCHEMA {schema} RENAME TO {schema}_2"
            )
        )
        await blocks(herd, schema, victim)
        await winner.execute("UPDATE t SET v = 7 WHERE id = 1")
        with pytest.raises(psycopg.errors.SerializationFailure):
            await command
        await assert_everywhere(herd, schema, 1, 7)
        assert await value(victim, 1) == 7
    herd.must("verify")


async def test_of_two_nodes_that_update_one_row_at_once_one_hears_40001(
    herd: LocalHerd, schema: str
) -> None:
    """Whose COMMIT comes after the other's row loses its session, which is rare."""
    lost: list[type[BaseException]] = []
    async with connect(herd, "n1", schema) as first, connect(herd, "n2", schema) as second:
        for _ in range(30):
            async with connect(herd, "n1", schema) as one, connect(herd, "n2", schema) as two:
                for connection in (one, two):
                    await connection.execute("BEGIN")
                    await connection.execute("UPDATE t SET v = v + 1 WHERE id = 3")
                ends = await asyncio.gather(
                    one.execute("COMMIT"), two.execute("COMMIT"), return_exceptions=True
                )
            (error,) = (end for end in ends if isinstance(end, BaseException))
            lost.append(type(error))
            for row, connection in ((4, first), (5, second)):  # sees all so far when it is done
                await connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", (row,))
        total = await value(first, 3)
    assert total == 30
    assert set(lost) <= {psycopg.errors.SerializationFailure, psycopg.errors.AdminShutdown}
    assert lost.count(psycopg.errors.SerializationFailure) >= 25
    herd.must("verify")


async def test_a_certified_transaction_with_only_a_row_lock_yields_and_is_committed(
    herd: LocalHerd, schema: str
) -> None:
    """C9: L locks row 1 and writes row 2; a remote write of row 1 is ordered just before it."""
    heard: dict[str | None, int] = {}
    async with connect(herd, "n2", schema) as remote:
        for attempt in range(1, 61):
            async with connect(herd, "n1", schema) as local:
                await local.execute("BEGIN")
                await local.execute("SELECT FROM t WHERE id = 1 FOR UPDATE")
                await local.execute("UPDATE t SET v = %s WHERE id = 2", (attempt,))
                await remote.execute("UPDATE t SET v = %s WHERE id = 1", (attempt,))
                code: str | None = "00000"
                try:
                    await local.execute("COMMIT")
                except psycopg.Error as error:
                    code = error.sqlstate
                    if code == "08007":
                        assert "it is committed as GID" in str(error)
            heard[code] = heard.get(code, 0) + 1
            await assert_everywhere(herd, schema, 1, attempt)
            if code in ("08007", "00000"):
                await assert_everywhere(herd, schema, 2, attempt)
            else:
                async with connect(herd, "n1", schema) as reader:
                    assert await value(reader, 2) != attempt
            if "08007" in heard:
                break
    assert "08007" in heard, heard
    assert heard.keys() <= {"08007", "00000", "57014", "57P01", None}
    herd.must("verify")


async def test_a_user_s_advisory_lock_on_a_token_does_not_stop_the_node(
    herd: LocalHerd, schema: str
) -> None:
    with psycopg.connect(herd.dsn("n1"), autocommit=True) as admin:
        row = admin.execute(_NEWEST_TOKEN, (_TOKEN_OF_BATCH,)).fetchone()
    assert row is not None
    first = row[0]
    async with contextlib.AsyncExitStack() as stack:
        nodes = ("n1", "n1", "n1", "n1", "n2")
        hostile, *writers = [
            await stack.enter_async_context(connect(herd, node, schema)) for node in ("n1", *nodes)
        ]
        await hostile.execute(
            "SELECT count(pg_try_advisory_lock(%s + n)) FROM generate_series(1, 1000) n", (first,)
        )
        # A token is used up where a commit of the node waits for a batch of another's.
        with pytest.raises(psycopg.OperationalError):
            async with in_time():
                while True:
                    await asyncio.gather(*(add_one(c, row) for row, c in enumerate(writers, 1)))
                    await hostile.execute("SELECT 1")
        await add_one(writers[-1], 10)
        await assert_everywhere(herd, schema, 10, 1)
    herd.must("verify")


async def test_a_sidecar_that_starts_leaves_the_advisory_locks_of_applications_alone(
    herd: LocalHerd, schema: str
) -> None:
    dsn = psycopg.conninfo.make_conninfo(herd.dsn("n1"), dbname="postgres")
    elsewhere = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async with connect(herd, "n1", schema) as mine, elsewhere:
        for key in (-1, -(2**63), 2**62, _TOKEN_OF_XID - 1, 2**63 - 1):
            await mine.execute("SELECT pg_advisory_lock(%s)", (key,))
        await elsewhere.execute("SELECT pg_advisory_lock(%s)", (_TOKEN_OF_BATCH,))
        await asyncio.to_thread(herd.must, "kill", "n1", "--process", "sidecar")
        await asyncio.to_thread(herd.must, "start", "n1")
        await mine.execute("SELECT 1")
        await elsewhere.execute("SELECT 1")


@pytest.mark.parametrize(
    ("holder", "listed"),
    [("pgherd apply", False), ("pgherd repair", False), ("pgherd marker", True), ("psql", True)],
)
async def test_the_sidecar_s_own_writers_are_nobody_s_victims(
    herd: LocalHerd, holder: str, listed: bool
) -> None:
    dsn = herd.dsn("n1")
    connect_as = psycopg.AsyncConnection.connect
    async with (
        await connect_as(dsn, autocommit=True, application_name=holder) as holds,
        await connect_as(dsn, autocommit=True) as waits,
        await connect_as(dsn, autocommit=True) as admin,
    ):
        key, holds_pid = random.getrandbits(31), holds.info.backend_pid
        await holds.execute("SELECT pg_advisory_lock(%s)", (key,))
        waiting = asyncio.create_task(waits.execute("SELECT pg_advisory_lock(%s)", (key,)))
        async with in_time():
            found: tuple[Any, ...] = (None, None)
            while found[0] != "Lock":
                cursor = await admin.execute(
                    "SELECT wait_event_type,"
                    " (SELECT array_agg(b.pid) FROM pgherd.blockers(ARRAY[s.pid], '{0}') b)"
                    " FROM pg_stat_activity s WHERE s.pid = %s",
                    (waits.info.backend_pid,),
                )
                found = await cursor.fetchone() or found
        await holds.execute("SELECT pg_advisory_unlock_all()")
        await waiting
    assert found[1] == ([holds_pid] if listed else None)


@pytest.mark.long
async def test_hot_rows_never_stop_the_herd_nor_leave_an_outcome_unknown(
    herd: LocalHerd,
) -> None:
    ledger = new_ledger(herd, accounts=10)
    async with ledger.load(clients=8):
        await ledger.commits(2000)
    assert "08007" not in ledger.codes, ledger.codes
    ledger.check()
    ledger.drop()


async def test_h20_who_has_a_victim_s_process_id_but_not_its_transaction_is_spared(
    herd: LocalHerd, schema: str
) -> None:
    """Between the decision and its deed process ids may be given to others."""
    admin = herd.dsn("n1")
    async with connect(herd, "n1", schema) as other:
        await other.execute("BEGIN")
        await add_one(other, 1)
        cursor = await other.execute("SELECT pg_backend_pid(), pg_current_xact_id()::text::int8")
        pid, xid = await cursor.fetchone() or (0, 0)
        for harm in ("cancel", "terminate"):
            query(admin, f"SELECT pgherd.{harm}({pid}, '{xid - 1}'), pgherd.{harm}({pid}, '0')")
        await add_one(other, 2)
        query(admin, f"SELECT pgherd.terminate({pid}, '{xid}')")
        with pytest.raises(psycopg.OperationalError):
            await other.execute("COMMIT")


@pytest.mark.skipif(not NATIVE, reason="PGHERD_TEST_NATIVE is not set")
async def test_a_cancel_of_the_client_s_own_stays_one(herd: LocalHerd, schema: str) -> None:
    async with connect(herd, "n1", schema) as client:
        await client.execute("BEGIN; UPDATE t SET v = -1 WHERE id = 1")
        sleeping = asyncio.ensure_future(client.execute("SELECT pg_sleep(600)"))
        sleeps = (
            "SELECT count(*) FROM pg_stat_activity"
            f" WHERE pid = {client.info.backend_pid} AND wait_event = 'PgSleep'"
        )
        async with in_time():
            while query(herd.nodes()[0].dsn, sleeps) != [(1,)]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        await client.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            await sleeping
        await client.execute("ROLLBACK")


async def test_who_has_filled_the_table_of_locks_gives_way(herd: LocalHerd, schema: str) -> None:
    """Nothing can be applied without a lock; the database is as good as any."""
    before = complaints(herd)
    async with connect(herd, "n2", schema) as holder, connect(herd, "n1", schema) as writer:
        with pytest.raises(psycopg.errors.OutOfMemory):
            await holder.execute(
                "SELECT count(pg_advisory_lock(g)) FROM generate_series(1, 1000000) g"
            )
        await add_one(writer, 3)

        async def shown() -> int:
            async with connect(herd, "n2", schema) as reader:
                return await value(reader, 3)

        await wait_until_async(shown, lambda seen: seen == 1, despite=(psycopg.OperationalError,))
        with pytest.raises(psycopg.OperationalError):
            await holder.execute("SELECT 1")
    await assert_everywhere(herd, schema, 3, 1)
    assert complaints(herd) == before


@pytest.mark.long
async def test_nobody_gives_way_to_a_session_that_has_committed_since(
    herd: LocalHerd, schema: str
) -> None:
    """Its COMMIT took long. A wait in its next transaction is its own affair."""
    async with (
        connect(herd, "n1", schema) as far,
        connect(herd, "n2", schema) as patient,
        connect(herd, "n2", schema) as holder,
        contextlib.AsyncExitStack() as stack,
    ):
        await far.execute("CREATE TABLE other (id int PRIMARY KEY)")
        await asyncio.to_thread(settle, herd)
        for number in (101, 102, 103):  # the sidecar knows within half a second who has committed
            slow = [await stack.enter_async_context(connect(herd, "n2", schema)) for _ in range(8)]
            for row, one in enumerate(slow, 1):
                await one.execute(f"BEGIN; SELECT FROM t WHERE id = {row} FOR UPDATE")
            sleeping = asyncio.gather(
                *(one.execute("SELECT pg_sleep(600)") for one in slow), return_exceptions=True
            )
            await holder.execute("BEGIN; LOCK TABLE other IN EXCLUSIVE MODE")
            await far.execute("UPDATE t SET v = v + 1 WHERE id <= 4")  # n2 needs two seconds
            await asyncio.sleep(0.2)
            committing = asyncio.create_task(patient.execute(f"INSERT INTO t VALUES ({number}, 0)"))
            await asyncio.sleep(0.2)
            await far.execute("UPDATE t SET v = v + 1 WHERE id BETWEEN 5 AND 8")
            await committing
            waiting = asyncio.create_task(patient.execute(f"INSERT INTO other VALUES ({number})"))
            await asyncio.sleep(1)
            await holder.execute("ROLLBACK")
            await asyncio.gather(waiting, sleeping)


@pytest.mark.skipif(not NATIVE, reason="PGHERD_TEST_NATIVE is not set")
async def test_who_waits_within_a_cascade_hears_40001(herd: LocalHerd, schema: str) -> None:
    """Nothing is captured yet: a DELETE of a parent has only noted when its checks began."""
    async with (
        connect(herd, "n1", schema) as far,
        connect(herd, "n2", schema) as victim,
        connect(herd, "n2", schema) as holder,
    ):
        await far.execute("CREATE TABLE child (id int PRIMARY KEY REFERENCES t ON DELETE CASCADE)")
        await far.execute("INSERT INTO child VALUES (1)")
        await asyncio.to_thread(settle, herd)
        await holder.execute("BEGIN; SELECT FROM child FOR KEY SHARE")
        deleting = asyncio.create_task(victim.execute("DELETE FROM t WHERE id = 1"))
        await asyncio.sleep(0.2)
        await far.execute("UPDATE t SET v = 5 WHERE id = 1")
        with pytest.raises(psycopg.errors.SerializationFailure):
            await deleting
        await holder.execute("ROLLBACK")
        await victim.execute("DELETE FROM t WHERE id = 1")
