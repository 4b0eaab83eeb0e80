"""Gets damaged blocks of a member's log again from the others [D5].

A block is known by its term and its first position: one proposer wrote it, once. So whoever has a
block of this term at this place has the very same one, committed or not, and may be asked for it.
Nothing that the member says of its log is changed by the damage, so it goes on to vote and to
acknowledge: what it can't deliver, its peers can get from whoever it gets it from. Where perhaps
nobody else has the block it neither votes nor proposes, since no other log could go on from its.

One block is missing at a time, as far as is known: the next one is found when it is read. Called
by `LogMember` only. Lost by a restart, after which the damage is found again.
"""

from collections.abc import Sequence, Set
from math import inf

from pgherd_sidecar.core.log.blocks import Block, LogIndex
from pgherd_sidecar.core.log.messages import Mend, Mended


class Mending:
    """The search for one damaged block.

    Attributes:
        position: where the block starts, 0 if none is missing;
        since_s: and since when that is known.
        ask_s: when to ask the next peer.
        without: peers that have trimmed it.
    """

    def __init__(self, patience_s: float) -> None:
        self.position = 0
        self.since_s = 0.0
        self.ask_s = inf
        self.without: set[str] = set()
        self._patience_s = patience_s
        self._term = 0
        self._asked = 0
        self._asked_before = 0

    def begin(self, position: int, now: float) -> None:
        """Note which block is missing; of two, the earlier one comes first."""
        if not self.position or position < self.position:
            self.position, self.since_s, self.ask_s = position, now, now
            self.without.clear()
            self._term = 0

    def bars(self, commit_position: int) -> bool:
        """Tell whether the block may be on no other disk: what is trimmed has been committed."""
        return self.position > commit_position and not self.without

    def in_vain(self, peers: Set[str]) -> bool:
        """Tell whether all have trimmed it, or one has and then all others were asked twice."""
        twice = self._asked > self._asked_before + 2 * len(peers)
        return self.without >= peers or (twice and bool(self.without))

    def end(self) -> None:
        """Nothing is missing, as far as is known."""
        self.position, self.ask_s = 0, inf

    def ask(self, peers: Sequence[str], index: LogIndex, now: float) -> tuple[str, Mend] | None:
        """Return whom to ask what, if it is time: one after the other, again and again."""
        if now < self.ask_s:
            return None
        held = index.base < self.position <= index.last
        term = index.term_at(self.position) if held else 0
        if not term or self._term not in (0, term):  # trimmed, truncated, or others came instead
            self.end()
            return None
        self._term = term
        self.ask_s = now + self._patience_s
        if not peers:
            return None
        self._asked += 1
        peer = peers[self._asked % len(peers)]
        return peer, Mend(term, self.position)

    def take(self, peer: str, answer: Mended, index: LogIndex) -> tuple[Block, ...]:
        """Return the blocks of an answer that are this log's, from the missing one on."""
        position = self.position
        if answer.first != position:
            return ()
        if not answer.blocks:
            if not self.without:
                self._asked_before = self._asked
            self.without.add(peer)
        found = []
        for block in answer.blocks:
            within = index.base < position and block.last <= index.last
            if not within or block.first != position or index.term_at(block.last) != block.term:
                break
            found.append(block)
            position = block.last + 1
        return tuple(found)
