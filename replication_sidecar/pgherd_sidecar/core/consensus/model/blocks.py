"""Blocks of the log, and the index that says which term wrote which positions, and who votes.

A `Block` is what one proposer appended in one go: consecutive entries whose bytes mean nothing
to the log. Every block names the term of its proposer, so the *term history* of a member, the
list of (term, start position) that Neon keeps beside its WAL, is not stored a second time: it is
a summary of the blocks and can't disagree with them. Neither are memberships: each is the data of
a block of its own, of the kind `MEMBERSHIP`.

Log matching: two logs that hold a block of the same term at the same position are equal up to
the end of that block. Blocks are never split, so logs diverge at block boundaries only.

Nothing here does IO. `LogIndex` is built by the storage when it opens, kept up to date by the
core, and lost at a restart.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from zlib import crc32

import msgspec

from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError, RemoteProtocolError
from pgherd_sidecar.core.consensus.model.quorum import Membership

_IDENTITY = Struct(">QQI")

#: kinds of blocks: the callers' entries, or one membership of the log's own
ENTRIES, MEMBERSHIP = 0, 1
#: in binary forms the kind is the upper bit of the count
KIND_SHIFT = 31
COUNT_MASK = (1 << KIND_SHIFT) - 1

#: (term, first position written in that term)
TermStart = tuple[int, int]


class Block(msgspec.Struct, frozen=True, gc=False):
    """Consecutive entries, `first` to `last`, appended by the proposer of `term`.

    `crc` covers the identity as well as the data, so that a block read from the wrong place is
    noticed like a damaged one. It is computed once, by the proposer that makes the block.
    """

    term: int
    first: int
    count: int
    data: bytes
    crc: int
    kind: int = ENTRIES

    @classmethod
    def make(cls, term: int, first: int, count: int, data: bytes, kind: int = ENTRIES) -> "Block":
        """Return a new block with its checksum."""
        crc = checksum(term, first, count | kind << KIND_SHIFT, data)
        return cls(term, first, count, data, crc, kind)

    @property
    def last(self) -> int:
        """The position of the last entry."""
        return self.first + self.count - 1

    def intact(self) -> bool:
        """Tell whether the checksum fits."""
        return self.crc == checksum(self.term, self.first, self.kind_and_count, self.data)

    @property
    def kind_and_count(self) -> int:
        """Kind and count as binary forms have them, in one number."""
        return self.count | self.kind << KIND_SHIFT


def checksum(term: int, first: int, kind_and_count: int, data: bytes) -> int:
    """Return the CRC-32 of a block's identity and data."""
    return crc32(data, crc32(_IDENTITY.pack(term, first, kind_and_count)))


@dataclass(frozen=True, slots=True)
class LogBase:
    """Where a log begins that does not hold everything: after `position`, which is committed.

    All that has to be known of what came before: the term of `position`, and who votes.
    """

    position: int = 0
    term: int = 0
    membership: Membership = field(default_factory=Membership)


