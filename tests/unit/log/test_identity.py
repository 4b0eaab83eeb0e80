"""Who is refused as a peer, and what it is told [V6] C18."""

from dataclasses import replace

import pytest
from pgherd_sidecar.core.consensus import Identity, Member, Membership, objection
from pgherd_sidecar.core.consensus.model.identity import has_left

MINE = Identity("cluster-1", "n1", "disk-1", 1000)
PEER = Identity("cluster-1", "n2", "disk-2", 1000)
MEMBERSHIP = Membership.founded([Member("n1", "disk-1"), Member("n2", "disk-2")])


def test_a_member_of_the_view_and_one_that_is_not_known_yet_are_welcome() -> None:
    assert objection(MINE, PEER, MEMBERSHIP) == ""
    assert objection(MINE, replace(PEER, name="n3"), MEMBERSHIP) == ""


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (replace(PEER, cluster="cluster-2"), ("cluster-1", "cluster-2")),
        (replace(PEER, disk="disk-9"), ("disk-2", "disk-9")),
        (replace(PEER, name="n1"), ("disk-1", "disk-2")),
        (replace(PEER, format=1), ("format 1", "3")),
        (replace(PEER, slots=16), ("16", "0")),
        (replace(PEER, certification_keys=5), ("5", "1000")),
    ],
)
def test_what_does_not_match_is_refused_with_both_sides_named(
    other: Identity, named: tuple[str, str]
) -> None:
    text = objection(MINE, other, MEMBERSHIP)
    assert all(side in text for side in named)


def test_a_disk_that_is_not_known_yet_is_no_reason_to_refuse() -> None:
    founded = Membership.fixed("n1", "n2")
    assert objection(MINE, PEER, founded) == ""


def test_who_has_left_is_refused_as_long_as_it_knows_nothing_newer() -> None:
    gone = frozenset({("n3", "disk-3")})
    former = Identity("cluster-1", "n3", "disk-3", 1000)
    newest = replace(MEMBERSHIP, position=10)
    assert "has left" in objection(MINE, former, newest, gone)
    assert "has left" in objection(MINE, replace(former, known=10), newest, gone)
    assert objection(MINE, replace(former, known=11), newest, gone) == ""
    assert objection(MINE, replace(former, disk="disk-4"), newest, gone) == ""


def test_who_was_evicted_while_it_was_away_has_left_even_if_the_log_no_longer_tells() -> None:
    newest = replace(MEMBERSHIP, position=10)
    evicted = Identity("cluster-1", "n3", "disk-3", 1000, known=3, member=True)
    assert "has left" in objection(MINE, evicted, newest)
    assert objection(MINE, replace(evicted, member=False), newest) == ""  # it asks to join
    assert objection(MINE, replace(evicted, known=11), newest) == ""
    assert has_left(replace(evicted, name="n2"), newest)  # its disk is found again
    assert not has_left(replace(PEER, known=3, member=True), newest)


def test_a_member_that_was_away_while_another_was_replaced_lets_the_new_one_in() -> None:
    replaced = replace(PEER, disk="disk-9", known=11)
    assert objection(MINE, replaced, replace(MEMBERSHIP, position=10)) == ""
