"""A member is split off as a cluster of its own, by an explicit act and wherever that dies. C21"""

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from log_trio import Trio, dying, trio
from patience import until
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log import bootstrap
from pgherd_sidecar.agent.log.bootstrap import BootstrapError, Split
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.agent.membership.notes import SPLIT_AT, Note
from pgherd_sidecar.core.consensus import ENTRIES, Block, Membership, Persist
from pgherd_sidecar.env.storage.disk import RealDirectory
from pgherd_sidecar.env.storage.segments import SegmentLog


async def left_over(tmp_path: Path) -> tuple[Trio, NodeConfig]:
    """A herd that has stopped, and the member of it that is left."""
    async with trio(tmp_path, with_identities=True) as herd:
        leader = await herd.proposer()
        await herd.order(leader, 1, 2)
    return herd, herd.nodes["n2"].config


def renewed(config: NodeConfig, cluster_id: UUID) -> NodeConfig:
    return config.model_copy(update={"cluster_id": cluster_id, "members": (config.address,)})


async def goes_on_alone(herd: Trio, cluster_id: UUID) -> None:
    node = herd.nodes["n2"]
    node.config = renewed(node.config, cluster_id)
    StoredIdentity(node.config).close()
    node.delivered, node.position = {}, 0
    await node.start()
    try:
        await until(lambda: node.host.primary)
        assert node.host.membership.names == ("n2",)
        node.deliver()
        assert set(node.delivered.values()) == {1, 2}
        await herd.order(node, 3)
    finally:
        await node.stop()


async def test_c21_a_member_that_is_left_goes_on_alone_with_all_of_its_log(tmp_path: Path) -> None:
    herd, config = await left_over(tmp_path)
    split = bootstrap.preview(config)
    assert split.left == ("n1", "n3") and split.last_gid >= 3
    done = bootstrap.force(config)
    assert done.cluster_id != config.cluster_id
    assert (done.left, done.last_gid) == (split.left, split.last_gid)
    assert Note(config.data_dir, SPLIT_AT).text == str(split.last_gid)
    with pytest.raises(IdentityError, match=str(done.cluster_id)):
        StoredIdentity(config)  # the old configuration is that of another cluster
    await goes_on_alone(herd, done.cluster_id)


async def test_c21_the_two_clusters_never_merge_again(tmp_path: Path) -> None:
    herd, config = await left_over(tmp_path)
    done = bootstrap.force(config)
    node = herd.nodes["n2"]
    node.config = config.model_copy(update={"cluster_id": done.cluster_id})
    await herd.start("n1", "n2", "n3")
    try:
        await until(lambda: "of cluster" in node.host.peers.refusal)
        assert str(config.cluster_id) in node.host.peers.refusal
        await until(lambda: node.host.primary and herd.nodes["n1"].host.primary)
        assert node.host.membership.names == ("n2",)
        assert herd.nodes["n1"].host.membership.names == ("n1", "n2", "n3")
    finally:
        await herd.stop()


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_c21_an_act_that_died_is_ended_by_the_same_act(tmp_path: Path, step: int) -> None:
    herd, config = await left_over(tmp_path)
    with dying(step):
        bootstrap.force(config)
    with pytest.raises(IdentityError):
        StoredIdentity(config)  # half done, it is no member of the old cluster
    done = bootstrap.force(config)
    await goes_on_alone(herd, done.cluster_id)


async def test_a_member_that_runs_or_never_was_one_is_not_split_off(tmp_path: Path) -> None:
    _, config = await left_over(tmp_path)
    running = StoredIdentity(config)
    with pytest.raises(BootstrapError, match="another sidecar runs"):
        bootstrap.force(config)
    running.close()
    with pytest.raises(BootstrapError, match="no directory of a member"):
        bootstrap.force(config.model_copy(update={"data_dir": tmp_path / "nowhere"}))


def spoil(config: NodeConfig, *, older: bool) -> int:
    """Damage a block of entries of a stopped member's log; return where it starts."""
    path = config.data_dir / "log"
    log = SegmentLog(RealDirectory(path))
    block = next(block for block in log.read(log.index.base + 1, 1 << 16) if block.kind == ENTRIES)
    if older:  # one that is not read when the log is opened
        large = Block.make(log.index.last_term, log.index.last + 1, 1, bytes(1 << 17))
        log.persist(Persist(1, None, None, (large,)))
    log.close()
    segment = min(path.glob("*.seg"))
    assert older == (segment != max(path.glob("*.seg")))
    content = segment.read_bytes()
    segment.write_bytes(content.replace(block.data, bytes(len(block.data)), 1))
    return block.first


@pytest.mark.parametrize("older", [False, True])
async def test_c21_a_member_with_a_damaged_block_is_not_split_off(
    tmp_path: Path, older: bool
) -> None:
    herd, config = await left_over(tmp_path)
    position = spoil(config, older=older)
    for act in (bootstrap.preview, bootstrap.force):
        with pytest.raises(BootstrapError, match=f"n2 is damaged at {position}: take another"):
            act(config)
    configs = [config, herd.nodes["n3"].config]
    with pytest.raises(BootstrapError, match=f"n2 is damaged at {position}"):
        bootstrap.promote(configs, uuid4())
    for config in configs:  # nothing has been done
        StoredIdentity(config).close()


