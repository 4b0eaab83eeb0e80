"""The replicated state machine: duplicates, incarnations, equal verdicts on every member."""

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgherd_sidecar.core.certification import dedup
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.replication.checkpoint import CheckpointError
from pgherd_sidecar.core.replication.entries import (
    Entry,
    Incarnation,
    Marker,
    Members,
    Noop,
    Publish,
    Writeset,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState
from writeset_strategies import MEMBERS, deliver_all, groups, key, logs, writeset

COMMIT = Decision(DecisionKind.COMMIT)
STALE = Decision(DecisionKind.STALE)


def started(index_limit: int = 1_000_000) -> ReplicatedState:
    """A state in which each member has announced its first incarnation; position 3."""
    state = ReplicatedState(MEMBERS, index_limit)
    deliver_all(state, [Incarnation(member, 1) for member in MEMBERS])
    return state


def test_c11_a_copy_of_a_committed_writeset_repeats_its_verdict_and_changes_nothing() -> None:
    state = started()
    entry = writeset(groups((0, [key(1, 3)])))
    assert state.deliver(4, entry) == COMMIT
    assert state.deliver(5, entry) == Decision(DecisionKind.DUPLICATE, None, 4)
    after = writeset(groups((4, [key(1, 3)])), member=2)
    assert state.deliver(6, after) == COMMIT  # the copy took no key at 5


def test_c11_a_copy_of_an_aborted_writeset_stays_aborted() -> None:
    state = started()
    state.deliver(4, writeset(groups((0, [key(1, 3)]))))
    loser = writeset(groups((0, [key(1, 3)])), member=2)
    lost = Conflict(AbortReason.CONFLICT, key(1, 3), 4)
    assert state.deliver(5, loser) == Decision(DecisionKind.ABORT, lost)
    assert state.deliver(6, loser) == Decision(DecisionKind.DUPLICATE, lost, 5)
    assert state.first_verdict(2, 1, 1) == (5, lost)


def test_c11_a_late_copy_below_the_low_water_mark_cannot_commit() -> None:
    state = started()
    first = writeset(groups((0, [key(1, 3)])), sequence=1)
    assert state.deliver(4, first) == COMMIT
    state.deliver(5, writeset(groups((4, [key(2, 3)])), sequence=2, low_water=2))
    assert state.deliver(6, first) == STALE
    assert state.first_verdict(1, 1, 1) is None


def test_c11_a_sequence_given_up_by_its_origin_is_excluded_though_it_never_came() -> None:
    state = started()
    state.deliver(4, writeset(groups((0, [key(2, 3)])), sequence=2, low_water=2))
    assert state.deliver(5, writeset(groups((0, [key(1, 3)])), sequence=1)) == STALE


def test_c11_the_same_sequence_of_another_member_or_incarnation_is_no_copy() -> None:
    state = started()
    assert state.deliver(4, writeset(groups((0, [key(1, 3)])))) == COMMIT
    assert state.deliver(5, writeset(groups((0, [key(2, 3)])), member=2)) == COMMIT
    state.deliver(6, Incarnation(1, 2))
    assert state.deliver(7, writeset(groups((0, [key(3, 3)])), incarnation=2)) == COMMIT


def test_c11_verdicts_are_bounded_when_an_origin_never_moves_its_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedup, "VERDICTS_LIMIT", 10)
    origin = dedup.Origin()
    for sequence in range(1, 101):
        origin.decided(sequence, dedup.FirstVerdict(sequence, None))
    remembered = [sequence for sequence in range(1, 101) if origin.first_verdict(sequence)]
    assert len(remembered) <= 10
    assert remembered[-1] == 100
    assert origin.excludes(0, remembered[0] - 1)
    assert not origin.excludes(0, remembered[0])


def test_c12_a_new_incarnation_excludes_what_the_older_one_still_had_under_way() -> None:
    state = started()
    state.deliver(4, Incarnation(1, 2))
    assert state.deliver(5, writeset(groups((0, [key(1, 3)])), incarnation=1)) == STALE
    state.deliver(6, Incarnation(1, 1))  # a late copy of the old announcement
    assert state.incarnation(1) == 2
    assert state.deliver(7, writeset(groups((0, [key(1, 3)])), incarnation=1)) == STALE
    assert state.deliver(8, writeset(groups((0, [key(1, 3)])), incarnation=2)) == COMMIT


