"""What becomes of a delivered writeset on a node, and who is told what: without IO."""

from array import array

import pytest
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.commit.answers import Aborted, Committed, Failed, SessionAnswer
from pgherd_sidecar.core.commit.batches import (
    TOKEN_WINDOW,
    Adopt,
    ApplyPieces,
    PassBy,
    RunDdl,
    Work,
)
from pgherd_sidecar.core.commit.chain import BatchLink, LocalLink
from pgherd_sidecar.core.commit.keys import wire_keys
from pgherd_sidecar.core.commit.path import CommitPath, Fate, fate_of
from pgherd_sidecar.core.commit.underway import TransactionLimits
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    Entry,
    Incarnation,
    Noop,
    Writeset,
    iter_entries,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState

LIMITS = TransactionLimits(64 << 20, 32 << 20, 1000, 10_000, 100, wait_s=10.0)
LOST = Conflict(AbortReason.CONFLICT, 4, 9)
COMMIT = Decision(DecisionKind.COMMIT)
ABORT = Decision(DecisionKind.ABORT, LOST)
BODY = b'[["t",[4],["D(1)"]]]'
CHAIN_END = 10
A, B = "session a", "session b"


def keys_of(row: int) -> "array[int]":
    return array("q", [0, 1, row << 2 | 2])


class Node:
    """A commit path of member 1, and what came out of it."""

    def __init__(self, *, skips: tuple[int, ...] = (), tokens: bool = True) -> None:
        self.state = ReplicatedState((1, 2))
        self.path = CommitPath(1, 3, self.state, CHAIN_END, LIMITS, skips=skips)
        if tokens:
            self.path.batches.first_tokens()
            self.path.batches.hold_first()

    def request(self, session: str, xid: int, flags: int = 0) -> Writeset:
        """A session of this node requests its commit; return what was submitted."""
        self.path.outbox.request(session, 70, xid, flags, keys_of(xid), BODY, 0.0)
        [submission] = self.path.take_effects(0.0).submissions
        [writeset] = iter_entries(submission.data)
        assert isinstance(writeset, Writeset)
        return writeset

    def remote(self, gid: int, flags: int = 0, pieces_from: int = 0) -> Fate:
        keys = keys_of(gid)
        writeset = Writeset(2, 1, gid, 1, 500 + gid, flags, wire_keys(keys).tobytes(), BODY)
        return self.path.deliver_writeset(gid, writeset, keys, COMMIT, 0.0, pieces_from=pieces_from)

    def deliver(self, gid: int, writeset: Writeset, decision: Decision = COMMIT) -> Fate:
        return self.path.deliver_writeset(gid, writeset, keys_of(writeset.xid), decision, 0.0)

    def told(self) -> list[SessionAnswer]:
        return self.path.take_effects(0.0).answers

    def apply_next(self) -> Work:
        """The applier does the next item."""
        work = self.path.batches.pop_ready(100.0)
        assert work is not None
        if self.path.batches.finish_item(work):
            self.path.batches.pass_token(work)
            self.path.batches.hold_next()
        return work


@pytest.mark.parametrize(
    ("decision", "flags", "fate"),
    [
        (COMMIT, {}, Fate.REMOTE),
        (COMMIT, {"visible"}, Fate.VISIBLE),
        (COMMIT, {"skipped"}, Fate.SKIPPED),
        (COMMIT, {"skipped", "leak"}, Fate.SKIPPED),
        (COMMIT, {"leak"}, Fate.ADOPTED),
        (COMMIT, {"leak", "visible"}, Fate.VISIBLE),
        (ABORT, {"leak"}, Fate.LEAK_LOST),
        (ABORT, {"leak", "visible"}, Fate.NOTHING),
        (Decision(DecisionKind.REFUSED, LOST), {"leak"}, Fate.LEAK_LOST),
        (Decision(DecisionKind.DUPLICATE, LOST), {"leak"}, Fate.NOTHING),
        (ABORT, {"skipped"}, Fate.NOTHING),
        (Decision(DecisionKind.STALE), {}, Fate.NOTHING),
    ],
)
def test_the_fate_of_what_nobody_waits_for(decision: Decision, flags: set[str], fate: Fate) -> None:
    named = {name: name in flags for name in ("skipped", "visible", "leak")}
    assert fate_of(decision, None, **named) is fate


