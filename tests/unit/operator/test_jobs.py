"""Snapshots, checks and schedules: each is done once, and its end is told whatever happens."""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from jobs_world import CLUSTER_ID, HERD, JOB, VOLUME, WRITTEN, JobsWorld
from operator_api_server import Fault, Killed
from pgherd_operator.api import CHECK, SCHEDULE, SNAPSHOT
from pgherd_operator.objects import names
from pgherd_operator.shell.kube.interface import ApiError
from pgherd_spark.kubernetes import Order
from pydantic import ValidationError

Kind = Literal["Snapshot", "ConsistencyCheck"]


def world(kind: str = SNAPSHOT, *, spark: bool = True, **spec: Any) -> JobsWorld:
    """A herd, and a job to do."""
    found = JobsWorld(spark=spark)
    found.found_herd()
    found.submit(kind, **spec)
    return found


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods' specs in what does a job."""
    spec = manifest["spec"]
    if manifest["kind"] == "Job":
        return [spec["template"]["spec"]]
    return [spec[role]["template"]["spec"] for role in ("driver", "executor")]


def order(manifest: dict[str, Any]) -> Order:
    """What the driver is told, as it reads it."""
    spec = manifest["spec"]
    if manifest["kind"] == "Job":
        *_, text = spec["template"]["spec"]["containers"][0]["args"]
    else:
        (text,) = spec["arguments"]
    return Order.model_validate_json(text)


@pytest.mark.parametrize("spark", [True, False])
async def test_a_snapshot_is_made_followed_and_told_of(spark: bool) -> None:
    it = world(spark=spark, keep=7, read=2)
    await it.look()
    made = it.workload()
    assert made is not None and made["kind"] == ("SparkApplication" if spark else "Job")
    assert it.status()["phase"] == "Pending"
    it.runs()
    await it.look()
    assert (it.status()["phase"], it.status()["progress"]) == ("Running", "10.0.0.1: 3/7")
    it.ends(WRITTEN)
    await it.look()
    status = it.status()
    assert (status["phase"], status["gid"], status["rows"]) == ("Succeeded", 42, 1000)
    assert "1000 rows of 3 tables at GID 42" in status["message"]
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions["Complete"] == ("True", "SnapshotWritten")
    assert conditions["SparkOperator"][0] == str(spark)
    missing = [] if spark else ["SparkOperatorMissing"]
    assert it.reasons() == ["JobStarted", *missing, "SnapshotWritten"]
    assert it.created == [f"{JOB}-snapshot"]


async def test_a_job_waits_for_its_herd_and_says_so() -> None:
    it = JobsWorld()
    it.submit()
    await it.look()
    assert it.created == []
    assert HERD in it.status()["message"]
    it.found_herd()
    await it.look()
    assert it.created == [f"{JOB}-snapshot"]


@pytest.mark.parametrize("fault", ["error", "lost-answer", "killed-before", "killed-after"])
@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("spark", [True, False])
async def test_a_job_is_done_once_whatever_becomes_of_the_operator(
    fault: Fault, after: int, spark: bool
) -> None:
    it = world(spark=spark)
    it.fault = after, fault
    for _ in range(12):
        try:
            await it.look()
        except (ApiError, Killed):
            continue
        if it.workload() is not None and it.status().get("phase") == "Running":
            it.ends(WRITTEN)
        elif it.workload() is not None and it.status().get("phase") == "Pending":
            it.runs()
    assert it.created == [f"{JOB}-snapshot"]
    assert it.status()["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("outcome", "reason", "warned"),
    [
        (
            {
                "verdict": "consistent", "gid": 7, "tables": 2, "members": ["herd-1", "herd-3"],
                "left_out": ["herd-2: down"],
            },
            "MembersAgree", False,
        ),
        (
            {
                "verdict": "different", "gid": 7, "tables": 2, "different_tables": ["public.t"],
                "different_rows": 1, "odd_members": ["herd-2"],
            },
            "MembersDiffer", True,
        ),
        (
            {"verdict": "incomplete", "gid": 7, "tables": 2, "not_compared": ["public.u"]},
            "ComparisonIncomplete", True,
        ),
        ({"verdict": "of a newer release", "gid": 7}, "ComparisonIncomplete", True),
    ],
    ids=str,
)  # fmt: skip
async def test_the_verdict_of_a_check_is_that_of_its_driver(
    outcome: dict[str, Any], reason: str, warned: bool
) -> None:
    it = world(CHECK)
    await it.look(CHECK)
    it.ends(outcome)
    await it.look(CHECK)
    assert it.status(CHECK)["phase"] == "Succeeded"
    last = it.events[-1]
    assert (last.reason.value, last.kind == "Warning") == (reason, warned)
    for field in ("different_tables", "odd_members", "members", "left_out"):
        assert all(name in last.message for name in outcome.get(field, ()))
    assert it.status(CHECK).get("members", []) == outcome.get("members", [])
    assert it.status(CHECK).get("leftOut", []) == outcome.get("left_out", [])


