"""A new release of the operator reaches one herd after the other, and only those that are well.

Besides: a spec that another release cannot use.
"""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_world import NAME, World, condition, running
from pgherd_operator.api import OPERATOR
from pgherd_operator.core.upgrade import Stage, Turns
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Release
from pgherd_operator.shell.kube.interface import ApiError
from test_refused import looks

NEW = Release(version="2", sidecar_image="sidecar:2", postgres_image="postgres:2")


def uids(world: World) -> dict[str, str]:
    """Of the pods, by name."""
    return {name: item["metadata"]["uid"] for (kind, name), item in world.objects.items()
            if kind == "Pod"}  # fmt: skip


def images(world: World) -> set[str]:
    """Of all containers of all pods."""
    return {
        container["image"]
        for (kind, _), item in world.objects.items()
        if kind == "Pod"
        for container in item["spec"]["containers"]
    }


OLD = {Release().sidecar_image, Release().postgres_image.format(version="17")}


async def test_a_herd_takes_over_a_release_when_it_is_its_turn() -> None:
    world = await running()
    before = uids(world)
    world.turns.ask(("other", "herd"), Stage.UNDER_WAY, ready=True, age_s=1.0)
    world.release = NEW
    await looks(world, 5)
    assert uids(world) == before
    found = condition(world, "Upgraded")
    assert (found["status"], found["reason"]) == ("False", "UpgradeWaits")
    assert "other/herd is being upgraded" in found["message"]
    assert condition(world, "Ready")["status"] == "True"
    world.turns.ask(("other", "herd"), Stage.DONE, ready=True, age_s=1.0)
    await world.settle()
    assert images(world) == {"sidecar:2", "postgres:2"}
    assert not {*uids(world).values()} & {*before.values()}
    assert condition(world, "Upgraded")["status"] == "True"
    assert world.turns.ask(("third", "herd"), Stage.WAITING, ready=True, age_s=1.0) == ""


async def test_a_pod_that_is_made_anew_before_has_the_images_of_the_others() -> None:
    world = await running(maintenance={"upgrades": "Manual"})
    world.release = NEW
    world.mark_deleted(("Pod", f"{NAME}-2"))
    await looks(world, 10)
    assert world.works(2)
    assert images(world) == OLD
    assert "upgrades is Manual" in condition(world, "Upgraded")["message"]
    await world.changed(maintenance={"upgrades": "Automatic"})
    assert images(world) == {"sidecar:2", "postgres:2"}


async def test_a_lost_ledger_upgrades_no_herd_that_waits() -> None:
    world = await running(maintenance={"upgrades": "Manual"})
    world.release, before = NEW, uids(world)
    del world.objects["ConfigMap", f"{NAME}-herd"]
    await looks(world, 10)
    assert uids(world) == before
    assert "upgrades is Manual" in condition(world, "Upgraded")["message"]
    await world.changed(maintenance={"upgrades": "Automatic"})
    assert images(world) == {"sidecar:2", "postgres:2"}
    assert condition(world, "Upgraded")["status"] == "True"


async def test_what_a_user_changes_waits_for_no_release() -> None:
    world = await running(maintenance={"upgrades": "Manual"})
    before = uids(world)
    world.release = NEW
    await world.changed(postgres={"parameters": {"work_mem": "8MB"}})
    assert not {*uids(world).values()} & {*before.values()}
    assert images(world) == OLD


async def test_a_herd_that_is_not_well_is_not_upgraded_and_holds_up_no_other() -> None:
    world = await running()
    before = uids(world)
    world.processes[2].silent = True
    world.release = NEW
    await looks(world, 5)
    assert uids(world) == before
    assert world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=1.0) == ""


async def test_a_herd_that_cannot_grow_ends_its_upgrade_and_gives_its_turn_back() -> None:
    world = await running()
    world.refused = {"create PersistentVolumeClaim": ApiError(403, "exceeded quota: claims")}
    world.change(instances=4)
    world.release = NEW
    await looks(world)
    assert images(world) == {"sidecar:2", "postgres:2"}
    assert world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=600.0) == ""


async def test_a_herd_without_its_passwords_waits_and_holds_up_no_other() -> None:
    world = await running()
    del world.objects["Secret", f"{NAME}-app"]
    world.release = NEW
    await looks(world, 5)
    assert world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=600.0) == ""
    assert f"secret {NAME}-app is gone" in condition(world, "Upgraded")["message"]


async def test_a_reader_without_a_node_holds_up_no_release_and_no_other_reader() -> None:
    world = await running(readers=1)
    world.unscheduled = {66}
    await world.changed(readers=2)
    world.release = NEW
    await world.settle()
    assert images(world) == {"sidecar:2", "postgres:2"}
    assert condition(world, "Upgraded")["status"] == "True"
    assert world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=600.0) == ""
    assert "0/3 nodes are available" in condition(world, "Ready")["message"]


