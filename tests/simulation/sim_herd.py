"""A herd with all that is real of it: the commit path of each node, over the real ordered log.

The nodes are those of ``sim_commits``, with their invariants. The log is the one of ``sim_world``,
with its own: three members whose network, disks and processes fail. A sidecar is one process, so
its member of the log and its commit path die together. A paused sidecar hears nothing of the log
and gives it nothing, while its clients go on. Each node hears what its own member knows to be
committed. What it submits goes to that member, which has a proposer or has none.

Not seen here: a log that is trimmed, a disk that loses or damages what it holds, a change of the
membership, and what a member reads of its own disk, for the entries are those of the checker.
"""

from random import Random

from pgherd_sidecar.core.consensus import LogMember
from pgherd_sidecar.core.replication.entries import Noop, encode_entry, iter_entries
from sim_commits import CommitWorld
from sim_dials import Dials
from sim_node import SimNode
from sim_sidecar import CommitNode
from sim_world import World


def draw_dials(rng: Random) -> Dials:
    """Draw a world in which a proposer lives long enough for transactions to commit."""

    def at_times(low: float, high: float) -> float:
        return rng.uniform(low, high) if rng.random() < 0.5 else 0.0

    streams = rng.random() < 0.5
    return Dials(
        submit_every_s=0.0,
        admin_every_s=0.0,
        streams=streams,
        loss=0.0 if streams else at_times(0.0, 0.2),
        duplicate=0.0 if streams else at_times(0.0, 0.3),
        delay_s=rng.choice([0.0005, 0.01]),
        tail=at_times(0.0, 0.002),
        break_every_s=at_times(0.3, 3) if streams else 0.0,
        partition_every_s=at_times(0.5, 4),
        swizzle_every_s=at_times(2, 6),
        disk_s=rng.choice([0.0005, 0.01]),
        stall_every_s=at_times(2, 10),
        stall_s=3.0,
        fail_every_s=at_times(2, 10),
        crash_every_s=at_times(1, 5),
        pause_every_s=at_times(1, 5),
        pause_s=2.0,
        drift=at_times(0.0, 0.05),
        lazy=at_times(0.0, 0.5),
        election_min_s=0.3,
        election_max_s=0.6,
        wire=rng.random() < 0.1,
    )


class HerdLog(World):
    """The log of a herd whose clock runs it."""

    def __init__(self, herd: "HerdWorld", seed: int) -> None:
        super().__init__(seed, draw_dials(Random(f"herd {seed}")), splits=False, clock=herd)
        self.herd = herd
        self.noop = encode_entry(Noop())
        self._seen: dict[str, tuple[int, str | None, int]] = {}

    def kill(self, node: SimNode) -> None:
        """Have the sidecar die; it begins again by itself."""
        self.herd.node_of(node).end_sidecar()

    def look(self, node: SimNode, member: LogMember) -> None:
        """Tell the node what is new for it, as the host of a log does."""
        checker, herd = self.checker, self.herd
        while checker.committed_position > len(herd.log):
            herd.learn(checker.chain[len(herd.log) + 1].data)
        term, proposer, position = self._seen.get(node.name, (0, None, 0))
        self._seen[node.name] = (member.term, member.proposer, member.commit_position)
        if (member.term, member.proposer) != (term, proposer):
            self.after(0.0, lambda: herd.node_of(node).proposer_changed())
        if member.commit_position != position:
            self.after(0.0, lambda: herd.node_of(node).deliver())

    def _pause(self) -> None:
        super()._pause()
        for node in self.nodes.values():
            sidecar = self.herd.node_of(node)
            sidecar.stalled_until_s = max(sidecar.stalled_until_s, node.paused_until)


class HerdWorld(CommitWorld):
    """A herd of three; the failure of a run is a Violation, or an invariant of the log."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.logs = HerdLog(self, seed)
        self.logs.begin()

    def node_of(self, node: SimNode) -> CommitNode:
        """The sidecar of a member of the log."""
        return self.nodes[self.logs.names.index(node.name)]

    def _log_of(self, member: int) -> SimNode:
        return self.logs.nodes[self.logs.names[member - 1]]

    def submit(self, member: int, data: bytes) -> bool:
        """Give entries to a member of the log."""
        count = sum(1 for _ in iter_entries(data))
        return self._log_of(member).submit(data, count)

    def known_to(self, member: int) -> int:
        """Up to where a member knows the order."""
        log = self._log_of(member).member
        return 0 if log is None else log.commit_position

    def is_primary(self, member: int) -> bool:
        """Whether a member takes itself for one of the primary component."""
        return self._log_of(member).primary

    def begun(self, node: CommitNode) -> None:
        """The sidecar's member of the log begins, too."""
        self._log_of(node.member).start()

    def ended(self, node: CommitNode) -> None:
        """The sidecar's member of the log dies, too, in the middle of what it writes."""
        self._log_of(node.member).crash()

    def heal(self) -> None:
        """Let nothing go wrong any more."""
        self.logs.heal()

    @property
    def met(self) -> set[str]:
        """What has happened in this world, for the counts of a run."""
        return super().met | self.logs.probes
