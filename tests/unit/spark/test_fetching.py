"""A snapshot copied out of a store: all that its manifest names, and nothing anywhere else."""

from pathlib import Path

import pytest
from pgherd_spark.storing.fetching import fetch_head, fetch_parts
from pgherd_spark.storing.layout import (
    FORMAT,
    require_described,
    require_whole,
    sealed,
    sha256,
)
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import DirectoryStore

_PARTS = {f"data/{number}/part": bytes([number]) * number for number in range(9)}


def write(store: DirectoryStore, parts: dict[str, bytes], roles: str = "roles.sql") -> None:
    """A snapshot with these parts."""
    described = [
        {"path": path, "bytes": len(content), "sha256": sha256(content)}
        for path, content in parts.items()
    ]
    for path, content in {**parts, roles: b"roles", "certification": b"state"}.items():
        store.put(path, content)
    manifest = {
        "format": FORMAT,
        "files": {roles: sha256(b"roles")},
        "certification": {"file": "certification", "sha256": sha256(b"state")},
        "tables": [{"name": "public.t", "parts": described}],
    }
    store.put("manifest.json", sealed(manifest))


@pytest.fixture
def source(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "a" / "source")


@pytest.fixture
def target(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "target")


def test_what_says_whether_it_will_do_comes_first_then_the_parts(
    source: DirectoryStore, target: DirectoryStore
) -> None:
    write(source, _PARTS)
    source.put("left over", b"")
    fetch_head(source, target)
    assert not (target.root / "data").exists()
    require_described(target)
    told: list[int] = []
    fetch_parts(source, target, jobs=3, fetched=told.append)
    assert told == [len(content) for content in _PARTS.values()]
    require_whole(target)
    assert target.size("left over") is None


def test_a_part_that_is_missing_ends_it(source: DirectoryStore, target: DirectoryStore) -> None:
    write(source, _PARTS)
    source.delete("data/7/part")
    fetch_head(source, target)
    with pytest.raises(FileNotFoundError, match="data/7/part"):
        fetch_parts(source, target, jobs=1, fetched=lambda size: None)


@pytest.mark.parametrize("name", ["../beside", "data/../../beside"])
def test_no_name_leads_out_of_the_directory(
    source: DirectoryStore, target: DirectoryStore, name: str
) -> None:
    write(source, {name: b"x"})
    fetch_head(source, target)
    with pytest.raises(PartError, match="a file outside of the snapshot"):
        fetch_parts(source, target, jobs=1, fetched=lambda size: None)
    write(source, {}, roles=name)
    with pytest.raises(PartError, match="a file outside of the snapshot"):
        fetch_head(source, target)
    assert not (target.root.parent / "beside").exists()
