"""Readers of a simulated world: they ask members for barriers, and check what they are told.

I31 a barrier is at or behind everything that was acknowledged anywhere before it was asked for

A commit is acknowledged at the earliest when some member's commit position has reached it, so that
is what the checker of the cluster knows. Readers go on as the sidecar does: they wait until the
position is committed on their member, and ask again when term or proposer change before.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgherd_sidecar.core.consensus import LogMember
from sim_checker import require

if TYPE_CHECKING:
    from sim_node import SimNode
    from sim_world import World


@dataclass(slots=True, eq=False)
class Read:
    """One reader.

    Attributes:
        floor: what was committed when it began.
        number: of the round that it waits for.
        reign: term and proposer when it asked last.
        position: of the barrier, 0 as long as there is none.
    """

    floor: int
    number: int
    reign: tuple[int, str | None]
    position: int = 0


class Readers:
    """All readers of a world, by their member's process: they end with it."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._waiting: dict[tuple[str, int], list[Read]] = {}
        #: members that have ended a read since all was healed
        self._served: set[str] = set()
        self._healed = False

    def read(self) -> None:
        """Have somebody read somewhere, or give up."""
        world = self._world
        node = world.nodes[world.rng.choice(world.names)]
        if world.rng.random() < 0.05:
            self._give_up(node)
        else:
            for _ in range(world.rng.choice([1, 1, 3])):
                self._begin(node)

    def settled(self) -> bool:
        """Tell whether each member has served a reader since all was healed; have one ask."""
        if not self._healed:
            self._healed = True
            self._served.clear()
        left = [name for name in self._world.names if name not in self._served]
        for name in left:
            self._begin(self._world.nodes[name])
        return not left

    def _begin(self, node: "SimNode") -> None:
        def ask(member: LogMember) -> None:
            reign = member.term, member.proposer
            floor = node.checker.committed_position
            read = Read(floor, member.ask_barrier(node.clock), reign)
            self._waiting.setdefault((node.name, node.incarnation), []).append(read)

        node.input(node.incarnation, ask)

    def _give_up(self, node: "SimNode") -> None:
        def drop(member: LogMember) -> None:
            self._waiting.pop((node.name, node.incarnation), None)
            member.drop_barriers()

        node.input(node.incarnation, drop)

    def look(self, node: "SimNode", member: LogMember) -> None:
        """Check what the readers of a member are told, after an event there."""
        waiting = self._waiting.get((node.name, node.incarnation))
        if not waiting:
            return
        reign, left = (member.term, member.proposer), []
        for read in waiting:
            self._tell(node, member, read)
            if read.position and member.commit_position >= read.position:
                self._served.add(node.name)
                self._world.probe("read")
                continue
            if read.reign != reign and read.position:
                self._world.probe("read again")
                read.number, read.position = member.ask_barrier(node.clock), 0
            read.reign = reign
            left.append(read)
        self._waiting[node.name, node.incarnation] = left

    def _tell(self, node: "SimNode", member: LogMember, read: Read) -> None:
        if read.position or member.barrier.number < read.number:
            return
        read.position = position = member.barrier.position
        require(
            position >= read.floor,
            f"I31: {node.name} is told {position}, but {read.floor} was committed before",
        )
        if not position:  # nothing was ever committed
            read.position = 1
