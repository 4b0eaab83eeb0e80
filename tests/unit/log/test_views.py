"""Stories of changing memberships, one rule each; the numbers are those of docs/protocol.md."""

from dataclasses import replace

from log_herd import Herd, led_by
from pgherd_sidecar.core.consensus import Component, LogBase, Member, Role


def voters(herd: Herd, name: str) -> tuple[str, ...]:
    membership = herd[name].member.membership
    assert len(membership.views) == 1
    return membership.views[0].voters


def test_a_member_joins_as_a_learner_and_votes_when_it_has_caught_up() -> None:
    """[V2, V3]"""
    herd = led_by("n1", 2)
    herd.order("n1", b"before")
    herd.add("n3")
    assert herd["n2"].member.change_membership(join=herd["n3"].identity)
    herd.pass_time(0.2)
    assert [m.name for m in herd["n1"].member.membership.learners] == ["n3"]
    herd.pass_time(0.5)
    assert voters(herd, "n1") == voters(herd, "n2") == voters(herd, "n3") == ("n1", "n2", "n3")
    assert herd["n3"].data[:3] == herd["n1"].data[:3]
    herd.down = {"n2"}
    herd.order("n1", b"after")
    assert herd["n1"].data[-1] == b"after"
    assert herd["n1"].member.commit_position == herd["n3"].member.commit_position


def test_a_learner_that_never_answers_holds_up_nobody() -> None:
    """[V3]"""
    herd = led_by("n1", 1)
    herd.change("n1", 3, join=Member("n9", "disk of n9"))
    assert voters(herd, "n1") == ("n1",)
    herd.order("n1", b"entry")
    assert herd["n1"].member.commit_position == herd["n1"].member.last_position


def test_a_proposer_that_leaves_orders_its_own_leave_and_steps_down() -> None:
    herd = led_by("n1", 3)
    herd.change("n1", 1, leave=(("n1", ""),))
    assert herd["n1"].member.role is Role.FOLLOWER
    assert voters(herd, "n2") == ("n2", "n3")
    herd.pass_time(10)
    assert herd["n1"].member.proposer is None
    assert herd["n1"].member.component(herd.now) is Component.SECONDARY
    assert {herd[name].member.role for name in ("n2", "n3")} == {Role.FOLLOWER, Role.PROPOSER}


def test_both_views_must_agree_until_the_new_one_stands_alone() -> None:
    """[V2] The entry that installs both needs a majority of each."""
    herd = led_by("n1", 3)
    herd["n1"].member.change_membership(leave=(("n3", ""),))
    herd.down = {"n2"}
    herd.pass_time(0.5)
    assert herd["n1"].member.membership.joint
    commit = herd["n1"].member.commit_position
    herd["n1"].member.submit(b"entry", 1, herd.now)
    herd.pass_time(0.5)
    assert herd["n1"].member.commit_position == commit
    herd.down = {"n3"}
    herd.pass_time(0.5)
    assert voters(herd, "n1") == ("n1", "n2")
    assert herd["n1"].member.commit_position == herd["n1"].member.last_position


def test_a_new_proposer_finishes_what_its_predecessor_began() -> None:
    """[V2]"""
    herd = led_by("n1", 3)
    herd["n1"].member.change_membership(leave=(("n3", ""),))
    herd.now += 0.1
    herd["n1"].member.tick(herd.now)
    while not herd["n2"].member.membership.joint:
        herd.take_effects()
        if not herd.deliver():
            for machine in herd.machines.values():
                if machine.persist:
                    machine.flush()
    for machine in herd.machines.values():
        if machine.persist:
            machine.flush()
    herd.down = {"n1"}
    herd.waiting.clear()
    herd.elect("n2")
    herd.pass_time(0.5)
    assert herd["n2"].member.membership.joint  # n1 must agree: it is half of the new view
    herd.down = set()
    herd.pass_time(0.5)
    assert voters(herd, "n2") == voters(herd, "n1") == ("n1", "n2")


