"""Requests about the membership: what is told of it, and what is refused and why."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from log_trio import NAMES, Node, Trio, trio
from patience import until, wait_until_async
from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.agent.service.witness import Witness
from pgherd_sidecar.agent.standing import views as views_module
from pgherd_sidecar.agent.standing.views import Views, no_majority
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import Condition, DatabaseState


def views(node: Node) -> Views:
    return Views(node.config, node.host)


async def settled(herd: Trio) -> Node:
    """Wait until all founders have told their disks; return the proposer."""
    leader = await herd.proposer()
    await until(lambda: "" not in leader.disks and not leader.host.membership.joint)
    await until(lambda: len(leader.host.peers.members_heard()) == len(herd.alive()))
    return leader


async def answered(ask: Callable[[], None]) -> None:
    """Ask again while it can't be done: a busy machine may have let an election through."""

    async def look() -> None:
        ask()

    await wait_until_async(look, lambda _: True, despite=(Unavailable,))


async def without(herd: Trio, leader: Node, name: str) -> None:
    await answered(lambda: views(leader).leave(name, herd.nodes[name].disk))
    await until(lambda: name not in leader.host.membership.names)
    await herd.stop(name)


async def test_status_tells_the_view_the_quorum_and_how_far_the_others_are(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        await herd.order(leader, 1)
        await until(lambda: {p["lag_entries"] for p in leader.host.peers.sight().values()} == {0})
        status = views(leader).status()
        assert [(m["name"], m["number"], m["voter"]) for m in status["view"]["members"]] == [
            ("n1", 1, True), ("n2", 2, True), ("n3", 3, True),
        ]  # fmt: skip
        assert {m["disk_id"] for m in status["view"]["members"]} == leader.disks
        membership = leader.host.membership  # one position, one membership; not so generations
        assert status["view"]["id"] == membership.position > status["view"]["generation"] > 1
        assert status["view"]["joint"] is False
        assert status["quorum"] == {"heard": 3, "needed": 2, "voters": 3}
        others = set(NAMES) - {leader.config.name}
        assert status["peers"].keys() == others
        assert {peer["role"] for peer in status["peers"].values()} == {"follower"}
        follower = herd.nodes[min(others)]
        assert follower.host.peers.sight()[leader.config.name]["role"] == "proposer"


async def test_who_has_gone_already_or_is_on_another_disk_needs_no_leave(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        position = leader.host.membership.position
        await answered(lambda: views(leader).leave("n9", ""))
        await answered(lambda: views(leader).leave("n2", "another disk"))
        await herd.order(leader, 1)
        assert leader.host.membership.position == position


async def test_the_last_database_is_not_let_go(tmp_path: Path) -> None:
    async with trio(tmp_path, witnesses=("n3",)) as herd:
        leader = await settled(herd)
        if leader.config.name == "n1":
            await herd.stop("n1")  # whoever is left proposes
            leader = await herd.proposer()
            await herd.start("n1")
            await until(lambda: len(leader.host.peers.members_heard()) == 3)
        await without(herd, leader, "n1")
        last = herd.nodes["n2"]  # the witness may have been the proposer, and votes no more
        await until(lambda: not last.host.membership.joint and last.host.primary)
        with pytest.raises(Refused, match="n2 is the last member with a database"):
            await answered(lambda: views(last).leave("n2", ""))


async def test_the_last_database_that_is_whole_is_let_go_only_if_it_is_dead(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        databases = Databases((1, 2, 3))
        asked = Views(leader.config, leader.host, lambda: databases)
        for member in (2, 3):
            databases.take_state(
                member, DatabaseState(member, Condition.DIVERGED, 0, 1, 9, 9, 0, "rows")
            )
        with pytest.raises(Refused, match="only n1 holds what was committed last"):
            await answered(lambda: asked.leave("n1", ""))
        await answered(lambda: asked.leave("n1", "", dead=True))
        await until(lambda: "n1" not in leader.host.membership.names)


async def test_nobody_is_let_go_whose_votes_the_rest_needs(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        silent, other = sorted(set(NAMES) - {leader.config.name})
        await herd.stop(silent)
        await until(lambda: silent not in leader.host.peers.members_heard())
        with pytest.raises(Unavailable, match=f"of 2 members {silent} are not heard of"):
            views(leader).leave(other, "")
        # But the silent one itself may go.
        await answered(lambda: views(leader).leave(silent, ""))
        await until(lambda: silent not in leader.host.membership.names)


async def test_a_secondary_component_changes_nothing_and_says_who_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        assert leader.host.primary
        others = sorted(set(NAMES) - {leader.config.name})
        await herd.stop(*others)
        await until(lambda: not leader.host.primary)
        with pytest.raises(Unavailable, match=r"it has no majority$"):
            views(leader).leave(others[0], "")
        monkeypatch.setattr(views_module, "PATIENCE_S", 0.0)
        text = no_majority(leader.host)
        assert ", ".join(others) in text and "2 of 3 votes" in text
        assert f"after GID {leader.host.commit_position}" in text and "`pgherd split`" in text


async def test_blocked_links_make_a_minority_secondary_and_heal(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        others = sorted(set(NAMES) - {leader.config.name})
        views(leader).block(others)
        await until(lambda: not leader.host.primary)
        await until(lambda: all(herd.nodes[name].host.primary for name in others))
        await herd.order(herd.nodes[others[0]], 1, but=(leader.config.name,))
        views(leader).block([])
        await until(lambda: 1 in leader.delivered.values() and leader.host.primary)


async def test_a_witness_votes_for_a_database_that_is_left_alone(tmp_path: Path) -> None:
    async with trio(tmp_path, with_identities=True, witnesses=("n3",)) as herd:
        leader = await settled(herd)
        await herd.order(leader, 1)
        await until(lambda: all(node.members == (1, 2) for node in herd.alive()))
        await herd.stop("n1")
        await herd.proposer()
        await herd.order(herd.nodes["n2"], 2)
        third = herd.nodes["n3"]
        identity = StoredIdentity(third.config)
        status = await Witness(third.config, third.host, identity).status()
        identity.close()
        assert (status["state"], status["component"]) == ("witness", "primary")
        assert third.host.membership.view is not None
        assert third.host.membership.view.tie_breaker != "n3"


async def test_a_witness_joins_where_the_logs_of_the_others_begin(tmp_path: Path) -> None:
    async with trio(tmp_path) as herd:
        leader = await settled(herd)
        for start in range(0, 6_000, 500):
            await herd.order(leader, *range(start, start + 500))

        def trimmed() -> bool:
            for node in herd.alive():
                node.host.trim(node.host.commit_position)
            return all(node.host.extent.base > 1000 for node in herd.alive())

        await until(trimmed)
        fourth = herd.joiner("w4", 4, witness=True)
        identity = StoredIdentity(fourth.config)
        fourth.disk = identity.disk_id
        await fourth.start()
        fourth.host.ignore(fourth)  # it delivers nothing
        service = Witness(fourth.config, fourth.host, identity)
        running = asyncio.create_task(service.run())
        await until(lambda: "w4" in leader.host.membership.voters)
        await until(lambda: fourth.host.commit_position == leader.host.commit_position)
        assert fourth.host.extent.base > 1000
        assert fourth.host.primary
        await service.stop()
        await running
        identity.close()
        await fourth.stop()
    shutil.rmtree(fourth.config.data_dir / "log")
    with pytest.raises(IdentityError, match="lost its log"):
        StoredIdentity(fourth.config)


async def test_a_witness_that_dies_before_it_has_a_log_starts_again(tmp_path: Path) -> None:
    config = Trio(tmp_path, witnesses=("n3",)).nodes["n3"].config
    identity = StoredIdentity(config)
    host = LogHost(config, disk=identity.disk_id, on_failure=print, on_split=lambda: None)
    Witness(config, host, identity)
    identity.close()  # the process ends here
    StoredIdentity(config).close()


def test_two_owners_of_a_number_do_not_begin_with_the_same_incarnation(tmp_path: Path) -> None:
    config = Trio(tmp_path).nodes["n1"].config
    first = []
    for disk in ("former", "new"):
        identity = StoredIdentity(config.model_copy(update={"data_dir": tmp_path / disk}))
        first.append(identity.next_incarnation())
        assert identity.next_incarnation() == first[-1] + 1
        identity.close()
    assert first[0] != first[1]


def test_a_number_with_a_history_begins_a_newer_incarnation(tmp_path: Path) -> None:
    identity = StoredIdentity(Trio(tmp_path).nodes["n1"].config)
    first = identity.next_incarnation()
    identity.skip_incarnations(first + 7)
    identity.skip_incarnations(first + 3)
    assert identity.next_incarnation() == first + 8
    identity.close()
