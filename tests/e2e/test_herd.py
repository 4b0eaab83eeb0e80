"""The life of a herd on a real cluster, with clients that write meanwhile.

In the order of the file, on one herd. After each event: every member has every row whose commit was
acknowledged, and all members have the same rows.
"""

import pytest

from .cluster import HERD, PATIENCE_S, Herd, Kubectl, tried, until, until_ready, until_well

pytestmark = pytest.mark.timeout(1800)  # the first one waits for images and a cluster


def test_every_member_takes_writes_and_shows_those_of_the_others(herd: Herd) -> None:
    members = herd.members()
    with herd.writing(f"{HERD}-rw", *members) as written:
        for member in members:
            herd.repeat(
                member,
                f"INSERT INTO ledger VALUES ('by hand', {member[-1]}) ON CONFLICT DO NOTHING",
            )
    herd.assert_nothing_is_lost(members, written)
    for member in members:
        herd.until_true(member, "SELECT count(*) = 3 FROM ledger WHERE writer = 'by hand'")
    assert herd.sql(f"{HERD}-ro", "SELECT count(*) > 3 FROM ledger") == "t"


def test_a_deleted_pod_comes_back_and_others_write_meanwhile(herd: Herd, kubectl: Kubectl) -> None:
    members = herd.members()
    with herd.writing(*members[:2]) as written:
        kubectl("delete", "pod", members[2])
        until_ready(kubectl, members[2])
    herd.assert_nothing_is_lost(members, written)


@pytest.mark.long
def test_nobody_misses_the_operator(herd: Herd, kubectl: Kubectl) -> None:
    members = herd.members()
    deployment = ("deployment/pgherd", "--namespace=pgherd-system")
    kubectl("scale", "--replicas=0", *deployment)
    with herd.writing(f"{HERD}-rw", *members) as written:
        kubectl("wait", "--for=delete", "pod", "--selector=app.kubernetes.io/name=pgherd-operator",
                "--namespace=pgherd-system", f"--timeout={PATIENCE_S:g}s")  # fmt: skip
        # A container that ends is the kubelet's affair, not the operator's.
        restarts = restarted(kubectl, members[0])
        kubectl("exec", members[0], "--container=sidecar", "--", "sh", "-c", "kill -TERM 1")
        until(lambda: restarted(kubectl, members[0]) > restarts, "the sidecar was started again")
        until_ready(kubectl, members[0])
    kubectl("scale", "--replicas=2", *deployment)
    herd.assert_nothing_is_lost(members, written)


def restarted(kubectl: Kubectl, pod: str) -> int:
    """How often the kubelet has started the sidecar again."""
    containers = kubectl.get("pod", pod)["status"]["containerStatuses"]
    return next(int(one["restartCount"]) for one in containers if one["name"] == "sidecar")


@pytest.mark.long
def test_a_herd_whose_pods_are_all_killed_comes_back_by_itself(
    herd: Herd, kubectl: Kubectl
) -> None:
    members = herd.members()
    with herd.writing(f"{HERD}-rw") as written:
        kubectl("delete", "pods", *members, "--grace-period=0", "--force")
        until_ready(kubectl, *members)
    herd.assert_nothing_is_lost(members, written)


@pytest.mark.long
def test_a_herd_grows_and_shrinks_while_its_clients_write(herd: Herd, kubectl: Kubectl) -> None:
    members = herd.members()
    with herd.writing(*members) as written:
        herd.change(instances=4)
        until_well(kubectl, 4)
    newest = herd.members()[-1]
    herd.assert_nothing_is_lost([*members, newest], written)
    with herd.writing(*members) as written:
        herd.change(instances=3)
        until_well(kubectl, 3)
        until(lambda: not kubectl.get("persistentvolumeclaim", f"{newest}-data"), "it is removed")
    assert herd.members() == members
    herd.assert_nothing_is_lost(members, written)


@pytest.mark.long
def test_a_reader_follows_takes_no_writes_and_goes_again(herd: Herd, kubectl: Kubectl) -> None:
    members, readers = herd.members(), f"{HERD}-readers"
    with herd.writing(*members) as written:
        herd.change(readers=1)
        until_well(kubectl, 4)
        assert herd.members() == members
        until(lambda: tried(lambda: herd.sql(readers, "SELECT 1")) == "1", "the service answers")
        herd.until_true(readers, "SELECT count(*) > 0 FROM ledger")
        with pytest.raises(AssertionError, match="read-only transaction"):
            herd.sql(readers, "INSERT INTO ledger VALUES ('on a reader', 1)")
    herd.verify()
    herd.change(readers=0)
    until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)


@pytest.mark.long
def test_a_changed_parameter_reaches_all_members_one_after_the_other(
    herd: Herd, kubectl: Kubectl
) -> None:
    members = herd.members()
    with herd.writing(f"{HERD}-rw", *members) as written:
        herd.change(postgres={"parameters": {"max_connections": "150"}})
        until_well(kubectl, 3)
    for member in members:
        assert herd.sql(member, "SHOW max_connections") == "150"
    herd.assert_nothing_is_lost(members, written)


@pytest.mark.long
def test_a_member_whose_volume_is_lost_is_replaced_by_a_new_one(
    herd: Herd, kubectl: Kubectl
) -> None:
    *others, lost = herd.members()
    disk = herd.disks()[lost]
    with herd.writing(*others) as written:
        kubectl("delete", "--wait=false", "persistentvolumeclaim", f"{lost}-data")
        kubectl("delete", "pod", lost, "--grace-period=0", "--force")
        until(lambda: len(found := herd.disks()) == 3 and disk not in found.values(), "another")
        until_well(kubectl, 3)
    herd.assert_nothing_is_lost(herd.members(), written)
