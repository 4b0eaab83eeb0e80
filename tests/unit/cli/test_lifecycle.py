"""What ``pgherd local up`` takes for a herd, and what of it is saved."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import binaries, herd
from pgherd_sidecar.local.herd import Herd, new_herd
from pgherd_sidecar.local.operations import lifecycle
from pgherd_sidecar.local.operations.lifecycle import UpOptions

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
