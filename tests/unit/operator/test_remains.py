"""What a member that has left for good leaves behind is removed; but its volume if that is kept."""

from datetime import timedelta
from typing import Any

import pytest
from operator_world import NAME, World, condition, running
from pgherd_operator.objects import names
from strangers import are_untouched, present, settle_in

ISSUER = {"mode": "CertManager", "issuer": {"name": "ours"}}


def belongings(world: World, number: int) -> set[str]:
    """Kinds of what there is of a member."""
    name = names.member(NAME, number)
    own = (name, f"{name}-tls", f"{name}-data")
    return {kind for kind, found in world.objects if found in own}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("tls", [{}, ISSUER])
async def test_what_a_member_had_goes_when_it_has_left(tls: dict[str, Any], kept: bool) -> None:
    storage = {"onScaleDown": "Retain" if kept else "Delete"}
    world = await running(tls=tls, storage=storage)
    await world.changed(instances=2)
    assert belongings(world, 3) == ({"PersistentVolumeClaim"} if kept else set())
    assert {"ConfigMap", "Pod", "Secret", "Service"} <= belongings(world, 2)
    assert condition(world, "Ready")["status"] == "True"
    await world.changed(instances=3)
    assert len(world.voters()) == 3
    world.writes.clear()
    await world.settle()
    assert world.writes == []


async def test_a_kept_volume_s_certificate_is_not_told_to_run_out() -> None:
    world = await running(storage={"onScaleDown": "Retain"}, tls={"validityDays": 90})
    await world.changed(instances=2)
    for _ in range(5):
        world.now += timedelta(days=20)
        await world.settle()
    assert condition(world, "CertificatesValid")["status"] == "True"


async def test_a_member_that_is_away_keeps_what_it_has() -> None:
    world = await running()
    before = belongings(world, 3)
    world.dead_nodes.add(3)
    world.mark_deleted(("Pod", f"{NAME}-3"))
    await world.settle()
    assert belongings(world, 3) == before
    world.dead_nodes.clear()
    await world.changed(hibernated=True)
    assert belongings(world, 3) == before - {"Pod"}


async def test_what_others_have_under_the_names_of_one_that_left_is_left_alone() -> None:
    world = await running()
    name = names.certificate(NAME, 3)
    del world.objects["Secret", name]
    settle_in(world, ("Secret", name))
    await world.changed(instances=2)
    assert present(world) == [("Secret", name)] and are_untouched(world)
    assert belongings(world, 3) == {"Secret"}


async def test_what_somebody_else_keeps_from_going_is_deleted_once() -> None:
    """A service, say, whose load balancer has yet to be given back."""
    world = await running()
    name = f"{NAME}-3"
    world.objects["Service", name]["metadata"]["finalizers"] = ["somebody/else"]
    await world.changed(instances=2)
    assert belongings(world, 3) == {"Service"}
    world.writes.clear()
    await world.settle()
    assert world.writes == []
