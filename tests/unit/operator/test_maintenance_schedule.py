"""MaintenanceSchedules: a clock, and what the herd says of the runs that it was asked for."""

from typing import Any

import pytest
from maintenance_world import MaintenanceWorld, life_of_maintenance
from pgherd_operator.api import MAINTENANCE
from pgherd_operator.api.maintenance import MaintenanceSpec
from pgherd_operator.shell.kube.interface import ApiError
from pydantic import ValidationError


def world(**spec: Any) -> MaintenanceWorld:
    it = MaintenanceWorld()
    it.submit_schedule(**spec)
    return it


async def test_a_time_that_has_come_is_asked_for_once_and_its_outcome_shown() -> None:
    it = world(drain=True, oneByOne=True)
    await it.look_again()
    assert (it.judged, it.asked_for, it.condition("Ready")["status"]) == (1, [], "True")
    it.passes(minutes=10)
    await it.look_again()
    await it.look_again()
    status = it.status(MAINTENANCE)
    assert status["active"] == it.asked_for[0]["run"]
    assert len(it.asked_for) == 1
    assert it.condition("Succeeded")["reason"] == "MaintenanceRunning"
    it.ends()
    await it.look_again()
    await it.look_again()
    status = it.status(MAINTENANCE)
    assert "active" not in status
    assert status["runs"][0]["phase"] == "Succeeded"
    assert [one["seconds"] for one in status["runs"][0]["members"]] == [61, 61]
    assert it.condition("Succeeded")["status"] == "True"
    assert it.reasons() == ["MaintenanceScheduled", "MaintenanceDone"]
    assert it.judged == 1  # the spec is the one that was judged


async def test_a_failure_is_told_in_the_words_of_the_member() -> None:
    it = world()
    await it.look_again()
    it.passes(minutes=10)
    await it.look_again()
    it.ends("failed", reason="VACUUM FULL t: there is no room")
    await it.look_again()
    assert it.reasons() == ["MaintenanceScheduled", "MaintenanceFailed"]
    assert "there is no room" in it.condition("Succeeded")["message"]
    assert it.condition("Succeeded")["status"] == "False"


async def test_a_time_is_skipped_while_the_last_run_is_under_way() -> None:
    it = world()
    await it.look_again()
    for _ in range(2):
        it.passes(minutes=10)
        await it.look_again()
    assert len(it.asked_for) == 1
    assert it.reasons() == ["MaintenanceScheduled", "MaintenanceSkipped"]
    it.ends()
    it.passes(minutes=10)
    await it.look_again()
    assert len(it.asked_for) == 2


async def test_what_the_herd_refuses_is_said_once_and_done_when_it_does_not_any_more() -> None:
    it = world(sql=["DELETE FROM t"])
    it.refusal = "DELETE FROM t: it is no maintenance of one server"
    await it.look_again()
    await it.look_again()
    assert it.reasons() == ["MaintenanceRefused"]
    assert it.condition("Ready")["status"] == "False"
    assert it.refusal in it.condition("Ready")["message"]
    it.passes(minutes=10)
    it.refusal = ""
    await it.look_again()
    assert len(it.asked_for) == 1
    assert it.condition("Ready")["status"] == "True"


async def test_a_herd_that_is_not_reached_is_asked_again_until_the_time_is_over() -> None:
    it = world(startingDeadlineSeconds=120)
    await it.look_again()
    it.passes(minutes=10)
    it.states = {1: "secondary"}
    await it.look_again()
    assert it.condition("Ready")["reason"] == "HerdNotReached"
    it.passes(minutes=1)
    it.states = {1: "maintenance", 2: "primary"}
    await it.look_again()
    assert len(it.asked_for) == 1
    it.ends()
    it.passes(minutes=9)
    it.states = {}
    await it.look_again()
    it.passes(minutes=3)
    it.states = {2: "primary"}
    await it.look_again()
    assert len(it.asked_for) == 1


async def test_a_time_that_passed_unheard_is_told_of_once() -> None:
    it = world(startingDeadlineSeconds=120, schedule="0 * * * *")
    await it.look_again()
    it.passes(minutes=63)  # no operator meanwhile
    for _ in range(2):
        await it.look_again()
    assert it.asked_for == []
    assert it.reasons() == ["MaintenanceSkipped"]
    assert "01:00 UTC" in it.events[0].message
    assert it.condition("Ready")["status"] == "True"
    it.passes(minutes=56)
    it.states = {}  # and now there is no herd to ask
    await it.look_again()
    it.passes(minutes=5)
    await it.look_again()
    it.states = {2: "primary"}
    await it.look_again()
    assert it.reasons()[1:] == ["HerdNotReached", "MaintenanceSkipped"]
    assert "02:00 UTC" in it.events[-1].message
    it.passes(minutes=56)
    await it.look_again()
    assert len(it.asked_for) == 1


async def test_a_time_that_passed_while_it_was_suspended_was_not_missed() -> None:
    it = world(startingDeadlineSeconds=60, suspend=True, schedule="0 * * * *")
    for _ in range(3):
        await it.look_again()
        it.passes(minutes=61)
    it.objects[MAINTENANCE, "nightly"]["spec"]["suspend"] = False
    it.objects[MAINTENANCE, "nightly"]["metadata"]["generation"] = 2
    it.passes(minutes=20)
    await it.look_again()
    assert it.reasons() == []
    assert it.asked_for == []


async def test_a_missing_herd_and_a_wrong_time_are_said_and_one_that_sleeps_does_nothing() -> None:
    it = world(cluster="other")
    await it.look_again()
    assert "there is no ReplicatedCluster other" in it.condition("Ready")["message"]
    it = world(timeZone="Mars/Olympus")
    await it.look_again()
    assert it.reasons() == ["InvalidTimes"]
    it = world(suspend=True)
    await it.look_again()
    it.passes(minutes=30)
    await it.look_again()
    assert it.asked_for == []
    assert "nextScheduleTime" not in it.status(MAINTENANCE)


async def test_an_operator_that_dies_after_asking_does_not_ask_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = world()
    await it.look_again()
    it.passes(minutes=10)

    async def dies(*_: object, **__: object) -> None:
        raise ApiError(0, "gone")

    with monkeypatch.context() as patched:
        patched.setattr(it, "apply", dies)
        with pytest.raises(ApiError):
            await it.look_again()
    assert len(it.asked_for) == 1
    await it.look_again()
    assert len(it.asked_for) == 1


async def test_all_of_it_needs_rights_on_what_is_there() -> None:
    assert ("patch", "MaintenanceSchedule/status") in (await life_of_maintenance()).calls


def test_there_must_be_something_to_do() -> None:
    with pytest.raises(ValidationError):
        MaintenanceSpec.model_validate({"cluster": "herd", "schedule": "* * * * *", "sql": [""]})
    with pytest.raises(ValidationError, match="nothing to do"):
        MaintenanceSpec.model_validate({"cluster": "herd", "schedule": "* * * * *"})
