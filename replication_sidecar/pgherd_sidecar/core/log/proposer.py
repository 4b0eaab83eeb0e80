"""The proposer's half of a member, from its election to the end of its term.

It makes blocks of submissions, appends them to its own log like any safekeeper would, feeds the
peers, and counts flushes. Its first block is its own no-op: only with a block of its own term can
it commit anything, older blocks together with it [C2].

Several inputs may be followed by one `flush`, which does what they have in common: at most one
new block, one Append or Commit per peer.

Called by `LogMember` only; an object serves one term and is lost with it.
"""

from pgherd_sidecar.core.log.blocks import Block
from pgherd_sidecar.core.log.effects import Effects, Fetch, Limits
from pgherd_sidecar.core.log.errors import RemoteProtocolError
from pgherd_sidecar.core.log.messages import Ack, Append, Commit, Reject
from pgherd_sidecar.core.log.progress import Progress
from pgherd_sidecar.core.log.quorum import Membership
from pgherd_sidecar.core.log.safekeeper import Safekeeper
from pgherd_sidecar.core.log.submissions import Submissions


class Proposer:
    """The one member that orders entries in a term.

    Invariants:
        I1: at most one per term, by the quorum of persisted votes.
        `start` is the position of the term's first block; acks below it count for nothing.
        At most one own block is not yet flushed here, and it is `_newest`.
    """

    def __init__(
        self,
        name: str,
        keeper: Safekeeper,
        membership: Membership,
        limits: Limits,
        queue: Submissions,
        now: float,
    ) -> None:
        self.start = keeper.index.last + 1
        self.stranded: set[str] = set()
        self._name = name
        self._keeper = keeper
        self._membership = membership
        self._limits = limits
        self._queue = queue
        self._newest: Block | None = None
        self.peers = {
            peer: Progress(self.start, now) for peer in membership.members if peer != name
        }
        self._counted = dict.fromkeys(membership.members, 0)
        #: a flush was counted since the bounds were last announced
        self._counted_more = False

    def append(self, data: bytes, count: int) -> None:
        """Append a block of this term to the own log."""
        keeper = self._keeper
        block = Block.make(keeper.term, keeper.index.last + 1, count, data)
        keeper.append(block)
        keeper.matched = block.last
        self._newest = block

    def acknowledged(self, peer: str, ack: Ack, now: float) -> None:
        """Count a peer's flush.

        Raises:
            RemoteProtocolError: the peer acknowledges what was never written.
        """
        if ack.position > self._keeper.index.last:
            raise RemoteProtocolError(f"{peer} acknowledged {ack.position}, which does not exist")
        progress = self.peers[peer]
        progress.heard_s = now
        progress.acknowledged(ack.position)
        self.stranded.discard(peer)
        self._count(peer, progress.match)

    def flushed(self) -> None:
        """Count the own flush."""
        self._count(self._name, self._keeper.ack_position)

    def rejected(self, peer: str, reject: Reject, now: float) -> None:
        """Find where the logs agree and go on from there [A3].

        While probing, only the answer to the current probe matters: rejects of blocks that were
        sent ahead arrive in a row and must not start as many new probes.
        """
        progress = self.peers[peer]
        progress.heard_s = now
        expected = progress.next - 1
        if reject.prev_position > expected:
            return
        if progress.probing and reject.prev_position != expected:
            return
        progress.probe_after(self._keeper.index.common_point(reject.history, reject.last_position))

    def fetched(self, fetch: Fetch, blocks: tuple[Block, ...]) -> Append | None:
        """Return the Append for a lagging peer, unless the peer is elsewhere by now."""
        progress = self.peers[fetch.peer]
        if progress.fetching != fetch.first:
            return None
        progress.fetching = 0
        if not blocks or fetch.first <= self._keeper.index.base:
            self.stranded.add(fetch.peer)
            return None
        progress.note_sent(blocks[-1].last, sum(len(block.data) for block in blocks))
        return self._append(fetch.peer, progress, fetch.first - 1, blocks)

    def heartbeat(self, effects: Effects) -> None:
        """Let every peer hear this proposer, and probe whether what was sent has arrived."""
        base = self._keeper.index.base
        for peer, progress in self.peers.items():
            progress.sent = False
            if progress.next <= base:  # perhaps it has more than this proposer has heard of
                progress.probe_after(base)
                progress.sent = True
            append = self._append(peer, progress, progress.next - 1, ())
            effects.send.append((peer, append))

    def flush(self, effects: Effects, *, flush_first: bool) -> None:
        """Make a block if it is time, feed the peers, and announce commit bounds [C4].

        Args:
            effects: where to.
            flush_first: send only what is flushed here (see ``LogMember.flush_first``).
        """
        keeper = self._keeper
        if self._queue and keeper.journal.flushed_position == keeper.index.last:
            self.append(*self._queue.take(self._limits.block))
        last = keeper.journal.flushed_position if flush_first else keeper.index.last
        for peer, progress in self.peers.items():
            if progress.next <= last and progress.ready(self._limits.inflight):
                self._feed(peer, progress, effects)
        if self._counted_more and not self._queue:
            self._counted_more = False
            self._announce(effects)

    def hears_quorum(self, since_s: float) -> bool:
        """Tell whether a quorum answered after `since_s`."""
        heard = [peer for peer, progress in self.peers.items() if progress.heard_s >= since_s]
        return self._membership.has_quorum([self._name, *heard])

    def _count(self, member: str, position: int) -> None:
        if position < self.start or position <= self._counted[member]:
            return
        self._counted[member] = position
        self._counted_more = True
        if position > self._keeper.commit_position:
            self._keeper.commit_to(self._committed())

    def _committed(self) -> int:
        """Return what is committed: 0 until a quorum has a block of this term [C1, C2]."""
        return self._membership.flushed_by_quorum(self._counted)

    def _bound(self, peer: str) -> int:
        """Return what is committed as soon as `peer` has flushed it [C3]."""
        bound = self._membership.flushed_by_quorum(self._counted, assume=peer)
        return max(min(bound, self._keeper.index.last), self._keeper.commit_position)

    def _feed(self, peer: str, progress: Progress, effects: Effects) -> None:
        keeper, newest, first = self._keeper, self._newest, progress.next
        if first <= keeper.index.base:
            self.stranded.add(peer)
        elif newest is not None and first == newest.first:
            append = self._append(peer, progress, first - 1, (newest,))
            progress.note_sent(newest.last, len(newest.data))
            effects.send.append((peer, append))
        elif first <= keeper.journal.flushed_position:
            progress.fetching = first
            effects.fetch.append(Fetch(peer, keeper.term, first, self._limits.fetch))

    def _append(
        self, peer: str, progress: Progress, previous: int, blocks: tuple[Block, ...]
    ) -> Append:
        keeper = self._keeper
        progress.announced = bound = self._bound(peer)
        return Append(keeper.term, previous, keeper.index.term_at(previous), bound, blocks)

    def _announce(self, effects: Effects) -> None:
        last = self._keeper.index.last
        for peer, progress in self.peers.items():
            if progress.announced == last or progress.probing:
                continue
            bound = self._bound(peer)
            if bound > progress.announced:
                progress.announced = bound
                effects.send.append((peer, Commit(self._keeper.term, bound)))
