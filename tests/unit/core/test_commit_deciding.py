"""The decision on entries of any size: one way, whether the keys come in one entry or in pieces."""

from array import array
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgherd_sidecar.core.commit.answers import Failed
from pgherd_sidecar.core.commit.deciding import Decider, LargeDecision
from pgherd_sidecar.core.commit.outbox import Outbox
from pgherd_sidecar.core.commit.underway import TransactionLimits
from pgherd_sidecar.core.replication.entries import (
    FLAG_PIECES,
    PIECE_KEYS,
    STATE_PAUSE,
    Condition,
    DatabaseState,
    Incarnation,
    Noop,
    Piece,
    PiecesBody,
    Writeset,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState
from writeset_strategies import Group, groups, key, wire, writeset

WAIT_S = 10.0
LIMITS = TransactionLimits(64 << 20, 32 << 20, 1000, 10_000, 100, WAIT_S)
NOBODY: "array[int]" = array("q")


class Member:
    """A member that decides what the log brings; its large transactions are of serial 1."""

    def __init__(self) -> None:
        self.state = ReplicatedState((1, 2))
        self.outbox = Outbox(1, 1, LIMITS)
        self.decider = Decider(self.state, self.outbox)
        for member in (1, 2):
            self.deliver(Incarnation(member, 1))

    def deliver(self, entry: Incarnation | Noop | Piece | Writeset | DatabaseState) -> Decision:
        decision = self.decider.decide(self.state.position + 1, entry, None, 0.0)
        assert decision is not None
        return decision

    def takes(self, sequence: int, *pairs: Group) -> Decision:
        """Another member's small writeset."""
        return self.deliver(writeset(groups(*pairs), member=2, sequence=sequence))

    def pieces(self, *parts: "array[int]") -> list[Piece]:
        """Deliver the pieces of a transaction with keys in these parts, and one with rows."""
        sent = [Piece(1, 1, 1, number, PIECE_KEYS, wire(keys)) for number, keys in enumerate(parts)]
        sent.append(Piece(1, 1, 1, len(parts), 0, b"[]"))
        for piece in sent:
            assert self.deliver(piece).kind is DecisionKind.NOTHING
        return sent

    def begin(self, pieces: int, sequence: int = 1, now: float = 0.0) -> Decision | LargeDecision:
        """Deliver the writeset that ends the pieces."""
        body = msgspec.json.encode(PiecesBody(1, pieces, ("t",)))
        last = Writeset(1, 1, sequence, 1, 700, FLAG_PIECES, b"", body)
        decision = self.decider.decide(self.state.position + 1, last, NOBODY, now)
        if decision is not None:
            return decision
        assert self.decider.large is not None
        return self.decider.large

    def end(self, large: LargeDecision, sent: Sequence[Piece], now: float = 0.0) -> Decision:
        """Read pieces back, one at a time, until no more are wanted."""
        left = list(sent)
        while large.wants_pieces:
            for _ in large.take_pieces([left.pop(0)]):
                pass
        for _ in large.conclude():
            pass
        return self.decider.finish(large, now)

    def large(self, *parts: "array[int]") -> Decision:
        sent = self.pieces(*parts)
        large = self.begin(len(sent))
        assert isinstance(large, LargeDecision)
        return self.end(large, sent)


keys_of_a_group = st.lists(
    st.builds(key, st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=4
)
history = st.lists(keys_of_a_group, max_size=5)
parts_of_keys = st.lists(
    st.lists(st.tuples(st.integers(0, 5), keys_of_a_group), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


@settings(deadline=None)
@given(before=history, parts=parts_of_keys, after=keys_of_a_group)
def test_what_comes_in_pieces_is_decided_as_if_it_came_in_one(
    before: list[list[int]], parts: list[list[Group]], after: list[int]
) -> None:
    """And what is recorded of it is the same, so the next transaction fares alike."""
    small, large = Member(), Member()
    for member in (small, large):
        for sequence, keys in enumerate(before, 1):
            member.takes(sequence, (0, keys))
    sent = large.pieces(*[groups(*part) for part in parts])
    for _ in sent:
        small.deliver(Noop())  # both come to the same position
    whole = groups(*[group for part in parts for group in part])
    expected = small.deliver(writeset(whole))
    decision = large.begin(len(sent))
    assert isinstance(decision, LargeDecision)
    decided = large.end(decision, sent)
    assert decided.kind is expected.kind
    fares = [one.takes(len(before) + 1, (2, after)) for one in (small, large)]
    assert fares[0].kind is fares[1].kind


def test_nothing_more_is_read_once_it_has_lost() -> None:
    member = Member()
    member.takes(1, (2, [key(5, 3)]))
    sent = member.pieces(groups((2, [key(5, 3)])), groups((2, [key(6, 3)])))
    large = member.begin(len(sent))
    assert isinstance(large, LargeDecision)
    assert list(large.take_pieces(sent[:1])) == [None]
    for _ in large.conclude():
        pass
    # What it has lost to is found when all is collected, or at once where the base is too old.
    assert member.state.position == 6
    too_old = Member()
    sent = too_old.pieces(groups((10_000, [key(1, 3)])), groups((2, [key(2, 3)])))
    large = too_old.begin(len(sent))
    assert isinstance(large, LargeDecision)
    list(large.take_pieces(sent[:1]))
    assert not large.wants_pieces
    assert too_old.end(large, []).kind is DecisionKind.ABORT


def test_no_other_entry_is_decided_meanwhile() -> None:
    member = Member()
    sent = member.pieces(groups((2, [key(1, 3)])))
    large = member.begin(len(sent))
    assert isinstance(large, LargeDecision)
    with pytest.raises(AssertionError):
        member.deliver(Noop())
    member.end(large, sent)
    assert member.deliver(Noop()).kind is DecisionKind.NOTHING


def test_it_is_not_finished_without_its_keys() -> None:
    member = Member()
    sent = member.pieces(groups((2, [key(1, 3)])))
    large = member.begin(len(sent))
    assert isinstance(large, LargeDecision)
    with pytest.raises(AssertionError):
        member.decider.finish(large, 0.0)
    with pytest.raises(AssertionError, match="lacks pieces"):
        list(large.take_pieces([]))


def test_it_is_decided_at_once_where_its_keys_do_not_matter() -> None:
    member = Member()
    member.pieces(groups((2, [key(1, 3)])))
    incomplete = member.begin(7)
    assert isinstance(incomplete, Decision)
    assert incomplete.kind is DecisionKind.ABORT
    again = member.begin(7)
    assert isinstance(again, Decision)
    assert again.kind is DecisionKind.DUPLICATE

    held = Member()
    sent = held.pieces(groups((2, [key(1, 3)])))
    diverged = DatabaseState(2, Condition.DIVERGED, 0, 1, flags=STATE_PAUSE, cause="rows")
    held.deliver(diverged)
    assert held.state.databases.hold is not None
    refused = held.begin(len(sent))
    assert isinstance(refused, Decision)
    assert refused.kind is DecisionKind.REFUSED


def test_deadlines_stand_still_meanwhile() -> None:
    member = Member()
    member.outbox.request("a session", 70, 900, 0, groups((2, [key(9, 3)])), b"[]", 0.0)
    sent = member.pieces(groups((2, [key(1, 3)])))
    large = member.begin(len(sent), sequence=5, now=WAIT_S - 1)
    assert isinstance(large, LargeDecision)
    member.outbox.tick(WAIT_S + 100)
    assert member.outbox.out.take_answers() == []
    member.end(large, sent, now=WAIT_S + 100)
    member.outbox.tick(WAIT_S + 100)
    assert member.outbox.out.take_answers() == []
    member.outbox.tick(WAIT_S + 102)
    [failed] = member.outbox.out.take_answers()
    assert isinstance(failed, Failed) and failed.sqlstate == "08007"