@pytest.mark.parametrize(("kind", "readers"), [(CHECK, [f"{HERD}-33"]), (SNAPSHOT, [])])
async def test_a_check_compares_readers_too(kind: str, readers: list[str]) -> None:
    it = world(kind)
    it.add_member(33, "reader")
    await it.look(kind)
    made = it.workload()
    assert made is not None
    asked = order(made).members
    assert [one.name for one in asked if not one.reader] == [f"{HERD}-{n}" for n in (1, 2, 3)]
    assert [one.name for one in asked if one.reader] == readers


@pytest.mark.parametrize("spark", [True, False])
async def test_a_driver_that_ends_without_a_word_has_failed(spark: bool) -> None:
    it = world(spark=spark)
    await it.look()
    it.ends(None, 137, "OOMKilled")
    await it.look()
    assert it.status()["phase"] == "Failed"
    assert "OOMKilled, exit status 137" in it.status()["message"]


async def test_a_driver_s_end_is_one_even_if_the_spark_operator_has_not_noticed() -> None:
    it = world()
    await it.look()
    it.ends(None, 1, "Error")
    made = it.workload()
    assert made is not None
    made["status"] = {"applicationState": {"state": "RUNNING"}}
    await it.look()
    assert it.status()["phase"] == "Failed"


async def test_a_success_without_a_word_is_none() -> None:
    it = world()
    await it.look()
    it.ends(None, 0)
    await it.look()
    assert it.status()["phase"] == "Failed"


async def test_what_the_driver_complains_of_is_told() -> None:
    it = world()
    await it.look()
    it.ends({"error": "herd-2: the snapshot is gone"}, 1)
    await it.look()
    assert it.status()["message"] == "herd-2: the snapshot is gone"
    assert it.reasons()[-1] == "JobFailed"


def warn(it: JobsWorld, uid: str, reason: str, message: str) -> None:
    """Somebody writes an Event about an object."""
    it.objects["Event", it.uid()] = {
        "metadata": {"namespace": "test"}, "type": "Warning", "reason": reason, "message": message,
        "involvedObject": {"uid": uid}, "lastTimestamp": it.now.isoformat(),
    }  # fmt: skip


@pytest.mark.parametrize("spark", [True, False])
async def test_who_keeps_a_driver_from_its_volumes_is_heard_in_events(spark: bool) -> None:
    it = world(spark=spark)
    await it.look()
    it.runs()
    it.objects["Pod", "driver"]["status"] = {"phase": "Pending"}
    warn(it, "pod", "FailedMount", 'MountVolume.SetUp failed: secret "herd-jobs-tls" not found')
    await it.look()
    assert it.status()["phase"] == "Running"
    assert 'FailedMount: MountVolume.SetUp failed: secret "herd-jobs' in it.status()["message"]
    it.runs()
    await it.look()
    assert it.status()["message"] == ""


async def test_a_job_whose_pod_is_refused_says_so() -> None:
    it = world(spark=False)
    await it.look()
    workload = it.workload()
    assert workload is not None
    warn(it, workload["metadata"]["uid"], "FailedCreate", "Error creating: exceeded quota: pods")
    await it.look()
    assert "exceeded quota: pods" in it.status()["message"]


