"""Members of a running log come and go: who is linked, fed, refused, and told. C18"""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_trio import NAMES, Node, Trio, trio
from patience import until
from pgherd_sidecar.agent.log.setup import delivered, open_log, reset_log
from pgherd_sidecar.agent.membership import peers
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.membership.roster import contact, unfit
from pgherd_sidecar.agent.service.witness import Witness
from pgherd_sidecar.agent.standing.views import no_majority
from pgherd_sidecar.core.consensus import Block, Membership, Role
from pgherd_sidecar.core.consensus.model.blocks import MEMBERSHIP
from pgherd_sidecar.core.replication.entries import Members, iter_entries
from pgherd_sidecar.env.network.frames import PROTOCOL_VERSION, Hello


def voters(node: Node) -> tuple[str, ...]:
    membership = node.host.membership
    return () if membership.joint else membership.voters


async def joined(herd: Trio, node: Node) -> None:
    """Have a node begin its log where another one's is, as behind a copy, and wait for its vote."""
    leader = await herd.proposer()
    await until(lambda: leader.host.commit_position)
    await node.start()
    assert node.host.extent.joins
    base = leader.host.extent.needed_base(leader.host.commit_position)
    node.position = base.position
    await node.host.begin_after(base)
    await until(lambda: node.config.name in voters(node))
    await until(lambda: all(voters(one) == voters(node) for one in herd.alive()))


async def left(herd: Trio, name: str) -> None:
    leader = await herd.proposer()
    while name in leader.host.membership.names:
        disk = next(one.disk for one in leader.host.membership.members if one.name == name)
        await herd.change(
            leader,
            lambda: leader.host.membership.joint or name not in voters(leader),
            leave=((name, disk),),
        )
        await until(lambda: not leader.host.membership.joint)


