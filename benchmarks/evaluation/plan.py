"""The plan, as data: which points are measured, on which systems, how long. Pure.

The figures are those of Postgres-R(SI), section 6, and the growth that the paper does not show.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

FIGURES = ("tpcw", "overhead", "updates", "conflicts", "nodes", "rows", "clients", "bytes")
"""TPC-W (6.1), one client's overhead (6.2), updates (6.3), the hot set, and growth four times."""
PLAIN = "plain"
GALERA = "galera5"
PAPER_NODES = 5
"""Of the experiments in 6.2 and 6.3."""
TPCW_CLIENTS = 40
GROWTH_HERD = "herd3"
HOT_CLIENTS = 20
CLIENTS_BEGIN_PER_S = 25
NODES_CLIENTS = 40
"""For growth in nodes and rows: enough that blocks carry several transactions, as under load."""
START_S = {"plain": 6, "galera": 50}
HERD_START_S, NODE_START_S = 10, 7
BETWEEN_POINTS_S = 1.5
SLOWEST_BYTES_PER_S = 2e6
"""A transaction of many bytes is given time for this speed."""
ROW_BYTES = 260
"""Of a row of the tables for growth, with its key's index, the WAL and the log: an estimate."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement on one system."""

    figure: str
    workload: str
    """``tpcw``, ``updates`` (ten of them), ``update``, ``read``, ``rows`` or ``bytes``."""
    clients: int
    x: float
    """Where it stands in its figure."""
    rate: float | None = None
    """Transactions a second that are submitted; None: each client as soon as it can."""
    size: int = 0
    """Rows of each table that may be hit, or bytes of a transaction."""
    windows: int = 1
    """So many of the scale's windows are one here."""
    warm_s: int = 1
    seconds: int = 4

    @property
    def series(self) -> str:
        """Which of the figure's lines it belongs to, beside its system."""
        return {"updates": f"{self.clients} clients", "nodes": self.workload}.get(self.figure, "")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    name: str
    seconds: int
    warm_s: int
    items: int
    customers: int
    rows: int
    """Of each of the ten tables; the paper has 10,000."""
    replicas: tuple[int, ...]
    """Herds for TPC-W and the overhead."""
    tpcw_rates: tuple[int, ...]
    update_clients: tuple[int, ...]
    update_rates: tuple[int, ...]
    hot_rows: tuple[int, ...]
    """Of each of the ten tables."""
    hot_rate: int
    growth_nodes: tuple[int, ...]
    growth_rows: tuple[int, ...]
    growth_clients: tuple[int, ...]
    growth_bytes: tuple[int, ...]


QUICK = Scale(
    "quick", 4, 1, 1000, 40 * 144, 10_000, (1, 3, 5, 10), (20, 80, 240), (5, 20),
    (20, 60, 120), (10, 100, 1000), 60, (1, 3, 5, 10), (10_000, 100_000), (1, 8, 64),
    (100, 10_000, 1_000_000),
)  # fmt: skip
FULL = Scale(
    "full", 20, 5, 1000, 40 * 288, 10_000, (1, 3, 5, 10), (20, 40, 60, 80, 120, 160, 240, 320, 480),
    (5, 20), (20, 40, 60, 80, 100, 120, 160, 240), (1, 10, 100, 1000, 10_000), 60,
    tuple(range(1, 11)), (10_000, 100_000, 1_000_000), (1, 2, 4, 8, 16, 32, 64, 128, 256),
    (100, 1_000, 10_000, 100_000, 1_000_000),
)  # fmt: skip


def with_bounds(scale: Scale, *, largest_rows: int | None, largest_bytes: int | None) -> Scale:
    """Return a scale whose growth goes on by powers of ten to these bounds, or ends at them.

    Args:
        largest_rows: of the largest table; None leaves the scale's own.
        largest_bytes: of the largest transaction; None likewise.
    """
    if largest_rows is not None:
        scale = replace(scale, growth_rows=_powers(10_000, largest_rows))
    if largest_bytes is not None:
        scale = replace(scale, growth_bytes=_powers(100, largest_bytes))
    return scale


