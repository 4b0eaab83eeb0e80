"""A node's processes: which are started, and with what settings."""

import os
from pathlib import Path

import pytest
from pgherd_sidecar.agent.recovery.progress import Phase, RebuildProgress
from pgherd_sidecar.local import postgres
from pgherd_sidecar.local.herd import Herd, new_herd, save
from pgherd_sidecar.local.node import Node, NodeState
from pgherd_sidecar.local.operations import rebuild
from pgherd_sidecar.local.postgres import PostgresServer
from pgherd_sidecar.local.sidecar import Sidecar

REBUILDS = [
    RebuildProgress(Phase.COPYING),
    RebuildProgress(Phase.INSTALLING, copy="pgdata.copy-1"),
    RebuildProgress(Phase.STARTING),
]
NONE = [RebuildProgress(), RebuildProgress(Phase.COPYING, given_up=True)]


@pytest.fixture
def herd(tmp_path: Path) -> Herd:
    return new_herd(tmp_path, nodes=3, port_base=30000, postgres_bin=Path("/usr/bin"))


def node_with(herd: Herd, rebuild: RebuildProgress) -> Node:
    """A node with both identity and database, in the middle of this."""
    paths = herd.node(herd.members[0])
    for directory in (paths.sidecar_data, paths.pgdata):
        directory.mkdir(parents=True)
    (paths.sidecar_data / "identity.json").touch()
    (paths.pgdata / "PG_VERSION").touch()
    rebuild.save(paths.sidecar_data)
    return Node(herd, herd.members[0])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been started, in place of starting it."""
    order: list[str] = []

    async def start(_: PostgresServer, timeout_s: float) -> None:
        order.append("server")

    async def provide_database(_: PostgresServer) -> None:
        order.append("database")

    monkeypatch.setattr(PostgresServer, "start", start)
    monkeypatch.setattr(PostgresServer, "provide_database", provide_database)
    monkeypatch.setattr(Sidecar, "start", lambda *_: order.append("sidecar"))
    return order


@pytest.mark.parametrize("rebuild", REBUILDS)
async def test_the_server_is_left_to_a_sidecar_that_replaces_its_database(
    herd: Herd, started: list[str], rebuild: RebuildProgress
) -> None:
    node = node_with(herd, rebuild)
    await node.start(1.0)
    assert started == ["sidecar"]
    node.require_hope(
        NodeState(node.member, "starting", None, None, None, False, True, {})
    )  # it is no failure that the server does not run yet


@pytest.mark.parametrize("rebuild", NONE)
async def test_without_a_rebuild_the_server_is_started_first(
    herd: Herd, started: list[str], rebuild: RebuildProgress
) -> None:
    await node_with(herd, rebuild).start(1.0)
    assert started == ["server", "database", "sidecar"]


@pytest.mark.parametrize(
    ("account", "systemd", "keeps_out"),
    [(1000, True, True), (999, True, False), (1000, False, False)],
)
def test_a_logout_takes_no_memory_away_from_the_server(
    herd: Herd, monkeypatch: pytest.MonkeyPatch, account: int, *, systemd: bool, keeps_out: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: account)
    monkeypatch.setattr(postgres, "_SYSTEMD", herd.directory if systemd else herd.directory / "no")
    PostgresServer(herd, herd.members[0]).write_overlay()
    settings = (herd.node(herd.members[0]).overlay / "pgherd.conf").read_text()
    assert ("dynamic_shared_memory_type = 'mmap'" in settings) is keeps_out
    assert ("min_dynamic_shared_memory" in settings) is keeps_out


async def test_a_reader_that_is_rebuilt_is_said_to_follow(
    herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def done(*_: object) -> None:
        pass

    description, reader = herd.grown(None, kind="reader")
    save(description)
    monkeypatch.setattr(rebuild, "_ask", done)
    monkeypatch.setattr(rebuild, "watch_copy", done)
    monkeypatch.setattr(Sidecar, "start", lambda *_: None)
    asked = rebuild.RebuildOptions(None, None, 1.0)
    member = await rebuild.rebuild(herd.directory, reader.name, asked)
    assert member.purpose == "follows"
