"""The life of a herd, as the operator sees it, in a world in memory; each invariant of the world
(`operator_world.Forbidden`) is checked along the way."""

import copy
import json
from datetime import timedelta
from typing import Any

import pytest
from operator_world import NAME, World, condition, running
from pgherd_operator.core.actions import Reason
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Role
from pgherd_operator.shell.observing.reading import labelled, parse_pod


async def test_three_members_come_up_and_the_resource_says_so() -> None:
    world = await running()
    assert world.voters() == {1, 2, 3}
    assert world.resource["status"]["membersReady"] == "3/3"
    assert condition(world, "Ready")["status"] == "True"


async def test_a_second_look_writes_nothing() -> None:
    world = await running(witnesses=1)
    before = copy.deepcopy((world.objects, world.writes))
    await world.reconcile()
    assert (world.objects, world.writes) == before


async def test_witnesses_found_the_herd_with_the_others() -> None:
    world = await running(instances=3, witnesses=2)
    assert world.view is not None
    assert [member.witness for member in world.view.members] == [False] * 3 + [True] * 2


async def test_it_grows_from_one_to_three_to_five_and_back() -> None:
    world = await running(instances=1)
    for wanted in (3, 5, 3):
        await world.changed(instances=wanted)
        assert len(world.voters()) == wanted
        assert condition(world, "Ready")["status"] == "True"
    assert {name for kind, name in world.objects if kind == "PersistentVolumeClaim"} == {
        names.volume(NAME, number) for number in (1, 2, 3)
    }


async def test_a_finalizer_that_another_one_sets_meanwhile_is_kept() -> None:
    world = World()
    world.submit()
    world.resource["metadata"]["resourceVersion"] = world.uid()

    def change() -> None:
        metadata = world.resource["metadata"]
        metadata["finalizers"] = [*metadata.get("finalizers", []), f"example.com/{world.uid()}"]
        metadata["resourceVersion"] = world.uid()

    world.meanwhile = change
    await world.settle()
    assert condition(world, "Ready")["status"] == "True"
    first, ours = world.resource["metadata"]["finalizers"]
    assert first.startswith("example.com/") and ours == names.FINALIZER
    world.remove_resource()
    await world.settle()
    assert world.resource["metadata"]["finalizers"] == [first]


async def test_a_leaving_member_leaves_the_view_before_its_volume_goes() -> None:
    world = await running(instances=3)
    await world.changed(instances=2)
    leave = world.writes.index(f"ask /view/leave {NAME}-3")
    assert leave < world.writes.index(f"delete PersistentVolumeClaim {NAME}-3-data")


async def test_who_shares_a_node_leaves_before_the_youngest() -> None:
    world = await running(instances=5)
    for number, node in enumerate(("a", "b", "b", "c", "d"), 1):
        world.objects["Pod", names.member(NAME, number)]["spec"]["nodeName"] = node
    await world.changed(instances=3)
    assert {name for kind, name in world.objects if kind == "PersistentVolumeClaim"} == {
        names.volume(NAME, number) for number in (1, 2, 4)
    }


async def test_the_volume_of_a_member_that_left_can_be_retained() -> None:
    world = await running(instances=3, storage={"onScaleDown": "Retain"})
    await world.changed(instances=2)
    kept = world.objects["PersistentVolumeClaim", f"{NAME}-3-data"]
    assert kept["metadata"]["labels"][names.RETIRED] == "true"
    await world.changed(instances=3)
    assert world.voters() == {1, 2, 4}  # the retained volume is nobody's again


async def test_a_member_whose_volume_is_lost_is_replaced_by_a_new_one() -> None:
    world = await running()
    del world.objects["Pod", f"{NAME}-2"]
    del world.objects["PersistentVolumeClaim", f"{NAME}-2-data"]
    world.processes.pop(2)
    await world.settle()
    assert len(world.voters()) == 3
    assert Reason.MEMBER_LOST in {event.reason for event in world.events}


