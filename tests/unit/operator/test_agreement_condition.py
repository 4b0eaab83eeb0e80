"""What the scrub has found to differ: told of, never acted on."""

from operator_world import NAME, condition, running

ROWS = {
    "kind": "rows",
    "table": "public.accounts",
    "index": "",
    "keys": {'["Alice"]': [f"{NAME}-2"]},
    "more_keys": 3,
    "members": [f"{NAME}-2"],
    "majority": True,
    "gid": 99,
    "first_gid": 70,
    "text": "",
}
INDEX = ROWS | {"kind": "index", "index": "public.accounts_pkey", "members": [f"{NAME}-3"]}


async def test_what_differs_is_told_of_once_and_nothing_is_done() -> None:
    world = await running()
    assert condition(world, "MembersAgree")["status"] == "True"
    world.writes.clear()
    world.events.clear()
    for gid in (99, 100, 101):  # it is looked at again and again
        world.processes[2].differences = (ROWS | {"gid": gid}, INDEX)
        world.processes[3].differences = (ROWS | {"gid": gid},)
        await world.reconcile()
    found = condition(world, "MembersAgree")
    assert (found["status"], found["reason"]) == ("False", "MembersDiffer")
    assert found["message"] == (
        f"index public.accounts_pkey differs from its table on {NAME}-3; table public.accounts:"
        f" {NAME}-2 differs from the others, first seen at GID 70"
    )
    assert "Alice" not in found["message"]
    assert [(one.reason, one.kind, one.message) for one in world.events] == [
        ("MembersDiffer", "Warning", found["message"])
    ]
    assert condition(world, "Ready")["status"] == "True"
    assert world.writes == []
    for process in world.processes.values():
        process.differences = ()
    await world.reconcile()
    assert condition(world, "MembersAgree")["status"] == "True"


async def test_two_that_differ_are_both_named() -> None:
    world = await running()
    both = [f"{NAME}-1", f"{NAME}-2"]
    world.processes[1].differences = (ROWS | {"majority": False, "members": both},)
    await world.reconcile()
    message = condition(world, "MembersAgree")["message"]
    assert f"{NAME}-1, {NAME}-2 differ, first seen" in message


async def test_nothing_is_known_where_no_sidecar_says_anything_of_a_scrub() -> None:
    world = await running()
    for process in world.processes.values():
        process.scrubs = False
    await world.reconcile()
    assert condition(world, "MembersAgree")["status"] == "Unknown"
