"""Decides the entries of the log, one after the other, whatever their size. Free of IO.

There is one way from an entry to its decision::

    decision = decider.decide(gid, entry, keys, now)
    if decision is None:                        its keys came in pieces, before it
        large = decider.large
        while large.wants_pieces:
            for _ in large.take_pieces(pieces): ...     the next ones from the log, in steps
        for _ in large.conclude(): ...
        decision = decider.finish(large, now)

A small writeset carries its keys and is decided at once. The keys of a large one are read back from
the log by the caller. Millions of them take seconds, so that they are examined in steps of
milliseconds, between which the caller serves others. Only delivery waits: what comes after depends
on the decision. Sessions wait for a majority, which is there, so their deadlines stand still.
"""

from array import array
from collections.abc import Iterator, Sequence

from pgherd_sidecar.core.commit.outbox import Outbox
from pgherd_sidecar.core.replication.entries import (
    FLAG_PIECES,
    PIECE_KEYS,
    Entry,
    Piece,
    Writeset,
    key_array,
    pieces_body,
)
from pgherd_sidecar.core.replication.state import (
    Decision,
    Examination,
    OpenTransaction,
    ReplicatedState,
)


class LargeDecision:
    """The decision on one writeset in pieces, while it is being made.

    Attributes:
        gid: position of the writeset; its pieces are before it.
        writeset: the entry.
        identity: member, incarnation and serial, as its pieces have them.
        first: position of the first piece.
        examination: what has been found.
    """

    def __init__(
        self, gid: int, writeset: Writeset, opened: OpenTransaction, examination: Examination
    ) -> None:
        serial = pieces_body(writeset.body).serial
        self.gid = gid
        self.writeset = writeset
        self.identity = writeset.member, writeset.incarnation, serial
        self.first = opened.first
        self.examination = examination
        self._left = opened.key_pieces

    @property
    def wants_pieces(self) -> bool:
        """Whether keys are missing, and matter."""
        return self._left > 0 and self.examination.conflict is None

    def take_pieces(self, pieces: Sequence[Piece]) -> Iterator[None]:
        """Take the next pieces in order, at least one, in steps."""
        assert pieces, f"the log lacks pieces of the transaction at {self.gid}"
        for piece in pieces:
            if self.wants_pieces:
                self._left -= 1  # pieces with keys come first
                if piece.flags & PIECE_KEYS:
                    yield from self.examination.take_groups(key_array(piece.data))

    def conclude(self) -> Iterator[None]:
        """Find the verdict after the last keys, in steps."""
        return self.examination.find_verdict()


class Decider:
    """Has the replicated state decide each entry.

    Invariant: while a large decision is made no other entry is delivered to the state.

    Args:
        state: nobody else delivers to it.
        outbox: whose deadlines stand still meanwhile.

    Attributes:
        large: the decision that is being made, None if there is none.
    """

    def __init__(self, state: ReplicatedState, outbox: Outbox) -> None:
        self.large: LargeDecision | None = None
        self._state = state
        self._outbox = outbox

    def decide(
        self, gid: int, entry: Entry, keys: "array[int] | None", now: float
    ) -> Decision | None:
        """Decide the next entry; None if pieces have to be read for that, see ``large``.

        Args:
            gid: its position, one above the last delivered one.
            entry: the entry.
            keys: the ``key_array`` of a writeset that carries its keys.
            now: the time.
        """
        assert self.large is None, f"entry {gid} comes during the decision on another one"
        if isinstance(entry, Writeset) and entry.flags & FLAG_PIECES:
            examined = self._state.examine(entry)
            if examined is not None:
                self.large = LargeDecision(gid, entry, *examined)
                self._outbox.pause_deadlines(now)
                return None
        return self._state.deliver(gid, entry, keys)

    def finish(self, large: LargeDecision, now: float) -> Decision:
        """Say what was decided, once all that it wants was examined: the state goes on."""
        assert large is self.large and not large.wants_pieces
        self.large = None
        self._outbox.resume_deadlines(now)
        return self._state.deliver(large.gid, large.writeset, examination=large.examination)
