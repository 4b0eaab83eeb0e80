"""Stories of the protocol, one rule each; the numbers are those of docs/protocol.md."""

from collections import Counter

import pytest
from log_herd import Herd, led_by
from pgherd_sidecar.core.consensus import (
    Component,
    Fetch,
    LocalProtocolError,
    RemoteProtocolError,
    Role,
)
from pgherd_sidecar.core.consensus.model.messages import Ack, Append, Commit, VoteRequest


def test_a_herd_elects_a_proposer_whose_no_op_commits_at_once() -> None:
    herd = led_by("n1", 3)
    for machine in herd.machines.values():
        assert machine.member.proposer == "n1"
        assert machine.member.commit_position == 1
        assert machine.data == [b"noop"]


def test_a_herd_of_one_needs_nobody() -> None:
    herd = led_by("n1", 1)
    assert herd["n1"].member.submit(b"entry", 1, herd.now)
    herd.settle()
    assert herd["n1"].member.commit_position == 2


def test_a_block_costs_one_append_and_one_ack_per_peer_and_a_commit_if_nothing_follows() -> None:
    """[K4]"""
    herd = led_by("n1", 3)
    herd.kinds()
    herd.order("n1", b"one")
    kinds = Counter(herd.kinds())
    assert (kinds["Append"], kinds["Ack"]) == (2, 2)
    assert kinds["Commit"] <= 2
    assert all(m.member.commit_position == 2 for m in herd.machines.values())


def test_the_origin_learns_of_its_commit_without_waiting_for_acks_at_the_proposer() -> None:
    """[K3] Own flush plus the proposer's is a quorum of three: one round trip."""
    herd = led_by("n1", 3)
    herd["n2"].member.submit(b"mine", 1, herd.now)
    herd.cut = {("n2", "n1"), ("n3", "n1")}
    herd.cut.remove(("n2", "n1"))
    herd.take_effects()
    herd.deliver()  # the submission
    herd.cut.add(("n2", "n1"))  # no acknowledgement ever arrives
    herd.settle()
    assert herd["n2"].member.commit_position == 2
    assert herd["n1"].member.commit_position == 1


def test_submissions_that_arrive_during_a_flush_share_the_next_block_sorted_by_origin() -> None:
    """[A0]"""
    herd = led_by("n2", 3)
    proposer = herd["n2"]
    proposer.slow_disk = True
    proposer.member.submit(b"first", 1, herd.now)
    herd.settle()
    for name, data in (("n3", b"C1"), ("n1", b"A1"), ("n2", b"B1"), ("n3", b"C2"), ("n1", b"A2")):
        herd[name].member.submit(data, 1, herd.now)
        herd.settle()
    proposer.slow_disk = False
    herd.settle()
    assert proposer.data == [b"noop", b"first", b"A1A2B1C1C2"]
    assert proposer.blocks[-1].count == 5


def test_nothing_is_acknowledged_before_it_is_flushed() -> None:
    """[D1]"""
    herd = led_by("n1", 3)
    herd["n2"].slow_disk = herd["n3"].slow_disk = True
    herd["n1"].member.submit(b"entry", 1, herd.now)
    herd.kinds()
    herd.settle()
    assert "Ack" not in herd.kinds()
    assert herd["n1"].member.commit_position == 1
    herd["n3"].slow_disk = False
    herd.settle()
    assert herd["n1"].member.commit_position == 2


def test_a_vote_is_not_sent_before_it_is_flushed() -> None:
    """[E3]"""
    herd = Herd(3)
    herd["n2"].slow_disk = herd["n3"].slow_disk = True
    herd.now += 2
    herd["n1"].member.tick(herd.now)
    herd.settle()
    assert herd["n1"].member.proposer is None
    assert "Vote" not in [type(m).__name__ for s, _, m in herd.carried if not getattr(m, "pre", 0)]
    herd["n3"].slow_disk = False
    herd.settle()
    assert herd["n1"].member.proposer == "n1"


def test_a_member_that_forgot_nothing_votes_once_per_term() -> None:
    """[E3] I2"""
    herd = Herd(5)
    voter = herd["n3"]
    voter.member.receive("n1", VoteRequest(1, pre=False), herd.now)
    herd.settle()
    voter.start()
    voter.member.receive("n2", VoteRequest(1, pre=False), herd.now)
    herd.take_effects()
    assert not [message for sender, _, message in herd.waiting if sender == "n3"]


