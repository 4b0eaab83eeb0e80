"""Databases on top of simulated logs: which of them hold what was acknowledged.

The replicated state of every member is the real one, and so is the order. Simulated are sessions
with a server, as lightly as can be: a database is a list of the GIDs that had an effect on it. A
writeset names the members that can't apply it, unless by a copy. What members do then is what
``agent/standing/standing.py`` does; an administrator chooses at random.

Checked after each delivered entry: each member's state knows the same of the databases as one that
never restarted, and holds the herd when a naive twin does; nothing is acknowledged while it does;
what was refused never commits; no database takes writes that has applied what was skipped. At the
end all databases are the same, and all that was acknowledged is in them but for what was skipped.
"""

from random import Random

import msgspec
from databases_twin import Twin
from pgherd_sidecar.core.consensus import Block, Component, Membership
from pgherd_sidecar.core.consensus.model.blocks import MEMBERSHIP
from pgherd_sidecar.core.replication.databases import SKIPPED, Database
from pgherd_sidecar.core.replication.entries import (
    STATE_ASKED,
    STATE_PAUSE,
    STATE_STOPPED,
    Condition,
    DatabaseState,
    Entry,
    Incarnation,
    Marker,
    Members,
    Noop,
    Skip,
    Writeset,
    encode_entry,
    iter_entries,
)
from pgherd_sidecar.core.replication.state import DecisionKind, ReplicatedState
from sim_checker import require
from sim_dials import Dials
from sim_node import SimNode
from sim_world import World

_LOOK_S = 0.2
_AGAIN_S = 1.0
_SETTLE_S = 600.0


class _Fate(msgspec.Struct, array_like=True):
    """The body of a writeset: who can't apply it, and why."""

    fails: tuple[str, ...]
    cause: str


