"""What must hold in every simulated history, checked after every event on the member it touched.

I1 one proposer per term                      I5 a commit is durable on a quorum
I2 term and vote never regress                I6 commit positions never regress
I3 terms never decrease in a log              I7 a term starts after all that lower terms committed
I4 committed blocks are the same everywhere   I8 nothing known to be committed is truncated

The world itself checks C2, no commit below the start of the proposer's term, and D1, one write at a
time. Not checked here: that anything happens at all; that is the liveness phase of the world.
"""

from dataclasses import dataclass, field

from pgherd_sidecar.core.log import Block, LogIndex
from pgherd_sidecar.core.log.messages import Message, Vote, VoteRequest


class InvariantBroken(AssertionError):
    """A history that must not happen."""


def require(holds: bool, statement: str) -> None:
    """Fail unless `statement` holds."""
    if not holds:
        raise InvariantBroken(statement)


@dataclass
class Witnessed:
    """What is known of one member, over all its incarnations."""

    term: int = 0
    commit_position: int = 0
    #: blocks certain to survive a crash, by first position
    durable: dict[int, Block] = field(default_factory=dict)
    durable_last: int = 0

    def truncate(self, position: int) -> None:
        """Forget blocks after `position`."""
        self.durable = {first: b for first, b in self.durable.items() if b.last <= position}
        self.durable_last = min(self.durable_last, position)

    def append(self, blocks: tuple[Block, ...]) -> None:
        """Note durable blocks."""
        for block in blocks:
            self.durable[block.first] = block
            self.durable_last = block.last


class Checker:
    """Everything that was ever promised by anybody."""

    def __init__(self, names: list[str]) -> None:
        self.members = {name: Witnessed() for name in names}
        #: committed blocks by first position, the one true order
        self.chain: dict[int, Block] = {}
        self.committed_position = 0
        #: last position first seen committed by a member in this term
        self._committed_in: dict[int, int] = {}
        self._proposers: dict[int, tuple[str, int]] = {}
        self._votes: dict[tuple[str, int], str] = {}

    def sent(self, sender: str, receiver: str, message: Message) -> None:
        """Check what leaves a member."""
        match message:
            case Vote(term, False):
                self._voted(sender, term, receiver)
            case VoteRequest(term, False):
                self._voted(sender, term, sender)

    def _voted(self, voter: str, term: int, candidate: str) -> None:
        earlier = self._votes.setdefault((voter, term), candidate)
        require(earlier == candidate, f"I2: {voter} voted {earlier} and {candidate} in {term}")

    def promised(self, name: str, term: int) -> None:
        """Check the term a member has on disk."""
        member = self.members[name]
        require(term >= member.term, f"I2: {name} went back from term {member.term} to {term}")
        member.term = term

    def proposes(self, name: str, incarnation: int, term: int, start: int) -> None:
        """Check a member that is proposer."""
        who = (name, incarnation)
        if term in self._proposers:
            require(self._proposers[term] == who, f"I1: {self._proposers[term]}, {who} in {term}")
            return
        self._proposers[term] = who
        # A quorum may be in a higher term by now, and have committed there: that is no concern.
        committed = max((last for at, last in self._committed_in.items() if at < term), default=0)
        require(start > committed, f"I7: {name} starts at {start} in {term}; {committed} committed")

    def truncated(self, name: str, position: int) -> None:
        """Check a truncation on disk."""
        member = self.members[name]
        require(
            position >= member.commit_position,
            f"I8: {name} truncates to {position}, it had committed {member.commit_position}",
        )
        member.truncate(position)

    def index(self, name: str, index: LogIndex) -> None:
        """Check a log's term history."""
        terms = [term for term, _ in index.history]
        require(terms == sorted(set(terms)), f"I3: {name} has terms {terms}")

    def commits(self, name: str, incarnation_commit: int, position: int) -> None:
        """Check a member's commit position against the one before."""
        member = self.members[name]
        require(position >= incarnation_commit, f"I6: {name} went back to commit {position}")
        member.commit_position = max(member.commit_position, position)

    def committed(self, name: str, term: int, block: Block, quorum: int) -> None:
        """Check a block that a member, in its `term`, holds committed."""
        known = self.chain.get(block.first)
        if known is not None:
            require(known == block, f"I4: {name} committed {block}, another {known}")
            return
        require(
            block.first == self.committed_position + 1,
            f"I4: {name} committed {block.first} after {self.committed_position}",
        )
        holders = [n for n, m in self.members.items() if m.durable.get(block.first) == block]
        require(len(holders) >= quorum, f"I5: {name} committed {block.first}, durable on {holders}")
        self.chain[block.first] = block
        self.committed_position = self._committed_in[term] = block.last
