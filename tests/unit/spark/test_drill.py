"""What is told of rows that differ in a table without a key: how many there are of each."""

from pgherd_spark.checking.drill import HOW_MANY, Places, Values, _count_equal_rows, _difference
from pgherd_spark.reading.catalog import Table
from pgherd_spark.reading.checksums import Found, Sum
from pgherd_spark.reading.sources import Relation

BAG = Table("public.bag", ("v",), ("integer",), (), ("v",))


def test_members_that_have_more_of_equal_rows_are_told_by_their_number() -> None:
    one = Found(Sum(1, 1, 1), Relation("public.bag", "public", "bag", 1, 1, 1, 8192), "(0,1)")
    places: dict[str, Places] = {"(7)": {"n1": (one, one), "n2": (one, one), "n3": (one,)}}
    versions: dict[str, dict[str, Values | None]] = {
        "(7)": {"n1": {"v": "7"}, "n2": {"v": "7"}, "n3": {"v": "7"}, "n4": None}
    }
    _count_equal_rows(places, versions)
    told = _difference(BAG, "(7)", versions["(7)"])
    assert told.columns == told.key_columns == (HOW_MANY,)
    assert told.versions["n1"] == {"v": "7", HOW_MANY: "2"}
    assert told.versions["n3"] == {"v": "7", HOW_MANY: "1"}
    assert told.versions["n4"] is None
    assert told.odd == ()
    del versions["(7)"]["n4"]
    assert _difference(BAG, "(7)", versions["(7)"]).odd == ("n3",)
