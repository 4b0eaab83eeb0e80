"""Certificates of a herd's own CA: renewed in time, whoever is waited for."""

from datetime import timedelta

import pytest
from operator_world import NAME, NAMESPACE, World, condition, running


async def test_certificates_are_renewed_after_two_thirds_of_their_time() -> None:
    world = await running(tls={"validityDays": 90})
    world.writes.clear()
    world.now += timedelta(days=59)
    await world.reconcile()
    assert world.writes == []
    world.now += timedelta(days=2)
    await world.settle()
    assert world.writes == [
        *(f"apply Secret {NAME}-{number}-tls" for number in (1, 2, 3)),
        f"apply Secret {NAME}-operator-tls",
        f"apply Secret {NAME}-jobs-tls",
    ]


@pytest.mark.parametrize("why", ["paused", "asleep", "without a password"])
async def test_certificates_are_renewed_whatever_a_human_is_waited_for(why: str) -> None:
    world = await running()
    if why == "paused":
        world.change(maintenance={"paused": True})
    elif why == "asleep":
        world.change(hibernated=True)
    else:
        del world.objects["Secret", f"{NAME}-app"]
    await world.settle()
    world.writes.clear()
    world.now += timedelta(days=61)
    await world.settle()
    assert len(world.writes) == 5
    assert condition(world, "CertificatesValid")["status"] == "True"


async def test_certificates_that_cannot_be_renewed_are_told_of_before_they_run_out() -> None:
    world = await running()
    del world.objects["Secret", f"{NAME}-ca"]
    world.now += timedelta(days=71)
    await world.reconcile()
    assert condition(world, "CertificatesValid")["status"] == "True"
    world.now += timedelta(days=2)
    await world.reconcile()
    assert condition(world, "CertificatesValid")["reason"] == "CertificateExpiring"
    assert f"{NAME}-1-tls" in condition(world, "CertificatesValid")["message"]
    text = f"{NAME}-1-tls runs out on {world.now + timedelta(days=17):%Y-%m-%d}"
    assert text in condition(world, "CertificatesValid")["message"]
    assert [event.kind for event in world.events if "runs out" in event.message] == ["Warning"]
    await world.reconcile()
    assert len([event for event in world.events if "runs out" in event.message]) == 1


async def provided(days: int, **data: str) -> World:
    """A herd with certificates that somebody has made for so many days."""
    world = World()
    world.submit(tls={"mode": "Provided"})
    for secret in ("1", "2", "3", "operator", "jobs"):
        metadata = {"name": f"{NAME}-{secret}-tls", "namespace": NAMESPACE, "uid": world.uid()}
        signed = world.signed(timedelta(days=days)) | data
        world.objects["Secret", f"{NAME}-{secret}-tls"] = {
            "kind": "Secret", "metadata": metadata, "data": signed,
        }  # fmt: skip
    await world.settle()
    return world


@pytest.mark.parametrize(("days", "silent", "told"), [(90, 71, 73), (1000, 969, 971)])
async def test_provided_certificates_are_told_of_before_they_run_out(
    days: int, silent: int, told: int
) -> None:
    world = await provided(days)
    began = world.now
    assert condition(world, "CertificatesValid")["status"] == "True"
    world.now = began + timedelta(days=silent)
    await world.reconcile()
    assert condition(world, "CertificatesValid")["status"] == "True"
    world.writes.clear()
    for day, verb in ((told, "runs"), (days + 1, "ran")):
        world.now = began + timedelta(days=day)
        await world.reconcile()
        found = condition(world, "CertificatesValid")
        assert (found["status"], found["reason"]) == ("False", "CertificateExpiring")
        for secret in ("1", "2", "3", "operator", "jobs"):
            assert f"{NAME}-{secret}-tls {verb} out on" in found["message"]
        assert world.events[-1].message == found["message"]
        assert world.events[-1].reason == "CertificateExpiring"
    assert not [write for write in world.writes if "Secret" in write]
    replaced = world.objects["Secret", f"{NAME}-1-tls"]
    replaced["data"] = world.signed(timedelta(days=days))
    await world.reconcile()
    assert f"{NAME}-1-tls" not in condition(world, "CertificatesValid")["message"]


async def test_a_certificate_lasts_no_longer_than_who_has_signed_it() -> None:
    world = World()
    signed = world.signed(timedelta(days=90), authority_days=40)
    longer = world.signed(timedelta(days=90)) | {"ca.crt": signed["ca.crt"]}
    world = await provided(90, **longer)
    world.now += timedelta(days=33)
    await world.reconcile()
    assert condition(world, "CertificatesValid")["reason"] == "CertificateExpiring"


async def test_certificates_of_cert_manager_that_are_not_renewed_are_told_of() -> None:
    world = await running(tls={"mode": "CertManager", "issuer": {"name": "ours"}})
    assert condition(world, "CertificatesValid")["status"] == "True"
    world.now += timedelta(days=25)
    await world.reconcile()
    assert condition(world, "CertificatesValid")["reason"] == "CertificateExpiring"


async def test_what_is_no_certificate_is_told_of() -> None:
    world = await provided(90)
    world.objects["Secret", f"{NAME}-2-tls"]["data"]["tls.crt"] = "bm9uZQ=="
    await world.reconcile()
    found = condition(world, "CertificatesValid")
    assert found["reason"] == "CertificateMissing"
    assert found["message"] == f"no certificate can be read in {NAME}-2-tls"
    del world.objects["Secret", f"{NAME}-operator-tls"]
    await world.reconcile()
    assert condition(world, "CertificatesValid")["message"] == f"missing: {NAME}-operator-tls"