def test_a_new_proposer_takes_over_the_most_advanced_log_of_its_voters() -> None:
    """[R1, R2]"""
    herd = led_by("n1", 3)
    herd.down = {"n3"}
    for data in (b"a", b"b", b"c"):
        herd.order("n1", data)
    herd.down = {"n1"}
    herd.elect("n3")
    assert herd["n3"].data == [b"noop", b"a", b"b", b"c", b"noop"]
    assert herd["n3"].member.commit_position == 5


def test_a_diverged_tail_is_truncated_when_its_owner_returns() -> None:
    """[A2, A3]"""
    herd = led_by("n1", 3)
    herd.isolate("n1")
    herd.order("n1", b"lost")
    herd.elect("n2")
    herd.order("n2", b"kept")
    assert herd["n1"].data == [b"noop", b"lost"]
    herd.heal()
    herd.pass_time(0.5)
    assert herd["n1"].data == herd["n2"].data == [b"noop", b"noop", b"kept"]
    assert herd["n1"].member.commit_position == 3


def test_blocks_of_an_older_term_do_not_commit_by_counting_alone() -> None:
    """[K2] The case of Raft's figure 8: a quorum holds the old block, and it may yet be lost."""
    herd = led_by("n1", 3)
    herd.isolate("n1")
    herd.order("n1", b"old")
    herd["n1"].start()
    herd.heal()
    herd.cut = {("n1", "n3"), ("n3", "n1")}
    herd.now += 2
    herd["n1"].member.tick(herd.now)
    proposer, follower = herd["n1"], herd["n2"]
    for _ in range(100):  # until n2 holds the old block, but not yet the new no-op
        herd.take_effects()
        if not herd.deliver() and proposer.persist:
            proposer.flush()
        elif follower.persist and follower.member.last_position < 3:
            follower.flush()
        if follower.data == [b"noop", b"old"]:
            break
    proposer.member.receive("n2", Ack(proposer.member.term, 2), herd.now)
    assert proposer.member.commit_position <= 1
    herd.take_effects()
    while herd.deliver() or proposer.persist:  # n2 hears all, and flushes nothing more
        if proposer.persist:
            proposer.flush()
        herd.take_effects()
    assert proposer.member.flushed_position == 3
    assert follower.member.commit_position <= 1
    follower.flush()
    herd.settle()
    assert proposer.member.commit_position == follower.member.commit_position == 3


def test_a_member_cut_off_does_not_disturb_when_it_returns() -> None:
    """[E2]"""
    herd = led_by("n1", 3)
    herd.isolate("n3")
    herd.pass_time(10)
    assert herd["n3"].member.proposer is None
    herd.heal()
    herd.pass_time(1)
    assert herd["n1"].member.role is Role.PROPOSER
    assert {m.member.term for m in herd.machines.values()} == {1}
    assert herd["n3"].member.proposer == "n1"


def test_followers_that_learn_of_their_proposers_end_elect_another_at_once() -> None:
    """[E8]"""
    herd = led_by("n1", 3)
    herd.isolate("n1")
    for name in ("n2", "n3"):
        herd[name].member.ended("n1", herd.now)
        herd.pass_time(0.02)  # all of them draw the same patience
    herd.pass_time(0.9)  # less than the silence that they would have borne
    leaders = {herd[name].member.proposer for name in ("n2", "n3")}
    assert leaders <= {"n2", "n3"} and len(leaders) == 1


def test_one_follower_that_is_wrong_about_the_end_of_its_proposer_disturbs_nobody() -> None:
    """[E8]"""
    herd = led_by("n1", 3)
    for _ in range(20):
        herd["n2"].member.ended("n1", herd.now)
        herd.pass_time(0.3)
    assert herd["n1"].member.role is Role.PROPOSER
    assert {m.member.term for m in herd.machines.values()} == {1}
    assert herd["n2"].member.proposer == "n1"


def test_a_proposer_that_hears_nobody_steps_down_and_says_so_to_its_callers() -> None:
    """[E5]"""
    herd = led_by("n1", 3)
    herd.isolate("n1")
    herd.pass_time(3)
    assert herd["n1"].member.role is not Role.PROPOSER
    assert not herd["n1"].member.submit(b"entry", 1, herd.now)