def points(scale: Scale, figures: Collection[str] = FIGURES) -> dict[str, list[Point]]:
    """Return what is measured on each system, by its name, in the order in which they run."""
    herd = f"herd{PAPER_NODES}"
    every: dict[str, list[Point]] = {}

    def add(systems: Collection[str], point: Point) -> None:
        """Note a point, with the times of the scale."""
        if point.figure in figures:
            seconds = point.windows * scale.seconds
            sized = replace(point, warm_s=scale.warm_s + first_turn_s(point), seconds=seconds)
            for system in systems:
                every.setdefault(system, []).append(sized)

    herds = [f"herd{nodes}" for nodes in scale.replicas]
    rows = scale.rows
    for rate in scale.tpcw_rates:
        add([PLAIN, *herds], Point("tpcw", "tpcw", TPCW_CLIENTS, rate, rate))
    add([PLAIN, *herds, GALERA], Point("overhead", "updates", 1, 1, size=rows))
    for clients in scale.update_clients:
        for rate in scale.update_rates:
            add([PLAIN, herd, GALERA], Point("updates", "updates", clients, rate, rate, rows))
    for hot in scale.hot_rows:
        # Twice as long: an abort rate of a percent needs some hundred transactions.
        point = Point("conflicts", "updates", HOT_CLIENTS, 10 * hot, scale.hot_rate, hot, windows=2)
        add([PLAIN, herd, GALERA], point)
    for nodes in scale.growth_nodes:
        for workload in ("update", "read"):
            systems = [f"herd{nodes}", *([PLAIN] if nodes == 1 else [])]
            add(systems, Point("nodes", workload, NODES_CLIENTS, nodes, size=rows))
    for clients in scale.growth_clients:
        add([PLAIN, GROWTH_HERD], Point("clients", "update", clients, clients, size=rows))
    for size in scale.growth_bytes:
        # A transaction of 100 MB takes longer than a window.
        windows = max(1, math.ceil(size / SLOWEST_BYTES_PER_S / scale.seconds))
        point = Point("bytes", "bytes", 1, size, size=size, windows=windows)
        add([PLAIN, GROWTH_HERD], point)
    for size in scale.growth_rows:
        add([PLAIN, GROWTH_HERD], Point("rows", "rows", NODES_CLIENTS, size, size=size))
    return dict(sorted(every.items(), key=lambda item: _order(item[0])))


def first_turn_s(point: Point) -> int:
    """Return how long it takes until each client has begun, and has its session, in seconds.

    pgbench gives the clients turns; without a rate the sessions' beginnings take the CPU.
    """
    if point.rate is None:
        return point.clients // CLIENTS_BEGIN_PER_S
    return math.ceil(point.clients / point.rate)


def expected_s(every: Mapping[str, list[Point]]) -> float:
    """Return about how long a plan takes on two cores, in seconds."""
    waiting = sum(
        point.warm_s + point.seconds + BETWEEN_POINTS_S for own in every.values() for point in own
    )
    return waiting + sum(_start_s(name) for name in every)


def rows_that_fit(rows: int, nodes: int, free_bytes: int) -> bool:
    """Tell whether tables of that many rows take at most half of what is free."""
    return rows * ROW_BYTES * nodes <= free_bytes / 2


def nodes_of(system: str) -> int:
    """Return the number of nodes that a system's name tells."""
    return int("".join(letter for letter in system if letter.isdigit()) or 1)


def _start_s(system: str) -> float:
    """Return about how long starting, filling and stopping takes."""
    if system.startswith("herd"):
        return HERD_START_S + NODE_START_S * nodes_of(system)
    return START_S["galera" if system.startswith("galera") else "plain"]


def _order(system: str) -> tuple[int, int]:
    kind = 0 if system == PLAIN else 2 if system.startswith("galera") else 1
    return kind, nodes_of(system)


def _powers(first: int, last: int) -> tuple[int, ...]:
    found = []
    while first <= last:
        found.append(first)
        first *= 10
    return tuple(found)