@pytest.mark.parametrize(
    "newer",
    [
        {"conditions": [{"type": "Archived", "status": "True", "reason": "Done",
                         "lastTransitionTime": "2030-01-01T00:00:00Z"}]},
        {"phase": "Archiving"},
        {"tables": "many", "conditions": "none"},
    ],
)  # fmt: skip
async def test_what_a_newer_operator_has_told_keeps_no_job_from_its_end(
    newer: dict[str, Any],
) -> None:
    it = world()
    await it.look()
    it.runs()
    await it.look()
    it.objects[SNAPSHOT, JOB]["status"] |= newer
    await it.look()
    assert it.status()["phase"] == "Running"
    it.ends(WRITTEN)
    await it.look()
    assert it.status()["phase"] == "Succeeded"
    assert {one["type"] for one in it.status()["conditions"]} == {"Complete", "SparkOperator"}
    assert len(it.created) == 1


async def test_a_phase_of_a_newer_operator_begins_nothing_and_stops_no_schedule() -> None:
    it = world(SCHEDULE, schedule="* * * * *")
    it.passes(minutes=1)
    await it.look(SCHEDULE)
    (name,) = [name for kind, name in it.objects if kind == SNAPSHOT]
    it.objects[SNAPSHOT, name]["status"] = {"phase": "Archiving", "conditions": [{"type": "?"}]}
    it.objects[SCHEDULE, JOB]["status"]["active"] = ["a list"]
    before = it.status(SCHEDULE)["lastScheduleTime"]
    await it.look(SCHEDULE)
    assert it.status(SCHEDULE)["active"] == name
    assert it.status(SCHEDULE)["lastScheduleTime"] == before
    await it.look(name=name)
    assert it.created == []


@pytest.mark.parametrize("spark", [True, False])
async def test_what_does_a_job_is_known_by_its_name_though_somebody_takes_its_labels(
    *, spark: bool
) -> None:
    it = world(spark=spark)
    await it.look()
    it.runs()
    await it.look()
    made = it.workload()
    assert made is not None
    made["metadata"]["labels"] = {}
    await it.look()
    assert it.status()["phase"] == "Running"
    assert len(it.created) == 1


async def test_an_executor_that_fails_is_not_the_end() -> None:
    it = world()
    await it.look()
    made = it.workload()
    assert made is not None
    labels = made["metadata"]["labels"] | {"spark-role": "executor"}
    it.objects["Pod", "a-1"] = {  # before the driver in the list
        "metadata": {"name": "a-1", "uid": "p", "labels": labels}, "status": {"phase": "Failed"},
    }  # fmt: skip
    it.runs()
    await it.look()
    assert it.status()["progress"] == "10.0.0.1: 3/7"


async def test_what_takes_too_long_is_ended() -> None:
    it = world(deadlineSeconds=600)
    await it.look()
    it.runs()
    await it.look()
    it.passes(seconds=601)
    await it.look()
    assert it.workload() is None
    assert it.reasons()[-1] == "DeadlineExceeded"
    await it.look()
    assert it.status()["phase"] == "Failed"
    assert it.created == [f"{JOB}-snapshot"]


async def test_an_application_that_nobody_takes_fails_with_advice() -> None:
    it = world()
    await it.look()
    it.passes(minutes=16)
    await it.look()
    assert it.workload() is None
    assert "spark.jobNamespaces" in it.status()["message"]


def remove_workload(it: JobsWorld) -> None:
    """Somebody deletes what does the job, or its day after the end is over."""
    made = it.workload()
    assert made is not None
    it.mark_deleted((made["kind"], made["metadata"]["name"]))
    it.objects.pop(("Pod", "driver"), None)


@pytest.mark.parametrize("spark", [True, False])
async def test_an_end_that_nobody_saw_is_told_as_unknown_and_the_job_not_begun_again(
    spark: bool,
) -> None:
    it = world(spark=spark)
    await it.look()
    it.runs()
    await it.look()
    it.ends(WRITTEN)
    it.passes(days=2)  # without an operator
    remove_workload(it)
    await it.look()
    assert it.status()["phase"] == "Failed"
    (complete,) = [one for one in it.status()["conditions"] if one["type"] == "Complete"]
    assert (complete["status"], complete["reason"]) == ("Unknown", "OutcomeUnknown")
    assert "nobody has seen how it ended" in it.status()["message"]
    assert [event.kind for event in it.events if event.reason == "OutcomeUnknown"] == ["Warning"]
    assert it.created == [f"{JOB}-snapshot"]