@pytest.mark.parametrize(
    ("decision", "fate"),
    [
        (COMMIT, Fate.LOCAL),
        (ABORT, Fate.LOST),
        (Decision(DecisionKind.REFUSED, LOST), Fate.REFUSED),
        (Decision(DecisionKind.DUPLICATE, LOST), Fate.LOST),
        (Decision(DecisionKind.DUPLICATE, first_gid=8), Fate.NOTHING),
        (Decision(DecisionKind.STALE), Fate.STALE),
    ],
)
def test_the_fate_of_a_transaction_of_this_node(decision: Decision, fate: Fate) -> None:
    node = Node()
    node.request(A, 1)
    transaction = node.path.outbox.pop_delivered(1)
    assert fate_of(decision, transaction, skipped=False, visible=False, leak=False) is fate


def test_a_transaction_whose_session_has_ended_is_applied_like_a_remote_one() -> None:
    node = Node()
    writeset = node.request(A, 1)
    node.path.outbox.end_session(A)
    assert node.deliver(11, writeset) is Fate.REMOTE
    assert node.told() == []
    assert node.apply_next().gids == [11]
    assert node.path.chain.settled_gid == 11


def test_each_local_transaction_waits_for_the_one_before_it() -> None:
    node = Node()
    first, second = node.request(A, 1), node.request(B, 2)
    node.deliver(11, first)
    node.deliver(13, second)
    one, two = node.told()
    assert isinstance(one, Committed) and isinstance(two, Committed)
    assert (one.session, one.gid, one.prev, one.predecessor) == (A, 11, CHAIN_END, None)
    assert (two.session, two.gid, two.prev) == (B, 13, 11)
    assert isinstance(two.predecessor, LocalLink) and two.predecessor.xid == 1


def test_a_local_transaction_waits_for_the_batch_before_it_which_is_closed() -> None:
    node = Node()
    local = node.request(A, 1)
    node.remote(11)
    assert node.path.batches.pop_ready(0.0) is None  # it collects
    node.deliver(12, local)
    work = node.path.batches.pop_ready(0.0)
    assert work is not None and work.link.named
    [answer] = node.told()
    assert isinstance(answer, Committed)
    assert answer.predecessor is work.link


def test_an_answer_that_names_a_batch_comes_once_its_token_is_held() -> None:
    node = Node(tokens=False)
    local = node.request(A, 1)
    node.remote(11)
    node.deliver(12, local)
    assert node.told() == []
    node.path.batches.first_tokens()
    node.path.batches.hold_first()
    [answer] = node.told()
    assert isinstance(answer, Committed)


def test_nobody_is_told_of_a_token_whose_session_has_ended() -> None:
    node = Node(tokens=False)
    local = node.request(A, 1)
    node.remote(11)
    node.deliver(12, local)
    node.path.outbox.end_session(A)
    node.path.batches.first_tokens()
    node.path.batches.hold_first()
    assert node.told() == []


def test_the_token_of_a_batch_that_was_named_is_no_other_batch_s() -> None:
    node = Node()
    local = node.request(A, 1)
    node.remote(11)
    node.deliver(12, local)
    named = node.apply_next().link.number
    node.path.chain.settle_to(12)
    node.remote(13)
    node.path.batches.close_batch()
    unnamed = node.apply_next().link.number
    node.remote(14)
    tail = node.path.chain.tail
    assert isinstance(tail, BatchLink)
    assert tail.number == unnamed != named


def test_tokens_that_are_held_never_fall_behind_those_that_are_named() -> None:
    node = Node()
    for gid in range(11, 11 + 3 * TOKEN_WINDOW):
        local = node.request(A, gid)
        if gid % 2:
            node.remote(gid)
        else:
            node.deliver(gid, local)
            assert len(node.told()) == 1
            node.apply_next()
            node.path.chain.settle_to(gid)