async def test_a_lost_database_is_replaced_although_a_witness_has_to_wait_for_it() -> None:
    world = await running(instances=2, witnesses=1)
    for key in [("PersistentVolumeClaim", f"{NAME}-2-data"), ("Pod", f"{NAME}-2")]:
        world.mark_deleted(key)
    await world.settle()
    assert world.voters() == {1, 3, 4}
    assert condition(world, "Ready")["status"] == "True"


async def test_a_volume_deleted_under_a_running_member_makes_it_leave_and_come_anew() -> None:
    world = await running()
    world.objects["PersistentVolumeClaim", f"{NAME}-2-data"]["metadata"]["deletionTimestamp"] = "t"
    await world.settle()
    assert len(world.voters()) == 3
    assert not [
        key for key, item in world.objects.items() if "deletionTimestamp" in item["metadata"]
    ]


async def test_all_pods_deleted_at_once_come_back_with_their_volumes() -> None:
    world = await running()
    volumes = {k: v["metadata"]["uid"] for k, v in world.objects.items() if "Volume" in k[0]}
    for number in (1, 2, 3):
        del world.objects["Pod", f"{NAME}-{number}"]
    world.processes.clear()
    await world.settle()
    assert condition(world, "Ready")["status"] == "True"
    after = {k: v["metadata"]["uid"] for k, v in world.objects.items() if "Volume" in k[0]}
    assert after == volumes


async def test_without_a_quorum_nothing_is_replaced_and_the_missing_are_named() -> None:
    world = await running()
    for number in (2, 3):
        del world.objects["Pod", f"{NAME}-{number}"]
        del world.objects["PersistentVolumeClaim", f"{NAME}-{number}-data"]
        world.processes.pop(number)
    await world.settle()
    blocked = condition(world, "RecoveryBlocked")
    assert blocked["status"] == "True"
    assert f"{NAME}-2, {NAME}-3" in blocked["message"]
    assert [key for key in world.objects if key[0] == "PersistentVolumeClaim"] == [
        ("PersistentVolumeClaim", f"{NAME}-1-data")
    ]


async def test_a_changed_parameter_restarts_the_members_one_at_a_time_the_proposer_last() -> None:
    world = await running()
    world.writes.clear()
    await world.changed(postgres={"parameters": {"work_mem": "8MB"}})
    deleted = [write for write in world.writes if write.startswith("delete Pod")]
    assert deleted == [f"delete Pod {NAME}-{number}" for number in (2, 3, 1)]
    config = world.objects["ConfigMap", f"{NAME}-1"]["data"]["pgherd.conf"]
    assert "work_mem = '8MB'" in config


async def waiting_for_a_reader() -> World:
    """A herd with a reader that gets no node."""
    world = await running()
    world.unscheduled = {65}
    await world.changed(readers=1)
    assert "herd-65 has yet to" in world.resource["status"]["step"]
    return world


async def test_a_lost_database_does_not_wait_for_a_reader_that_does_not_come_up() -> None:
    world = await waiting_for_a_reader()
    world.objects.pop(("PersistentVolumeClaim", f"{NAME}-2-data"))
    world.objects.pop(("Pod", f"{NAME}-2"))
    world.processes.pop(2)
    await world.settle()
    assert len(world.voters()) == 3


async def test_a_herd_shrinks_in_spite_of_a_reader_that_does_not_come_up() -> None:
    world = await waiting_for_a_reader()
    await world.changed(instances=2)
    assert world.voters() == {1, 2}


async def broken_at_the_first_member() -> World:
    """A herd of which a bad change of the spec has broken the member that got it first."""
    world = await running()
    world.change(postgres={"parameters": {"application_name": "broken"}})
    for _ in range(30):
        await world.reconcile()
        world.tick()
    assert [n for n in (1, 2, 3) if world.works(n)] == [1, 3]
    return world


