"""What all clients of one run did, heard and saw.

Lives in one event loop, so its counters need no locks: a number taken before a request is sent is
smaller than one taken after its answer.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from checkers.history import History, Outcome, Transaction
from patience import WaitRanOutError

from workloads.acknowledged import Acknowledged


@dataclass
class Recorder:
    """The transactions of a run.

    Attributes:
        tokens: by transaction, what ``pgherd.current_token()`` said; of those that wrote.
        codes: what went wrong how often, by SQLSTATE.
        expected: SQLSTATEs that are no surprise because of what is done to the servers.
        surprises: errors that no client should ever see, and broken invariants.
    """

    transactions: list[Transaction] = field(default_factory=list)
    tokens: dict[int, str] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    expected: frozenset[str] = frozenset()
    surprises: list[str] = field(default_factory=list)
    clock: "itertools.count[int]" = field(default_factory=itertools.count)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    sessions: "itertools.count[int]" = field(default_factory=itertools.count)
    values: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _unreliable: set[str] = field(default_factory=set)
    _lives: Counter[str] = field(default_factory=Counter)  # of each node's server
    _acknowledged: Acknowledged = field(default_factory=Acknowledged)  # writers only

    def server_of(self, node: str) -> str:
        """A node's name for the history, another one after each crash of its server."""
        if node in self._unreliable:
            self.crashed(node)
        return f"{node}/{self._lives[node]}"

    def crashed(self, node: str) -> None:
        """Say that a node's server is dead, before it is started again.

        Commits of a node are asynchronous there, so its server comes back with a prefix of what
        it had shown, and takes readers before the rest has been applied again.
        """
        self._lives.update((node,))

    @contextlib.contextmanager
    def unreliable(self, node: str) -> Iterator[None]:
        """Say that a node's server may crash, and come back by itself, at any time in the block."""
        self._unreliable.add(node)
        try:
            yield
        finally:
            self._unreliable.discard(node)
            self.crashed(node)

    def record(self, transaction: Transaction) -> None:
        """Add a transaction that has ended."""
        self.transactions.append(transaction)
        if transaction.outcome is Outcome.OK and any(transaction.writes()):
            self._acknowledged.note(transaction.node.partition("/")[0])

    async def acknowledged(self, more: int, *, on: Iterable[str] = ()) -> None:
        """Wait until this many commits have been acknowledged from now on, on each of these."""
        try:
            await self._acknowledged.more(more, on=on)
        except WaitRanOutError as error:
            raise WaitRanOutError(f"{error}, errors {dict(self.codes)}") from None

    def history(self, gids: Mapping[int, int]) -> History:
        """All that was recorded, with the order as the herd knows it."""
        return History(tuple(self.transactions), gids)
