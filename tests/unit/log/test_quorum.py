"""Quorum arithmetic against a naive twin that tries every subset."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.log import Membership, View

NAMES = ["a", "b", "c", "d", "e", "f"]

views = st.builds(
    View, st.integers(1, 9), st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple)
)
memberships = st.builds(Membership, st.lists(views, min_size=1, max_size=2).map(tuple))
flushes = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 20))


def quorums(view: View) -> list[set[str]]:
    """Every set of voters with more than half of the votes."""
    return [
        set(some)
        for size in range(len(view.voters) + 1)
        for some in combinations(view.voters, size)
        if size > len(view.voters) / 2
    ]


def naive_flushed(membership: Membership, flushed: dict[str, int]) -> int:
    """The best that some quorum of each view has in common."""
    return min(
        max(min(flushed.get(voter, 0) for voter in quorum) for quorum in quorums(view))
        for view in membership.views
    )


@given(memberships, st.sets(st.sampled_from(NAMES)))
def test_has_quorum_says_what_counting_every_subset_says(
    membership: Membership, who: set[str]
) -> None:
    expected = all(any(q <= who for q in quorums(view)) for view in membership.views)
    assert membership.has_quorum(who) == expected


@given(memberships, flushes)
def test_flushed_by_quorum_says_what_counting_every_subset_says(
    membership: Membership, flushed: dict[str, int]
) -> None:
    assert membership.flushed_by_quorum(flushed) == naive_flushed(membership, flushed)


@given(memberships, flushes, st.sampled_from(NAMES))
def test_an_assumed_member_counts_as_far_as_it_will_ever_flush(
    membership: Membership, flushed: dict[str, int], peer: str
) -> None:
    """[C3] min(own flush, bound) is what the proposer would find with that flush counted."""
    bound = membership.flushed_by_quorum(flushed, assume=peer)
    for own in range(22):
        counted = naive_flushed(membership, flushed | {peer: own})
        if all(peer in view.voters for view in membership.views):
            assert min(own, bound) <= counted
        assert min(bound, 21) >= min(counted, 21)


@given(views)
def test_any_two_quorums_of_a_view_share_a_member(view: View) -> None:
    everybody = quorums(view)
    assert all(one & other for one in everybody for other in everybody)


def test_members_of_joint_views_are_those_of_either() -> None:
    joint = Membership((View(1, ("b", "a")), View(2, ("c", "b"))))
    assert joint.members == ("a", "b", "c")


@pytest.mark.parametrize("voters", [(), ("a", "a")])
def test_a_view_without_voters_or_with_one_twice_is_refused(voters: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="once"):
        View(1, voters)