def draw_dials(rng: Random) -> Dials:
    """A world in which something commits, and databases meet each kind of fault."""

    def at_times(low: float, high: float) -> float:
        return rng.uniform(low, high) if rng.random() < 0.5 else 0.0

    members = rng.choice([2, 3, 3, 3, 4, 5])
    return Dials(
        members=members,
        spares=rng.choice([0, 0, 1]),
        witnesses=rng.choice([0, 0, (members - 1) // 2]),
        duration_s=60.0,
        submit_every_s=0.3,
        crash_every_s=at_times(3, 15),
        restart_s=rng.choice([0.2, 5.0]),
        partition_every_s=at_times(5, 20),
        pause_every_s=at_times(5, 20),
        leave_every_s=at_times(10, 30),
        trim_every_s=at_times(2, 10),
    )


class SimDatabase:
    """The database of a machine, and the sidecar's part that looks after it."""

    def __init__(self, world: "DatabaseWorld", node: SimNode) -> None:
        self.world, self.node = world, node
        self.number = world.numbers[node.name]
        self._clear()

    def _clear(self) -> None:
        self.disk = self.node.disk_id
        founders = [member.disk for member in self.world.founded.members]
        #: on stable storage: what had an effect, what was passed by, and up to where
        self.chain: list[int] = []
        self.passed: set[int] = set()
        self.end = 0 if self.disk in founders else -1
        self.checkpoint: bytes | None = None
        self.asked = False  # for a rebuild, by an administrator
        self.given_up = False
        self._die()

    def _die(self) -> None:
        """The sidecar has died, or its session has ended: what is in memory is gone."""
        self.process = self.node.incarnation
        self.state: ReplicatedState | None = None
        self.skips: frozenset[int] = frozenset()
        self.failed: tuple[int, str] | None = None
        self.copying_until: float | None = None
        self.said_s = -_AGAIN_S
        self.incarnation = self.sequence = 0
        self.pending: dict[int, tuple[Writeset, float]] = {}

    @property
    def ready(self) -> bool:
        """It takes writes, but for the herd being held."""
        state, member = self.state, self.node.member
        if state is None or member is None or self.failed or not self.incarnation:
            return False
        begun = state.has_begun(self.number, self.incarnation)
        primary = member.component(self.node.clock) is Component.PRIMARY
        return begun and primary and self.end == state.position == member.commit_position

    def say(self, entry: Entry) -> None:
        """Order something, and again after a while."""
        if self.world.now >= self.said_s + _AGAIN_S:
            self.said_s = self.world.now
            self.node.submit(encode_entry(entry), 1)

    # ---- the log -----------------------------------------------------------------------------

    def look(self) -> None:
        """Do what there is to do."""
        node = self.node
        if node.disk_id != self.disk:
            self._clear()
        if node.member is None or node.log is None or self.world.now < node.paused_until:
            return
        if self.process != node.incarnation:
            self._die()
        if self.state is None:
            self._open()
        if self.state is not None:
            self._deliver(self.state)
        if self.state is not None and (self.failed or self.asked or self.given_up):
            self._mend(self.state)
        elif self.state is None:
            self._copy()
        else:
            self._stand(self.state)

    def _open(self) -> None:
        """Begin where the checkpoint is, looking ahead for what is skipped."""
        assert self.node.log is not None
        base = self.node.log.index.base
        if self.end < 0:
            return
        state = None if self.checkpoint is None else ReplicatedState.restore(self.checkpoint)
        if state is None and base == 0:
            state = ReplicatedState(self.world.founders)
        if state is None or state.position < base:
            return  # it is left behind
        ahead, position = state.databases.copy(), state.position
        for position, entry in self._entries(state.position):
            match entry:
                case DatabaseState():
                    ahead.take_state(position, entry)
                case Skip():
                    ahead.skip(position, entry)
                case Members():
                    ahead.install(position, entry.numbers)
        self.state, self.skips = state, frozenset(ahead.skipped)
        for gid in ahead.skipped:
            if gid <= self.end and gid not in self.passed:
                self.failed = (gid, SKIPPED)

    def _entries(self, after: int) -> list[tuple[int, Entry]]:
        assert self.node.member is not None
        assert self.node.log is not None
        found: list[tuple[int, Entry]] = []
        first, last = after + 1, self.node.member.commit_position
        while first <= last:
            for block in self.node.log.read(first, 1 << 20):
                if block.last <= last:
                    found += [one for one in self.world.entries(block) if one[0] > after]
                first = block.last + 1
        return found

    def _deliver(self, state: ReplicatedState) -> None:
        if self.node.log is not None and state.position < self.node.log.index.base:
            self._die()  # its log was begun anew, elsewhere
            return
        for gid, entry in self._entries(state.position):
            decision = state.deliver(gid, entry)
            self.world.same(gid, state)
            if isinstance(entry, Writeset):
                self._take(gid, entry, decision.kind)
            elif isinstance(entry, Skip) and entry.gid in state.databases.skipped:
                applied = entry.gid <= self.end and entry.gid not in self.passed
                if applied:
                    self.failed = (entry.gid, SKIPPED)
            if not self.failed:
                self.end = max(self.end, gid)
        if not self.failed and self.world.rng.random() < 0.05:
            self.checkpoint = state.checkpoint()

    def _take(self, gid: int, writeset: Writeset, kind: DecisionKind) -> None:
        mine = self.pending.pop(writeset.sequence, None)
        mine = mine if (writeset.member, writeset.incarnation) == self._identity else None
        self.world.decided(gid, writeset, kind)
        if kind is not DecisionKind.COMMIT or gid <= self.end or self.failed:
            return
        fate = msgspec.json.decode(writeset.body, type=_Fate)
        if gid in self.skips:
            self.passed.add(gid)
        elif self.node.name in fate.fails and mine is None:
            self.world.probe("diverged")
            self.failed = (gid, fate.cause)
        else:
            self.chain.append(gid)
            if mine is not None:
                self.world.acknowledged(gid)

    @property
    def _identity(self) -> tuple[int, int]:
        return self.number, self.incarnation

    # ---- a session that goes on --------------------------------------------------------------

    def _stand(self, state: ReplicatedState) -> None:
        """Begin an incarnation, send again, and say that this database is whole."""
        member = self.node.member
        assert member is not None
        if not self.incarnation:
            self.incarnation = state.incarnation(self.number) + 1 + self.world.rng.randrange(3)
        if not state.has_begun(self.number, self.incarnation):
            if state.incarnation(self.number) >= self.incarnation:
                self.incarnation = 0
                return
            self.say(Incarnation(*self._identity))
            return
        own = state.databases.of(self.number)
        if self.ready:
            for gid in state.databases.skipped:
                require(gid in self.passed, f"W6: {self.node.name} has applied {gid}, skipped")
            if own is not None and own.condition is not Condition.WHOLE:
                self.say(DatabaseState(self.number, Condition.WHOLE, own.since))
        for sequence, (writeset, sent_s) in self.pending.items():
            if self.world.now >= sent_s + 2 * _AGAIN_S:
                self.pending[sequence] = (writeset, self.world.now)
                self.node.submit(encode_entry(writeset), 1)

    def checkpointed(self, position: int) -> bool:
        """Take a checkpoint that goes beyond a position, unless the database does not."""
        state = self.state
        if state is None or self.failed or self.end != state.position or self.end < position:
            return False
        self.checkpoint = state.checkpoint()
        return True

    def write(self, fate: _Fate) -> None:
        """Have a client commit something here, if this member takes writes."""
        if not self.ready or self.state is None:
            return
        if self.state.databases.hold is not None and self.world.rng.random() < 0.8:
            return  # refused early; what the rest finds is that the verdict refuses it
        self.sequence += 1
        keys = b"".join(n.to_bytes(8, "big") for n in (self.state.position, 1, self.sequence << 2))
        writeset = Writeset(
            *self._identity, self.sequence, 1, 7, 0, keys, msgspec.json.encode(fate)
        )
        self.pending[self.sequence] = (writeset, self.world.now)
        self.node.submit(encode_entry(writeset), 1)

    # ---- one that can't go on ----------------------------------------------------------------

    def _mend(self, state: ReplicatedState) -> None:
        own, held = state.databases.of(self.number), state.databases.hold is not None
        gid, cause = self.failed or (0, "")
        asked = self.asked or cause == SKIPPED or (own is not None and own.applied_skipped)
        if own is None:
            self._copy()
        elif gid in state.databases.skipped and cause != SKIPPED:
            self.given_up = self.asked = False
            self._die()  # the next session passes it by
        elif self.copying_until is not None:
            self._copy()
        elif self.given_up and not asked:
            if own.condition is not Condition.FAILED:
                stopped = STATE_STOPPED if own.stopped else 0
                words = "" if own.cause else "no copy"
                self._tell(Condition.FAILED, own.since, 0, words, stopped)
        elif not asked and self.failed and not self._told(own):
            self._tell(Condition.DIVERGED, own.since, gid, cause, self.world.pause)
        elif held and not asked:
            self.world.probe("waits")
        elif own.stopped and not state.databases.whole_beside(self.number):
            self.world.probe("nobody to copy")
        elif own.condition is Condition.REBUILDING and (not asked or self.said_s > 0):
            self._copy()
        else:
            flags = STATE_ASKED if asked else 0
            self._tell(Condition.REBUILDING, own.since, 0, "", flags)

    def _told(self, own: Database) -> bool:
        """The log knows at which entry this database has stopped."""
        assert self.failed is not None
        goes_on = own.stopped or own.condition is Condition.REBUILDING
        return goes_on and own.gid == self.failed[0]

    def _tell(self, condition: Condition, after: int, gid: int, cause: str, flags: int) -> None:
        now, within = int(self.world.now), self.world.within_s
        self.say(DatabaseState(self.number, condition, after, gid, now, within, flags, cause))

    def _copy(self) -> None:
        """Take a copy of whoever is ready, unless that fails."""
        world = self.world
        if self.copying_until is None:
            self.copying_until = world.now + world.rng.uniform(0.5, 5)
        if world.now < self.copying_until:
            return
        assert self.node.log is not None
        base, last = self.node.log.index.base, self.node.log.index.last
        partners = [
            one
            for one in world.databases.values()
            if one is not self and one.ready and one.state is not None and one.end >= base
        ]
        if not partners:
            return
        partner = world.rng.choice(partners)
        assert partner.state is not None
        if partner.state.position > last:
            return  # this member has yet to be fed
        self.copying_until = None
        if world.faulty and self.failed and world.rng.random() < 0.3:
            world.probe("rebuild failed")
            self.given_up, self.asked = True, False
            return
        world.probe("copied")
        self.chain, self.passed = list(partner.chain), set(partner.passed)
        self.end, self.checkpoint = partner.end, partner.state.checkpoint()
        self.asked = self.given_up = False
        self._die()


class DatabaseWorld(World):
    """A world whose machines have databases."""

    def __init__(self, seed: int, dials: Dials | None = None) -> None:
        rng = Random(f"databases {seed}")
        super().__init__(seed, dials or draw_dials(rng), splits=False)
        self.noop = encode_entry(Noop())
        self.numbers = {name: number for number, name in enumerate(self.names, 1)}
        self.founders = self._numbers(self.founded)
        self.pause = STATE_PAUSE if rng.random() < 0.3 else 0
        self.within_s = rng.choice([5, 30, 1000])
        self._harm = rng.choice([0.0, 0.02, 0.1, 0.2])
        self.databases = {
            name: SimDatabase(self, node) for name, node in self.nodes.items() if not node.witness
        }
        self.truth = ReplicatedState(self.founders)
        self.twin = Twin.of(self.founders)
        self._known: list[bytes] = [b""]
        self._held: list[bool] = [False]
        self._commits: set[int] = set()
        self._acknowledged: set[int] = set()
        self._refused: set[tuple[int, int, int]] = set()
        self._waits_s = 0.0

    @property
    def faulty(self) -> bool:
        """Whether faults are still made."""
        return self._faulty

    def _numbers(self, membership: Membership) -> tuple[int, ...]:
        return tuple(sorted({self.numbers[m.name] for m in membership.members if not m.witness}))

    def entries(self, block: Block) -> list[tuple[int, Entry]]:
        """What a block says."""
        if block.kind == MEMBERSHIP:
            members = Members(self._numbers(Membership.decode(block.data)))
            return [(block.first, members)]
        return list(enumerate(iter_entries(block.data), block.first))

    def sign(self, cluster: str) -> bytes:
        """What is ordered at the end."""
        return encode_entry(Marker(cluster.encode()[:16]))

    # ---- what is checked ---------------------------------------------------------------------

    def _learn(self, position: int) -> None:
        """Deliver the one true order to a state that never restarts, and to the twin."""
        while self.truth.position < position:
            block = self.checker.chain[self.truth.position + 1]
            for gid, entry in self.entries(block):
                decision = self.truth.deliver(gid, entry)
                self.twin.deliver(gid, entry)
                held = self.twin.held_since is not None
                found = self.truth.databases.hold is not None
                require(held == found, f"W2: at {gid} held is {found}, and should be {held}")
                self._known.append(self.truth.databases.dump().tobytes())
                self._held.append(held)
                if held:
                    self.probe("held")
                elif len(self._held) > 1 and self._held[-2]:
                    self.probe("released")
                if isinstance(entry, Skip) and entry.gid in self.truth.databases.skipped:
                    self.probe("skipped")
                if decision.kind is DecisionKind.COMMIT:
                    assert isinstance(entry, Writeset)
                    self._commits.add(gid)
                    identity = (entry.member, entry.incarnation, entry.sequence)
                    require(identity not in self._refused, f"W4: {gid} was refused before")

    def same(self, position: int, state: ReplicatedState) -> None:
        """Check what a member knows of the databases at a position."""
        self._learn(position)
        known = state.databases.dump().tobytes()
        require(known == self._known[position], f"W1: members differ about databases at {position}")

    def decided(self, gid: int, writeset: Writeset, kind: DecisionKind) -> None:
        """Check a decision."""
        if kind is DecisionKind.REFUSED:
            self.probe("refused")
            identity = (writeset.member, writeset.incarnation, writeset.sequence)
            self._refused.add(identity)

    def acknowledged(self, gid: int) -> None:
        """Check what a client hears."""
        self._learn(gid)
        require(not self._held[gid - 1], f"W3: {gid} was acknowledged, and the herd was held")
        require(gid in self._commits, f"W3: {gid} was acknowledged, and did not commit")
        self._acknowledged.add(gid)

    # ---- what happens ------------------------------------------------------------------------

    def run(self) -> None:
        """See ``World``."""
        self._every(_LOOK_S, self._look)
        self._every(5.0, self._choose)
        super().run()
        goal = self.now + _SETTLE_S
        while not self._whole():
            require(self.now < goal, f"W7: databases are not whole {_SETTLE_S} s after all healed")
            self._run_until(self.now + 0.5)
        wanted = sorted(self._commits - set(self.truth.databases.skipped))
        for name, one in self.databases.items():
            require(one.chain == wanted, f"W5: {name} has {one.chain}, not {wanted}")

    def _whole(self) -> bool:
        return self.truth.databases.hold is None and all(
            one.ready and one.end == self.truth.position for one in self.databases.values()
        )

    def _look(self) -> None:
        self._learn(self.checker.committed_position)
        for name in self.rng.sample(sorted(self.databases), len(self.databases)):
            self.databases[name].look()

    def _submit(self) -> None:
        one = self.databases[self.rng.choice(sorted(self.databases))]
        fails: tuple[str, ...] = ()
        if self.rng.random() < self._harm:
            some = [name for name in sorted(self.databases) if name != one.node.name]
            fails = tuple(some if self.rng.random() < 0.6 else some[:1])
        one.write(_Fate(fails, self.rng.choice(["P0001 rows", "P0001 rows", "23505 rows"])))

    def _trim(self) -> None:
        """Have a member trim its log; one with a database only what its checkpoint covers."""
        name = self.rng.choice(self.names)
        one, member = self.databases.get(name), self.nodes[name].member
        if one is not None and not (member and one.checkpointed(member.restart_position)):
            return
        self.nodes[name].trim()

    def _leave(self) -> None:
        """Have a member leave, if others hold what it holds: else it is refused."""
        if self.truth.databases.hold is None and len(self.truth.databases.whole) > 2:
            super()._leave()

    def _choose(self) -> None:
        """An administrator looks now and then, and chooses among what there is."""
        waiting = [o for o in self.databases.values() if o.state and (o.failed or o.given_up)]
        if not waiting or (self._faulty and self.rng.random() < 0.5):
            return
        one = self.rng.choice(waiting)
        assert one.state is not None
        gids = [db.gid for _, db in one.state.databases.items() if db.stopped]
        hold = one.state.databases.hold
        if hold is not None and gids and self.rng.random() < 0.5:
            self.tell("admin", f"skips one of {gids}")
            one.node.submit(encode_entry(Skip(self.rng.choice(gids))), 1)
        elif any(other.ready for other in self.databases.values()):  # else it is refused
            self.tell("admin", f"asks {one.node.name} to be rebuilt")
            one.asked, one.given_up, one.said_s = True, False, -_AGAIN_S
