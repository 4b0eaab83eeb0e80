"""List-append histories judged by the order that the lists themselves show, after Kingsbury's Elle.

A list read shows all versions before it and their order; that gives the dependencies ww, wr and rw
between transactions. Snapshot isolation holds if each transaction can be given a start and a commit
such that the dependencies point forward in time:

    ww, wr, order:  commit of one  ->  start of the other
    rw:             start of one   ->  commit of the other

so the graph has a node for every start and every commit, and each of its cycles is a violation.
Cycles of dependencies between transactions that are none there (two rw that follow each other)
are write skew. What nobody has read has no place in any list: end a workload by reading all.

With ``log=True`` the commits are also chained in GID order, and what the log holds is what counts.
"""

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from checkers.anomalies import Anomaly, Kind
from checkers.cycles import components, path
from checkers.graph import Edge, EventGraph
from checkers.history import (
    History,
    Key,
    Order,
    Outcome,
    ReadList,
    Transaction,
    Write,
    events,
    group_of,
    name,
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a transaction read of a list before it appended to it itself."""

    transaction: Transaction
    key: Key
    values: tuple[int, ...]


def check(history: History, order: Order = Order.NONE, *, log: bool = False) -> list[Anomaly]:
    """Judge a history of ``ReadList`` and ``Write`` (append).

    Args:
        order: whose earlier transactions a later one has to see.
        log: whether the graph includes the certified order.
    """
    committed = _committed(history, log)
    found, seen = _reads_of(committed)
    lists, wrong = _lists(seen)
    found += wrong
    found += _values(history, committed, seen)
    found += _lost_updates(seen)
    graph = EventGraph(committed)
    _add_dependencies(graph, committed, seen, lists)
    if order is not Order.NONE:
        _add_order(graph, committed, order)
    if log:
        graph.chain_commits(history.gids)
    found += _cycles(graph)
    return found


def _committed(history: History, log: bool) -> list[Transaction]:
    if log:
        return history.committed()
    certain = [t for t in history.transactions if t.outcome is Outcome.OK]
    observed = {
        value
        for transaction in certain
        for operation in transaction.operations
        if isinstance(operation, ReadList)
        for value in operation.values
    }
    return certain + [
        transaction
        for transaction in history.transactions
        if transaction.outcome is Outcome.UNKNOWN
        and any(write.value in observed for write in transaction.writes())
    ]


def _reads_of(committed: list[Transaction]) -> tuple[list[Anomaly], list[_Seen]]:
    """Split off what each transaction appended itself; what is missing of it is wrong."""
    wrong, seen = [], []
    for transaction in committed:
        own: dict[Key, tuple[int, ...]] = defaultdict(tuple)
        for operation in transaction.operations:
            if isinstance(operation, Write):
                own[operation.key] += (operation.value,)
            elif isinstance(operation, ReadList):
                key, values = operation.key, operation.values
                others = values[: len(values) - len(own[key])]
                if others + own[key] != values:
                    story = f"T{transaction.id}: {operation} after appending {own[key]}"
                    wrong.append(Anomaly(Kind.INTERNAL, story, (transaction.id,)))
                else:
                    seen.append(_Seen(transaction, key, others))
    return wrong, seen


def _lists(seen: list[_Seen]) -> tuple[dict[Key, tuple[int, ...]], list[Anomaly]]:
    """The longest list of each key; all others have to be prefixes of it."""
    longest: dict[Key, _Seen] = {}
    for one in seen:
        if one.key not in longest or len(one.values) > len(longest[one.key].values):
            longest[one.key] = one
    wrong = []
    for one in seen:
        other = longest[one.key]
        if one.values != other.values[: len(one.values)]:
            story = f"{name(one.key)} is {list(one.values)} and {list(other.values)}"
            pair = (one.transaction.id, other.transaction.id)
            wrong.append(Anomaly(Kind.INCOMPATIBLE_ORDER, story, pair))
    return {key: one.values for key, one in longest.items()}, wrong


def _values(history: History, committed: list[Transaction], seen: list[_Seen]) -> Iterator[Anomaly]:
    """Values that nobody may have seen."""
    writers = {w.value: (t, w.key) for t in history.transactions for w in t.writes()}
    counted = {transaction.id for transaction in committed}
    last: dict[tuple[int, Key], int] = {}
    for transaction in committed:
        for write in transaction.writes():
            last[transaction.id, write.key] = write.value
    for one in seen:
        reader, where = one.transaction.id, f"{list(one.values)} in {name(one.key)}"
        if len(set(one.values)) < len(one.values):
            yield Anomaly(Kind.DUPLICATE, f"T{reader} read {where}", (reader,))
        for value in one.values:
            writer, key = writers.get(value, (None, None))
            if writer is None or key != one.key:
                yield Anomaly(Kind.GARBAGE, f"{value}: T{reader} read {where}", (reader,))
            elif writer.id not in counted:
                story = f"{value}: T{reader} read {where}"
                yield Anomaly(Kind.G1A, story, (reader, writer.id))
        if one.values:
            writer, key = writers.get(one.values[-1], (None, None))
            if (
                writer is not None
                and last.get((writer.id, one.key), one.values[-1]) != one.values[-1]
            ):
                yield Anomaly(Kind.G1B, f"T{reader} read {where}", (reader, writer.id))


def _lost_updates(seen: list[_Seen]) -> Iterator[Anomaly]:
    """Two transactions that read one version of a list and both appended to it."""
    by_version: dict[tuple[Key, tuple[int, ...]], list[int]] = defaultdict(list)
    for one in seen:
        if any(write.key == one.key for write in one.transaction.writes()):
            by_version[one.key, one.values].append(one.transaction.id)
    for (key, values), numbers in by_version.items():
        if len(different := tuple(dict.fromkeys(numbers))) > 1:
            story = f"all read {list(values)} in {name(key)} and appended to it"
            yield Anomaly(Kind.LOST_UPDATE, story, different)


def _add_dependencies(
    graph: EventGraph,
    committed: list[Transaction],
    seen: list[_Seen],
    lists: dict[Key, tuple[int, ...]],
) -> None:
    writer = {write.value: t.id for t in committed for write in t.writes()}
    place = {
        (key, value): number for key, values in lists.items() for number, value in enumerate(values)
    }
    for key, values in lists.items():
        known = [value for value in values if value in writer]
        for older, newer in itertools.pairwise(known):
            if writer[older] != writer[newer]:
                label = f"{name(key)} {newer}"
                graph.after_commit(writer[older], writer[newer], Edge.WW, label)
    for one in seen:
        reader, values = one.transaction.id, lists[one.key]
        following = 0
        if one.values:
            if one.values[-1] in writer:
                label = f"{name(one.key)} {one.values[-1]}"
                graph.after_commit(writer[one.values[-1]], reader, Edge.WR, label)
            following = place.get((one.key, one.values[-1]), len(values)) + 1
        if following < len(values) and values[following] in writer:
            label = f"{name(one.key)} {values[following]}"
            graph.before_commit(reader, writer[values[following]], label)


def _add_order(graph: EventGraph, committed: list[Transaction], order: Order) -> None:
    """A chain of moments in each session, node or herd: all pairs would be too many."""
    group = group_of(order)
    latest: dict[Hashable, int] = {}
    for transaction, begins in events(committed):
        moment = latest.get(group(transaction))
        if begins:
            if moment is not None:
                graph.start_after(moment, transaction.id, order.value)
        else:
            latest[group(transaction)] = graph.moment_after(transaction, moment, order.value)


def _cycles(graph: EventGraph) -> Iterator[Anomaly]:
    in_violation: set[int] = set()
    for component in components(graph.successors):
        kind, cycle = _worst(graph, component)
        numbers = graph.transactions_in(cycle)
        in_violation.update(graph.transactions_in(component))
        yield Anomaly(kind, graph.story(cycle), numbers)
    skewed = graph.contracted()
    for component in components(skewed):
        numbers = tuple(graph.transactions[place].id for place in component)
        if in_violation.isdisjoint(numbers):
            yield Anomaly(Kind.WRITE_SKEW, ", ".join(f"T{number}" for number in numbers), numbers)


_LEVELS = (
    (Kind.G0, {Edge.WW}),
    (Kind.G1C, {Edge.WW, Edge.WR}),
)


def _worst(graph: EventGraph, component: list[int]) -> tuple[Kind, list[int]]:
    """The shortest cycle of the worst kind that a component has."""
    inside = set(component)
    edges = [(a, b) for a in component for b in graph.successors[a] if b in inside]
    for kind, dependencies in _LEVELS:
        usable = dependencies | {Edge.SELF, Edge.ORDER}
        cycle = _shortest(graph, [e for e in edges if graph.edge(*e) in usable], inside, usable)
        if cycle:
            return kind, cycle
    anti = [edge for edge in edges if graph.edge(*edge) is Edge.RW]
    cycle = _shortest(graph, anti, inside, set(Edge) - {Edge.RW})
    if cycle:
        return Kind.G_SINGLE, cycle
    cycle = _shortest(graph, anti, inside, set(Edge))
    assert cycle is not None, "a component has a cycle"
    return Kind.G_NONADJACENT, cycle


def _shortest(
    graph: EventGraph, edges: list[tuple[int, int]], inside: set[int], usable: set[Edge]
) -> list[int] | None:
    """The shortest cycle of one of these edges and a way back over usable ones."""
    best: list[int] | None = None
    for a, b in edges:
        back = path(graph.successors, b, a, lambda x, y: y in inside and graph.edge(x, y) in usable)
        if back and (best is None or len(back) < len(best)):
            best = back
    return best
