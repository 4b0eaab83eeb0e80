"""Members that split off: all of the parties end in one cluster, wherever they die. [S1-S5]"""

from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.consensus import (
    Identity,
    Member,
    Membership,
    RemoteProtocolError,
    SplitMessage,
    View,
)
from pgherd_sidecar.core.consensus import objection as stranger
from pgherd_sidecar.core.consensus.model.blocks import LogIndex
from pgherd_sidecar.core.consensus.model.effects import Control
from pgherd_sidecar.core.consensus.model.split import (
    Consent,
    Founding,
    SplitPlan,
    SplitShare,
    consented,
    founding,
    objection,
)
from pgherd_sidecar.core.consensus.split.laststep import consent

NAMES = ("n1", "n2", "n3")
CLUSTER = str(uuid4())
PLAN = SplitPlan(CLUSTER, tuple((name, f"disk of {name}") for name in NAMES), ordered=True)
ENDS = {"n1": (5, 4, 70), "n2": (9, 5, 60), "n3": (6, 5, 60)}
"""Term, last term and last position of each."""


class Party:
    """A member, and the disk that survives its deaths."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk: SplitMessage | None = None
        self.founded: Founding | None = None
        self.start()

    def start(self) -> None:
        self.share = SplitShare(self.name, self.disk)

    def consent(self) -> None:
        """What the sidecar does with the log closed."""
        plan = self.share.due
        assert plan is not None
        mine = Consent(Member(self.name, f"disk of {self.name}"), *ENDS[self.name])
        self.disk = consented(self.disk, plan, mine)
        self.start()

    def hear(self, sender: str, said: SplitMessage) -> None:
        """As ``Splitter`` does, where every plan is welcome."""
        if self.share.hear(sender, said):
            self.disk = self.share.known
        if said.plan != self.share.plan:
            self.share.want_plan(said.plan)
            self.share.hear(sender, said)

    def found(self) -> None:
        if self.share.complete and self.disk is not None:
            found = founding(self.disk.consents)
            assert self.founded in (None, found)
            self.founded = found


def step(parties: dict[str, Party], one: Party, what: int) -> None:
    """Something happens to one party: it dies, does what is due, or is heard by another one."""
    if what == 0:
        one.start()
    elif what == 1 and one.share.due is not None:
        one.consent()
    elif what == 2:
        one.found()
    elif what >= 3 and (said := one.share.next_message()) is not None:
        other = parties[NAMES[what - 3]]
        if other is not one:
            other.hear(one.name, SplitMessage.decode(said.encode()))


events = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), max_size=60)


@given(events)
def test_c21_all_parties_end_in_one_cluster_wherever_they_die(
    happenings: list[tuple[str, int]],
) -> None:
    parties = {name: Party(name) for name in NAMES}
    parties["n1"].share.want_plan(PLAN)
    for name, what in happenings:
        consents = {one.name: one.disk for one in parties.values()}
        step(parties, parties[name], what)
        for one in parties.values():  # who has consented has for ever, and to no fewer
            before = consents[one.name]
            assert before is None or (one.disk and {*before.consents} <= {*one.disk.consents})
            if one.founded is not None:
                assert all(other.disk is not None for other in parties.values())
    if all(one.disk is None for one in parties.values()):
        parties["n1"].share.want_plan(PLAN)  # all have died before they promised anything
    for _ in range(8):
        for name in NAMES:
            for what in (3, 4, 5, 1, 2):
                step(parties, parties[name], what)
    assert {one.founded for one in parties.values()} == {parties["n1"].founded}
    assert parties["n1"].founded is not None


def test_c21_they_go_on_with_the_most_advanced_log_in_a_term_that_nobody_has_seen() -> None:
    consents = [Consent(Member(name, f"disk of {name}"), *ENDS[name]) for name in NAMES]
    found = founding(consents)
    assert (found.seed, found.term) == ("n2", 10)
    assert founding(reversed(consents)) == found


@pytest.mark.parametrize("number", ["Infinity", "1e999", "NaN"])
def test_what_is_no_number_is_of_no_split(number: str) -> None:
    member = '["n1","disk",0,false,""]'
    parties = f'["{uuid4()}",[["n1","disk"]],false,[[{member},'
    assert SplitMessage.decode(f"{parties}1,1,1]]]".encode()).consents
    with pytest.raises(RemoteProtocolError):
        SplitMessage.decode(f"{parties}{number},1,1]]]".encode())


def test_nobody_consents_before_all_are_willing() -> None:
    share = SplitShare("n1")
    share.want_plan(PLAN)
    share.hear("n2", SplitMessage(PLAN))
    assert share.due is None
    share.hear("n3", SplitMessage(PLAN))
    assert share.due == PLAN


def test_who_has_consented_may_turn_to_fewer_and_tells_nobody_of_the_first_plan() -> None:
    first = consented(None, PLAN, Consent(Member("n1", "disk of n1"), *ENDS["n1"]))
    fewer = replace(PLAN, parties=PLAN.parties[:2])
    share = SplitShare("n1", first)
    share.want_plan(fewer)
    share.hear("n2", SplitMessage(fewer))
    assert share.due == fewer and fewer.successor != PLAN.successor
    known = consented(share.known, fewer, first.consents[0])
    assert (known.plan, len(known.consents)) == (fewer, 1)


def member(name: str, *, witness: bool = False, since: int = 0) -> Member:
    return Member(name, f"disk of {name}", since, witness=witness)


def of(*names: str, witnesses: tuple[str, ...] = ()) -> Membership:
    return Membership.founded(member(name, witness=name in witnesses) for name in names)


FIVE = of("n1", "n2", "n3", "n4", "n5", witnesses=("n5",))
GROWS = Membership((*of("n1", "n2", "n3").views, *of("n1", "n2", "n3", "n4", "n5").views))
SHRINKS = Membership((FIVE.views[0], View(2, (member("n1"),))))


@pytest.mark.parametrize(
    ("membership", "names", "because"),
    [
        (FIVE, "n1 n2", ""),
        (FIVE, "n1 n2 n3", "enough to go on"),
        (FIVE, "n5", "witnesses"),
        (FIVE, "n4 n5", "witnesses"),
        (FIVE, "n1 n6", "not all of n1, n6 are voters"),
        (of("n1", "n2", "n3", "n4"), "n1 n2", ""),
        (of("n1", "n2", "n3", "n4"), "n3 n4", "enough to go on"),  # n4 breaks the tie
        (GROWS, "n1 n2", ""),  # a majority of the former view, no quorum of the next one
        (GROWS, "n3 n4 n5", ""),  # the other way round: neither can elect anybody
        (GROWS, "n1 n2 n3", "enough to go on"),
        (SHRINKS, "n1", ""),
        (SHRINKS, "n1 n2 n3", "enough to go on"),
        (Membership(), "n1", "not all"),
    ],
)
def test_c21_who_could_go_on_in_the_cluster_as_it_is_does_not_part(
    membership: Membership, names: str, because: str
) -> None:
    plan = SplitPlan(CLUSTER, tuple((name, f"disk of {name}") for name in names.split()))
    found = objection(plan, membership)
    assert because in found and bool(found) == bool(because)


@pytest.mark.parametrize("names", ["n1 n2", "n1 n2 n3", "n3 n4 n5", "n1 n3 n4"])
def test_s1_the_closed_log_is_judged_as_the_running_one(names: str) -> None:
    plan = SplitPlan(CLUSTER, tuple((name, f"disk of {name}") for name in names.split()))
    index = LogIndex([(1, 1)], last=9, memberships=[GROWS])
    known = consent(None, plan, member(plan.names[0]), Control(), index)
    assert (known is None) == bool(objection(plan, GROWS))


def test_a_voter_on_another_disk_is_no_party() -> None:
    assert "not all" in objection(SplitPlan(CLUSTER, (("n1", "another"),)), FIVE)


def test_c21_who_has_split_off_is_linked_with_who_is_about_to_and_with_nobody_else_of_old() -> None:
    def identity(name: str, cluster: str, successor: str = "") -> Identity:
        return Identity(cluster, name, f"disk of {name}", 1, successor=successor)

    old = identity("n4", CLUSTER)
    sealed = identity("n1", CLUSTER, PLAN.successor)
    split_off = identity("n2", PLAN.successor)
    membership = of("n1", "n2", "n3", "n4", "n5")
    assert stranger(sealed, split_off, membership) == stranger(split_off, sealed, membership) == ""
    for mine, other in ((old, split_off), (split_off, old)):
        refusal = stranger(mine, other, membership)
        assert CLUSTER in refusal and PLAN.successor in refusal


def test_the_identity_of_a_new_cluster_follows_from_the_old_one_and_from_the_parties() -> None:
    assert PLAN.successor == replace(PLAN, ordered=False).successor
    other_disk = (("n1", "another"), *PLAN.parties[1:])
    others = [replace(PLAN, parties=other_disk), replace(PLAN, cluster=str(uuid4()))]
    assert len({PLAN.successor, *(other.successor for other in others)}) == 3
