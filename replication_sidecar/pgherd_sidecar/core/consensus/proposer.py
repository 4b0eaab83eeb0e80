"""The proposer's half of a member, from its election to the end of its term.

It makes blocks of submissions, appends them to its own log like any safekeeper would, feeds the
peers, and counts flushes. Its first block is its own no-op: only with a block of its own term can
it commit anything, older blocks together with it [K2]. Changes of the membership are its to order,
one at a time (reconfiguration.py).

Several inputs may be followed by one `flush`, which does what they have in common: at most one
new block, one Append or Commit per peer.

An object serves one term and is lost with it.
"""

from typing import Final

from pgherd_sidecar.core.consensus.model.blocks import ENTRIES, MEMBERSHIP, Block
from pgherd_sidecar.core.consensus.model.effects import Effects, Fetch, Limits, Timing
from pgherd_sidecar.core.consensus.model.errors import RemoteProtocolError
from pgherd_sidecar.core.consensus.model.messages import (
    Ack,
    Append,
    Change,
    Commit,
    Reject,
    Trimmed,
)
from pgherd_sidecar.core.consensus.model.quorum import Membership
from pgherd_sidecar.core.consensus.progress import Progress
from pgherd_sidecar.core.consensus.reconfiguration import Reconfiguration, Sight, finished
from pgherd_sidecar.core.consensus.roles import Role
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper
from pgherd_sidecar.core.consensus.submissions import Submissions

#: a flush that takes so many times the longest election timeout is taken for one that never ends
HANGS = 5


