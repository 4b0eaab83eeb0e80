"""From whatever state, the operator converges, and never does what must never happen.

Generated stories: a user changes his mind, pods and volumes vanish, sidecars fall silent, members
are evicted, objects drift, and the operator is killed, cut off or refused at any write. Then all is
healed, and the herd has to get to where the spec wants it, and to stay there.

What a story may destroy is bounded: a volume is lost only while the others of the view hold a
majority, for nothing could bring that back.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
import strangers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from operator_api_server import Fault, Killed
from operator_world import NAME, World
from pgherd_operator.core.upgrade import Turns
from pgherd_operator.objects.model import Release
from pgherd_operator.shell.kube.interface import ApiError

Act = Callable[[World], None]
NUMBERS = st.integers(1, 6)


def scale(instances: int, witnesses: int) -> Act:
    return lambda world: world.change(instances=instances, witnesses=min(witnesses, instances - 1))


def readers(number: int) -> Act:
    return lambda world: world.change(readers=number)


def parameter(value: str) -> Act:
    return lambda world: world.change(postgres={"parameters": {"work_mem": value}})


def upgrade(number: int) -> Act:
    """The operator is replaced by one of another release."""

    def act(world: World) -> None:
        world.release = Release(version=str(number), sidecar_image=f"sidecar:{number}")
        world.turns = Turns(0.0)

    return act


def hibernate(asleep: bool) -> Act:
    return lambda world: world.change(hibernated=asleep)


def delete_pod(number: int) -> Act:
    def act(world: World) -> None:
        item = world.objects.get(("Pod", f"{NAME}-{number}"))
        if item is not None:
            item["metadata"]["deletionTimestamp"] = "now"

    return act


def fail_pod(number: int) -> Act:
    def act(world: World) -> None:
        item = world.objects.get(("Pod", f"{NAME}-{number}"))
        if item is not None:
            item.setdefault("status", {})["phase"] = "Failed"
            world.processes.pop(number, None)

    return act


def lose_all_pods(_: int) -> Act:
    def act(world: World) -> None:
        for key in [key for key in world.objects if key[0] == "Pod"]:
            del world.objects[key]
        world.processes.clear()

    return act


def _is_whole(world: World, number: int) -> bool:
    """A member has a database that has not diverged."""
    member = None if world.view is None else world.view.find(number)
    return member is not None and not member.witness and member.disk_id not in world.diverged_disks


def lose_volume(number: int) -> Act:
    """The volume and its pod are gone, if the herd can stand it."""

    def act(world: World) -> None:
        key = ("PersistentVolumeClaim", f"{NAME}-{number}-data")
        if key not in world.objects or key in strangers.present(world) or world.view is None:
            return
        disks = {
            item["metadata"]["uid"]
            for (kind, _), item in world.objects.items()
            if kind == "PersistentVolumeClaim" and item is not world.objects[key]
        }
        left = [voter for voter in world.view.voters if voter.disk_id in disks]
        whole = any(_is_whole(world, voter.number) for voter in left)
        if len(left) < world.view.majority or not whole:
            return
        del world.objects[key]
        world.objects.pop(("Pod", f"{NAME}-{number}"), None)
        world.processes.pop(number, None)

    return act


def silence(number: int) -> Act:
    def act(world: World) -> None:
        if number in world.processes:
            world.processes[number].silent = True

    return act


def kill_node(number: int) -> Act:
    return lambda world: world.dead_nodes.add(number)


def evict(number: int) -> Act:
    """The others give up on a member that does not run, as they do by themselves."""

    def act(world: World) -> None:
        if world.view is None or not world.primary() or number in world.processes:
            return
        if world.view.find(number) is not None and len(world.view.members) > 1:
            world.drop(number)

    return act


def diverge(number: int) -> Act:
    """A database differs from the others, of which one at least is whole."""

    def act(world: World) -> None:
        well = {n for n in world.voters() if world.works(n)}
        if number in well and len(well) >= 3 and any(_is_whole(world, n) for n in well - {number}):
            world.processes[number].diverged = True
            world.diverged_disks.add(world.processes[number].disk_id)

    return act


def drop_object(which: int) -> Act:
    """Somebody deletes an object that is none of data, passwords or the herd itself."""

    def act(world: World) -> None:
        kinds = ("Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount")
        found = sorted(key for key in world.objects if key[0] in kinds)
        if found:
            del world.objects[found[which % len(found)]]

    return act


def wipe_status(_: int) -> Act:
    return lambda world: world.resource.update(status={"members": "nonsense"})


def wait(days: int) -> Act:
    def act(world: World) -> None:
        world.now += timedelta(days=days * 10)

    return act


def tick(_: int) -> Act:
    return lambda world: world.tick()


def look(_: int) -> Act:
    return lambda world: asyncio.run(_try_to_reconcile(world))


def take_a_name(number: int) -> Act:
    def act(world: World) -> None:
        free = [key for key in (*strangers.of_member(number), *strangers.SHARED)
                if key not in world.objects]  # fmt: skip
        if free:
            strangers.settle_in(world, free[number % len(free)])

    return act


def look_while_they_join(_: int) -> Act:
    """Who can joins and votes between the operator's look and its first write."""

    def act(world: World) -> None:
        world.meanwhile = world.let_in
        asyncio.run(_try_to_reconcile(world))
        world.meanwhile = None

    return act