async def test_a_pod_that_never_ends_does_not_hold_up_the_spec_that_heals_another() -> None:
    world = await broken_at_the_first_member()
    world.dead_nodes = {3}  # its node is gone, and the control plane has deleted its pod
    world.mark_deleted(("Pod", f"{NAME}-3"))
    world.tick()
    assert not world.primary()
    world.now += timedelta(minutes=5)
    await world.changed(postgres={"parameters": {}})
    assert world.primary()
    assert world.works(2)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_of_a_herd_that_shrinks_the_member_goes_that_does_not_work(number: int) -> None:
    world = await running()
    world.dead_nodes = {number}
    world.tick()
    await world.changed(instances=2)
    assert world.voters() == {1, 2, 3} - {number}
    assert condition(world, "Ready")["status"] == "True"


async def test_a_herd_that_shrinks_breaks_off_no_maintenance() -> None:
    world = await running()
    world.processes[2].maintained = True
    await world.changed(instances=2)
    assert 2 in world.voters()


@pytest.mark.parametrize("serves", [False, True])
async def test_a_rollout_waits_for_maintenance_and_says_so(*, serves: bool) -> None:
    world = await running()
    world.processes[2].maintained, world.processes[2].serves = True, serves
    world.change(postgres={"parameters": {"work_mem": "8MB"}})
    world.writes.clear()
    for _ in range(10):
        await world.reconcile()
        world.tick()
    assert not [write for write in world.writes if write.startswith("delete Pod")]
    assert "member 2 is in maintenance" in world.resource["status"]["step"]
    world.processes[2].maintained = False
    await world.settle()
    deleted = [write for write in world.writes if write.startswith("delete Pod")]
    assert deleted == [f"delete Pod {NAME}-{number}" for number in (2, 3, 1)]


async def test_a_bad_change_stops_at_the_first_member_and_the_next_change_heals_it() -> None:
    world = await broken_at_the_first_member()
    await world.changed(postgres={"parameters": {}})
    assert condition(world, "Ready")["status"] == "True"


async def test_a_diverged_member_is_made_anew_when_the_others_are_well() -> None:
    world = await running()
    old = world.processes[2].disk_id
    world.processes[2].diverged = True
    world.diverged_disks.add(old)
    await world.settle()
    assert len(world.voters()) == 3
    assert world.view is not None
    assert old not in {member.disk_id for member in world.view.members}


async def test_nobody_leaves_a_herd_that_is_too_small_already() -> None:
    world = await running(instances=3, witnesses=2)
    world.processes[2].diverged = True
    world.diverged_disks.add(world.processes[2].disk_id)
    world.change(witnesses=0)
    await world.settle()  # the surplus witnesses stay until the third database votes again
    assert len(world.voters()) == 3


async def test_an_event_is_told_once_while_its_step_goes_on() -> None:
    world = await running()
    world.change(instances=4)
    world.events.clear()
    for _ in range(4):
        await world.reconcile()  # nobody else acts: the same volume is waited for
    told = [event.message for event in world.events]
    assert len(told) == len(set(told))


async def test_a_silent_member_is_left_alone() -> None:
    world = await running()
    world.processes[2].silent = True
    before = list(world.writes)
    await world.settle()
    assert world.writes == before
    assert condition(world, "Ready")["status"] == "False"


async def test_a_member_that_the_others_evicted_is_replaced_by_a_new_one() -> None:
    world = await running()
    world.drop(3)
    await world.settle()
    assert len(world.voters()) == 3
    assert world.writes.count("delete PersistentVolumeClaim herd-3-data") == 1


async def test_a_dead_node_keeps_nobody_waiting_once_its_volume_is_given_up() -> None:
    world = await running()
    world.dead_nodes.add(2)
    world.tick()
    world.objects["Pod", f"{NAME}-2"]["metadata"]["deletionTimestamp"] = "t"
    world.drop(2)  # the others have evicted it
    world.objects["PersistentVolumeClaim", f"{NAME}-2-data"]["metadata"]["deletionTimestamp"] = "t"
    await world.settle()
    assert world.voters() == {1, 3, 4}


