"""A node that never comes back. It is the last file, since the cluster is smaller afterwards."""

import pytest

from .cluster import Herd, Kubectl, until, until_well
from .test_events import docker, elsewhere, node_of

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]


def test_a_member_whose_node_is_lost_for_good_is_replaced_on_another(
    herd: Herd, kubectl: Kubectl
) -> None:
    victim = elsewhere(kubectl, herd.members())
    others = [member for member in herd.members() if member != victim]
    node, disk = node_of(kubectl, victim), herd.disks()[victim]
    with herd.writing(*others) as written:
        docker("kill", node)
        # The administrator's word that neither the node nor what was on its disk will return.
        kubectl("delete", "node", node, "--wait=false")
        kubectl("delete", "persistentvolumeclaim", f"{victim}-data", "--wait=false")
        kubectl("delete", "pod", victim, "--force", "--grace-period=0", "--ignore-not-found")
        until(lambda: len(found := herd.disks()) == 3 and disk not in found.values(), "another")
        until_well(kubectl, 3)
    assert node not in {node_of(kubectl, member) for member in herd.members()}
    herd.assert_nothing_is_lost(herd.members(), written)
