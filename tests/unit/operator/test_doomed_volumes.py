"""Volume claims that are deleted, or lost from sight, under running members: nobody goes before
somebody else has a copy. That the herd never shrinks below what is wanted is checked by the world.
"""

import pytest
from operator_world import NAME, running

CLAIMS = [("PersistentVolumeClaim", f"{NAME}-{number}-data") for number in (1, 2, 3)]


@pytest.mark.parametrize("deleted", [1, 2, 3])
async def test_members_whose_claims_are_deleted_stay_until_others_have_a_copy(deleted: int) -> None:
    world = await running()
    for claim in CLAIMS[:deleted]:
        world.mark_deleted(claim)
    await world.settle()
    assert world.voters() == set(range(deleted + 1, deleted + 4))
    assert not [key for key in CLAIMS[:deleted] if key in world.objects]


async def test_claims_that_lost_their_label_do_not_shrink_the_herd() -> None:
    world = await running()
    for claim in CLAIMS:
        world.objects[claim]["metadata"]["labels"].pop("pgherd.dev/cluster")
    await world.settle()
    assert world.voters() == {4, 5, 6}
    assert all(claim in world.objects for claim in CLAIMS)


@pytest.mark.parametrize("deleted", [1, 3])
async def test_hibernation_stops_no_pod_that_keeps_its_volume(deleted: int) -> None:
    world = await running()
    for claim in CLAIMS[:deleted]:
        world.mark_deleted(claim)
    await world.changed(hibernated=True)
    assert [name for kind, name in world.objects if kind == "Pod"] == [
        f"{NAME}-{number}" for number in range(1, deleted + 1)
    ]
    assert all(claim in world.objects for claim in CLAIMS)
    assert "not stopping" in world.resource["status"]["step"]
    await world.changed(hibernated=False)
    assert len(world.voters()) == 3
    assert world.view is not None and all(world.works(one.number) for one in world.view.voters)


async def test_a_herd_with_a_deleted_claim_shrinks_by_that_member() -> None:
    world = await running()
    world.mark_deleted(CLAIMS[0])
    await world.changed(instances=2)
    assert world.voters() == {2, 3}


async def test_where_no_member_more_can_come_one_without_a_claim_stays_until_its_pod_goes() -> None:
    world = await running()
    world.quota = 3
    world.mark_deleted(CLAIMS[0])
    for _ in range(20):
        await world.reconcile()
        world.tick()
    assert world.voters() == {1, 2, 3} and world.works(1)
    world.mark_deleted(("Pod", f"{NAME}-1"))
    await world.settle()
    assert world.voters() == {2, 3, 4}
