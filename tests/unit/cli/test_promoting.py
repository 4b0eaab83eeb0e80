"""A promotion that died, or can't go on, does not stand in the way of the next command. C21"""

import shutil
from pathlib import Path

import pytest
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.setup import open_log
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.core.consensus import Block, Control, Persist
from pgherd_sidecar.local import certificates, herd
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.local.operations import promoting
from pgherd_sidecar.local.sidecar import Sidecar

PLAN = "promotion.json"


class Killed(BaseException):
    """The command dies here."""


class SmallSidecar(Sidecar):
    """One whose log takes little room."""

    def config(self, copy_rate_bytes_s: int | None = None) -> NodeConfig:
        config = super().config(copy_rate_bytes_s)
        limits = config.limits.model_copy(update={"segment_bytes": 1 << 16})
        return config.model_copy(update={"limits": limits})


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Herd:
    """A herd of four that has stopped, all with the same log."""
    monkeypatch.setattr(promoting, "Sidecar", SmallSidecar)
    description = herd.new_herd(
        tmp_path / "herd", nodes=4, port_base=30000, postgres_bin=Path("/usr/bin")
    )
    description.directory.mkdir()
    herd.save(description)
    certificates.provide(description)
    for config in configs_of(description):
        found(config)
    return description


def configs_of(description: Herd) -> list[NodeConfig]:
    return [SmallSidecar(description, member).config() for member in description.members]


def found(config: NodeConfig) -> None:
    identity, log = StoredIdentity(config), open_log(config)
    log.persist(Persist(1, Control(1, None, 0), None, (Block.make(1, 1, 1, b"noop"),)))
    log.close()
    identity.close()


async def promote(description: Herd, *names: str) -> Herd:
    into = description.directory.with_name("apart")
    return await promoting.promote(description.directory, into, names, yes=True)


def dies(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    def die(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(owner, name, die)


async def test_a_majority_is_not_promoted_and_another_set_may_be(four: Herd) -> None:
    with pytest.raises(HerdError, match="n2, n3, n4 are enough to go on in the cluster as it is"):
        await promote(four, "n2", "n3", "n4")
    for config in configs_of(four):
        StoredIdentity(config).close()  # still a member of the old cluster
    fresh = await promote(four, "n3", "n4")
    assert [member.name for member in fresh.members] == ["n3", "n4"]
    for config in configs_of(fresh):
        StoredIdentity(config).close()


@pytest.mark.parametrize("missing", ["log", "directory"])
async def test_nodes_of_which_one_can_t_go_on_are_not_bound_to_each_other(
    four: Herd, missing: str
) -> None:
    lost = four.node("n4").root if missing == "directory" else four.node("n4").sidecar_data
    lost.rename(lost.with_name("aside"))
    with pytest.raises(HerdError, match="no directory of a member"):
        await promote(four, "n3", "n4")
    assert not (four.directory / PLAN).exists()
    assert [member.name for member in (await promote(four, "n3")).members] == ["n3"]


KILLS: list[tuple[object, str]] = [
    (promoting, "_found"),
    (promoting, "_move"),
    (shutil, "copytree"),
    (certificates, "provide"),
    (Herd, "without"),
    (Path, "unlink"),
]


@pytest.mark.parametrize(("owner", "name"), KILLS, ids=[name for _, name in KILLS])
async def test_c21_a_promotion_that_died_is_ended_by_the_same_command(
    four: Herd, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    with monkeypatch.context() as patched:
        dies(patched, owner, name)
        with pytest.raises(Killed):
            await promote(four, "n3", "n4")
    assert (four.directory / PLAN).exists()
    fresh = await promote(four, "n3", "n4")
    assert herd.load(fresh.directory) == fresh
    assert [member.name for member in herd.load(four.directory).members] == ["n1", "n2"]
    assert not (four.directory / PLAN).exists()
    for config in configs_of(fresh):
        StoredIdentity(config).close()


async def test_what_was_all_but_done_does_not_refuse_the_next_promotion(
    four: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        dies(patched, Path, "unlink")
        with pytest.raises(Killed):
            await promote(four, "n3", "n4")
    into = four.directory.with_name("other")
    fresh = await promoting.promote(four.directory, into, ["n2"], yes=True)
    assert [member.name for member in fresh.members] == ["n2"]
