"""What those who are no members can do to the log: ask to join, and nothing else [V7] C18."""

import pytest
from log_herd import Herd, led_by
from pgherd_sidecar.core.consensus import Component, LogBase, Member, Message, Role
from pgherd_sidecar.core.consensus.model.messages import (
    Append,
    Change,
    Commit,
    Newer,
    Submit,
    Trimmed,
    VoteRequest,
)

GHOST = Member("ghost", "disk of ghost")
LATER = 1 << 40

FORMER = "disk of n3"


def herd_of_three(*, without: str = "") -> Herd:
    """A herd in which n1 proposes; one that has left is still there."""
    herd = led_by("n1", 3, disks=True)
    if without:
        herd["n1"].member.change_membership(leave=((without, f"disk of {without}"),))
    herd.pass_time(2)
    herd.carried.clear()
    return herd


def say(herd: Herd, name: str, sender: Member, message: Message) -> None:
    """Have a member hear something, whatever the sender's machine does."""
    herd[name].member.meet(sender.name, sender.disk)
    herd[name].member.receive(sender.name, message, herd.now)
    herd.pass_time(0.5)


@pytest.mark.parametrize("stranger", [GHOST, Member("n3", FORMER), Member("n2", "stolen")])
@pytest.mark.parametrize(
    "message",
    [
        Submit(1, b"evil"),
        Change(leave=(("n2", ""),)),
        Change(join=Member("n9", "disk of n9")),
        Append(LATER, 0, 0, 0, 0, ()),
        Commit(LATER, 0),
        Newer(LATER),
        VoteRequest(LATER, pre=False),
        Trimmed(LATER, LogBase(LATER)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_stranger_changes_nothing_in_the_primary_component(
    stranger: Member, message: Message
) -> None:
    herd = herd_of_three(without="n3")
    term, last = herd["n1"].member.term, herd["n1"].member.last_position
    for name in ("n1", "n2"):
        if name != stranger.name:
            say(herd, name, stranger, message)
    assert herd["n1"].member.role is Role.PROPOSER
    for name in ("n1", "n2"):
        member = herd[name].member
        assert (member.term, member.last_position, member.behind) == (term, last, 0)
        assert member.component(herd.now) is Component.PRIMARY


def test_a_stranger_can_ask_to_join_as_itself_only() -> None:
    herd = herd_of_three()
    say(herd, "n1", GHOST, Change(join=Member("ghost", "disk of another")))
    assert "ghost" not in herd["n1"].member.membership.names
    say(herd, "n1", GHOST, Change(join=GHOST, leave=(("n3", ""),)))
    assert "ghost" not in herd["n1"].member.membership.names
    say(herd, "n1", GHOST, Change(join=GHOST))
    assert "ghost" in herd["n1"].member.membership.names


def test_a_member_may_ask_for_others() -> None:
    herd = herd_of_three()
    herd.add("n4", LogBase())
    herd.change("n2", 2, join=herd["n4"].identity)
    assert "n4" in herd["n1"].member.membership.voters
    herd.change("n4", 1, leave=(("n3", FORMER),))
    assert "n3" not in herd["n1"].member.membership.names


def test_a_member_that_was_away_follows_a_proposer_that_it_does_not_know() -> None:
    """[V7] All that it knew are gone: its vote is needed to elect those who have joined since."""
    herd = herd_of_three()
    herd.down = {"n3"}
    for name in ("n4", "n5"):
        herd.add(name)
        herd.change("n1", 2, join=herd[name].identity)
    herd.order("n1", b"entry")
    herd.down = {"n1", "n2"}
    herd.elect("n4")
    herd.pass_time(1)
    assert herd["n3"].member.proposer == "n4"
    assert b"entry" in herd["n3"].data
    assert herd["n3"].member.component(herd.now) is Component.PRIMARY
    herd.order("n3", b"mine")
    assert all(b"mine" in herd[name].data for name in ("n4", "n5"))


def test_a_proposer_that_leaves_tells_the_others_of_the_commit() -> None:
    """[V7] By the others' logs it is no member any more, and still their proposer."""
    herd = herd_of_three()
    herd["n1"].member.change_membership(leave=(("n1", "disk of n1"),))
    position = 0
    while herd["n1"].member.role is Role.PROPOSER:
        herd.pass_time(0.1)
        position = herd["n1"].member.commit_position
    assert herd["n2"].member.membership.position <= position
    assert herd["n2"].member.commit_position == herd["n3"].member.commit_position == position
