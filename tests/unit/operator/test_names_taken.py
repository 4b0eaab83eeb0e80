"""What others have under the names of a herd's objects is never changed and never deleted; it is
told of, and the rest of the herd goes on."""

import copy

import pytest
from operator_world import NAME, World, condition, running
from pgherd_operator.core.observed import Key
from pgherd_operator.objects import names
from strangers import SHARED, are_untouched, of_member, present, settle_in, stranger

VOLUME = ("PersistentVolumeClaim", f"{NAME}-4-data")


@pytest.mark.parametrize("key", [*SHARED, *of_member(2)])
async def test_nothing_that_was_there_before_is_changed_or_deleted(key: Key) -> None:
    world = World()
    world.submit(deletionPolicy="Delete")
    settle_in(world, key)
    await world.settle()
    assert are_untouched(world)
    assert condition(world, "Progressing")["reason"] == "NameTaken"
    assert " ".join(key) in condition(world, "Progressing")["message"]
    assert [event.kind for event in world.events if event.reason == "NameTaken"] == ["Warning"]
    await world.removed(ticking=True)
    world.tick()
    assert list(world.objects) == [key]
    assert are_untouched(world)


@pytest.mark.parametrize("key", SHARED[:5])
async def test_the_members_work_without_what_is_taken(key: Key) -> None:
    world = World()
    world.submit()
    settle_in(world, key)
    await world.settle()
    assert all(world.works(number) for number in (1, 2, 3))
    assert condition(world, "Ready")["status"] == "True"
    del world.objects[key]
    await world.settle()
    assert condition(world, "Progressing")["reason"] == "AsWanted"


@pytest.mark.parametrize("key", of_member(4)[1:])
async def test_a_member_whose_names_are_taken_does_not_start_and_the_others_go_on(key: Key) -> None:
    world = await running()
    settle_in(world, key)
    await world.changed(instances=4)
    assert are_untouched(world)
    by_volume = key == VOLUME  # then another number is free
    assert world.voters() == ({1, 2, 3, 5} if by_volume else {1, 2, 3})
    del world.objects["Pod", f"{NAME}-2"]
    world.processes.pop(2)
    await world.settle()
    assert world.works(2)


async def test_a_pod_of_somebody_else_is_left_alone_and_told_of() -> None:
    world = await running()
    key = ("Pod", f"{NAME}-4")
    world.change(instances=4)
    settle_in(world, key)
    for _ in range(4):
        await world.reconcile()
    assert are_untouched(world) and present(world) == [key]
    assert f"Pod {NAME}-4" in world.resource["status"]["step"]


async def test_the_label_of_the_herd_alone_makes_nothing_ours() -> None:
    world = World()
    world.submit()
    key = ("ServiceAccount", NAME)
    theirs = stranger(key, **{names.CLUSTER: NAME})
    world.objects[key] = copy.deepcopy(theirs)
    await world.settle()
    assert world.objects[key] == theirs


async def test_an_object_of_ours_that_lost_its_label_gets_it_back() -> None:
    world = await running()
    labels = world.objects["Service", f"{NAME}-rw"]["metadata"]["labels"]
    wanted = dict(labels)
    labels.clear()
    await world.settle()
    assert world.objects["Service", f"{NAME}-rw"]["metadata"]["labels"] == wanted
    assert condition(world, "Progressing")["reason"] == "AsWanted"


@pytest.mark.parametrize("key", [("Service", f"{NAME}-rw"), ("ConfigMap", f"{NAME}-2")])
async def test_who_takes_a_name_between_look_and_write_keeps_it(key: Key) -> None:
    world = await running()
    del world.objects[key]
    world.meanwhile = lambda: settle_in(world, key)
    await world.settle()
    assert world.meanwhile is None
    assert present(world) == [key] and are_untouched(world)


async def test_what_is_replaced_between_look_and_write_is_left_alone() -> None:
    world = await running()
    key = ("Service", f"{NAME}-rw")
    world.objects[key]["spec"]["selector"] = {}
    world.meanwhile = lambda: world.objects.update({key: stranger(key)})
    await world.settle()
    assert are_untouched(world)


async def test_while_all_is_well_nothing_but_secrets_is_looked_at_by_its_name() -> None:
    world = await running(witnesses=1)
    world.calls.clear()
    await world.reconcile()
    assert {kind for verb, kind in world.calls if verb == "get"} == {"ReplicatedCluster", "Secret"}


async def test_what_an_earlier_herd_has_left_is_waited_for_and_not_told_of() -> None:
    world = await running()
    services = [key for key in world.objects if key[0] == "Service"]
    former = {key: copy.deepcopy(world.objects[key]) for key in services}
    await world.removed()
    world.tick()
    world.objects = {**world.objects, **former}  # garbage collection takes its time
    world.submit()
    await world.settle()
    assert former.items() <= world.objects.items()
    assert "an earlier herd" in world.resource["status"]["step"]
    assert not [event for event in world.events if event.reason == "NameTaken"]
    for key in former:
        del world.objects[key]
    await world.settle()
    assert condition(world, "Ready")["status"] == "True"