def test_c12_sequences_start_anew_with_an_incarnation() -> None:
    state = started()
    state.deliver(4, writeset(groups((0, [key(1, 3)])), sequence=9, low_water=9))
    state.deliver(5, Incarnation(1, 2))
    assert state.deliver(6, writeset(groups((0, [key(2, 3)])), incarnation=2)) == COMMIT


def test_c12_a_writeset_before_its_incarnation_was_announced_does_not_commit() -> None:
    state = ReplicatedState(MEMBERS)
    assert state.deliver(1, writeset(groups((0, [key(1, 3)])))) == STALE


def test_a_writeset_of_a_stranger_does_not_commit() -> None:
    state = started()
    assert state.deliver(4, Incarnation(9, 1)).kind is DecisionKind.NOTHING
    assert state.deliver(5, writeset(groups((0, [key(1, 3)])), member=9)) == STALE


def test_no_ops_and_markers_change_nothing_but_the_position() -> None:
    state = started()
    decisions = deliver_all(state, [Noop(), Marker(bytes(16))], 4)
    assert [decision.kind for decision in decisions] == [DecisionKind.NOTHING] * 2
    assert state.position == 5


def test_an_entry_out_of_order_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        started().deliver(5, Noop())


def test_c17_the_horizon_is_the_slowest_members_published_base() -> None:
    state = started(index_limit=64)  # a generation for each key
    for gid in range(4, 14):
        state.deliver(gid, writeset(groups((gid - 1, [key(gid, 3)])), sequence=gid))
    state.deliver(14, Publish(1, 9))
    state.deliver(15, Publish(2, 7))
    assert state.horizon == 0  # member 3 may still run something older
    state.deliver(16, Publish(3, 12))
    assert state.horizon == 7
    too_old = state.deliver(17, writeset(groups((6, [key(99, 3)])), member=2))
    assert too_old.conflict == Conflict(AbortReason.TOO_OLD, key(99, 3), 7)


def test_c17_a_member_that_has_left_does_not_hold_the_horizon() -> None:
    state = started(index_limit=64)
    for gid in range(4, 14):
        state.deliver(gid, writeset(groups((gid - 1, [key(gid, 3)])), sequence=gid))
    state.deliver(14, Publish(1, 9))
    state.deliver(15, Publish(2, 7))
    assert state.horizon == 0
    state.deliver(16, Members((1, 2)))
    assert state.horizon == 7
    state.deliver(17, Publish(2, 12))
    assert state.horizon == 9


def test_a_member_that_joins_holds_the_horizon_from_its_place_in_the_log_on() -> None:
    state = started(index_limit=64)
    state.deliver(4, Members((1, 2, 3, 4)))
    for gid in range(5, 14):
        state.deliver(gid, writeset(groups((gid - 1, [key(gid, 3)])), sequence=gid))
    for gid, member in enumerate((1, 2, 3), 14):
        state.deliver(gid, Publish(member, 13))
    assert state.horizon == 0  # what member 4 runs began after 4, perhaps before 5
    state.deliver(17, Publish(4, 8))
    assert state.horizon == 8


def test_writesets_of_a_member_that_has_left_commit_no_more() -> None:
    state = started()
    assert state.deliver(4, writeset(groups((0, [key(1, 3)])), member=3)) == COMMIT
    state.deliver(5, Members((1, 2)))
    late = writeset(groups((4, [key(2, 3)])), member=3, sequence=2)
    assert state.deliver(6, late) == STALE
    state.deliver(7, Incarnation(3, 2))
    assert state.deliver(8, writeset(groups((4, [key(2, 3)])), member=3, incarnation=2)) == STALE


def test_c12_a_number_that_is_given_again_never_has_an_identity_of_its_former_member() -> None:
    state = started()
    first = writeset(groups((0, [key(1, 3)])), member=3)
    assert state.deliver(4, first) == COMMIT
    state.deliver(5, Incarnation(3, 7))
    state.deliver(6, Members((1, 2)))
    state = ReplicatedState.restore(state.checkpoint())
    state.deliver(7, Members((1, 2, 3)))
    assert state.incarnation(3) == 7  # what a new one begins with has to be newer
    late = writeset(groups((6, [key(2, 3)])), member=3, incarnation=7)
    assert state.deliver(8, late) == STALE
    state.deliver(9, Incarnation(3, 1))
    assert state.deliver(10, first) == STALE
    assert state.incarnation(3) == 7
    assert not state.has_begun(3, 7)  # if the new one's is the same by chance
    state.deliver(11, Incarnation(3, 8))
    assert state.has_begun(3, 8)
    fresh = writeset(groups((6, [key(2, 3)])), member=3, incarnation=8)
    assert state.deliver(12, fresh) == COMMIT
    assert state.deliver(13, late) == STALE


