"""Golden scenarios in which a process dies at each point at which something leaves it.

Such a point is a message that is sent, and an operation of the disk: a write, a flush, a rename.
A scenario is run once to count them, then once for each of them, with the process that was about
to do it dead instead. What was not flushed then survives or does not, as the seed has it; the
machine starts again, the scenario goes on, and everything has to hold that always does.
"""

from collections.abc import Callable, Collection
from functools import partial

from pgherd_sidecar.core.consensus import Role
from sim_checker import require
from sim_dials import Dials
from sim_disk import PowerLoss
from sim_node import SimNode
from sim_storage import SegmentDisk
from sim_world import World

_RESTART_S = 0.1
_PATIENCE_S = 120.0


class _Died(PowerLoss):
    """A process has reached the point at which it dies."""

    def __init__(self, node: SimNode, *, at_disk: bool) -> None:
        super().__init__()
        self.node = node
        self.at_disk = at_disk


class CrashWorld(World):
    """A world in which the processes die at some points.

    Args:
        deaths: the numbers of the points, from 1.

    Attributes:
        points: how many there have been since ``armed`` was set.
        kinds: operations of a disk, and names of messages, among them.
    """

    def __init__(self, seed: int, dials: Dials, deaths: Collection[int]) -> None:
        super().__init__(seed, dials, segments=True)
        self.deaths = deaths
        self.points = 0
        self.kinds: set[str] = set()
        self.armed = False
        for node in self.nodes.values():
            assert isinstance(node.disk, SegmentDisk)
            node.disk.directory.watch = partial(self._point, node, at_disk=True)

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something at a time; who dies of it starts again a little later."""
        super().at(time, partial(self._survive, action))

    def send(self, sender: SimNode, receiver: str, message: object) -> None:
        """See World."""
        self._point(sender, type(message).__name__, at_disk=False)
        super().send(sender, receiver, message)  # type: ignore[arg-type]

    def point(self, node: SimNode, kind: str) -> None:
        """See World."""
        self._point(node, kind, at_disk=True)

    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until something holds."""
        goal = self.now + _PATIENCE_S
        while not holds():
            require(self.now < goal, f"I28: it does not come to that within {_PATIENCE_S} s")
            self._run_until(self.now + 0.02)

    def begin(self, *names: str) -> None:
        """Start processes, as soon as time goes on."""
        for name in names:
            self.after(0, self.nodes[name].start)

    def administer(self) -> None:
        """Have an administrator look after the members from now on."""
        self._every(self.dials.admin_every_s, partial(self._survive, self._administer))

    def proposer(self) -> SimNode | None:
        """Who proposes in the highest term."""
        found = [n for n in self.nodes.values() if n.member and n.member.role is Role.PROPOSER]
        return max(found, key=lambda node: node.member.term if node.member else 0, default=None)

    def commit(self, data: bytes) -> None:
        """Have something ordered, asking again until it is."""

        def done() -> bool:
            if any(data in block.data for block in self.checker.chain.values()):
                return True
            for node in self.nodes.values():
                self.after(0, partial(node.submit, data, 1))
            return False

        self.until(done)

    def _point(self, node: SimNode, kind: str, *, at_disk: bool) -> None:
        if self.armed:
            self.points += 1
            self.kinds.add(kind)
            if self.points in self.deaths:
                raise _Died(node, at_disk=at_disk)

    def _survive(self, action: Callable[[], object]) -> None:
        try:
            action()
        except _Died as death:
            node = death.node
            self.tell(node.name, f"dies at point {self.points}")
            node.die(None if death.at_disk else node._inflight)
            self.after(_RESTART_S, node.start)


def _founding(world: CrashWorld) -> None:
    """Three empty disks become a herd that orders something."""
    world.armed = True
    world.begin(*world.names)
    world.commit(b"first")


def _commit(world: CrashWorld) -> None:
    """A herd that runs orders one entry."""
    _found(world)
    world.armed = True
    world.commit(b"one")


def _succession(world: CrashWorld) -> None:
    """A proposer is cut off with entries of its own; its successor's replace them."""
    _found(world)
    world.until(lambda: world.proposer() is not None)
    old = world.proposer()
    assert old is not None
    world.armed = True
    world.network.clog(old.name)
    for number in range(3):
        world.after(0, partial(old.submit, b"in vain %d" % number, 1))
    world.until(lambda: world.proposer() not in (None, old))
    world.commit(b"under the successor")
    world.network.unclog(old.name)
    world.commit(b"all together")