async def test_hibernation_keeps_the_volumes_and_wakes_up_by_itself() -> None:
    world = await running()
    await world.changed(hibernated=True)
    assert not world.processes
    assert condition(world, "Ready")["reason"] == "Hibernated"
    await world.changed(hibernated=False)
    assert condition(world, "Ready")["status"] == "True"


@pytest.mark.parametrize(("policy", "left"), [("Retain", 3), ("Delete", 0)])
async def test_deletion_does_with_the_volumes_what_the_policy_says(policy: str, left: int) -> None:
    world = await running(deletionPolicy=policy)
    await world.removed(ticking=True)
    for _ in range(3):
        world.tick()
    assert len([key for key in world.objects if key[0] == "PersistentVolumeClaim"]) == left
    assert not [key for key in world.objects if key[0] in ("Pod", "Service", "ConfigMap")]


async def test_a_resource_created_again_goes_on_with_the_retained_volumes() -> None:
    world = await running()
    identity = world.cluster_id()
    password = world.objects["Secret", f"{NAME}-app"]["data"]["password"]
    await world.removed()
    for _ in range(3):
        world.tick()
    world.submit()
    await world.settle()
    assert condition(world, "Ready")["status"] == "True"
    assert world.cluster_id() == identity
    assert world.objects["Secret", f"{NAME}-app"]["data"]["password"] == password


async def test_a_lost_password_is_not_made_anew_under_running_members() -> None:
    world = await running()
    del world.objects["Secret", f"{NAME}-superuser"]
    await world.settle()
    assert ("Secret", f"{NAME}-superuser") not in world.objects
    assert condition(world, "Progressing")["reason"] == "CredentialsMissing"


@pytest.mark.parametrize("secret", ["superuser", "app", "ca"])
async def test_pods_that_are_gone_are_made_again_though_a_password_or_the_ca_is_lost(
    secret: str,
) -> None:
    world = await running()
    kept = world.objects.pop(("Secret", f"{NAME}-{secret}"))
    for number in (2, 3):
        world.mark_deleted(("Pod", f"{NAME}-{number}"))
    await world.settle()
    assert {number for number in (1, 2, 3) if world.works(number)} == {1, 2, 3}
    assert condition(world, "Progressing")["reason"] == "CredentialsMissing"
    written = len(world.writes)
    world.change(postgres={"parameters": {"work_mem": "8MB"}})  # a new pod might not start
    await world.settle()
    assert not [one for one in world.writes[written:] if one.startswith("delete")]
    await world.changed(hibernated=True)
    assert not [name for kind, name in world.objects if kind == "Pod"]
    world.objects["Secret", f"{NAME}-{secret}"] = kept
    await world.changed(hibernated=False)
    assert condition(world, "Ready")["status"] == "True"


async def test_drift_is_repaired() -> None:
    world = await running()
    wanted = copy.deepcopy(world.objects["Service", f"{NAME}-rw"]["spec"])
    world.objects["Service", f"{NAME}-rw"]["spec"]["selector"] = {"app": "other"}
    world.objects["Service", f"{NAME}-rw"]["spec"]["clusterIP"] = "10.0.0.1"
    del world.objects["PodDisruptionBudget", NAME]
    del world.objects["ConfigMap", f"{NAME}-2"]
    world.events.clear()
    await world.settle()
    told = [event.message for event in world.events if event.reason is Reason.OBJECTS_APPLIED]
    assert sorted(told) == [
        f"making or changing ConfigMap {NAME}-2",
        f"making or changing Service {NAME}-rw, PodDisruptionBudget {NAME}",
    ]
    assert Reason.MEMBER_STARTING not in [event.reason for event in world.events]
    assert world.objects["Service", f"{NAME}-rw"]["spec"] == wanted
    assert {("PodDisruptionBudget", NAME), ("ConfigMap", f"{NAME}-2")} <= world.objects.keys()


