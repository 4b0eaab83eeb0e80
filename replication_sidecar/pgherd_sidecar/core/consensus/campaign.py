"""One candidacy: pre-vote, vote, and recovery of the log from the most advanced voter.

Votes are given without regard to the candidate's log. Instead the winner takes over the most
advanced log of its vote quorum, in (last term, last position) order, before it orders anything:
whatever was committed is in that log [R1]. So a member may become proposer from any position.

Which votes are a quorum is said by the membership in that most advanced log, not by the
candidate's own, which may be older [V4].

A campaign serves one term and is lost by a restart.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pgherd_sidecar.core.consensus.model.blocks import Block
from pgherd_sidecar.core.consensus.model.errors import RemoteProtocolError
from pgherd_sidecar.core.consensus.model.messages import FetchReply, Vote
from pgherd_sidecar.core.consensus.roles import Role
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper
from pgherd_sidecar.core.consensus.submissions import Submissions


class Campaign:
    """A candidate's votes in one term, or pre-votes for it."""

    proposer: Final = None
    queue: Final = None

    def __init__(self, name: str, term: int, *, pre: bool) -> None:
        self.role: Final = Role.PRECANDIDATE if pre else Role.CANDIDATE
        self.term = term
        self.pre = pre
        self._name = name
        self._votes: dict[str, Vote] = {}

    def count(self, voter: str, vote: Vote) -> bool:
        """Count a vote; True if the campaign has a quorum."""
        if vote.term == self.term and vote.pre == self.pre:
            self._votes[voter] = vote
        if self._name not in self._votes:
            return False
        membership = self._votes[self._donor()].membership
        valid = [v for v, vote in self._votes.items() if membership.knows(v, vote.disk)]
        electable = self._name in membership.voters and self._name in valid
        return electable and membership.has_quorum(valid)

    def recovery(self, keeper: Safekeeper, max_queue_bytes: int) -> "Recovery | None":
        """Choose the donor and drop what its log doesn't share; None if that can't be told.

        All that is committed is in the donor's log, even if the donor has trimmed it since: then
        the two may have no term in common any more though all of this log was committed.

        Args:
            keeper: of the log.
            max_queue_bytes: bound of what may be submitted meanwhile.
        """
        donor = self._donor()
        vote = self._votes[donor]
        if donor != self._name:
            common = keeper.index.common_point(vote.history, vote.last_position)
            beginning = vote.history[0][1] if vote.history else 0
            if common == 0 and keeper.index.last > 0 and beginning > 1:
                return None
            keeper.truncate(max(common, keeper.commit_position))
        return Recovery(donor, vote.last_position, Submissions(max_queue_bytes))

    def _donor(self) -> str:
        return max(self._votes, key=self._advancement)

    def _advancement(self, voter: str) -> tuple[int, int, bool]:
        vote = self._votes[voter]
        last_term = vote.history[-1][0] if vote.history else 0
        return last_term, vote.last_position, voter == self._name


@dataclass(frozen=True, slots=True)
class Recovery:
    """The log that an elected member takes over: the donor's, up to `target`.

    `queue` has what is submitted meanwhile.
    """

    role: ClassVar[Literal[Role.RECOVERING]] = Role.RECOVERING
    proposer: ClassVar[None] = None
    donor: str
    target: int
    queue: Submissions

    def append_fetched(self, reply: FetchReply, keeper: Safekeeper) -> bool:
        """Append fetched blocks; False if the donor can't help, having trimmed its log.

        Raises:
            RemoteProtocolError: these are not the blocks of the donor's log.
        """
        if reply.first != keeper.index.last + 1:
            return True
        check_chain(reply.blocks, reply.first, keeper.index.last_term, reply.term)
        for block in reply.blocks:
            if block.last <= self.target:
                keeper.append(block)
        return bool(reply.blocks)

    def recovered(self, keeper: Safekeeper) -> bool:
        """Tell whether the log holds all of the donor's."""
        return keeper.index.last >= self.target


def check_chain(blocks: tuple[Block, ...], first: int, after_term: int, term: int) -> None:
    """Check that blocks follow one another from `first`, with terms from `after_term` to `term`.

    Raises:
        RemoteProtocolError: they don't.
    """
    for block in blocks:
        if block.first != first or block.count < 1 or not after_term <= block.term <= term:
            raise RemoteProtocolError(f"block {block.term}/{block.first} out of place at {first}")
        first += block.count
        after_term = block.term
