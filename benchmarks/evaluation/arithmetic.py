"""The costs of a herd of n nodes, computed from few measurements, beside those measured. Pure.

The cost of a transaction is CPU of all nodes together, less what the system uses when it is idle.
A read costs what it costs on one server. A write costs c(1) on its node and m on each other one:
c(n) = c(1) + (n - 1) m. A writeset of B bytes goes from its origin to the proposer, unless the
origin is the proposer, and from there to the n - 1 others: with the clients spread over all nodes
(n - 1)/n + (n - 1) = (n² - 1)/n times B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.evaluation.plan import GROWTH_HERD, PLAIN, nodes_of
from benchmarks.evaluation.record import Idle, Measurement, Record

WRITE_SHARES = (0.0, 0.05, 0.2, 0.5, 1.0)
SIZES = (1, 3, 5, 10)
BOUND_NODES = 3
"""Up to here the flushes of the proposer and the receiver are a majority: a block is enough."""
LARGE_BYTES = 10_000
"""From here on what the log adds to a writeset is small."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of "by the arithmetic / measured"."""

    what: str
    computed: float
    measured: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of CPU of all nodes for one transaction."""

    read: float
    """On one server."""
    plain_write: float
    """On one server."""
    write: float
    """c(1): in a herd of one."""
    member: float
    """m: each further member's part."""

    def herd_write(self, nodes: int) -> float:
        """Return c(n)."""
        return self.write + (nodes - 1) * self.member

    def gain(self, nodes: int, write_share: float) -> float:
        """Return how many times one server's throughput a herd reaches on n machines like it.

        The reads and the clients are spread evenly, and CPU is what is scarce.
        """
        reads = (1 - write_share) * self.read
        alone = reads + write_share * self.plain_write
        together = reads + write_share * self.herd_write(nodes)
        return nodes * alone / together

    def break_even(self, nodes: int) -> float:
        """Return the share of writes up to which a herd on n machines is ahead of one server."""
        lost = self.herd_write(nodes) - nodes * self.plain_write
        won = (nodes - 1) * self.read
        return 1.0 if lost <= 0 else won / (won + lost)


def copies(nodes: int) -> float:
    """Return how often a writeset is sent in a herd whose clients are spread evenly."""
    return (nodes * nodes - 1) / nodes


def round_trips(nodes: int) -> tuple[int, int]:
    """Return the round trips of a commit: on the proposer's node, and on another one.

    The proposer flushes before it sends. With two or three members another one's own flush
    completes the majority; with more it hears from the proposer when enough have flushed.
    """
    if nodes == 1:
        return 0, 0
    return 1, 1 if nodes <= BOUND_NODES else 2


def net_us(record: Record, one: Measurement) -> float | None:
    """Return the CPU of a transaction, less what the system uses when idle, in microseconds."""
    if not one.tps:
        return None
    idle_us = 1e6 * record.idle.get(one.system, Idle()).cores / one.tps
    return max(one.cpu_all_us - idle_us, 0.0)


def costs(record: Record) -> Costs | None:
    """Return the costs that the figure ``nodes`` gives, by herds of one and of the next size.

    None if one of the four points has not been measured.
    """
    reads, writes = record.of("nodes", "read"), record.of("nodes", "update")
    sizes = herd_sizes(writes)
    if len(sizes) < 2 or sizes[0] != 1:
        return None
    second = _second(sizes)
    found = [
        net_us(record, one) if one is not None else None
        for one in (
            reads.get((PLAIN, 1)),
            writes.get((PLAIN, 1)),
            writes[f"herd{1}", 1],
            writes[f"herd{second}", second],
        )
    ]
    read, plain, first, other = found
    if read is None or plain is None or first is None or other is None:
        return None
    return Costs(read, plain, first, (other - first) / (second - 1))


def checks(record: Record) -> list[Check]:
    """Return everything that can be computed from small herds and was measured on larger ones."""
    return [
        *_reads(record),
        *_writes(record),
        *_tpcw(record),
        *_bytes(record),
        *_large(record),
        *_segments(record),
    ]


def herd_sizes(places: Mapping[tuple[str, float], Measurement]) -> list[int]:
    """Return the sizes of the herds among measurements."""
    return sorted({nodes_of(system) for system, _ in places if system.startswith("herd")})


