"""Files of the copy in Parquet: there whole, or not there."""

import os
from pathlib import Path

import pytest
from pgherd_spark.stream.lake import identity, load, write

pytest.importorskip("pyarrow")
ROW = {"id": "1", "t": None}
ROWS = {identity({"id": "1"}): ROW}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert load(tmp_path / write(tmp_path, "public.t", 3, 8, ROWS)) == ROWS


def test_a_file_has_no_name_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = os.fsync

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_file():
            raise OSError("the disk is gone")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="gone"):
        write(tmp_path, "public.t", 3, 8, ROWS)
    assert not list(tmp_path.glob("*/*.parquet"))
