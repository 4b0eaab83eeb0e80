"""Markdown tables of a comparison, and their place in ``docs/performance.md``.

Pure text from records. A page keeps its own words; only what lies between a section's two marks
is generated.
"""

from collections.abc import Sequence

from benchmarks.errors import BenchmarkError
from benchmarks.records import Cell, Record, over_rounds

LABELS = {
    "pgherd": "pgherd, native, 3 writers",
    "pgherdsql": "pgherd, SQL, 3 writers",
    "galera3": "Galera, 3 writers",
    "pgsync": "quorum streaming, 1 writer",
    "plain": "plain PostgreSQL",
    "plain3": "3 plain servers",
}
"""Systems in the order of the columns."""
RATIOS = (
    ("pgherd", "galera3"),
    ("pgherdsql", "galera3"),
    ("pgherd", "pgsync"),
    ("pgherd", "plain"),
    ("pgherd", "plain3"),
)
"""Whose throughput is given as a part of whose."""

Cells = dict[tuple[str, str, int], Cell]


def comparison(record: Record) -> str:
    """Return the whole generated section of a comparison."""
    cells = over_rounds(record.cells)
    rows = list(dict.fromkeys((workload, clients) for _, workload, clients in cells))
    systems = [name for name in LABELS if any(key[0] == name for key in cells)]
    parts = [
        _circumstances(record),
        _table(*_throughput(cells, rows, systems)),
        _table(*_costs(cells, rows, systems)),
    ]
    notes = _notes(record, cells)
    return "\n\n".join([*parts, notes] if notes else parts)


def replace_section(page: str, name: str, content: str) -> str:
    """Return the page with the section between its marks replaced.

    Raises:
        BenchmarkError: The page has no such marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found_begin, rest = page.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise BenchmarkError(f"the page has no section {begin} ... {end}")
    return f"{head}{begin}\n\n{content}\n\n{end}{tail}"


def _circumstances(record: Record) -> str:
    machine = record.machine
    versions = "; ".join(dict.fromkeys(record.versions.values()))
    return (
        f"Machine: {machine['cpus']} CPUs ({machine['cpu']}), kernel {machine['kernel']}, "
        f"all nodes and clients on it. {versions}. {record.options['tables']} tables of "
        f"{record.options['rows']} rows (ids {record.options['ids']}), "
        f"{record.options['seconds']} s a cell, rounds: {record.options['rounds']} (medians). "
        f"Transactions a second, p95 in brackets."
    )


def _throughput(
    cells: Cells, rows: Sequence[tuple[str, int]], systems: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    pairs = [(own, other) for own, other in RATIOS if {own, other} <= set(systems)]
    header = [
        "workload", "clients",
        *(LABELS[name] for name in systems),
        *(f"{own} / {other}" for own, other in pairs),
    ]  # fmt: skip
    body = []
    for workload, clients in rows:
        line = [workload.removeprefix("oltp_"), str(clients)]
        line += [_speed(cells.get((name, workload, clients))) for name in systems]
        line += [
            ratio(cells.get((own, workload, clients)), cells.get((other, workload, clients)))
            for own, other in pairs
        ]
        body.append(line)
    return header, body


def _costs(
    cells: Cells, rows: Sequence[tuple[str, int]], systems: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    header = [
        "workload", "clients", "system", "aborts/s", "CPU µs a transaction", "of which",
        "largest sidecar, MB",
    ]  # fmt: skip
    body = []
    for workload, clients in rows:
        for name in systems:
            cell = cells.get((name, workload, clients))
            if cell is not None:
                body.append([workload.removeprefix("oltp_"), str(clients), name, *_cost(cell)])
    return header, body


def ratio(own: Cell | None, other: Cell | None) -> str:
    """Return how many times ``other``'s throughput ``own`` reaches."""
    if own is None or other is None or not other.tps:
        return "-"
    return f"{own.tps / other.tps:.2f}"


def _speed(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    mark = " †" if cell.incomplete else ""
    return f"{cell.tps:,.0f} ({cell.p95_ms:.2f} ms){mark}"


def _cost(cell: Cell) -> list[str]:
    ranked = sorted(cell.cpu_us.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {us:.0f}" for kind, us in ranked if us >= 0.5)
    return [
        f"{cell.aborts_per_s:.0f}",
        f"{sum(cell.cpu_us.values()):.0f}",
        parts,
        f"{cell.sidecar_rss_mb:.0f}" if cell.sidecar_rss_mb else "-",
    ]


def _notes(record: Record, cells: Cells) -> str:
    notes = [
        f"- {name} was not measured to the end: {why}" for name, why in record.failures.items()
    ]
    notes += [f"- {moved}" for moved in record.disturbed]
    for (name, workload, clients), cell in cells.items():
        if cell.fatal:
            outcome = "† every attempt failed" if cell.incomplete else "measured again"
            notes.append(
                f"- {name}, {workload}, {clients} clients: sysbench stopped on "
                f"`{cell.fatal[0]}` ({outcome})."
            )
    return "\n".join(notes)


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * 2 + ["---:"] * (len(header) - 2)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *body])
