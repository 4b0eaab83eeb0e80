"""A simulated machine: a disk, and on it, at times, a process that runs a member of the log.

It is the shell around the core: it carries out effects, late and one write at a time, and hands
everything it sees to the checker.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from pgherd_sidecar.core.consensus import (
    Block,
    Component,
    Fetch,
    LogMember,
    Member,
    Persist,
    Timing,
)
from pgherd_sidecar.core.consensus.model.messages import Message, Trimmed
from pgherd_sidecar.core.consensus.model.split import SplitMessage
from pgherd_sidecar.core.consensus.proposer import Proposer
from pgherd_sidecar.env.storage.segments import SegmentLog, StorageCorrupt, StorageDamaged
from sim_checker import Checker, Witnessed, require
from sim_split import SimSplitter
from sim_storage import Disk, Log, ModelDisk, SegmentDisk

if TYPE_CHECKING:
    from sim_world import World


class SimNode:
    """One machine of a world."""

    def __init__(self, world: "World", name: str, *, witness: bool, follower: bool = False) -> None:
        self.world = world
        self.name = name
        self.checker: Checker
        self.witness = witness
        #: a reader, until somebody promotes it
        self.follower = follower
        self.incarnation = 0
        self.paused_until = 0.0
        self.stalled_until = 0.0
        self.member: LogMember | None = None
        self.log: Log | None = None
        self._rate = 1 + world.rng.uniform(-world.dials.drift, world.dials.drift)
        self._disks = 0
        self._inflight: Persist | None = None
        self._written: dict[tuple[int, int], Block] = {}
        self._mending: tuple[Block, ...] = ()
        self._insert_disk(world.cluster)

    # ---- life ------------------------------------------------------------------------------

    @property
    def identity(self) -> Member:
        """What this machine is as a member."""
        return Member(self.name, self.disk_id, witness=self.witness, reader=self.follower)

    @property
    def clock(self) -> float:
        """This machine's clock, which drifts."""
        return self.world.now * self._rate

    @property
    def alive(self) -> bool:
        """Whether a process runs here."""
        return self.member is not None or self.splitter.alive

    @property
    def primary(self) -> bool:
        """Whether it takes itself for a member of the primary component of its cluster."""
        member = self.member
        return member is not None and member.component(self.clock) is Component.PRIMARY

    def _insert_disk(self, cluster: str) -> None:
        self._disks += 1
        self.splitter = SimSplitter(self, cluster, self.world.dials.split_after_s or None)
        self.disk_id = f"{self.name}.{self._disks}"
        #: bits of it have rotted, and it was not seen whole since
        self.rotten = False
        #: damage has taken the beginning of its log: it begins behind that, as if it had trimmed
        self.beheaded = False
        self._base = 0
        #: up to here damage can be told from a torn write
        self.proven = 0
        self.disk: Disk = SegmentDisk() if self.world.dials.segments else ModelDisk()

    def lose_disk(self, cluster: str = "") -> None:
        """Die and return on an empty disk: as another member, perhaps of another cluster."""
        self.crash()
        self._insert_disk(cluster or self.splitter.cluster)

    def start(self) -> None:
        """Start the process on what the disk kept."""
        world = self.world
        if self.alive or not self.splitter.ready():
            return
        self.open()
        self.incarnation += 1
        assert self.log is not None
        if world.dials.splits and not self.splitter.begin():
            return
        dials = world.dials
        self.member = LogMember(
            self.name,
            control=self.log.control,
            log=self.log.index,
            timing=Timing(
                dials.heartbeat_s, dials.election_min_s, dials.election_max_s, dials.evict_s
            ),
            rng=Random(world.rng.random()),
            noop=world.noop,
            now=self.clock,
            limits=world.limits,
            disk=self.disk_id,
        )
        self.member.flush_first = world.rng.random() < 0.5
        self._inflight, self._mending = None, ()
        self._drain_due = False
        self._leading: Proposer | None = None
        self._term = self.member.term
        self._commit = self.member.commit_position
        self._checked = self.log.index.base
        hole = getattr(self.log, "hole", 0)
        if hole:
            self.member.damaged(hole, self.clock)
        self._tick(self.incarnation)
        self._check()

    def open(self) -> None:
        """Open the log that the disk kept, without beginning a life."""
        self.checker = checker = self.world.splits.checkers[self.splitter.cluster]
        self.log = self.disk.open()
        checker.disks.setdefault(self.disk_id, Witnessed(self.name))
        if self.log.fresh:
            self.log.reset(self.world.base_for(self))
            checker.disks[self.disk_id].durable_last = self.log.index.last
            self._base = self.log.index.base
        self.beheaded |= self.rotten and self.log.index.base > self._base
        witnessed = checker.disks[self.disk_id]
        checker.promised(self.disk_id, self.log.control.term)
        checker.index(self.disk_id, self.log.index)
        self._reread_durable(witnessed)

    def _reread_durable(self, witnessed: Witnessed) -> None:
        assert self.log is not None
        index = self.log.index
        if self.rotten and self.log.control.incomplete:
            self.world.probe("incomplete")
            witnessed.lose(index.last)
        require(
            index.last >= witnessed.durable_last,
            f"disk of {self.name} lost {index.last}..{witnessed.durable_last}",
        )
        self.proven = min(self.proven, index.last)
        first = max(index.base, witnessed.durable_last) + 1
        while blocks := self._reread(first):
            witnessed.append(blocks)
            first = blocks[-1].last + 1

    def _reread(self, first: int) -> tuple[Block, ...]:
        """Read what was flushed, or not truncated, when it died; it may have rotted since."""
        assert self.log is not None
        try:
            return self.log.read(first, 1 << 20)
        except StorageDamaged:
            return (self._written[self.log.index.term_at(first), first],)

    def crash(self) -> None:
        """Kill the process, in the middle of what it was writing."""
        if self.alive:
            self.die(self._inflight)

    def die(self, writing: Persist | None = None) -> None:
        """Kill the process, even one that is starting.

        Args:
            writing: what it still does a part of.
        """
        persist, self._inflight = self._inflight, None
        if persist is not None:
            self.world.probe("died while writing")
            if persist.truncate_after is not None:
                self.checker.truncated(self.disk_id, persist.truncate_after)
        mending, self._mending = self._mending, ()
        self.disk.crash(self.world.rng, writing, mending)
        self.splitter.die()
        self.member = None
        self.log = None

    def rebuild(self) -> None:
        """Begin anew where the log of a partner is: what was behind the trimmed log is copied."""
        assert self.log is not None
        base = self.world.base_for(self)
        index = self.log.index
        ends = base.position >= index.last or index.contradicts(base)
        if self._inflight is not None or not ends:
            return
        self.world.probe("rebuilt")
        self.log.reset(base)
        self._base = base.position
        witnessed = self.checker.disks[self.disk_id]
        witnessed.durable, witnessed.durable_last = {}, base.position
        self.splitter.die()
        self.member = None
        self.start()

    # ---- inputs ----------------------------------------------------------------------------

    def input(self, incarnation: int, give: Callable[[LogMember], object]) -> None:
        """Give the member an input, now or when it is no longer paused."""
        world = self.world
        if self.member is None or self.incarnation != incarnation:
            return
        if world.now < self.paused_until:
            world.at(self.paused_until, lambda: self.input(incarnation, give))
            return
        give(self.member)
        if not world.dials.lazy or world.rng.random() >= world.dials.lazy:
            self._drain()
        elif not self._drain_due:
            self._drain_due = True
            world.after(world.rng.uniform(0, 0.002), lambda: self._drain_later(incarnation))
        self._check()

    def link_to(self, peer: "SimNode") -> str | None:
        """Return the disk at the other end of the link; None if there has to be a new link."""
        if self.member is None or self.member._elections.disks.get(peer.name) == peer.disk_id:
            return peer.disk_id
        self.member.meet(peer.name, peer.disk_id)
        return None

    def receive(self, sender: str, disk: str, message: Message) -> None:
        """Deliver a message to whatever process runs here now."""
        if isinstance(message, SplitMessage):
            self.splitter.receive(sender, message)
            return

        def give(member: LogMember) -> None:
            member.meet(sender, disk)
            member.receive(sender, message, self.clock)

        self.input(self.incarnation, give)

    def hear_of_end(self, peer: str) -> None:
        """Be told, rightly or not, that a peer's process has ended."""
        self.input(self.incarnation, lambda member: member.ended(peer, self.clock))

    def submit(self, data: bytes, count: int) -> bool:
        """Submit entries here; False if they are not taken, or only after a pause."""
        taken: list[bool] = []

        def give(member: LogMember) -> None:
            taken.append(member.submit(data, count, self.clock))

        self.input(self.incarnation, give)
        return taken == [True]

    def change(self, join: Member | None = None, leave: tuple[tuple[str, str], ...] = ()) -> None:
        """Ask for a change of the membership here."""
        self.input(self.incarnation, lambda member: member.change_membership(join, leave))

    def trim(self) -> None:
        """Trim what nobody needs, or all that may be trimmed at all."""
        if self.member is None or self.log is None or self._inflight is not None:
            return
        hard = self.world.dials.trim_hard
        position = self.member.commit_position if hard else self.member.restart_position
        base = self.log.trim(position)
        self._base = max(self._base, base)
        self.member.trim(base)
        if base:
            self.world.probe("trimmed")
        self._checked = max(self._checked, base)

    def rot(self) -> None:
        """Flip a bit of the log."""
        self.rotten = True
        self.disk.rot(self.world.rng, self.proven)

    def readable(self) -> bool:
        """Read all of the log, if bits of it have rotted; what is damaged is noticed."""
        log, member = self.log, self.member
        if not self.rotten or log is None or member is None:
            return not self.rotten
        assert isinstance(log, SegmentLog)
        position, chain = log.index.base + 1, self.checker.chain
        try:
            while position <= log.index.last:
                segment = log._segment_of(position)  # its cache would not show damage
                for block in segment.read(position, log.index.last, 1 << 20):
                    final = block.last <= member.commit_position
                    fits = not final or chain.get(block.first) in (None, block)
                    require(fits, f"D5: {self.name} has {block} instead")
                    position = block.last + 1
        except StorageDamaged as error:
            self._damaged(error)
            return False
        self.rotten = log.control.incomplete or not self.disk.headed()
        return not log.control.incomplete

    def _damaged(self, error: StorageDamaged) -> None:
        self.world.probe("damage read")
        position = error.position
        self.input(self.incarnation, lambda member: member.damaged(position, self.clock))

    def _tick(self, incarnation: int) -> None:
        if self.member is None or self.incarnation != incarnation:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, lambda: self._tick(incarnation))
            return
        if self.clock >= self.member.deadline_s:
            self.input(incarnation, lambda member: member.tick(self.clock))
        if self.member is None:
            return
        wait = max(self.member.deadline_s / self._rate - self.world.now, 0.0005)
        self.world.after(min(wait, 1.0), lambda: self._tick(incarnation))

    # ---- effects ---------------------------------------------------------------------------

    def _drain_later(self, incarnation: int) -> None:
        if self.member is not None and self.incarnation == incarnation:
            self._drain()
            self._check()

    def _drain(self) -> None:
        assert self.member is not None
        self._drain_due = False
        lazy = self.world.dials.lazy
        self.member.collect = lazy > 0 and self.world.rng.random() < lazy / 2
        effects = self.member.take_effects()
        for peer, message in effects.send:
            self.world.send(self, peer, message)
            dials = self.world.dials
            if type(message) is Trimmed and not (dials.trim_hard or dials.join_late):
                receiver = self.world.nodes[peer]
                # what damage has taken, it had flushed once, and others may have it
                if not (receiver.rotten or self.beheaded):
                    self.checker.trimmed(receiver.disk_id, self.member.membership)
        if effects.persist is not None:
            self._persist(effects.persist)
        if effects.mend:
            self._mend(effects.mend)
        for fetch in effects.fetch:
            self._fetch(fetch)

    def _persist(self, persist: Persist) -> None:
        require(self._inflight is None, "D1: two Persists under way")
        self.begin_writing(persist)
        incarnation, world = self.incarnation, self.world
        done = max(world.now, self.stalled_until) + world.rng.expovariate(1 / world.dials.disk_s)
        world.at(done, lambda: self._persisted(incarnation, persist))

    def begin_writing(self, persist: Persist) -> None:
        """Write to a log that is open, and used by nobody."""
        self._inflight = persist
        self._written |= {(block.term, block.first): block for block in persist.blocks}

    def end_writing(self, persist: Persist) -> None:
        """Have written to it."""
        assert self.log is not None
        self.log.persist(persist)
        self._inflight = None
        self.checker.disks[self.disk_id].append(persist.blocks)
        self.checker.promised(self.disk_id, self.log.control.term)
        self.checker.index(self.disk_id, self.log.index)

    def _persisted(self, incarnation: int, persist: Persist) -> None:
        if self.incarnation != incarnation or self.member is None or self.log is None:
            return
        checker = self.checker
        if persist.truncate_after is not None:
            self.world.probe("truncated")
            checker.truncated(self.disk_id, persist.truncate_after)
        if persist.blocks or persist.truncate_after is not None:
            self.proven = self.log.index.last
            if persist.truncate_after is not None:
                self.proven = min(self.proven, persist.truncate_after)
        try:
            self.log.persist(persist)
        except StorageCorrupt:  # damage hides where to truncate
            self.world.kill(self)
            return
        checker.disks[self.disk_id].append(persist.blocks)
        if persist.control is not None:
            checker.promised(self.disk_id, self.log.control.term)
            checker.index(self.disk_id, self.log.index)
        self._inflight = None
        self.input(incarnation, lambda member: member.persisted(persist.ticket, self.clock))

    def _mend(self, blocks: tuple[Block, ...]) -> None:
        incarnation, world = self.incarnation, self.world
        self._mending = blocks
        delay = world.rng.expovariate(1 / world.dials.disk_s)
        world.after(delay, lambda: self._mended(incarnation, blocks))

    def _mended(self, incarnation: int, blocks: tuple[Block, ...]) -> None:
        if self.log is None or self.incarnation != incarnation:
            return
        self._mending = ()
        self.world.probe("mended")
        self.log.mend(blocks)
        self.input(incarnation, lambda member: member.mended())

    def _fetch(self, fetch: Fetch) -> None:
        incarnation = self.incarnation
        delay = self.world.rng.uniform(0, self.world.dials.disk_s)
        self.world.after(delay, lambda: self._fetched(incarnation, fetch))

    def _fetched(self, incarnation: int, fetch: Fetch) -> None:
        if self.log is None or self.incarnation != incarnation:
            return
        try:
            blocks = self.log.read(fetch.first, fetch.max_bytes)
        except StorageDamaged as error:
            self._damaged(error)
            return
        self.world.probe("fetched")
        self.input(incarnation, lambda member: member.fetched(fetch, blocks, self.clock))

    # ---- checks ----------------------------------------------------------------------------

    def _check(self) -> None:
        member = self.member
        if member is None:
            return
        if member.term != self._term:
            require(member.term > self._term, f"I2: {self.name} went back to term {member.term}")
            self._term = member.term
        leading = member._elections.leading
        if leading is not None:
            if leading is not self._leading:
                checker, start = self.checker, leading.start
                checker.proposes(self.disk_id, self.incarnation, member.term, start)
            self._check_leading(member, leading)
        self._leading = leading
        if member.commit_position != self._commit:
            self._check_commit(member)
        self.world.look(self, member)

    def _check_leading(self, member: LogMember, leading: Proposer) -> None:
        # (its peers may have flushed its first block before itself)
        advanced = self._leading is not None and member.commit_position > self._commit
        start = leading.start
        own = member.flushed_position >= start
        require(
            not (advanced and own) or member.commit_position >= start,
            f"K2: {self.name} commits {member.commit_position} alone, its term starts {start}",
        )
        limit = self.world.limits.pending
        require(leading.queue.size_bytes <= limit, f"I26: {self.name} queues more than {limit}")

    def _check_commit(self, member: LogMember) -> None:
        checker, log = self.checker, self.log
        assert log is not None
        checker.commits(self.disk_id, self._commit, member.commit_position)
        self._commit = member.commit_position
        known = checker.disks[self.disk_id]
        require(self._commit <= known.durable_last, "I5: committed but not flushed here")
        while self._checked < self._commit:
            block = known.durable.get(self._checked + 1)
            require(block is not None, f"I5: {self.name} committed {self._commit} without it")
            assert block is not None
            require(block.last <= self._commit, "I4: a commit position inside a block")
            if checker.chain.get(block.first) != block:
                memberships = member._keeper.index.memberships
                ahead = [m for m in memberships if block.last < m.position <= self._commit]
                checker.committed(self.disk_id, member.term, block, tuple(ahead))
            self._checked = block.last