def _joining(world: CrashWorld) -> None:
    """A fourth machine joins while entries are ordered."""
    _found(world, *world.names[:3])
    world.administer()
    world.armed = True
    world.begin("n4")
    for number in range(3):
        world.commit(b"meanwhile %d" % number)
    world.until(lambda: "n4" in world.checker.memberships[-1].voters)


def _leaving(world: CrashWorld) -> None:
    """A member is let go."""
    _found(world)
    world.armed = True

    def gone() -> bool:
        for node in world.nodes.values():
            world.after(0, partial(node.change, leave=(("n3", ""),)))
        return "n3" not in world.checker.memberships[-1].names

    world.until(gone)
    world.commit(b"without it")
    world.administer()


def _rebuilding(world: CrashWorld) -> None:
    """A member was away for so long that the others have trimmed what it needs."""
    _found(world)
    world.after(0, world.nodes["n3"].crash)
    for number in range(40):
        world.commit(b"%d " % number + bytes(200))
    world.administer()
    world.armed = True
    for name in ("n1", "n2"):
        world.after(0, world.nodes[name].trim)
    world.begin("n3")
    returned = world.nodes["n3"]
    world.until(lambda: returned.member is not None and returned.member.commit_position >= 40)


def _power_loss(world: CrashWorld) -> None:
    """All die at once with entries under way, and start again; one of them once more."""
    _found(world)
    for number in range(5):
        world.after(0.001 * number, partial(world.nodes["n2"].submit, b"late %d" % number, 1))
    world._run_until(world.now + 0.01)
    for node in world.nodes.values():
        world.after(0, node.crash)
    world.armed = True
    world.begin(*world.names)
    world.commit(b"after it")


def _split(world: CrashWorld) -> None:
    """Two of five are cut off and become a cluster of their own, as an administrator wants."""
    _found(world)
    parties, majority = [world.nodes[n] for n in ("n1", "n2")], world.nodes["n5"]
    world.network.cut({"n1", "n2"})
    world.administer()
    world.until(lambda: majority.primary and not any(node.primary for node in parties))
    world.armed = True

    def split_off() -> bool:
        clusters = {node.splitter.cluster for node in parties}
        if world.cluster not in clusters:
            return any(node.primary for node in parties)
        for node in parties:
            world.after(0, partial(_ask, node))
        return False

    def _ask(node: SimNode) -> None:
        splitting = node.splitter.splitting
        if splitting is not None and splitting.intent is None:
            node.splitter.order(frozenset({"n1", "n2"}))

    world.until(split_off)
    world.network.cut(set())
    world.commit(b"in the old cluster")


def _found(world: CrashWorld, *names: str) -> None:
    world.begin(*(names or world.names))
    world.commit(b"first")


_CALM = Dials(streams=True, trim_hard=True)
SCENARIOS: dict[str, tuple[Callable[[CrashWorld], None], Dials]] = {
    "founding": (_founding, _CALM),
    "commit": (_commit, _CALM),
    "succession": (_succession, _CALM),
    "joining": (_joining, Dials(streams=True, spares=1)),
    "leaving": (_leaving, _CALM),
    "rebuilding": (_rebuilding, _CALM),
    "power loss": (_power_loss, _CALM),
    "split": (_split, Dials(members=5, streams=True, promote_every_s=1.0, look_s=0.1)),
}
_REPLICATION = frozenset({"Append", "Ack", "write", "flush"})
_ELECTION = frozenset({"VoteRequest", "Vote"})
_NEW_LOG = frozenset({"create", "rename", "flush of names"})
KINDS: dict[str, frozenset[str]] = {
    "founding": _REPLICATION | _ELECTION | _NEW_LOG,
    "commit": _REPLICATION,
    "succession": _REPLICATION | _ELECTION,
    "joining": _REPLICATION | _NEW_LOG,
    "leaving": _REPLICATION,
    "rebuilding": _REPLICATION | _NEW_LOG | {"Trimmed", "remove"},
    "power loss": _REPLICATION | _ELECTION,
    "split": _REPLICATION | _ELECTION | {"SplitMessage", "note"},
}
"""Points that a scenario can't do without: a sweep without them would be none of it."""


def play(name: str, seed: int, deaths: Collection[int] = ()) -> CrashWorld:
    """Play a scenario to its end, with deaths at some of its points.

    Raises:
        InvariantBroken: something did not hold.
    """
    scenario, dials = SCENARIOS[name]
    world = CrashWorld(seed, dials, deaths)
    try:
        scenario(world)
        world.armed = False
        world.converge()
    except Exception as error:
        error.add_note(f"{name}, seed {seed}, deaths at {sorted(deaths)}")
        raise
    return world
