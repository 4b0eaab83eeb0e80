"""A herd is founded once: what stops founders whose disks have come back empty. C18"""

import asyncio
from pathlib import Path

import pytest
from log_trio import NAMES, Node, Trio, entry, trio
from patience import until
from pgherd_sidecar.agent.standing.views import no_majority
from pgherd_sidecar.core.consensus import Role
from test_log_membership import joined, left

_LONGER_THAN_ELECTIONS_S = 3.0


async def disks_known(herd: Trio) -> None:
    """Wait until every log names all disks, and will after a restart."""
    hosts = [node.host for node in herd.alive()]
    await until(lambda: all("" not in node.disks for node in herd.alive()))
    await until(lambda: all(host.flushed_position == host.extent.last for host in hosts))


async def founds_nothing(*nodes: Node) -> None:
    """Give nodes the time of a few elections; they may not use it."""
    await asyncio.sleep(_LONGER_THAN_ELECTIONS_S)
    assert not any(node.host.primary or node.host.term or node.delivered for node in nodes)


async def test_a_herd_begins_when_all_of_its_founders_have_met(tmp_path: Path) -> None:
    async with trio(tmp_path, start=False) as herd:
        await herd.start("n1", "n2")
        await until(lambda: herd.nodes["n1"].host.peers.linked == {"n2"})
        await founds_nothing(*herd.alive())
        assert herd.nodes["n1"].host.abstains and herd.nodes["n2"].host.abstains
        await herd.start("n3")
        await herd.order(await herd.proposer(), 1)
        await herd.stop("n1", "n2", "n3")
        await herd.start("n1", "n2")  # it has begun: a majority will do
        await herd.order(await herd.proposer(), 2)


async def test_of_a_herd_that_has_yet_to_begin_it_is_told_who_is_missing(tmp_path: Path) -> None:
    async with trio(tmp_path, start=False) as herd:
        await herd.start("n1", "n2")
        host = herd.nodes["n1"].host
        await until(lambda: host.peers.linked == {"n2"})
        assert "when all founders have met, and n3 is not linked" in no_majority(host)


@pytest.mark.parametrize("third", ["away", "there"])
async def test_c18_two_emptied_founders_do_not_found_again(tmp_path: Path, third: str) -> None:
    async with trio(tmp_path) as herd:
        await herd.order(await herd.proposer(), 1)
        await disks_known(herd)
        await herd.stop()
        emptied = [herd.emptied("n1"), herd.emptied("n2")]
        await herd.start("n1", "n2")
        await until(lambda: emptied[0].host.peers.linked == {"n2"})
        if third == "away":
            await founds_nothing(*emptied)
        await herd.start("n3")
        await until(lambda: all(node.host.peers.retired for node in emptied))
        await founds_nothing(*emptied)
        assert not herd.nodes["n3"].host.peers.retired
        assert set(herd.nodes["n3"].delivered.values()) == {1}


async def test_c18_founders_that_are_all_emptied_found_again(tmp_path: Path) -> None:
    """Nobody is left who could tell them that there was a herd."""
    async with trio(tmp_path) as herd:
        await herd.order(await herd.proposer(), 1)
        await disks_known(herd)
        await herd.stop()
        emptied = [herd.emptied(name) for name in NAMES]
        await herd.start()
        await herd.order(await herd.proposer(), 2)
        assert {number for node in emptied for number in node.delivered.values()} == {2}


async def test_c18_an_emptied_founder_and_one_that_lags_are_no_majority(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        await herd.proposer()
        await herd.stop("n2")  # it may not even know the others' disks
        await herd.order(await herd.proposer(), 1)
        await until(lambda: "" not in {m.disk for m in herd.nodes["n3"].host.membership.members
                                       if m.name != "n2"})  # fmt: skip
        await herd.stop()
        empty = herd.emptied("n1")
        await herd.start("n1", "n2")
        await founds_nothing(empty)
        assert not herd.nodes["n2"].host.primary
        await herd.start("n3")
        await until(lambda: empty.host.peers.retired)
        await herd.order(await herd.proposer_of("n2", "n3"), 2, but=("n1",))
        assert set(herd.nodes["n2"].delivered.values()) == {1, 2}


async def test_c18_the_emptied_founder_of_a_herd_that_has_grown_retires_when_it_meets_anybody(
    tmp_path: Path,
) -> None:
    async with trio(tmp_path, start=False) as herd:
        first = herd.alone("n1")
        await herd.start("n1")
        for number in (4, 5):
            await joined(herd, herd.joiner(f"n{number}", number))
        await first.stop()
        rest = await herd.proposer()
        empty = herd.emptied("n1")
        await empty.start()
        await until(lambda: empty.host.peers.retired)
        assert empty.disk in empty.host.peers.retired and first.disk in empty.host.peers.retired
        assert empty.host.peers.has_left and not empty.host.primary
        assert not empty.host.submit(entry(1), 1)
        await herd.order(rest, 2, but=("n1",))
        await herd.stop()
        term = empty.host.term
        await empty.start()  # nobody is there whom it could meet
        await asyncio.sleep(_LONGER_THAN_ELECTIONS_S)
        assert empty.host.role is Role.FOLLOWER and empty.host.term <= term  # no election
        assert no_majority(empty.host) == empty.host.peers.retired


async def test_a_retired_founder_that_has_promised_nothing_may_join(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await herd.proposer()
        await disks_known(herd)
        name = next(one for one in NAMES if one != leader.config.name)
        await herd.stop(name)
        empty = herd.emptied(name)
        await empty.start()
        await until(lambda: empty.host.peers.retired)
        await empty.stop()
        await left(herd, name)
        herd.nodes[name] = joiner = Node(empty.config.model_copy(update={"founder": False}))
        joiner.disk = empty.disk
        await joined(herd, joiner)
        await herd.order(joiner, 2)
        assert not joiner.host.peers.has_left and not joiner.host.peers.retired
