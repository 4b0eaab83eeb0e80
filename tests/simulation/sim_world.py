"""A herd of log members in virtual time, with everything that can go wrong drawn from one seed.

Real: the core, the codec, the segments and their recovery. Simulated: time, network, disk, death.
Each seed draws its own dials, so that every kind of fault is absent from some runs. A run has two
phases: faults and load, with safety checked after each event; then all is healed, and the members
must agree, and order something new, within bounded virtual time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from heapq import heappop, heappush
from random import Random

from pgherd_sidecar.core.log import (
    Effects,
    Fetch,
    Limits,
    LogBase,
    LogMember,
    Membership,
    Persist,
    Timing,
)
from pgherd_sidecar.core.log.codec import decode, encode
from pgherd_sidecar.core.log.messages import Message
from pgherd_sidecar.env.segments import SegmentLog
from sim_checker import Checker, require
from sim_disk import PowerLoss, SimDirectory

HEARTBEAT_S = 0.03
HEAL_S = 30.0


@dataclass(frozen=True)
class Dials:
    """How a world is: sizes, rates and probabilities."""

    members: int
    duration_s: float
    submit_every_s: float
    loss: float
    duplicate: float
    reorder: bool
    delay_s: float
    disk_s: float
    crash_every_s: float
    partition_every_s: float
    pause_every_s: float
    lazy: float
    trim_every_s: float
    restart_s: float = 1.5
    election_min_s: float = 0.3
    election_max_s: float = 0.6
    block: int = 600
    fetch: int = 3000

    @classmethod
    def draw(cls, rng: Random) -> "Dials":
        """Draw a world: one in four is a storm."""
        dials = cls._draw_plain(rng)
        return cls._storm(dials, rng) if rng.random() < 0.25 else dials

    @classmethod
    def draw_storm(cls, rng: Random) -> "Dials":
        """Draw a world in which hardly any proposer lives long enough to commit something."""
        return cls._storm(cls._draw_plain(rng), rng)

    @staticmethod
    def _storm(dials: "Dials", rng: Random) -> "Dials":
        return replace(
            dials,
            members=rng.choice([3, 3, 5]),
            duration_s=6.0,
            submit_every_s=0.01,
            delay_s=rng.choice([0.005, 0.02]),
            disk_s=rng.choice([0.002, 0.02]),
            crash_every_s=rng.uniform(0.05, 0.3),
            partition_every_s=rng.choice([0.0, 0.05, 0.2, 0.5]),
            restart_s=rng.choice([0.005, 0.05, 0.3]),
            election_min_s=0.08,
            election_max_s=rng.choice([0.09, 0.16]),
            block=100,
            fetch=100,
        )

    @classmethod
    def _draw_plain(cls, rng: Random) -> "Dials":
        def sometimes(value: float) -> float:
            return value if rng.random() < 0.6 else 0.0

        return cls(
            members=rng.choice([1, 2, 3, 3, 3, 3, 4, 5, 5, 5]),
            duration_s=rng.uniform(3.0, 8.0),
            submit_every_s=rng.choice([0.005, 0.01, 0.03]),
            loss=sometimes(rng.uniform(0.0, 0.3)),
            duplicate=sometimes(rng.uniform(0.0, 0.3)),
            reorder=rng.random() < 0.5,
            delay_s=rng.choice([0.0005, 0.005, 0.03]),
            disk_s=rng.choice([0.0002, 0.005, 0.05]),
            crash_every_s=sometimes(rng.uniform(0.3, 2.0)),
            partition_every_s=sometimes(rng.uniform(0.2, 2.0)),
            pause_every_s=sometimes(rng.uniform(0.3, 2.0)),
            lazy=sometimes(rng.uniform(0.0, 0.5)),
            trim_every_s=sometimes(rng.uniform(0.5, 2.0)),
        )


class SimNode:
    """A machine with a disk, and on it, at times, a process that runs a member."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.disk = SimDirectory()
        self.incarnation = 0
        self.member: LogMember | None = None
        self.log: SegmentLog | None = None
        self.paused_until = 0.0
        self._inflight: Persist | None = None
        self._drain_due = False
        self._term = 0
        self._commit = 0
        self._checked = 0

    # ---- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process on what the disk kept."""
        world, checker = self.world, self.world.checker
        if self.member is not None:
            return
        self.incarnation += 1
        self._leading = False
        self.log = SegmentLog(self.disk, segment_bytes=2048, cache_bytes=2000)
        if self.log.fresh:
            self.log.reset(LogBase(membership=Membership.fixed(*world.names)))
        witnessed = checker.members[self.name]
        checker.promised(self.name, self.log.control.term)
        checker.index(self.name, self.log.index)
        self._reread_durable()
        require(
            self.log.index.last >= witnessed.durable_last,
            f"disk of {self.name} lost {self.log.index.last}..{witnessed.durable_last}",
        )
        self.member = LogMember(
            self.name,
            control=self.log.control,
            log=self.log.index,
            timing=Timing(HEARTBEAT_S, world.dials.election_min_s, world.dials.election_max_s),
            rng=Random(world.rng.random()),
            noop=b"noop",
            now=world.now,
            limits=world.limits,
        )
        self.member.flush_first = world.rng.random() < 0.5
        self._inflight = None
        self._drain_due = False
        self._leading = False
        self._term = self.member.term
        self._commit = self.member.commit_position
        self._checked = self.log.index.base
        self._tick(self.incarnation)
        self._check()

    def _reread_durable(self) -> None:
        assert self.log is not None
        witnessed = self.world.checker.members[self.name]
        first = self.log.index.base + 1
        while blocks := self.log.read(first, 1 << 20):
            witnessed.append(blocks)
            first = blocks[-1].last + 1

    def crash(self) -> None:
        """Kill the process, in the middle of what it was writing."""
        if self.member is None:
            return
        rng, persist = self.world.rng, self._inflight
        if persist is not None and self.log is not None:
            if persist.truncate_after is not None:
                self.world.checker.truncated(self.name, persist.truncate_after)
            self.disk.crash_after = rng.randrange(4 if persist.truncate_after is None else 12)
            try:
                self.log.persist(persist)
            except PowerLoss:
                self.world.probe("died while writing")
        self.disk.crash(rng)
        self.member = None
        self.log = None
        self._inflight = None

    # ---- inputs ----------------------------------------------------------------------------

    def input(self, incarnation: int, give: Callable[[LogMember], None]) -> None:
        """Give the member an input, now or when it is no longer paused."""
        world = self.world
        if self.member is None or self.incarnation != incarnation:
            return
        if world.now < self.paused_until:
            world.at(self.paused_until, lambda: self.input(incarnation, give))
            return
        give(self.member)
        if world.rng.random() >= world.dials.lazy:
            self._drain()
        elif not self._drain_due:
            self._drain_due = True
            world.after(world.rng.uniform(0, 0.002), lambda: self._drain_later(incarnation))
        self._check()

    def receive(self, sender: str, message: Message) -> None:
        """Deliver a message to whatever process runs here now."""
        now = self.world.now
        self.input(self.incarnation, lambda member: member.receive(sender, message, now))

    def submit(self, data: bytes, count: int) -> None:
        """Submit entries here."""
        now = self.world.now
        self.input(self.incarnation, lambda member: _ignore(member.submit(data, count, now)))

    def trim(self, position: int) -> None:
        """Trim the log as far as the member allows."""
        if self.member is None or self.log is None or self._inflight is not None:
            return
        base = self.log.trim(min(position, self.member.commit_position))
        self.member.trim(base)
        if base:
            self.world.probe("trimmed")
        self._checked = max(self._checked, base)

    def _tick(self, incarnation: int) -> None:
        if self.member is None or self.incarnation != incarnation:
            return
        world = self.world
        self.input(incarnation, lambda member: member.tick(world.now))
        wait = min(max(self.member.deadline_s - world.now, 0.001), HEARTBEAT_S)
        world.after(wait, lambda: self._tick(incarnation))

    # ---- effects ---------------------------------------------------------------------------

    def _drain_later(self, incarnation: int) -> None:
        if self.member is not None and self.incarnation == incarnation:
            self._drain()
            self._check()

    def _drain(self) -> None:
        assert self.member is not None
        self._drain_due = False
        effects: Effects = self.member.take_effects()
        for peer, message in effects.send:
            self.world.send(self.name, peer, message)
        if effects.persist is not None:
            self._persist(effects.persist)
        for fetch in effects.fetch:
            self._fetch(fetch)

    def _persist(self, persist: Persist) -> None:
        require(self._inflight is None, "D1: two Persists under way")
        self._inflight = persist
        incarnation = self.incarnation
        delay = self.world.rng.expovariate(1 / self.world.dials.disk_s)
        self.world.after(delay, lambda: self._persisted(incarnation, persist))

    def _persisted(self, incarnation: int, persist: Persist) -> None:
        if self.incarnation != incarnation or self.member is None or self.log is None:
            return
        checker, now = self.world.checker, self.world.now
        if persist.truncate_after is not None:
            self.world.probe("truncated")
            checker.truncated(self.name, persist.truncate_after)
        self.log.persist(persist)
        checker.members[self.name].append(persist.blocks)
        checker.promised(self.name, self.log.control.term)
        checker.index(self.name, self.log.index)
        self._inflight = None
        self.input(incarnation, lambda member: member.persisted(persist.ticket, now))

    def _fetch(self, fetch: Fetch) -> None:
        incarnation = self.incarnation
        delay = self.world.rng.uniform(0, self.world.dials.disk_s)
        self.world.after(delay, lambda: self._fetched(incarnation, fetch))

    def _fetched(self, incarnation: int, fetch: Fetch) -> None:
        if self.log is None or self.incarnation != incarnation:
            return
        blocks = self.log.read(fetch.first, fetch.max_bytes)
        now = self.world.now
        self.world.probe("fetched")
        self.input(incarnation, lambda member: member.fetched(fetch, blocks, now))

    # ---- checks ----------------------------------------------------------------------------

    def _check(self) -> None:
        checker, member, log = self.world.checker, self.member, self.log
        assert member is not None
        assert log is not None
        require(member.term >= self._term, f"I2: {self.name} went back to term {member.term}")
        self._term = member.term
        if member._leading is not None:
            start = member._leading.start
            checker.proposes(self.name, self.incarnation, member.term, start)
            advanced = self._leading and member.commit_position > self._commit
            # (its peers may have flushed its first block before itself)
            own = member.flushed_position >= start
            require(
                not (advanced and own) or member.commit_position >= start,
                f"C2: {self.name} commits {member.commit_position} alone, its term starts {start}",
            )
        self._leading = member._leading is not None
        checker.commits(self.name, self._commit, member.commit_position)
        self._commit = member.commit_position
        require(member.commit_position <= log.index.last, "I5: committed but not flushed here")
        while self._checked < self._commit:
            blocks = log.read(self._checked + 1, 4096)
            require(bool(blocks), f"I5: {self.name} committed {self._commit} and does not have it")
            for block in blocks:
                if block.last > self._commit:
                    break
                checker.committed(self.name, member.term, block, self.world.quorum)
                self._checked = block.last
            else:
                continue
            require(self._checked == self._commit, "I4: a commit position inside a block")


