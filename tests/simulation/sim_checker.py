"""What must hold in every simulated history, checked after every event on the member it touched.

I1 one proposer per term                      I5 a commit is durable on a majority of its view
I2 term and vote never regress                I6 commit positions never regress
I3 terms never decrease in a log              I7 a term starts after all that lower terms committed
I4 committed blocks are the same everywhere   I8 nothing known to be committed is truncated
I19 a view is the same everywhere, and the memberships follow one another (V2)
I22 the half with the tie-breaker commits alone only the view that consists of it (Q2, C19)
I23 a vote or commit never rests on a disk that is no member's
I25 nobody trims what a voter needs, unless the world allows it

Members are told apart by their disks. The world checks K2, no commit below the start of the
proposer's term, D1, one write at a time, I26 and I30, bounds of queues and messages, and I28,
agreement in the end. Not checked: that anything happens at all before that.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from pgherd_sidecar.core.consensus import MEMBERSHIP, Block, LogIndex, Membership
from pgherd_sidecar.core.consensus.model.messages import Message, Vote, VoteRequest


class InvariantBroken(AssertionError):
    """A history that must not happen."""


def require(holds: bool, statement: str) -> None:
    """Fail unless `statement` holds."""
    if not holds:
        raise InvariantBroken(statement)


@dataclass
class Witnessed:
    """What is known of one disk, over all incarnations of its member."""

    name: str
    term: int = 0
    commit_position: int = 0
    #: blocks certain to survive a crash, by first position
    durable: dict[int, Block] = field(default_factory=dict)
    durable_last: int = 0
    #: blocks that were durable and are lost by damage: nobody can have known
    lost: dict[int, Block] = field(default_factory=dict)

    def lose(self, position: int) -> None:
        """Forget blocks after `position`, which damage has made an end of."""
        self.lost |= {first: b for first, b in self.durable.items() if first > position}
        self.truncate(position)

    def truncate(self, position: int) -> None:
        """Forget blocks after `position`."""
        while self.durable and self.durable_last > position:
            first, block = self.durable.popitem()
            if block.last <= position:
                self.durable[first] = block
                break
        self.durable_last = min(self.durable_last, position)

    def copy(self) -> "Witnessed":
        """Return what is known now, of a disk that is not lost."""
        return Witnessed(
            self.name, self.term, self.commit_position, dict(self.durable), self.durable_last
        )

    def log(self) -> list[Block]:
        """Return the durable blocks, newest first."""
        ends, blocks, position = {b.last: b for b in self.durable.values()}, [], self.durable_last
        while position in ends:
            blocks.append(ends[position])
            position = blocks[-1].first - 1
        return blocks

    def append(self, blocks: tuple[Block, ...]) -> None:
        """Note durable blocks."""
        for block in blocks:
            self.durable[block.first] = block
            self.durable_last = block.last


class Checker:
    """Everything that was ever promised by anybody."""

    def __init__(self, founded: Membership) -> None:
        self.disks: dict[str, Witnessed] = {}
        #: committed blocks by first position, the one true order
        self.chain: dict[int, Block] = {}
        self.committed_position = 0
        #: up to here the order is the log of the member that another cluster split off with
        self.inherited = 0
        #: memberships that are committed, oldest first
        self.memberships = [founded]
        #: last position first seen committed by a member in this term
        self._committed_in: dict[int, int] = {}
        self._proposers: dict[int, tuple[str, int]] = {}
        self._votes: dict[tuple[str, int], str] = {}

    def sent(self, disk: str, sender: str, receiver: str, message: Message) -> None:
        """Check what leaves a member."""
        match message:
            case Vote(term, False):
                self._voted(disk, term, receiver)
            case VoteRequest(term, False):
                self._voted(disk, term, sender)

    def _voted(self, voter: str, term: int, candidate: str) -> None:
        earlier = self._votes.setdefault((voter, term), candidate)
        require(earlier == candidate, f"I2: {voter} voted {earlier} and {candidate} in {term}")

    def promised(self, disk: str, term: int) -> None:
        """Check the term a member has on disk."""
        known = self.disks[disk]
        require(term >= known.term, f"I2: {disk} went back from term {known.term} to {term}")
        known.term = term

    def proposes(self, disk: str, incarnation: int, term: int, start: int) -> None:
        """Check a member that is proposer."""
        who = (disk, incarnation)
        if term in self._proposers:
            require(self._proposers[term] == who, f"I1: {self._proposers[term]}, {who} in {term}")
            return
        self._proposers[term] = who
        # A quorum may be in a higher term by now, and have committed there: that is no concern.
        committed = max((last for at, last in self._committed_in.items() if at < term), default=0)
        require(start > committed, f"I7: {disk} starts at {start} in {term}; {committed} committed")

    def truncated(self, disk: str, position: int) -> None:
        """Check a truncation on disk."""
        known = self.disks[disk]
        require(
            position >= known.commit_position,
            f"I8: {disk} truncates to {position}, it had committed {known.commit_position}",
        )
        known.truncate(position)

    def index(self, disk: str, index: LogIndex) -> None:
        """Check a log's term history."""
        terms = [term for term, _ in index.history]
        require(terms == sorted(set(terms)), f"I3: {disk} has terms {terms}")

    def commits(self, disk: str, before: int, position: int) -> None:
        """Check a member's commit position against the one before."""
        known = self.disks[disk]
        require(position >= before, f"I6: {disk} went back to commit {position}")
        known.commit_position = max(known.commit_position, position)

    def committed(self, disk: str, term: int, block: Block, ahead: tuple[Membership, ...]) -> None:
        """Check a block that a member, in its `term`, holds committed.

        Args:
            disk: whose.
            term: the member's.
            block: the next one of the order, or one that is known.
            ahead: memberships after the block, which the member holds committed too.
        """
        known = self.chain.get(block.first)
        if known is not None:
            require(known == block, f"I4: {disk} committed {block}, another {known}")
            return
        require(
            block.first == self.committed_position + 1,
            f"I4: {disk} committed {block.first} after {self.committed_position}",
        )
        if block.kind == MEMBERSHIP:
            self._install(Membership.decode(block.data))
        self._durable(disk, block, ahead)
        self.chain[block.first] = block
        self.committed_position = self._committed_in[term] = block.last

    def split(self, seed: Witnessed, view: Block) -> "Checker":
        """Return the checker of a cluster that splits off with a log, and this view after it.

        All of that log counts as committed there.
        """
        other, log = Checker(Membership.decode(view.data)), seed.log()
        first = log[-1].first if log else seed.durable_last + 1
        other.chain = {at: block for at, block in self.chain.items() if block.last < first}
        other.chain |= {block.first: block for block in (*log, view)}
        other.committed_position = other.inherited = view.last
        other._committed_in[view.term] = view.last
        return other

    def trimmed(self, receiver_disk: str, membership: Membership) -> None:
        """Check a voter that is told that what it needs has been trimmed."""
        disks = {voter.disk for view in membership.views for voter in view.members}
        require(receiver_disk not in disks, f"I25: what {receiver_disk} needs was trimmed")

    # ---- memberships -----------------------------------------------------------------------

    def _install(self, membership: Membership) -> None:
        """I19: a joint one begins with the view in force, its second view then stands alone."""
        before = self.memberships[-1]
        follows = membership.views[0] == before.views[-1]
        require(follows, f"I19: {membership} after {before}")
        numbers = [view.generation for view in membership.views]
        require(len(numbers) == 1 or numbers[1] == numbers[0] + 1, f"I19: views {numbers}")
        require(not (before.joint and membership.joint), f"I19: {membership} after {before}")
        self.memberships.append(membership)

    def _durable(self, disk: str, block: Block, ahead: tuple[Membership, ...]) -> None:
        """I5, I22, I23: enough disks hold the block, by the membership at its position.

        Disks that were lost meanwhile count: nobody can have known.
        """
        holders = {
            disk: known.name
            for disk, known in self.disks.items()
            if block in (known.durable.get(block.first), known.lost.get(block.first))
        }
        now = self.memberships[-1]
        enough = []
        for view in now.views:
            held = {m.name for m in view.members if not m.disk or m.disk in holders}
            held &= set(holders.values())
            enough.append(view.has_majority(held))
        halved = any(_by_half(later, holders.values()) for later in (now, *ahead))
        # The old view of a joint membership counts for the entry that installs it, and later only
        # until the new view stands alone in the proposer's log, which can't be told from here.
        needed = enough if block.last == now.position else enough[-1:]
        fine = all(needed) or halved
        require(fine, f"I5: {disk} committed {block.first}, durable on {sorted(holders)}: {now}")


def _by_half(membership: Membership, holders: Collection[str]) -> bool:
    """Tell whether this shrinks a view to its half, all of which hold what is in question."""
    if not membership.joint or not membership.views[0].halves_to(membership.views[1]):
        return False
    return all(voter in holders for voter in membership.views[1].voters)