class LogIndex:
    """Which term wrote which positions of one member's log, and which memberships are in it.

    Positions up to `base` were trimmed away; they are committed, and the term of `base` itself
    is still known. The log holds `base + 1` to `last`. Terms never decrease (I3).

    Args:
        history: (term, start) of each term in the log, oldest first.
        last: the last position, 0 for an empty log.
        base: the last position trimmed away, 0 if nothing was.
        memberships: those that the log holds and the newest before them, oldest first.

    Attributes:
        membership: the newest in the log: the one that counts [V1].
    """

    __slots__ = ("_memberships", "_starts", "_terms", "base", "last", "membership")

    def __init__(
        self,
        history: Iterable[TermStart] = (),
        last: int = 0,
        base: int = 0,
        memberships: Iterable[Membership] = (),
    ) -> None:
        entries = tuple(history)
        self._terms = [term for term, _ in entries]
        self._starts = [start for _, start in entries]
        self.last = last
        self.base = base
        self._memberships = list(memberships) or [Membership()]
        self.membership = self._memberships[-1]

    @classmethod
    def beginning(cls, base: LogBase) -> "LogIndex":
        """Return the index of an empty log that begins after `base`."""
        history = [(base.term, base.position)] if base.position else []
        return cls(history, base.position, base.position, [base.membership])

    @property
    def last_term(self) -> int:
        """The term of the last block, 0 for an empty log."""
        return self._terms[-1] if self._terms else 0

    @property
    def history(self) -> tuple[TermStart, ...]:
        """(term, start) of each term in the log, oldest first."""
        return tuple(zip(self._terms, self._starts, strict=True))

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """The memberships in the log and the newest before them, oldest first."""
        return tuple(self._memberships)

    def copy(self) -> "LogIndex":
        """Return an index of its own for another owner."""
        return LogIndex(self.history, self.last, self.base, self._memberships)

    def base_at(self, position: int) -> LogBase:
        """Return what a log has to know that begins after `position`.

        Raises:
            LocalProtocolError: the position is not in the log.
        """
        found = [m for m in self._memberships if m.position <= position]
        return LogBase(position, self.term_at(position), found[-1] if found else Membership())

    def term_at(self, position: int) -> int:
        """Return the term that wrote `position`, 0 for position 0.

        Raises:
            LocalProtocolError: the position is not in the log.
        """
        if position == 0:
            return 0
        if not self.base <= position <= self.last:
            raise LocalProtocolError(f"no term known at position {position}")
        return self._terms[bisect_right(self._starts, position) - 1]

    def contradicts(self, base: LogBase) -> bool:
        """Tell whether another block is committed where this log holds one [T4].

        Then that block, and all that follows it here, can never be committed.
        """
        within = self.base < base.position <= self.last
        return within and self.term_at(base.position) != base.term

    def append(self, block: Block) -> None:
        """Account for a block appended at the end.

        Raises:
            LocalProtocolError: the block leaves a gap or goes back in terms.
            RemoteProtocolError: it claims to install what is no membership.
        """
        if block.first != self.last + 1 or block.term < self.last_term:
            raise LocalProtocolError(
                f"block {block.term}/{block.first} can't follow {self.last_term}/{self.last}"
            )
        if block.kind == MEMBERSHIP:
            self._install(block)
        if block.term != self.last_term:
            self._terms.append(block.term)
            self._starts.append(block.first)
        self.last = block.last

    def _install(self, block: Block) -> None:
        membership = Membership.decode(block.data)
        if membership.position != block.last or not membership.views:
            raise RemoteProtocolError(f"the membership at {block.first} belongs elsewhere")
        self._memberships.append(membership)
        self.membership = membership

    def truncate(self, position: int) -> None:
        """Forget everything after `position`."""
        if position < self.base:
            raise LocalProtocolError(f"truncation to {position} below the trimmed {self.base}")
        self.last = min(self.last, position)
        while self._starts and self._starts[-1] > position:
            self._starts.pop()
            self._terms.pop()
        while self._memberships[-1].position > position:
            self._memberships.pop()
        self.membership = self._memberships[-1]

    def trim(self, position: int) -> None:
        """Forget everything before `position`, but keep the term of `position` itself."""
        self.base = max(self.base, min(position, self.last))
        keep = bisect_right(self._starts, self.base) - 1
        if keep > 0:
            del self._starts[:keep]
            del self._terms[:keep]
        older = sum(membership.position <= self.base for membership in self._memberships)
        del self._memberships[: max(older - 1, 0)]

    def common_point(self, history: Sequence[TermStart], last: int) -> int:
        """Return the highest position at which this log and another are equal.

        Within one term all logs are prefixes of what its proposer wrote, so the newest term that
        both logs hold decides, and the shorter of its two runs is common.

        Args:
            history: the other log's term history.
            last: the other log's last position.
        """
        ends = _run_ends(history, last)
        for term, end in reversed(_run_ends(self.history, self.last).items()):
            if term in ends:
                return min(end, ends[term])
        return 0


def _run_ends(history: Sequence[TermStart], last: int) -> dict[int, int]:
    """Return the last position of each term of a history, oldest first."""
    ends: dict[int, int] = {}
    for i, (term, _) in enumerate(history):
        ends[term] = history[i + 1][1] - 1 if i + 1 < len(history) else last
    return ends