def _ignore(_: object) -> None:
    """Drop a result."""


class World:
    """The whole simulation of one seed."""

    def __init__(self, seed: int, *, storm: bool = False) -> None:
        self.rng = Random(seed)
        self.dials = Dials.draw_storm(self.rng) if storm else Dials.draw(self.rng)
        self.limits = Limits(
            submission=4096,
            block=self.dials.block,
            pending=20_000,
            inflight=4_000,
            fetch=self.dials.fetch,
        )
        self.now = 0.0
        self.names = [f"n{i}" for i in range(1, self.dials.members + 1)]
        self.quorum = len(self.names) // 2 + 1
        self.checker = Checker(self.names)
        self.nodes = {name: SimNode(self, name) for name in self.names}
        self.probes: set[str] = set()
        self.trace = sha256()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._blocked: set[tuple[str, str]] = set()
        self._arrivals: dict[tuple[str, str], float] = {}
        self._submitted = 0
        self._faulty = True

    # ---- time ------------------------------------------------------------------------------

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self._scheduled += 1
        heappush(self._events, (time, self._scheduled, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Do something after a delay."""
        self.at(self.now + delay, action)

    def run(self) -> None:
        """Run both phases.

        Raises:
            InvariantBroken: safety or liveness is violated.
        """
        for node in self.nodes.values():
            node.start()
        self._every(self.dials.submit_every_s, self._submit)
        self._every(self.dials.crash_every_s, self._crash)
        self._every(self.dials.partition_every_s, self._partition)
        self._every(self.dials.pause_every_s, self._pause)
        self._every(self.dials.trim_every_s, self._trim)
        self._run_until(self.dials.duration_s)
        self._heal()
        goal = self.now + HEAL_S
        while not self._settled():
            require(self.now < goal, f"I28: no agreement {HEAL_S} s after all was healed")
            self._run_until(self.now + 0.5)

    def probe(self, name: str) -> None:
        """Note that something rare has happened."""
        self.probes.add(name)

    def _run_until(self, time: float) -> None:
        while self._events and self._events[0][0] <= time:
            self.now, _, action = heappop(self._events)
            action()
        self.now = time

    def _every(self, mean_s: float, action: Callable[[], None]) -> None:
        if not mean_s:
            return

        def again() -> None:
            if self._faulty:
                action()
                self.after(self.rng.expovariate(1 / mean_s), again)

        self.after(self.rng.expovariate(1 / mean_s), again)

    # ---- network ---------------------------------------------------------------------------

    def send(self, sender: str, receiver: str, message: Message) -> None:
        """Carry a message, perhaps late, twice, or never."""
        self.checker.sent(sender, receiver, message)
        frame = b"".join(encode(message))
        self.trace.update(f"{self.now}{sender}{receiver}".encode() + frame)
        copies = 1
        if self._faulty:
            if (sender, receiver) in self._blocked or self.rng.random() < self.dials.loss:
                return
            copies += self.rng.random() < self.dials.duplicate
        for _ in range(copies):
            arrival = self.now + self.rng.expovariate(1 / self.dials.delay_s)
            if not self.dials.reorder:
                arrival = max(arrival, self._arrivals.get((sender, receiver), 0.0))
                self._arrivals[sender, receiver] = arrival
            self.at(arrival, lambda: self.nodes[receiver].receive(sender, decode(frame)))

    # ---- load and faults -------------------------------------------------------------------

    def _submit(self) -> None:
        self._submitted += 1
        node = self.nodes[self.rng.choice(self.names)]
        data = f"{node.name}/{self._submitted}/".encode() + bytes(self.rng.randrange(200))
        node.submit(data, self.rng.randrange(1, 4))

    def _crash(self) -> None:
        victims = self.names if self.rng.random() < 0.2 else [self.rng.choice(self.names)]
        for name in victims:
            node = self.nodes[name]
            node.crash()
            self.after(self.rng.uniform(0.001, self.dials.restart_s), node.start)

    def _partition(self) -> None:
        kind = self.rng.randrange(4)
        pairs = [(a, b) for a in self.names for b in self.names if a != b]
        if kind == 0:
            self._blocked = set()
        elif kind == 1:  # one-way, at random
            self._blocked = {pair for pair in pairs if self.rng.random() < 0.3}
        elif kind == 2:  # one alone
            alone = self.rng.choice(self.names)
            self._blocked = {pair for pair in pairs if alone in pair}
        else:  # two sides
            side = set(self.rng.sample(self.names, len(self.names) // 2))
            self._blocked = {(a, b) for a, b in pairs if (a in side) != (b in side)}

    def _pause(self) -> None:
        self.nodes[self.rng.choice(self.names)].paused_until = self.now + self.rng.uniform(0.1, 1.5)

    def _trim(self) -> None:
        """Trim what everybody has committed, as the caller of the log is obliged to."""
        everywhere = min(member.commit_position for member in self.checker.members.values())
        self.nodes[self.rng.choice(self.names)].trim(everywhere)

    # ---- the liveness phase ----------------------------------------------------------------

    def _heal(self) -> None:
        self._faulty = False
        self._blocked = set()
        self._goal = self.checker.committed_position
        for node in self.nodes.values():
            node.paused_until = self.now
            node.start()

    def _settled(self) -> bool:
        """Tell whether all members agree and something new was ordered since the healing."""
        members = [node.member for node in self.nodes.values() if node.member is not None]
        positions = {member.commit_position for member in members}
        ends = {member.last_position for member in members}
        if positions != ends or len(positions) != 1 or len(members) < len(self.names):
            return False
        fresh = [b for b in self.checker.chain.values() if b.data.startswith(b"fresh")]
        if not fresh:
            self.nodes[self.rng.choice(self.names)].submit(b"fresh", 1)
        return bool(fresh)
