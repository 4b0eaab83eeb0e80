"""Transactions under way, and what goes out because of them. Free of IO.

Times are seconds of the caller's clock.
"""

from array import array
from collections import deque
from dataclasses import dataclass, field
from math import inf

import msgspec

from pgherd_sidecar.core.commit.answers import Session, SessionAnswer
from pgherd_sidecar.core.replication.entries import Writeset

_SUBMISSION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Bounds of local transactions.

    Attributes:
        row: largest request, in bytes: what one row may take.
        writeset: largest writeset that is ordered whole, in bytes.
        piece: bytes of a piece, more or less.
        transaction: bytes of all pieces of a transaction.
        keys: certification keys of a transaction in pieces, which all members hold in memory.
        wait_s: longest wait for a piece, or for a verdict.
    """

    row: int
    writeset: int
    piece: int
    transaction: int
    keys: int
    wait_s: float


@dataclass(slots=True, eq=False)
class UnderWay:
    """A transaction of which an entry may be under way.

    Attributes:
        session: waits for an answer; None when none does. Then a writeset is under way all the
            same, and if it commits it is applied as if remote.
        encoded: the entry under way, empty if there is none.
        deadline_s: when the wait for it has lasted too long.
        sent_s: when it was submitted last.
    """

    xid: int
    pid: int
    session: Session | None
    encoded: bytes
    deadline_s: float
    sent_s: float


@dataclass(slots=True, eq=False)
class Transaction(UnderWay):
    """One whose writeset is under way.

    Attributes:
        slots: the keys without their modes, to find conflicts fast.
        began_s: when it was requested.
    """

    writeset: Writeset
    keys: "array[int]"
    slots: frozenset[int]
    began_s: float


@dataclass(slots=True, eq=False)
class Pieces(UnderWay):
    """One of which pieces are ordered before its writeset.

    Attributes:
        session: None once its writeset is under way, or it is given up.
        number: of the next piece.
        queue: the rest of the request under way, as flags and data.
        refusal: what the next request is told, because the transaction is in the way.
    """

    serial: int
    number: int = 0
    size_bytes: int = 0
    keys: int = 0
    queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    refusal: str = ""


class Submission(msgspec.Struct, frozen=True):
    """Entries to be submitted to the log together.

    Attributes:
        data: the encoded entries.
        sent: the transactions that they are of, to be given to ``Outgoing.keep`` if the log
            could not take them.
    """

    data: bytes
    sent: list[UnderWay]


class Outgoing:
    """What is to be told to sessions and submitted to the log, until the caller takes it.

    Attributes:
        answers: in the order in which they were found.
        unsent: whose entries are to be submitted.
    """

    def __init__(self) -> None:
        self.answers: list[SessionAnswer] = []
        self.unsent: list[UnderWay] = []

    def take_answers(self) -> list[SessionAnswer]:
        """What sessions are to be told, in this order."""
        answers, self.answers = self.answers, []
        return answers

    def take_submissions(self, now: float) -> list[Submission]:
        """What to submit to the log, in parts that are not too large for one message."""
        if not self.unsent:
            return []
        unsent, self.unsent = self.unsent, []
        submissions: list[Submission] = []
        part: list[UnderWay] = []
        size = 0
        for one in dict.fromkeys(unsent):
            if part and size + len(one.encoded) > _SUBMISSION_BYTES:
                submissions.append(_submission(part))
                part, size = [], 0
            one.sent_s = now
            part.append(one)
            size += len(one.encoded)
        submissions.append(_submission(part))
        return submissions

    def keep(self, sent: list[UnderWay]) -> None:
        """A submission was not possible now: it is handed out again with the next tick."""
        for one in sent:
            one.sent_s = -inf


def _submission(part: list[UnderWay]) -> Submission:
    return Submission(b"".join([one.encoded for one in part]), part)
