"""A founder founds until it is a member, and never again: not even on a volume that is empty."""

import json

from operator_world import NAME, World
from pgherd_operator.core.actions import Reason
from pgherd_operator.objects import names


async def founded() -> World:
    """A herd of three that has come up."""
    world = World()
    world.submit()
    await world.settle()
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
            "importFrom": {"dsn": {"name": "source"}},
            "sql": ["CREATE TABLE t (k int) -- a", "SELECT 1"],
        }
    )
    while ("ConfigMap", f"{NAME}-1") not in world.objects:
        await world.reconcile()
    files = world.objects["ConfigMap", f"{NAME}-1"]["data"]
    assert files["origin"] == "import\n"
    assert files["bootstrap.sql"] == "CREATE TABLE t (k int) -- a\n;\nSELECT 1\n;\n"
    await world.settle()
    assert world.voters() == {1, 2, 3}
    created = [write for write in world.writes if write.startswith("create PersistentVolumeClaim")]
    assert created == [f"create PersistentVolumeClaim {NAME}-{n}-data" for n in (1, 2, 3)]
    assert origins(world) == ["copy"] * 3
    assert "bootstrap.sql" not in world.objects["ConfigMap", f"{NAME}-1"]["data"]
    assert not [write for write in world.writes if write.startswith("delete")]


async def test_who_is_not_a_member_yet_may_still_found() -> None:
    world = World()
    world.submit()
    while world.view is None:
        world.dead_nodes = {3}
        await world.reconcile()
        world.tick()
    await world.settle()
    assert origins(world) == ["copy", "copy", "initdb"]
    world.dead_nodes.clear()
    await world.settle()
    assert origins(world) == ["copy"] * 3


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