@pytest.mark.parametrize("value", [None, "reader"])
@pytest.mark.parametrize("label", [names.CLUSTER, names.ROLE])
async def test_a_pod_whose_labels_somebody_took_away_is_made_anew(
    label: str, value: str | None
) -> None:
    # Services, the budget and the policy find it by them.
    world = await running()
    metadata = world.objects["Pod", f"{NAME}-2"]["metadata"]
    before = dict(metadata["labels"])
    metadata["labels"][label] = value
    if value is None:
        del metadata["labels"][label]
    await world.settle()
    found = world.objects["Pod", f"{NAME}-2"]["metadata"]
    assert found["labels"] == before
    assert found["uid"] != metadata["uid"]
    assert [write for write in world.writes if write.startswith("delete Pod")] == [
        f"delete Pod {NAME}-2"
    ]
    assert condition(world, "Ready")["status"] == "True"


def test_a_pod_is_known_by_its_name_though_its_labels_are_gone() -> None:
    item: dict[str, Any] = {"metadata": {"name": f"{NAME}-2", "uid": "u"}}
    pod = parse_pod(labelled(item, NAME, {}))
    assert (pod.number, pod.role, pod.revision) == (2, Role.DATABASE, "")


async def test_a_certificate_that_lost_a_key_is_issued_again() -> None:
    world = await running()
    del world.objects["Secret", f"{NAME}-2-tls"]["data"]["tls.key"]
    await world.settle()
    assert world.objects["Secret", f"{NAME}-2-tls"]["data"]["tls.key"]


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
@pytest.mark.parametrize("number", [None, "x", "1"])
@pytest.mark.parametrize("owned", [False, True])
async def test_objects_of_others_under_the_label_of_the_herd_change_nothing(
    kind: str, number: str | None, owned: bool
) -> None:
    world = await running()
    writes = list(world.writes)
    original = world.objects[kind, f"{NAME}-1" if kind == "Pod" else f"{NAME}-1-data"]
    stranger = copy.deepcopy(original)
    labels = stranger["metadata"]["labels"] | {names.MEMBER: number}
    stranger["metadata"] |= {"name": "a-stranger", "uid": "uid-of-a-stranger", "labels": {
        name: value for name, value in labels.items() if value is not None
    }}  # fmt: skip
    if not owned:
        stranger["metadata"].pop("ownerReferences", None)
    world.objects = {**world.objects, (kind, "a-stranger"): stranger}
    await world.reconcile()
    assert world.writes == writes
    del world.objects[kind, "a-stranger"]
    await world.settle()


async def test_cert_manager_is_asked_for_what_the_members_need() -> None:
    issuer = {"name": "ours", "kind": "ClusterIssuer"}
    world = await running(tls={"mode": "CertManager", "issuer": issuer, "validityDays": 30})
    asked = {name: item["spec"] for (kind, name), item in world.objects.items()
             if kind == "Certificate"}  # fmt: skip
    members = {f"{NAME}-{number}-tls" for number in (1, 2, 3)}
    assert asked.keys() == members | {f"{NAME}-operator-tls", f"{NAME}-jobs-tls"}
    cluster_id = world.resource["status"]["clusterId"]
    one = asked[f"{NAME}-1-tls"]
    assert one["issuerRef"] == issuer | {"group": "cert-manager.io"}
    assert (one["commonName"], one["subject"]) == (f"{NAME}-1", {"organizations": [cluster_id]})
    assert f"{NAME}-1.{cluster_id}.pgherd" in one["dnsNames"]
    assert ("Secret", f"{NAME}-ca") not in world.objects
    world.objects["Certificate", f"{NAME}-1-tls"]["spec"] = one | {"dnsNames": []}
    await world.settle()
    assert world.objects["Certificate", f"{NAME}-1-tls"]["spec"] == one


async def test_more_witnesses_may_come_later() -> None:
    world = await running(instances=3)
    await world.changed(witnesses=1)
    assert world.view is not None
    assert [member.witness for member in world.view.voters] == [False] * 3 + [True]


