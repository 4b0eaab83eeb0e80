"""What a tenant may write into his own objects, by mistake or not, is never another's trouble."""

import asyncio
import copy
from fractions import Fraction

import pytest
from jobs_world import JobsWorld
from operator_world import NAME, World, running
from pgherd_operator.api.quantity import parse_quantity
from pgherd_operator.objects import config, names
from pgherd_operator.shell.kube.interface import Manifest
from pgherd_operator.shell.kube.queue import Queue

CLAIM = ("PersistentVolumeClaim", f"{NAME}-1-data")


async def test_a_size_with_an_exponent_is_one() -> None:
    world = await running(storage={"size": "1Gi"})
    world.objects[CLAIM]["spec"]["resources"]["requests"]["storage"] = "1e10"
    writes = list(world.writes)
    await world.settle()
    assert world.writes == writes  # it is larger than what is wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000), ("1E3", 1000), ("1E", 10**18), ("+.5k", 500), ("25e-1", Fraction(5, 2)),
        ("-1", -1), ("1n", Fraction(1, 10**9)), ("1e999999999", 10**99),
    ],
)  # fmt: skip
def test_quantities_are_read_in_all_their_forms(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


def meddle(item: Manifest) -> None:
    """What a service mesh or a policy may do: it adds items to lists, and changes a value."""
    added = {"name": "mesh", "port": 15001, "protocol": "TCP"}
    if item["kind"] == "Service" and added not in item["spec"]["ports"]:
        item["spec"]["ports"].append(added)
    if item["kind"] == "PodDisruptionBudget":
        item["spec"]["minAvailable"] = 1


async def test_a_web_hook_that_changes_what_we_apply_does_not_keep_us_applying() -> None:
    world = World()
    world.webhook = meddle
    world.submit()
    await world.settle()
    writes = list(world.writes)
    assert len(world.objects["Service", f"{NAME}-rw"]["spec"]["ports"]) == 2
    (told,) = [
        event
        for event in world.events
        if event.reason == "ObjectAltered" and f"Service {NAME}-rw " in event.message
    ]
    ready = next(c for c in world.resource["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"
    world.objects["Service", f"{NAME}-rw"]["spec"]["selector"] = {}  # somebody's edit is undone
    await world.settle()
    assert world.writes[len(writes) :] == [f"apply Service {NAME}-rw", f"patch Service {NAME}-rw"]
    assert world.objects["Service", f"{NAME}-rw"]["spec"]["selector"]
    world.webhook = lambda _: None  # it is gone, and a person says so
    assert f"kubectl annotate service {NAME}-rw {names.ADMITTED}-" in told.message
    del world.objects["Service", f"{NAME}-rw"]["metadata"]["annotations"][names.ADMITTED]
    await world.settle()
    assert len(world.objects["Service", f"{NAME}-rw"]["spec"]["ports"]) == 1
    world.change(instances=5)  # and what we want otherwise is applied
    await world.settle()
    assert f"apply PodDisruptionBudget {NAME}" in world.writes[len(writes) :]


@pytest.mark.parametrize("damage", [{"phase": "?"}, {"founders": "one"}, {"clusterId": None}])
async def test_a_ledger_that_cannot_be_read_is_written_anew(damage: dict[str, str | None]) -> None:
    world = await running()
    ledger = world.objects["ConfigMap", f"{NAME}-herd"]
    before, uid = dict(ledger["data"]), ledger["metadata"]["uid"]
    world.writes.clear()
    ledger["data"] = {key: value for key, value in (before | damage).items() if value is not None}
    await world.settle()
    ledger = world.objects["ConfigMap", f"{NAME}-herd"]
    assert ledger["metadata"]["uid"] == uid
    assert ledger["data"] == before | {"founders": ""}
    assert not [write for write in world.writes if write.startswith("delete")]
    assert world.resource["status"]["membersReady"] == "3/3"


@pytest.mark.parametrize("damaged", ["", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==", "no base64"])
async def test_a_certificate_that_cannot_be_read_is_issued_again(damaged: str) -> None:
    world = await running(storage={"size": "1Gi"})
    world.objects["Secret", f"{NAME}-1-tls"]["data"]["tls.crt"] = damaged
    await world.settle()
    assert world.writes[-1] == f"apply Secret {NAME}-1-tls"


async def test_a_herd_whose_numbers_are_all_taken_says_so() -> None:
    world = await running(storage={"size": "1Gi"})
    for number in range(4, config.SLOTS + 1):
        volume = copy.deepcopy(world.objects[CLAIM])
        volume["metadata"] |= {"name": f"{NAME}-{number}-data", "uid": f"retained-{number}"}
        volume["metadata"]["labels"] |= {names.MEMBER: str(number), names.RETIRED: "true"}
        world.objects["PersistentVolumeClaim", f"{NAME}-{number}-data"] = volume
    await world.changed(instances=4)
    assert "delete retained volumes" in world.resource["status"]["step"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"error": 1}, "1"),
        ({"error": None, "tables": [1]}, "the driver's outcome is none: tables: "),
        ({"rows": "many"}, "the driver's outcome is none: rows: "),
    ],
)
async def test_an_outcome_that_is_none_is_a_failure(outcome: object, said: str) -> None:
    world = JobsWorld()
    world.found_herd()
    world.submit()
    await world.look()
    world.ends(outcome)
    await world.look()
    assert world.status()["phase"] == "Failed"
    assert world.status()["message"].startswith(said)


async def test_an_outcome_that_cannot_be_read_is_none() -> None:
    world = JobsWorld()
    world.found_herd()
    world.submit()
    await world.look()
    world.ends("")
    (container,) = world.objects["Pod", "driver"]["status"]["containerStatuses"]
    container["state"]["terminated"]["message"] = "[" * 4000
    await world.look()
    assert world.status()["phase"] == "Failed"


async def test_one_that_cannot_be_looked_at_is_looked_at_again_and_ends_no_other() -> None:
    looks: list[str] = []

    async def look(namespace: str, name: str) -> float | None:
        looks.append(name)
        if name == "odd" and len(looks) < 4:
            queue.wake(namespace, name)  # the delay that grows is not waited for
            raise TypeError("a string, where a number was expected")
        return None

    async with asyncio.TaskGroup() as group:
        queue = Queue(look, group)
        queue.wake("n", "odd")
        queue.wake("n", "well")
    assert looks.count("odd") > 1
    assert "well" in looks
