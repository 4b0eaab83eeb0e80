"""A plant changes a copy of the sidecar, once, and never silently nothing."""

from pathlib import Path

import pgherd_sidecar
import pytest
from fuzz.__main__ import remembered
from fuzz.planted import PlantError, plant
from fuzz.plants import PLANTS, Patch, Plant

_FILE = "pg/sql/010_schema.sql"
_TEXT = "CREATE OR REPLACE FUNCTION pgherd.last_gid()"


def a_plant(mended: str) -> Plant:
    """A plant with one patch."""
    return Plant("a00", "nothing is wrong", (Patch(_FILE, mended, "-- planted"),))


def test_a_copy_is_changed_and_the_source_is_not(tmp_path: Path) -> None:
    source = Path(pgherd_sidecar.__file__).parent / _FILE
    before = source.read_text()
    script = plant(a_plant(_TEXT), tmp_path)
    copy = script.parent / "planted" / "pgherd_sidecar" / _FILE
    assert "-- planted" in copy.read_text()
    assert source.read_text() == before


@pytest.mark.parametrize("text", ["no such text", "pgherd."], ids=["missing", "ambiguous"])
def test_a_text_that_is_not_there_once_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(PlantError):
        plant(a_plant(text), tmp_path)


@pytest.mark.parametrize("found", PLANTS, ids=[one.name for one in PLANTS])
def test_each_plant_fits_to_the_code_and_has_cases(tmp_path: Path, found: Plant) -> None:
    plant(found, tmp_path)
    assert remembered([found.name])
