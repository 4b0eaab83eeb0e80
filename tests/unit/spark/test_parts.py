"""Which parts of an earlier run a snapshot job takes for its own."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
import zstandard
from pgherd_spark.reading.catalog import Description, Server, Table
from pgherd_spark.reading.checksums import Part, Sum
from pgherd_spark.reading.sources import Relation, Source
from pgherd_spark.snapshots import snapshot
from pgherd_spark.snapshots.snapshot import SnapshotOptions
from pgherd_spark.storing import parts
from pgherd_spark.storing.parts import PartError, WritePart, content, read_receipt, write_part
from pgherd_spark.storing.stores import DirectoryStore

_SOURCE = Source("n1", "", 8, "00000003-1", "10:12:11")
_TABLE = Table("public.t", ("id",), ("integer",), ("id",), ("id",))
_RELATION = Relation("public.t", "public", "t", 16384, 16384, 100, 8192)
_PART = Part(_SOURCE, _TABLE, _RELATION, 0, 80)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """The parts whose rows were read."""
    read: list[Part] = []

    def copy(task: WritePart, file: IO[bytes]) -> object:
        read.append(task.part)
        file.write(b"rows")
        return SimpleNamespace(bytes=4, hash=SimpleNamespace(hexdigest=lambda: "00"))

    monkeypatch.setattr(parts, "total", lambda part: Sum(part.end or 0, 1, 2))
    monkeypatch.setattr(parts, "_copy", copy)
    return read


def write(directory: Path, part: Part) -> int:
    return write_part(WritePart(part, DirectoryStore(directory), "data/part", Path())).sum.rows


def test_a_part_that_an_earlier_run_has_written_is_not_written_again(
    tmp_path: Path, copied: list[Part]
) -> None:
    assert write(tmp_path, _PART) == write(tmp_path, _PART) == 80
    assert copied == [_PART]


@pytest.mark.parametrize(
    "other",
    [
        replace(_PART, end=20),
        replace(_PART, end=None),
        replace(_PART, first=20),
        replace(_PART, source=replace(_SOURCE, member="n2")),
        replace(_PART, source=replace(_SOURCE, visible="11:12:")),
        replace(_PART, relation=replace(_RELATION, filenode=16390)),
        replace(_PART, relation=replace(_RELATION, name="t_2026")),
    ],
)
def test_a_part_with_other_rows_is_written_anew(
    tmp_path: Path, copied: list[Part], other: Part
) -> None:
    write(tmp_path, other)
    assert write(tmp_path, _PART) == 80
    assert copied == [other, _PART]


def test_no_receipt_of_other_rows_is_left_where_writing_ends_midway(
    tmp_path: Path, copied: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, _PART)

    def fail(task: WritePart, file: IO[bytes]) -> object:
        raise OSError("disk full")

    monkeypatch.setattr(parts, "_copy", fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, replace(_PART, end=20))
    assert read_receipt(DirectoryStore(tmp_path), "data/part") is None


def test_a_part_is_read_with_what_pgherd_itself_depends_on(tmp_path: Path) -> None:
    store, rows = DirectoryStore(tmp_path), b"rows" * 1000
    packed = zstandard.compress(rows)
    store.put("part", packed)
    digest = hashlib.sha256(packed).hexdigest()
    assert b"".join(content(store, "part", digest)) == rows
    with pytest.raises(PartError, match="part is not what was written"):
        list(content(store, "part", hashlib.sha256(rows).hexdigest()))


def test_a_table_with_the_longest_names_has_files(tmp_path: Path) -> None:
    name = ".".join(['"' + '""' * 63 + '"'] * 2)
    table, relation = replace(_TABLE, name=name), replace(_RELATION, table=name)
    server = Server(150000, "1", "UTF8", "C", "C", "PostgreSQL 15")
    found = Description("n1", server, (table,), {}, {}, (relation,), (), (), ())
    store = DirectoryStore(tmp_path)
    options = SnapshotOptions(store, ("n1",), tmp_path, "this")
    (task,) = snapshot._tasks_of_table(_SOURCE, found, name, options, store)
    store.put(task.path, b"rows")
    assert store.get(task.path) == b"rows"
