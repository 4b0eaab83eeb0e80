"""A herd that takes no writes until somebody has chosen: told of, and nothing is done about it."""

import json

from operator_world import NAME, condition, running

HELD = "no writes since GID 12: only herd-1 holds what follows GID 9"


async def test_a_herd_that_is_held_is_told_of_once_and_nobody_is_made_anew() -> None:
    world = await running()
    assert condition(world, "DatabasesSuffice")["status"] == "True"
    world.writes.clear()
    world.events.clear()
    for process in world.processes.values():
        process.held = HELD
    world.processes[2].diverged = world.processes[3].diverged = True
    for _ in range(3):
        await world.reconcile()
    found = condition(world, "DatabasesSuffice")
    assert (found["status"], found["reason"]) == ("False", "WritesHeld")
    assert found["message"] == HELD
    held = [(one.kind, one.message) for one in world.events if one.reason == "WritesHeld"]
    assert held == [("Warning", HELD)]
    assert world.writes == []
    assert world.view is not None
    assert {2, 3} <= {member.number for member in world.view.members}
    for process in world.processes.values():
        process.held, process.diverged = None, False
    await world.reconcile()
    assert condition(world, "DatabasesSuffice")["status"] == "True"
    for process in world.processes.values():
        process.silent = True
    await world.reconcile()
    assert condition(world, "DatabasesSuffice")["status"] == "Unknown"


async def test_what_is_to_be_done_on_divergence_reaches_the_sidecars() -> None:
    for spec, policy, replaced in (
        ({"onDivergence": "Pause"}, "pause", None),
        ({"maintenance": {"rebuildDiverged": False}}, None, False),
    ):
        world = await running(**spec)
        config = json.loads(world.objects["ConfigMap", f"{NAME}-1"]["data"]["node.json"])
        assert config.get("on_divergence") == policy
        assert config.get("replaced") == replaced
