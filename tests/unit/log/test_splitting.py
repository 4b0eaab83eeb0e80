"""When a member splits off for good: what it decides of what it sees, without IO. [S1, S3, S7]"""

from dataclasses import replace
from uuid import uuid4

import pytest
from pgherd_sidecar.core.consensus import Member, Membership, SplitMessage
from pgherd_sidecar.core.consensus.model.split import Consent, SplitPlan
from pgherd_sidecar.core.consensus.split.laststep import remains
from pgherd_sidecar.core.consensus.split.splitting import (
    ORDER_S,
    Impossible,
    SplitSurroundings,
    Splitting,
)

CLUSTER = str(uuid4())
FIVE = Membership.founded(Member(f"n{n}", f"disk of n{n}") for n in range(1, 6))
ALONE = SplitSurroundings(FIVE, primary=False, linked=frozenset({"n2"}))
PLAN = SplitPlan(CLUSTER, (("n1", "disk of n1"), ("n2", "disk of n2")), ordered=True)


def one(delay_s: float | None = None) -> Splitting:
    return Splitting("n1", "disk of n1", CLUSTER, None, delay_s=delay_s)


def test_a_party_consents_when_all_are_willing() -> None:
    splitting = one()
    splitting.order_split(PLAN, ALONE, 0.0)
    assert splitting.take_messages() == [("n2", SplitMessage(PLAN))]
    splitting.receive("n2", SplitMessage(PLAN), ALONE, 0.1)
    assert (splitting.due, splitting.ending) == (PLAN, True)


@pytest.mark.parametrize(
    "seen",
    [
        replace(ALONE, primary=True),
        replace(ALONE, membership=Membership.founded(FIVE.view.members[:3] if FIVE.view else ())),
    ],
)
def test_s1_who_can_go_on_by_the_time_the_last_one_is_willing_does_not_consent(
    seen: SplitSurroundings,
) -> None:
    splitting = one()
    splitting.order_split(PLAN, ALONE, 0.0)
    splitting.receive("n2", SplitMessage(PLAN), seen, 0.1)
    assert (splitting.due, splitting.ending) == (None, False)


def test_a_wish_that_comes_to_nothing_is_forgotten() -> None:
    splitting = one()
    splitting.order_split(PLAN, ALONE, 0.0)
    splitting.tick(ALONE, ORDER_S - 1)
    assert splitting.intent == PLAN
    splitting.tick(ALONE, ORDER_S)
    assert splitting.intent is None


def test_a_member_in_the_primary_component_has_no_plan() -> None:
    with pytest.raises(Impossible, match="in the primary component"):
        one().make_plan(["n1", "n2"], replace(ALONE, primary=True))


def test_s4_the_last_step_is_done_once_and_by_those_only_who_are_still_of_one_of_the_two() -> None:
    consents = tuple(Consent(Member(name, disk), 1, 1, 1) for name, disk in PLAN.parties)
    known = SplitMessage(PLAN, consents)
    for cluster in (CLUSTER, PLAN.successor):
        assert remains("n1", cluster, known, done=False)
        assert not remains("n1", cluster, known, done=True)
    assert not remains("n1", str(uuid4()), known, done=False)  # split off by an administrator since
    assert not remains("n1", CLUSTER, SplitMessage(PLAN, consents[:1]), done=False)
    assert not remains("n1", CLUSTER, None, done=False)
