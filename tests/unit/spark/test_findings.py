"""The verdict of a consistency check, and what its report says."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pgherd_spark.checking.findings import (
    DefinitionDifference,
    Findings,
    RowDifference,
    TableFindings,
    odd_ones,
)
from pgherd_spark.checking.report import as_json, to_html, write
from pgherd_spark.reading import cluster as reading


def table(*, buckets: int = 0, reason: str | None = None) -> TableFindings:
    return TableFindings("public.t", {"n1": 1, "n2": 1}, 16, buckets, buckets, False, reason)


def findings(**fields: Any) -> Findings:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    known = {
        "members": {"n1": "1:2:", "n2": "3:4:"},
        "servers": {"n1": "15", "n2": "15"},
        "tables": (table(),),
        "rows": (),
        "definitions": (),
        "changing": (),
        "not_replicated": (),
    }
    return Findings(7, moment, moment, **known | fields)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "consistent"),
        ({"tables": ()}, "consistent"),
        ({"tables": (table(buckets=1),)}, "different"),
        ({"tables": (table(reason="n1: dropped"),)}, "incomplete"),
        ({"tables": (table(buckets=1), table(reason="n1: dropped"))}, "different"),
        ({"changing": ("index public.i",)}, "incomplete"),
        ({"unread_on": {"n1": {"index public.i": "it was locked"}}}, "incomplete"),
        ({"beyond": ("indexes on n1: its server has no amcheck",)}, "consistent"),
        ({"left_out": ("n3: down",)}, "consistent"),
        ({"left_out": ("n2: down", "n3: down"), "members": {"n1": ""}}, "incomplete"),
        ({"members": {"n1": ""}}, "consistent"),
        (
            {"definitions": (DefinitionDifference("role", "r", {"n1": "", "n2": None}, ()),)},
            "different",
        ),
    ],
)
def test_only_what_was_compared_completely_is_called_consistent(
    fields: dict[str, Any], verdict: str
) -> None:
    assert findings(**fields).verdict == verdict
    assert as_json(findings(**fields))["verdict"] == verdict


@pytest.mark.parametrize(
    ("versions", "odd"),
    [
        ({"n1": "a", "n2": "a", "n3": "b"}, ("n3",)),
        ({"n1": None, "n2": "a", "n3": "a"}, ("n1",)),
        ({"n1": "a", "n2": None, "n3": None}, ("n1",)),
        ({"n1": "a", "n2": "b"}, ()),
        ({"n1": "a", "n2": "b", "n3": "c"}, ()),
        ({"n1": "a", "n2": "a", "n3": "b", "n4": "c"}, ()),
    ],
)
def test_a_member_is_odd_only_against_a_majority(
    versions: dict[str, str | None], odd: tuple[str, ...]
) -> None:
    assert odd_ones(versions) == odd


def test_what_users_store_is_shown_on_the_page_and_not_executed() -> None:
    versions = {"n1": {"id": "1", "t": "<script>"}, "n2": None}
    row = RowDifference("public.t", ("id",), "(1)", ("t",), versions, ())
    page = to_html(findings(tables=(table(buckets=1),), rows=(row,)))
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<i>missing</i>" in page


def test_what_was_not_compared_is_on_the_page() -> None:
    left_out, unread, beyond = "n3: down", "index public.i on n1: locked", "indexes on n2: no"
    unread_on = {"n1": {"index public.i": "locked"}}
    found = findings(left_out=(left_out,), unread_on=unread_on, beyond=(beyond,))
    page = to_html(found)
    assert all(text in page for text in (left_out, unread, beyond))
    assert as_json(found)["unread"] == (unread,)


def test_the_report_is_for_its_owner_only(tmp_path: Path) -> None:
    """It holds values of rows, and is as secret as they are."""

    class Cluster:
        def write_parquet(self, path: Path, rows: object, schema: str) -> None:
            path.touch()

    write(cast("reading.Cluster", Cluster()), findings(), tmp_path / "report")
    assert (tmp_path / "report" / "report.json").exists()
    assert (tmp_path / "report").stat().st_mode & 0o077 == 0
