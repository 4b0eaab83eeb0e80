"""Whatever stops progress is told in the words of who refused, and stops nothing else."""

import asyncio
import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientSession
from operator_api_server import Fault, Killed
from operator_world import NAME, World, condition, running
from pgherd_operator.core.observed import Pod
from pgherd_operator.objects import config, network
from pgherd_operator.objects.model import Release
from pgherd_operator.shell import main
from pgherd_operator.shell.kube.election import Election
from pgherd_operator.shell.kube.interface import ApiError, Manifest, NotFoundError
from pgherd_operator.shell.kube.queue import Queue
from pgherd_operator.shell.observing.reading import parse_pod, pod_trouble
from pgherd_operator.shell.observing.sidecars import SidecarRefusedError
from test_objects import DATABASE, cluster

NO_KIND = NotFoundError(404, "GET podmonitors: 404 the server could not find the resource")
FORBIDDEN = ApiError(403, "GET podmonitors: 403 podmonitors is forbidden")


async def looks(world: World, rounds: int = 40) -> None:
    """Let the operator and the world act in turn, whether or not they come to rest."""
    for _ in range(rounds):
        await world.reconcile()
        world.tick()


@pytest.mark.parametrize("error", [NO_KIND, FORBIDDEN], ids=["not installed", "no right"])
async def test_a_herd_without_pod_monitors_comes_up_and_says_what_is_missing(
    error: ApiError,
) -> None:
    world = World()
    world.refused = {f"{verb} PodMonitor": error for verb in ("list", "get", "create")}
    world.submit(monitoring={"podMonitor": True})
    await world.settle()
    assert world.voters() == {1, 2, 3}
    assert condition(world, "Ready")["status"] == "True"
    found = condition(world, "Reconciled")
    assert (found["status"], found["reason"]) == ("False", "KindUnreadable")
    assert str(error) in found["message"]
    world.refused.clear()
    await world.settle()
    assert condition(world, "Reconciled")["status"] == "True"
    assert ("PodMonitor", NAME) in world.objects


@pytest.mark.parametrize("fault", ["error", "lost-answer", "killed-before", "killed-after"])
async def test_a_pod_monitor_that_is_not_wanted_any_more_goes(fault: Fault) -> None:
    world = await running(monitoring={"podMonitor": True})
    world.change(monitoring={"podMonitor": False})
    world.fault = 0, fault
    try:
        await world.settle()
    except Killed:
        await world.settle()
    assert ("PodMonitor", NAME) not in world.objects
    assert condition(world, "Reconciled")["status"] == "True"


async def test_a_pod_monitor_of_somebody_else_stays() -> None:
    world = await running(monitoring={"podMonitor": True})
    del world.objects["PodMonitor", NAME]["metadata"]["ownerReferences"]
    await world.changed(monitoring={"podMonitor": False})
    assert ("PodMonitor", NAME) in world.objects


async def test_who_may_not_see_an_unwanted_pod_monitor_goes_on() -> None:
    world = await running(monitoring={"podMonitor": True})
    world.refused["get PodMonitor"] = FORBIDDEN
    await world.changed(monitoring={"podMonitor": False}, instances=4)
    assert world.voters() == {1, 2, 3, 4}
    assert condition(world, "Ready")["status"] == "True"


async def test_a_volume_that_is_refused_keeps_no_member_from_being_replaced() -> None:
    world = await running()
    world.refused = {"create PersistentVolumeClaim": ApiError(403, "exceeded quota: claims")}
    world.change(instances=4, postgres={"parameters": {"application_name": "broken"}})
    await looks(world)
    assert sum(process.broken for process in world.processes.values()) == 1
    world.change(postgres={"parameters": {"work_mem": "8MB"}})
    await looks(world)
    assert all(world.works(number) for number in (1, 2, 3))
    configs = [world.objects["ConfigMap", f"{NAME}-{n}"]["data"]["pgherd.conf"] for n in (1, 2, 3)]
    assert all("work_mem = '8MB'" in config for config in configs)
    assert "exceeded quota" in condition(world, "Reconciled")["message"]
    world.refused.clear()
    await world.settle()
    assert world.voters() == {1, 2, 3, 4}


