"""Damaged blocks: a member gets its own again from the others, and gives them theirs [D5].

A block is known by its term and its first position: one proposer wrote it, once. So a member that
has a block of this term at this place has the very same one, committed or not, and may be asked.
Nothing that the member says of its log is changed by the damage, so it goes on to vote and to
acknowledge: its peers can get a block that it can't deliver from where it gets it itself. If
perhaps nobody else has the block, it neither votes nor proposes, since no other log could go on
from its own.

One block is missing at a time, as far as is known: the next one is found when it is read. Free of
IO. Lost by a restart, after which the damage is found again.
"""

from math import inf

from pgherd_sidecar.core.consensus.model.blocks import Block
from pgherd_sidecar.core.consensus.model.effects import Fetch
from pgherd_sidecar.core.consensus.model.messages import Mend, Mended
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper


class BlockRepair:
    """The search for one damaged block, and the answers to the others' searches.

    Attributes:
        position: where the block starts, 0 if none is missing;
        since_s: and since when that is known.
        ask_s: when to ask the next peer.
    """

    def __init__(self, name: str, keeper: Safekeeper, patience_s: float, max_bytes: int) -> None:
        self.position = 0
        self.since_s = 0.0
        self.ask_s = inf
        self._name = name
        self._keeper = keeper
        self._patience_s = patience_s
        self._max_bytes = max_bytes
        # peers that have trimmed it
        self._without: set[str] = set()
        self._term = 0
        self._asked = 0
        self._asked_before = 0

    @property
    def bars_votes(self) -> bool:
        """The block may be on no other disk: what is trimmed has been committed."""
        return self.position > self._keeper.commit_position and not self._without

    @property
    def in_vain(self) -> bool:
        """All have trimmed the block, or one has and then all others were asked twice."""
        if not self.position:
            return False
        peers = set(self._keeper.index.membership.names) - {self._name}
        twice = self._asked > self._asked_before + 2 * len(peers)
        return self._without >= peers or (twice and bool(self._without))

    def note_missing(self, position: int, now: float) -> None:
        """Note which block is missing; of two, the earlier one comes first."""
        if not self.position or position < self.position:
            self.position, self.since_s, self.ask_s = position, now, now
            self._without.clear()
            self._term = 0

    def note_whole(self) -> None:
        """Nothing is missing, as far as is known."""
        self.position, self.ask_s = 0, inf

    def next_questions(self, now: float) -> tuple[str, Mend] | None:
        """Return whom to ask what, if it is time: one after the other, again and again."""
        if now < self.ask_s:
            return None
        index = self._keeper.index
        held = index.base < self.position <= index.last
        term = index.term_at(self.position) if held else 0
        if not term or self._term not in (0, term):  # trimmed, truncated, or others came instead
            self.note_whole()
            return None
        self._term = term
        self.ask_s = now + self._patience_s
        peers = [name for name in index.membership.names if name != self._name]
        if not peers:
            return None
        self._asked += 1
        peer = peers[self._asked % len(peers)]
        return peer, Mend(term, self.position)

    def take_blocks(self, peer: str, answer: Mended) -> tuple[Block, ...]:
        """Return the blocks of an answer that are this log's, from the missing one on."""
        index, position = self._keeper.index, self.position
        if answer.first != position:
            return ()
        if not answer.blocks:
            if not self._without:
                self._asked_before = self._asked
            self._without.add(peer)
        blocks = []
        for block in answer.blocks:
            within = index.base < position and block.last <= index.last
            if not within or block.first != position or index.term_at(block.last) != block.term:
                break
            blocks.append(block)
            position = block.last + 1
        return tuple(blocks)

    def requested(self, peer: str, mend: Mend) -> Mended | Fetch | None:
        """Return what a peer is to hear that misses a block, or what has to be read for that."""
        keeper = self._keeper
        if mend.first <= keeper.index.base:
            return Mended(mend.first, ())
        flushed = mend.first <= keeper.journal.flushed_position
        if flushed and keeper.index.term_at(mend.first) == mend.term:
            return Fetch(peer, keeper.term, mend.first, self._max_bytes, mends=True)
        return None

    def fetched(self, fetch: Fetch, blocks: tuple[Block, ...]) -> Mended | None:
        """Return what was read for a peer: nothing if it was trimmed; None if none starts there."""
        if blocks or fetch.first <= self._keeper.index.base:
            return Mended(fetch.first, blocks)
        return None