async def test_founders_tell_their_disks_and_addresses_through_the_log(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        nodes = herd.nodes.values()
        await until(lambda: all(m.disk for n in nodes for m in n.host.membership.members))
        for member in herd.nodes["n2"].host.membership.members:
            config = herd.nodes[member.name].config
            assert member.disk == herd.nodes[member.name].disk
            assert contact(member).port == config.address.port
        await until(lambda: all(n.members == (1, 2, 3) for n in herd.nodes.values()))


async def test_a_joiner_is_linked_to_nobody_before_its_log_begins(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        fourth = herd.joiner("n4", 4)
        await fourth.start()
        # it is asked for too early
        await herd.change(leader, lambda: fourth.disk in leader.disks, join=fourth.member)
        await herd.order(leader, 1, but=("n4",))
        assert fourth.host.extent.joins and fourth.host.extent.last == 0
        assert fourth.host.status()["links_up"] == 0


async def test_a_member_joins_behind_its_copy_orders_entries_and_leaves_again(
    tmp_path: Path,
) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await herd.order(leader, 1, 2)
        fourth = herd.joiner("n4", 4)
        await joined(herd, fourth)
        await herd.order(leader, 3, but=())
        await herd.order(fourth, 4, but=())
        assert set(fourth.delivered.values()) >= {3, 4}
        await until(lambda: all(n.members == (1, 2, 3, 4) for n in herd.alive()))
        await left(herd, "n4")
        await until(lambda: fourth.host.peers.has_left)
        await until(lambda: all(n.members == (1, 2, 3) for n in herd.alive() if n is not fourth))
        leader = await herd.proposer_of(*NAMES)
        await until(lambda: fourth.host.status()["links_up"] == 0)
        await herd.order(leader, 5, but=("n4",))
        assert 5 not in fourth.delivered.values()


async def test_a_joiner_asks_each_member_as_soon_as_it_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio(tmp_path) as herd:
        nodes = herd.nodes.values()
        await until(lambda: all(m.disk for n in nodes for m in n.host.membership.members))
        monkeypatch.setattr(peers, "_ASK_S", 1e6)
        await joined(herd, herd.joiner("n4", 4))


async def test_t4_a_joiners_log_holds_what_a_member_that_is_away_lacks(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        away = next(node for node in herd.alive() if node is not leader)
        await herd.order(leader, 1)
        await away.stop()
        end = away.host.extent.last
        await herd.order(leader, 2)
        fourth = herd.joiner("n4", 4)
        await joined(herd, fourth)
        assert fourth.host.extent.base <= end
        await until(lambda: 2 in fourth.delivered.values())


async def test_the_founders_may_all_be_replaced(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await herd.order(await herd.proposer(), 1)
        for number in (4, 5, 6):
            await joined(herd, herd.joiner(f"n{number}", number))
        for name in NAMES:
            await left(herd, name)
            await herd.stop(name)
        leader = await herd.proposer()
        await herd.order(leader, 2)
        await herd.stop("n4", "n5", "n6")
        await herd.start("n4", "n5", "n6")  # their configurations name founders only
        leader = await herd.proposer()
        assert leader.host.role is Role.PROPOSER
        await herd.order(leader, 3)


async def test_c18_another_disk_under_a_members_name_is_refused_until_the_old_one_has_left(
    tmp_path: Path,
) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await until(lambda: all(m.disk for m in leader.host.membership.members))
        name = next(one for one in NAMES if one != leader.config.name)
        await herd.stop(name)
        lost = herd.nodes[name]
        fresh = herd.renewed(name)
        await fresh.start()
        base = leader.host.extent.base_at(leader.host.commit_position)
        fresh.position = base.position
        await fresh.host.begin_after(base)
        await until(lambda: fresh.host.peers.refusal)
        assert fresh.disk not in leader.disks
        await herd.change(
            leader,
            lambda: name in voters(fresh) and fresh.disk in fresh.disks,
            leave=((name, lost.disk),),
        )
        assert fresh.disk in leader.disks
        leader.host.change_membership(
            leave=((name, lost.disk),)
        )  # who asked before has asked again
        await herd.order(leader, 7)
        assert fresh.disk in leader.disks
        await fresh.stop()
        herd.nodes[name] = lost
        await lost.start()  # the old disk is found again
        await until(lambda: "is on disk" in lost.host.peers.refusal)
        assert lost.disk in lost.host.peers.refusal and fresh.disk in lost.host.peers.refusal


async def test_a_silent_member_is_evicted_and_returns_when_somebody_asks_for_it(
    tmp_path: Path,
) -> None:
    async with trio(tmp_path, with_identities=True, evict_ms=2000) as herd:
        leader = await herd.proposer()
        await until(lambda: "" not in leader.disks and not leader.host.membership.joint)
        silent = herd.nodes[next(name for name in NAMES if name != leader.config.name)]
        await silent.stop()
        await until(lambda: silent.config.name not in leader.host.membership.names)
        await herd.order(leader, 1)
        await silent.start()
        await until(lambda: "has left the herd" in silent.host.peers.refusal)
        assert 1 not in silent.delivered.values()
        await until(lambda: silent.host.peers.has_left)  # its own log does not say so
        assert silent.config.name in silent.host.membership.names
        assert no_majority(silent.host) == "it has left the herd"
        identity = StoredIdentity(silent.config)
        status = await Witness(silent.config, silent.host, identity).status()
        identity.close()
        assert (status["state"], status["departed"]) == ("departed", True)
        await herd.change(leader, lambda: silent.config.name in voters(leader), join=silent.member)
        await until(lambda: 1 in silent.delivered.values() and silent.host.primary)
        assert not silent.host.peers.refusal and not silent.host.peers.has_left


async def test_a_number_that_is_taken_is_not_given_again(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        fourth = herd.joiner("n4", 4)
        known, slots = leader.host.membership, leader.config.sequence_slots
        assert "belongs to n3" in unfit(fourth.member_as(3), known, slots)
        assert "sequence_slots" in unfit(fourth.member_as(9), known, slots)
        assert unfit(fourth.member, known, slots) == ""
        leader.host.change_membership(join=fourth.member_as(3))  # nobody has judged it
        leader.host.change_membership(join=herd.nodes["n2"].member)
        await herd.order(leader, 1)
        assert "n4" not in leader.host.membership.names


@pytest.mark.parametrize("known", [0, 1 << 40])
async def test_who_has_the_certificate_of_a_service_is_no_peer_whatever_it_says(
    tmp_path: Path, known: int
) -> None:
    async with trio(tmp_path, start=False) as herd:
        node = herd.alone("n1")
        await node.start()
        config = node.config
        said = Hello(
            PROTOCOL_VERSION,
            str(config.cluster_id),
            "jobs",
            9,
            certification_keys=config.limits.certification_keys,
            slots=config.sequence_slots,
            known=known,
            yours="another disk",
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", config.address.port)
        writer.write(said.encode())
        answer = Hello.decode(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        assert answer.refused == "no member can be called jobs"
        assert not node.host.peers.retired


def test_who_does_not_say_in_unicode_where_it_is_can_not_join(tmp_path: Path) -> None:
    said = '{"number":1,"host":"\ud800","port":1}'  # JSON has a word for it
    joiner = replace(Trio(tmp_path).nodes["n1"].member, info=said)
    assert "nothing is known of member n1" in unfit(joiner, Membership(), 8)


@pytest.mark.parametrize("role", ["witness", "reader"])
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"number": 0}, "number"),
        ({"number": 1 << 16}, "number"),
        ({"host": "no..machine"}, "host"),
        ({"port": 1 << 16}, "port"),
        ({"postgres_host": "no..machine", "postgres_port": 1}, "tcp_host"),
        ({"postgres_host": "127.0.0.1", "postgres_port": 0}, "port"),
    ],
)
def test_nobody_joins_as_what_could_not_be_configured(
    tmp_path: Path, role: str, change: dict[str, Any], word: str
) -> None:
    node = Trio(tmp_path).nodes["n1"]
    info = msgspec.structs.replace(contact(node.member), **change).encode()
    joiner = replace(node.member, info=info, witness=role == "witness", reader=role == "reader")
    assert f"n1 can't have such a {word}: " in unfit(joiner, Membership(), 8)


def test_nobody_joins_who_says_more_of_himself_than_an_address(tmp_path: Path) -> None:
    member = Trio(tmp_path).nodes["n1"].member
    said = member.info.removesuffix("}") + ',"more":"%s"}'
    assert unfit(replace(member, info=said % "of a newer version"), Membership(), 8) == ""
    assert "too much" in unfit(replace(member, info=said % ("x" * 5000)), Membership(), 8)


def test_no_membership_makes_an_entry_that_stops_its_readers(tmp_path: Path) -> None:
    nodes = Trio(tmp_path).nodes
    twice = Membership.founded([nodes["n1"].member_as(2), nodes["n2"].member, nodes["n3"].member])
    block = Block.make(1, 1, 1, twice.encode(), MEMBERSHIP)
    assert list(iter_entries(delivered(block).data)) == [Members((2, 3))]


async def said(question: bytes) -> bytes:
    return b"an answer"


async def test_who_was_removed_does_not_ask_to_return_though_nobody_remembers(
    tmp_path: Path,
) -> None:
    async with trio(tmp_path) as herd:
        await until(lambda: all("" not in node.disks for node in herd.alive()))
        leader = await herd.proposer()
        removed = next(node for node in herd.alive() if node is not leader)
        await left(herd, removed.config.name)
        await until(lambda: removed.host.peers.has_left)
        await removed.stop()
        await herd.order(leader, 1)
        await herd.stop()
        for node in herd.nodes.values():
            forget(node)
        await herd.start()
        leader = await herd.proposer_of(*sorted({*NAMES} - {removed.config.name}))
        await until(lambda: removed.host.peers.linked)  # to the others it is a stranger
        await herd.order(leader, 2, but=(removed.config.name,))
        assert removed.host.peers.has_left
        leader.host.polls.answer_by(said)
        name = leader.config.name
        assert await removed.host.polls.ask([name], b"?", 1000) == {name: b""}
        assert removed.config.name not in leader.host.membership.names
        await herd.change(leader, lambda: removed.host.extent.behind, join=removed.member)
        removed.position = removed.host.extent.behind
        await removed.host.begin_after(removed.host.extent.beginning)
        await until(lambda: removed.config.name in voters(leader))
        await until(lambda: not removed.host.peers.has_left)


def forget(node: Node) -> None:
    """Have the log of a node begin behind all that it holds."""
    log = open_log(node.config)
    base = log.index.base_at(log.index.last)
    log.close()
    reset_log(node.config, base)
    node.position = base.position