async def test_a_service_that_is_refused_keeps_nothing_else_from_being_made() -> None:
    world = World()
    world.refused = {"create Service": ApiError(403, "denied by policy no-services")}
    world.submit()
    await looks(world)
    found = condition(world, "Reconciled")
    assert (found["status"], found["reason"]) == ("False", "ActionFailed")
    assert "denied by policy no-services" in found["message"]
    assert ("Secret", f"{NAME}-ca") in world.objects  # the founding has begun all the same


async def test_a_pod_over_the_quota_does_not_keep_the_herd_from_shrinking() -> None:
    world = await running()
    world.refused = {"create Pod": ApiError(403, "exceeded quota: pods, used: 3, limited: 3")}
    world.change(instances=4)
    await looks(world, 10)
    assert "exceeded quota" in condition(world, "Reconciled")["message"]
    world.change(instances=3)
    await looks(world, 20)
    assert condition(world, "Ready")["status"] == "True"
    assert world.resource["status"]["instances"] == 3
    assert world.voters() == {1, 2, 3}


@pytest.mark.parametrize("meanwhile", [False, True], ids=["looked", "meanwhile"])
async def test_the_last_place_of_a_quota_is_for_a_member_of_the_herd(*, meanwhile: bool) -> None:
    world = await running()
    await world.changed(instances=4)
    world.dead_nodes = {1}
    world.tick()
    await world.changed(instances=3)
    assert world.voters() == {2, 3, 4}  # a new member gets the lowest number
    world.dead_nodes.clear()
    await world.settle()
    world.quota = 3
    world.change(instances=4)
    await looks(world, 10)
    assert "exceeded quota" in condition(world, "Reconciled")["message"]
    assert ("PersistentVolumeClaim", f"{NAME}-1-data") in world.objects
    world.mark_deleted(("Pod", f"{NAME}-4"))
    if meanwhile:  # it goes between a look and the write that follows
        world.meanwhile = partial(world.objects.__delitem__, ("Pod", f"{NAME}-4"))
        await world.reconcile()
        world.meanwhile = None
    await looks(world, 10)
    assert [n for n in range(1, 5) if world.works(n)] == [2, 3, 4]
    world.quota = 4
    await world.settle()
    assert world.voters() == {1, 2, 3, 4}


async def test_a_pod_whose_successor_would_be_refused_stays_where_it_is() -> None:
    world = await running()
    before = {
        key: item["metadata"]["uid"] for key, item in world.objects.items() if key[0] == "Pod"
    }
    text = "must be less than or equal to memory limit of 1Mi"
    world.refused = {"create Pod": ApiError(422, text)}
    world.change(
        resources={"postgres": {"requests": {"memory": "2Mi"}, "limits": {"memory": "1Mi"}}}
    )
    await looks(world, 10)
    after = {key: item["metadata"]["uid"] for key, item in world.objects.items() if key[0] == "Pod"}
    assert after == before
    assert all(world.works(number) for number in (1, 2, 3))
    assert text in condition(world, "Reconciled")["message"]
    world.refused.clear()
    await world.settle()
    assert condition(world, "Reconciled")["status"] == "True"
    after = {key: item["metadata"]["uid"] for key, item in world.objects.items() if key[0] == "Pod"}
    assert not {*after.values()} & {*before.values()}


async def test_two_releases_over_the_same_herds_do_not_fight() -> None:
    world = World(release=Release(operator="a/pgherd"))
    world.submit()
    await world.settle()
    assert world.resource["metadata"]["annotations"] == {"pgherd.dev/operator": "a/pgherd"}
    before = copy.deepcopy(world.objects)
    world.release = Release(operator="b/pgherd", sidecar_image="another")
    await looks(world, 5)
    assert world.objects == before
    assert "a/pgherd looks after this herd" in world.events[-1].message
    # The one that is named is gone, and the user does as he is told.
    del world.resource["metadata"]["annotations"]
    await world.settle()
    assert world.resource["metadata"]["annotations"] == {"pgherd.dev/operator": "b/pgherd"}


