"""Volumes of another herd under the name of this one (restored, say): they take a number only."""

import copy
from typing import Any

import pytest
from operator_world import NAME, World, running
from pgherd_operator.objects import names

KIND = "PersistentVolumeClaim"
FOREIGN = (KIND, f"{NAME}-4-data")


async def with_foreign(**spec: Any) -> World:
    """A herd of three that has come up, and then the volume of a fourth member of another."""
    world = await running(**spec)
    volume = copy.deepcopy(world.objects[KIND, f"{NAME}-1-data"])
    volume["metadata"] |= {"name": FOREIGN[1], "uid": "restored"}
    volume["metadata"]["labels"] |= {names.MEMBER: "4", names.CLUSTER_ID: "another-herd"}
    world.objects[FOREIGN] = volume
    return world


async def test_a_foreign_volume_is_told_of_and_left_alone() -> None:
    world = await with_foreign(storage={"size": "1Gi"})
    world.change(storage={"size": "2Gi"})
    before = copy.deepcopy(world.objects[FOREIGN])
    await world.settle()
    assert world.objects[FOREIGN] == before
    assert ("Pod", f"{NAME}-4") not in world.objects
    assert "another-herd" in world.resource["status"]["step"]
    truths = {c["type"]: (c["status"], c["reason"]) for c in world.resource["status"]["conditions"]}
    assert truths["Ready"][0] == "True"
    assert truths["Progressing"] == ("False", "ForeignVolumes")
    assert [e.kind for e in world.events if e.reason == "ForeignVolumes"] == ["Warning"]


async def test_a_foreign_volume_takes_its_number() -> None:
    world = await with_foreign()
    await world.changed(instances=4)
    assert world.voters() == {1, 2, 3, 5}


async def deleted(world: World, *, ledger: bool) -> None:
    """Delete the resource; a foreground deletion takes the ledger before us."""
    if not ledger:
        del world.objects["ConfigMap", names.ledger(NAME)]
    await world.removed(ticking=True)


@pytest.mark.parametrize("ledger", [True, False])
async def test_a_foreign_volume_outlives_a_herd_that_is_deleted_with_its_data(ledger: bool) -> None:
    world = await with_foreign(deletionPolicy="Delete")
    await deleted(world, ledger=ledger)
    assert FOREIGN in world.objects
    assert (KIND, f"{NAME}-1-data") not in world.objects


async def test_a_foreign_volume_alone_is_not_taken_for_the_herd_s_own() -> None:
    world = await with_foreign(deletionPolicy="Delete")
    for number in (1, 2, 3):
        del world.objects[KIND, f"{NAME}-{number}-data"]
    await deleted(world, ledger=False)
    assert FOREIGN in world.objects
    told = [event for event in world.events if FOREIGN[1] in event.message]
    assert [(event.reason, event.kind) for event in told] == [("Deleting", "Warning")]


async def test_a_herd_that_never_told_its_id_is_deleted_with_its_data() -> None:
    world = await with_foreign(deletionPolicy="Delete")
    del world.resource["status"]
    await deleted(world, ledger=False)
    assert [name for kind, name in world.objects if kind == KIND] == [FOREIGN[1]]


async def test_a_herd_is_not_founded_beside_a_foreign_volume_in_its_place() -> None:
    world = await with_foreign()
    foreign = copy.deepcopy(world.objects[FOREIGN])
    world = World()
    world.submit()
    while ("ConfigMap", names.ledger(NAME)) not in world.objects:
        await world.reconcile()
    foreign["metadata"]["name"] = f"{NAME}-1-data"
    foreign["metadata"]["labels"][names.MEMBER] = "1"
    world.objects = {(KIND, f"{NAME}-1-data"): foreign, **world.objects}
    await world.settle()
    assert [key for key in world.objects if key[0] in (KIND, "Pod")] == [(KIND, f"{NAME}-1-data")]
    assert "another-herd" in world.resource["status"]["step"]
    del world.objects[KIND, f"{NAME}-1-data"]
    await world.settle()
    assert world.voters() == {1, 2, 3}
