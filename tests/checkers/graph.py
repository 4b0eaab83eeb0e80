"""The graph of starts and commits that ``elle`` looks for cycles in."""

import itertools
from collections.abc import Mapping
from enum import Enum

from checkers.history import Transaction


class Edge(Enum):
    """Why one event comes before another; the weaker of two reasons is not kept."""

    SELF = "self"  # a transaction's start and its commit
    WW = "ww"
    WR = "wr"
    RW = "rw"
    ORDER = "order"  # session, node, real time, log


class EventGraph:
    """Nodes 2n and 2n+1 are start and commit of the n-th transaction, further ones are moments."""

    def __init__(self, transactions: list[Transaction]) -> None:
        self.transactions = transactions
        self.successors: list[list[int]] = []
        self._edges: dict[tuple[int, int], tuple[Edge, str]] = {}
        self._place = {transaction.id: place for place, transaction in enumerate(transactions)}
        for _ in transactions:
            start, commit = self._node(), self._node()
            self._add(start, commit, Edge.SELF, "")

    def _node(self) -> int:
        self.successors.append([])
        return len(self.successors) - 1

    def _add(self, a: int, b: int, edge: Edge, label: str) -> None:
        if (a, b) not in self._edges:
            self.successors[a].append(b)
            self._edges[a, b] = (edge, label)

    def _start(self, transaction: int) -> int:
        return 2 * self._place[transaction]

    def _commit(self, transaction: int) -> int:
        return 2 * self._place[transaction] + 1

    def after_commit(self, one: int, other: int, edge: Edge, label: str) -> None:
        """``other`` started after ``one`` had committed."""
        self._add(self._commit(one), self._start(other), edge, label)

    def before_commit(self, one: int, other: int, label: str) -> None:
        """``one`` started before ``other`` had committed."""
        if one != other:
            self._add(self._start(one), self._commit(other), Edge.RW, label)

    def start_after(self, moment: int, transaction: int, label: str) -> None:
        """A transaction started after a moment."""
        self._add(moment, self._start(transaction), Edge.ORDER, label)

    def moment_after(self, transaction: Transaction, earlier: int | None, label: str) -> int:
        """Return a new moment: after this transaction had ended, and after an earlier moment."""
        moment = self._node()
        if earlier is not None:
            self._add(earlier, moment, Edge.ORDER, label)
        wrote = any(transaction.writes())
        # The commit of a reader is no event of its own: what counts is what it has seen.
        event = self._commit(transaction.id) if wrote else self._start(transaction.id)
        self._add(event, moment, Edge.ORDER, label)
        return moment

    def chain_commits(self, gids: Mapping[int, int]) -> None:
        """Put the commits into the order of their GIDs."""
        ordered = sorted((gids[t.id], t.id) for t in self.transactions if t.id in gids)
        for (_, one), (_, other) in itertools.pairwise(ordered):
            self._add(self._commit(one), self._commit(other), Edge.ORDER, "log")

    def edge(self, a: int, b: int) -> Edge:
        """The kind of an edge."""
        return self._edges[a, b][0]

    def contracted(self) -> list[list[int]]:
        """The dependencies between transactions, without telling starts and commits apart."""
        between: list[list[int]] = [[] for _ in self.transactions]
        for (a, b), (edge, _) in self._edges.items():
            if edge in (Edge.WW, Edge.WR, Edge.RW):
                between[a // 2].append(b // 2)
        return between

    def transactions_in(self, nodes: list[int]) -> tuple[int, ...]:
        """The transactions whose events these are, each once, in order."""
        places = [node // 2 for node in nodes if node < 2 * len(self.transactions)]
        return tuple(dict.fromkeys(self.transactions[place].id for place in places))

    def story(self, cycle: list[int]) -> str:
        """A cycle in words: who depends on whom, and why."""
        words = []
        for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            edge, label = self._edges[a, b]
            if a < 2 * len(self.transactions) and edge is not Edge.SELF:
                words.append(f"T{self.transactions[a // 2].id} -{edge.value} {label}->")
        return " ".join([*words, words[0].split()[0]])
