"""Larger volumes are asked for and told of; nobody waits for them."""

from operator_world import NAME, condition, running
from pgherd_operator.shell.kube.interface import ApiError


async def test_volumes_grow_without_a_restart() -> None:
    world = await running(storage={"size": "1Gi"})
    world.writes.clear()
    await world.changed(storage={"size": "2Gi"})
    asked = [f"patch PersistentVolumeClaim {NAME}-{n}-data" for n in (1, 2, 3)]
    assert world.writes == [f"patch ConfigMap {NAME}-herd", *asked]  # the spec is kept there
    # The API server has the wish; others do it, and say how far they are.
    waits = {"type": "FileSystemResizePending", "status": "True", "message": "on its node"}
    status = {"capacity": {"storage": "1Gi"}, "conditions": [waits]}
    claims = [world.objects["PersistentVolumeClaim", f"{NAME}-{n}-data"] for n in (1, 2, 3)]
    for claim in claims:
        claim["status"] = status
    claims[1]["status"] = {"capacity": {"storage": "2048Mi"}}
    await world.reconcile()
    found = condition(world, "VolumesSized")
    assert (found["status"], found["reason"]) == ("False", "VolumeGrowing")
    behind = "has 1Gi of 2Gi (FileSystemResizePending: on its node)"
    assert found["message"] == f"{NAME}-1-data {behind}, {NAME}-3-data {behind}"
    for claim in claims:
        claim["status"] = claims[1]["status"]
    await world.reconcile()
    assert condition(world, "VolumesSized")["status"] == "True"
    assert condition(world, "Ready")["status"] == "True"


async def test_the_volumes_of_a_herd_that_sleeps_grow() -> None:
    # There are classes whose volumes grow while no pod uses them, and never else.
    world = await running(storage={"size": "1Gi"})
    await world.changed(hibernated=True)
    await world.changed(hibernated=True, storage={"size": "2Gi"})
    for number in (1, 2, 3):
        claim = world.objects["PersistentVolumeClaim", f"{NAME}-{number}-data"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert condition(world, "VolumesSized")["status"] == "True"
    assert condition(world, "Ready")["reason"] == "Hibernated"


async def test_nothing_waits_for_volumes_that_cannot_grow() -> None:
    world = await running()
    world.volumes_grow = False
    world.change(storage={"size": "99Gi"}, instances=4)
    del world.objects["Pod", f"{NAME}-2"]
    world.processes.pop(2)
    for _ in range(20):
        await world.reconcile()
        world.tick()
    assert world.voters() == {1, 2, 3, 4}
    assert condition(world, "Ready")["status"] == "True"
    assert condition(world, "Progressing")["reason"] == "VolumeGrowing"
    assert "must support resize" in world.resource["status"]["step"]
    found = condition(world, "VolumesSized")
    assert (found["status"], found["reason"]) == ("False", "VolumeGrowthRefused")
    assert "must support resize" in found["message"]
    told = [event.message for event in world.events if event.reason == "VolumeGrowthRefused"]
    assert told == [found["message"]]
    world.volumes_grow = True
    await world.settle()
    assert condition(world, "VolumesSized")["status"] == "True"


async def test_an_error_that_passes_is_told_of_as_a_refusal_until_the_next_look() -> None:
    world = await running(storage={"size": "1Gi"})
    world.change(storage={"size": "2Gi"})
    world.refused = {"patch PersistentVolumeClaim": ApiError(503, "apiserver is shutting down")}
    await world.reconcile()
    found = condition(world, "VolumesSized")
    assert (found["status"], found["reason"]) == ("False", "VolumeGrowthRefused")
    assert "shutting down" in found["message"]
    world.refused.clear()
    await world.settle()
    assert condition(world, "VolumesSized")["status"] == "True"


async def test_another_class_is_that_of_volumes_made_from_then_on() -> None:
    world = await running(storage={"className": "old"})
    await world.changed(storage={"className": "new"})
    found = condition(world, "VolumesSized")
    assert (found["status"], found["reason"]) == ("False", "VolumeOfAnotherClass")
    assert f"{NAME}-2-data is of class old, not new" in found["message"]
    assert condition(world, "Ready")["status"] == "True"
    for number in (1, 2, 3):
        for key in [
            ("PersistentVolumeClaim", f"{NAME}-{number}-data"),
            ("Pod", f"{NAME}-{number}"),
        ]:
            world.mark_deleted(key)
        await world.settle()
    claims = [item for (kind, _), item in world.objects.items() if kind == "PersistentVolumeClaim"]
    assert [item["spec"]["storageClassName"] for item in claims] == ["new"] * 3
    assert condition(world, "VolumesSized")["status"] == "True"