async def test_what_was_begun_and_has_gone_before_the_next_look_is_not_begun_again() -> None:
    it = world()
    await it.look()
    assert it.status()["phase"] == "Pending"
    remove_workload(it)
    await it.look()
    assert it.created == [f"{JOB}-snapshot"]
    assert "nobody has seen how it ended" in it.status()["message"]


@pytest.mark.parametrize("ttl", [{}, {"ttlSecondsAfterFinished": 10**6}])
async def test_an_end_that_was_seen_stays_when_what_did_it_is_gone(ttl: dict[str, Any]) -> None:
    it = world(**ttl)
    await it.look()
    it.ends(WRITTEN)
    await it.look()
    before = it.status()
    for days in (0, 2):
        it.passes(days=days)
        if it.workload() is not None:
            remove_workload(it)
        await it.look()
        assert it.status() == before
    assert before["phase"] == "Succeeded"


async def test_the_workload_of_an_older_resource_of_the_name_is_not_taken_for_ours() -> None:
    it = world()
    await it.look()
    it.ends(WRITTEN)
    it.objects[SNAPSHOT, JOB]["metadata"]["uid"] = "another"
    it.objects[SNAPSHOT, JOB].pop("status", None)
    await it.look()
    assert it.status()["phase"] == "Pending"
    assert "has to go first" in it.status()["message"]


async def test_a_resource_goes_when_its_time_is_over() -> None:
    it = world(ttlSecondsAfterFinished=100)
    await it.look()
    it.ends(WRITTEN)
    await it.look()
    assert await it.look() == 100.0
    it.passes(seconds=100)
    await it.look()
    assert (SNAPSHOT, JOB) not in it.objects
    assert it.workload() is None  # it was owned


async def test_a_wanted_runner_is_waited_for_and_not_replaced() -> None:
    it = world(spark=False, spec={})
    it.objects[SNAPSHOT, JOB]["spec"] = {
        "cluster": HERD, "destination": VOLUME, "spark": {"runner": "SparkApplication"},
    }  # fmt: skip
    await it.look()
    assert it.created == []
    it.spark = True
    await it.look()
    assert it.created == [f"{JOB}-snapshot"]


@pytest.mark.parametrize("spark", [True, False])
async def test_the_driver_understands_its_order(spark: bool) -> None:
    it = world(spark=spark, keep=7, read=2, partSize="1Mi", series="nightly")
    await it.look()
    made = it.workload()
    assert made is not None
    asked = order(made)
    assert (asked.job, asked.cluster_id, asked.keep, asked.read) == ("snapshot", CLUSTER_ID, 7, 2)
    assert asked.destination == "/var/lib/pgherd-jobs/herd"
    assert (asked.part_bytes, asked.share, asked.series) == (1 << 20, 100, "nightly")
    assert [one.host for one in asked.members] == [
        f"herd-{number}.herd-peers.test.svc" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(("given", "share"), [({}, 15), ({"share": 7}, 7)])
async def test_a_check_leaves_most_of_each_member_alone(given: dict[str, Any], share: int) -> None:
    it = world(CHECK, **given)
    await it.look(CHECK)
    made = it.workload()
    assert made is not None
    assert (order(made).job, order(made).share) == ("check", share)


async def test_a_bucket_is_reached_with_the_credentials_of_its_secret() -> None:
    s3 = {"bucket": "lake", "prefix": "a/b", "endpoint": "http://s3:9000", "credentials": "keys"}
    it = world(destination={"s3": s3})
    await it.look()
    made = it.workload()
    assert made is not None
    assert (order(made).destination, order(made).endpoint) == ("s3://lake/a/b", "http://s3:9000")
    for pod in pods(made):
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys"}}]


@pytest.mark.parametrize("spark", [True, False])
async def test_pods_of_jobs_are_restricted_and_not_taken_for_members(spark: bool) -> None:
    it = world(spark=spark)
    await it.look()
    made = it.workload()
    assert made is not None
    for pod in pods(made):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        }
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    spec = made["spec"]
    labels = (
        [spec[role]["labels"] for role in ("driver", "executor")]
        if spark
        else [spec["template"]["metadata"]["labels"]]
    )
    for found in labels:
        assert names.CLUSTER not in found  # services and budgets select by it
        assert found[names.JOB_OF] == HERD  # so that members hear them


