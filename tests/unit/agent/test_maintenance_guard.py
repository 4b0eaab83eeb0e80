"""May a member be taken for maintenance? Never a second one when only a majority is left."""

import itertools

import pytest
from pgherd_sidecar.agent.maintenance.guard import SeenHerd, why_never, why_not
from pgherd_sidecar.core.consensus import Member, View


def view(names: str, witnesses: str = "") -> View:
    members = [Member(name, since=n) for n, name in enumerate(names, 1)]
    return View(1, (*members, *(Member(name, witness=True) for name in witnesses)))


def herd(
    names: str, *, down: str = "", taken: str = "", broken: str = "", wit: str = ""
) -> SeenHerd:
    everybody = set(names) | set(wit)
    return SeenHerd(view(names, wit), everybody - set(down), set(names) - set(broken), set(taken))


@pytest.mark.parametrize(
    ("known", "drained", "serving"),
    [
        (herd("abc"), True, True),
        (herd("abc", taken="b"), False, False),
        (herd("abc", down="b"), False, False),
        (herd("abc", broken="b"), False, False),
        (herd("abcde"), True, True),
        (herd("abcde", taken="b"), True, True),
        (herd("abcde", taken="b", down="c"), False, False),
        (herd("abcde", taken="bc"), False, False),
        (herd("abcd", taken="b"), True, True),  # half of them, with the tie-breaker
        (herd("abcd", taken="d"), False, False),  # half of them, without
        (herd("ab"), True, True),
        (herd("ba"), False, True),  # without the tie-breaker the other half can do nothing
        (herd("ba", taken="b"), False, False),
        (herd("ab", wit="w"), True, True),
        (herd("ab", wit="w", down="w"), False, False),
        (herd("ab", wit="w", broken="b"), False, False),
        (herd("abc", wit="vw", taken="b"), True, True),
        (herd("abc", wit="vw", taken="b", down="c"), False, False),
        (herd("a"), False, True),
    ],
)
def test_a_member_is_taken_if_the_others_are_enough(
    known: SeenHerd, drained: bool, serving: bool
) -> None:
    assert (why_not(known, "a", drain=True) is None) == drained
    assert (why_not(known, "a", drain=False) is None) == serving


@pytest.mark.parametrize("count", range(1, 8))
def test_those_who_are_left_are_always_a_quorum(count: int) -> None:
    names = "abcdefg"[:count]
    for order in itertools.islice(itertools.permutations(names), 200):
        taken = ""
        for name in order:
            if why_not(herd(names, taken=taken), name, drain=True) is None:
                taken += name
        assert view(names).has_quorum(set(names) - set(taken))
        assert len(taken) <= count // 2


def test_the_reason_names_who_is_missing() -> None:
    said = why_not(herd("abc", down="b"), "a", drain=True)
    assert said == (
        "without a there would be no majority: 1 of 3 votes, b is down or in maintenance"
    )
    said = why_not(herd("abcde", down="b", taken="cd"), "a", drain=False)
    assert said is not None
    assert "b, c, d are down or in maintenance" in said
    said = why_not(herd("abc", wit="vw", broken="bc"), "a", drain=True)
    assert said is not None
    assert "no majority" in said


def test_what_never_works_is_told_apart_from_what_does_not_work_now() -> None:
    assert why_never(herd("abc", down="bc"), "a", drain=True) is None
    assert why_never(herd("a"), "a", drain=True) is not None
    assert why_never(herd("a"), "a", drain=False) is None
    assert why_never(herd("ba"), "a", drain=True) is not None
