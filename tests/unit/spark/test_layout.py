"""A snapshot of which any file was damaged is none."""

from pathlib import Path

import pytest
from pgherd_spark.storing.layout import FORMAT, require_whole, sealed, sha256
from pgherd_spark.storing.parts import PartError
from pgherd_spark.storing.stores import DirectoryStore

FILES = {"roles.sql": b"roles", "certification": b"state", "data/part": b"rows"}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    for name, content in FILES.items():
        store.put(name, content)
    part = {"path": "data/part", "bytes": 4, "sha256": sha256(b"rows")}
    manifest = {
        "format": FORMAT,
        "gid": 8,
        "files": {"roles.sql": sha256(b"roles")},
        "certification": {"file": "certification", "sha256": sha256(b"state")},
        "tables": [{"name": "public.t", "parts": (part,)}],
    }
    store.put("manifest.json", sealed(manifest))
    return store


def test_a_whole_snapshot_is_found_whole(store: DirectoryStore) -> None:
    assert require_whole(store)["gid"] == 8


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(store: DirectoryStore, name: str) -> None:
    store.put(name, FILES[name][::-1])
    with pytest.raises(PartError, match=name):
        require_whole(store)


def test_a_damaged_manifest_is_noticed(store: DirectoryStore) -> None:
    store.put("manifest.json", store.get("manifest.json").replace(b'"gid": 8', b'"gid": 9'))
    with pytest.raises(PartError, match=r"manifest\.json is damaged"):
        require_whole(store)
