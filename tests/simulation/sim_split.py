"""A simulated member's share in a split for good, and what must hold of all splits. [S1-S7, C21]

`SimSplitter` is the shell around the core's decisions, like `splitter` and `splitsteps` of the
sidecar: it sends what is said, keeps on disk what is known, and does the steps that take a closed
log, late and one at a time, so that the process may die before, between and in the midst of them.

`Splits` is told of all that. Each cluster has a checker of its own, which begins with the log of
the seed; besides

S1  nobody consents whose log makes the parties a quorum
S3  who has consented says nothing more of the old cluster's log, and is never again a part of it
S4  consents are true, and nothing that a party knew to be committed is missing in the seed's log
S5  nothing of one cluster's log reaches a member of another
S6  a member goes from a cluster to one other at most
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pgherd_sidecar.core.consensus import Identity, Membership, Persist
from pgherd_sidecar.core.consensus.model import identity as guard
from pgherd_sidecar.core.consensus.model.blocks import LogIndex
from pgherd_sidecar.core.consensus.model.messages import Message
from pgherd_sidecar.core.consensus.model.split import SplitMessage, SplitPlan, founding
from pgherd_sidecar.core.consensus.split import laststep
from pgherd_sidecar.core.consensus.split.splitting import (
    Absent,
    Impossible,
    SplitSurroundings,
    Splitting,
)
from sim_checker import Checker, Witnessed, require

if TYPE_CHECKING:
    from sim_node import SimNode


class Splits:
    """All clusters of a world, and what was promised when they split."""

    def __init__(self, cluster: str, checker: Checker) -> None:
        self.checkers = {cluster: checker}
        #: name, disk and cluster of those that have consented to leave it
        self.gone: set[tuple[str, str, str]] = set()
        #: where a disk went, by it and the cluster that it left
        self._went: dict[tuple[str, str], str] = {}
        #: what each party had when it consented, by new cluster and disk
        self._had: dict[tuple[str, str], tuple[Witnessed, LogIndex]] = {}

    def consented(self, node: "SimNode", plan: SplitPlan, index: LogIndex) -> None:
        """Check and remember a consent, which is on disk."""
        quorum = index.membership.has_quorum(plan.names)
        require(not quorum, f"S1: {plan.names} are a quorum by the log of {node.name}")
        self.gone.add((node.name, node.disk_id, plan.cluster))
        known = node.checker.disks[node.disk_id]
        self._had[plan.successor, node.disk_id] = known.copy(), index.copy()

    def became(self, node: "SimNode", known: SplitMessage) -> None:
        """Give a member that has a new identity to the checker of that cluster."""
        cluster = known.plan.successor
        went = self._went.setdefault((node.disk_id, known.plan.cluster), cluster)
        require(went == cluster, f"S6: {node.name} becomes one of {went} and of {cluster}")
        if cluster not in self.checkers:
            self.checkers[cluster] = self._split(node.checker, known)
        checker = node.checker = self.checkers[cluster]
        checker.disks[node.disk_id] = self._had[cluster, node.disk_id][0].copy()

    def _split(self, old: Checker, known: SplitMessage) -> Checker:
        plan, found = known.plan, founding(known.consents)
        require(len(known.consents) == len(plan.parties), f"S4: {known} is not complete")
        for one in known.consents:
            index = self._had[plan.successor, one.member.disk][1]
            end = index.last_term, index.last
            require((one.last_term, one.last_position) == end, f"S4: {one}, its log ends at {end}")
        disks = dict(plan.parties)
        seed, index = self._had[plan.successor, disks[found.seed]]
        view = laststep.new_view(found.term, found.members, index).blocks[0]
        checker = old.split(seed, view)
        for one in known.consents:
            had, _ = self._had[plan.successor, one.member.disk]
            for block in had.log():
                if block.last <= had.commit_position:
                    fits = checker.chain.get(block.first) == block
                    require(fits, f"S4: {block}, committed at {one.member.name}, is not the seed's")
        return checker

    def says(self, node: "SimNode", message: Message) -> None:
        """Check what leaves a member."""
        gone = (node.name, node.disk_id, node.splitter.cluster) in self.gone
        require(not gone or isinstance(message, SplitMessage), f"S3: {node.name} says {message}")

    def hears(self, node: "SimNode", cluster: str, message: Message) -> None:
        """Check what reaches a member; who has consented is linked with both clusters, and deaf."""
        same = cluster == node.splitter.cluster or isinstance(message, SplitMessage)
        here = node.splitter.cluster
        fine = same or node.member is None
        require(fine, f"S5: {node.name} of {here} hears {message} of {cluster}")


class SimSplitter:
    """What of a machine is about splits.

    Attributes:
        cluster: that it is of, by the identity on its disk.
        known: what is on its disk about a split; so is `done`.
        splitting: decides, while a process runs.
        closed: a process runs, and does something with the log closed.
    """

    def __init__(self, node: "SimNode", cluster: str, delay_s: float | None) -> None:
        self.cluster = cluster
        self.known: SplitMessage | None = None
        self.done = False
        self.splitting: Splitting | None = None
        self.closed = False
        self._node = node
        self._delay_s = delay_s
        self._life = 0
        self._resumed = False
        self._linked: frozenset[str] = frozenset()

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self.closed or self.splitting is not None

    @property
    def sealed(self) -> bool:
        """Whether a process runs that has consented, and waits."""
        return self.splitting is not None and self.splitting.sealed

    def die(self) -> None:
        """Forget what is not on disk."""
        self._life += 1
        self.splitting, self.closed, self._resumed = None, False, False

    # ---- with the log closed ---------------------------------------------------------------

    def ready(self) -> bool:
        """Tell whether the log may be opened for a new life; else do first what is left to do."""
        if self._resumed:
            self._resumed = False
            return True
        remains = laststep.remains(self._node.name, self.cluster, self.known, done=self.done)
        if remains:
            self.closed = True
            self._later(self._last_step)
        return not remains

    def _last_step(self) -> None:
        node, known = self._node, self.known
        assert known is not None
        node.open()
        assert node.log is not None
        log = node.log
        self._go_on(laststep.last_step(node.name, self.cluster, known, log.control, log.index))

    def _go_on(self, steps: "Iterator[laststep.Become | Persist]") -> None:
        node, known = self._node, self.known
        assert known is not None and node.log is not None
        step = next(steps, None)
        if isinstance(step, Persist):
            node.begin_writing(step)
            self._later(lambda: self._persisted(step, steps))
            return
        node.world.point(node, "note")
        if step is None:
            node.world.probe("split")
            self.done = self._resumed = True
            self._open()
            return
        self.cluster = step.cluster
        node.world.tell(node.name, f"is of cluster {self.cluster}")
        node.world.splits.became(node, known)
        self._later(lambda: self._go_on(steps))

    def _persisted(self, step: Persist, steps: "Iterator[laststep.Become | Persist]") -> None:
        self._node.end_writing(step)
        self._later(lambda: self._go_on(steps))

    def _consent(self, plan: SplitPlan) -> None:
        node = self._node
        node.open()
        assert node.log is not None
        log = node.log
        known = laststep.consent(self.known, plan, node.identity, log.control, log.index)
        if known is None:
            node.world.probe("could go on instead")
        else:
            node.world.point(node, "note")
            self.known, self.done = known, False
            node.world.tell(node.name, f"consents to {plan.names}")
            node.world.splits.consented(node, plan, log.index)
        self._open()

    def _open(self) -> None:
        def begin() -> None:
            self.closed = False
            self._node.start()

        self._later(begin)

    def _later(self, action: Callable[[], None]) -> None:
        """Do something later, unless the process has died by then."""
        world, life = self._node.world, self._life
        delay = world.rng.expovariate(1 / world.dials.disk_s)
        world.after(delay, lambda: action() if life == self._life else None)

    # ---- while the log runs ----------------------------------------------------------------

    def begin(self) -> bool:
        """Begin a life; tell whether the member takes part in the log."""
        node, self._life = self._node, self._life + 1
        self.splitting = Splitting(
            node.name, node.disk_id, self.cluster, self.known, delay_s=self._delay_s
        )
        life = self._life
        node.world.after(node.world.dials.look_s, lambda: self._look(life))
        return not self.sealed

    def _look(self, life: int) -> None:
        node = self._node
        if life != self._life or self.splitting is None:
            return
        world = node.world
        if world.now < node.paused_until:
            world.at(node.paused_until, lambda: self._look(life))
            return
        world.after(world.dials.look_s, lambda: self._look(life))
        if world.rng.random() < 0.8:
            self._linked = frozenset(
                other.name for other in world.nodes.values() if world.promoter.linked(node, other)
            )
        self.splitting.tick(self.seen, node.clock)
        self._carry_out()

    def receive(self, sender: str, said: SplitMessage) -> None:
        """Take what another member says."""
        node, world = self._node, self._node.world
        if world.now < node.paused_until:
            world.at(node.paused_until, lambda: self.receive(sender, said))
        elif self.splitting is not None:
            self.splitting.receive(sender, said, self.seen, node.clock)
            self._carry_out()

    def order(self, names: frozenset[str]) -> bool:
        """Do what an administrator asks for; tell whether it is possible."""
        if self.splitting is None:
            return False
        try:
            plan = self.splitting.make_plan(names, self.seen)
        except Impossible:
            return False
        except Absent:
            return True
        self._node.world.tell("admin", f"asks {self._node.name} to split off as {plan.names}")
        self.splitting.order_split(plan, self.seen, self._node.clock)
        self._carry_out()
        return True

    @property
    def seen(self) -> SplitSurroundings:
        """What the member sees of its cluster; whom it is linked with it learns late."""
        node = self._node
        if node.member is None:
            assert node.log is not None
            return SplitSurroundings(node.log.index.membership, primary=False, linked=self._linked)
        return SplitSurroundings(node.member.membership, primary=node.primary, linked=self._linked)

    @property
    def as_known(self) -> Identity:
        """What the member says of itself."""
        node = self._node
        successor = self.splitting.successor if self.splitting is not None else ""
        return Identity(self.cluster, node.name, node.disk_id, 0, successor=successor)

    def _carry_out(self) -> None:
        node, splitting = self._node, self.splitting
        assert splitting is not None
        if splitting.unsaved is not None:
            node.world.point(node, "note")
            self.known, self.done, splitting.unsaved = splitting.unsaved, False, None
        for peer, said in splitting.take_messages():
            node.world.send(node, peer, said)
        if splitting.ending:
            plan = splitting.due
            leaves = plan is not None and self.seen.primary
            require(not leaves, f"S1: {node.name} leaves the primary component")
            node.crash()
            self.closed = True
            if plan is not None:
                self._later(lambda: self._consent(plan))
            else:
                self._open()


def fit(one: SimSplitter, other: SimSplitter) -> bool:
    """Tell whether two members keep a link with each other, whatever is in their logs."""
    if one.cluster == other.cluster:
        return True
    mine, theirs, unknown = one.as_known, other.as_known, Membership()
    return not (guard.objection(mine, theirs, unknown) or guard.objection(theirs, mine, unknown))
