"""A herd of log members in virtual time, with everything that can go wrong drawn from one seed.

Real: the core, and in some worlds the codec, the segments and their recovery. Simulated: time,
network, disk, death, and an administrator who adds and removes members. A run has two phases:
faults and load, with safety checked after each event; then all is healed, every machine becomes a
member, and they must agree, and order something new, within bounded virtual time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from random import Random
from uuid import UUID

from pgherd_sidecar.core.consensus import Limits, LogBase, LogMember, Membership
from pgherd_sidecar.core.consensus.model.codec import decode, encode
from pgherd_sidecar.core.consensus.model.messages import Message
from sim_checker import Checker, require
from sim_dials import Dials
from sim_net import Network
from sim_node import SimNode
from sim_processes import Clock
from sim_promoter import Promoter
from sim_readers import Readers
from sim_split import Splits, fit

HEAL_S = 300.0
#: more than any sound protocol sends
MESSAGES_PER_SECOND = 3000


class World:
    """The whole simulation of one seed."""

    def __init__(  # noqa: PLR0913 - kinds of worlds, all by name
        self,
        seed: int,
        dials: Dials | None = None,
        *,
        storm: bool = False,
        segments: bool = False,
        rot: bool = False,
        splits: bool | None = None,
        reads: bool | None = None,
        follow: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.cluster = str(UUID(int=seed))
        draw = Dials.draw_rotten if rot else Dials.draw_storm if storm else Dials.draw
        self.dials = dials or draw(self.rng)
        # drawn apart: a seed without splits is the same whether or not there are any; the word
        # decides what happens, so it stays for the sake of the seeds that are remembered
        apart = Random(f"parting {seed}")
        may_split = dials is None and not (storm or segments or rot) and apart.random() < 0.25
        if may_split if splits is None else splits:
            self.dials = self.dials.with_splits(apart)
        # likewise drawn apart
        apart = Random(f"reads {seed}")
        may_read = dials is None and apart.random() < 0.3
        if may_read if reads is None else reads:
            self.dials = self.dials.read(apart)
        apart = Random(f"followers {seed}")
        drawn = dials is None and splits is None and reads is None and not self.dials.splits
        may_follow = drawn and apart.random() < 0.25
        if may_follow if follow is None else follow:
            self.dials = self.dials.followed(apart)
        if segments:
            self.dials = replace(self.dials, segments=True)
        # likewise: members hear when a process has ended, and at times that one has which lives
        self._ends = Random(f"ends {seed}")
        self._told = dials is None and self._ends.random() < 0.5
        self.limits = Limits(
            submission=4096,
            block=self.dials.block,
            pending=1500 if self.dials.block == 100 else 20_000,
            inflight=4_000,
            fetch=self.dials.fetch,
        )
        self.clock = clock or Clock()
        #: the first entry of a proposer's term
        self.noop = b"noop"
        count = self.dials.members
        self.names = [f"n{i}" for i in range(1, count + self.dials.spares + 1)]
        self.nodes: dict[str, SimNode] = {}
        for i, name in enumerate(self.names):
            self.nodes[name] = SimNode(
                self,
                name,
                witness=i < self.dials.witnesses,
                follower=i >= len(self.names) - self.dials.followers,
            )
        self.founded = Membership.founded(self.nodes[name].identity for name in self.names[:count])
        self.checker = Checker(self.founded)
        self.splits = Splits(self.cluster, self.checker)
        self.network = Network(self.rng, self.dials, self.names, self.at)
        self.probes: set[str] = set()
        #: the latest of what happened: (time, who, what)
        self.story: deque[tuple[float, str, object]] = deque(maxlen=400)
        self.trace = sha256()
        self._submitted = 0
        self._faulty = True
        self.promoter = Promoter(self)
        self.readers = Readers(self)

    # ---- time ------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time."""
        return self.clock.now

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something at a time."""
        self.clock.at(time, action)

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Do something after a delay."""
        self.at(self.now + delay, action)

    def run(self) -> None:
        """Run both phases.

        Raises:
            InvariantBroken: safety or liveness is violated.
        """
        self.begin()
        self._run_until(self.dials.duration_s)
        self.converge()

    def begin(self) -> None:
        """Start the members, and have everything go wrong from now on."""
        for name in self.names[: self.dials.members]:
            self.nodes[name].start()
        dials = self.dials
        self._every(dials.admin_every_s, self._administer)
        for mean_s, act in (
            (dials.submit_every_s, self._submit),
            (dials.crash_every_s, self._crash),
            (dials.fail_every_s, self._fail_disk),
            (dials.stall_every_s, self._stall),
            (dials.lose_every_s, self._lose_disk),
            (dials.rot_every_s, self._rot),
            (dials.partition_every_s, self._partition),
            (dials.swizzle_every_s, self._swizzle),
            (dials.break_every_s, self._break),
            (dials.pause_every_s, self._pause),
            (dials.leave_every_s, self._leave),
            (dials.promote_reader_every_s, self._promote_reader),
            (dials.trim_every_s, self._trim),
            (dials.promote_every_s, self.promoter.promote),
            (dials.read_every_s, self.readers.read),
        ):
            self._every(mean_s, act, until_healed=True)
        if self._told:
            self._lie()

    def converge(self) -> None:
        """Heal everything; then all must agree soon, and not have sent too much for it.

        Raises:
            InvariantBroken: safety or liveness is violated.
        """
        self.heal()
        patience_s = HEAL_S * (4 if self.dials.splits else 1)
        goal = self.now + patience_s
        while not self._settled():
            require(self.now < goal, f"I28: no agreement {patience_s} s after all was healed")
            self._run_until(self.now + 0.5)
        bound = MESSAGES_PER_SECOND * len(self.names) * self.now
        require(self.network.sent < bound, f"I30: {self.network.sent} messages in {self.now} s")

    def probe(self, name: str) -> None:
        """Note that something rare has happened."""
        self.probes.add(name)

    def tell(self, who: str, what: object) -> None:
        """Add to the story."""
        self.story.append((self.now, who, what))

    def _run_until(self, time: float) -> None:
        self.clock.run_until(time)

    def _every(
        self, mean_s: float, action: Callable[[], None], *, until_healed: bool = False
    ) -> None:
        if not mean_s:
            return

        def again() -> None:
            if self._faulty or not until_healed:
                action()
                self.after(self.rng.expovariate(1 / mean_s), again)

        self.after(self.rng.expovariate(1 / mean_s), again)

    def send(self, sender: SimNode, receiver: str, message: Message) -> None:
        """Carry a message, perhaps late, twice, or never."""
        sender.checker.sent(sender.disk_id, sender.name, receiver, message)
        self.tell(sender.name, (receiver, message))
        name, disk, target = sender.name, sender.disk_id, self.nodes[receiver]
        if self.dials.wire:
            frame = b"".join(encode(message))
            self.trace.update(f"{self.now}{name}{receiver}".encode() + frame)
            message = decode(frame)
        link = sender.link_to(target)
        if link is None:
            return
        if self.dials.splits:
            self.splits.says(sender, message)
            if not fit(sender.splitter, target.splitter):
                return
        cluster, other = sender.splitter.cluster, target.splitter.cluster

        def deliver() -> None:
            if target.disk_id == link and target.splitter.cluster == other:
                self.splits.hears(target, cluster, message)
                target.receive(name, disk, message)

        self.network.send((name, receiver), self.now, deliver)

    # ---- load and administration -----------------------------------------------------------

    def base_for(self, node: SimNode) -> LogBase:
        """Return what the log of a new or rebuilt member begins after."""
        founder = node.disk_id in [member.disk for member in self.founded.members]
        if founder and node.log is not None and node.log.fresh:
            return LogBase(membership=self.founded)
        partners = [
            n
            for n in self.nodes.values()
            if n is not node
            and n.member is not None
            and n.splitter.cluster == node.splitter.cluster
        ]
        # as old as any member needs, so that this one could feed them all
        late = self.dials.join_late
        bases = [
            p.member.base_at(p.member.commit_position if late else p.member.oldest_needed)
            for p in partners
            if p.member
        ]
        return max(bases, key=lambda base: base.position, default=LogBase())

    def _submit(self) -> None:
        self._submitted += 1
        node = self.nodes[self.rng.choice(self.names)]
        data = f"{node.name}/{self._submitted}/".encode() + bytes(self.rng.randrange(200))
        node.submit(data, self.rng.randrange(1, 4))

    def _administer(self) -> None:
        """Ask some member to let in who is out, and to let go who will not return."""
        asked = self.nodes[self.rng.choice(self.names)]
        if asked.member is None:
            return
        now = asked.member.membership
        for node in self.nodes.values():
            member = next((m for m in now.members if m.name == node.name), None)
            if node.splitter.cluster != asked.splitter.cluster:
                if member is not None:
                    asked.change(leave=((node.name, member.disk),))
                continue
            if member is None and node.member is None and self.rng.random() < 0.3:
                node.start()
            elif member is None and node.member is not None:
                asked.change(join=node.identity)
            elif member is not None and member.disk != node.disk_id:
                asked.change(leave=((node.name, member.disk),))
            elif member is not None and member.reader and not node.follower:
                asked.change(join=node.identity)
            elif node.member is not None and (node.member.behind or node.member.damaged_for_good):
                node.rebuild()

    def _leave(self) -> None:
        asked, gone = self.rng.choice(self.names), self.rng.choice(self.names)
        self.tell("admin", f"asks {asked} to let {gone} go")
        self.nodes[asked].change(leave=((gone, ""),))

    def _promote_reader(self) -> None:
        """Have a reader become a member like others: it asks to, again and again."""
        followers = [node for node in self.nodes.values() if node.follower]
        if followers:
            node = self.rng.choice(followers)
            node.follower = False
            self.probe("reader promoted")
            self.tell(node.name, "is no reader any more")

    def _trim(self) -> None:
        self.nodes[self.rng.choice(self.names)].trim()

    # ---- faults ----------------------------------------------------------------------------

    def _crash(self) -> None:
        victims = self.names if self.rng.random() < 0.2 else [self.rng.choice(self.names)]
        for name in victims:
            self.kill(self.nodes[name])

    def kill(self, node: SimNode) -> None:
        """Have a process die, and start again later."""
        if not node.alive:
            return
        self.tell(node.name, "dies")
        node.crash()
        self.after(self.rng.uniform(0.001, self.dials.restart_s), node.start)
        for other in self.nodes.values() if self._told else ():
            if other is not node and self._ends.random() < 0.8:
                delay_s = self._ends.uniform(0, 10 * self.dials.delay_s)
                self.after(delay_s, partial(other.hear_of_end, node.name))

    def _lie(self) -> None:
        """Tell somebody that a process has ended, until all is healed."""
        if self._faulty:
            told, alive = self._ends.choice(self.names), self._ends.choice(self.names)
            self.probe("end of a process told wrongly")
            self.nodes[told].hear_of_end(alive)
            self.after(self._ends.expovariate(1 / self._ends.choice((0.2, 5))), self._lie)

    def _fail_disk(self) -> None:
        """A write fails, and the process with it."""
        node = self.nodes[self.rng.choice(self.names)]
        if node._inflight is not None:
            self.probe("disk failed")
            self.kill(node)

    def _stall(self) -> None:
        node = self.nodes[self.rng.choice(self.names)]
        node.stalled_until = self.now + self.rng.uniform(1, self.dials.stall_s)
        self.tell(node.name, f"disk stalls until {node.stalled_until:.3f}")

    def _lose_disk(self) -> None:
        """Lose one disk, if every view that may count has a majority without the lost ones."""
        node = self.nodes[self.rng.choice(self.names)]
        cluster, gone = node.splitter.cluster, self.splits.gone
        checker = self.splits.checkers[cluster]
        here = [n for n in self.nodes.values() if n.splitter.cluster == cluster]
        present = {n.disk_id for n in here if (n.name, n.disk_id, cluster) not in gone}
        if node.disk_id not in present or checker.inherited == checker.committed_position > 0:
            return  # others may wait for what is on it alone
        present.remove(node.disk_id)
        memberships = [checker.memberships[-1]]
        memberships += [n.log.index.membership for n in here if n.log]
        memberships += [n.member.membership for n in here if n.member]
        if any(node.disk_id in [m.disk for m in now.learners] for now in memberships):
            return  # it may be about to vote
        for membership in memberships:
            for view in membership.views:
                left = [voter for voter in view.members if voter.disk in present]
                if 2 * len(left) <= len(view.members) or all(m.witness for m in left):
                    return
        self.probe("disk lost")
        self.tell(node.name, "loses its disk")
        if self.dials.splits:
            primary = {n.splitter.cluster for n in self.nodes.values() if n.primary}
            cluster = self.rng.choice(sorted(primary | {cluster}))
        node.lose_disk(cluster)
        self.after(self.rng.uniform(0.5, 5), node.start)

    def _rot(self) -> None:
        """Damage one log, if every view that may count has a majority of whole ones without it."""
        node = self.nodes[self.rng.choice(self.names)]
        if node.member is None:
            return
        for other in self.nodes.values():
            other.readable()
        rotten = {n.disk_id for n in self.nodes.values() if n is node or n.rotten}
        memberships = [self.checker.memberships[-1]]
        memberships += [n.member.membership for n in self.nodes.values() if n.member]
        if any(membership.learners for membership in memberships):
            return  # one of them may be about to vote
        for view in (view for membership in memberships for view in membership.views):
            if node.name not in view.voters:
                return
            whole = sum(member.disk not in rotten for member in view.members)
            if 2 * whole <= len(view.members):
                return
        self.tell(node.name, "a bit of its disk rots")
        node.rot()

    def sign(self, cluster: str) -> bytes:
        """What is ordered at the end, to see that something can be."""
        return f"fresh {cluster}".encode()

    def look(self, node: SimNode, member: LogMember) -> None:
        """Look at a member that has taken an input."""
        self.readers.look(node, member)

    def point(self, node: SimNode, kind: str) -> None:
        """Something that a member has to remember is about to be written."""

    def _partition(self) -> None:
        self.tell("network", f"partition: {self.network.partition()}")

    def _swizzle(self) -> None:
        """Clog some machines one after the other, and unclog them in another order."""
        some = self.rng.sample(self.names, self.rng.randrange(1, len(self.names) + 1))
        for name in some:
            clogged = self.rng.uniform(0, 5)
            self.after(clogged, partial(self.network.clog, name))
            self.after(clogged + self.rng.uniform(0, 5), partial(self.network.unclog, name))

    def _break(self) -> None:
        if len(self.names) > 1:
            self.network.break_link()

    def _pause(self) -> None:
        node = self.nodes[self.rng.choice(self.names)]
        node.paused_until = self.now + self.rng.uniform(0.1, 1.0) * self.dials.pause_s
        self.tell(node.name, f"pauses until {node.paused_until:.3f}")

    # ---- the liveness phase ----------------------------------------------------------------

    def heal(self) -> None:
        """Let nothing go wrong any more."""
        self._faulty = False
        self.network.heal()
        self.tell("world", "everything is healed")
        for node in self.nodes.values():
            node.paused_until = node.stalled_until = self.now
            node.start()
        if self.dials.splits:
            self._every(1.0, self.promoter.rescue)

    def _settled(self) -> bool:
        """Tell whether the machines of each cluster vote and agree, and it has ordered anew."""
        clusters = {node.splitter.cluster for node in self.nodes.values()}
        if not all(self._agreed(cluster) for cluster in sorted(clusters)):
            return False
        return not self.dials.read_every_s or self.readers.settled()

    def _agreed(self, cluster: str) -> bool:
        nodes = [node for node in self.nodes.values() if node.splitter.cluster == cluster]
        members = [node.member for node in nodes if node.member is not None]
        checker = self.splits.checkers[cluster]
        now = checker.memberships[-1]
        learners = {m.disk for m in now.learners if m.witness or m.reader}
        followers = {node.disk_id for node in nodes if node.follower}
        voting = followers & {member.disk for member in now.views[-1].members}
        require(not voting, f"V8: readers vote: {voting} in {now}")
        disks = learners | {member.disk for member in now.views[-1].members}
        if now.joint or disks != {node.disk_id for node in nodes}:
            return False
        positions = {member.commit_position for member in members}
        ends = {member.last_position for member in members}
        if positions != ends or len(positions) != 1 or len(members) < len(nodes):
            return False
        if not all(node.readable() for node in nodes):
            return False
        sign = self.sign(cluster)
        fresh = any(sign in b.data for b in checker.chain.values())
        if not fresh:
            self.rng.choice(nodes).submit(sign, 1)
        return fresh
