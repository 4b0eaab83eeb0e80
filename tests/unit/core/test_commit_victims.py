"""What becomes of a session in the way: every cell of the table, and what surrounds it."""

import pytest
from pgherd_sidecar.core.commit.chain import Chain, LocalLink
from pgherd_sidecar.core.commit.victims import (
    RULES,
    Act,
    Blocker,
    Order,
    Situation,
    Victims,
    rule,
)
from pgherd_sidecar.core.replication.entries import Writeset

WRITER, WRITES = 50, 30
AT_WORK = {WRITER: WRITES}
PID, XID = 77, 900


class Sessions:
    """What the outbox knows."""

    def __init__(self) -> None:
        self.awaiting: set[int] = set()
        self.sending: set[int] = set()

    def awaits_verdict(self, pid: int) -> bool:
        return pid in self.awaiting

    def sends_pieces(self, pid: int) -> bool:
        return pid in self.sending


class Node:
    """The rules, and a server on which one session is in the way of the writer."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.chain = Chain(20)
        self.victims = Victims(self.chain, self.sessions)

    def certified(self, gid: int, since_s: float = 0.0) -> LocalLink:
        """The session's transaction is the next link of the chain."""
        writeset = Writeset(1, 1, 1, 1, XID, 0, b"", b"[]")
        link = LocalLink(gid, self.chain.tail_gid, XID, PID, writeset, since_s)
        self.chain.append(link)
        return link

    def look(self, now: float, *blockers: Blocker) -> list[Order]:
        waiting = self.victims.waiting(AT_WORK, now)
        return self.victims.judge(blockers, waiting, AT_WORK, now)

    def acts(self, now: float, *blockers: Blocker) -> list[Act]:
        kept = (Act.REMEMBER_COMMAND, Act.REFUSE_PIECES)
        return [order.act for order in self.look(now, *blockers) if order.act not in kept]


def blocker(waits_s: float = 0.0, idle_s: float = 0.0, prepared: str | None = None) -> Blocker:
    pid = 0 if prepared else PID
    return Blocker(WRITER, pid, XID, waits_s, idle_s, prepared)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (Situation.PREPARED, [None, None, None, None, None, Act.ROLL_BACK]),
        (Situation.ORDERED_BEFORE, [None] * 6),
        (Situation.CERTIFIED_LATER, [Act.CANCEL] * 6),
        (Situation.YIELDING, [None, Act.TERMINATE, *[Act.TERMINATE] * 4]),
        (Situation.AWAITS_VERDICT, [None] * 6),
        (Situation.BEGAN_TO_WAIT, [None] * 6),
        (Situation.WAITS_FOR_LOCK, [Act.GIVE_WAY] * 5 + [Act.TERMINATE]),
        (Situation.WORKS, [None, None, None, None, Act.GIVE_WAY, Act.TERMINATE]),
        (Situation.PAUSES, [None] * 5 + [Act.TERMINATE]),
        (Situation.SENDS_PIECES, [None] * 5 + [Act.TERMINATE]),
        (Situation.IDLE, [None, None, *[Act.TERMINATE] * 4]),
        (Situation.FIRST_OF_CHAIN, [None] * 6),
    ],
)
def test_every_cell_of_the_table(situation: Situation, expected: list[Act | None]) -> None:
    ages_s = (0.0, 0.06, 0.11, 0.49, 0.6, 1.1)
    assert [rule(situation, age_s) for age_s in ages_s] == expected


def test_a_commit_that_waits_for_nobody_has_ten_seconds() -> None:
    assert rule(Situation.FIRST_OF_CHAIN, 10.1) is Act.TERMINATE


def test_every_situation_has_its_rules_and_longer_times_come_first() -> None:
    assert set(RULES) == set(Situation)
    for row in RULES.values():
        assert [bound for bound, _ in row] == sorted((bound for bound, _ in row), reverse=True)


def test_a_session_at_work_gets_its_grace_from_when_it_was_first_seen() -> None:
    node = Node()
    assert node.acts(5.0, blocker()) == []
    assert node.acts(5.4, blocker()) == []
    assert node.acts(5.6, blocker()) == [Act.GIVE_WAY]
    assert node.acts(5.7, blocker()) == []  # it was just ended: it begins anew if it is still there


def test_a_session_that_does_not_give_way_is_asked_once_and_then_ended() -> None:
    node = Node()
    acts = [node.acts(5.0 + step / 10, blocker()) for step in range(12)]
    assert acts[6:11] == [[Act.GIVE_WAY], [], [], [], []]
    assert acts[11] == [Act.TERMINATE]


def test_a_session_that_was_out_of_the_way_in_between_begins_anew() -> None:
    node = Node()
    node.acts(5.0, blocker())
    assert node.acts(5.4) == []
    assert node.acts(5.6, blocker()) == []


def test_another_transaction_of_the_same_session_begins_anew() -> None:
    node = Node()
    node.acts(5.0, blocker())
    assert node.acts(6.5, Blocker(WRITER, PID, XID + 1)) == []


def test_an_idle_session_is_ended_once_it_has_been_idle_and_in_the_way() -> None:
    node = Node()
    assert node.acts(5.0, blocker(idle_s=60.0)) == []
    assert node.acts(5.2, blocker(idle_s=60.2)) == [Act.TERMINATE]


def test_a_program_that_thinks_for_a_moment_is_not_ended_for_that() -> None:
    node = Node()
    node.acts(5.0, blocker(idle_s=0.02))
    assert node.acts(5.7, blocker(idle_s=0.02)) == []
    assert node.acts(6.1, blocker(idle_s=0.02)) == [Act.TERMINATE]


