"""Read barriers over real links, also beside members of a release that does not know them [F1]."""

import json
from pathlib import Path

from log_trio import trio, until
from pgherd_sidecar.env.frames import PROTOCOL_VERSION, Hello


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


def test_the_hello_of_an_older_release_says_nothing_of_barriers() -> None:
    hello = Hello(PROTOCOL_VERSION, "c", "n1", 1, barriers=True)
    said = json.loads(hello.encode()[4:])
    assert said.pop("barriers") is True
    assert not Hello.decode(json.dumps(said).encode()).barriers
    # and an older one takes no offence at what it doesn't know
    assert Hello.decode(json.dumps({**said, "more": 1}).encode()).name == "n1"