def test_a_herd_shrinks_member_by_member_to_one_and_grows_back() -> None:
    herd = led_by("n5", 5, evict_s=2.0)
    for gone, left in ((("n1",), 4), (("n1", "n2"), 3), (("n1", "n2", "n3"), 2)):
        herd.down = set(gone)
        herd.pass_time(4)
        assert len(voters(herd, "n5")) == left
    herd.down = {"n1", "n2", "n3", "n4"}
    herd.pass_time(4)
    assert voters(herd, "n5") == ("n5",)
    herd.order("n5", b"alone")
    assert herd["n5"].member.commit_position == herd["n5"].member.last_position
    herd.down = set()
    for name in ("n1", "n2", "n3", "n4"):
        herd.change("n5", 1, join=herd[name].identity)
    assert voters(herd, "n1") == ("n1", "n2", "n3", "n4", "n5")
    assert herd["n3"].data == herd["n5"].data


def test_who_answers_but_flushes_nothing_lags_and_is_evicted() -> None:
    """[V5] Its disk hangs, say. While there is nothing to flush nobody minds."""
    herd = led_by("n1", 3, evict_s=2.0)
    herd.pass_time(1)
    herd["n3"].slow_disk = True
    herd.pass_time(4)
    assert herd["n1"].member.stuck_s("n3", herd.now) == 0
    herd["n1"].member.submit(b"entry", 1, herd.now)
    herd.pass_time(1.5)
    assert herd["n1"].member.commit_position == herd["n1"].member.last_position
    assert herd["n1"].member.stuck_s("n2", herd.now) == 0
    assert (herd["n1"].member.stuck_s("n3", herd.now) or 0) > 1
    assert herd["n2"].member.stuck_s("n3", herd.now) is None  # only a proposer can tell
    assert voters(herd, "n1") == ("n1", "n2", "n3")
    herd.pass_time(2)
    assert voters(herd, "n1") == ("n1", "n2")


def test_a_tie_breaker_that_was_paused_evicts_nobody_before_it_has_listened() -> None:
    """[V5] Its heartbeat is due before it reads what has arrived."""
    herd = led_by("n2", 2, evict_s=3.0)
    herd.pass_time(1)
    herd.now += 10
    herd["n2"].member.tick(herd.now)
    herd["n2"].member.take_effects()
    assert voters(herd, "n2") == ("n1", "n2")
    herd.pass_time(4)
    assert voters(herd, "n2") == ("n1", "n2")
    herd.down = {"n1"}
    herd.pass_time(4)
    assert voters(herd, "n2") == ("n2",)


def test_the_half_with_the_tie_breaker_commits_nothing_before_the_view_has_shrunk_to_it() -> None:
    """[Q2] C19"""
    herd = led_by("n2", 2, evict_s=3.0)
    herd.down = {"n1"}
    herd["n2"].member.submit(b"entry", 1, herd.now)
    herd.pass_time(2)
    assert herd["n2"].member.role is Role.PROPOSER
    assert herd["n2"].member.commit_position == 1
    assert herd["n2"].member.component(herd.now) is Component.SECONDARY
    herd.pass_time(2)
    assert voters(herd, "n2") == ("n2",)
    assert herd["n2"].member.commit_position == herd["n2"].member.last_position
    assert herd["n2"].member.component(herd.now) is Component.PRIMARY


def test_who_follows_a_proposer_without_a_majority_is_secondary_too() -> None:
    """[P1] Half of the voters keep their proposer, and it can commit nothing."""
    herd = led_by("n3", 4)
    herd.down = {"n1", "n2"}
    herd.pass_time(4)
    assert herd["n4"].member.proposer == "n3"
    for name in ("n3", "n4"):
        assert herd[name].member.component(herd.now) is Component.SECONDARY
    herd.down = {"n1"}
    herd.pass_time(1)
    for name in ("n2", "n3", "n4"):
        assert herd[name].member.component(herd.now) is Component.PRIMARY


