"""Histories of transactions as clients record them, in a form both checkers read.

Every written value is unique in its history, so a value read names the transaction that wrote it.
Rows are never deleted: a row that is not there has not been inserted yet. Times are numbers of a
counter that all clients share, taken before a request leaves and after its answer has come: what
returned before another was invoked did so in real time, too.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

Key = tuple[str, int]  # table and id


class Outcome(Enum):
    """What the client was told."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Order(Enum):
    """Whose earlier transactions a transaction has to see, besides the isolation level itself."""

    NONE = "none"
    SESSION = "session"
    NODE = "node"
    HERD = "herd"


@dataclass(frozen=True, slots=True)
class Read:
    """A row's value; None where there was no row."""

    key: Key
    value: int | None

    def __str__(self) -> str:
        return f"read {name(self.key)} = {self.value}"


@dataclass(frozen=True, slots=True)
class ReadList:
    """A list to which transactions append; empty where there was no row."""

    key: Key
    values: tuple[int, ...]

    def __str__(self) -> str:
        return f"read {name(self.key)} = {list(self.values)}"


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of a table, as (id, value)."""

    table: str
    rows: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"scan {self.table}: {len(self.rows)} rows"


@dataclass(frozen=True, slots=True)
class Write:
    """A row's new value, or an element appended to a list."""

    key: Key
    value: int

    def __str__(self) -> str:
        return f"write {name(self.key)} {self.value}"


Operation = Read | ReadList | Scan | Write


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of one client, at REPEATABLE READ or of a single statement.

    Attributes:
        session: the connection; transactions of one session follow each other.
        invoked, returned: before it began, after its end was known.
        position: the newest GID it saw itself (``pgherd.last_gid()``), if it asked.
    """

    id: int
    node: str
    session: int
    invoked: int
    returned: int
    operations: tuple[Operation, ...]
    outcome: Outcome = Outcome.OK
    position: int | None = None

    def writes(self) -> Iterator[Write]:
        """What it wrote, in order."""
        return (operation for operation in self.operations if isinstance(operation, Write))

    def __str__(self) -> str:
        operations = "; ".join(map(str, self.operations))
        return (
            f"T{self.id} ({self.node}, session {self.session}, {self.outcome.value}): {operations}"
        )


@dataclass(frozen=True, slots=True)
class History:
    """Transactions and the certified order.

    Attributes:
        gids: the place in the total order of every transaction that the log has committed,
            whatever its client was told.
    """

    transactions: tuple[Transaction, ...]
    gids: Mapping[int, int]

    def committed(self) -> list[Transaction]:
        """All that count: in the log, or acknowledged."""
        return [t for t in self.transactions if t.id in self.gids or t.outcome is Outcome.OK]


def name(key: Key) -> str:
    """A key as it is printed."""
    return f"{key[0]}/{key[1]}"


def group_of(order: Order) -> Callable[[Transaction], Hashable]:
    """The function that tells which transactions have to follow each other."""
    groups: dict[Order, Callable[[Transaction], Hashable]] = {
        Order.SESSION: lambda transaction: transaction.session,
        Order.NODE: lambda transaction: transaction.node,
        Order.HERD: lambda _: None,
    }
    return groups[order]


def events(transactions: list[Transaction]) -> Iterator[tuple[Transaction, bool]]:
    """Beginnings (True) and acknowledged ends (False) in the order of time."""
    moments = [(t.invoked, t, True) for t in transactions]
    moments += [(t.returned, t, False) for t in transactions if t.outcome is Outcome.OK]
    for _, transaction, begins in sorted(moments, key=lambda moment: moment[0]):
        yield transaction, begins
