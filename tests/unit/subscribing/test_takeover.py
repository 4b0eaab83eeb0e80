"""Which of a lost herd's subscribers takes the set over."""

import msgspec
import pytest
from pgherd_sidecar.subscribing.failover.takeover import Survivor, chosen
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import TableSelection


def one(name: str, gid: int, begins: int | None = None, tables: str = "s.t") -> Survivor:
    return Survivor(name, "", "herd", 1, gid, begins, (tables,))


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ([one("a", 5), one("b", 7), one("c", 6)], "b"),
        ([one("a", 7), one("b", 7, 5), one("c", 6)], "b"),  # its log has what c lacks
        ([one("a", 7, 7), one("b", 7, 6), one("c", 6)], "b"),
        ([one("a", 7, 1), one("b", 8), one("c", 6)], "b"),  # nothing is lost that one has
    ],
)
def test_the_most_advanced_one_is_chosen(found: list[Survivor], first: str) -> None:
    assert chosen(found).name == first


def test_one_that_has_taken_over_stays_it() -> None:
    was = msgspec.structs.replace(one("a", 5), has_taken_over=True)
    assert chosen([was, one("b", 7)]).name == "a"
    again = msgspec.structs.replace(one("b", 7), has_taken_over=True)
    with pytest.raises(StoppedError, match="two of them"):
        chosen([was, again])


def test_those_of_other_sets_are_refused() -> None:
    with pytest.raises(StoppedError, match="not show the same"):
        chosen([one("a", 5), one("b", 7, tables="s.u")])
    part = (TableSelection("s.t", columns=("id",)),)
    with pytest.raises(StoppedError, match="not show the same"):
        chosen([one("a", 5), msgspec.structs.replace(one("b", 7), selections=part)])


def test_one_that_is_named_twice_is_refused() -> None:
    with pytest.raises(StoppedError, match="named twice"):
        chosen([one("a", 5), one("a", 5)])


def test_a_log_must_reach_back_and_far_enough() -> None:
    first = one("a", 7, 5)
    assert first.feeds(one("b", 5)) and first.feeds(one("b", 7))
    assert not first.feeds(one("b", 4)) and not first.feeds(one("b", 8))
    assert not one("a", 7).feeds(one("b", 6))