def test_the_half_without_the_tie_breaker_elects_nobody() -> None:
    """[Q2] C19"""
    herd = led_by("n1", 4, evict_s=2.0)
    herd.isolate("n1", "n2")
    herd.elect("n4")
    herd.pass_time(10)
    assert voters(herd, "n4") == ("n3", "n4")
    for name in ("n1", "n2"):
        assert herd[name].member.proposer is None
        assert herd[name].member.component(herd.now) is Component.SECONDARY
        assert voters(herd, name) == ("n1", "n2", "n3", "n4")


def test_the_tie_breaker_is_the_voter_that_joined_last() -> None:
    """[Q2]"""
    herd = led_by("n1", 2)
    herd.add("n0")
    herd.change("n1", 1, join=herd["n0"].identity)
    herd.change("n1", 1, leave=(("n2", ""),))
    view = herd["n1"].member.membership.views[0]
    assert (view.voters, view.tie_breaker) == (("n0", "n1"), "n0")


def test_a_name_with_another_disk_neither_votes_nor_counts() -> None:
    """[V6] C18"""
    herd = led_by("n1", 3, disks=True)
    herd.order("n1", b"entry")
    herd["n2"].blocks.clear()
    herd["n2"].lose_disk()
    herd.down = {"n1"}
    herd.pass_time(5)
    assert herd["n3"].member.role is not Role.PROPOSER  # n2's vote is another member's
    herd.down = {"n3"}
    herd.pass_time(3)
    commit = herd["n1"].member.commit_position
    herd["n1"].member.submit(b"more", 1, herd.now)
    herd.pass_time(1)
    assert herd["n1"].member.commit_position == commit


def test_a_lost_disk_returns_as_a_new_member_after_the_old_one_has_left() -> None:
    """[V6]"""
    herd = led_by("n1", 3, disks=True)
    herd["n2"].lose_disk()
    herd.change("n1", 0.5, join=herd["n2"].identity)
    assert not herd["n1"].member.membership.learners
    herd.change("n1", 0.5, leave=(("n2", ""),))
    herd.change("n1", 1, join=herd["n2"].identity)
    assert voters(herd, "n2") == ("n1", "n2", "n3")


def test_a_request_that_comes_late_does_not_throw_out_the_successor() -> None:
    """[V6]"""
    herd = led_by("n1", 3, disks=True)
    former = herd["n2"].identity.disk
    herd["n2"].lose_disk()
    herd.change("n1", 0.5, leave=(("n2", former),))
    herd.change("n1", 1, join=herd["n2"].identity)
    herd.change("n1", 1, leave=(("n2", former),))
    assert voters(herd, "n1") == ("n1", "n2", "n3")
    herd.change("n1", 1, leave=(("n2", herd["n2"].identity.disk),))
    assert voters(herd, "n1") == ("n1", "n3")


def test_requests_are_judged_by_the_membership_that_they_change() -> None:
    """[V3] One that comes while an entry is about to be made was judged by the one before it."""
    herd = led_by("n1", 1)
    herd.add("n2")
    herd.add("n3")
    herd["n1"].member.change_membership(join=herd["n2"].identity)
    herd.now += 0.1
    herd["n1"].member.tick(herd.now)
    herd.change("n1", 1, join=herd["n3"].identity)
    assert herd["n1"].member.membership.names == ("n1", "n2")
    herd.change("n1", 1, join=herd["n3"].identity)
    assert voters(herd, "n3") == ("n1", "n2", "n3")


def test_a_founders_successor_inherits_nothing_from_it_within_a_term() -> None:
    """[V6] The founders' disks are told to the log only when the proposer knows them already."""
    herd = Herd(3)
    for name, machine in herd.machines.items():
        machine.identity = Member(name, f"disk of {name}")
        machine.start()
    herd.elect("n1")
    for name in herd.names:
        herd.change("n1", 0.5, join=herd[name].identity)
    former, term = herd["n2"].identity.disk, herd["n1"].member.term
    assert herd["n1"].member.membership.knows("n2", former)
    herd["n2"].lose_disk()
    herd.pass_time(0.3)
    assert herd["n1"].member.heard_of("n2", herd.now)[0]  # what it says is another member's
    herd.change("n1", 0.2, leave=(("n2", former),))
    herd.change("n1", 1, join=herd["n2"].identity)
    assert voters(herd, "n2") == ("n1", "n2", "n3")
    assert herd["n1"].member.term == term


