"""Volumes that were copied into another namespace: their members never meet those of the original.

Such a copy has everything that a member is known by: the cluster's id, its name, its disk, and a
certificate of the same authority.
"""

import json

from pgherd_operator.api.resource import Cluster, parse_resource
from pgherd_operator.objects import config
from pgherd_operator.objects.model import Origin, Role, Seat
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.membership import roster
from pgherd_sidecar.agent.recovery.partners import servers_of
from pgherd_sidecar.core.consensus import Membership

ID = "7f0c2a44-93d8-5c7b-9d61-0a3c5f1f2b10"
SEATS = [Seat(number, Role.DATABASE, Origin.JOINER) for number in (1, 2, 3)]


def cluster(namespace: str) -> Cluster:
    """The resource of one of the two herds."""
    return parse_resource({"metadata": {"name": "herd", "namespace": namespace, "uid": namespace}})


def node(namespace: str, seat: Seat, known: list[Seat]) -> NodeConfig:
    """A member's configuration, made when these volumes were there."""
    files = config.config_map(cluster(namespace), ID, seat, known)["data"]
    return NodeConfig.model_validate(json.loads(files["node.json"]))


def of_the_original() -> Membership:
    """What the log on the volumes says."""
    return Membership.founded(
        roster.myself(node("shop", seat, SEATS), f"disk {seat.number}") for seat in SEATS
    )


def test_a_copy_looks_for_the_others_in_its_own_namespace_though_their_volumes_come_later() -> None:
    alone = node("copy", SEATS[0], SEATS[:1])
    peers = roster.peers(alone, of_the_original(), frozenset())
    assert [one.host for one in peers] == [
        "herd-2.herd-peers.copy.svc", "herd-3.herd-peers.copy.svc",
    ]  # fmt: skip


def test_a_copy_copies_no_database_of_the_original() -> None:
    servers = servers_of(node("copy", SEATS[0], SEATS[:1]), of_the_original())
    assert [one.host for one in servers] == [
        "herd-2.herd-peers.copy.svc", "herd-3.herd-peers.copy.svc",
    ]  # fmt: skip


def test_elsewhere_the_log_says_where_a_member_is() -> None:
    original = node("shop", SEATS[0], SEATS[:1])
    peers = roster.peers(original, of_the_original(), frozenset())
    assert [one.host for one in peers] == [
        "herd-2.herd-peers.shop.svc", "herd-3.herd-peers.shop.svc",
    ]  # fmt: skip
    for host in ("10.0.0.7", "db2.example.com", "localhost", "", "::1"):
        assert roster.at_home(original, host) == host
    elsewhere = original.model_copy(update={"members": (
        original.address.model_copy(update={"host": "db1.example.com"}),
    )})  # fmt: skip
    assert roster.at_home(elsewhere, "herd-2.herd-peers.shop.svc") == "herd-2.herd-peers.shop.svc"
