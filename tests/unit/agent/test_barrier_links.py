"""What members ask and tell each other for read barriers, over real links [F1]."""

from pathlib import Path

from log_trio import trio
from patience import until


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