def test_the_deadlock_detector_looks_first() -> None:
    node = Node()
    assert node.acts(5.0, blocker(waits_s=0.1)) == []
    assert node.acts(5.1, blocker(waits_s=0.21)) == [Act.GIVE_WAY]


def test_a_session_that_awaits_its_verdict_is_left_alone() -> None:
    node = Node()
    node.sessions.awaiting = {PID}
    assert node.look(5.0, blocker()) == []
    assert node.look(50.0, blocker()) == []


def test_a_session_that_sends_pieces_is_told_each_time_and_ended_late() -> None:
    node = Node()
    node.sessions.sending = {PID}
    orders = node.look(5.0, blocker())
    assert [order.act for order in orders] == [Act.REFUSE_PIECES, Act.REMEMBER_COMMAND]
    assert [order.act for order in node.look(5.9, blocker())] == [Act.REFUSE_PIECES]
    assert node.acts(6.1, blocker()) == [Act.TERMINATE]


def test_what_a_command_locks_is_asked_once() -> None:
    node = Node()
    assert [order.act for order in node.look(5.0, blocker())] == [Act.REMEMBER_COMMAND]
    assert node.look(5.1, blocker()) == []


def test_a_certified_transaction_is_cancelled_once_then_ended_if_it_does_not_yield() -> None:
    node = Node()
    link = node.certified(gid=40, since_s=5.0)
    [order] = node.look(5.0, blocker())
    assert (order.act, order.pid, order.xid, order.gid) == (Act.CANCEL, PID, XID, WRITES)
    assert link.yielding
    assert node.look(5.04, blocker()) == []
    assert [order.act for order in node.look(5.06, blocker())] == [Act.TERMINATE]


@pytest.mark.parametrize("gid", [25, WRITES])
def test_a_transaction_ordered_before_the_writer_is_left_alone(gid: int) -> None:
    """So is one with the GID that the writer gives: a marker writes nothing, and has none."""
    node = Node()
    link = node.certified(gid, since_s=5.0)
    assert node.look(5.9, blocker()) == []
    assert not link.yielding


def test_a_link_of_a_former_transaction_of_the_session_says_nothing() -> None:
    node = Node()
    node.certified(gid=40, since_s=5.0)
    later = Blocker(WRITER, PID, XID + 1)
    assert [order.act for order in node.look(5.0, later)] == [Act.REMEMBER_COMMAND]


def test_a_prepared_transaction_is_rolled_back_by_its_name() -> None:
    node = Node()
    assert node.look(5.0, blocker(prepared="p")) == []
    [order] = node.look(6.1, blocker(prepared="p"))
    assert (order.act, order.prepared) == (Act.ROLL_BACK, "p")


def test_a_writer_is_never_ended() -> None:
    node = Node()
    writer = Blocker(WRITER, WRITER, XID)
    node.look(5.0, writer)
    assert node.look(9.0, writer) == []


def test_what_a_writer_waited_for_is_of_no_use_once_it_writes_another_gid() -> None:
    node = Node()
    node.look(5.0, blocker())
    waiting = node.victims.waiting(AT_WORK, 6.5)
    assert node.victims.judge([blocker()], waiting, {WRITER: WRITES + 1}, 6.5) == []


def test_a_session_in_the_way_of_two_is_ended_once() -> None:
    node = Node()
    at_work = {WRITER: WRITES, WRITER + 1: WRITES + 1}
    both = [Blocker(WRITER, PID, XID), Blocker(WRITER + 1, PID, XID)]
    node.victims.judge(both, node.victims.waiting(at_work, 5.0), at_work, 5.0)
    orders = node.victims.judge(both, node.victims.waiting(at_work, 5.6), at_work, 5.6)
    assert [order.act for order in orders] == [Act.GIVE_WAY]


def test_a_commit_is_looked_after_in_its_own_transaction_only() -> None:
    node = Node()
    node.certified(gid=40, since_s=5.0)
    waiting = node.victims.waiting(AT_WORK, 6.1)
    asked = dict(zip(waiting, node.victims.transactions(waiting), strict=True))
    assert asked == {WRITER: 0, PID: XID}


def test_a_commit_that_takes_long_is_looked_after_like_a_writer() -> None:
    node = Node()
    node.certified(gid=40, since_s=5.0)
    assert node.victims.waiting({}, 5.9) == {}
    assert node.victims.waiting({}, 6.1) == {PID: 40}


def test_the_first_of_the_chain_is_ended_if_it_does_not_commit() -> None:
    node = Node()
    node.certified(gid=40, since_s=5.0)
    assert node.look(6.1) == []
    assert node.look(16.0) == []
    [order] = node.look(16.2)
    assert (order.act, order.situation, order.pid) == (
        Act.TERMINATE,
        Situation.FIRST_OF_CHAIN,
        PID,
    )


def test_a_command_is_not_ended_while_its_session_waits_for_the_other_members() -> None:
    node = Node()
    node.certified(gid=40, since_s=5.0)
    node.chain.note_wait(40, 60.0)
    assert node.look(6.1) + node.look(30.0) + node.look(59.9) == []
    assert node.look(60.1) + node.look(70.0) == []
    assert [order.act for order in node.look(70.2)] == [Act.TERMINATE]


def test_a_commit_that_waits_for_its_predecessor_is_not_hurried() -> None:
    node = Node()
    node.certified(gid=40, since_s=5.0)
    node.chain.append(
        LocalLink(41, 40, XID + 1, PID + 1, Writeset(1, 1, 2, 1, XID + 1, 0, b"", b"[]"), 5.0)
    )
    orders = node.look(6.1) + node.look(17.0)
    assert {order.pid for order in orders} == {PID}