def test_a_lagging_member_is_fed_from_disk_and_bounded_in_flight() -> None:
    """[A5]"""
    herd = led_by("n1", 3)
    herd.down = {"n3"}
    for i in range(20):
        herd.order("n1", b"%3d" % i * 20)
    herd.down = set()
    herd.pass_time(0.5)
    assert herd["n3"].data == herd["n1"].data
    assert herd["n3"].member.commit_position == 21


def test_what_was_read_before_a_truncation_reached_the_disk_is_not_sent() -> None:
    """[A5] A new proposer has just taken over the log of another, and its disk is slow."""
    herd = led_by("n1", 3)
    herd.isolate("n1")
    proposer = herd["n1"].member
    proposer.submit(b"former", 1, herd.now)
    herd.settle()
    former = herd["n1"].blocks[-1]
    herd.elect("n2")
    herd.heal()
    herd.pass_time(0.5)
    herd.elect("n1")
    assert former.term != proposer.term and former not in herd["n1"].blocks
    leading = proposer._elections.leading
    assert leading is not None
    leading.peers["n2"].fetching = former.first
    herd.waiting.clear()
    proposer.fetched(Fetch("n2", proposer.term, former.first, 100), (former,), herd.now)
    herd.take_effects()
    assert not [m for _, to, m in herd.waiting if to == "n2" and former in getattr(m, "blocks", ())]
    assert "n2" not in leading.stranded
    herd.settle()
    assert herd["n2"].data == herd["n1"].data


def test_a_member_behind_the_trimmed_log_is_reported_as_stranded() -> None:
    """[A5]"""
    herd = Herd(3)
    herd.down = {"n3"}
    herd.elect("n1")
    herd.order("n1", b"entry")
    herd["n1"].member.trim(2)
    herd.down = set()
    herd.pass_time(0.5)
    assert herd["n1"].member.stranded == {"n3"}
    assert herd["n3"].member.behind == 2


@pytest.mark.parametrize("first", ["n2", "n4"])
def test_who_can_not_feed_the_majority_lets_another_propose_who_can(first: str) -> None:
    """[E6] The log of n4 begins where n3, which was down, has not been yet; n1 is lost."""
    herd = led_by("n1", 4, disks=True)
    herd.down = {"n3"}
    for data in (b"a", b"b", b"c"):
        herd.order("n1", data)
    late = herd["n4"]
    late.base = herd["n1"].member.base_at(3)
    late.blocks = [block for block in late.blocks if block.first > 3]
    late.start()
    herd.down = {"n1"}
    herd.elect(first)
    assert (herd[first].member.commit_position >= 5) == (first == "n2")
    herd.pass_time(20)
    for name in ("n2", "n3", "n4"):
        assert herd[name].member.proposer == "n2"
        assert herd[name].member.commit_position >= 5


def test_a_proposer_whose_disk_hangs_steps_down() -> None:
    """[E7] It answers, but can order nothing more. H27"""
    herd = led_by("n1", 3)
    herd.pass_time(20)
    hanging = herd["n1"]
    hanging.slow_disk = True
    herd["n2"].member.submit(b"first", 1, herd.now)
    herd.pass_time(4)
    assert hanging.member.role is Role.PROPOSER  # slow disks are no reason
    hanging.flush()
    herd["n2"].member.submit(b"second", 1, herd.now)
    herd.pass_time(4)
    assert hanging.member.role is Role.PROPOSER
    herd.pass_time(1.5)
    assert hanging.member.proposer is None
    assert hanging.member.component(herd.now) is Component.SECONDARY
    herd.elect("n2")
    herd["n3"].member.submit(b"third", 1, herd.now)
    herd.pass_time(20)
    assert herd["n2"].member.role is Role.PROPOSER
    assert herd["n3"].data[-1] == b"third"
    assert herd["n3"].member.commit_position == herd["n2"].member.last_position
    hanging.slow_disk = False
    herd.pass_time(1)
    assert hanging.data == herd["n2"].data


def test_a_candidate_whose_disk_hangs_does_not_raise_the_term_again_and_again() -> None:
    """[E7]"""
    herd = Herd(3)
    herd["n1"].slow_disk = True
    herd.down = {"n2"}
    herd.now += 2
    for _ in range(20):
        herd.now += 2
        herd["n1"].member.tick(herd.now)
        herd.settle()
    assert herd["n1"].member.term == 1
    herd["n1"].slow_disk = False
    herd.settle()
    assert herd["n1"].member.role is Role.PROPOSER


