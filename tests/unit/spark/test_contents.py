"""What differs in materialized views, leaves and indexes, as the check concludes from sums."""

from typing import Any, cast

import psycopg
import pytest
from pgherd_spark.checking import contents
from pgherd_spark.checking.contents import Contents, differing
from pgherd_spark.checking.findings import told
from pgherd_spark.reading.checksums import Sum

NOBODY: dict[str, dict[str, Sum]] = {}


def test_equal_contents_are_no_difference() -> None:
    found = [Contents(name, {"public.m": "2 rows, checksum ab"}, {}) for name in ("n1", "n2", "n3")]
    same = {"public.p_a": dict.fromkeys(("n1", "n2", "n3"), Sum(5, 1, 0))}
    assert differing(found, same) == []


def test_a_view_a_leaf_and_an_index_are_named_with_the_member() -> None:
    views = {"n1": "2 rows", "n2": "3 rows", "n3": "2 rows"}
    faults = {"n3": {"public.i": "lacks a tuple"}}
    found = [Contents(name, {"public.m": views[name]}, faults.get(name, {})) for name in views]
    leaves = {
        "public.p_a": {"n1": Sum(5, 1, 0), "n2": Sum(5, 1, 0), "n3": Sum(4, 9, 0)},
        "public.p_b": {"n3": Sum(1, 2, 0)},  # nobody else has a row there
    }
    view, leaf, other, index = differing(found, leaves)
    assert (view.kind, view.name, view.odd) == ("materialized view contents", "public.m", ("n2",))
    assert (leaf.kind, leaf.name, leaf.odd) == ("partition contents", "public.p_a", ("n3",))
    assert (other.name, other.odd) == ("public.p_b", ("n3",))
    assert (index.kind, index.name, index.odd) == ("index contents", "public.i", ("n3",))
    assert index.versions["n1"] == "agrees with its table"
    assert index.versions["n3"] == "lacks a tuple"


def test_a_view_that_one_could_not_read_or_has_not_is_left_to_its_definition() -> None:
    found = [
        Contents("n1", {"public.m": "2 rows", "public.k": "1 rows"}, {}),
        Contents("n2", {"public.m": None}, {}),
    ]
    assert differing(found, NOBODY) == []


def test_what_could_not_be_checked_is_said_and_is_not_called_sound() -> None:
    found = [
        Contents("n1", {}, {"public.i": "lacks a tuple"}),
        Contents("n2", {}, {}, unread={"index public.i": "canceling statement"}),
        Contents("n3", {}, {}, beyond={"indexes": "its server has no amcheck"}),
        Contents("n4", {}, {}),
    ]
    (index,) = differing(found, NOBODY)
    assert list(index.versions.values()) == [
        "lacks a tuple", "not checked", "not checked", "agrees with its table",
    ]  # fmt: skip
    assert told((one.member, one.unread) for one in found) == (
        "index public.i on n2: canceling statement",
    )
    assert told((one.member, one.beyond) for one in found) == (
        "indexes on n3: its server has no amcheck",
    )


class Session:
    """Finds an index under one oid after the other, and fails to check all but ``sound``."""

    broken = False

    def __init__(self, oids: list[int | None], error: psycopg.Error, sound: int = 0) -> None:
        self.oids = oids
        self.error = error
        self.sound = sound
        self.row: tuple[int] | None = None

    def execute(self, query: psycopg.sql.Composed) -> "Session":
        text = query.as_string(None)
        if "bt_index_check" not in text:
            oid = self.oids.pop(0) if len(self.oids) > 1 else self.oids[0]
            self.row = None if oid is None else (oid,)
        elif f"({self.sound}::oid" not in text:
            raise self.error
        return self

    def fetchone(self) -> tuple[int] | None:
        return self.row


def checked(session: Session) -> str | None:
    return contents._index(cast(psycopg.Connection[Any], session), "public.i")


@pytest.mark.parametrize(
    "error", [psycopg.errors.IoError("bad disk"), psycopg.errors.IndexCorrupted("bad disk")]
)
def test_an_index_that_can_t_be_read_from_its_disk_is_at_fault(error: psycopg.Error) -> None:
    assert checked(Session([7], error)) == "bad disk"


def test_an_index_that_is_dropped_or_put_in_the_place_of_another_is_not_in_the_way() -> None:
    gone = psycopg.errors.UndefinedTable("could not open parent table of index")
    assert checked(Session([7, None], gone)) is None
    assert checked(Session([7, 8], gone, sound=8)) is None
    with pytest.raises(contents._UnreadError, match="could not open"):
        checked(Session([7], gone))
