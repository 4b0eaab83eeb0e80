"""Local transactions under way: what is submitted, answered and given up, and when.

The hook's tests (``agent/test_hook_server``) go through the outbox too; these are about time,
identities and effects.
"""

from array import array

import pytest
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.commit.answers import (
    Aborted,
    Committed,
    Failed,
    GivenUp,
    PieceOrdered,
    SessionAnswer,
)
from pgherd_sidecar.core.commit.outbox import Outbox
from pgherd_sidecar.core.commit.underway import TransactionLimits
from pgherd_sidecar.core.replication.entries import (
    FLAG_PIECES,
    PIECE_LAST,
    Entry,
    Piece,
    Writeset,
    iter_entries,
    pieces_body,
)

LIMITS = TransactionLimits(64 << 20, 32 << 20, 1000, 10_000, 100, wait_s=10.0)
LOST = Conflict(AbortReason.CONFLICT, 4, 9)
KEYS = array("q", [4, 1, 7 << 2 | 3])
A, B = "session a", "session b"


class Log:
    """An outbox, and all that it has submitted."""

    def __init__(self) -> None:
        self.outbox = Outbox(2, 5, LIMITS)

    def request(self, session: str | None, xid: int, now: float = 0.0) -> None:
        self.outbox.request(session, 70, xid, 0, KEYS, b"[]", now)

    def submitted(self, now: float = 0.0) -> list[Entry]:
        parts = self.outbox.out.take_submissions(now)
        return [entry for part in parts for entry in iter_entries(part.data)]

    def sequences(self, now: float = 0.0) -> list[int]:
        return [e.sequence for e in self.submitted(now) if isinstance(e, Writeset)]

    def deliver_piece(self, now: float = 0.0, *, counts: bool = True) -> Piece:
        [piece] = self.submitted(now)
        assert isinstance(piece, Piece)
        self.outbox.pieces.deliver_piece(piece, now, counts=counts)
        return piece

    def told(self) -> list[SessionAnswer]:
        return self.outbox.out.take_answers()


def failed(answers: list[SessionAnswer]) -> list[str]:
    return [answer.sqlstate for answer in answers if isinstance(answer, Failed)]


def test_requests_are_submitted_together_and_once() -> None:
    log = Log()
    log.request(A, 1)
    log.request(B, 2)
    [submission] = log.outbox.out.take_submissions(0.0)
    assert len(submission.sent) == 2
    assert log.outbox.out.take_submissions(0.0) == []


def test_a_writeset_names_the_oldest_one_that_is_not_delivered() -> None:
    log = Log()
    for xid in (1, 2, 3):
        log.request(None, xid)
    log.outbox.pop_delivered(1)
    log.request(None, 4)
    writesets = [entry for entry in log.submitted() if isinstance(entry, Writeset)]
    assert [writeset.low_water for writeset in writesets] == [1, 1, 1, 2]


def test_what_may_be_lost_is_submitted_again_after_a_while_and_not_before() -> None:
    log = Log()
    log.request(A, 1)
    assert log.sequences(0.0) == [1]
    log.outbox.tick(1.9)
    assert log.sequences(1.9) == []
    log.outbox.tick(2.1)
    assert log.sequences(2.1) == [1]


def test_what_the_log_could_not_take_is_submitted_with_the_next_tick() -> None:
    log = Log()
    log.request(A, 1)
    [submission] = log.outbox.out.take_submissions(0.0)
    log.outbox.out.keep(submission.sent)
    log.outbox.tick(0.1)
    assert log.sequences(0.1) == [1]


def test_what_is_delivered_is_submitted_no_more() -> None:
    log = Log()
    log.request(A, 1)
    log.submitted()
    log.outbox.pop_delivered(1)
    log.outbox.resubmit()
    log.outbox.tick(9.0)
    assert log.submitted(9.0) == []


def test_a_session_that_waits_too_long_hears_once_that_the_outcome_is_unknown() -> None:
    log = Log()
    log.request(A, 1)
    log.outbox.tick(9.9)
    assert log.told() == []
    log.outbox.tick(10.0)
    log.outbox.tick(20.0)
    [answer] = log.told()
    assert isinstance(answer, Failed)
    assert (answer.session, answer.sqlstate) == (A, "08007")
    assert "2.5.1" in answer.detail


def test_nobody_is_told_aborted_after_unknown() -> None:
    log = Log()
    log.request(A, 1)
    log.outbox.tick(10.0)
    transaction = log.outbox.pop_delivered(1)
    assert transaction is not None
    log.told()
    log.outbox.answer_abort(transaction, LOST)
    assert log.told() == []


def test_deadlines_stand_still_while_one_verdict_takes_long() -> None:
    log = Log()
    log.request(A, 1)
    log.outbox.pause_deadlines(5.0)
    log.outbox.tick(100.0)
    log.outbox.resume_deadlines(100.0)
    log.outbox.tick(104.9)
    assert log.told() == []
    log.outbox.tick(105.0)
    assert failed(log.told()) == ["08007"]


