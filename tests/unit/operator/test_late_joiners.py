"""A member that joins between the operator's look and what is done about it keeps its disk.

Scaled up and down at once, a herd has a member that is no member yet, and is not wanted any more.
"""

import pytest
from operator_world import NAME, World, running
from pgherd_operator.objects import names

VOLUME = ("PersistentVolumeClaim", f"{NAME}-2-data")


async def about_to_join(**spec: object) -> World:
    """A herd of one, and a second member that has all but joined, and is not wanted any more."""
    world = await running(instances=1, **spec)
    world.joins_held = True
    world.change(instances=2)
    while 2 not in world.processes:
        await world.reconcile()
        world.tick()
    world.change(instances=1)
    world.writes.clear()
    return world


async def later(world: World, looks: int) -> None:
    """Let the member join between the look after so many and its write."""
    for _ in range(looks):
        await world.reconcile()
    world.meanwhile = world.let_in
    await world.reconcile()
    world.joins_held = False


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("looks", [0, 1])
async def test_who_joins_before_it_ends_leaves_the_view_as_others_do(
    looks: int, policy: str
) -> None:
    world = await about_to_join(storage={"onScaleDown": policy})
    await later(world, looks)
    await world.settle()
    assert world.voters() == {1}
    assert (VOLUME in world.objects) is (policy == "Retain")
    assert f"ask /view/leave {NAME}-2" in world.writes


async def test_a_joiner_without_whom_there_is_no_quorum_is_started_again() -> None:
    world = await about_to_join()
    await later(world, 1)
    world.tick()
    assert world.voters() == {1, 2} and not world.primary()
    await world.settle()
    assert world.voters() == {1}


async def test_a_volume_is_not_deleted_before_the_process_on_it_has_ended() -> None:
    world = await about_to_join()
    for _ in range(5):
        await world.reconcile()  # the pod takes its time
    volume = world.objects[VOLUME]["metadata"]
    assert volume["labels"][names.RETIRED] == "delete" and "deletionTimestamp" not in volume
    await world.settle()
    assert VOLUME not in world.objects


async def test_a_volume_is_not_deleted_while_the_proposer_is_silent() -> None:
    world = await about_to_join()
    world.change(instances=3)
    world.joins_held = False
    await world.settle()
    world.change(instances=4)
    world.joins_held = True
    while 4 not in world.processes:
        await world.reconcile()
        world.tick()
    world.change(instances=3)
    world.processes[1].silent = True  # it proposes, and may have let somebody in
    await world.settle()
    volume = world.objects["PersistentVolumeClaim", f"{NAME}-4-data"]["metadata"]
    assert "deletionTimestamp" not in volume
    world.processes[1].silent = False
    await world.settle()
    assert ("PersistentVolumeClaim", f"{NAME}-4-data") not in world.objects


async def test_a_volume_that_was_changed_since_the_look_is_not_deleted() -> None:
    world = await about_to_join()
    world.joins_held = False
    world.processes[2].broken = True
    while "deletionTimestamp" not in world.objects["Pod", f"{NAME}-2"]["metadata"]:
        await world.reconcile()
    world.tick()
    world.meanwhile = lambda: world.objects[VOLUME]["metadata"].update(resourceVersion="newer")
    await world.reconcile()
    assert "deletionTimestamp" not in world.objects[VOLUME]["metadata"]
