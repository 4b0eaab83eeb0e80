"""Blocks of the log, and the index that says which term wrote which positions.

A `Block` is what one proposer appended in one go: consecutive entries whose bytes mean nothing
to the log. Every block names the term of its proposer, so the *term history* of a member, the
list of (term, start position) that Neon keeps beside its WAL, is not stored a second time: it is
a summary of the blocks and can't disagree with them.

Log matching: two logs that hold a block of the same term at the same position are equal up to
the end of that block. Blocks are never split, so logs diverge at block boundaries only.

Nothing here does IO. `LogIndex` is built by the storage when it opens, kept up to date by the
core, and lost at a restart.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from pgherd_sidecar.core.log.errors import LocalProtocolError

_IDENTITY = Struct(">QQI")

#: (term, first position written in that term)
TermStart = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive entries, `first` to `last`, appended by the proposer of `term`.

    `crc` covers the identity as well as the data, so that a block read from the wrong place is
    noticed like a damaged one. It is computed once, by the proposer that makes the block.
    """

    term: int
    first: int
    count: int
    data: bytes
    crc: int

    @classmethod
    def make(cls, term: int, first: int, count: int, data: bytes) -> "Block":
        """Return a new block with its checksum."""
        return cls(term, first, count, data, checksum(term, first, count, data))

    @property
    def last(self) -> int:
        """The position of the last entry."""
        return self.first + self.count - 1

    def intact(self) -> bool:
        """Tell whether the checksum fits."""
        return self.crc == checksum(self.term, self.first, self.count, self.data)


def checksum(term: int, first: int, count: int, data: bytes) -> int:
    """Return the CRC-32 of a block's identity and data."""
    return crc32(data, crc32(_IDENTITY.pack(term, first, count)))


class LogIndex:
    """Which term wrote which positions of one member's log.

    Positions up to `base` were trimmed away; they are committed, and the term of `base` itself
    is still known. The log holds `base + 1` to `last`. Terms never decrease (I3).

    Args:
        history: (term, start) of each term in the log, oldest first.
        last: the last position, 0 for an empty log.
        base: the last position trimmed away, 0 if nothing was.
    """

    __slots__ = ("_starts", "_terms", "base", "last")

    def __init__(self, history: Iterable[TermStart] = (), last: int = 0, base: int = 0) -> None:
        entries = tuple(history)
        self._terms = [term for term, _ in entries]
        self._starts = [start for _, start in entries]
        self.last = last
        self.base = base

    @property
    def last_term(self) -> int:
        """The term of the last block, 0 for an empty log."""
        return self._terms[-1] if self._terms else 0

    @property
    def history(self) -> tuple[TermStart, ...]:
        """(term, start) of each term in the log, oldest first."""
        return tuple(zip(self._terms, self._starts, strict=True))

    def copy(self) -> "LogIndex":
        """Return an index of its own for another owner."""
        return LogIndex(self.history, self.last, self.base)

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

    def append(self, block: Block) -> None:
        """Account for a block appended at the end.

        Raises:
            LocalProtocolError: the block leaves a gap or goes back in terms.
        """
        if block.first != self.last + 1 or block.term < self.last_term:
            raise LocalProtocolError(
                f"block {block.term}/{block.first} can't follow {self.last_term}/{self.last}"
            )
        if block.term != self.last_term:
            self._terms.append(block.term)
            self._starts.append(block.first)
        self.last = block.last

    def truncate(self, position: int) -> None:
        """Forget everything after `position`."""
        if position < self.base:
            raise LocalProtocolError(f"truncation to {position} below the trimmed {self.base}")
        self.last = min(self.last, position)
        while self._starts and self._starts[-1] > position:
            self._starts.pop()
            self._terms.pop()

    def trim(self, position: int) -> None:
        """Forget everything before `position`, but keep the term of `position` itself."""
        self.base = max(self.base, min(position, self.last))
        keep = bisect_right(self._starts, self.base) - 1
        if keep > 0:
            del self._starts[:keep]
            del self._terms[:keep]

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
