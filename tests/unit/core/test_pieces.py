"""Transactions in pieces are decided as if they had come whole, on every member."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.agent.apply.piecereader import PieceReader
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.consensus import Block
from pgherd_sidecar.core.replication.entries import (
    FLAG_PIECES,
    PIECE_KEYS,
    PIECE_LAST,
    PIECE_MORE,
    Entry,
    EntryFormatError,
    Incarnation,
    Members,
    Noop,
    Piece,
    PiecesBody,
    Publish,
    Writeset,
    encode_entry,
    iter_entries,
    key_array,
    pieces_body,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState
from writeset_strategies import MEMBERS, groups, key, key_groups, logs, wire, writeset

FEW = 1_000_000
"""Index limit with which the keys of a test are few."""
MANY = 64
"""And one with which they are many, so that they are recorded as a bulk."""
FORGETFUL = 8
"""And one with which the horizon rises every few writesets."""


def piece(
    serial: int, number: int, data: bytes = b"[]", *, flags: int = 0, member: int = 1
) -> Piece:
    return Piece(member, 1, serial, number, flags, data)


def keys_piece(serial: int, number: int, keys: array[int], *, member: int = 1) -> Piece:
    return piece(serial, number, wire(keys), flags=PIECE_KEYS, member=member)


def end(serial: int, pieces: int, *, member: int = 1, sequence: int = 1) -> Writeset:
    body = msgspec.json.encode(PiecesBody(serial, pieces, ("public.t",)))
    return Writeset(member, 1, sequence, 1, 700, FLAG_PIECES, b"", body)


class Member:
    """A member that delivers a log, and reads pieces back from it."""

    def __init__(self, limit: int, state: ReplicatedState | None = None) -> None:
        self.state = state or ReplicatedState(MEMBERS, limit)
        self.log: list[Entry] = []

    def read_back(self, position: int, max_bytes: int) -> Sequence[Block]:
        """Blocks of two entries."""
        first = position - (position - 1) % 2
        return [
            Block.make(1, at, len(part), b"".join(encode_entry(entry) for entry in part))
            for at in range(first, min(first + 4, len(self.log) + 1), 2)
            if (part := self.log[at - 1 : at + 1])
        ]

    def damaged(self, position: int) -> bool:
        """It never is."""
        raise AssertionError

    def deliver(self, entry: Entry) -> Decision:
        """Deliver the next entry of the log."""
        gid = self.state.position + 1
        if len(self.log) < gid:
            self.log.append(entry)
        if not isinstance(entry, Writeset) or not entry.flags & FLAG_PIECES:
            return self.state.deliver(gid, entry)
        examined = self.state.examine(entry)
        if examined is None:
            return self.state.deliver(gid, entry)
        opened, examination = examined
        identity = entry.member, entry.incarnation, pieces_body(entry.body).serial
        reader = PieceReader(self, identity, opened.first)
        while reader.count < opened.key_pieces:
            for _, found in reader.next(gid):
                if found.flags & PIECE_KEYS:
                    list(examination.take_groups(key_array(found.data)))
        list(examination.find_verdict())
        return self.state.deliver(gid, entry, examination=examination)

    def deliver_all(self, entries: Sequence[Entry]) -> list[DecisionKind]:
        return [self.deliver(entry).kind for entry in entries]


def started(limit: int = FEW) -> Member:
    """Position 3: each member has announced its first incarnation."""
    member = Member(limit)
    member.deliver_all([Incarnation(number, 1) for number in MEMBERS])
    return member


# ---- the format ------------------------------------------------------------------------------


@given(
    st.integers(0, 65535),
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 7),
    st.binary(max_size=40),
)
def test_a_piece_is_read_as_it_was_written(
    member: int, serial: int, number: int, flags: int, data: bytes
) -> None:
    entry = Piece(member, 7, serial, number, flags, data)
    assert list(iter_entries(encode_entry(Noop()) + encode_entry(entry))) == [Noop(), entry]


@pytest.mark.parametrize("flags", [8, 0x100])
def test_c26_a_piece_with_unknown_flags_is_refused(flags: int) -> None:
    data = bytearray(encode_entry(piece(1, 0)))
    data[6:8] = flags.to_bytes(2, "big")
    with pytest.raises(EntryFormatError):
        list(iter_entries(bytes(data)))


def test_a_body_that_is_none_of_pieces_is_refused() -> None:
    with pytest.raises(EntryFormatError):
        pieces_body(b'[["public.t",[4],["I(1)"]]]')


# ---- certification ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [FEW, MANY])
def test_a_transaction_in_pieces_loses_against_what_was_ordered_before_its_end(limit: int) -> None:
    member = started(limit)
    mine = groups((3, [key(1, 3), key(2, 3)]), (3, [key(3, 3)]))
    member.deliver(keys_piece(1, 0, mine))
    member.deliver(piece(1, 1))
    assert member.deliver(writeset(groups((3, [key(3, 2)])), member=2)).kind is DecisionKind.COMMIT
    lost = Conflict(AbortReason.CONFLICT, key(3, 3), 6)
    assert member.deliver(end(1, 2)) == Decision(DecisionKind.ABORT, lost)
    assert member.state.log_needed_from is None


@pytest.mark.parametrize("limit", [FEW, MANY])
def test_what_is_ordered_after_a_transaction_in_pieces_loses_against_it(limit: int) -> None:
    member = started(limit)
    member.deliver(keys_piece(1, 0, groups((3, [key(1, 3), key(2, 0)]))))
    member.deliver(keys_piece(1, 1, groups((2, [key(-(2**61), 2)]))))
    assert member.deliver(end(1, 2)).kind is DecisionKind.COMMIT
    losers = [[key(1, 0)], [key(2, 3)], [key(5, 3), key(-(2**61), 2)]]
    winners = [[key(2, 2)], [key(-(2**61), 0)], [key(3, 3)]]
    kinds = [
        member.deliver(writeset(groups((5, keys)), member=2, sequence=number)).kind
        for number, keys in enumerate(losers + winners, 1)
    ]
    assert kinds == [DecisionKind.ABORT] * 3 + [DecisionKind.COMMIT] * 3
    later = writeset(groups((6, [key(1, 3)])), member=3)
    assert member.deliver(later).kind is DecisionKind.COMMIT


def test_a_missing_piece_aborts() -> None:
    member = started()
    member.deliver(keys_piece(1, 0, groups((3, [key(1, 3)]))))
    assert member.deliver(piece(1, 2)).kind is DecisionKind.STALE
    assert member.deliver(end(1, 3)).kind is DecisionKind.ABORT


def test_keys_do_not_come_after_rows() -> None:
    member = started()
    member.deliver(piece(1, 0))
    assert member.deliver(keys_piece(1, 1, groups((3, [key(1, 3)])))).kind is DecisionKind.STALE


def test_a_copy_of_a_piece_changes_nothing_and_opens_nothing_that_has_ended() -> None:
    member = started()
    first = keys_piece(1, 0, groups((3, [key(1, 3)])))
    kinds = member.deliver_all([first, first, piece(1, 1), first, end(1, 2), end(1, 2), first])
    assert kinds == [
        DecisionKind.NOTHING,
        DecisionKind.STALE,
        DecisionKind.NOTHING,
        DecisionKind.STALE,
        DecisionKind.COMMIT,
        DecisionKind.DUPLICATE,
        DecisionKind.STALE,
    ]
    assert member.state.log_needed_from is None


# ---- how they end ----------------------------------------------------------------------------


def opened() -> Member:
    member = started()
    member.deliver(keys_piece(1, 0, groups((3, [key(1, 3)]))))
    assert member.state.log_needed_from == 4
    return member


@pytest.mark.parametrize(
    "entry",
    [piece(1, 0, b"", flags=PIECE_LAST), Incarnation(1, 2), Members((2, 3))],
    ids=["given up", "begun anew", "left"],
)
def test_what_will_not_end_is_forgotten(entry: Entry) -> None:
    member = opened()
    member.deliver(entry)
    assert member.state.log_needed_from is None
    assert member.deliver(end(1, 1)).kind in (DecisionKind.ABORT, DecisionKind.STALE)


def test_what_was_given_up_before_its_first_piece_came_is_never_opened() -> None:
    member = started()
    member.deliver(piece(1, 0, b"", flags=PIECE_LAST))
    assert member.deliver(piece(1, 0)).kind is DecisionKind.STALE
    assert member.state.log_needed_from is None


def test_another_members_incarnation_ends_nothing() -> None:
    member = opened()
    member.deliver(Incarnation(2, 2))
    member.deliver(Incarnation(1, 1))
    assert member.deliver(end(1, 1)).kind is DecisionKind.COMMIT


def test_c12_pieces_of_an_older_incarnation_open_nothing() -> None:
    member = started()
    member.deliver(Incarnation(1, 2))
    assert member.deliver(piece(1, 0)).kind is DecisionKind.STALE


def test_the_log_is_needed_from_the_oldest_open_transaction_on() -> None:
    member = opened()
    member.deliver(piece(1, 0, member=2))
    member.deliver(end(1, 1))
    assert member.state.log_needed_from == 5


def busy(member: Member, count: int) -> None:
    """Others commit meanwhile; with ``FORGETFUL`` this raises the horizon."""
    for number in range(1, count + 1):
        keys = groups((member.state.position, [key(100 + number, 3)]))
        committed = member.deliver(writeset(keys, member=2, sequence=number))
        assert committed.kind is DecisionKind.COMMIT


def test_what_is_older_than_the_horizon_is_dropped_and_aborts_as_too_old() -> None:
    member = started(FORGETFUL)
    member.deliver(keys_piece(1, 0, groups((3, [key(1, 3)]))))
    busy(member, 12)
    assert member.state.horizon >= 4
    assert member.state.log_needed_from is None
    assert not member.state.is_open(1, 1)
    assert member.deliver(piece(1, 1)).kind is DecisionKind.STALE
    too_old = Conflict(AbortReason.TOO_OLD, 0, member.state.horizon)
    assert member.deliver(end(1, 1)) == Decision(DecisionKind.ABORT, too_old)


def test_what_is_open_for_too_many_positions_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgherd_sidecar.core.replication.state.OPEN_POSITIONS", 5)
    member = opened()
    member.deliver_all([Noop()] * 4)
    assert member.state.log_needed_from == 4
    restored = Member(FEW, ReplicatedState.restore(member.state.checkpoint()))
    restored.log = member.log
    for one in (member, restored):
        one.deliver(Noop())
        assert one.state.log_needed_from is None
        assert one.deliver(end(1, 1)).kind is DecisionKind.ABORT
        del member.log[-2:]


def test_what_is_open_for_too_many_bytes_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    member = started()
    member.deliver_all([piece(1, 0, b"1234"), piece(1, 0, b"1234", member=2), end(1, 1)])
    size = 8 + len(end(1, 1).body)
    monkeypatch.setattr("pgherd_sidecar.core.replication.pieces.OPEN_BYTES", size)
    restored = ReplicatedState.restore(member.state.checkpoint())
    for state in (member.state, restored):
        state.deliver(7, piece(1, 1, b"1234", member=2))
        assert state.log_needed_from == 5
        state.deliver(8, piece(1, 2, b"1", member=2))
        assert state.log_needed_from is None
    assert restored.checkpoint() == member.state.checkpoint()


def test_the_oldest_is_dropped_first_after_a_restart_too() -> None:
    member = started(FORGETFUL)
    member.deliver(piece(1, 0, member=3))
    member.deliver(piece(1, 0, member=1))
    state = ReplicatedState.restore(member.state.checkpoint())
    assert state.log_needed_from == 4


def test_a_group_without_keys_is_as_old_as_its_base() -> None:
    member = started(FORGETFUL)
    busy(member, 12)
    member.deliver(keys_piece(1, 0, groups((0, []))))
    assert member.deliver(end(1, 1)).kind is DecisionKind.ABORT


# ---- against the reference ---------------------------------------------------------------------


@st.composite
def transactions_in_pieces(draw: st.DrawFn) -> tuple[list[Entry], list[Entry]]:
    """A log, and the same one with some of its writesets in pieces spread over it.

    Where one has a piece the other has a no-op, so that the positions are the same.
    """
    whole = draw(logs(max_size=12))
    pieced: list[Entry] = list(whole)
    members = range(4, 5 + draw(st.integers(0, 2)))
    for member in members:
        end_at = draw(st.integers(3, len(whole)))
        first_at = draw(st.integers(3, end_at))
        keys = draw(key_groups(first_at + 1))  # all rows are locked before the first piece is sent
        position, parts = 0, []
        while position < len(keys):
            after = position + 2 + keys[position + 1]
            parts.append(keys[position:after])
            position = after
        whole.insert(end_at, writeset(keys, member=member))
        pieced.insert(end_at, end(1, len(parts), member=member))
        at = end_at
        for number in reversed(range(len(parts))):
            at = draw(st.integers(first_at, at))
            whole.insert(at, Noop())
            pieced.insert(at, keys_piece(1, number, parts[number], member=member))
    at = draw(st.integers(3, len(whole)))
    oldest = draw(st.integers(0, at))  # with MANY the horizon rises to the last commit before it
    for entries in (whole, pieced):
        entries[at:at] = [Publish(member, oldest) for member in (*MEMBERS, *members)]
    begin: list[Entry] = [Members((*MEMBERS, *members))]
    begin += [Incarnation(member, 1) for member in members]
    return begin + whole, begin + pieced


@given(transactions_in_pieces(), st.sampled_from([FEW, MANY]))
def test_verdicts_are_those_of_the_whole_writesets(
    both: tuple[list[Entry], list[Entry]], limit: int
) -> None:
    whole, pieced = both
    decisions = Member(limit).deliver_all(whole)
    for place, (one, other) in enumerate(
        zip(decisions, Member(limit).deliver_all(pieced), strict=True)
    ):
        if not isinstance(pieced[place], Piece):
            assert one is other, pieced[place]


@given(transactions_in_pieces(), st.sampled_from([FEW, MANY, FORGETFUL]), st.data())
def test_c17_a_member_restored_anywhere_decides_the_same(
    both: tuple[list[Entry], list[Entry]], limit: int, data: st.DataObject
) -> None:
    _, entries = both
    cut = data.draw(st.integers(0, len(entries)))
    one = Member(limit)
    before = one.deliver_all(entries[:cut])
    needed = one.state.log_needed_from
    assert needed is None or needed > one.state.horizon
    other = Member(limit, ReplicatedState.restore(one.state.checkpoint()))
    other.log = list(entries)
    rest = one.deliver_all(entries[cut:])
    assert other.deliver_all(entries[cut:]) == rest
    assert other.state.checkpoint() == one.state.checkpoint()
    assert other.state.log_needed_from == one.state.log_needed_from
    assert len(before) + len(rest) == len(entries)


def test_parts_of_a_large_row_are_pieces_like_others() -> None:
    member = started()
    parts = [piece(1, 0, b'[["public.t",', flags=PIECE_MORE), piece(1, 1, b'[4],["I(1)"]]]')]
    member.deliver_all(parts)
    reader = PieceReader(member, (1, 1, 1), 4)
    found = [part for _, part in reader.next(5)]
    assert found == parts
    assert reader.next(5) == []
