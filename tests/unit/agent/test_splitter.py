"""Who may split off for good, and when; and what a member does between two lives of its log. C21"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from log_trio import Node, Trio, dying, trio
from patience import until
from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log import bootstrap, splitsteps
from pgherd_sidecar.agent.log.bootstrap import BootstrapError
from pgherd_sidecar.agent.log.splitter import Splitter
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.agent.membership.notes import SPLIT_AT, Note
from pgherd_sidecar.core.consensus import Member, Membership, Message, SplitMessage
from pgherd_sidecar.core.consensus.model.split import Consent, SplitPlan, consented

FIVE = Membership.founded(Member(f"n{n}", f"disk of n{n}") for n in range(1, 6))


class Side:
    """Members that are linked with each other, without logs."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.directory = directory
        self.splitters: dict[str, Splitter] = {}
        self.hosts = {name: self._host(name, names) for name in names}

    def _host(self, name: str, names: Iterable[str]) -> SimpleNamespace:
        def send(batch: Iterable[tuple[str, Message]]) -> None:
            for to, message in batch:
                assert isinstance(message, SplitMessage)
                asyncio.get_running_loop().call_soon(self.splitters[to].receive, name, message)

        peers = SimpleNamespace(linked=frozenset(names) - {name}, send=send, has_left=False)
        return SimpleNamespace(membership=FIVE, primary=False, peers=peers)

    def start(self, name: str, *, permanent: bool = False, was_primary: bool = False) -> Splitter:
        config = Trio(self.directory / name).nodes["n1"].config
        changed: dict[str, Any] = {
            "name": name,
            "cluster_id": CLUSTER,
            "partition_policy": "permanent" if permanent else "primary",
            "timing": config.timing.model_copy(update={"partition_split_ms": 1}),
            "data_dir": self.directory / name,
        }
        config = config.model_copy(update=changed)
        splitter = Splitter(config, f"disk of {name}", cast(Any, self.hosts[name]), lambda: None)
        self.splitters[name] = splitter
        self.hosts[name].primary = was_primary
        splitter.start()
        return splitter


CLUSTER = Trio(Path("/nowhere")).nodes["n1"].config.cluster_id


async def test_those_that_are_configured_so_part_when_one_of_them_was_in_a_primary_component(
    tmp_path: Path,
) -> None:
    side, others = Side(tmp_path, "n1", "n2"), Side(tmp_path / "others", "n4", "n5")
    one = side.start("n1", permanent=True, was_primary=True)
    two = side.start("n2", permanent=True)
    never = [others.start(name, permanent=True) for name in ("n4", "n5")]
    await until(lambda: one._splitting._was_primary)
    side.hosts["n1"].primary = False
    await until(lambda: one.due is not None and two.due is not None)
    assert one.due == two.due and one.due is not None
    assert one.due.parties == (("n1", "disk of n1"), ("n2", "disk of n2"))
    assert [splitter.due for splitter in never] == [None, None]  # back from a power failure, say
    for splitter in (one, two, *never):
        splitter.stop()


async def test_nobody_parts_by_itself_with_one_that_is_not_configured_so(tmp_path: Path) -> None:
    side = Side(tmp_path, "n1", "n2")
    one, two = side.start("n1", permanent=True, was_primary=True), side.start("n2")
    await until(lambda: one._splitting._was_primary)
    side.hosts["n1"].primary = False
    await until(lambda: two._splitting._others)  # it has heard what the first one wants
    assert one.due is two.due is None
    one.order_split(one.make_plan(["n1", "n2"]))
    await until(lambda: one.due is not None and two.due is not None)
    for splitter in (one, two):
        splitter.stop()


async def test_an_order_that_nobody_could_follow_is_refused(tmp_path: Path) -> None:
    side = Side(tmp_path, "n1", "n2")
    one = side.start("n1")
    with pytest.raises(Refused, match="n6 are no voters"):
        one.make_plan(["n1", "n6"])
    with pytest.raises(Refused, match="enough to go on"):
        one.make_plan(["n1", "n2", "n3"])
    with pytest.raises(Refused, match="ask one of them"):
        one.make_plan(["n2"])
    side.hosts["n1"].peers.has_left = True
    with pytest.raises(Refused, match="has left"):
        one.make_plan(["n1", "n2"])
    side.hosts["n1"].peers.has_left = False
    with pytest.raises(Unavailable, match="n3 must be there"):
        one.make_plan(["n1", "n3"])
    side.hosts["n1"].primary = True
    with pytest.raises(Refused, match="primary component"):
        one.make_plan(["n1", "n2"])
    one.stop()


async def left_over(tmp_path: Path) -> tuple[Trio, Node]:
    """A herd that has stopped, and one of its members."""
    async with trio(tmp_path, with_identities=True) as herd:
        await herd.order(await herd.proposer(), 1, 2)
    return herd, herd.nodes["n3"]


def plan_of(node: Node) -> SplitPlan:
    return SplitPlan(str(node.config.cluster_id), (("n3", node.disk),), ordered=True)


