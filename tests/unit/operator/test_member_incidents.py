"""What stopped a member's database stays in the status, and is told as an Event once."""

from typing import Any

from operator_world import NAME, World, running

INCIDENT = {
    "number": 3,
    "at": "2026-01-02T03:04:05+00:00",
    "kind": "diverged",
    "reason": "GID 8: it differs",
    "gid": 8,
    "sqlstate": "23505",
    "statement": "INSERT",
    "table": "public.t",
    "row": "id = private",
    "cure": "rebuild",
    "outcome": "",
}


def shown(world: World, number: int) -> dict[str, Any]:
    """What the resource says of a member."""
    found: dict[str, Any] = next(
        one for one in world.resource["status"]["members"] if one["number"] == number
    )
    return found


async def test_an_incident_is_told_when_it_begins_and_when_it_ends_and_stays() -> None:
    world = await running()
    assert shown(world, 2).get("lastIncident") is None
    world.events.clear()
    process = world.processes[2]
    process.incidents = (INCIDENT,)
    for _ in range(3):
        await world.reconcile()
    process.incidents = (INCIDENT | {"outcome": "rebuilt"},)
    for _ in range(3):
        await world.reconcile()
    about = f"{NAME}-2: 2026-01-02T03:04:05+00:00: diverged at GID 8, INSERT, public.t, 23505"
    assert [(one.reason, one.kind, one.message) for one in world.events] == [
        ("MemberIncident", "Warning", f"{about}: it is being rebuilt"),
        ("MemberIncident", "Warning", f"{about}: rebuilt"),
    ]
    found = shown(world, 2)
    assert found["incidents"] == 3
    assert found["lastIncident"].endswith("diverged at GID 8, INSERT, public.t, 23505: rebuilt")
    assert "private" not in str(world.resource)
    assert shown(world, 3).get("incidents", 0) == 0


async def test_what_a_silent_member_has_told_before_stays() -> None:
    world = await running()
    world.processes[2].incidents = (INCIDENT | {"outcome": "rebuilt"},)
    await world.reconcile()
    told = shown(world, 2)["lastIncident"]
    world.events.clear()
    world.processes[2].silent = True
    await world.reconcile()
    assert shown(world, 2)["lastIncident"] == told
    world.processes[2].silent = False
    await world.reconcile()
    assert [one.reason for one in world.events if one.reason == "MemberIncident"] == []