async def test_a_herd_of_an_operator_without_a_name_is_taken_over() -> None:
    world = await running()
    world.release = Release(operator="a/pgherd")
    await world.settle()
    assert world.resource["metadata"]["annotations"] == {"pgherd.dev/operator": "a/pgherd"}


async def test_a_refusal_is_told_once_as_an_event() -> None:
    world = await running()
    world.refused = {"create Pod": ApiError(403, "exceeded quota")}
    world.change(instances=4)
    await looks(world, 10)
    told = [event for event in world.events if event.reason == "ActionFailed"]
    assert len(told) == 1
    assert "exceeded quota" in told[0].message


def pod(**status: Any) -> Manifest:
    metadata = {"name": "herd-1", "uid": "u", "labels": {}}
    metadata["labels"] = {"pgherd.dev/member": "1", "pgherd.dev/role": "database"}
    return {"kind": "Pod", "metadata": metadata, "status": status}


WAITING = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
CRASHED = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"message": "bad line in pg_hba.conf\nand more"}},
}
_LOG = """2026-11-25 07:01:58 UTC [33] LOG:  invalid connection type "this"
2026-11-25 07:01:58 UTC [33] FATAL:  could not load pg_hba.conf
2026-11-25 07:01:58 UTC [33] LOG:  database system is shut down
"""
KILLED = {
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}},
    "lastState": {"terminated": {"message": _LOG}},
}
_ROWS = """\
es (17, 'Ann', 'ann@example.org')
2030-01-01 00:00:00 UTC [17] app@app ERROR:  duplicate key value
2030-01-01 00:00:00 UTC [17] app@app DETAIL:  Key (mail)=(ann@example.org) already exists.
"""
_NOT_MADE = """\
2030-01-01 00:00:00 UTC [17] LOG:  database system is ready to accept connections
pg_restore: error: there is no role mover
pgherd-postgres: no database was made
"""
TROUBLES: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"containerStatuses": [{"name": "postgres", **WAITING}]},
              "container postgres: ImagePullBackOff: no such image"),
    "crash": ({"initContainerStatuses": [{"name": "setup", **CRASHED}]},
              "container setup: CrashLoopBackOff: bad line in pg_hba.conf"),
    "its log": ({"containerStatuses": [{"name": "postgres", **KILLED}]},
                "container postgres: CrashLoopBackOff: could not load pg_hba.conf"),
    "its log as it ends": ({"containerStatuses": [{"name": "postgres", "state": {
                               "terminated": {"exitCode": 1, "reason": "Error",
                                              "message": _LOG}}}]},
                           "container postgres: Error: could not load pg_hba.conf"),
    "ended": ({"containerStatuses": [{"name": "postgres", "state": {
                  "terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
              "container postgres: OOMKilled"),
    "rows in its log": ({"containerStatuses": [{"name": "postgres", "state": {
                            "terminated": {"exitCode": 137, "reason": "OOMKilled",
                                           "message": _ROWS}}}]},
                        "container postgres: OOMKilled"),
    "rows in its former log": ({"containerStatuses": [{"name": "postgres", "state": {
                                   "waiting": {"reason": "CrashLoopBackOff",
                                               "message": "back-off 5m0s"}},
                                   "lastState": {"terminated": {"exitCode": 137,
                                                                "message": _ROWS}}}]},
                               "container postgres: CrashLoopBackOff: back-off 5m0s"),
    "no database": ({"containerStatuses": [{"name": "postgres", "state": {
                        "terminated": {"exitCode": 1, "reason": "Error",
                                       "message": _NOT_MADE}}}]},
                    "container postgres: Error: pg_restore: error: there is no role mover"),
    "no snapshot": ({"initContainerStatuses": [{"name": "seed", "state": {
                        "terminated": {"exitCode": 1, "reason": "Error",
                                       "message": f"{_ROWS}pgherd-seed: it is damaged\nat a row\n"
                                       "pgherd-postgres: no database was made\n"}}}]},
                    "container seed: Error: pgherd-seed: it is damaged"),
    "no node": ({"conditions": [{"type": "PodScheduled", "status": "False",
                 "reason": "Unschedulable", "message": "0/1 nodes: Insufficient cpu"}]},
                "Unschedulable: 0/1 nodes: Insufficient cpu"),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
                "Evicted: low on memory"),
    "begins": ({"containerStatuses": [{"name": "postgres", "state": {
                   "waiting": {"reason": "ContainerCreating"}}}]}, ""),
    "runs": ({"phase": "Running", "containerStatuses": [{"name": "postgres", "state": {
                 "running": {}}}]}, ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", TROUBLES)
def test_a_pod_that_does_not_run_says_why(kind: str) -> None:
    status, words = TROUBLES[kind]
    assert pod_trouble(status) == words


async def waiting() -> World:
    """A herd whose fourth member's pod waits."""
    world = await running()
    world.change(instances=4)
    for _ in range(10):
        await world.reconcile()
        if ("Pod", f"{NAME}-4") in world.objects:
            break
        world.tick()
    world.objects["Pod", f"{NAME}-4"]["status"] = {"phase": "Pending"}
    return world


async def test_the_reason_of_a_pod_that_cannot_start_is_the_step_of_the_herd() -> None:
    world = await waiting()
    unschedulable, _ = TROUBLES["no node"]
    world.objects["Pod", f"{NAME}-4"]["status"] = unschedulable
    await world.reconcile()
    assert "Insufficient cpu" in world.resource["status"]["step"]
    assert "Insufficient cpu" in condition(world, "Ready")["message"]
    (member,) = [m for m in world.resource["status"]["members"] if m["number"] == 4]
    assert "Insufficient cpu" in member["reason"]


def warn(
    world: World,
    about: tuple[str, str],
    reason: str,
    message: str,
    at: int = 1,
    kind: str = "Warning",
) -> None:
    """Somebody writes an Event about an object."""
    world.objects["Event", world.uid()] = {
        "metadata": {"namespace": "test"}, "type": kind, "reason": reason, "message": message,
        "involvedObject": {"uid": world.objects[about]["metadata"]["uid"]},
        "lastTimestamp": f"2030-01-01T00:00:{at:02}Z",
    }  # fmt: skip


MOUNT = "MountVolume.SetUp failed for volume data: no such device"
DISK = "failed to provision volume with StorageClass fast: no space left in the pool"
WORDS = {
    "kubelet": (("Pod", f"{NAME}-4"), "FailedMount", MOUNT),
    "CSI, attaching": (("Pod", f"{NAME}-4"), "FailedAttachVolume", "Multi-Attach error"),
    "CSI, provisioning": (("PersistentVolumeClaim", f"{NAME}-4-data"), "ProvisioningFailed", DISK),
}


@pytest.mark.parametrize("who", WORDS)
async def test_who_says_it_in_an_event_only_is_heard(who: str) -> None:
    about, reason, message = WORDS[who]
    world = await waiting()
    world.objects["PersistentVolumeClaim", f"{NAME}-4-data"]["status"] = {"phase": "Pending"}
    warn(world, about, "Earlier", "something else", at=1)
    warn(world, about, reason, message, at=7)
    await world.reconcile()
    status = world.resource["status"]
    assert f"{reason}: {message}" in status["step"]
    assert f"{reason}: {message}" in condition(world, "Ready")["message"]
    assert "something else" not in status["step"]
    assert ("list", "Event") in world.calls


CLAIM = "PersistentVolumeClaim", f"{NAME}-4-data"


async def test_why_a_claim_waits_is_told_unless_there_is_a_warning() -> None:
    world = await waiting()
    world.objects[CLAIM]["status"] = {"phase": "Pending"}
    warn(world, CLAIM, "FailedBinding", "no storage class is set", at=7, kind="Normal")
    await world.reconcile()
    told = f"{NAME}-4-data: FailedBinding: no storage class is set"
    assert told in world.resource["status"]["step"]
    warn(world, CLAIM, "ProvisioningFailed", DISK, at=3)
    await world.reconcile()
    assert f"{NAME}-4-data: ProvisioningFailed: {DISK}" in world.resource["status"]["step"]


async def test_an_operator_that_may_not_see_events_goes_on() -> None:
    world = await waiting()
    world.refused = {"list Event": ApiError(403, "events is forbidden")}
    await world.reconcile()
    world.tick()
    await world.settle()
    assert world.voters() == {1, 2, 3, 4}


async def test_the_scheduler_s_word_and_that_about_the_volume_are_both_told() -> None:
    world = await waiting()
    unschedulable, words = TROUBLES["no node"]
    world.objects["Pod", f"{NAME}-4"]["status"] |= unschedulable
    claim = "PersistentVolumeClaim", f"{NAME}-4-data"
    world.objects[claim]["status"] = {"phase": "Pending"}
    warn(world, claim, "ProvisioningFailed", DISK)
    await world.reconcile()
    step = world.resource["status"]["step"]
    assert words in step
    assert f"{NAME}-4-data: ProvisioningFailed: {DISK}" in step


async def test_a_herd_that_cannot_be_looked_at_says_so() -> None:
    world = await running()
    text = "GET services: 403 services is forbidden"
    world.refused = {"list Service": ApiError(403, text)}
    with pytest.raises(ApiError):
        await world.reconcile()
    for kind, status in (("Reconciled", "False"), ("Ready", "Unknown")):
        found = condition(world, kind)
        assert (found["status"], found["reason"]) == (status, "ActionFailed")
        assert text in found["message"]
    world.refused.clear()
    await world.settle()
    assert condition(world, "Ready")["status"] == "True"


async def test_a_herd_that_cannot_go_says_why() -> None:
    world = await running()
    text = "GET networkpolicies: 403 networkpolicies is forbidden"
    world.refused = {"list NetworkPolicy": ApiError(403, text)}
    world.remove_resource()
    with pytest.raises(ApiError):
        await world.reconcile()
    assert text in world.resource["status"]["step"]
    assert condition(world, "Reconciled")["reason"] == "ActionFailed"
    world.refused.clear()
    await world.removed()


class Unwilling(World):
    """A herd that lets nobody leave."""

    async def request(
        self, number: int, path: str, body: Mapping[str, Any], timeout_s: float = 0
    ) -> Mapping[str, Any]:
        if path == "/view/leave":
            raise SidecarRefusedError("herd-1", "a view is being changed")
        return await super().request(number, path, body, timeout_s)


async def test_what_a_sidecar_refuses_is_told_in_its_words() -> None:
    world = Unwilling()
    world.submit()
    await world.settle()
    world.change(instances=2)
    await looks(world, 10)
    found = condition(world, "Reconciled")
    assert (found["status"], found["reason"]) == ("False", "ActionFailed")
    assert "herd-1" in found["message"]
    assert "a view is being changed" in found["message"]


async def test_a_missing_priority_class_is_named_and_costs_no_member() -> None:
    world = await running()
    text = "no PriorityClass with name important was found"
    world.refused = {"create Pod": ApiError(403, text)}
    world.change(scheduling={"priorityClassName": "important"})
    await looks(world, 5)
    assert text in condition(world, "Reconciled")["message"]
    assert all(world.works(number) for number in (1, 2, 3))


def test_no_line_of_the_user_lets_the_superuser_in_by_password() -> None:
    herd = cluster(postgres={"pgHba": ["host all all 10.0.0.0/8 scram-sha-256"]})
    lines = config.member_files(herd, "id", DATABASE)["pg_hba.conf"].splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]

    def first(database: str) -> list[str]:
        """The rule for the superuser from elsewhere, without TLS."""
        return next(
            rule
            for rule in rules
            if rule[0] == "host"
            and ({database} & {*rule[1].split(",")} or ("all" in rule[1] and database == "app"))
            and {"all", "postgres"} & {*rule[2].split(",")}
        )

    assert first("app")[-1] == "reject"
    assert first("replication")[-1] == "reject"


def budget(instances: int, voters: int) -> int:
    """How many members a herd keeps from being evicted."""
    (found,) = [
        one
        for one in network.shared(cluster(instances=instances), "ns", voters)
        if one["kind"] == "PodDisruptionBudget"
    ]
    least = found["spec"]["minAvailable"]
    assert isinstance(least, int)
    return least


async def test_who_may_not_leave_keeps_no_member_from_being_replaced() -> None:
    world = Unwilling()
    world.submit()
    await world.settle()
    world.change(instances=2, postgres={"parameters": {"work_mem": "8MB"}})
    await looks(world)
    configs = [world.objects["ConfigMap", f"{NAME}-{n}"]["data"]["pgherd.conf"] for n in (1, 2, 3)]
    assert all("work_mem = '8MB'" in config for config in configs)
    assert all(world.works(number) for number in (1, 2, 3))
    assert "a view is being changed" in condition(world, "Reconciled")["message"]


def test_a_herd_that_shrinks_keeps_the_majority_of_its_view_from_being_evicted() -> None:
    assert [budget(1, voters) for voters in (0, 1, 3)] == [0, 0, 2]


def test_of_a_herd_that_grows_one_member_may_be_evicted_if_the_others_go_on() -> None:
    assert [budget(5, voters) for voters in (0, 1, 2, 3, 4, 5)] == [4, 1, 2, 2, 3, 4]


class NoLeases:
    """An API server that lets nobody see Leases."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        raise ApiError(403, "leases is forbidden")

    async def create(self, manifest: Manifest) -> object:
        raise AssertionError

    async def replace(self, manifest: Manifest) -> None:
        raise AssertionError


async def test_an_operator_that_cannot_stand_for_election_is_not_ready(
    unused_tcp_port: int,
) -> None:
    class Enough(Exception):
        pass

    async def sleep(_: float) -> None:
        raise Enough

    election = Election(NoLeases(), "ns", "lease", "me", lambda: 0.0, sleep)
    health = await main.answer_health(election, unused_tcp_port)
    try:
        async with ClientSession(f"http://127.0.0.1:{unused_tcp_port}") as session:
            assert (await session.get("/readyz")).status == 200
            with pytest.raises(Enough):
                await election.acquire()
            response = await session.get("/readyz")
            assert response.status == 503
            assert "leases is forbidden" in await response.text()
            assert (await session.get("/healthz")).status == 200
    finally:
        await health.cleanup()


async def test_what_was_seen_of_a_deleted_resource_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[main.Changes] = []

    class Watched(main.Changes):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(main, "Changes", Watched)
    woken: list[str] = []
    queue = Queue(lambda *_: asyncio.sleep(0), None)  # type: ignore[arg-type]
    monkeypatch.setattr(queue, "wake", lambda _, name: woken.append(name))
    registry = main.handlers(queue, {"Snapshot": queue})
    found: list[Any] = list(registry._watching.get_all_handlers())
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        for handler in found:
            meta: Manifest = {"uid": f"of {handler.id}", "generation": 1}
            await handler.fn(namespace="n", name=kind, meta=meta, type=kind)
    assert woken == ["ADDED"] * 2 + ["DELETED"] * 2
    assert [one._seen for one in made] == [{}, {}]


def test_a_pod_is_read_with_its_trouble() -> None:
    found = parse_pod(pod(**TROUBLES["evicted"][0]))
    assert found == Pod(1, "u", "", finished=True, trouble="Evicted: low on memory")
