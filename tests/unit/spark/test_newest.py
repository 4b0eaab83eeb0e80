"""Which snapshot of a folder of several a new herd begins with."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from pgherd_spark.restoring.seeding import SeedError, cores, main, newest
from pgherd_spark.storing.stores import DirectoryStore
from test_retention import make


def test_of_one_herd_s_snapshots_it_is_the_newest_that_is_whole(tmp_path: Path) -> None:
    make(tmp_path, 7)
    wanted = make(tmp_path, 90)
    make(tmp_path, 1000, whole=False)
    store = DirectoryStore(tmp_path)
    assert newest(store) == DirectoryStore(wanted)
    assert newest(DirectoryStore(wanted)) == DirectoryStore(wanted)


def test_of_several_herds_snapshots_it_is_none_for_their_gids_say_nothing(tmp_path: Path) -> None:
    """A herd that was made from a snapshot begins with small GIDs, and writes into the folder."""
    make(tmp_path, 7000, "before")
    last, restored = make(tmp_path, 9000, "before"), make(tmp_path, 40, "after")
    with pytest.raises(SeedError, match="several herds") as raised:
        newest(DirectoryStore(tmp_path))
    assert f"{last.name} (of herd before)" in str(raised.value)
    assert f"{restored.name} (of herd after)" in str(raised.value)
    assert newest(DirectoryStore(restored)) == DirectoryStore(restored)


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    make(tmp_path, 7)
    damaged = make(tmp_path, 90)
    (damaged / "manifest.json").write_text(json.dumps({})[:1])
    with pytest.raises(SeedError, match=damaged.name):
        newest(DirectoryStore(tmp_path))


def test_the_operator_can_tell_the_error_from_the_server_s_log(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert str(done.exception).startswith("pgherd-seed: ")
    assert "holds no snapshot" in str(done.exception)


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        (None, 8),
        ("max 100000", 8),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 8),
    ],
)
def test_a_container_loads_as_many_parts_at_a_time_as_it_may_take_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, wanted: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert cores(tmp_path / "cpu.max") == wanted
