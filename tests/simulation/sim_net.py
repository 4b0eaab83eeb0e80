"""The network of a simulated world: it delays, loses, doubles, reorders and cuts.

Two modes. Streams: each direction of each pair delivers in order; a break loses all that is under
way. Datagrams: each message for itself. In both a clogged machine is silent in both directions and
what is sent meanwhile is lost. Not modelled: changed bytes (the links are TLS).
"""

from collections.abc import Callable
from itertools import permutations
from random import Random

from sim_dials import Dials

Pair = tuple[str, str]


class Network:
    """All links.

    Args:
        names: every machine.
        deliver_at: called with the time of arrival and what to do then.
    """

    def __init__(
        self,
        rng: Random,
        dials: Dials,
        names: list[str],
        deliver_at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self.healed = False
        self.sent = 0
        self._rng = rng
        self._dials = dials
        self._names = names
        self._deliver_at = deliver_at
        self._blocked: frozenset[Pair] = frozenset()
        self._clogged: set[str] = set()
        self._arrivals: dict[Pair, float] = {}
        self._connection: dict[Pair, int] = {}

    def send(self, pair: Pair, now: float, deliver: Callable[[], None]) -> None:
        """Carry something, perhaps late, twice, or never."""
        self.sent += 1
        dials, rng = self._dials, self._rng
        copies = 1
        if not self.healed:
            if pair in self._blocked or self._clogged.intersection(pair):
                return
            if dials.loss and rng.random() < dials.loss:
                return
            copies += dials.duplicate > 0 and rng.random() < dials.duplicate
        for _ in range(copies):
            delay = rng.expovariate(1 / dials.delay_s)
            if dials.tail and not self.healed and rng.random() < dials.tail:
                delay *= 100
            if dials.streams:
                self._in_order(pair, now + delay, deliver)
            else:
                self._deliver_at(now + delay, deliver)

    def _in_order(self, pair: Pair, arrival: float, deliver: Callable[[], None]) -> None:
        arrival = max(arrival, self._arrivals.get(pair, 0.0))
        self._arrivals[pair] = arrival
        connection = self._connection.get(pair, 0)

        def arrive() -> None:
            if self._connection.get(pair, 0) == connection:
                deliver()

        self._deliver_at(arrival, arrive)

    def break_link(self) -> None:
        """Break one connection: what is under way in both directions is lost."""
        a, b = self._rng.sample(self._names, 2)
        for pair in ((a, b), (b, a)):
            self._connection[pair] = self._connection.get(pair, 0) + 1
            self._arrivals[pair] = 0.0

    def cut(self, side: set[str]) -> None:
        """Block what goes between these and the others."""
        pairs = permutations(self._names, 2)
        self._blocked = frozenset(pair for pair in pairs if (pair[0] in side) != (pair[1] in side))

    def reaches(self, one: str, other: str) -> bool:
        """Tell whether two machines can hear each other."""
        if self._clogged and not self._clogged.isdisjoint((one, other)):
            return False
        return (one, other) not in self._blocked and (other, one) not in self._blocked

    def clog(self, name: str) -> None:
        """Silence a machine."""
        self._clogged.add(name)

    def unclog(self, name: str) -> None:
        """Let it be heard again."""
        self._clogged.discard(name)

    def partition(self) -> str:
        """Draw a partition, or none; return its name."""
        pairs = list(permutations(self._names, 2))
        kinds = {
            "none": self._nothing,
            "one way": self._one_way,
            "alone": self._alone,
            "pair": self._one_pair,
            "halves": self._halves,
            "ring": self._ring,
            "bridge": self._bridge,
        }
        kind = self._rng.choice(list(kinds))
        self._blocked = frozenset(filter(kinds[kind](), pairs))
        return kind

    def heal(self) -> None:
        """Deliver everything from now on."""
        self.healed = True
        self._blocked = frozenset()
        self._clogged.clear()

    # ---- which pairs are blocked -----------------------------------------------------------

    def _nothing(self) -> Callable[[Pair], bool]:
        return lambda _: False

    def _one_way(self) -> Callable[[Pair], bool]:
        return lambda _: self._rng.random() < 0.3

    def _alone(self) -> Callable[[Pair], bool]:
        alone = self._drawn(1)
        return lambda pair: bool(alone & set(pair))

    def _one_pair(self) -> Callable[[Pair], bool]:
        couple = self._drawn(2)
        return lambda pair: couple == set(pair)

    def _halves(self) -> Callable[[Pair], bool]:
        side = self._drawn(len(self._names) // 2)
        return lambda pair: (pair[0] in side) != (pair[1] in side)

    def _ring(self) -> Callable[[Pair], bool]:
        """Everybody hears its neighbours only: each sees another majority."""
        place = {name: i for i, name in enumerate(self._names)}
        count, reach = len(place), len(place) // 4 + 1
        return lambda pair: reach < (place[pair[0]] - place[pair[1]]) % count < count - reach

    def _bridge(self) -> Callable[[Pair], bool]:
        """Two halves that both hear one member."""
        bridge, *others = self._shuffled()
        side = set(others[: len(others) // 2])
        return lambda pair: bridge not in pair and (pair[0] in side) != (pair[1] in side)

    def _drawn(self, count: int) -> set[str]:
        return set(self._shuffled()[:count])

    def _shuffled(self) -> list[str]:
        return self._rng.sample(self._names, len(self._names))
