"""Snapshot isolation, checked against the known total order in linear time.

Each transaction has one snapshot: a prefix of the order. Every read, write and promise narrows the
interval of prefixes it can have been; an empty interval is an anomaly, told with the two
operations that clash. Where the intervals stay open, the smallest snapshot that fits is chosen in
the order of time, which fails only if every choice fails.

What it does not do: infer an order (``elle`` does), or forbid write skew. Transactions of several
statements at READ COMMITTED have several snapshots and must be recorded one statement each.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from checkers.anomalies import Anomaly, Kind
from checkers.history import (
    History,
    Key,
    Order,
    Read,
    ReadList,
    Scan,
    Transaction,
    Write,
    events,
    group_of,
    name,
)
from checkers.versions import FOREVER, Version, Versions, outcome_anomalies


class _Source(Enum):
    READ = auto()
    ABSENT = auto()  # a row that a scan did not find
    WRITE = auto()
    COMMIT = auto()
    EARLIER = auto()
    OWN_COMMIT = auto()
    NODE = auto()


@dataclass(frozen=True, slots=True)
class _Limit:
    """Why a snapshot cannot lie lower, or higher."""

    gid: float
    source: _Source = _Source.COMMIT
    story: str = ""
    transaction: int | None = None  # whose version it is about
    key: Key | None = None


@dataclass(slots=True)
class _Snapshot:
    """The prefixes of the order that a transaction's snapshot can have been: low..high."""

    low: _Limit = field(default_factory=lambda: _Limit(0))
    high: _Limit = field(default_factory=lambda: _Limit(FOREVER))

    def narrow(self, low: _Limit | None = None, high: _Limit | None = None) -> None:
        if low is not None and low.gid > self.low.gid:
            self.low = low
        if high is not None and high.gid < self.high.gid:
            self.high = high

    def clash(self, transaction: Transaction) -> Anomaly | None:
        """What is wrong if nothing is left."""
        if self.low.gid <= self.high.gid:
            return None
        low, high = self.low, self.high
        others = (low.transaction, high.transaction)
        named = [number for number in others if number is not None]
        story = f"{low.story} (snapshot >= {low.gid}), but {high.story} (snapshot <= {high.gid})"
        numbers = tuple(dict.fromkeys([transaction.id, *named]))
        return Anomaly(_kind_of(low, high), story, numbers)


_KIND_OF_LOW = {
    _Source.WRITE: Kind.LOST_UPDATE,
    _Source.OWN_COMMIT: Kind.NOT_READ_YOUR_WRITES,
    _Source.EARLIER: Kind.NOT_MONOTONIC,
}


def _kind_of(low: _Limit, high: _Limit) -> Kind:
    before = (_Source.OWN_COMMIT, _Source.EARLIER)
    if _Source.NODE in (low.source, high.source) and low.source not in before:
        return Kind.POSITION
    if high.source is _Source.COMMIT:
        return Kind.FUTURE_READ if low.source is _Source.READ else Kind.COMMIT_ORDER
    if low.source in _KIND_OF_LOW:
        return _KIND_OF_LOW[low.source]
    if high.source is _Source.ABSENT:
        return Kind.PHANTOM
    if low.key == high.key:
        return Kind.NON_REPEATABLE_READ
    return Kind.FRACTURED_READ if low.transaction == high.transaction else Kind.READ_SKEW


def check(history: History, order: Order = Order.SESSION) -> list[Anomaly]:
    """Judge a history.

    Args:
        order: whose acknowledged commits, and whose reads, a later transaction has to include.
    """
    found = list(outcome_anomalies(history))
    versions = Versions(history)
    snapshots: list[tuple[Transaction, _Snapshot]] = []
    for transaction in history.committed():
        snapshot, wrong = _snapshot_of(transaction, versions, history.gids.get(transaction.id))
        found += wrong
        if not wrong:
            snapshots.append((transaction, snapshot))
    if order is not Order.NONE:
        found += _in_order(snapshots, order, history.gids)
    return found