async def test_a_reader_that_the_release_broke_keeps_the_turn() -> None:
    world = await running(readers=1)
    world.release = NEW
    for _ in range(40):
        await world.reconcile()
        world.tick()
        if 65 in world.processes and "sidecar:2" in str(world.objects["Pod", f"{NAME}-65"]):
            world.processes[65].broken = True
    assert images(world) == {"sidecar:2", "postgres:2"}
    why = world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=600.0)
    assert why == f"test/{NAME} is being upgraded"


@pytest.mark.parametrize("serves", [False, True])
async def test_a_release_waits_for_maintenance_and_says_so(*, serves: bool) -> None:
    world = await running()
    world.processes[2].maintained, world.processes[2].serves = True, serves
    world.release = NEW
    await looks(world, 5)
    assert images(world) == OLD
    assert "member 2 is in maintenance" in condition(world, "Upgraded")["message"]


async def test_a_herd_that_the_release_broke_keeps_its_turn_after_a_restart_of_the_operator() -> (
    None
):
    world = await running()
    world.release = NEW
    for _ in range(20):
        await world.reconcile()
        world.tick()
        for process in world.processes.values():
            process.silent = process.number == 3  # the first one that is replaced, or another
        if world.objects["ConfigMap", names.ledger(NAME)]["data"]["upgrading"] == "true":
            break
    world.turns = Turns(120.0)  # of the next process
    await world.reconcile()
    why = world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=600.0)
    assert why == f"test/{NAME} is being upgraded"


@pytest.mark.parametrize(
    "rest",
    [
        {"hibernated": True},
        {"maintenance": {"paused": True}},
        {"postgres": {"parameters": {"fsync": "off"}}},  # which cannot be used
    ],
)
async def test_a_herd_that_is_put_to_rest_gives_its_turn_to_others_and_ends_its_upgrade_later(
    rest: dict[str, Any],
) -> None:
    world = await running()
    world.release = NEW
    while world.objects["ConfigMap", names.ledger(NAME)]["data"]["upgrading"] != "true":
        await world.reconcile()
        world.tick()
    world.change(**rest)
    await looks(world, 5)
    other = ("other", "herd")
    assert world.turns.ask(other, Stage.WAITING, ready=True, age_s=600.0) == ""
    world.turns.ask(other, Stage.DONE, ready=True, age_s=600.0)
    await world.changed(hibernated=False, maintenance={}, postgres={})
    assert images(world) == {"sidecar:2", "postgres:2"}
    assert world.turns.ask(other, Stage.WAITING, ready=True, age_s=600.0) == ""


@pytest.mark.parametrize(
    ("rest", "why"),
    [({"hibernated": True}, "it sleeps"), ({"maintenance": {"paused": True}}, "it is paused")],
)
async def test_a_herd_at_rest_says_that_its_upgrade_waits_for_that(
    rest: dict[str, Any], why: str
) -> None:
    world = await running()
    world.change(**rest)
    await looks(world, 5)
    world.release = NEW
    await looks(world, 5)
    assert why in condition(world, "Upgraded")["message"]


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ({"hibernated": True}, "it sleeps"),
        ({"maintenance": {"paused": True, "upgrades": "Manual"}}, "it is paused"),
        ({"postgres": {"version": "none"}}, "its spec cannot be used"),
        ({}, f"secret {NAME}-app is gone"),
    ],
)
async def test_a_herd_at_rest_in_the_middle_of_its_upgrade_says_so_and_gives_its_turn_to_others(
    rest: dict[str, Any], why: str
) -> None:
    world = await running()
    world.release = NEW
    while "sidecar:2" not in images(world):
        await world.reconcile()
        world.tick()
    world.change(**rest)
    world.objects["ConfigMap", names.ledger(NAME)]["data"]["spec"] = "damaged"
    kept = world.objects.pop(("Secret", f"{NAME}-app")) if not rest else None
    await looks(world, 5)
    found = condition(world, "Upgraded")
    assert (found["status"], found["reason"]) == ("False", "UpgradeWaits")
    assert why in found["message"]
    other = ("other", "herd")
    assert world.turns.ask(other, Stage.WAITING, ready=True, age_s=600.0) == ""
    world.turns.leave(other)
    world.change(hibernated=False, maintenance={}, postgres={})
    if kept is not None:
        world.objects["Secret", f"{NAME}-app"] = kept
    await world.settle()
    assert images(world) == {"sidecar:2", "postgres:2"}
    assert condition(world, "Upgraded")["status"] == "True"


def test_nobody_begins_before_those_under_way_were_heard() -> None:
    turns = Turns(120.0)
    assert "just begun" in turns.ask(("n", "a"), Stage.WAITING, ready=True, age_s=60.0)
    assert turns.ask(("n", "b"), Stage.UNDER_WAY, ready=False, age_s=100.0) == ""
    assert turns.ask(("n", "a"), Stage.WAITING, ready=True, age_s=200.0) == "n/b is being upgraded"
    turns.leave(("n", "b"))
    assert turns.ask(("n", "a"), Stage.WAITING, ready=True, age_s=201.0) == ""
    assert turns.ask(("n", "c"), Stage.WAITING, ready=True, age_s=202.0) == "n/a is being upgraded"


