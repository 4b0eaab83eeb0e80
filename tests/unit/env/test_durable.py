"""A file that can't be written leaves the old one, and nothing else."""

import errno
import os
from pathlib import Path

import pytest
from pgherd_sidecar.env.storage import durable


def test_a_file_for_which_there_is_no_room_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.replace(tmp_path, "checkpoint", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        durable.replace(tmp_path, "checkpoint", bytes(1 << 20))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert (tmp_path / "checkpoint").read_bytes() == b"old"
