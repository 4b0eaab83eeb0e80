"""An administrator who has members split off for good, and helps who is left over when they have.

While there are faults he asks for anything. Afterwards he does what docs/recovery.md tells: who is
without a primary component, or waits for one that never consented, splits off with those that are
there or, if that comes to nothing, with fewer: where a change of members has reached some of their
logs only, they may be too few to go on and, by the others, too many to split off. What can't
(witnesses alone, say) is made anew, in another cluster.
"""

from typing import TYPE_CHECKING

from sim_split import fit

if TYPE_CHECKING:
    from sim_node import SimNode
    from sim_world import World

#: who can't go on after so long is helped
_PATIENCE_S = 40.0


class Promoter:
    """The administrator of all clusters of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._since: dict[str, float] = {}
        self._tried: set[str] = set()

    def linked(self, one: "SimNode", other: "SimNode") -> bool:
        """Tell whether two members keep a link with each other."""
        if one is other or other.splitter.splitting is None:
            return False
        return self._world.network.reaches(one.name, other.name) and fit(
            one.splitter, other.splitter
        )

    def promote(self) -> None:
        """Ask some member to split off, together with those that it is linked with, or with any."""
        rng, world = self._world.rng, self._world
        asked = world.nodes[rng.choice(world.names)]
        some = rng.sample(world.names, rng.randrange(len(world.names)))
        if rng.random() < 0.7:
            some = [n for n in self._voters(asked) if self.linked(asked, world.nodes[n])]
        asked.splitter.order(frozenset({asked.name, *some}))

    def rescue(self) -> None:
        """Look who can't go on, and for how long."""
        nodes, now = self._world.nodes.values(), self._world.now
        primary = {node.splitter.cluster for node in nodes if node.primary}
        for cluster in sorted({node.splitter.cluster for node in nodes}):
            there = [node for node in nodes if node.splitter.cluster == cluster]
            if cluster in primary:
                there = [node for node in there if node.splitter.sealed]
            since = self._since.setdefault(cluster, now)
            if there and now <= since + _PATIENCE_S:
                continue
            self._since[cluster] = now
            if there and not self._split(there) and primary:
                self._make_anew(there, sorted(primary))

    def _split(self, waiting: list["SimNode"]) -> bool:
        for asked in self._world.rng.sample(waiting, len(waiting)):
            disks = self._voters(asked)
            names = {node.name for node in waiting if disks.get(node.name) == node.disk_id}
            if asked.name not in names:
                continue
            if asked.splitter.cluster in self._tried:  # all of them could not: some of them, then
                others = sorted(names - {asked.name})
                rng = self._world.rng
                names = {asked.name, *rng.sample(others, rng.randrange(len(others) + 1))}
            if asked.splitter.order(frozenset(names)):
                self._tried.add(asked.splitter.cluster)
                return True
        self._tried.update(node.splitter.cluster for node in waiting)
        return False

    def _make_anew(self, nodes: list["SimNode"], clusters: list[str]) -> None:
        self._world.probe("made anew")
        for node in nodes:
            node.lose_disk(self._world.rng.choice(clusters))
            self._world.after(1, node.start)

    def _voters(self, node: "SimNode") -> dict[str, str]:
        return node.splitter.seen.disks if node.splitter.splitting is not None else {}
