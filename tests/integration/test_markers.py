"""Markers: snapshots at one GID on every node, lent for a bounded time, in a bounded number."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg
import pytest
from patience import wait_until
from pgherd_sidecar.agent.snapshots.markers import HELD_MAX
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import MarkerAnswer, SnapshotAnswer
from pgherd_sidecar.local import herd as herds
from pgherd_spark.reading.owners import InUseError, owning
from psycopg import sql

from .ledger import INITIAL, Ledger
from .localherd import LocalHerd, query
from .sparkherd import members_of

_STUCK_S = 60.0
_HOLDERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgherd marker'"


@pytest.fixture
def clients(herd: LocalHerd) -> dict[str, AdminClient]:
    """By the superuser's way to each node."""
    description = herds.load(herd.directory.resolve())
    return {
        description.dsn(member): AdminClient(description.node(member).admin_socket)
        for member in description.members
    }


@contextlib.asynccontextmanager
async def marker_on(clients: dict[str, AdminClient]) -> AsyncIterator[MarkerAnswer]:
    """A marker whose snapshot all nodes hold; given back at the end."""
    marker = await next(iter(clients.values())).order_marker()
    try:
        for client in clients.values():
            await client.wait_marker(marker.id, _STUCK_S)
        yield marker
    finally:
        for client in clients.values():
            await client.drop_marker(marker.id)


async def seen(dsn: str, exported: SnapshotAnswer, ledger: Ledger) -> tuple[int, int, int]:
    """Last GID, sum of the balances and number of transfers in an exported snapshot."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(
            sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported.snapshot))
        )
        cursor = await connection.execute("SELECT pg_current_snapshot()::text")
        assert await cursor.fetchone() == (exported.visible,)
        cursor = await connection.execute(
            sql.SQL(
                "SELECT pgherd.last_gid(), (SELECT sum(balance) FROM {0}.account)::int8,"
                " (SELECT count(*) FROM {0}.ledger)"
            ).format(sql.Identifier(ledger.schema))
        )
        row = await cursor.fetchone()
        assert row is not None
        return row


def wait_until_no_holder_is_left(dsn: str) -> None:
    wait_until(
        lambda: query(dsn, _HOLDERS),
        lambda seen: seen == [(0,)],
        told=lambda: "the snapshot is still held",
    )


async def test_exported_snapshots_show_the_same_moment_on_every_node_under_load(
    clients: dict[str, AdminClient], ledger: Ledger
) -> None:
    async with ledger.load(clients=2):
        await ledger.commits(50)
        async with marker_on(clients) as marker:
            leases = {dsn: await one.lease_marker(marker.id, 60) for dsn, one in clients.items()}
            await ledger.commits(50)  # the nodes go on meanwhile
            rows = [await seen(dsn, lease, ledger) for dsn, lease in leases.items()]
    assert {lease.gid for lease in leases.values()} == {marker.gid}
    assert len(set(rows)) == 1
    last_gid, balance, transfers = rows[0]
    assert last_gid < marker.gid
    assert balance == INITIAL * ledger.accounts
    assert 50 <= transfers < len(ledger.told_committed)
    ledger.check()


async def test_a_snapshot_is_given_up_when_its_lease_is_not_renewed(
    clients: dict[str, AdminClient],
) -> None:
    dsn, client = next(iter(clients.items()))
    async with marker_on(clients) as marker:
        await client.lease_marker(marker.id, 1)
        await asyncio.to_thread(wait_until_no_holder_is_left, dsn)
        with pytest.raises(AdminError, match="no snapshot for marker"):
            await client.lease_marker(marker.id, 1)


async def test_a_lease_can_be_renewed_as_long_as_the_snapshot_s_session_lives(
    clients: dict[str, AdminClient],
) -> None:
    dsn, client = next(iter(clients.items()))
    async with marker_on(clients) as marker:
        first = await client.lease_marker(marker.id, 60)
        assert await client.lease_marker(marker.id, 60) == first
        query(
            dsn,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgherd marker'",
        )
        with pytest.raises(AdminError, match="is lost"):
            await client.lease_marker(marker.id, 60)


async def test_a_node_holds_a_bounded_number_of_snapshots(
    clients: dict[str, AdminClient],
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(AdminError, match=f"holds {HELD_MAX} snapshots for others already"):
            for _ in range(HELD_MAX + 1):  # fewer where another test's job has left some
                await stack.enter_async_context(marker_on(clients))
    async with marker_on(clients):
        pass


async def test_a_member_that_a_job_does_not_read_holds_nothing_for_it(
    clients: dict[str, AdminClient], herd: LocalHerd
) -> None:
    read = members_of(herd)["n1"].admin
    marker = await read.order_marker(["n1"])
    await read.wait_marker(marker.id, _STUCK_S)
    async with marker_on(clients):  # when all have this one, the turn of the other has come
        held = {name: query(herd.app_dsn(name), _HOLDERS) for name in ("n1", "n2", "n3")}
    await read.drop_marker(marker.id)
    assert held == {"n1": [(2,)], "n2": [(1,)], "n3": [(1,)]}


async def test_a_marker_is_one_job_s_until_that_job_s_session_ends(herd: LocalHerd) -> None:
    members = members_of(herd)
    async with owning(members, "m"), owning(members, "another"):
        with pytest.raises(InUseError, match="says n2"):
            async with owning({"n2": members["n2"]}, "m"):
                pytest.fail("two jobs have the same marker")
    async with owning(members, "m"):
        pass