def test_a_learner_may_begin_after_a_position_that_is_known_to_be_committed() -> None:
    """[T4]"""
    herd = led_by("n1", 1)
    for data in (b"a", b"b", b"c"):
        herd.order("n1", data)
    herd["n1"].member.trim(3)
    base = herd["n1"].member.base_at(3)
    herd.add("n2", base)
    herd.change("n1", 1, join=herd["n2"].identity)
    assert voters(herd, "n2") == ("n1", "n2")
    assert herd["n2"].data[0] == b"c"
    assert herd["n2"].member.commit_position == herd["n1"].member.commit_position


def test_a_learner_behind_the_trimmed_log_is_told_where_the_log_begins() -> None:
    """[T3]"""
    herd = led_by("n1", 1)
    herd.order("n1", b"a")
    herd["n1"].member.trim(2)
    herd.add("n2", LogBase())
    herd.change("n1", 1, join=herd["n2"].identity)
    assert herd["n2"].member.behind == 2
    assert herd["n1"].member.stranded == {"n2"}
    assert voters(herd, "n1") == ("n1",)


def test_only_what_every_member_has_may_be_trimmed() -> None:
    """[T1]"""
    herd = led_by("n1", 3)
    herd["n1"].member.submit(b"a", 1, herd.now)
    herd.pass_time(0.3)
    assert herd["n2"].member.restart_position == 2
    herd.down = {"n3"}
    herd["n1"].member.submit(b"b", 1, herd.now)
    herd.pass_time(0.3)
    assert herd["n1"].member.commit_position == 3
    assert {herd[name].member.restart_position for name in ("n1", "n2")} == {2}


def test_witnesses_vote_and_never_break_ties() -> None:
    """[Q3]"""
    herd = led_by("n1", 2)
    herd.add("w", witness=True)
    herd.change("n1", 1, join=herd["w"].identity)
    view = herd["n1"].member.membership.views[0]
    assert (view.voters, view.tie_breaker) == (("n1", "n2", "w"), "n2")
    herd.down = {"n2"}
    herd.order("n1", b"entry")
    assert herd["n1"].member.commit_position == herd["n1"].member.last_position
    herd.change("n1", 1, leave=(("n2", ""),))
    assert voters(herd, "n1") == ("n1",)
    assert [m.name for m in herd["n1"].member.membership.learners] == ["w"]


def test_a_reader_is_fed_and_votes_only_when_it_is_promoted() -> None:
    """[V8]"""
    herd = led_by("n1", 2)
    herd.add("r", reader=True)
    herd.change("n1", 1, join=herd["r"].identity)
    herd["n1"].member.submit(b"entry", 1, herd.now)
    herd.pass_time(1)
    assert herd["r"].member.commit_position == herd["n1"].member.last_position
    assert voters(herd, "n1") == ("n1", "n2")
    herd.down = {"n2"}  # then the reader makes no majority
    herd["n1"].member.submit(b"in vain", 1, herd.now)
    herd.pass_time(0.2)
    assert herd["n1"].member.commit_position < herd["n1"].member.last_position
    herd.down = set()
    herd.pass_time(1)
    herd.change("n1", 1, join=replace(herd["r"].identity, reader=False))
    assert voters(herd, "n1") == ("n1", "n2", "r")


def test_a_member_that_was_evicted_does_not_disturb_and_may_join_again() -> None:
    """[V4]"""
    herd = led_by("n1", 3, evict_s=2.0)
    herd.isolate("n3")
    herd.pass_time(10)
    assert voters(herd, "n1") == ("n1", "n2")
    term = herd["n1"].member.term
    herd.heal()
    herd.pass_time(3)
    herd.change("n1", 1, join=herd["n3"].identity)
    assert voters(herd, "n3") == ("n1", "n2", "n3")
    assert {machine.member.term for machine in herd.machines.values()} == {term}
