"""What members of a release that knows less are asked and told, over real links [F1]."""

import json
from pathlib import Path

from log_trio import trio
from msgspec.structs import replace
from patience import until
from pgherd_sidecar.agent.membership.roster import Contact
from pgherd_sidecar.core.consensus import Member
from pgherd_sidecar.env.network.frames import PROTOCOL_VERSION, Hello


async def test_each_member_is_told_what_any_other_has_committed(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        for number, node in enumerate(list(herd.nodes.values()) * 5):
            await herd.order(node, number)
            committed = node.host.commit_position
            for other in herd.nodes.values():
                wanted = other.host.ask_barrier()
                await until(lambda o=other, w=wanted: o.host.barrier.number >= w)  # type: ignore[misc]
                assert other.host.barrier.position >= committed
        await herd.stop(leader.config.name)
        for node in herd.alive():
            wanted = node.host.ask_barrier()
            await until(lambda o=node, w=wanted: o.host.barrier.number >= w)  # type: ignore[misc]


async def test_a_member_of_an_older_release_is_not_asked(tmp_path: Path) -> None:
    """It would close the link at a question that it doesn't know; the others are enough."""
    async with trio(tmp_path) as herd:
        await herd.proposer()
        await herd.order(herd.nodes["n1"], 1)
        reader = herd.nodes["n1"].host
        reader.peers._older |= {"n2", "n3"}
        alone = reader.ask_barrier()
        await herd.order(herd.nodes["n1"], 2)
        assert reader.barrier.number < alone
        reader.peers._older.discard("n3")
        await until(lambda: reader.barrier.number == alone)


async def test_no_reader_joins_beside_a_member_of_an_older_release(tmp_path: Path) -> None:
    """Such a member would stop at a membership that names one."""
    reader = Member("r1", "disk", info=Contact(9, "127.0.0.1", 1).encode(), reader=True)
    async with trio(tmp_path) as herd:
        await herd.proposer()
        peers = herd.nodes["n1"].host.peers
        await until(lambda: peers.linked == {"n2", "n3"})
        assert not peers.unfit(reader)
        older = Hello(PROTOCOL_VERSION, "c", "n2", 2, barriers=True)
        peers._objection(older)
        assert "n2 are of a version without readers" in peers.unfit(reader)
        peers._objection(replace(older, readers=True))
        assert not peers.unfit(reader)


def test_the_hello_of_an_older_release_says_nothing_of_barriers() -> None:
    hello = Hello(PROTOCOL_VERSION, "c", "n1", 1, barriers=True)
    said = json.loads(hello.encode()[4:])
    assert said.pop("barriers") is True
    assert not Hello.decode(json.dumps(said).encode()).barriers
    # and an older one takes no offence at what it doesn't know
    assert Hello.decode(json.dumps({**said, "more": 1}).encode()).name == "n1"
