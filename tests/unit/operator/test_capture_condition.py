"""Settings that keep changes from being captured: told of, never acted on."""

from operator_world import NAME, condition, running

OFF = "ALTER ROLE app: session_replication_role = replica"


async def test_capture_that_is_switched_off_is_told_of_once_and_nothing_is_done() -> None:
    world = await running()
    assert condition(world, "CaptureOn")["status"] == "True"
    world.writes.clear()
    world.events.clear()
    for number in (2, 3):
        world.processes[number].capture_off = (OFF,)
    for _ in range(3):
        await world.reconcile()
    found = condition(world, "CaptureOn")
    assert (found["status"], found["reason"]) == ("False", "CaptureOff")
    assert found["message"] == f"{NAME}-2: {OFF}; {NAME}-3: {OFF}"
    assert [(one.reason, one.kind, one.message) for one in world.events] == [
        ("CaptureOff", "Warning", found["message"])
    ]
    assert condition(world, "Ready")["status"] == "True"
    assert world.writes == []
    for process in world.processes.values():
        process.capture_off = ()
    await world.reconcile()
    assert condition(world, "CaptureOn")["status"] == "True"
    for process in world.processes.values():
        process.silent = True
    await world.reconcile()
    assert condition(world, "CaptureOn")["status"] == "Unknown"
