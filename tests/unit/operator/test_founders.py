"""A founder founds until it is a member, and never again: not even on a volume that is empty."""

import contextlib
import json
from typing import Any

import pytest
from operator_api_server import Fault, Killed
from operator_world import NAME, World, running
from pgherd_operator.core.actions import Reason
from pgherd_operator.objects import names


async def founded() -> World:
    """A herd of three that has come up."""
    world = await running()
    return world


def origins(world: World) -> list[str]:
    """What the members' files say about an empty volume."""
    files = [world.objects["ConfigMap", f"{NAME}-{n}"]["data"] for n in (1, 2, 3)]
    founders = [json.loads(one["node.json"])["founder"] for one in files]
    assert founders == [one["origin"] == "initdb\n" for one in files]
    return [one["origin"].strip() for one in files]


async def test_members_found_no_more_and_are_not_restarted_for_it() -> None:
    world = await founded()
    assert origins(world) == ["copy"] * 3
    assert not [write for write in world.writes if write.startswith("delete")]


async def test_what_a_herd_begins_with_is_made_once_and_the_others_copy_it() -> None:
    world = World()
    world.submit(
        bootstrap={
            "importFrom": {"dsn": {"name": "old", "key": "uri"}},
            "sql": ["CREATE TABLE t (k int) -- a", "SELECT 1"],
        }
    )
    while ("ConfigMap", f"{NAME}-1") not in world.objects:
        await world.reconcile()
    files = world.objects["ConfigMap", f"{NAME}-1"]["data"]
    assert (files["origin"], files["source"]) == ("import\n", "old uri\n")
    assert files["bootstrap.sql"] == "CREATE TABLE t (k int) -- a\n;\nSELECT 1\n;\n"
    await world.settle()
    assert world.voters() == {1, 2, 3}
    created = [write for write in world.writes if write.startswith("create PersistentVolumeClaim")]
    assert created == [f"create PersistentVolumeClaim {NAME}-{n}-data" for n in (1, 2, 3)]
    assert origins(world) == ["copy"] * 3
    assert not {"bootstrap.sql", "source"} & set(world.objects["ConfigMap", f"{NAME}-1"]["data"])
    assert not [write for write in world.writes if write.startswith("delete")]


async def test_who_is_not_a_member_yet_may_still_found() -> None:
    world = World()
    world.submit()
    while world.view is None:
        await world.reconcile()
        world.tick()
    world.dead_nodes = {3}
    world.processes.pop(3)
    await world.settle()
    assert origins(world) == ["copy", "copy", "initdb"]
    world.dead_nodes.clear()
    await world.settle()
    assert origins(world) == ["copy"] * 3


async def never_begun(**spec: Any) -> World:
    """A herd whose youngest founder does not come up, so that it does not begin."""
    world = World()
    world.submit(**spec)
    world.unscheduled = {spec["instances"]}
    await world.settle()
    assert world.view is None
    return world


def lose(world: World, number: int) -> None:
    """What a user does about a member that does not come up: he deletes its claim and its pod."""
    world.objects.pop(("PersistentVolumeClaim", f"{NAME}-{number}-data"))
    world.objects.pop(("Pod", f"{NAME}-{number}"))
    world.unscheduled.clear()


@pytest.mark.parametrize("instances", [3, 4, 5])
async def test_a_founder_that_never_came_up_is_replaced(instances: int) -> None:
    world = await never_begun(instances=instances)
    lose(world, instances)
    await world.settle()
    assert world.voters() == set(range(1, instances + 1))
    assert world.founded_with == instances - 1


@pytest.mark.parametrize("instances", [3, 4, 5])
async def test_a_herd_that_has_not_begun_begins_with_fewer_members(instances: int) -> None:
    world = await never_begun(instances=instances)
    await world.changed(instances=instances - 1)
    assert world.voters() == set(range(1, instances))
    assert ("PersistentVolumeClaim", f"{NAME}-{instances}-data") not in world.objects


@pytest.mark.parametrize("kind", ["error", "lost-answer", "killed-before", "killed-after"])
@pytest.mark.parametrize("write", range(6))
async def test_a_founder_is_given_up_in_spite_of_a_fault(write: int, kind: Fault) -> None:
    world = await never_begun(instances=3)
    world.change(instances=2)
    world.fault = (write, kind)
    with contextlib.suppress(Killed):
        await world.settle()
    await world.settle()
    assert world.fault is None
    assert world.voters() == {1, 2}


async def test_a_founder_without_a_disk_is_given_up_by_the_only_other_one() -> None:
    world = await never_begun(instances=2)
    world.objects["PersistentVolumeClaim", f"{NAME}-2-data"]["status"] = {"phase": "Pending"}
    await world.changed(instances=1)
    assert world.voters() == {1}


async def test_no_founder_is_given_up_who_may_have_founded_with_others() -> None:
    world = await never_begun(instances=3)
    world.processes[2].silent = True
    lose(world, 3)
    await world.settle()
    assert world.objects["ConfigMap", f"{NAME}-herd"]["data"]["founders"].count(":") == 3


async def test_nobody_founds_on_volumes_that_have_all_come_back_empty() -> None:
    world = await founded()
    for number in (1, 2, 3):
        world.empty(number)
        world.objects.pop(("Pod", f"{NAME}-{number}"))
    world.processes.clear()
    await world.settle()
    assert origins(world) == ["copy"] * 3
    assert not any(process.founder for process in world.processes.values())
    volumes = [world.objects["PersistentVolumeClaim", f"{NAME}-{n}-data"] for n in (1, 2, 3)]
    assert not any("deletionTimestamp" in one["metadata"] for one in volumes)


async def test_a_member_whose_volume_has_come_back_empty_is_given_up_and_joins_anew() -> None:
    world = await founded()
    before = names.volume(NAME, 2)
    uid = world.objects["PersistentVolumeClaim", before]["metadata"]["uid"]
    world.empty(2)
    world.processes.pop(2)
    await world.settle()
    assert world.voters() == {1, 2, 3}
    assert world.objects["PersistentVolumeClaim", before]["metadata"]["uid"] == uid
    assert Reason.MEMBER_LOST in {event.reason for event in world.events}
    assert f"ask /view/evict {NAME}-2" in world.writes
