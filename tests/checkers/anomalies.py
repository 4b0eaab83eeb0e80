"""Names of what can be wrong with a history, and how it is told.

The names are Adya's and Elle's where they have one. ``Kind.WRITE_SKEW`` is the only one that
snapshot isolation allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from checkers.history import History


class Kind(Enum):
    """What is wrong."""

    LOST_COMMIT = "an acknowledged commit is not in the log"
    UNDEAD = "a transaction that was told aborted is committed"
    TWO_AT_ONE_GID = "two transactions have one GID"
    DUPLICATE = "a value was written twice"
    GARBAGE = "a value was read that nobody wrote"
    G1A = "aborted read: a value of a transaction that did not commit"
    G1B = "intermediate read: a value that its transaction overwrote itself"
    INTERNAL = "a transaction did not see its own write"
    INCOMPATIBLE_ORDER = "two orders of the versions of one row"
    NON_REPEATABLE_READ = "two versions of one row in one snapshot"
    FRACTURED_READ = "a transaction was seen in part"
    READ_SKEW = "what was seen is no prefix of the order (read skew, long fork)"
    PHANTOM = "a set of rows that no prefix of the order has"
    LOST_UPDATE = "a row was written over a version that the writer had not seen"
    FUTURE_READ = "a transaction read what is ordered after it"
    NOT_READ_YOUR_WRITES = "a session did not see its own commit"
    NOT_MONOTONIC = "a session saw less than before"
    STALE_READ = "a commit acknowledged before was not seen"
    COMMIT_ORDER = "the order contradicts what was acknowledged before"
    POSITION = "the position that the node gave does not fit to what was read"
    FINAL_STATE = "a node's final state is not what the log says"
    G0 = "write cycle"
    G1C = "circular information flow"
    G_SINGLE = "cycle with one anti-dependency (read skew)"
    G_NONADJACENT = "cycle of anti-dependencies none of which follow each other (long fork)"
    WRITE_SKEW = "cycle with anti-dependencies that follow each other (G2); allowed"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong.

    Attributes:
        story: the operations that clash, in words.
        transactions: whose they are.
    """

    kind: Kind
    story: str
    transactions: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind.name} ({self.kind.value}): {self.story}"


def violations(anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    """Those that snapshot isolation forbids."""
    return [anomaly for anomaly in anomalies if anomaly.kind is not Kind.WRITE_SKEW]


def report(history: History, anomalies: list[Anomaly], at_most: int = 5) -> str:
    """The first anomalies with the transactions they name, for a person to read."""
    by_id = {transaction.id: transaction for transaction in history.transactions}
    lines = [f"{len(anomalies)} anomalies in {len(history.transactions)} transactions"]
    for anomaly in anomalies[:at_most]:
        lines.append(str(anomaly))
        for number in anomaly.transactions:
            place = history.gids.get(number)
            lines.append(f"    GID {place}: {by_id.get(number, f'T{number}')}")
    return "\n".join(lines)