def test_a_verdict_says_how_long_its_session_has_waited() -> None:
    log = Log()
    log.request(A, 1, now=3.0)
    transaction = log.outbox.pop_delivered(1)
    assert transaction is not None
    log.outbox.answer_commit(transaction, 9, 8, None, 3.25)
    assert log.told() == [Committed(A, 9, 8, None, 0.25)]


def test_an_adopted_leak_is_answered_to_nobody() -> None:
    log = Log()
    log.request(None, 1)
    transaction = log.outbox.pop_delivered(1)
    assert transaction is not None
    log.outbox.answer_commit(transaction, 9, 8, None, 1.0)
    assert log.told() == []


def test_losers_are_told_if_a_key_of_theirs_was_taken() -> None:
    log = Log()
    log.request(A, 1)
    log.outbox.answer_losers({8}, lambda _: LOST)
    assert log.told() == []
    log.outbox.answer_losers({7}, lambda _: None)
    assert log.told() == []
    log.outbox.answer_losers({7}, lambda _: LOST)
    log.outbox.answer_losers(None, lambda _: LOST)
    [answer] = log.told()
    assert isinstance(answer, Aborted)
    assert 1 in log.outbox  # its writeset is ordered all the same


def test_the_session_that_resumes_is_answered_and_the_first_is_not() -> None:
    log = Log()
    log.request(A, 1)
    assert log.outbox.resume(B, 1)
    assert log.outbox.end_session(A) == 70
    assert log.outbox.awaits_verdict(70)
    assert log.outbox.end_session(B) == 70
    assert not log.outbox.awaits_verdict(70)
    assert not log.outbox.resume(A, 2)


def test_a_session_of_no_request_has_no_pid() -> None:
    assert Log().outbox.end_session(A) == 0


def test_pieces_go_one_at_a_time_and_the_writeset_names_them() -> None:
    log = Log()
    log.outbox.pieces.request_keys(A, 70, 1, KEYS, 0.0)
    log.deliver_piece()
    log.outbox.pieces.request_rows(A, 70, 1, b"x" * 2500, 0.0)
    assert [log.deliver_piece().number for _ in range(2)] == [1, 2]
    assert log.told() == [PieceOrdered(A)] * 2
    log.outbox.request_last(A, 70, 1, ("t",), 0.0)
    [writeset] = log.submitted()
    assert isinstance(writeset, Writeset)
    assert writeset.flags == FLAG_PIECES
    assert pieces_body(writeset.body).pieces == 3
    assert len(log.outbox.pieces.open) == 1
    log.outbox.pop_delivered(1)
    assert len(log.outbox.pieces.open) == 0


def test_a_piece_that_no_majority_confirms_fails_and_is_given_up() -> None:
    log = Log()
    log.outbox.pieces.request_rows(A, 70, 1, b"x", 0.0)
    log.submitted()
    log.outbox.tick(10.0)
    answers = log.told()
    assert failed(answers) == ["25006"]
    assert GivenUp(1, 0, 1) in answers
    assert log.deliver_piece(10.0).flags == PIECE_LAST
    assert len(log.outbox.pieces.open) == 0


def test_a_session_that_is_silent_between_pieces_is_given_up_late() -> None:
    log = Log()
    log.outbox.pieces.request_rows(A, 70, 1, b"x", 0.0)
    log.deliver_piece()
    log.outbox.tick(599.0)
    assert log.submitted(599.0) == []
    log.outbox.tick(600.0)
    assert log.deliver_piece(600.0).flags == PIECE_LAST


def test_a_piece_that_the_log_has_ruled_out_fails() -> None:
    log = Log()
    log.outbox.pieces.request_rows(A, 70, 1, b"x", 0.0)
    log.deliver_piece(counts=False)
    assert failed(log.told()) == ["40001"]


def test_what_is_given_up_before_its_first_piece_was_taken_leaves_nothing() -> None:
    log = Log()
    log.outbox.pieces.request_keys(A, 70, 1, array("q", [4, 200, *range(200)]), 0.0)
    assert failed(log.told()) == ["54000"]
    assert log.submitted() == []
    assert len(log.outbox.pieces.open) == 0


@pytest.mark.parametrize("under_way", [True, False])
def test_a_refused_sender_hears_it_at_once_or_with_its_next_piece(*, under_way: bool) -> None:
    log = Log()
    log.outbox.pieces.request_rows(A, 70, 1, b"x", 0.0)
    if not under_way:
        log.deliver_piece()
        log.told()
    assert log.outbox.sends_pieces(70)
    log.outbox.pieces.refuse_pieces(70)
    if not under_way:
        assert log.told() == []
        log.outbox.request_last(A, 70, 1, ("t",), 0.0)
    assert failed(log.told()) == ["40001"]
    assert not log.outbox.sends_pieces(70)


def test_the_end_of_the_server_gives_up_what_is_between_pieces() -> None:
    log = Log()
    log.outbox.pieces.request_rows(A, 70, 1, b"x", 0.0)
    log.deliver_piece()
    log.outbox.pieces.end_all()
    assert log.deliver_piece().flags == PIECE_LAST
