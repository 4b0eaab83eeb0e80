"""What ``pgherd local up`` takes for a herd, and what of it is saved."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import binaries, herd
from pgherd_sidecar.local.herd import Herd, new_herd
from pgherd_sidecar.local.node import Node
from pgherd_sidecar.local.operations import lifecycle
from pgherd_sidecar.local.operations.lifecycle import UpOptions
from pgherd_sidecar.local.sidecar import SCRIPT_VARIABLE

NOTHING = UpOptions(nodes=None, port_base=None, postgres_bin=None, timeout_s=1)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Programs of a PostgreSQL 15 that has what a herd needs."""
    return fake_programs(tmp_path / "15", 15)


def fake_programs(directory: Path, major: int) -> Path:
    (directory / "share" / "extension").mkdir(parents=True)
    (directory / "share" / "extension" / "dblink.control").touch()
    for name in ("postgres", "initdb", "pg_ctl", "pg_config", "psql"):
        said = f"{directory}/share" if name == "pg_config" else f"postgres (PostgreSQL) {major}.1"
        (directory / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture
def down(tmp_path: Path, programs: Path) -> Herd:
    """A herd that is there, with data of PostgreSQL 15."""
    directory = tmp_path / "herd"
    directory.mkdir()
    description = new_herd(directory, nodes=3, port_base=7500, postgres_bin=programs)
    herd.save(description)
    for member in description.members:
        pgdata = description.node(member).pgdata
        pgdata.mkdir(parents=True)
        (pgdata / "PG_VERSION").write_text("15\n")
    return description


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"evict_s": 3.0}, r"evict_ms must be 0 or at least four election_timeout_ms, 4000"),
        ({"split_s": 2.0}, r"partition_split_ms must be at least four election_timeout_ms, 4000"),
        ({"scrub_s": float("inf")}, "finite number"),
        ({"scrub_share": float("nan")}, "finite number"),
    ],
)
async def test_what_a_sidecar_would_refuse_is_refused_and_not_saved(
    down: Herd, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    options = replace(NOTHING, **asked)
    with pytest.raises(HerdError, match=rf"would refuse its settings \(.*{said}.*\): give others"):
        await lifecycle.up(down.directory, options)
    assert herd.load(down.directory) == down
    with pytest.raises(HerdError, match=said):
        await lifecycle.up(
            tmp_path / "new", replace(options, postgres_bin=down.postgres_bin, port_base=7500)
        )
    assert not (tmp_path / "new").exists()


async def test_programs_that_are_gone_are_to_be_installed_again(
    down: Herd, programs: Path, tmp_path: Path
) -> None:
    newer = fake_programs(tmp_path / "17", 17)
    other = replace(NOTHING, postgres_bin=newer)
    data = "is PostgreSQL 17, the herd's data are of 15"
    with pytest.raises(HerdError, match=f"{data}: leave --postgres-bin out"):
        await lifecycle.up(down.directory, other)
    shutil.rmtree(programs)
    again = "install postgresql-15 again"
    with pytest.raises(HerdError, match=f"has no postgres: {again}, or give the --postgres"):
        await lifecycle.up(down.directory, NOTHING)
    with pytest.raises(HerdError, match=f"{data}: {again}"):
        await lifecycle.up(down.directory, other)
    assert herd.load(down.directory) == down


def test_a_command_without_the_option_does_not_advise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_DISTRIBUTION_DIRS", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(HerdError, match="`apt-get install postgresql` or give --postgres-bin"):
        binaries.find(None)
    with pytest.raises(HerdError, match=r"`apt-get install postgresql`$"):
        binaries.find(None, remedy=None)


@pytest.fixture
async def runs(
    down: Herd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Node]]:
    """The nodes of a herd whose sidecars run and do nothing, and which has no servers."""
    script = tmp_path / "sidecar.py"
    script.write_text("import time\ntime.sleep(300)\n")
    monkeypatch.setenv(SCRIPT_VARIABLE, str(script))

    async def start(node: Node, _: float) -> None:
        if node.sidecar.process() is None:
            node.sidecar.start()

    async def wait_up(node: Node) -> None:
        assert node.sidecar.process() is not None

    monkeypatch.setattr(Node, "start", start)
    monkeypatch.setattr(Node, "wait_up", wait_up)
    monkeypatch.setattr(Node, "require_free_ports", lambda _: None)
    nodes = lifecycle.nodes_of(down)
    for node in nodes:
        node.sidecar.start()
    yield nodes
    for node in nodes:
        await node.sidecar.kill()