async def test_a_heap_in_the_letters_of_spark_is_refused_before_a_pod_is_made() -> None:
    it = JobsWorld()
    it.found_herd()
    it.submit(spark={"memory": "512m"})  # half a byte
    await it.look()
    assert it.created == []
    assert "spark.memory is at least 512Mi" in it.status()["message"]


@pytest.mark.parametrize(
    "spec",
    [
        {"destination": {}},
        {"destination": {**VOLUME, "s3": {"bucket": "lake"}}},
        {"destination": {"volumeClaim": {"name": "backups", "path": "../etc"}}},
        {"destination": {"volumeClaim": {"name": "backups", "path": "/etc"}}},
        {"cluster": "herd;x"},
        {"deadlineSeconds": 100000},
        {"partSize": "256m"},
    ],
    ids=str,
)
async def test_nonsense_is_refused_and_said(spec: dict[str, Any]) -> None:
    it = world(**spec)
    await it.look()
    assert it.created == []
    assert it.status()["message"].startswith("spec.")


def test_orders_of_another_release_are_refused() -> None:
    with pytest.raises(ValidationError):
        Order.model_validate({"job": "snapshot", "unknown": 1})


# ---- schedules -------------------------------------------------------------------------------


def scheduled(it: JobsWorld) -> list[str]:
    """The Snapshots that were made, oldest first."""
    return sorted(name for kind, name in it.objects if kind == SNAPSHOT)


async def test_a_schedule_makes_one_snapshot_each_time() -> None:
    it = world(SCHEDULE, schedule="*/10 * * * *", keep=5)
    assert await it.look(SCHEDULE) == 60.0
    assert scheduled(it) == []
    for _ in range(3):
        it.passes(minutes=10)
        await it.look(SCHEDULE)
        await it.look(SCHEDULE)
        for name in scheduled(it):
            it.objects[SNAPSHOT, name]["status"] = {"phase": "Succeeded"}
    assert len(scheduled(it)) == 3
    made = it.objects[SNAPSHOT, scheduled(it)[0]]
    assert (made["spec"]["keep"], made["spec"]["series"]) == (5, JOB)
    assert made["metadata"]["ownerReferences"][0]["kind"] == SCHEDULE


@pytest.mark.parametrize("fault", ["error", "lost-answer", "killed-before", "killed-after"])
async def test_a_time_is_dealt_with_once_whatever_becomes_of_the_operator(fault: Fault) -> None:
    it = world(SCHEDULE, schedule="*/10 * * * *")
    it.passes(minutes=10)
    it.fault = 0, fault
    for _ in range(3):
        try:
            await it.look(SCHEDULE)
        except (ApiError, Killed):
            continue
    assert len(scheduled(it)) == 1


async def test_a_snapshot_that_is_refused_is_told_of_and_tried_until_it_is_missed() -> None:
    it = world(SCHEDULE, schedule="0 * * * *", startingDeadlineSeconds=600)
    it.refused = {f"create {SNAPSHOT}": ApiError(403, "exceeded quota: snapshots")}
    it.passes(hours=1)
    for _ in range(3):
        await it.look(SCHEDULE)
    assert it.reasons() == ["SnapshotRefused"]
    assert "exceeded quota" in it.status(SCHEDULE)["message"]
    it.passes(minutes=20)
    for _ in range(3):
        await it.look(SCHEDULE)
    assert it.reasons() == ["SnapshotRefused", "SnapshotSkipped"]
    assert "exceeded quota" in it.status(SCHEDULE)["message"]
    it.refused = {}
    it.passes(minutes=40)
    await it.look(SCHEDULE)
    assert it.reasons()[2:] == ["SnapshotScheduled"]
    assert not it.status(SCHEDULE).get("message")