def test_other_tasks_stand_alone_in_the_chain() -> None:
    node = Node(skips=(14,))
    node.path.leaks.add(9)
    assert node.remote(11, FLAG_DDL) is Fate.REMOTE
    assert node.remote(12, FLAG_PIECES, pieces_from=5) is Fate.REMOTE
    assert node.deliver(13, Writeset(1, 2, 1, 1, 9, 0, b"", BODY)) is Fate.ADOPTED
    assert node.remote(14) is Fate.SKIPPED
    tasks = [node.apply_next().task for _ in range(4)]
    assert [type(task) for task in tasks] == [RunDdl, ApplyPieces, Adopt, PassBy]
    assert node.path.chain.settled_gid == 14
    assert node.path.passed == {14}


def test_what_was_skipped_is_no_commit_to_those_who_ask() -> None:
    node = Node(skips=(11,))
    node.remote(11)
    assert node.path.outcomes.of("2.1.511") == "aborted"


def test_a_loser_is_told_at_the_end_of_the_block_that_has_its_winner() -> None:
    node = Node()
    entries: list[Entry] = [Incarnation(2, 1), *[Noop()] * 9]
    for position, entry in enumerate(entries, 1):
        node.state.deliver(position, entry)
    node.request(A, 11)
    node.request(B, 12)
    keys = keys_of(11)
    writeset = Writeset(2, 1, 1, 1, 500, 0, wire_keys(keys).tobytes(), BODY)
    decision = node.state.deliver(11, writeset)
    assert node.path.deliver_writeset(11, writeset, keys, decision, 0.0) is Fate.REMOTE
    assert node.told() == []
    node.path.end_block()
    [answer] = node.told()
    assert isinstance(answer, Aborted) and answer.session == A


def test_a_transaction_that_the_herd_refuses_hears_why() -> None:
    node = Node()
    writeset = node.request(A, 1)
    held = Decision(DecisionKind.REFUSED, LOST)
    node.path.deliver_writeset(11, writeset, keys_of(1), held, 0.0, refusal="two differ")
    [answer] = node.told()
    assert isinstance(answer, Failed)
    assert (answer.sqlstate, answer.message) == (
        "25006",
        "this node takes no writes: two differ",
    )


def test_what_comes_after_a_local_command_sees_another_schema() -> None:
    node = Node()
    command = node.request(A, 1, FLAG_DDL)
    node.deliver(11, command)
    node.remote(12)
    node.remote(13)
    node.path.batches.close_batch()
    assert node.apply_next().fresh_catalog


def test_a_batch_follows_the_local_transaction_before_it() -> None:
    node = Node()
    writeset = node.request(A, 1)
    node.deliver(11, writeset)
    node.remote(12)
    node.path.batches.close_batch()
    work = node.path.batches.pop_ready(0.0)
    assert work is not None and work.predecessor is not None
    assert work.predecessor.gid == 11


def test_only_what_ended_without_committing_is_repaired_and_in_order() -> None:
    node = Node()
    writesets = [node.request(f"session {xid}", xid) for xid in (1, 2, 3)]
    for gid, writeset in enumerate(writesets, 11):
        node.deliver(gid, writeset)
    chain = node.path.chain
    assert chain.next_to_repair({1: "in progress", 2: "aborted", 3: "aborted"}) is None
    chain.settle_to(11)
    link = chain.next_to_repair({2: "aborted", 3: "aborted"})
    assert link is not None and link.gid == 12
    chain.settle_to(12)
    link = chain.next_to_repair({2: "aborted", 3: "committed"})
    assert link is None


def test_a_certified_transaction_is_asked_to_yield_by_its_xid() -> None:
    node = Node()
    node.deliver(11, node.request(A, 1))
    [link] = node.path.chain.locals()
    assert not node.path.must_yield(1)
    link.yielding = True
    assert node.path.must_yield(1)
    assert not node.path.must_yield(2)
