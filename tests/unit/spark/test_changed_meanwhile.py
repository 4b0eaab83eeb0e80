"""DDL that comes between a job's steps: said to be so, never taken for what was at the marker."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import psycopg
import pytest
from pgherd_spark.checking import bundles, check, drill
from pgherd_spark.reading.catalog import Description, Server, Table, columns_changed, types_changed
from pgherd_spark.reading.checksums import Found, Part, Sum
from pgherd_spark.reading.cluster import Cluster
from pgherd_spark.reading.comparison import CheckOptions, Comparison
from pgherd_spark.reading.sources import Relation, Source, TableChangedError
from pgherd_spark.snapshots import snapshot

TABLE = Table("public.t", ("id", "v"), ("integer", "text"), ("id",), ("id", "v"))
RELATION = Relation("public.t", "public", "t", 16384, 16384, 1, 8192)
SERVER = Server(150000, "1", "UTF8", "C", "C", "PostgreSQL 15")
COLUMNS = {"public.t": ("id 1", "v 2")}
TYPES = {(16390, "label 16391 low"): "public.mood", (16393, "columns 1 23"): "public.pair"}
FOUND = {
    name: Description(name, SERVER, (TABLE,), COLUMNS, TYPES, (RELATION,), (), (), ())
    for name in ("n1", "n2")
}
SOURCES = [Source(name, "", 8, "00000003-1", "10:12:11") for name in FOUND]


class OneThread:
    """One that has a single thread, this one."""

    cores = 1

    def each(self, tasks: Sequence[Any], run: Callable[[Any], Any]) -> list[Any]:
        return [run(task) for task in tasks]

    def by_key(self, tasks: Sequence[Any], run: Any, merge: Any, keep: Any) -> list[Any]:
        merged: dict[Any, Any] = {}
        for task in tasks:
            for key, value in run(task):
                merged[key] = merge(merged[key], value) if key in merged else value
        return [item for item in merged.items() if keep(item)]


CLUSTER = cast(Cluster, OneThread())


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (COLUMNS, []),
        ({}, ["public.t"]),
        ({"public.t": ("id 1", "v 3")}, ["public.t"]),
        ({"public.t": ("v 1", "id 2")}, ["public.t"]),
        (COLUMNS | {"public.u": ("id 1",)}, []),
    ],
)
def test_a_column_is_known_by_its_number(
    now: dict[str, tuple[str, ...]], changed: list[str]
) -> None:
    assert columns_changed(FOUND["n1"], now) == changed


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (TYPES, []),
        (TYPES | {(16390, "label 16392 high"): "public.mood"}, []),
        (dict.fromkeys(TYPES, "renamed"), []),
        ({(16390, "label 16391 low"): "public.mood"}, ["public.pair"]),
        (
            {(16390, "label 16391 lower"): "public.mood", (16393, "columns 1 23,2 23"): "p"},
            ["public.mood", "public.pair"],
        ),
    ],
)
def test_a_type_is_changed_if_a_value_of_the_marker_has_another_form(
    now: dict[tuple[int, str], str], changed: list[str]
) -> None:
    assert types_changed(FOUND["n1"], now) == changed


def test_no_snapshot_is_whole_whose_columns_any_member_that_was_read_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = {"n1": COLUMNS, "n2": COLUMNS}
    types = {"n1": TYPES, "n2": TYPES}
    monkeypatch.setattr(snapshot, "columns_now", lambda source: now[source.member])
    monkeypatch.setattr(snapshot, "types_now", lambda source: types[source.member])
    snapshot._require_values(CLUSTER, SOURCES, FOUND)
    types["n2"] = {}
    wanted = r"n2: .* public\.mood, public\.pair; try again"
    with pytest.raises(snapshot.ChangedError, match=wanted):
        snapshot._require_values(CLUSTER, SOURCES, FOUND)
    now["n2"] = {"public.t": ("id 1", "v 3")}
    with pytest.raises(snapshot.ChangedError, match=r"n2: .* public\.t; try again"):
        snapshot._require_values(CLUSTER, SOURCES, FOUND)


def test_tables_that_are_equal_are_not_compared_if_their_columns_were_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions(monkeypatch, lambda part: Sum(1, 1, 1), {"public.t": ("id 1", "v 3")})
    (table,), rows = check._compare_rows(comparison())
    assert (table.verdict, rows) == ("incomplete", [])
    assert table.reason == "n1: its columns were changed; n2: its columns were changed"


@pytest.mark.parametrize("error", [psycopg.errors.DataCorrupted, psycopg.errors.IoError])
def test_a_table_that_its_disk_does_not_give_back_is_named_with_the_member(
    monkeypatch: pytest.MonkeyPatch, error: type[psycopg.Error]
) -> None:
    def read(part: Part) -> Sum:
        if part.source.member == "n2":
            raise error("invalid page in block 3")
        return Sum(1, 1, 1)

    sessions(monkeypatch, read, COLUMNS)
    (table,), rows = check._compare_rows(comparison())
    assert (table.verdict, rows) == ("incomplete", [])
    assert table.reason == "n2: invalid page in block 3"


def test_tables_whose_columns_were_changed_while_differing_rows_were_looked_for_are_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions(monkeypatch, number, COLUMNS)
    monkeypatch.setattr(check, "bucket_sums", lambda part, _: [(0, number(part))])
    now = {"n1": COLUMNS, "n2": {"public.t": ("id 1", "v 3")}}
    monkeypatch.setattr(check, "columns_now", lambda source: now[source.member])
    (table,), rows = check._compare_rows(comparison())
    assert (table.verdict, rows) == ("incomplete", [])
    assert table.reason == "n2: its columns were changed"


def test_a_table_that_is_changed_while_its_differing_rows_are_named_is_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sums(part: Part, _: int) -> list[tuple[int, Sum]]:
        return [(0, number(part))]

    def different(part: Part, *_: object) -> list[tuple[str, Found]]:
        return [("(1)", Found(number(part), RELATION, "(0,1)"))]

    def gone(*_: object) -> None:
        raise TableChangedError("it was truncated")

    sessions(monkeypatch, number, COLUMNS)
    monkeypatch.setattr(check, "bucket_sums", sums)
    monkeypatch.setattr(check, "columns_now", lambda source: COLUMNS)
    monkeypatch.setattr(drill, "rows_in", different)
    monkeypatch.setattr(drill, "values_at", gone)
    (table,), rows = check._compare_rows(comparison())
    assert (table.verdict, rows) == ("incomplete", [])
    assert table.reason == "it was changed while its differing rows were read"


def sessions(
    monkeypatch: pytest.MonkeyPatch,
    quick_sum: Callable[[Part], Sum],
    columns: Mapping[str, tuple[str, ...]],
) -> None:
    """Let tasks find these sums, and these columns afterwards."""
    monkeypatch.setattr(bundles, "connected", nullcontext)
    monkeypatch.setattr(bundles, "quick_sum", lambda _, part: quick_sum(part))
    monkeypatch.setattr(bundles, "columns_of", lambda _: columns)


def number(part: Part) -> Sum:
    """A sum that no two members have in common."""
    return Sum(1, 1, int(part.source.member[1]))


def comparison() -> Comparison:
    return Comparison(CLUSTER, SOURCES, FOUND, CheckOptions(), lambda text: None)
