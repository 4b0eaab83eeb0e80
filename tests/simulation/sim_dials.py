"""What kind of world a seed is: sizes, rates and probabilities, drawn swarm-style.

Every class of faults is absent from some worlds, so that faults that hide each other are also seen
alone. Times are seconds of virtual time, rates are mean intervals, 0 for never.
"""

from dataclasses import dataclass, replace
from math import inf
from random import Random


@dataclass(frozen=True)
class Dials:
    """How a world is."""

    members: int = 3
    #: machines that are not members at first
    spares: int = 0
    witnesses: int = 0
    #: so many of the spares join as readers
    followers: int = 0
    #: somebody promotes one of them
    promote_reader_every_s: float = 0.0
    duration_s: float = 60.0
    submit_every_s: float = 0.5
    #: somebody asks for a read barrier
    read_every_s: float = 0.0
    # network: streams keep the order and break as a whole, datagrams do not
    streams: bool = True
    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.001
    tail: float = 0.0
    break_every_s: float = 0.0
    partition_every_s: float = 0.0
    swizzle_every_s: float = 0.0
    # disk
    disk_s: float = 0.001
    stall_every_s: float = 0.0
    #: at most
    stall_s: float = 30.0
    fail_every_s: float = 0.0
    lose_every_s: float = 0.0
    rot_every_s: float = 0.0
    # process and clock
    crash_every_s: float = 0.0
    restart_s: float = 5.0
    pause_every_s: float = 0.0
    pause_s: float = 5.0
    drift: float = 0.0
    lazy: float = 0.0
    # membership
    evict_s: float = inf
    leave_every_s: float = 0.0
    admin_every_s: float = 1.0
    trim_every_s: float = 0.0
    #: trim what some members may still need
    trim_hard: bool = False
    #: the log of who joins begins where a partner's is, though some members are not there yet
    join_late: bool = False
    # a split for good: what an administrator asks for, and what members are configured for
    promote_every_s: float = 0.0
    split_after_s: float = 0.0
    look_s: float = 0.25
    # product
    heartbeat_s: float = 0.1
    election_min_s: float = 1.0
    election_max_s: float = 2.0
    block: int = 600
    fetch: int = 3000
    #: real segments on a simulated disk, or a model of them
    segments: bool = False
    #: encode and decode each message
    wire: bool = False

    @classmethod
    def draw(cls, rng: Random) -> "Dials":
        """Draw a world: in one of six hardly any proposer lives long enough to commit something."""
        return cls._possible(cls._draw(rng, storm=rng.random() < 0.17))

    @classmethod
    def draw_storm(cls, rng: Random) -> "Dials":
        """Draw a stormy world."""
        return cls._possible(cls._draw(rng, storm=True))

    @classmethod
    def draw_rotten(cls, rng: Random) -> "Dials":
        """Draw a stormy world where bits rot."""
        dials = cls._draw(rng, storm=True)
        dials = replace(dials, members=rng.choice([3, 4, 5]), rot_every_s=rng.uniform(0.1, 1))
        return cls._possible(dials)

    @property
    def splits(self) -> bool:
        """Whether members may split off at all."""
        return self.promote_every_s > 0 or self.split_after_s > 0

    def read(self, rng: Random) -> "Dials":
        """Let somebody read."""
        return replace(self, read_every_s=rng.choice([0.2, 1, 5]) * self.submit_every_s)

    def with_splits(self, rng: Random) -> "Dials":
        """Let members split off, and lose disks or leave; of what rots a side has no other copy."""
        fast = 0.05 if self.election_max_s < 1 else 1.0

        def at_times(low: float, high: float) -> float:
            return fast * rng.uniform(low, high) if rng.random() < 0.5 else 0.0

        asked, by_policy = rng.choice([(True, False), (False, True), (True, True)])
        dials = replace(
            self,
            promote_every_s=fast * rng.uniform(1, 10) if asked else 0.0,
            split_after_s=fast * rng.uniform(1, 10) if by_policy else 0.0,
            look_s=fast * 0.25,
            partition_every_s=self.partition_every_s or fast * rng.uniform(5, 15),
            swizzle_every_s=self.swizzle_every_s or at_times(5, 20),
            crash_every_s=self.crash_every_s or at_times(2, 10),
            stall_every_s=self.stall_every_s or at_times(3, 15),
            lose_every_s=self.lose_every_s or at_times(3, 15),
            leave_every_s=self.leave_every_s or at_times(3, 10),
            rot_every_s=0.0,
        )
        return self._possible(dials)

    @classmethod
    def _draw(cls, rng: Random, *, storm: bool) -> "Dials":
        dials = cls._faults(cls._calm(rng), rng)
        return cls._storm(dials, rng) if storm else dials

    def followed(self, rng: Random) -> "Dials":
        """Return this world with readers among its spares, some of which will be promoted."""
        spares = max(1, self.spares)
        every_s = rng.uniform(5, 20) if rng.random() < 0.5 else 0.0
        return replace(
            self,
            spares=spares,
            followers=rng.randint(1, spares),
            promote_reader_every_s=every_s,
        )

    @staticmethod
    def _possible(dials: "Dials") -> "Dials":
        """Leave a majority: who loses a disk while another leaves has lost more than that.

        Of what rots there has to be another copy: nobody leaves or loses a disk, and what is needed
        stays. Only real segments have bits.
        """
        if dials.rot_every_s:
            dials = replace(dials, segments=True, lose_every_s=0.0, trim_hard=False)
        if dials.rot_every_s or dials.lose_every_s:
            dials = replace(dials, evict_s=inf, leave_every_s=0.0)
        return dials

    @classmethod
    def _calm(cls, rng: Random) -> "Dials":
        members = rng.choice([1, 2, 3, 3, 4, 5, 5, 5, 5, 7])
        return cls(
            members=members,
            spares=rng.choice([0, 0, 1, 2]),
            witnesses=rng.choice([0, 0, (members - 1) // 2]),
            duration_s=rng.choice([30.0, 60.0, 120.0]),
            submit_every_s=rng.choice([0.1, 0.5, 1.0, 3.0]),
            streams=rng.random() < 0.5,
            delay_s=rng.choice([0.0005, 0.01, 0.1]),
            disk_s=rng.choice([0.0002, 0.005, 0.05]),
            segments=rng.random() < 0.15,
            wire=rng.random() < 0.1,
            fetch=rng.choice([100, 3000]),
        )

    @classmethod
    def _faults(cls, calm: "Dials", rng: Random) -> "Dials":
        def at_times(low: float, high: float, chance: float = 0.5) -> float:
            return rng.uniform(low, high) if rng.random() < chance else 0.0

        return replace(
            calm,
            loss=0.0 if calm.streams else at_times(0.0, 0.3),
            duplicate=0.0 if calm.streams else at_times(0.0, 0.5),
            tail=at_times(0.0, 0.002),
            break_every_s=at_times(0.5, 10) if calm.streams else 0.0,
            partition_every_s=at_times(2, 15),
            swizzle_every_s=at_times(10, 40, 0.3),
            stall_every_s=at_times(5, 30, 0.3),
            fail_every_s=at_times(10, 60, 0.3),
            lose_every_s=at_times(10, 60, 0.3),
            rot_every_s=0.0,
            crash_every_s=at_times(2, 20),
            restart_s=rng.choice([0.2, 5.0, 30.0]),
            pause_every_s=at_times(3, 20),
            pause_s=rng.choice([1.0, 5.0, 60.0]),
            drift=at_times(0.0, 0.05),
            lazy=at_times(0.0, 0.5, 0.2),
            evict_s=rng.choice([inf, 4.0, 10.0]),
            leave_every_s=at_times(3, 20, 0.4),
            trim_every_s=at_times(1, 10),
            trim_hard=rng.random() < 0.3,
        )

    @staticmethod
    def _storm(dials: "Dials", rng: Random) -> "Dials":
        return replace(
            dials,
            members=rng.choice([2, 3, 3, 4, 5]),
            witnesses=0,
            duration_s=6.0,
            submit_every_s=0.01,
            delay_s=rng.choice([0.005, 0.02]),
            disk_s=rng.choice([0.002, 0.02]),
            crash_every_s=rng.uniform(0.05, 0.3),
            partition_every_s=rng.choice([0.0, 0.05, 0.2, 0.5]),
            stall_every_s=0.0,
            pause_s=0.3,
            restart_s=rng.choice([0.005, 0.05, 0.3]),
            heartbeat_s=0.03,
            election_min_s=0.08,
            election_max_s=rng.choice([0.09, 0.16]),
            evict_s=rng.choice([inf, 0.3]),
            leave_every_s=rng.choice([0.0, 0.1, 0.5]),
            lose_every_s=rng.choice([0.0, 0.0, 2.0]),
            admin_every_s=0.1,
            block=100,
            fetch=100,
        )
