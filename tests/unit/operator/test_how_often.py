"""How often a herd is looked at: seldom, when nothing but a human can change what is waited for."""

import copy
from collections.abc import Callable

import pytest
from operator_world import NAME, World, running
from pgherd_operator.objects import names
from pgherd_operator.shell import controller
from strangers import settle_in


def is_paused(world: World) -> None:
    """In the middle of a change."""
    world.change(maintenance={"paused": True}, instances=4)


def lacks_a_name(world: World) -> None:
    """Somebody else has it."""
    del world.objects["Service", f"{NAME}-rw"]
    settle_in(world, ("Service", f"{NAME}-rw"))


def has_a_foreign_volume(world: World) -> None:
    """Restored, say."""
    volume = copy.deepcopy(world.objects["PersistentVolumeClaim", f"{NAME}-1-data"])
    volume["metadata"] |= {"name": f"{NAME}-4-data", "uid": "restored"}
    volume["metadata"]["labels"] |= {names.MEMBER: "4", names.CLUSTER_ID: "another-herd"}
    world.objects["PersistentVolumeClaim", f"{NAME}-4-data"] = volume


@pytest.mark.parametrize("becomes", [is_paused, lacks_a_name, has_a_foreign_volume])
async def test_what_a_human_has_to_end_is_looked_at_seldom(
    becomes: Callable[[World], None],
) -> None:
    world = await running()
    becomes(world)
    await world.settle()
    assert await world.reconcile() == controller._SETTLED_S
    assert world.resource["status"]["step"]


@pytest.mark.parametrize("becomes", [lacks_a_name, has_a_foreign_volume])
async def test_a_member_that_is_waited_for_is_looked_at_often_all_the_same(
    becomes: Callable[[World], None],
) -> None:
    world = await running()
    becomes(world)
    await world.settle()
    world.processes[2].silent = True
    assert await world.reconcile() == controller._WAITING_S
