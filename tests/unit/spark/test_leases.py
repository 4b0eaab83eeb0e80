"""A job's hold on the members' snapshots: begun, renewed, lost, given back."""

import asyncio
from collections.abc import Iterable

import pytest
from patience import in_time
from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.answers import MarkerAnswer, SnapshotAnswer
from pgherd_spark.reading.leases import LeaseError, Member, hold_marker


class Admin:
    """A member that holds one marker until it is told to lose it."""

    def __init__(self, gid: int = 8) -> None:
        self.gid = gid
        self.leases = 0
        self.asked_s: list[float] = []
        self.renewed = asyncio.Event()
        self.lost = False
        self.dropped = False

    async def order_marker(self, names: Iterable[str]) -> MarkerAnswer:
        return MarkerAnswer(id="m", gid=self.gid)

    async def wait_marker(self, marker: str, timeout_s: float) -> None:
        assert (marker, timeout_s) == ("m", 5)

    async def lease_marker(self, marker: str, lease_s: float) -> SnapshotAnswer:
        if self.lost:
            raise AdminError("no snapshot for marker m")
        self.leases += 1
        self.asked_s.append(lease_s)
        if self.leases > 1:
            self.renewed.set()
        return SnapshotAnswer(gid=self.gid, snapshot="00000003-1", visible="10:12:11")

    async def drop_marker(self, marker: str) -> None:
        self.dropped = True


def members(*admins: Admin) -> dict[str, Member]:
    return {
        f"n{number}": Member(f"n{number}", admin, f"port={number}")  # type: ignore[arg-type]
        for number, admin in enumerate(admins, 1)
    }


async def test_leases_are_renewed_while_the_job_lives_and_given_back_at_its_end() -> None:
    first, second = Admin(), Admin()
    async with hold_marker(
        members(first, second), lease_s=0.03, timeout_s=5, on_lost=pytest.fail
    ) as lease:
        assert [one.member for one in lease.sources] == ["n1", "n2"]
        assert all("search_path=pg_catalog" in one.conninfo for one in lease.sources)
        async with in_time():
            await second.renewed.wait()
        assert not first.dropped
    assert (first.dropped, second.dropped, lease.lost) == (True, True, None)


async def test_a_job_whose_snapshot_a_member_has_lost_is_told() -> None:
    first, second = Admin(), Admin()
    told = asyncio.Event()
    async with hold_marker(
        members(first, second), lease_s=0.03, timeout_s=5, on_lost=told.set
    ) as lease:
        second.lost = True
        async with in_time():
            await told.wait()
    assert lease.lost == "n2: no snapshot for marker m"


async def test_snapshots_at_different_positions_are_refused_and_given_back() -> None:
    first, second = Admin(8), Admin(9)
    with pytest.raises(LeaseError, match="at different positions"):
        async with hold_marker(
            members(first, second), lease_s=60, timeout_s=5, on_lost=pytest.fail
        ):
            pytest.fail("the job must not begin")
    assert first.dropped and second.dropped


async def test_a_job_that_can_be_begun_again_leaves_its_leases_to_end_by_themselves() -> None:
    first = Admin()
    with pytest.raises(RuntimeError, match="disk full"):
        async with hold_marker(
            members(first), lease_s=60, timeout_s=5, on_lost=pytest.fail, keep=True
        ):
            raise RuntimeError("disk full")
    assert not first.dropped


async def test_a_member_that_is_there_early_holds_its_snapshot_until_the_last_may_come() -> None:
    first = Admin()
    async with hold_marker(members(first), lease_s=3, timeout_s=5, on_lost=pytest.fail):
        assert first.asked_s[0] == 5 + 3