async def test_readers_come_and_go_and_hold_up_no_voter() -> None:
    world = await running(instances=3, readers=2)
    assert world.view is not None
    readers = [member.number for member in world.view.members if member.reader]
    assert readers == [65, 66] and world.voters() == {1, 2, 3}
    service = world.objects["Service", f"{NAME}-readers"]["spec"]
    assert service["selector"][names.ROLE] == "reader"
    budget = world.objects["PodDisruptionBudget", NAME]["spec"]
    assert budget["minAvailable"] == 2
    assert budget["selector"]["matchExpressions"] == [
        {"key": names.ROLE, "operator": "NotIn", "values": ["reader"]}
    ]
    shown = {one["name"]: one for one in world.resource["status"]["members"]}
    assert shown[f"{NAME}-65"]["role"] == shown[f"{NAME}-65"]["inView"] == "Reader"
    world.processes[65].broken = True
    await world.changed(instances=4, readers=1)
    assert world.voters() == {1, 2, 3, 4}
    assert [member.number for member in world.view.members if member.reader] == [66]
    await world.changed(readers=0)
    assert {member.number for member in world.view.members} == {1, 2, 3, 4}


async def test_paused_means_that_nothing_is_written() -> None:
    world = await running()
    world.change(maintenance={"paused": True}, instances=5)
    world.writes.clear()
    await world.settle()
    assert world.writes == []


async def test_a_paused_herd_does_not_claim_to_do_what_waits_for_it() -> None:
    world = await running()
    world.change(maintenance={"paused": True}, postgres={"parameters": {"work_mem": "8MB"}})
    await world.settle()
    for kind in ("Ready", "Progressing"):
        told = condition(world, kind)
        assert (told["status"], told["reason"]) == ("False", "Paused")
        assert "is not done: herd-2 is out of date: replacing its pod" in told["message"]
    assert world.resource["status"]["step"] == condition(world, "Progressing")["message"]
    world.change(maintenance={"paused": True}, hibernated=True)
    await world.settle()
    assert condition(world, "Ready")["reason"] == "Paused"
    await world.changed(maintenance={"paused": False}, hibernated=False)
    assert condition(world, "Ready")["status"] == "True"


async def test_a_paused_herd_that_lacks_nothing_is_ready() -> None:
    world = await running()
    world.change(maintenance={"paused": True})
    await world.settle()
    assert condition(world, "Ready")["status"] == "True"
    assert condition(world, "Progressing")["reason"] == "Paused"


async def test_the_partition_policy_reaches_the_sidecars() -> None:
    world = await running(partitionPolicy="Permanent")
    config = world.objects["ConfigMap", f"{NAME}-1"]
    assert json.loads(config["data"]["node.json"])["partition_policy"] == "permanent"


async def test_the_settings_of_the_scrub_reach_the_sidecars_where_they_are_others() -> None:
    world = await running(maintenance={"scrubHours": 24, "scrubShare": 10})
    config = world.objects["ConfigMap", f"{NAME}-1"]
    told = json.loads(config["data"]["node.json"])["scrub"]
    assert told == {"interval_s": 86_400, "share": 10}
    world = await running()
    assert "scrub" not in json.loads(world.objects["ConfigMap", f"{NAME}-1"]["data"]["node.json"])


async def test_an_edited_status_changes_nothing() -> None:
    world = await running()
    world.resource["status"] = {"clusterId": "another", "members": "nonsense", "conditions": 3}
    before = list(world.writes)
    await world.settle()
    assert world.writes == before
    assert condition(world, "Ready")["status"] == "True"


async def test_a_spec_that_only_an_older_crd_let_pass_is_answered_in_the_status() -> None:
    world = World()
    world.submit(instances=1, witnesses=1)
    await world.reconcile()
    assert world.resource["status"]["step"].startswith("InvalidSpec: spec: ")
    assert world.writes == []


async def test_no_secret_leaves_its_object() -> None:
    world = await running()
    password = world.objects["Secret", f"{NAME}-app"]["data"]["password"]
    others = {key: item for key, item in world.objects.items() if key[0] != "Secret"}
    assert password not in str(others) + str(world.events)