async def test_a_herd_of_before_there_was_a_ledger_of_releases_is_upgraded_in_its_turn() -> None:
    world = await running()
    data = world.objects["ConfigMap", names.ledger(NAME)]["data"]
    for key in ("release", "sidecarImage", "postgresImage", "upgrading", "spec"):
        del data[key]
    for (kind, _), item in world.objects.items():
        if kind == "Pod":
            item["metadata"]["annotations"][names.REVISION] = "another"
            del item["metadata"]["annotations"][names.WISH]
    before = uids(world)
    world.turns.ask(("other", "herd"), Stage.UNDER_WAY, ready=True, age_s=1.0)
    await looks(world, 5)
    assert uids(world) == before
    world.turns.leave(("other", "herd"))
    await world.settle()
    assert not {*uids(world).values()} & {*before.values()}


async def invalid(spec: dict[str, Any]) -> World:
    """A herd that was well, and whose spec then cannot be used."""
    world = await running(postgres={"parameters": {"work_mem": "8MB"}})
    world.change(**spec)
    await world.reconcile()
    return world


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "made by an older operator"])
async def test_under_a_spec_that_cannot_be_used_certificates_and_pods_are_looked_after(
    *, kept: bool
) -> None:
    world = await invalid({"postgres": {"parameters": {"work_mem": "8MB", "fsync": "off"}}})
    ledger = world.objects["ConfigMap", names.ledger(NAME)]["data"]
    if not kept:
        ledger["spec"] = ""
    before, secret = uids(world), world.objects["Secret", f"{NAME}-1-tls"]["data"]["tls.crt"]
    world.mark_deleted(("Pod", f"{NAME}-2"))
    world.now += timedelta(days=70)
    await looks(world, 10)
    assert world.works(2)
    assert uids(world)[f"{NAME}-1"] == before[f"{NAME}-1"]
    assert world.objects["Secret", f"{NAME}-1-tls"]["data"]["tls.crt"] != secret
    assert "work_mem = '8MB'" in world.objects["ConfigMap", f"{NAME}-2"]["data"]["pgherd.conf"]
    assert "fsync" not in world.objects["ConfigMap", f"{NAME}-2"]["data"]["pgherd.conf"]
    ready = condition(world, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")


@pytest.mark.parametrize("kept", ["damaged", "5", "[[1]]", "[" * 100_000])
async def test_under_a_spec_of_which_nothing_is_known_certificates_are_renewed(kept: str) -> None:
    world = await invalid({"postgres": {"version": "none"}})
    world.objects["ConfigMap", names.ledger(NAME)]["data"]["spec"] = kept
    before, secret = uids(world), world.objects["Secret", f"{NAME}-1-tls"]["data"]["tls.crt"]
    world.now += timedelta(days=70)
    await looks(world, 5)
    assert uids(world) == before
    assert world.objects["Secret", f"{NAME}-1-tls"]["data"]["tls.crt"] != secret
    assert world.resource["status"]["membersReady"] == "3/3"


@pytest.mark.parametrize("known", [True, False], ids=["by its last spec", "only certificates"])
async def test_a_herd_whose_spec_cannot_be_used_waits_and_holds_up_no_other(*, known: bool) -> None:
    world = await invalid({"postgres": {"version": "none"}})
    if not known:
        world.objects["ConfigMap", names.ledger(NAME)]["data"]["spec"] = "damaged"
    world.release = NEW
    await looks(world, 3)
    assert world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=600.0) == ""
    assert images(world) == OLD
    found = condition(world, "Upgraded")
    assert (found["status"], found["reason"]) == ("False", "UpgradeWaits")
    assert "its spec cannot be used" in found["message"]


async def test_a_herd_that_is_another_operator_s_meanwhile_gives_its_turn_back() -> None:
    world = await running()
    world.turns.ask(("test", NAME), Stage.UNDER_WAY, ready=True, age_s=1.0)
    world.release = replace(NEW, operator="new")
    world.resource["metadata"]["annotations"] = {OPERATOR: "another"}
    await world.reconcile()
    assert world.turns.ask(("other", "herd"), Stage.WAITING, ready=True, age_s=600.0) == ""


async def test_the_last_spec_that_could_be_used_is_kept() -> None:
    world = await running()
    await world.changed(instances=4)
    text = world.objects["ConfigMap", names.ledger(NAME)]["data"]["spec"]
    assert json.loads(text)["instances"] == 4


def test_another_release_has_another_id() -> None:
    ids = {Release().id, NEW.id, replace(NEW, version="3").id, replace(NEW, sidecar_image="x").id}
    assert len(ids) == 4
    assert replace(NEW, operator_namespace="elsewhere").id == NEW.id
