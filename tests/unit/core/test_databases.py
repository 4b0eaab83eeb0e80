"""Which databases are whole, and when the herd is held: rules, and a naive twin of them."""

from __future__ import annotations

from array import array

import pytest
from databases_twin import Twin
from hypothesis import given, settings
from hypothesis import strategies as st
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.replication import databases as module
from pgherd_sidecar.core.replication.databases import SKIPPED, Databases
from pgherd_sidecar.core.replication.entries import (
    STATE_ASKED,
    STATE_PAUSE,
    STATE_STOPPED,
    Condition,
    DatabaseState,
    Entry,
    Incarnation,
    Members,
    Skip,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind, ReplicatedState
from writeset_strategies import MEMBERS, groups, intention, key, writeset

WHOLE, DIVERGED = Condition.WHOLE, Condition.DIVERGED
REBUILDING, FAILED = Condition.REBUILDING, Condition.FAILED


class Story:
    """Databases of three members, and entries that say what becomes of them."""

    def __init__(self, members: tuple[int, ...] = MEMBERS) -> None:
        self.databases = Databases(members)
        self.position = 100

    def say(
        self,
        member: int,
        condition: Condition,
        gid: int = 0,
        cause: str = "",
        *,
        at_s: int = 1000,
        within_s: int = 3600,
        flags: int = 0,
    ) -> DatabaseState:
        known = self.databases.of(member)
        assert known is not None
        entry = DatabaseState(member, condition, known.since, gid, at_s, within_s, flags, cause)
        self.deliver(entry)
        return entry

    def deliver(self, entry: DatabaseState | Skip | Members) -> None:
        self.position += 1
        match entry:
            case DatabaseState():
                self.databases.take_state(self.position, entry)
            case Skip():
                self.databases.skip(self.position, entry)
            case Members():
                self.databases.install(self.position, entry.numbers)

    @property
    def held_at(self) -> int | None:
        hold = self.databases.hold
        return None if hold is None else hold.gid


def diverged_once() -> Story:
    """Two of three could not apply GID 50, and were rebuilt from the third."""
    story = Story()
    for member in (2, 3):
        story.say(member, DIVERGED, 50, "P0001 rows")
        story.say(member, REBUILDING)
    assert story.databases.whole == (1,)
    assert story.held_at is None  # they are being rebuilt
    for member in (2, 3):
        story.say(member, WHOLE)
    return story


def test_the_first_time_writes_go_on_while_the_others_are_rebuilt() -> None:
    assert diverged_once().databases.whole == MEMBERS


def test_the_second_time_the_same_cause_holds_the_herd_when_one_database_is_left() -> None:
    story = diverged_once()
    story.say(2, DIVERGED, 60, "P0001 rows", at_s=2000)
    assert story.held_at is None  # two hold it
    story.say(3, DIVERGED, 60, "P0001 rows", at_s=2000)
    assert story.held_at == 60
    assert story.databases.hold == module.Hold(story.position, 60, "P0001 rows")


def test_another_cause_or_the_same_one_long_ago_is_a_first_time() -> None:
    for cause, at_s in (("23505 rows", 2000), ("P0001 rows", 4601)):
        story = diverged_once()
        for member in (2, 3):
            story.say(member, DIVERGED, 60, cause, at_s=at_s)
        assert story.held_at is None


def test_several_members_that_stop_at_one_entry_are_one_time() -> None:
    story = Story((1, 2, 3, 4))
    for member in (2, 3, 4):
        story.say(member, DIVERGED, 50, "P0001 rows")
    assert story.databases.whole == (1,)
    assert story.held_at is None


def test_pause_holds_the_herd_at_once_when_one_database_is_left() -> None:
    story = Story()
    story.say(2, DIVERGED, 50, "P0001 rows", flags=STATE_PAUSE)
    assert story.held_at is None
    story.say(3, DIVERGED, 50, "P0001 rows", flags=STATE_PAUSE)
    assert story.held_at == 50


def test_a_failed_rebuild_holds_the_herd_when_one_database_is_left() -> None:
    story = Story()
    story.say(2, DIVERGED, 50, "P0001 rows")
    story.say(2, REBUILDING)
    story.say(2, FAILED)
    assert story.held_at is None  # two hold it
    story.say(3, DIVERGED, 70, "23505 rows")
    assert story.held_at == 50


def test_the_hold_lasts_until_two_are_whole() -> None:
    story = diverged_once()
    for member in (2, 3):
        story.say(member, DIVERGED, 60, "P0001 rows", at_s=2000)
    story.say(2, REBUILDING)  # by itself: an administrator chooses
    known = story.databases.of(2)
    assert known is not None
    assert known.condition is DIVERGED
    for member in (2, 3):
        story.say(member, REBUILDING, flags=STATE_ASKED)
        assert story.held_at == 60
    story.say(2, WHOLE)
    assert story.held_at is None


def test_a_herd_with_one_database_is_never_held() -> None:
    story = Story((1,))
    story.say(1, DIVERGED, 50, "P0001 rows", flags=STATE_PAUSE)
    assert story.held_at is None
    story = diverged_once()
    for member in (2, 3):
        story.say(member, DIVERGED, 60, "P0001 rows", at_s=2000)
    story.deliver(Members((1, 3)))
    assert story.held_at == 60
    story.deliver(Members((1,)))
    assert story.held_at is None


def test_without_any_whole_database_the_herd_is_held_the_first_time() -> None:
    story = Story((1, 2))
    story.say(2, DIVERGED, 50, "P0001 rows")
    assert story.held_at is None
    story.say(1, DIVERGED, 60, "23505 rows")
    assert story.held_at == 60


def test_who_joins_is_whole_when_it_says_so() -> None:
    story = Story((1,))
    story.deliver(Members((1, 2)))
    assert list(story.databases.whole) == [1]
    assert story.held_at is None
    story.say(2, WHOLE)
    assert list(story.databases.whole) == [1, 2]


def test_a_copy_of_an_entry_says_nothing() -> None:
    story = Story()
    late = story.say(2, DIVERGED, 50, "P0001 rows")
    story.say(2, REBUILDING)
    story.say(2, WHOLE)
    story.deliver(late)
    assert story.databases.whole == MEMBERS


def test_what_a_former_member_of_this_number_said_says_nothing() -> None:
    story = Story()
    late = DatabaseState(3, DIVERGED, 0, 50, 1000, 3600, 0, "P0001 rows")
    story.deliver(Members((1, 2)))
    story.deliver(Members((1, 2, 3)))
    story.say(3, WHOLE)
    story.deliver(late)
    assert story.databases.whole == MEMBERS


def test_skipping_an_entry_makes_those_whole_that_stopped_at_it_and_no_other() -> None:
    story = diverged_once()
    for member in (2, 3):
        story.say(member, DIVERGED, 60, "P0001 rows", at_s=2000)
    story.deliver(Skip(60))
    assert story.databases.whole == (2, 3)
    assert story.databases.skipped == (60,)
    assert story.held_at is None
    origin = story.databases.of(1)
    assert origin is not None
    assert (origin.condition, origin.gid, origin.cause) == (DIVERGED, 60, SKIPPED)
    assert not story.databases.stopped_at(60)
    story.deliver(Skip(60))  # a copy
    assert story.databases.skipped == (60,)


def test_an_entry_at_which_nobody_has_stopped_is_not_skipped() -> None:
    story = diverged_once()
    story.say(2, DIVERGED, 60, "P0001 rows", at_s=2000)
    story.deliver(Skip(61))
    story.say(2, REBUILDING)  # its database is about to be replaced
    story.deliver(Skip(60))
    assert not story.databases.skipped
    assert story.databases.whole == (1, 3)


def test_who_stopped_and_was_given_up_before_anything_was_replaced_can_skip() -> None:
    story = Story()
    story.say(2, DIVERGED, 50, "P0001 rows")
    story.say(2, FAILED, flags=STATE_STOPPED)
    story.deliver(Skip(50))
    assert story.databases.whole == (2,)
    assert story.held_at is None  # nobody is hopeless: the others get copies of it


def test_who_has_applied_what_was_skipped_is_no_way_out_by_another_skip() -> None:
    story = Story((1, 2))
    story.say(2, DIVERGED, 50, "P0001 rows", flags=STATE_PAUSE)
    story.deliver(Skip(50))
    story.say(1, DIVERGED, 60, "23505 rows")
    assert not story.databases.stopped_at(60)
    story.deliver(Skip(60))
    assert list(story.databases.whole) == [2]


def test_a_stopped_database_is_not_given_away_while_no_other_is_whole() -> None:
    story = Story((1, 2))
    story.say(2, DIVERGED, 50, "P0001 rows")
    story.say(1, DIVERGED, 60, "23505 rows")
    assert story.held_at == 60
    story.say(1, REBUILDING, flags=STATE_ASKED)
    assert story.databases.stopped_at(60) == (1,)
    story.deliver(Skip(60))
    story.say(2, REBUILDING, flags=STATE_ASKED)
    assert not story.databases.stopped_at(50)


def test_the_origin_is_rebuilt_though_the_herd_is_still_held() -> None:
    story = Story()
    story.say(3, FAILED, 0, "copy")
    story.say(2, DIVERGED, 50, "P0001 rows")
    assert story.held_at is not None
    story.deliver(Skip(50))
    assert story.databases.whole == (2,)
    assert story.held_at is not None
    story.say(1, REBUILDING, flags=STATE_ASKED)
    story.say(1, WHOLE)
    assert story.held_at is None


def test_what_is_remembered_is_bounded() -> None:
    story = Story()
    for gid in range(1, 200):
        story.say(2, DIVERGED, gid, f"cause {gid}", at_s=0)
        story.deliver(Skip(gid))
        for member in (1, 3):
            story.say(member, WHOLE)
    assert len(story.databases.skipped) == module.SKIPPED_LIMIT
    assert story.databases.skipped[-1] == 199
    numbers = story.databases.dump()
    assert len(numbers) < 64 * (10 + 1) + 3 * 13 + 20


# ---- in the replicated state -------------------------------------------------------------------


def held_state() -> ReplicatedState:
    """A state at position 6 that is held since then."""
    state = ReplicatedState(MEMBERS)
    for gid, member in enumerate(MEMBERS, 1):
        state.deliver(gid, Incarnation(member, 1))
    state.deliver(4, writeset(groups((3, [key(1, 3)]))))
    for gid, member in ((5, 2), (6, 3)):
        state.deliver(gid, DatabaseState(member, DIVERGED, 0, 4, 9, 9, STATE_PAUSE, "P0001 rows"))
    return state


def test_a_writeset_is_refused_for_good_while_the_herd_is_held() -> None:
    state = held_state()
    mine = writeset(groups((4, [key(2, 3)])), sequence=2)
    refused = Decision(DecisionKind.REFUSED, Conflict(AbortReason.HELD, 0, 6))
    assert state.deliver(7, mine) == refused
    known = state.databases.of(2)
    assert known is not None
    state.deliver(8, DatabaseState(2, WHOLE, known.since))
    assert state.databases.hold is None
    copy = state.deliver(9, mine)
    assert (copy.kind, copy.first_gid, copy.conflict) == (
        DecisionKind.DUPLICATE,
        7,
        refused.conflict,
    )
    again = writeset(groups((4, [key(2, 3)])), sequence=3)
    assert state.deliver(10, again).kind is DecisionKind.COMMIT  # the refused one took no key


def test_what_is_refused_ends_its_intention_all_the_same() -> None:
    state = held_state()
    at = state.position + 1
    state.deliver(at, intention(key(3, 3), member=1, xid=900))
    refused = state.deliver(at + 1, writeset(groups((at, [key(3, 3)])), xid=900, sequence=9))
    assert refused.kind is DecisionKind.REFUSED
    assert state.intention(1) is None


def test_a_checkpoint_keeps_the_hold() -> None:
    state = held_state()
    restored = ReplicatedState.restore(state.checkpoint())
    assert restored.databases.hold == state.databases.hold
    assert restored.databases.items() == state.databases.items()
    assert restored.checkpoint() == state.checkpoint()


@pytest.mark.parametrize("cut", range(1, 30))
def test_databases_that_are_cut_off_are_refused(cut: int) -> None:
    numbers = held_state().databases.dump()
    with pytest.raises(ValueError, match="cut off"):
        Databases.load(array("q", numbers[:-cut]))


# ---- a naive twin ------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Entries about databases; most of them count."""
    entries: list[Entry] = []
    databases = Databases(MEMBERS)
    for position in range(1, draw(st.integers(1, 40)) + 1):
        entry: Entry
        match draw(st.integers(0, 11)):
            case 0:
                entry = Members(tuple(sorted(draw(st.sets(st.integers(1, 4), min_size=1)))))
            case 1 | 2:
                entry = Skip(draw(st.integers(1, 4)))
            case _:
                member = draw(st.integers(1, 4))
                known = databases.of(member)
                since = 0 if known is None else known.since
                condition = draw(st.sampled_from(Condition))
                cause = draw(st.sampled_from(["a", "b"])) if condition is not WHOLE else ""
                if condition in (REBUILDING, FAILED) and draw(st.booleans()):
                    cause = ""
                entry = DatabaseState(
                    member,
                    condition,
                    since if draw(st.integers(0, 4)) else draw(st.integers(0, position)),
                    draw(st.integers(1, 4)) if cause else 0,
                    draw(st.integers(0, 30)),
                    draw(st.sampled_from([5, 100])),
                    draw(st.sampled_from([0, 0, STATE_PAUSE, STATE_ASKED, STATE_STOPPED])),
                    cause,
                )
        entries.append(entry)
        match entry:
            case Members(numbers):
                databases.install(position, numbers)
            case Skip():
                databases.skip(position, entry)
            case DatabaseState():
                databases.take_state(position, entry)
    return entries


@settings(max_examples=400, deadline=None)
@given(histories(), st.data())
def test_c17_the_hold_is_the_same_as_a_naive_twins_across_restarts_at_any_point(
    entries: list[Entry], data: st.DataObject
) -> None:
    twin = Twin.of(MEMBERS)
    state = ReplicatedState(MEMBERS)
    undisturbed = ReplicatedState(MEMBERS)
    cuts = data.draw(st.sets(st.integers(1, len(entries)), max_size=3))
    for position, entry in enumerate(entries, 1):
        twin.deliver(position, entry)
        state.deliver(position, entry)
        undisturbed.deliver(position, entry)
        if position in cuts:
            state = ReplicatedState.restore(state.checkpoint())
        hold = state.databases.hold
        assert (None if hold is None else hold.since) == twin.held_since
        assert {n: one.condition for n, one in state.databases.items()} == {
            n: m["is"] for n, m in sorted(twin.members.items())
        }
        copy = state.databases.copy()
        assert copy.dump() == state.databases.dump() == undisturbed.databases.dump()
