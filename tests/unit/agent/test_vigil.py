"""Who hears nothing of a rebuild for long says that it has failed; who is rebuilt is heard of."""

from collections.abc import Callable

import pytest
from pgherd_sidecar.agent.standing.vigil import Vigil
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import Condition, DatabaseState, Members, iter_entries

WHOLE, DIVERGED = Condition.WHOLE, Condition.DIVERGED
REBUILDING, FAILED = Condition.REBUILDING, Condition.FAILED
SILENT_S = 10.0


class Herd:
    """Three members that follow one log, and a clock."""

    def __init__(self) -> None:
        self.databases = Databases((1, 2, 3))
        self.position = 0
        self.now = 100.0
        self.lost: set[int] = set()
        self.vigils = {n: Vigil(n, SILENT_S, self.submit(n), lambda: self.now) for n in (1, 2, 3)}

    def submit(self, number: int) -> Callable[[bytes, int], bool]:
        def submit(data: bytes, count: int) -> bool:
            for entry in iter_entries(data):
                assert isinstance(entry, DatabaseState)
                if number not in self.lost:
                    self.take(entry)
            return count == 1

        return submit

    def take(self, entry: DatabaseState) -> None:
        self.position += 1
        self.databases.take_state(self.position, entry)

    def say(self, member: int, condition: Condition, cause: str = "") -> None:
        known = self.databases.of(member)
        assert known is not None
        gid = 7 if cause else 0
        self.take(DatabaseState(member, condition, known.since, gid, 9, 9, 0, cause))

    def is_(self, member: int) -> Condition:
        known = self.databases.of(member)
        assert known is not None
        return known.condition

    def passes(self, seconds: float) -> None:
        """Each member that is not silent looks once a second."""
        for _ in range(round(seconds)):
            self.now += 1
            for number, vigil in self.vigils.items():
                if number not in self.lost:
                    vigil.announce_rebuild(self.databases)
                    vigil.listen(self.databases)


@pytest.fixture
def herd() -> Herd:
    """Two members are being rebuilt from the first."""
    made = Herd()
    for member in (2, 3):
        made.say(member, DIVERGED, "PH001 in rows")
        made.say(member, REBUILDING)
    return made


def test_a_rebuild_that_goes_on_is_never_taken_for_failed(herd: Herd) -> None:
    herd.passes(20 * SILENT_S)
    assert (herd.is_(2), herd.is_(3)) == (REBUILDING, REBUILDING)
    assert herd.databases.hold is None
    assert herd.position < 4 + 2 * 20 * 6  # it does not fill the log


def test_of_two_whose_members_died_the_herd_is_held_until_one_is_whole_after_all(
    herd: Herd,
) -> None:
    herd.lost = {2, 3}
    herd.passes(SILENT_S - 1)
    assert herd.databases.hold is None
    herd.passes(2)
    assert FAILED in (herd.is_(2), herd.is_(3))
    hold = herd.databases.hold
    assert hold is not None
    assert (hold.gid, hold.cause) == (7, "PH001 in rows")
    herd.lost = set()
    herd.passes(5 * SILENT_S)  # whoever has failed is not heard of as one that is rebuilt
    assert herd.databases.hold is not None
    herd.say(2, WHOLE)
    assert herd.databases.hold is None


def test_one_that_has_stopped_and_fell_silent_can_still_go_on_when_the_entry_is_skipped() -> None:
    herd = Herd()
    for member in (2, 3):
        herd.say(member, DIVERGED, "PH001 in rows")
    herd.lost = {2, 3}
    herd.passes(SILENT_S + 1)
    assert herd.databases.hold is not None
    assert herd.databases.stopped_at(7) == (2, 3)


def test_nobody_is_judged_while_two_are_whole_or_who_has_joined(herd: Herd) -> None:
    herd.say(3, WHOLE)
    herd.lost = {2}
    herd.passes(5 * SILENT_S)
    assert herd.is_(2) is REBUILDING
    joined = Herd()
    joined.databases.install(1, Members((1, 4)).numbers)
    joined.passes(5 * SILENT_S)
    assert joined.is_(4) is REBUILDING
    assert joined.databases.hold is None
