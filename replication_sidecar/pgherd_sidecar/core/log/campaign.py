"""One candidacy: pre-vote, vote, and recovery of the log from the most advanced voter.

Votes are given without regard to the candidate's log. Instead the winner takes over the most
advanced log of its vote quorum, in (last term, last position) order, before it orders anything:
whatever was committed is in that log [R1]. So a member may become proposer from any position.

Which votes are a quorum is said by the membership in that most advanced log, not by the
candidate's own, which may be older [V4].

Called by `LogMember` only; a campaign serves one term and is lost by a restart.
"""

from dataclasses import dataclass

from pgherd_sidecar.core.log.blocks import Block
from pgherd_sidecar.core.log.errors import RemoteProtocolError
from pgherd_sidecar.core.log.messages import FetchReply, Vote
from pgherd_sidecar.core.log.safekeeper import Safekeeper


@dataclass(frozen=True, slots=True)
class Recovery:
    """The log to take over: the donor's, up to `target`."""

    donor: str
    target: int


class Campaign:
    """A candidate's votes in one term, then the recovery of its log."""

    def __init__(self, name: str, term: int, pre: bool) -> None:
        self.term = term
        self.pre = pre
        self.recovery: Recovery | None = None
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

    def start_recovery(self, keeper: Safekeeper) -> bool:
        """Choose the donor and drop what its log doesn't share; False if that can't be told.

        What is committed is in the donor's log, even if the donor has trimmed it away since: then
        the two may have no term in common any more though all of this log was committed.
        """
        donor = self._donor()
        vote = self._votes[donor]
        if donor != self._name:
            common = keeper.index.common_point(vote.history, vote.last_position)
            beginning = vote.history[0][1] if vote.history else 0
            if common == 0 and keeper.index.last > 0 and beginning > 1:
                return False
            keeper.truncate(max(common, keeper.commit_position))
        self.recovery = Recovery(donor, vote.last_position)
        return True

    def _donor(self) -> str:
        return max(self._votes, key=self._advancement)

    def _advancement(self, voter: str) -> tuple[int, int, bool]:
        vote = self._votes[voter]
        last_term = vote.history[-1][0] if vote.history else 0
        return last_term, vote.last_position, voter == self._name

    def take(self, reply: FetchReply, keeper: Safekeeper) -> bool:
        """Append fetched blocks; False if the donor can't help, having trimmed its log.

        Raises:
            RemoteProtocolError: these are not the blocks of the donor's log.
        """
        if self.recovery is None or reply.first != keeper.index.last + 1:
            return True
        check_chain(reply.blocks, reply.first, keeper.index.last_term, reply.term)
        for block in reply.blocks:
            if block.last <= self.recovery.target:
                keeper.append(block)
        return bool(reply.blocks)

    def recovered(self, keeper: Safekeeper) -> bool:
        """Tell whether the log holds all of the donor's."""
        return self.recovery is not None and keeper.index.last >= self.recovery.target


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
