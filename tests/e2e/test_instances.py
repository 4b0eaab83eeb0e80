"""Other sizes on a real cluster: more and fewer members, larger containers."""

import pytest

from .cluster import HERD, Herd, Kubectl, until, until_well

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]


def claims(kubectl: Kubectl) -> list[str]:
    """The herd's volume claims."""
    selector = f"--selector=pgherd.dev/cluster={HERD}"
    return kubectl("get", "persistentvolumeclaims", selector, "--output=name").split()


def test_a_herd_goes_down_to_one_member_and_up_to_five_while_its_clients_write(
    herd: Herd, kubectl: Kubectl
) -> None:
    with herd.writing(f"{HERD}-rw", f"{HERD}-1") as written:
        for instances in (1, 3, 5, 3):
            herd.change(instances=instances)
            until_well(kubectl, instances)
            assert len(herd.members()) == instances
    until(lambda: len(claims(kubectl)) == 3, "the volumes of those who have left go")
    herd.assert_nothing_is_lost(herd.members(), written)


def test_other_resources_reach_all_members_one_after_the_other(
    herd: Herd, kubectl: Kubectl
) -> None:
    def requested() -> list[str]:
        pods = filter(None, [kubectl.get("pod", member) for member in members])
        return [
            container["resources"]["requests"]["memory"]
            for pod in pods
            for container in pod["spec"]["containers"]
            if container["name"] == "postgres"
        ]

    members = herd.members()
    with herd.writing(*members) as written:
        herd.change(resources={"postgres": {"requests": {"memory": "160Mi"}}})
        until(lambda: requested() == ["160Mi"] * 3, "all have the memory")
        until_well(kubectl, 3)
    herd.assert_nothing_is_lost(members, written)
    herd.change(resources={"postgres": {"requests": {"memory": "128Mi"}}})
    until(lambda: requested() == ["128Mi"] * 3, "all have the former memory")
    until_well(kubectl, 3)
