"""A server is filled only where there is room for the rows."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from pgherd_sidecar.agent.recovery import carried, filling
from pgherd_sidecar.agent.recovery.carried import Carried
from pgherd_sidecar.env.processes.programs import ProgramError
from test_recovery_rebuild import config_in


class Usage(NamedTuple):
    total: int
    used: int
    free: int


async def test_rows_for_which_there_is_no_room_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dump is compressed: that it had room says nothing of the rows, and the log is there."""
    config, recovery = config_in(tmp_path)
    target = tmp_path / "pgdata.copy-1"
    source = carried.directory_of(target)
    carried.prepare_directory(source)
    sizes = {"public.t": 3 << 20, "public.u": 2 << 20}
    Carried(9, "UTF8", "C", "C", "rows", "roles", [], {}, sizes=sizes).save(source)
    target.mkdir()
    (target / "left").touch()

    def usage(path: Path) -> Usage:
        assert not target.exists()  # what an earlier attempt has left does not count
        return Usage(9 << 20, 5 << 20, 4 << 20)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(ProgramError, match="disk full: 5 MB of rows, 4 free"):
        await filling.fill(config, recovery, target, lambda done, total: None)