def pids(nodes: list[Node]) -> list[int]:
    """Of the sidecars that run."""
    found = [node.sidecar.process() for node in nodes]
    return [process.pid for process in found if process is not None]


async def test_where_up_fails_no_sidecar_is_left_stopped_that_ran_before(
    down: Herd, runs: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pids(runs)

    async def never(node: Node) -> None:
        process = node.sidecar.process()
        assert process is not None
        if process.pid not in before:
            await node.sidecar.kill()
            raise HerdError("it does not come up")

    monkeypatch.setattr(Node, "wait_up", never)
    with pytest.raises(HerdError, match="it does not come up"):
        await lifecycle.up(down.directory, replace(NOTHING, scrub_s=60.0))
    after = pids(runs)
    assert len(after) == 3
    assert after[0] not in before
    assert after[1:] == before[1:]
    assert herd.load(down.directory).scrub_s == 60.0


async def test_a_sidecar_that_is_about_to_end_at_a_ctrl_c_is_started_again(
    down: Herd, runs: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, stop = pids(runs), Node.stop

    async def interrupted(node: Node, *, sidecar: bool = True, server: bool = True) -> None:
        monkeypatch.setattr(Node, "stop", stop)
        process = node.sidecar.process()
        assert process is not None
        process.signal(signal.SIGTERM)
        raise asyncio.CancelledError

    monkeypatch.setattr(Node, "stop", interrupted)
    with pytest.raises(asyncio.CancelledError):
        await lifecycle.up(down.directory, replace(NOTHING, scrub_s=60.0))
    after = pids(runs)
    assert len(after) == 3
    assert after[0] not in before
    assert after[1:] == before[1:]


async def test_a_sidecar_that_cannot_be_started_again_is_told_of(
    down: Herd,
    runs: list[Node],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def gone(node: Node, _: float) -> None:
        if node.sidecar.process() is None:
            down.node(node.member).sidecar_log.unlink()
            down.node(node.member).sidecar_log.mkdir()
            raise HerdError("no server")

    monkeypatch.setattr(Node, "start", gone)
    with pytest.raises(HerdError, match="no server"):
        await lifecycle.up(down.directory, replace(NOTHING, scrub_s=60.0))
    assert len(pids(runs)) == 2
    assert "`pgherd local start n1` starts it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("had", "asked", "voters", "option"),
    [
        ({"evict_s": 20.0}, {"scrub_s": 60.0}, 3, "--evict-after 20"),
        ({"evict_s": 20.0}, {"evict_s": 0.0}, 3, "--evict-after 20"),
        ({}, {"evict_s": 29.0}, 3, "--evict-after 29"),
        ({"split_s": 10.0}, {"scrub_s": 60.0}, 2, "--split-after 10"),
        ({"split_s": 10.0}, {"scrub_s": 60.0}, 3, ""),  # two of three are a majority
        ({"evict_s": 30.0, "split_s": 30.0}, {"scrub_s": 60.0}, 2, ""),
        ({"evict_s": 20.0}, {}, 3, ""),  # nobody is started anew
    ],
)
async def test_no_sidecar_is_started_anew_where_its_member_may_be_given_up_meanwhile(
    down: Herd,
    runs: list[Node],
    had: dict[str, Any],
    asked: dict[str, Any],
    voters: int,
    option: str,
) -> None:
    description = down.model_copy(update={**had, "members": down.members[:voters]})
    herd.save(description)
    for node in lifecycle.nodes_of(description):
        await node.sidecar.kill()
        node.sidecar.start()
    before = pids(runs[:voters])
    if option:
        said = rf"{option} is less than 30 s.*`pgherd local down`"
        with pytest.raises(HerdError, match=said):
            await lifecycle.up(down.directory, replace(NOTHING, **asked))
        assert herd.load(down.directory) == description
        assert pids(runs[:voters]) == before
        await lifecycle.down(down.directory)
    await lifecycle.up(down.directory, replace(NOTHING, **asked))
    assert len(pids(runs[:voters])) == voters