def test_who_abstained_votes_when_it_was_fed_up_to_the_present_term() -> None:
    """[G7] It has never met n2, and n1 is lost."""
    herd = Herd(3, disks=True)
    herd.isolate("n3")
    herd.elect("n1")
    for entry in (bytes(60), bytes(60), b"last"):
        herd.order("n1", entry)
    herd["n3"].member.abstains = True
    herd.cut = {("n2", "n3"), ("n3", "n2")}
    herd["n3"].slow_disk = True
    herd.pass_time(1)
    assert herd["n3"].member.abstains
    herd["n3"].slow_disk = False
    herd.pass_time(1)
    assert herd["n3"].data == herd["n1"].data
    assert not herd["n3"].member.abstains
    herd.heal()
    herd.down = {"n1"}
    herd.elect("n3")


def test_who_abstains_goes_on_while_it_has_entries_of_former_terms_only() -> None:
    """[G7]"""
    herd = Herd(3)
    herd.down = {"n3"}
    herd.elect("n1")
    herd.order("n1", bytes(150))
    herd["n1"].start()
    herd.elect("n2")
    herd["n3"].member.abstains = True
    herd.down = set()
    herd.now += 0.1
    herd["n2"].member.tick(herd.now)
    herd.take_effects()
    while herd["n3"].member.flushed_position < 1:
        herd.deliver()
        for name in herd.names:
            if herd[name].persist:
                herd[name].flush()
        herd.take_effects()
    assert herd["n3"].member.abstains
    herd.settle()
    assert not herd["n3"].member.abstains


def test_the_queue_of_the_proposer_is_bounded() -> None:
    herd = led_by("n1", 3)
    proposer = herd["n1"]
    proposer.slow_disk = True
    assert proposer.member.submit(b"x", 1, herd.now)
    herd.settle()
    accepted = [proposer.member.submit(bytes(300), 1, herd.now) for _ in range(5)]
    assert accepted == [True, True, True, False, False]


def test_impossible_messages_are_the_peers_fault() -> None:
    herd = led_by("n1", 3)
    proposer, follower = herd["n1"].member, herd["n2"].member
    with pytest.raises(RemoteProtocolError, match="does not exist"):
        proposer.receive("n2", Ack(1, 99), herd.now)
    with pytest.raises(RemoteProtocolError, match="taken"):
        follower.receive("n3", Commit(1, 0), herd.now)
    gap = (herd["n1"].blocks[0],)
    with pytest.raises(RemoteProtocolError, match="out of place"):
        follower.receive("n1", Append(1, 5, 1, 0, 0, gap), herd.now)


def test_misuse_is_the_callers_fault() -> None:
    herd = Herd(3)
    member = herd["n1"].member
    with pytest.raises(LocalProtocolError, match="not under way"):
        member.persisted(1, herd.now)
    with pytest.raises(LocalProtocolError, match="0 entries"):
        member.submit(b"", 0, herd.now)
    with pytest.raises(LocalProtocolError, match="beyond"):
        member.trim(1)


def test_a_block_that_was_trimmed_is_not_waited_for_until_an_absent_member_returns() -> None:
    """[D5] Who can be asked and has not trimmed it is asked twice, and may give it all the time."""
    herd = led_by("n1", 4)
    herd.order("n1", b"entry")
    herd["n1"].member.trim(2)
    herd["n2"].member.trim(2)
    herd.isolate("n4")
    damaged = herd["n3"].member
    damaged.damaged(2, herd.now)
    herd.pass_time(2.5)  # all were asked once
    assert damaged.damaged_at == 2
    assert not damaged.damaged_for_good
    herd.pass_time(5)
    assert damaged.damaged_for_good
    damaged.mended()
    assert not damaged.damaged_for_good


def test_a_block_that_nobody_answers_for_is_waited_for() -> None:
    """[D5]"""
    herd = led_by("n1", 3)
    herd.isolate("n3")
    herd["n3"].member.damaged(1, herd.now)
    herd.pass_time(20)
    assert not herd["n3"].member.damaged_for_good