async def cut_off(tmp_path: Path) -> tuple[Trio, list[NodeConfig]]:
    """A herd that has stopped; of the two members that are left n3 has missed the last entries."""
    async with trio(tmp_path, with_identities=True) as herd:
        await herd.order(await herd.proposer(), 1, 2)
        await herd.stop("n3")
        await herd.order(await herd.proposer(), 3)
    return herd, [herd.nodes[name].config for name in ("n2", "n3")]


async def go_on_together(herd: Trio, cluster_id: UUID) -> None:
    for name in ("n2", "n3"):
        node = herd.nodes[name]
        members = tuple(one for one in node.config.members if one.name != "n1")
        node.config = node.config.model_copy(update={"cluster_id": cluster_id, "members": members})
        StoredIdentity(node.config).close()
        node.delivered, node.position = {}, 0
    await herd.start("n1", "n2", "n3")
    two = [herd.nodes["n2"], herd.nodes["n3"]]
    try:
        await until(lambda: all(node.host.primary for node in two))
        await herd.order(two[1], 4, but=("n1",))
        await until(lambda: all(set(node.delivered.values()) == {1, 2, 3, 4} for node in two))
        assert {node.host.membership.names for node in two} == {("n2", "n3")}
        await until(lambda: str(cluster_id) in herd.nodes["n1"].host.peers.refusal)
        assert not herd.nodes["n1"].host.primary
    finally:
        await herd.stop()


async def test_c21_a_component_goes_on_with_the_most_advanced_log_of_its_members(
    tmp_path: Path,
) -> None:
    herd, configs = await cut_off(tmp_path)
    cluster_id = uuid4()
    seed, log = bootstrap.promote(configs, cluster_id)
    assert (seed, log.left) == ("n2", ("n1", "n3"))
    assert Note(configs[0].data_dir, SPLIT_AT).text == str(log.last_gid)
    await go_on_together(herd, cluster_id)


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_c21_a_promotion_that_died_is_ended_by_the_same_one(
    tmp_path: Path, step: int
) -> None:
    herd, configs = await cut_off(tmp_path)
    cluster_id = uuid4()
    with dying(step):
        bootstrap.promote(configs, cluster_id)
    for config in configs:  # half done, none of them is a member of the old cluster
        with pytest.raises(IdentityError):
            StoredIdentity(config)
    with pytest.raises(BootstrapError, match=str(cluster_id)):
        bootstrap.promote(configs, uuid4())
    bootstrap.promote(configs, cluster_id)
    await go_on_together(herd, cluster_id)


async def test_c21_a_majority_is_not_promoted(tmp_path: Path) -> None:
    herd, configs = await cut_off(tmp_path)
    with pytest.raises(BootstrapError, match="n2, n3 are enough to go on"):
        bootstrap.require_minority(configs, uuid4())
    bootstrap.require_minority(configs[:1], uuid4())
    cluster_id = uuid4()
    bootstrap.promote(configs, cluster_id)
    bootstrap.require_minority(configs, cluster_id)  # begun: by now there is no way but on
    await go_on_together(herd, cluster_id)


OF_FOUR = Membership.fixed("n1", "n2", "n3", "n4")
OF_SIX = Membership.fixed("n1", "n2", "n3", "n4", "n5", "n6")


@pytest.mark.parametrize(
    ("logs", "enough"),
    [
        # Whatever the seed has: half of the others' view with its tie-breaker elects by that view.
        ({"n2": (9, OF_FOUR), "n3": (5, OF_FOUR), "n4": (5, OF_FOUR)}, "n2, n3, n4"),
        ({"n5": (9, OF_SIX), "n3": (5, OF_FOUR), "n4": (5, OF_FOUR)}, "n3, n4"),
        ({"n5": (9, OF_SIX), "n3": (5, OF_FOUR), "n2": (5, OF_FOUR)}, ""),
        ({"n3": (5, OF_FOUR), "n4": (5, OF_FOUR)}, ""),
        ({"n4": (5, OF_FOUR)}, ""),
        # Whose log is older is not enough where another's tells a larger view.
        ({"n5": (9, OF_SIX), "n4": (8, OF_SIX), "n3": (5, OF_FOUR)}, ""),
    ],
)
def test_c21_nobody_that_is_promoted_can_be_elected_by_an_old_view(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logs: dict[str, tuple[int, Membership]],
    enough: str,
) -> None:
    configs = [Trio(tmp_path).nodes["n1"].config.model_copy(update={"name": n}) for n in logs]

    def inspect(config: NodeConfig) -> Split:
        last, membership = logs[config.name]
        return Split(uuid4(), last, (), 1, 1, membership)

    monkeypatch.setattr(bootstrap, "inspect", inspect)
    if not enough:
        bootstrap.require_minority(configs, uuid4())
        return
    with pytest.raises(BootstrapError, match=f"^{enough} are enough"):
        bootstrap.require_minority(configs, uuid4())
