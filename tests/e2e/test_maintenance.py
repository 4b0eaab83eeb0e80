"""Maintenance of a herd on a real cluster: members in turns, and writers that go on."""

from typing import Any

import pytest

from .cluster import HERD, NAMESPACE, Herd, Kubectl, until
from .test_beginnings import ask

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

_FILE = "SELECT pg_relation_filenode('maintained')"
_KIND = "maintenanceschedule"


def submit(kubectl: Kubectl, name: str, **spec: Any) -> None:
    """Make a schedule, or change it."""
    kubectl.apply(
        {
            "apiVersion": "pgherd.dev/v1alpha1", "kind": "MaintenanceSchedule",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"cluster": HERD, "schedule": "* * * * *"} | spec,
        }
    )  # fmt: skip


def condition(kubectl: Kubectl, name: str, kind: str) -> dict[str, Any]:
    found = kubectl.get(_KIND, name).get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), {})


def test_members_are_maintained_one_by_one_while_others_take_writes(
    kubectl: Kubectl, herd: Herd
) -> None:
    herd.repeat(f"{HERD}-rw", "CREATE TABLE maintained (id int PRIMARY KEY, t text)")
    herd.repeat(
        f"{HERD}-rw", "INSERT INTO maintained SELECT g, 'x' FROM generate_series(1, 1000) g"
    )
    members = herd.members()
    for member in members:
        herd.until_true(member, "SELECT count(*) = 1000 FROM maintained")
    before = {member: ask(kubectl, member, _FILE) for member in members}
    work: dict[str, Any] = {
        "vacuumFull": ["public.maintained"], "drain": True, "oneByOne": True, "graceSeconds": 5,
    }  # fmt: skip
    with herd.writing(f"{HERD}-rw") as written:
        submit(kubectl, "turns", **work)
        until(
            lambda: condition(kubectl, "turns", "Succeeded").get("status") in ("True", "False"),
            "the first run is over",
        )  # fmt: skip
        submit(kubectl, "turns", **work, suspend=True)
    newest = kubectl.get(_KIND, "turns")["status"]["runs"][0]
    assert newest["phase"] == "Succeeded", newest
    assert sorted(one["name"] for one in newest["members"]) == sorted(members)
    turns = sorted(newest["members"], key=lambda one: str(one["begunAt"]))
    assert all(one["seconds"] >= 0 for one in turns)
    for member in members:
        assert ask(kubectl, member, _FILE) != before[member]
    until(lambda: all(kubectl.ready(member) for member in members), "all are in service")
    herd.assert_nothing_is_lost(members, written)
    kubectl("delete", _KIND, "turns")


def test_what_is_no_maintenance_is_refused_in_the_words_of_a_member(
    kubectl: Kubectl, herd: Herd
) -> None:
    submit(kubectl, "wrong", sql=["DELETE FROM maintained"])
    until(lambda: condition(kubectl, "wrong", "Ready").get("status") == "False", "it is refused")
    assert "no maintenance of one server" in condition(kubectl, "wrong", "Ready")["message"]
    kubectl("delete", _KIND, "wrong")
