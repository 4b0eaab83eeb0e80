"""A replicated database in a few lines that keeps snapshot isolation, and ways to spoil a history.

Each node shows a prefix of one order and may lag behind; a transaction commits if nobody has
written its rows since its snapshot. Everything follows from the seed.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from checkers.history import History, Key, Outcome, ReadList, Transaction, Write

NODES = ("n1", "n2", "n3")
KEYS = tuple(("list", number) for number in range(3))


@dataclass
class _Session:
    number: int
    node: str
    at: int = 0
    invoked: int = 0
    operations: list[ReadList | Write] = field(default_factory=list)


class ToyDatabase:
    """Runs ``length`` random transactions in interleaved sessions, then reads everything."""

    def __init__(self, seed: int, length: int = 10) -> None:
        self._random = random.Random(seed)
        self._clock = itertools.count()
        self._values = itertools.count(1)
        self._numbers = itertools.count()
        self._position = dict.fromkeys(NODES, 0)
        self._last = 0
        self._versions: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        self._sessions: list[_Session] = []
        self._ended: list[Transaction] = []
        self._gids: dict[int, int] = {}
        for node in NODES:
            self._open(node)
            self._open(node)
        while len(self._ended) < length:
            self._step()
        self._read_all()

    def history(self) -> History:
        """What the clients recorded."""
        return History(tuple(self._ended), self._gids)

    def _open(self, node: str) -> None:
        self._sessions.append(_Session(next(self._numbers), node))

    def _step(self) -> None:
        session = self._random.choice(self._sessions)
        lagging = self._random.choice(NODES)
        self._position[lagging] = self._random.randint(self._position[lagging], self._last)
        if not session.operations:
            session.invoked, session.at = next(self._clock), self._position[session.node]
        if len(session.operations) < self._random.randint(1, 3):
            self._operate(session)
        else:
            self._end(session)

    def _operate(self, session: _Session) -> None:
        key = self._random.choice(KEYS)
        if self._random.random() < 0.5:
            session.operations.append(Write(key, next(self._values)))
        else:
            session.operations.append(ReadList(key, self._visible(session, key)))

    def _visible(self, session: _Session, key: Key) -> tuple[int, ...]:
        others = [value for gid, value in self._versions[key] if gid <= session.at]
        own = [w.value for w in session.operations if isinstance(w, Write) and w.key == key]
        return (*others, *own)

    def _end(self, session: _Session) -> None:
        writes = [one for one in session.operations if isinstance(one, Write)]
        certified = all(
            gid <= session.at for write in writes for gid, _ in self._versions[write.key]
        )
        unknown = self._random.random() < 0.1 and bool(writes)
        arrives = not unknown or self._random.random() < 0.5
        outcome = Outcome.OK if certified else Outcome.FAILED
        if unknown:
            outcome = Outcome.UNKNOWN
        number = len(self._ended)
        if writes and arrives:
            self._last += self._random.randint(1, 2)  # GIDs of what wrote nothing
            if certified:
                self._gids[number] = self._last
                for write in writes:
                    self._versions[write.key].append((self._last, write.value))
                self._position[session.node] = self._last
        self._record(number, session, outcome)
        session.operations = []
        if unknown:
            session.number = next(self._numbers)

    def _record(self, number: int, session: _Session, outcome: Outcome) -> None:
        self._ended.append(
            Transaction(
                number,
                session.node,
                session.number,
                session.invoked,
                next(self._clock),
                tuple(session.operations),
                outcome,
                session.at,
            )
        )

    def _read_all(self) -> None:
        reader = _Session(next(self._numbers), NODES[0], self._last, next(self._clock))
        self._position[NODES[0]] = self._last
        for key in KEYS:
            reader.operations.append(ReadList(key, self._visible(reader, key)))
        self._record(len(self._ended), reader, Outcome.OK)


def spoilt(history: History, seed: int) -> History:
    """The history with one thing changed at random, which may or may not be an anomaly."""
    chance = random.Random(seed)
    while True:
        changed = chance.choice(_SPOILERS)(history, chance)
        if changed is not None and changed != history:
            return changed


def _change(history: History, place: int, transaction: Transaction) -> History:
    transactions = list(history.transactions)
    transactions[place] = transaction
    return History(tuple(transactions), history.gids)


def _reads(history: History) -> Iterator[tuple[int, int, ReadList]]:
    """All reads but those of the last transaction, which the order of the versions rests on."""
    for place, transaction in enumerate(history.transactions[:-1]):
        for number, operation in enumerate(transaction.operations):
            if isinstance(operation, ReadList):
                yield place, number, operation


def _other_values(
    change: Callable[[ReadList, History, random.Random], tuple[int, ...]],
) -> Callable[[History, random.Random], History | None]:
    """A spoiler that changes what one read has returned."""

    def spoiler(history: History, chance: random.Random) -> History | None:
        reads = list(_reads(history))
        if not reads:
            return None
        place, number, read = chance.choice(reads)
        transaction = history.transactions[place]
        operations = list(transaction.operations)
        operations[number] = ReadList(read.key, change(read, history, chance))
        return _change(history, place, replace(transaction, operations=tuple(operations)))

    return spoiler


def _another_version(read: ReadList, history: History, chance: random.Random) -> tuple[int, ...]:
    final = next(
        one.values
        for one in history.transactions[-1].operations
        if isinstance(one, ReadList) and one.key == read.key
    )
    return final[: chance.randint(0, len(final))]


def _shuffled(read: ReadList, history: History, chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.sample(read.values, len(read.values)))


def _without_one(read: ReadList, history: History, chance: random.Random) -> tuple[int, ...]:
    gone = chance.randint(0, len(read.values))
    return read.values[:gone] + read.values[gone + 1 :]


def _with_any_value(read: ReadList, history: History, chance: random.Random) -> tuple[int, ...]:
    written = [write.value for t in history.transactions for write in t.writes()]
    return (*read.values, chance.choice([*written, 10**6]))


def _two_gids_swapped(history: History, chance: random.Random) -> History | None:
    if len(history.gids) < 2:
        return None
    one, other = chance.sample(sorted(history.gids), 2)
    swapped = {one: history.gids[other], other: history.gids[one]}
    return History(history.transactions, {**history.gids, **swapped})


def _in_another_session(history: History, chance: random.Random) -> History:
    place = chance.randrange(len(history.transactions) - 1)
    other = chance.choice(history.transactions)
    moved = replace(history.transactions[place], session=other.session, node=other.node)
    return _change(history, place, moved)


_SPOILERS: tuple[Callable[[History, random.Random], History | None], ...] = (
    _other_values(_another_version),
    _other_values(_another_version),
    _other_values(_shuffled),
    _other_values(_without_one),
    _other_values(_with_any_value),
    _two_gids_swapped,
    _in_another_session,
)