def _snapshot_of(
    transaction: Transaction, versions: Versions, gid: int | None
) -> tuple[_Snapshot, list[Anomaly]]:
    """What its own operations allow; steps 1 to 4, 6 and 8 of the method."""
    reader = _Reader(transaction, versions)
    reader.run()
    snapshot = reader.snapshot
    if gid is not None and reader.own:
        snapshot.narrow(high=_Limit(gid - 1, _Source.COMMIT, f"it is GID {gid} itself"))
        for key, values in reader.own.items():
            own = versions.installed(key, values[-1])
            last = versions.before(own) if own else None
            if last is not None:
                story = f"it wrote {name(key)} over the version of T{last.transaction}"
                snapshot.narrow(low=_Limit(last.gid, _Source.WRITE, story, last.transaction, key))
    clash = snapshot.clash(transaction)
    if clash is None and transaction.position is not None:
        at = _Limit(transaction.position, _Source.NODE, f"its node was at {transaction.position}")
        snapshot.narrow(low=at, high=at)
        clash = snapshot.clash(transaction)
    return snapshot, reader.wrong + ([clash] if clash else [])


class _Reader:
    """Walks through a transaction's operations and narrows its snapshot by what they saw."""

    def __init__(self, transaction: Transaction, versions: Versions) -> None:
        self.snapshot = _Snapshot()
        self.wrong: list[Anomaly] = []
        self.own: dict[Key, list[int]] = {}
        self._transaction = transaction
        self._versions = versions

    def run(self) -> None:
        for operation in self._transaction.operations:
            match operation:
                case Write(key, value):
                    self.own.setdefault(key, []).append(value)
                case Read(key, value):
                    self._read(key, value, _Source.READ)
                case ReadList(key, values):
                    self._read_list(key, values)
                case Scan(table, rows):
                    self._scan(table, rows)

    def _scan(self, table: str, rows: tuple[tuple[int, int], ...]) -> None:
        seen = {(table, number): value for number, value in rows}
        for key, value in seen.items():
            self._read(key, value, _Source.READ)
        for key in self._versions.keys_of(table) - seen.keys():
            self._read(key, None, _Source.ABSENT)

    def _read(self, key: Key, value: int | None, source: _Source) -> None:
        own = self.own.get(key)
        if own is not None:
            if value != own[-1]:
                self._report(Kind.INTERNAL, f"{value} in {name(key)} after writing {own[-1]}")
        elif value is None:
            self._saw_nothing(key, source)
        elif (version := self._version(key, value)) is not None:
            self._saw(version)

    def _read_list(self, key: Key, values: tuple[int, ...]) -> None:
        own = tuple(self.own.get(key, ()))
        others = values[: len(values) - len(own)]
        if others + own != values:
            self._report(Kind.INTERNAL, f"{values} in {name(key)} after appending {own}")
        elif not others:
            self._saw_nothing(key, _Source.READ)
        elif (version := self._version(key, others[-1])) is not None:
            if (expected := self._versions.up_to(version)) != others:
                story = f"{name(key)} is {list(expected)} in the order, {list(others)} was read"
                self._report(Kind.INCOMPATIBLE_ORDER, story)
            self._saw(version)

    def _version(self, key: Key, value: int) -> Version | None:
        """The version that a value read belongs to; None if it is none that anybody may see."""
        version = self._versions.installed(key, value)
        if version is None:
            writer = self._versions.writer_of.get(value)
            aborted = writer is not None and writer.id not in self._versions.gids
            self._report(
                Kind.G1A if aborted else Kind.GARBAGE,
                f"{value} in {name(key)}",
                *([writer.id] if writer else []),
            )
        elif version.values[-1] != value:
            self._report(Kind.G1B, f"{value} in {name(key)}", version.transaction)
            return None
        return version

    def _saw(self, version: Version) -> None:
        key, writer = version.key, version.transaction
        story = f"it read {name(key)} of T{writer}"
        low = _Limit(version.gid, _Source.READ, story, writer, key)
        high = None
        if (following := self._versions.after(version)) is not None:
            story += f", which T{following.transaction} replaced"
            high = _Limit(version.until, _Source.READ, story, following.transaction, key)
        self.snapshot.narrow(low, high)

    def _saw_nothing(self, key: Key, source: _Source) -> None:
        first = self._versions.first_gid(key)
        if first != FOREVER:
            writer = self._versions.of_key[key][0].transaction
            story = f"it did not see {name(key)} of T{writer}"
            self.snapshot.narrow(high=_Limit(first - 1, source, story, writer, key))

    def _report(self, kind: Kind, story: str, *others: int) -> None:
        numbers = (self._transaction.id, *others)
        self.wrong.append(Anomaly(kind, f"T{self._transaction.id}: {story}", numbers))