def resume(config: NodeConfig) -> NodeConfig:
    identity = StoredIdentity(config)
    try:
        return splitsteps.resume(config, identity)
    finally:
        identity.close()


@pytest.mark.parametrize("step", [None, 1, 2])
async def test_c21_a_member_goes_on_as_another_cluster_wherever_it_dies(
    tmp_path: Path, step: int | None
) -> None:
    herd, node = await left_over(tmp_path)
    configured, plan = node.config, plan_of(node)
    splitsteps.consent(configured, node.disk, plan)
    if step is not None:
        with dying(step):
            resume(configured)
    node.config = resume(configured)
    assert str(node.config.cluster_id) == plan.successor
    assert int(Note(configured.data_dir, SPLIT_AT).text) >= 3
    assert node.config.certified("n3") == configured.certified("n3")
    assert resume(configured) == node.config  # once done it is not done again
    node.delivered, node.position = {}, 0
    await herd.start("n1", "n2", "n3")
    try:
        await until(lambda: node.host.primary and herd.nodes["n1"].host.primary)
        assert node.host.membership.names == ("n3",)
        await until(lambda: set(node.delivered.values()) == {1, 2})
        await until(lambda: plan.successor in herd.nodes["n1"].host.peers.refusal)
        assert plan.cluster in herd.nodes["n1"].host.peers.refusal
        assert not herd.nodes["n1"].host.peers.has_left
    finally:
        await herd.stop()


async def test_c21_who_has_consented_takes_no_part_any_more_until_all_have(tmp_path: Path) -> None:
    herd, node = await left_over(tmp_path)
    two = herd.nodes["n2"]
    plan = SplitPlan(
        str(node.config.cluster_id), (("n2", two.disk), ("n3", node.disk)), ordered=True
    )
    mine = Consent(Member("n3", node.disk), 1, 1, 1)
    splitsteps.StoredSplit(consented(None, plan, mine)).save(node.config.data_dir)
    assert resume(node.config) == node.config
    await herd.start("n2", "n3")
    try:
        await until(lambda: "n3" in two.host.peers.linked and "n2" in node.host.peers.linked)
        assert node.host.splitter.sealed and "consent of n2" in node.host.splitter.reason
        term = node.host.term
        await until(lambda: two.host.splitter._splitting._others)
        assert (node.host.term, node.host.primary, two.host.primary) == (term, False, False)
        assert two.host.splitter.due is None  # two of three could go on as they are
    finally:
        await herd.stop()


async def test_nobody_consents_whose_log_has_come_to_make_the_parties_a_quorum(
    tmp_path: Path,
) -> None:
    herd, node = await left_over(tmp_path)
    parties = (("n2", herd.nodes["n2"].disk), ("n3", node.disk))
    splitsteps.consent(node.config, node.disk, SplitPlan(str(node.config.cluster_id), parties))
    assert splitsteps.load_split(node.config.data_dir).known is None


async def test_c21_a_member_that_has_split_off_is_not_split_off_again_under_the_identity_it_shares(
    tmp_path: Path,
) -> None:
    _, node = await left_over(tmp_path)
    plan = plan_of(node)
    splitsteps.consent(node.config, node.disk, plan)
    now = resume(node.config)
    for act in (bootstrap.preview, bootstrap.force, bootstrap.inspect):
        with pytest.raises(BootstrapError, match=f"is of {plan.successor}"):
            act(node.config)
    done = bootstrap.force(now)  # whose configuration says where it is may have it go on alone
    assert str(done.cluster_id) not in (plan.successor, plan.cluster)


async def test_c21_who_was_split_off_while_it_waited_has_nothing_left_of_the_plan(
    tmp_path: Path,
) -> None:
    herd, node = await left_over(tmp_path)
    config, other = node.config, Member("n2", herd.nodes["n2"].disk)
    plan = SplitPlan(str(config.cluster_id), (("n2", other.disk), ("n3", node.disk)), ordered=True)
    mine = Consent(Member("n3", node.disk), 1000, 1000, 1000)
    known = consented(consented(None, plan, mine), plan, Consent(other, 1, 1, 1))
    splitsteps.StoredSplit(known).save(config.data_dir)
    alone = config.model_copy(update={"cluster_id": bootstrap.force(config).cluster_id})
    assert resume(alone) == alone
    with bootstrap.opened_log(alone) as log:
        assert (log.index.membership.names, log.control.term < 1000) == (("n3",), True)


async def test_a_member_with_a_damaged_log_does_not_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node = await left_over(tmp_path)

    def damaged(*_: object) -> None:
        raise BootstrapError("the log of n3 is damaged at 2")

    monkeypatch.setattr(bootstrap, "require_whole", damaged)
    with pytest.raises(BootstrapError):
        splitsteps.consent(node.config, node.disk, plan_of(node))
    assert splitsteps.load_split(node.config.data_dir).known is None


def test_a_damaged_file_about_a_split_stops_the_member(tmp_path: Path) -> None:
    (tmp_path / "parting.json").write_text("[]")
    with pytest.raises(IdentityError, match="is damaged"):
        splitsteps.load_split(tmp_path)
