"""The life of a herd on a real cluster, with clients that write meanwhile.

In the order of the file, on one herd. After each event: every member has every row whose commit was
acknowledged, and all members have the same rows.
"""

from collections.abc import Iterable

import pytest

from .cluster import HERD, MEMBERS, PATIENCE_S, Herd, Kubectl, Written, until, until_ready

pytestmark = pytest.mark.timeout(1800)  # the first one waits for images and a cluster

OTHERS_GAP_S = 10.0
"""Longest silence that clients of other members may see: an election, on a slow machine."""


def assert_nothing_is_lost(herd: Herd, members: Iterable[str], written: list[Written]) -> None:
    """What was acknowledged is on every member, and the members do not differ."""
    rows = {}
    for member in members:
        # A commit of its own: all that was acknowledged before is visible on the member after it.
        herd.sql(member, "INSERT INTO mark DEFAULT VALUES")
        rows[member] = set(
            herd.sql(member, "SELECT writer || ' ' || number FROM ledger").split("\n")
        )
    for one in written:
        assert one.acknowledged, f"{one.writer} wrote nothing: {one.errors}"
        wanted = {f"{one.writer} {number}" for number in one.acknowledged}
        for member, found in rows.items():
            assert wanted <= found, f"{member} lost {sorted(wanted - found)[:5]} of {one.writer}"
    first, *others = rows.values()
    assert all(one == first for one in others)


def test_every_member_takes_writes_and_shows_those_of_the_others(herd: Herd) -> None:
    with herd.writing(f"{HERD}-rw", *MEMBERS) as written:
        for member in MEMBERS:
            herd.sql(member, f"INSERT INTO ledger VALUES ('by hand', {member[-1]})")
    assert [one.errors for one in written] == [{}] * 4
    assert_nothing_is_lost(herd, MEMBERS, written)
    for member in MEMBERS:
        herd.until_true(member, "SELECT count(*) = 3 FROM ledger WHERE writer = 'by hand'")
    assert herd.sql(f"{HERD}-ro", "SELECT count(*) > 3 FROM ledger") == "t"


def test_a_deleted_pod_comes_back_and_others_write_meanwhile(herd: Herd, kubectl: Kubectl) -> None:
    with herd.writing(*MEMBERS[:2]) as written:
        kubectl("delete", "pod", MEMBERS[2])
        until_ready(kubectl, MEMBERS[2])
    assert_nothing_is_lost(herd, MEMBERS, written)
    assert max(one.gap_s for one in written) < OTHERS_GAP_S


def test_nobody_misses_the_operator(herd: Herd, kubectl: Kubectl) -> None:
    deployment = ("deployment/pgherd", "--namespace=pgherd-system")
    kubectl("scale", "--replicas=0", *deployment)
    with herd.writing(f"{HERD}-rw", *MEMBERS) as written:
        kubectl("wait", "--for=delete", "pod", "--selector=app.kubernetes.io/name=pgherd-operator",
                "--namespace=pgherd-system", f"--timeout={PATIENCE_S:g}s")  # fmt: skip
        # A container that ends is the kubelet's affair, not the operator's.
        restarts = restarted(kubectl, MEMBERS[0])
        kubectl("exec", MEMBERS[0], "--container=sidecar", "--", "sh", "-c", "kill -TERM 1")
        until(lambda: restarted(kubectl, MEMBERS[0]) > restarts, "the sidecar was started again")
        until_ready(kubectl, MEMBERS[0])
    kubectl("scale", "--replicas=2", *deployment)
    assert_nothing_is_lost(herd, MEMBERS, written)


def restarted(kubectl: Kubectl, pod: str) -> int:
    """How often the kubelet has started the sidecar again."""
    containers = kubectl.get("pod", pod)["status"]["containerStatuses"]
    return next(int(one["restartCount"]) for one in containers if one["name"] == "sidecar")


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_herd_whose_pods_are_all_gone_comes_back_by_itself(
    herd: Herd, kubectl: Kubectl, killed: bool
) -> None:
    with herd.writing(f"{HERD}-rw") as written:
        at_once = ["--grace-period=0", "--force"] if killed else []
        kubectl("delete", "pods", *MEMBERS, *at_once)
        until_ready(kubectl, *MEMBERS)
    assert_nothing_is_lost(herd, MEMBERS, written)
