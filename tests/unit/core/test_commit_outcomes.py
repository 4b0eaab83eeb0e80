"""What is remembered of transactions by their tokens, and for how long."""

from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.commit.outcomes import Outcomes
from pgherd_sidecar.core.replication.entries import Writeset
from pgherd_sidecar.core.replication.state import Decision, DecisionKind

COMMIT = Decision(DecisionKind.COMMIT)
ABORT = Decision(DecisionKind.ABORT, Conflict(AbortReason.CONFLICT, 4, 9))


def writeset(xid: int) -> Writeset:
    return Writeset(2, 3, xid, 1, xid, 0, b"", b"[]")


def test_the_outcome_of_a_token() -> None:
    outcomes = Outcomes()
    outcomes.note_writeset(7, writeset(100), COMMIT)
    outcomes.note_writeset(8, writeset(101), ABORT)
    assert [outcomes.of(f"2.3.{xid}") for xid in (100, 101, 102)] == [
        "committed 7",
        "aborted",
        "unknown",
    ]
    assert outcomes.of("1.3.100") == outcomes.of("2.4.100") == "unknown"


def test_a_copy_does_not_change_the_outcome() -> None:
    outcomes = Outcomes()
    outcomes.note_writeset(7, writeset(100), COMMIT)
    outcomes.note_writeset(9, writeset(100), Decision(DecisionKind.DUPLICATE, first_gid=7))
    assert outcomes.of("2.3.100") == "committed 7"


def test_the_newest_are_remembered_and_the_oldest_forgotten() -> None:
    outcomes = Outcomes(remembered=10)
    for xid in range(1, 101):
        outcomes.note_writeset(xid, writeset(xid), COMMIT)
    known = [xid for xid in range(1, 101) if outcomes.of(f"2.3.{xid}") != "unknown"]
    assert 5 <= len(known) <= 10
    assert known == list(range(known[0], 101))
