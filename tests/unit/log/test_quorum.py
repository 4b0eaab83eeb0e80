"""Quorum arithmetic against a naive twin that tries every subset."""

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgherd_sidecar.core.consensus import Member, Membership, RemoteProtocolError, View

NAMES = ["a", "b", "c", "d", "e", "f"]

members = st.builds(Member, st.sampled_from(NAMES), st.just(""), st.integers(0, 3))
voters = st.lists(members, min_size=1, max_size=6, unique_by=lambda member: member.name).map(tuple)
views = st.builds(View, st.integers(1, 9), voters)
memberships = st.builds(
    Membership, st.lists(views, min_size=1, max_size=2).map(tuple), position=st.integers(1, 20)
)
flushes = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 20))


def view_of(names: Iterable[str]) -> View:
    return View(1, tuple(Member(name) for name in names))


def majorities(view: View) -> list[set[str]]:
    """Every set of voters with more than half of the votes."""
    return [
        set(some)
        for size in range(len(view.voters) + 1)
        for some in combinations(view.voters, size)
        if size > len(view.voters) / 2
    ]


def quorums(view: View) -> list[set[str]]:
    """Every majority, and every half that holds the voter that joined last."""
    last = max((m.since, m.name) for m in view.members if not m.witness)[1]
    size = len(view.voters) // 2
    halves = [set(some) for some in combinations(view.voters, size) if last in some]
    return majorities(view) + (halves if 2 * size == len(view.voters) else [])


def naive_flushed(membership: Membership, flushed: dict[str, int]) -> int:
    """The best that some majority of each view has in common, or the half that is to be left."""
    best = min(
        max(min(flushed.get(voter, 0) for voter in majority) for majority in majorities(view))
        for view in membership.views
    )
    old, new = membership.views[0], membership.views[-1]
    halves = [q for q in quorums(old) if q not in majorities(old)]
    if membership.joint and set(new.voters) in halves:
        alone = min(flushed.get(voter, 0) for voter in new.voters)
        if alone >= membership.position:
            best = max(best, alone)
    return best


@given(memberships, st.sets(st.sampled_from(NAMES)))
def test_quorums_and_majorities_are_what_trying_every_subset_finds(
    membership: Membership, who: set[str]
) -> None:
    """[Q1, Q2]"""
    expected = all(any(q <= who for q in quorums(view)) for view in membership.views)
    assert membership.has_quorum(who) == expected
    expected = all(any(m <= who for m in majorities(view)) for view in membership.views)
    assert membership.has_majority(who) == expected


@given(memberships, flushes)
def test_flushed_by_quorum_says_what_trying_every_subset_finds(
    membership: Membership, flushed: dict[str, int]
) -> None:
    assert membership.flushed_by_quorum(flushed) == naive_flushed(membership, flushed)


@settings(deadline=None)
@given(memberships, flushes, st.sampled_from(NAMES))
def test_an_assumed_member_counts_as_far_as_it_will_ever_flush(
    membership: Membership, flushed: dict[str, int], peer: str
) -> None:
    """[K3] min(own flush, bound) is what the proposer would find with that flush counted."""
    bound = membership.flushed_by_quorum(flushed, assume=peer)
    for own in range(22):
        counted = naive_flushed(membership, flushed | {peer: own})
        if all(peer in view.voters for view in membership.views):
            assert min(own, bound) <= counted


@given(views)
def test_any_two_quorums_of_a_view_share_a_member(view: View) -> None:
    everybody = quorums(view)
    assert all(one & other for one in everybody for other in everybody)


@given(voters, st.data())
def test_each_majority_has_a_member_with_a_database(
    all_voters: tuple[Member, ...], data: st.DataObject
) -> None:
    """[Q3]"""
    count = data.draw(st.integers(0, (len(all_voters) - 1) // 2))
    witnesses = {m.name for m in all_voters[:count]}
    view = View(1, tuple(Member(m.name, witness=m.name in witnesses) for m in all_voters))
    assert all(majority - witnesses for majority in majorities(view))
    assert view.tie_breaker not in witnesses


def test_nobody_is_no_quorum_of_a_membership_without_views() -> None:
    assert not Membership().has_quorum(NAMES)
    assert Membership().flushed_by_quorum(dict.fromkeys(NAMES, 9)) == 0


def test_the_names_of_a_membership_are_those_of_all_views_and_learners() -> None:
    joint = Membership((view_of("ba"), view_of("cb")), (Member("x"),))
    assert joint.voters == ("a", "b", "c")
    assert joint.names == ("a", "b", "c", "x")


@pytest.mark.parametrize("names", ["", "aa"])
def test_a_view_without_voters_or_with_one_twice_is_refused(names: str) -> None:
    with pytest.raises(ValueError, match="once"):
        view_of(names)


def test_a_reader_is_no_voter_and_survives_the_encoding() -> None:
    reader = Member("r", "disk", reader=True)
    with pytest.raises(ValueError, match="readers do not vote"):
        View(1, (Member("a"), reader))
    membership = Membership((View(1, (Member("a"),)),), (reader,), 4)
    assert Membership.decode(membership.encode()) == membership


def test_half_of_the_voters_as_witnesses_are_too_many() -> None:
    with pytest.raises(ValueError, match="fewer than half"):
        View(1, (Member("a"), Member("w", witness=True)))


@given(memberships)
def test_a_membership_survives_its_encoding(membership: Membership) -> None:
    assert Membership.decode(membership.encode()) == membership


@given(st.binary(max_size=60))
def test_garbage_is_no_membership(garbage: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Membership.decode(garbage)


@pytest.mark.parametrize("number", ["Infinity", "1e999", "NaN"])
@pytest.mark.parametrize("text", ["[{},[],[]]", '[1,[[{},[["n1","",0,false,""]]]],[]]'])
def test_what_is_no_number_is_no_membership(text: str, number: str) -> None:
    with pytest.raises(RemoteProtocolError):
        Membership.decode(text.format(number).encode())