def hold_joins(number: int) -> Act:
    def act(world: World) -> None:
        world.joins_held = number % 2 == 0

    return act


def look_under(write: int, fault: Fault) -> Act:
    def act(world: World) -> None:
        world.fault = (write, fault)
        asyncio.run(_try_to_reconcile(world))
        world.fault = None

    return act


async def _try_to_reconcile(world: World) -> None:
    try:
        await world.reconcile()
    except (Killed, ApiError):
        return


KINDS: list[Fault] = ["error", "lost-answer", "killed-before", "killed-after"]
QUIET = st.one_of(NUMBERS.map(tick), NUMBERS.map(look))
ACTS = st.one_of(
    QUIET, QUIET, QUIET,
    st.builds(look_under, st.integers(0, 8), st.sampled_from(KINDS)),
    st.builds(scale, st.integers(1, 5), st.integers(0, 2)),
    st.integers(0, 2).map(readers),
    st.sampled_from(["4MB", "8MB"]).map(parameter),
    st.booleans().map(hibernate),
    *(NUMBERS.map(one) for one in (
        delete_pod, fail_pod, lose_all_pods, lose_volume, silence, kill_node, evict, diverge,
        drop_object, wipe_status, wait, look_while_they_join, hold_joins,
        take_a_name, upgrade,
    )),
)  # fmt: skip


def heal(world: World) -> None:
    """End all faults; a dead node comes back."""
    world.fault = None
    world.dead_nodes.clear()
    world.joins_held = False
    for process in world.processes.values():
        process.silent = False
    world.change(hibernated=False)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    start=st.tuples(st.integers(1, 5), st.integers(0, 2)),
    begun=st.booleans(),
    story=st.lists(ACTS, max_size=25),
)
@example(start=(2, 1), begun=True, story=[diverge(1), lose_volume(2)])
@example(start=(3, 0), begun=True, story=[lose_volume(2), look(1), scale(2, 0), look(1)])
@example(
    start=(1, 0),
    begun=True,
    story=[
        hold_joins(2),
        scale(2, 0),
        *[look(1), tick(1)] * 4,
        scale(1, 0),
        *[look_while_they_join(1), tick(1)] * 4,
    ],
)
@example(start=(3, 1), begun=False, story=[look(1)] * 4 + [lose_all_pods(1), drop_object(0)])
def test_it_converges_from_any_story(start: tuple[int, int], begun: bool, story: list[Act]) -> None:
    instances, witnesses = start
    world = World()
    world.submit(instances=instances, witnesses=min(witnesses, instances - 1))
    if begun:
        asyncio.run(world.settle())
    for act in story:
        act(world)
    heal(world)
    asyncio.run(world.settle(rounds=200))
    assert strangers.are_untouched(world)
    for key in strangers.present(world):
        del world.objects[key]
    asyncio.run(world.settle(rounds=200))
    spec = world.spec
    assert world.view is not None
    voters = world.view.voters
    assert len(voters) == spec["instances"] + spec.get("witnesses", 0)
    following = [member for member in world.view.members if not member.voter]
    assert [member.reader for member in following] == [True] * spec.get("readers", 0)
    assert all(world.works(member.number) for member in following)
    assert sum(voter.witness for voter in voters) == spec.get("witnesses", 0)
    assert all(world.works(voter.number) for voter in voters)
    ready = [c for c in world.resource["status"]["conditions"] if c["type"] == "Ready"]
    assert ready[0]["status"] == "True"
    assert sidecar_images(world) == {world.release.sidecar_image}


def sidecar_images(world: World) -> set[str]:
    """Of all pods."""
    return {
        container["image"]
        for (kind, _), item in world.objects.items()
        if kind == "Pod"
        for container in item["spec"]["containers"]
        if container["name"] == "sidecar"
    }


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 1])
def test_every_write_of_a_life_may_fail(first: int) -> None:
    """Founding, growth, a lost volume, a rollout, shrinking: with a fault at each write in turn."""
    write, finished = first, False
    while not finished:
        world = World(fault=(write, KINDS[write // 2 % len(KINDS)]))
        asyncio.run(_a_life(world))
        assert len(world.voters()) == 2
        finished = world.fault is not None  # the life has fewer writes than that
        write += 2
    assert write >= 45


async def _a_life(world: World) -> None:
    world.submit(instances=1)
    await _settle_in_spite(world)
    world.change(instances=3)
    await _settle_in_spite(world)
    lose_volume(2)(world)
    await _settle_in_spite(world)
    world.change(postgres={"parameters": {"work_mem": "8MB"}})
    await _settle_in_spite(world)
    world.change(instances=2)
    await _settle_in_spite(world)
    upgrade(2)(world)
    await _settle_in_spite(world)
    assert sidecar_images(world) == {"sidecar:2"}


async def _settle_in_spite(world: World) -> None:
    try:
        await world.settle()
    except Killed:  # the next operator takes over
        await world.settle()
