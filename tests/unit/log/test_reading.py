"""A barrier covers what was acknowledged before it, and a minority has none [F1-F5]."""

from log_herd import Herd, led_by
from pgherd_sidecar.core.consensus import Barrier, LogBase
from pgherd_sidecar.core.consensus.model.messages import BarrierReply


def barrier(herd: Herd, name: str) -> int | None:
    """Ask a member for a barrier; return its position, None if it has none yet."""
    member = herd[name].member
    number = member.ask_barrier(herd.now)
    herd.settle()
    return member.barrier.position if member.barrier.number >= number else None


def test_what_only_its_origin_knows_to_be_committed_is_covered() -> None:
    """[F3] The proposer does not know it yet, so its commit position would be too low."""
    herd = led_by("n1", 3)
    herd["n2"].member.submit(b"mine", 1, herd.now)
    herd.take_effects()
    herd.deliver()  # the submission
    herd.cut = {("n2", "n1"), ("n3", "n1"), ("n1", "n3")}
    herd.settle()
    assert herd["n2"].member.commit_position == 2
    assert herd["n1"].member.commit_position == herd["n3"].member.commit_position == 1
    herd.isolate("n2")
    assert barrier(herd, "n1") == barrier(herd, "n3") == 2


def test_no_proposer_is_needed() -> None:
    """[F1]"""
    herd = led_by("n1", 3)
    herd.down = {"n1"}
    assert barrier(herd, "n2") == barrier(herd, "n3") == 1


def test_a_minority_gets_no_barrier_until_it_is_none_any_more() -> None:
    """[F3]"""
    herd = led_by("n1", 3)
    herd.isolate("n1")
    member = herd["n1"].member
    number = member.ask_barrier(herd.now)
    herd.pass_time(3)
    assert member.barrier.number < number
    herd.elect("n2")
    herd.order("n2", b"elsewhere")
    assert herd["n2"].member.commit_position > 1
    herd.heal()
    herd.pass_time(0.3)
    assert member.barrier.number == number
    assert member.barrier.position >= herd["n2"].member.commit_position


def test_all_who_wait_at_a_moment_share_a_round_and_who_comes_later_has_another() -> None:
    """[F2]"""
    herd = led_by("n1", 3)
    herd.kinds()
    member = herd["n2"].member
    shared = {member.ask_barrier(herd.now) for _ in range(10)}
    herd.take_effects()
    late = member.ask_barrier(herd.now)
    assert shared == {late - 1}
    herd.settle()
    assert member.barrier.number == late
    assert herd.kinds().count("BarrierRequest") == 4


def test_an_answer_to_another_round_is_none() -> None:
    """[F2] It may have been sent before what is to be covered."""
    herd = led_by("n1", 3)
    member = herd["n2"].member
    number = member.ask_barrier(herd.now)
    herd.take_effects()
    for other in (number - 1, number + 1, 0):
        member.receive("n3", BarrierReply(other, 1, 1, member.membership), herd.now)
        assert member.barrier.number < number
    member.receive("n3", BarrierReply(number, 1, 1, member.membership), herd.now)
    assert member.barrier == Barrier(number, 1)


def test_who_is_about_to_be_a_voter_can_ask_and_is_not_counted() -> None:
    """[F4]"""
    herd = led_by("n1", 3)
    herd.add("n4", LogBase())
    herd["n4"].member.meet("n1", "")
    herd["n1"].member.meet("n4", "disk of n4")
    herd.change("n1", 2, join=herd["n4"].identity)
    assert "n4" in herd["n1"].member.membership.voters
    end = herd["n1"].member.commit_position
    assert barrier(herd, "n4") == end
    herd.isolate("n4", "n3")
    assert barrier(herd, "n4") is None


def test_a_herd_of_one_asks_nobody() -> None:
    herd = led_by("n1", 1)
    herd.kinds()
    assert barrier(herd, "n1") == 1
    assert herd.kinds() == []


def test_nobody_is_asked_any_more_when_nobody_waits() -> None:
    herd = led_by("n1", 3)
    herd.isolate("n1")
    member = herd["n1"].member
    member.ask_barrier(herd.now)
    herd.settle()
    member.drop_barriers()
    herd.heal()
    herd.kinds()
    herd.pass_time(1)
    assert "BarrierRequest" not in herd.kinds()