def _in_order(
    snapshots: Iterable[tuple[Transaction, _Snapshot]], order: Order, gids: Mapping[int, int]
) -> Iterator[Anomaly]:
    """Steps 5 and 7: nobody sees less than what ended before in the same session, node or herd."""
    of = {transaction.id: snapshot for transaction, snapshot in snapshots}
    group = group_of(order)
    floors: dict[Hashable, _Limit] = {}
    for transaction, begins in events([transaction for transaction, _ in snapshots]):
        snapshot = of[transaction.id]
        floor = floors.get(group(transaction))
        if begins:
            snapshot.narrow(low=floor)
            clash = snapshot.clash(transaction)
            if clash is not None:
                yield _in_words_of(order, clash)
        else:
            reached = _reached(transaction, snapshot, gids)
            if snapshot.clash(transaction) is None and (not floor or reached.gid > floor.gid):
                floors[group(transaction)] = reached


def _reached(transaction: Transaction, snapshot: _Snapshot, gids: Mapping[int, int]) -> _Limit:
    """What a transaction that has ended leaves behind for those that follow it."""
    gid, number = gids.get(transaction.id), transaction.id
    if gid is not None and any(transaction.writes()):
        return _Limit(gid, _Source.OWN_COMMIT, f"T{number} had committed before it began", number)
    story = f"T{number} had seen that before it began"
    return _Limit(snapshot.low.gid, _Source.EARLIER, story, number)


def _in_words_of(order: Order, clash: Anomaly) -> Anomaly:
    """Between sessions, what was not seen is stale: nobody was promised his own writes there."""
    own = (Kind.NOT_READ_YOUR_WRITES, Kind.NOT_MONOTONIC)
    if order is Order.SESSION or clash.kind not in own:
        return clash
    return Anomaly(Kind.STALE_READ, clash.story, clash.transactions)


def check_final(
    history: History, states: Mapping[str, Mapping[Key, int | tuple[int, ...]]]
) -> list[Anomaly]:
    """Step 9: each node's rows at the end against a replay of the order.

    Args:
        states: by node, the value of each row, or its list.
    """
    versions = Versions(history)
    found = []
    for node, rows in states.items():
        for key in sorted(versions.of_key.keys() | rows.keys()):
            of_key = versions.of_key.get(key)
            elements = versions.up_to(of_key[-1]) if of_key else ()
            value = rows.get(key)
            expected = elements if isinstance(value, tuple) else next(reversed(elements), None)
            if value != expected:
                story = f"{node}: {name(key)} is {value}, the log says {expected}"
                writers = tuple(version.transaction for version in (of_key or [])[-1:])
                found.append(Anomaly(Kind.FINAL_STATE, story, writers))
    return found


def staleness(history: History) -> list[int]:
    """How far behind each transaction began, in GIDs: a figure to publish, not an anomaly."""
    newest = 0
    behind = []
    for transaction, begins in events(history.committed()):
        if begins and transaction.position is not None:
            behind.append(max(0, newest - transaction.position))
        elif not begins:
            newest = max(newest, history.gids.get(transaction.id, 0))
    return sorted(behind)