def _second(sizes: Sequence[int]) -> int:
    """Return the size of herd that shows the cost of a member: three, or the smallest above one."""
    return 3 if 3 in sizes else sizes[1]


def _reads(record: Record) -> list[Check]:
    places = record.of("nodes", "read")
    plain = places.get((PLAIN, 1))
    base = net_us(record, plain) if plain is not None else None
    if base is None:
        return []
    return [
        Check(f"CPU of a read, n = {nodes}: as on one server, µs", base, measured)
        for nodes in herd_sizes(places)
        if (measured := net_us(record, places[f"herd{nodes}", nodes])) is not None
    ]


def _writes(record: Record) -> list[Check]:
    known, places = costs(record), record.of("nodes", "update")
    if known is None:
        return []
    sizes = herd_sizes(places)
    return [
        Check(
            f"CPU of an update, n = {nodes}: c(1) + {nodes - 1} m, µs",
            known.herd_write(nodes),
            measured,
        )
        for nodes in sizes
        if nodes not in (1, _second(sizes))
        and (measured := net_us(record, places[f"herd{nodes}", nodes])) is not None
    ]


def _tpcw(record: Record) -> list[Check]:
    """CPU of an interaction, at the highest load that no herd refused, likewise linear in n."""
    places = record.of("tpcw")
    sizes = herd_sizes(places)
    if len(sizes) < 3 or sizes[0] != 1:
        return []
    calm = [
        x
        for x in {x for _, x in places}
        if all((one := places.get((f"herd{n}", x))) and not one.saturated for n in sizes)
    ]
    if not calm:
        return []
    rate, second = max(calm), _second(sizes)
    found = {n: net_us(record, places[f"herd{n}", rate]) for n in sizes}
    first, other = found[1], found[second]
    if first is None or other is None:
        return []
    member = (other - first) / (second - 1)
    return [
        Check(
            f"CPU of a TPC-W interaction at {rate:g} a second, n = {n}, µs",
            first + (n - 1) * member,
            measured,
        )
        for n in sizes
        if n not in (1, second) and (measured := found[n]) is not None
    ]


def _bytes(record: Record) -> list[Check]:
    places = record.of("nodes", "update")
    sizes = [n for n in herd_sizes(places) if n > 1 and places[f"herd{n}", n].link_bytes]
    if not sizes:
        return []
    first = _second([1, *sizes])
    one = (places[f"herd{first}", first].link_bytes or 0.0) / copies(first)
    return [
        Check(
            f"bytes between members for an update, n = {n}: {copies(n):.2f} copies of {one:,.0f}",
            one * copies(n),
            places[f"herd{n}", n].link_bytes or 0.0,
        )
        for n in sizes
        if n != first
    ]


def _large(record: Record) -> list[Check]:
    """Bytes of large transactions, whose only client is on the first node."""
    nodes = nodes_of(GROWTH_HERD)
    sent = nodes - (record.proposers.get(GROWTH_HERD) == "n1")
    return [
        Check(
            f"bytes between members for a transaction of {x:,.0f}, n = {nodes}: {sent} copies",
            sent * x,
            one.link_bytes,
        )
        for (system, x), one in record.of("bytes").items()
        if system == GROWTH_HERD and x >= LARGE_BYTES and one.link_bytes
    ]


def _segments(record: Record) -> list[Check]:
    """Messages of one client's commit.

    A submission, and for each other member a block and its answer. With more than three members
    each hears in a message of its own that the block is committed.
    """
    found = []
    for (system, _), one in record.of("overhead").items():
        nodes = nodes_of(system)
        if not system.startswith("herd") or nodes == 1 or not one.link_segments or not one.tps:
            continue
        own = record.idle.get(system, Idle()).segments_per_s / one.tps
        submitted = 0 if record.proposers.get(system) == "n1" else 1
        each = 2 if nodes <= BOUND_NODES else 3
        what = (
            f"messages between members for one client's commit, n = {nodes}: "
            f"{submitted} + {each} times {nodes - 1}"
        )
        messages = submitted + each * (nodes - 1)
        found.append(Check(what, messages, max(one.link_segments - own, 0.0)))
    return found
