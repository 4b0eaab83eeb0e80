"""A spec that passed the API server (an older CRD, say) and cannot be used."""

from operator_world import NAME, World, running
from pgherd_operator.core.actions import Reason


async def with_invalid_spec() -> World:
    """A herd that was well before."""
    world = await running(deletionPolicy="Delete")
    world.change(postgres={"version": "none"})
    return world


async def test_a_herd_with_an_invalid_spec_is_not_ready_and_says_why() -> None:
    world = await with_invalid_spec()
    writes = list(world.writes)
    for _ in range(3):
        await world.reconcile()
    assert world.writes == writes
    status = world.resource["status"]
    (ready,) = [one for one in status["conditions"] if one["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert ready["observedGeneration"] == status["observedGeneration"] == 2
    assert status["membersReady"] == "3/3"
    told = [event for event in world.events if event.reason is Reason.INVALID_SPEC]
    assert [event.kind for event in told] == ["Warning"]


async def test_a_herd_with_an_invalid_spec_can_be_deleted_and_keeps_its_volumes() -> None:
    world = await with_invalid_spec()
    world.remove_resource()
    await world.reconcile()
    assert ("ReplicatedCluster", NAME) not in world.objects
    for number in (1, 2, 3):
        volume = world.objects["PersistentVolumeClaim", f"{NAME}-{number}-data"]
        assert "deletionTimestamp" not in volume["metadata"]