async def test_while_one_runs_no_other_begins() -> None:
    it = world(SCHEDULE, schedule="*/10 * * * *")
    it.passes(minutes=10)
    await it.look(SCHEDULE)
    it.passes(minutes=10)
    await it.look(SCHEDULE)
    assert len(scheduled(it)) == 1
    assert it.reasons() == ["SnapshotScheduled", "SnapshotSkipped"]
    assert it.status(SCHEDULE)["active"] == scheduled(it)[0]


async def test_what_was_missed_is_made_up_for_once_and_not_too_late() -> None:
    it = world(SCHEDULE, schedule="0 * * * *", startingDeadlineSeconds=600)
    it.passes(hours=30, minutes=5)
    await it.look(SCHEDULE)
    assert len(scheduled(it)) == 1
    it = world(SCHEDULE, schedule="0 * * * *", startingDeadlineSeconds=600)
    it.passes(hours=30, minutes=20)
    await it.look(SCHEDULE)
    assert scheduled(it) == []


@pytest.mark.parametrize("before", [{"suspend": True}, {"schedule": "50 12 1 1 *"}], ids=str)
async def test_a_time_that_was_not_wanted_then_is_not_called_missed(before: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {"schedule": "0 * * * *", "suspend": False}
    it = world(SCHEDULE, startingDeadlineSeconds=600, **wanted | before)
    for _ in range(3):
        await it.look(SCHEDULE)
        it.passes(minutes=70)
    it.objects[SCHEDULE, JOB]["spec"] |= wanted
    it.objects[SCHEDULE, JOB]["metadata"]["generation"] = 2
    for _ in range(2):
        await it.look(SCHEDULE)
    assert it.reasons() == []
    assert it.status(SCHEDULE)["message"] == ""
    it.passes(minutes=50)  # no operator meanwhile
    await it.look(SCHEDULE)
    assert it.reasons() == ["SnapshotSkipped"]


async def test_times_are_those_of_the_zone_through_a_change_of_its_clocks() -> None:
    it = world(SCHEDULE, schedule="30 2 * * *", timeZone="Europe/Berlin")
    # Clocks go from 2:00 to 3:00 on 31 March 2030: there is no 2:30, and one is made all the same.
    it.now = datetime(2030, 3, 30, 12, tzinfo=UTC)
    it.objects[SCHEDULE, JOB]["metadata"]["creationTimestamp"] = it.now.isoformat()
    await it.look(SCHEDULE)
    coming = datetime.fromisoformat(it.status(SCHEDULE)["nextScheduleTime"])
    assert coming == datetime(2030, 3, 31, 1, tzinfo=UTC)
    it.now = coming + timedelta(seconds=1)
    await it.look(SCHEDULE)
    assert len(scheduled(it)) == 1
    coming = datetime.fromisoformat(it.status(SCHEDULE)["nextScheduleTime"])
    assert coming == datetime(2030, 4, 1, 0, 30, tzinfo=UTC)


async def test_resources_of_snapshots_that_are_gone_go_too() -> None:
    it = world(SCHEDULE, schedule="*/10 * * * *", keep=2, failedHistoryLimit=1)
    for index, phase in enumerate(["Failed", "Failed", *["Succeeded"] * 4]):
        it.passes(minutes=10)
        await it.look(SCHEDULE)
        it.objects[SNAPSHOT, scheduled(it)[-1]]["status"] = {"phase": phase}
        await it.look(SCHEDULE)
        assert len(scheduled(it)) == [1, 1, 2, 3, 3, 3][index]


async def test_a_schedule_that_sleeps_makes_nothing_and_one_that_is_wrong_says_so() -> None:
    it = world(SCHEDULE, schedule="* * * * *", suspend=True)
    it.passes(minutes=5)
    await it.look(SCHEDULE)
    assert scheduled(it) == []
    wrong: list[dict[str, Any]] = [{"schedule": "61 * * * *"}, {"timeZone": "Mars/Olympus"}]
    for wrong_one in wrong:
        it = world(SCHEDULE, **{"schedule": "* * * * *", **wrong_one})
        await it.look(SCHEDULE)
        await it.look(SCHEDULE)
        assert it.reasons() == ["InvalidSchedule"]
        assert "can't be used" in it.status(SCHEDULE)["message"]