def test_who_stays_keeps_its_verdicts_when_others_come_and_go() -> None:
    state = started()
    entry = writeset(groups((0, [key(1, 3)])))
    assert state.deliver(4, entry) == COMMIT
    state.deliver(5, Members((1, 4, 9)))
    assert state.members == (1, 4, 9)
    assert state.deliver(6, entry) == Decision(DecisionKind.DUPLICATE, None, 4)


@settings(max_examples=100, deadline=None)
@given(logs(), st.sampled_from([1, 3, 64, 200, 1_000_000]), st.data())
def test_c17_verdicts_survive_checkpoint_restart_and_trim_at_any_point(
    entries: list[Entry], index_limit: int, data: st.DataObject
) -> None:
    undisturbed = ReplicatedState(MEMBERS, index_limit)
    expected = deliver_all(undisturbed, entries)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(entries)), max_size=4)))
    state = ReplicatedState(MEMBERS, index_limit)
    decisions: list[Decision] = []
    for start, end in zip([0, *cuts], [*cuts, len(entries)], strict=True):
        decisions += deliver_all(state, entries[start:end], start + 1)
        state = ReplicatedState.restore(state.checkpoint())
    assert decisions == expected
    assert state.checkpoint() == undisturbed.checkpoint()
    assert (state.position, state.horizon, state.index_size) == (
        undisturbed.position,
        undisturbed.horizon,
        undisturbed.index_size,
    )


@settings(max_examples=100, deadline=None)
@given(logs(), st.data())
def test_c17_replay_from_an_older_checkpoint_decides_the_same_again(
    entries: list[Entry], data: st.DataObject
) -> None:
    state = ReplicatedState(MEMBERS, 64)
    taken_at = data.draw(st.integers(0, len(entries)))
    deliver_all(state, entries[:taken_at])
    checkpoint = state.checkpoint()
    first_run = deliver_all(state, entries[taken_at:], taken_at + 1)
    replayed = ReplicatedState.restore(checkpoint)
    assert deliver_all(replayed, entries[taken_at:], taken_at + 1) == first_run


@settings(max_examples=100, deadline=None)
@given(logs())
def test_c11_no_identity_commits_twice(entries: list[Entry]) -> None:
    decisions = deliver_all(ReplicatedState(MEMBERS), entries)
    committed = [
        (entry.member, entry.incarnation, entry.sequence)
        for entry, decision in zip(entries, decisions, strict=True)
        if isinstance(entry, Writeset) and decision.kind is DecisionKind.COMMIT
    ]
    assert len(committed) == len(set(committed))


def test_preview_tells_a_waiting_writeset_that_it_has_lost() -> None:
    state = started()
    waiting = groups((3, [key(1, 3)]))
    assert state.preview(waiting) is None
    state.deliver(4, writeset(groups((3, [key(1, 2)]))))
    assert state.preview(waiting) == Conflict(AbortReason.CONFLICT, key(1, 3), 4)
    assert state.preview(waiting) is not None  # looking twice changes nothing


@given(logs(max_size=10), st.data())
def test_a_damaged_checkpoint_is_refused(entries: list[Entry], data: st.DataObject) -> None:
    state = ReplicatedState(MEMBERS)
    deliver_all(state, entries)
    blob = bytearray(state.checkpoint())
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
    else:
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CheckpointError):
        ReplicatedState.restore(bytes(blob))


def test_c26_a_checkpoint_of_another_version_is_refused() -> None:
    blob = bytearray(ReplicatedState(MEMBERS).checkpoint())
    intact = zlib.crc32(blob[14:], zlib.crc32((99).to_bytes(2)))
    struct.pack_into(">HI", blob, 8, 99, intact)
    with pytest.raises(CheckpointError, match="version 99"):
        ReplicatedState.restore(bytes(blob))
