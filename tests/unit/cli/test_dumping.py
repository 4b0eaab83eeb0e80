"""The file of a dump: whole, and its owner's only."""

from pathlib import Path
from typing import IO

from pgherd_sidecar.local.export.dumping import _whole


def test_a_dump_is_written_into_no_file_that_somebody_has_put_in_its_way(tmp_path: Path) -> None:
    """Its directory may be one into which others write, as /tmp is."""

    def fill(file: IO[bytes]) -> None:
        file.write(b"rows")

    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / ".shop.sql.new").symlink_to(mine)
    _whole(tmp_path / "shop.sql", fill)
    assert mine.read_text() == "mine"
    assert (tmp_path / "shop.sql").read_text() == "rows"
    assert (tmp_path / "shop.sql").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "shop.sql").is_symlink()
