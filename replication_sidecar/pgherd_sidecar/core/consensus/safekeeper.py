"""The safekeeper half of a member: one log, one term, one vote.

It decides what may be appended and truncated, what may be acknowledged, and what is committed;
every member has one, the proposer's member too. It does not know roles, peers or time.

`Control` and the blocks survive a restart. A safekeeper starts from these and knows no
more of the commit position than was saved along.
"""

from itertools import takewhile

from pgherd_sidecar.core.consensus.journal import Journal
from pgherd_sidecar.core.consensus.model.blocks import Block, LogBase, LogIndex
from pgherd_sidecar.core.consensus.model.effects import Control
from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError
from pgherd_sidecar.core.consensus.model.messages import Append


class Safekeeper:
    """A member's log and promises.

    Invariants:
        I2: (term, vote) only moves to a higher term, or from no vote to a vote.
        I8: nothing at or below `commit_position` is truncated.
        `commit_position` <= flushed position.
        `matched` <= last position: up to there the log equals that of the term's proposer.
        `incomplete`: the log lacks what was acknowledged, in terms before this one only [D6].
        `abstains`: the caller can't rule out that it does; not remembered on disk.
        `behind`: the proposer's log begins after this position, and this one lacks what was before;
            0 if not so. The member needs a copy, and is no candidate until it has one [T3].
        `beginning`: of the proposer's log, when this one is behind.
    """

    def __init__(self, control: Control, index: LogIndex) -> None:
        if control.commit_position > index.last:
            raise LocalProtocolError(
                f"the log ends at {index.last} but {control.commit_position} was committed"
            )
        self.term = control.term
        self.vote = control.vote
        self.incomplete = control.incomplete
        self.abstains = False
        self.behind = 0
        self.beginning = LogBase()
        self.index = index
        self.commit_position = max(control.commit_position, index.base)
        self.matched = 0
        self.journal = Journal(control, index.last)
        self._commit_bound = 0

    @property
    def durable_term(self) -> int:
        """The term the disk knows of."""
        return self.journal.durable.term

    @property
    def ack_position(self) -> int:
        """How far the log is flushed and equal to the proposer's [A4]."""
        return min(self.matched, self.journal.flushed_position)

    def enter_term(self, term: int, vote: str | None) -> None:
        """Promise to ignore all lower terms, and to vote for nobody but `vote` in this one.

        Raises:
            LocalProtocolError: the promise contradicts an earlier one (I2).
        """
        if term < self.term or (term == self.term and self.vote not in (None, vote)):
            raise LocalProtocolError(f"promise {term}/{vote} after {self.term}/{self.vote}")
        if term > self.term:
            self.matched = 0
            self._commit_bound = 0
            self.journal.drop_held()
        self.term, self.vote = term, vote
        self._save()

    def accept(self, append: Append) -> bool:
        """Take blocks of the current term's proposer; False if they leave a gap [A2, A3].

        A block that the log holds already is skipped; the first one that differs truncates what
        the log has instead of it.
        """
        index, previous = self.index, append.prev_position
        if previous > self.commit_position and (
            previous > index.last or index.term_at(previous) != append.prev_term
        ):
            return False
        for block in append.blocks:
            if not self._holds(block):
                if block.first <= index.last:
                    self.truncate(block.first - 1)
                self.append(block)
            previous = block.last
        self.matched = max(self.matched, previous)
        return True

    def held(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Return those at the beginning that are this log's [A5].

        Blocks that were read before a truncation reached the disk may be former ones.
        """
        return tuple(takewhile(self._is_ours, blocks))

    def _is_ours(self, block: Block) -> bool:
        index = self.index
        within = index.base < block.first and block.last <= index.last
        return within and index.term_at(block.last) == block.term

    def _holds(self, block: Block) -> bool:
        return block.last <= self.commit_position or self._is_ours(block)

    def append(self, block: Block) -> None:
        """Append a block at the end of the log."""
        self.index.append(block)
        self.journal.append(block)

    def truncate(self, position: int) -> None:
        """Drop everything after `position`.

        Raises:
            LocalProtocolError: something committed would be lost (I8).
        """
        if position < self.commit_position:
            raise LocalProtocolError(
                f"truncation to {position} below the commit position {self.commit_position}"
            )
        self.index.truncate(position)
        self.journal.truncate(position)
        self.matched = min(self.matched, position)

    def bound_commit(self, bound: int) -> None:
        """Learn that up to `bound` the commit depends on this member's flush only [K3]."""
        self._commit_bound = max(self._commit_bound, bound)
        self.flushed()

    def _save(self) -> None:
        self.journal.save_control(
            Control(self.term, self.vote, self.commit_position, self.incomplete)
        )

    def flushed(self) -> None:
        """Commit what the latest flush allows, and note that the log is whole again, if it is."""
        self.commit_to(min(self.ack_position, self._commit_bound))
        if self.incomplete or self.abstains:
            self._complete()

    def _complete(self) -> None:
        """Vote again if this log equals that of the term's proposer up to the term's start [D6].

        That one was elected without this member, so it has all that was committed before, whatever
        it was that this member has lost.
        """
        position = self.ack_position
        if position >= max(self.index.base, 1) and self.index.term_at(position) == self.term:
            self.incomplete = self.abstains = False
            self._save()

    def commit_to(self, position: int) -> None:
        """Raise the commit position, as far as the own disk has it.

        A quorum may be faster than this member. Waiting for the own flush costs nothing that
        matters, and whoever delivers or saves a commit position finds its entries on disk.
        """
        position = min(position, self.journal.flushed_position)
        self.commit_position = max(self.commit_position, position)
