"""Links are cut and mended on members that run, and on none that ends meanwhile."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.env.processes.detached import identify, write_pid_file
from pgherd_sidecar.local import herd
from pgherd_sidecar.local.operations import drills


@pytest.fixture
def mute(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of the only sidecar: it does not listen, and ends with its input."""
    description = herd.new_herd(tmp_path, nodes=1, port_base=7500, postgres_bin=Path("/usr/bin"))
    herd.save(description)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        identity = identify(process.pid)
        assert identity is not None
        paths = description.node("n1")
        paths.root.mkdir()
        write_pid_file(paths.sidecar_pid, identity)
        yield process


async def test_one_that_is_just_ending_has_no_links_to_mend(
    tmp_path: Path, mute: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> None:
    healing = asyncio.create_task(drills.heal(tmp_path))
    await asyncio.sleep(0)
    assert mute.stdin is not None
    mute.stdin.close()
    await healing
    assert capsys.readouterr().err == "n1 does not run: when it starts, its links are open\n"


@pytest.mark.usefixtures("mute")
async def test_one_that_runs_and_can_t_be_told_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills, "_ENDS_S", 0.01)
    with pytest.raises(HerdError, match="n1: no sidecar listens at"):
        await drills.heal(tmp_path)
