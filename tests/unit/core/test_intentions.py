"""Intentions: whoever has declared its keys does not lose to those who come later."""

from hypothesis import given, settings
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.replication.entries import (
    Entry,
    Incarnation,
    Intention,
    Members,
    Writeset,
    key_array,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState
from writeset_strategies import MEMBERS, deliver_all, groups, intention, key, logs, writeset

COMMIT = Decision(DecisionKind.COMMIT)


def started() -> ReplicatedState:
    """A state in which each member has announced its first incarnation; position 3."""
    state = ReplicatedState(MEMBERS)
    deliver_all(state, [Incarnation(member, 1) for member in MEMBERS])
    return state


def test_others_lose_from_the_intention_on_and_its_transaction_wins() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), xid=900))
    small = writeset(groups((4, [key(7, 0)])), member=2)
    lost = Conflict(AbortReason.INTENDED, key(7, 3), 4)
    assert state.deliver(5, small) == Decision(DecisionKind.ABORT, lost)
    assert state.deliver(6, writeset(groups((4, [key(7, 3)])), xid=900)) == COMMIT
    after = writeset(groups((6, [key(7, 0)])), member=2, sequence=2)
    assert state.deliver(7, after) == COMMIT


def test_what_takes_other_keys_or_a_compatible_mode_is_not_disturbed() -> None:
    state = started()
    state.deliver(4, intention(key(7, 2), xid=900))
    compatible = writeset(groups((4, [key(7, 0), key(8, 3)])), member=2)
    assert state.deliver(5, compatible) == COMMIT


def test_other_transactions_of_the_same_member_lose_too() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), xid=900))
    assert state.deliver(5, writeset(groups((4, [key(7, 0)])))).kind is DecisionKind.ABORT
    assert state.intention(1) is not None


def test_of_two_that_exclude_each_other_the_earlier_one_goes_first() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), member=1, xid=900))
    state.deliver(5, intention(key(7, 3), member=2, xid=901))
    second = writeset(groups((5, [key(7, 3)])), member=2, xid=901)
    assert state.deliver(6, second).conflict == Conflict(AbortReason.INTENDED, key(7, 3), 4)
    assert state.intention(2) is None  # a writeset ends it, whatever becomes of that
    assert state.deliver(7, writeset(groups((5, [key(7, 3)])), xid=900)) == COMMIT


def test_who_loses_to_two_is_told_the_earlier_one_also_after_a_restart() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), member=3, xid=900))
    state.deliver(5, intention(key(7, 3), member=1, xid=901))
    small = writeset(groups((5, [key(7, 0)])), member=2)
    for one in (ReplicatedState.restore(state.checkpoint()), state):
        assert one.deliver(6, small).conflict == Conflict(AbortReason.INTENDED, key(7, 3), 4)


def test_the_earlier_one_does_not_lose_to_the_later_one() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), member=1, xid=900))
    state.deliver(5, intention(key(7, 3), member=2, xid=901))
    assert state.deliver(6, writeset(groups((5, [key(7, 3)])), xid=900)) == COMMIT


def test_an_intention_ends_with_its_withdrawal_by_whomever() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), xid=900))
    state.deliver(5, intention(xid=899))  # of a former one, and late
    assert state.intention(1) is not None
    state.deliver(6, intention(xid=900))
    assert state.deliver(7, writeset(groups((6, [key(7, 0)])), member=2)) == COMMIT


def test_an_intention_ends_with_its_incarnation_or_its_member() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), member=1, xid=900))
    state.deliver(5, Incarnation(1, 2))
    assert state.intention(1) is None
    state.deliver(6, intention(key(7, 3), member=3, xid=900))
    state.deliver(7, Members((1, 2)))
    assert state.deliver(8, writeset(groups((7, [key(7, 0)])), member=2)) == COMMIT


def test_what_has_not_begun_has_no_intention() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), member=9))
    state.deliver(5, intention(key(7, 3), incarnation=2))
    assert state.deliver(6, writeset(groups((5, [key(7, 0)])), member=2)) == COMMIT


def test_a_checkpoint_keeps_the_intentions() -> None:
    state = started()
    state.deliver(4, intention(key(7, 3), key(-9, 1), xid=900))
    state.deliver(5, intention(key(8, 3), member=2, xid=901))
    restored = ReplicatedState.restore(state.checkpoint())
    assert [restored.intention(one) for one in MEMBERS] == [state.intention(m) for m in MEMBERS]
    assert restored.checkpoint() == state.checkpoint()


@settings(max_examples=200, deadline=None)
@given(logs())
def test_who_is_excluded_is_what_a_naive_reader_of_the_log_says(entries: list[Entry]) -> None:
    state = ReplicatedState(MEMBERS)
    for gid, entry in enumerate(entries, 1):
        expected = isinstance(entry, Writeset) and excluded(entries[: gid - 1], entry)
        decision = state.deliver(gid, entry)
        if decision.kind in (DecisionKind.COMMIT, DecisionKind.ABORT):
            reason = decision.conflict.reason if decision.conflict is not None else None
            if expected:
                assert decision.kind is DecisionKind.ABORT
            else:
                assert reason is not AbortReason.INTENDED


def excluded(before: list[Entry], writeset: Writeset) -> bool:
    """Whether an intention in force excludes a writeset that is decided after these entries."""
    others = {m: in_force(before, m) for m in MEMBERS}
    own = others.get(writeset.member)
    mine = own is not None and (own[1].incarnation, own[1].xid) == (
        writeset.incarnation,
        writeset.xid,
    )
    keys = key_array(writeset.keys)
    taken: list[int] = []
    while keys:
        taken += keys[2 : 2 + keys[1]]
        keys = keys[2 + keys[1] :]
    for member, found in others.items():
        if found is None or (mine and member == writeset.member):
            continue
        if mine and own is not None and own[0] < found[0]:
            continue
        declared = {k >> 2: k & 3 for k in sorted(key_array(found[1].keys))}
        if any(k >> 2 in declared and declared[k >> 2] + (k & 3) >= 3 for k in taken):
            return True
    return False


def in_force(before: list[Entry], member: int) -> tuple[int, Intention] | None:
    """The intention of a member that is in force after these entries, and its position."""
    found: tuple[int, Intention] | None = None
    state = ReplicatedState(MEMBERS)
    for gid, entry in enumerate(before, 1):
        decided = state.deliver(gid, entry).kind in (DecisionKind.COMMIT, DecisionKind.ABORT)
        if isinstance(entry, Incarnation) and entry.member == member:
            found = found if entry.incarnation != state.incarnation(member) else keep(found, entry)
        elif isinstance(entry, Intention) and entry.member == member:
            same = found is not None and (found[1].incarnation, found[1].xid) == (
                entry.incarnation,
                entry.xid,
            )
            if not state.has_begun(member, entry.incarnation):
                continue
            if entry.keys:
                found = (gid, entry)
            elif same:
                found = None
        elif isinstance(entry, Writeset) and decided and found is not None:
            ends = (entry.member, entry.incarnation, entry.xid)
            if ends == (member, found[1].incarnation, found[1].xid):
                found = None
    return found


def keep(found: tuple[int, Intention] | None, entry: Incarnation) -> tuple[int, Intention] | None:
    """A copy of the announcement of the incarnation that goes on ends nothing."""
    return found if found is not None and found[1].incarnation == entry.incarnation else None
