"""What differs in materialized views, leaves and indexes, as the check concludes from sums."""

from pgherd_spark.checking.contents import Contents, differing, told
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