class Proposer:
    """The one member that orders entries in a term.

    Invariants:
        I1: at most one per term, by the quorum of persisted votes.
        `start` is the position of the term's first block; acks below it count for nothing.
        At most one own block is not yet flushed here, and it is `_newest`.
        `queue` has what is submitted, for the next block.
    """

    role: Final = Role.PROPOSER

    def __init__(
        self,
        name: str,
        keeper: Safekeeper,
        limits: Limits,
        queue: Submissions,
        disks: dict[str, str],
        timing: Timing,
        now: float,
    ) -> None:
        self.proposer = name
        self.queue = queue
        self.start = keeper.index.last + 1
        self.stranded: set[str] = set()
        #: up to here every member has flushed the log
        self.restart_position = 0
        #: no majority was heard lately, so nothing can be committed
        self.lonely = False
        #: disks of the peers, as far as they are known
        self.disks = disks
        self.peers: dict[str, Progress] = {}
        self._name = name
        self._keeper = keeper
        self._limits = limits
        self._timing = timing
        self._newest: Block | None = None
        self._counted: dict[str, int] = {}
        #: a flush was counted since the bounds were last announced
        self._counted_more = False
        self._wishes = Reconfiguration()
        self._due: Membership | None = None
        self._began_s = now
        self._now = now
        #: when it last flushed something itself, or had flushed all
        self._moved_s = now
        #: since when it has been running without a pause
        self._awake_s = now
        self._meet_peers(now)

    @property
    def _membership(self) -> Membership:
        return self._keeper.index.membership

    def _meet_peers(self, now: float) -> None:
        """Account for members that are new, and forget those that have left and know it."""
        membership = self._membership
        for member in membership.members:
            known = self.peers.get(member.name)
            if known is not None and not known.disk:
                # what a founder has promised is its own only if it was on this disk all the time
                known.disk = self.disks.get(member.name) or member.disk
            if member.name != self._name and (known is None or not member.has_disk(known.disk)):
                self._counted.pop(member.name, None)
                self.peers[member.name] = Progress(self._keeper.index.last + 1, now, member.disk)
        since_s = now - self._timing.election_max_s
        for name in self.peers.keys() - set(membership.names):
            gone = self.peers[name]
            if gone.match >= membership.position or gone.heard_s < since_s:
                del self.peers[name]
                self.stranded.discard(name)

    def append(self, data: bytes, count: int, kind: int = ENTRIES) -> None:
        """Append a block of this term to the own log."""
        keeper = self._keeper
        block = Block.make(keeper.term, keeper.index.last + 1, count, data, kind)
        keeper.append(block)
        keeper.matched = block.last
        self._newest = block

    def request(self, change: Change) -> None:
        """Note a request; to join, unless it was judged by a membership that is about to change."""
        if self._due is not None:
            change = Change(leave=change.leave)
        self._wishes.request(change)

    def acknowledged(self, peer: str, ack: Ack, now: float) -> None:
        """Count a peer's flush.

        Raises:
            RemoteProtocolError: the peer acknowledges what was never written.
        """
        if ack.position > self._keeper.index.last:
            raise RemoteProtocolError(f"{peer} acknowledged {ack.position}, which does not exist")
        progress = self._progress(peer)
        if progress is None:
            return
        progress.acknowledged(ack.position, now)
        self.stranded.discard(peer)
        self._count(peer, progress.match)

    def flushed(self) -> None:
        """Count the own flush."""
        self._moved_s = self._now
        self._count(self._name, self._keeper.ack_position)

    def rejected(self, peer: str, reject: Reject, now: float) -> None:
        """Find where the logs agree and go on from there [A3].

        While probing, only the answer to the current probe matters: rejects of blocks that were
        sent ahead arrive in a row and must not start as many new probes. A peer that lacks what it
        has acknowledged has lost its disk (or this message is old): it is left alone [V6].
        """
        progress = self._progress(peer)
        if progress is None:
            return
        progress.heard_s = now
        expected = progress.next - 1
        if reject.prev_position > expected:
            return
        if progress.probing and reject.prev_position != expected:
            return
        if reject.last_position < progress.match:
            return
        # below this log's base nothing tells that it agrees with what the peer has acknowledged
        progress.probe_after(self._keeper.index.common_point(reject.history, reject.last_position))

    def _progress(self, peer: str) -> Progress | None:
        """Return what is known of a peer, None if it is no member, or on another disk [V6]."""
        progress = self.peers.get(peer)
        return None if progress is None or self._strange(peer, progress) else progress

    def _strange(self, peer: str, progress: Progress) -> bool:
        """Tell whether another member has come under the name of this one [V6]."""
        return progress.disk not in ("", self.disks.get(peer) or progress.disk)

    def fetched(self, fetch: Fetch, blocks: tuple[Block, ...]) -> Append | None:
        """Return the Append for a lagging peer, unless the peer is elsewhere by now."""
        progress = self.peers.get(fetch.peer)
        if progress is None or progress.fetching != fetch.first:
            return None
        progress.fetching = 0
        if not blocks or fetch.first <= self._keeper.index.base:
            self.stranded.add(fetch.peer)
            return None
        blocks = self._keeper.held(blocks)
        if not blocks:
            return None  # they are read again
        progress.note_sent(blocks[-1].last, sum(len(block.data) for block in blocks))
        return self._append(fetch.peer, progress, fetch.first - 1, blocks)

    def fetch_again(self) -> None:
        """Read anew what could not be read."""
        for progress in self.peers.values():
            progress.fetching = 0

    def heartbeat(self, effects: Effects, now: float) -> None:
        """Let every peer hear this proposer, probe whether what was sent has arrived, look around.

        What it sees may make an entry due that changes the membership.
        """
        if now - self._now > self._timing.election_max_s:
            self._awake_s = self._moved_s = now
        elif self._keeper.journal.flushed_position == self._keeper.index.last:
            self._moved_s = now
        self._now = now
        self._meet_peers(now)
        self._due = self._due or self._plan(now)
        self.restart_position = max(self.restart_position, self._flushed_by_all())
        self.lonely = not self.hears_majority(now - self._timing.election_max_s)
        base = self._keeper.index.base
        for peer, progress in self.peers.items():
            progress.sent = False
            if peer in self.stranded:
                beginning = self._keeper.index.base_at(base)
                effects.send.append((peer, Trimmed(self._keeper.term, beginning)))
            if progress.next <= base:  # perhaps it has more than this proposer has heard of
                progress.probe_after(base)
                progress.sent = True
            append = self._append(peer, progress, progress.next - 1, ())
            effects.send.append((peer, append))
            progress.goal = self._keeper.index.last

    def _plan(self, now: float) -> Membership | None:
        """Return the next membership, if one is due and may follow the one in the log [V2]."""
        keeper, membership = self._keeper, self._membership
        position = keeper.index.last + 1
        if membership.position <= keeper.commit_position >= self.start:
            if membership.joint:
                return finished(membership, position)
            return self._wishes.next(membership, position, self._look(now))
        if not membership.joint:
            return self._wishes.shrunk(membership, position, self._look(now))
        return None

    def _look(self, now: float) -> Sight:
        peers = self.peers.items()
        live_s, evict_s = now - self._timing.election_max_s, now - self._timing.evict_s
        return Sight(
            live=frozenset({self._name, *(name for name, peer in peers if peer.heard_s >= live_s)}),
            useless=frozenset(name for name, peer in peers if self._useful_s(name, peer) < evict_s),
            caught_up=frozenset(
                learner.name
                for learner in self._membership.learners
                if learner.name in self.peers and self.peers[learner.name].caught_up
            ),
        )

    def _useful_s(self, name: str, peer: Progress) -> float:
        """When a peer last did what it is there for; one that is stranded can do nothing [V5].

        After a pause of this process the answers that have arrived are still to be read.
        """
        return max(peer.heard_s if name in self.stranded else peer.moved_s, self._awake_s)

    def _flushed_by_all(self) -> int:
        """Return up to where every member is known to have the log, all of it committed [T1]."""
        flushed = self._keeper.commit_position
        for name in self._membership.names:
            if name != self._name:
                flushed = min(flushed, self.peers[name].match if name in self.peers else 0)
        return flushed

    def flush(self, effects: Effects, *, flush_first: bool, collect: bool) -> None:
        """Make a block if it is time, feed the peers, and announce commit bounds [K4].

        Args:
            effects: where to.
            flush_first: send only what is flushed here (see ``LogMember.flush_first``).
            collect: leave submissions in the queue.
        """
        keeper = self._keeper
        if keeper.journal.flushed_position == keeper.index.last:
            if self._due is not None:
                self._install(self._due)
            elif self.queue and not collect:
                self.append(*self.queue.take_block(self._limits.block))
        last = keeper.journal.flushed_position if flush_first else keeper.index.last
        for peer, progress in self.peers.items():
            ready = progress.next <= last and progress.ready(self._limits.inflight)
            if ready and not self._strange(peer, progress):
                self._feed(peer, progress, effects)
        if self._counted_more and not self.queue:
            self._counted_more = False
            self._announce(effects)

    def _install(self, membership: Membership) -> None:
        self._due = None
        # nothing was appended since it was planned: `flush` appends it before anything else
        self.append(membership.encode(), 1, MEMBERSHIP)
        self._meet_peers(self._now)

    def hears_quorum(self, since_s: float) -> bool:
        """Tell whether a quorum answered after `since_s`."""
        return self._membership.has_quorum(self._heard_since(since_s))

    def hears_majority(self, since_s: float) -> bool:
        """Tell whether enough to commit anything answered after `since_s`."""
        return self._membership.has_majority(self._heard_since(since_s))

    def in_vain(self, since_s: float) -> bool:
        """Tell whether nothing of a term that began before `since_s` will be committed [E6].

        Voters that need what was trimmed here answer, but only another proposer can feed them.
        """
        if self._keeper.commit_position >= self.start or self._began_s > since_s:
            return False
        heard, membership = self._heard_since(since_s), self._membership
        fed = [peer for peer in heard if peer not in self.stranded]
        others = any(peer in membership.voters for peer in fed if peer != self._name)
        return others and membership.has_majority(heard) and not membership.has_majority(fed)

    @property
    def stuck(self) -> bool:
        """The own disk hangs: nothing more will be ordered until it returns [E7]."""
        return self._now - self._moved_s > HANGS * self._timing.election_max_s

    def _heard_since(self, since_s: float) -> list[str]:
        heard = [peer for peer, progress in self.peers.items() if progress.heard_s >= since_s]
        return [self._name, *heard]

    def _count(self, member: str, position: int) -> None:
        if position < self.start or position <= self._counted.get(member, 0):
            return
        self._counted[member] = position
        self._counted_more = True
        if position > self._keeper.commit_position:
            self._keeper.commit_to(self._committed())

    def _committed(self) -> int:
        """Return what is committed: 0 until a quorum has a block of this term [K1, K2]."""
        return self._membership.flushed_by_quorum(self._counted)

    def _bound(self, peer: str) -> int:
        """Return what is committed as soon as `peer` has flushed it [K3].

        Before it has a block of this term, its flush of older ones commits nothing [K2].
        """
        if peer not in self._counted or self._strange(peer, self.peers[peer]):
            return self._keeper.commit_position
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
        prev_term = keeper.index.term_at(previous)
        restart = self.restart_position
        return Append(keeper.term, previous, prev_term, bound, restart, blocks, self.lonely)

    def _announce(self, effects: Effects) -> None:
        last = self._keeper.index.last
        for peer, progress in self.peers.items():
            if progress.announced == last or progress.probing:
                continue
            bound = self._bound(peer)
            if bound > progress.announced:
                progress.announced = bound
                effects.send.append((peer, Commit(self._keeper.term, bound)))
