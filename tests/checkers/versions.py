"""Which versions each row had, by the certified order; and what is wrong before anybody reads."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from checkers.anomalies import Anomaly, Kind
from checkers.history import History, Key, Outcome, Transaction, name

FOREVER = math.inf


@dataclass(frozen=True, slots=True)
class Version:
    """What one transaction left in a row, visible in snapshots ``gid <= snapshot <= until``.

    ``values`` are all values the transaction wrote there; only the last is seen by others, unless
    the row is a list, to which it has appended them all.
    """

    key: Key
    gid: int
    until: float
    transaction: int
    values: tuple[int, ...]


class Versions:
    """The versions of all rows, found by row or by value."""

    def __init__(self, history: History) -> None:
        self.gids = history.gids
        self.writer_of: dict[int, Transaction] = {}
        self.of_key: dict[Key, list[Version]] = {}
        self._place: dict[tuple[Key, int], int] = {}
        self._keys_of_table: dict[str, set[Key]] = defaultdict(set)
        installed: dict[Key, list[tuple[int, Transaction, list[int]]]] = defaultdict(list)
        for transaction in history.transactions:
            written: dict[Key, list[int]] = defaultdict(list)
            for write in transaction.writes():
                self.writer_of.setdefault(write.value, transaction)
                self._keys_of_table[write.key[0]].add(write.key)
                written[write.key].append(write.value)
            if transaction.id in history.gids:
                for key, values in written.items():
                    installed[key].append((history.gids[transaction.id], transaction, values))
        for key, writes in installed.items():
            self._install(key, sorted(writes, key=lambda write: write[0]))

    def _install(self, key: Key, writes: list[tuple[int, Transaction, list[int]]]) -> None:
        ends = [float(gid - 1) for gid, _, _ in writes[1:]] + [FOREVER]
        self.of_key[key] = [
            Version(key, gid, until, transaction.id, tuple(values))
            for (gid, transaction, values), until in zip(writes, ends, strict=True)
        ]
        for place, version in enumerate(self.of_key[key]):
            for value in version.values:
                self._place[key, value] = place

    def keys_of(self, table: str) -> set[Key]:
        """All keys that were ever written in a table."""
        return self._keys_of_table[table]

    def installed(self, key: Key, value: int) -> Version | None:
        """The committed version in which a value appears."""
        place = self._place.get((key, value))
        return None if place is None else self.of_key[key][place]

    def before(self, version: Version) -> Version | None:
        """The version that this one replaced."""
        return self._neighbour(version, -1)

    def after(self, version: Version) -> Version | None:
        """The version that replaced this one."""
        return self._neighbour(version, 1)

    def _neighbour(self, version: Version, step: int) -> Version | None:
        place = self._place[version.key, version.values[-1]] + step
        versions = self.of_key[version.key]
        return versions[place] if 0 <= place < len(versions) else None

    def up_to(self, version: Version) -> tuple[int, ...]:
        """A list as it is in the snapshots that see ``version``."""
        values: list[int] = []
        for one in self.of_key[version.key]:
            values += one.values
            if one is version:
                break
        return tuple(values)

    def first_gid(self, key: Key) -> float:
        """Where a row appears."""
        versions = self.of_key.get(key)
        return versions[0].gid if versions else FOREVER


def outcome_anomalies(history: History) -> Iterator[Anomaly]:
    """What the clients were told against what the log says, and values that are not unique."""
    at: dict[int, int] = {}
    written: dict[int, int] = {}
    for transaction in history.transactions:
        number, gid = transaction.id, history.gids.get(transaction.id)
        writes = list(transaction.writes())
        if transaction.outcome is Outcome.OK and writes and gid is None:
            yield Anomaly(Kind.LOST_COMMIT, f"T{number} was acknowledged", (number,))
        if transaction.outcome is Outcome.FAILED and gid is not None:
            yield Anomaly(Kind.UNDEAD, f"T{number} is GID {gid}", (number,))
        if gid is not None and at.setdefault(gid, number) != number:
            yield Anomaly(Kind.TWO_AT_ONE_GID, f"GID {gid}", (at[gid], number))
        for write in writes:
            if write.value in written:
                story = f"{write.value} in {name(write.key)}"
                yield Anomaly(Kind.DUPLICATE, story, (written[write.value], number))
            written[write.value] = number
