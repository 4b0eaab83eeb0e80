"""Certificates of a herd's own CA: renewed in time, whoever is waited for."""

from datetime import timedelta

import pytest
from operator_world import NAME
from test_operator_life import condition, running


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


@pytest.mark.parametrize("why", ["paused", "without a password"])
async def test_certificates_are_renewed_whatever_a_human_is_waited_for(why: str) -> None:
    world = await running()
    if why == "paused":
        world.change(maintenance={"paused": True})
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
