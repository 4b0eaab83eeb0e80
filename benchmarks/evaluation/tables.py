"""The generated sections of ``docs/evaluation.md``, as Markdown from a record. Pure."""

from collections.abc import Callable, Sequence

from benchmarks.evaluation import arithmetic, findings, paper
from benchmarks.evaluation.arithmetic import SIZES, WRITE_SHARES
from benchmarks.evaluation.load import QUERIES, UPDATES
from benchmarks.evaluation.record import Measurement, Record, kinds, systems_of

LABELS = {"plain": "one server"}
PLOTS = {
    "tpcw": ("evaluation-tpcw.svg", "Response times of queries and updates over the load"),
    "updates": ("evaluation-updates.svg", "Response times and aborts of updates over the load"),
    "growth": ("evaluation-growth.svg", "Conflicts over the hot set, and growth four times"),
}


def sections(record: Record) -> dict[str, str]:
    """Return the content of each section of which something has been measured, by its name."""
    measured = {one.figure for one in record.measurements}
    found = {"run": circumstances(record)}
    for name, make in (("tpcw", _tpcw), ("overhead", _overhead), ("updates", _updates),
                       ("conflicts", _conflicts)):  # fmt: skip
        if name in measured:
            found[name] = make(record)
    if measured & {"nodes", "rows", "clients", "bytes"}:
        found["growth"] = _growth(record)
    known = arithmetic.costs(record)
    if known is not None:
        found["costs"] = _costs(known)
    compared = arithmetic.checks(record)
    if compared:
        found["checks"] = _checks(compared, record)
    return found


def circumstances(record: Record) -> str:
    """Return what was measured on, how long, and what went wrong."""
    machine, options = record.machine, record.options
    versions = "; ".join(dict.fromkeys(record.versions.values()))
    text = (
        f"Machine: {machine['cpus']} CPUs ({machine['cpu']}), kernel {machine['kernel']}, all "
        f"nodes and clients on it. {versions}. Scale {options['scale']}: windows of "
        f"{options['seconds']} s after {options['warm_s']} s; TPC-W with {options['items']} items "
        f"and {options['customers']} customers; ten tables of {options['rows']} rows."
    )
    notes = [
        f"- {name} was not measured to the end: {why}" for name, why in record.failures.items()
    ]
    notes += [f"- {one}" for one in record.skipped]
    notes += [
        f"- {label(one.system)}, {one.figure} {one.series} at {one.x:g}: an error ended "
        f"{one.lost} of {one.clients} clients: `{one.last_error}`"
        for one in record.measurements
        if one.lost
    ]
    return "\n\n".join([text, "\n".join(notes)] if notes else [text])


def label(system: str) -> str:
    """Return a system's name for readers."""
    if system.startswith("herd"):
        nodes = system.removeprefix("herd")
        return f"{nodes} replica" + "s" * (nodes != "1")
    if system.startswith("galera"):
        return f"Galera, {system.removeprefix('galera')} nodes"
    return LABELS.get(system, system)


def times(one: Measurement, kind: str) -> str:
    """Return a mean response time, its 95th percentile, and what was achieved if that is less."""
    if kind not in one.mean_ms:
        return "none"
    text = f"{one.mean_ms[kind]:,.1f} ({one.p95_ms[kind]:,.1f})"
    return f"{text} † {one.tps:.0f}" if one.saturated else text


def grid(
    record: Record, figure: str, cell: Callable[[Measurement], str], *, head: str, series: str = ""
) -> str:
    """Return a table with a line for each place of a figure and a column for each system."""
    places = record.of(figure, series)
    systems = systems_of(places.values())
    header = [head, *map(label, systems)]
    body = [
        [
            f"{x:,g}" if x < 1e6 else f"{x:,.0f}",
            *(cell(places[name, x]) if (name, x) in places else "-" for name in systems),
        ]
        for x in sorted({x for _, x in places})
    ]
    return table(header, body)


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are figures."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *body])


def claims(record: Record, figure: str) -> str:
    """Return the paper's words on a figure beside what was found here."""
    lines = [
        f"| {claim.section} | {claim.words} | {findings.found(record, claim.name)} |"
        for claim in paper.CLAIMS
        if claim.figure == figure
    ]
    return "\n".join(["| section | the paper | here |", "| --- | --- | --- |", *lines])


def _plot(name: str) -> str:
    file, words = PLOTS[name]
    return f"![{words}]({file})"


def _cost(one: Measurement) -> str:
    return f"{one.cpu_all_us:,.0f}"


def _tpcw(record: Record) -> str:
    return "\n\n".join([
        claims(record, "tpcw"),
        _plot("tpcw"),
        "Queries, mean response time in ms (95th percentile):",
        grid(record, "tpcw", lambda one: times(one, QUERIES), head="interactions/s"),
        "Updates:",
        grid(record, "tpcw", lambda one: times(one, UPDATES), head="interactions/s"),
        "Aborted, and microseconds of all nodes' CPU for an interaction:",
        grid(record, "tpcw", lambda one: f"{one.abort_rate:.2%}, {_cost(one)}",
             head="interactions/s"),
    ])  # fmt: skip


def _overhead(record: Record) -> str:
    rows = [
        [
            label(one.system),
            times(one, UPDATES),
            f"{one.tps:,.0f}",
            f"{one.cpu_all_us:,.0f}",
            kinds(one.cpu_us),
        ]
        for one in record.of("overhead").values()
    ]
    header = ["", "ms (95th percentile)", "transactions/s", "CPU µs", "of which"]
    return "\n\n".join([claims(record, "overhead"), table(header, rows)])


def _updates(record: Record) -> str:
    parts = [claims(record, "updates"), _plot("updates")]
    for series in dict.fromkeys(
        one.series for one in record.measurements if one.figure == "updates"
    ):
        parts += [
            f"{series}: mean response time in ms (95th percentile); aborted; CPU µs.",
            grid(record, "updates", _response, head="transactions/s", series=series),
        ]
    return "\n\n".join(parts)


def _response(one: Measurement) -> str:
    return f"{times(one, UPDATES)}; {one.abort_rate:.1%}; {_cost(one)}"


def _conflicts(record: Record) -> str:
    return "\n\n".join([
        "Aborted; mean response time in ms (95th percentile).",
        grid(record, "conflicts", lambda one: f"{one.abort_rate:.1%}; {times(one, UPDATES)}",
             head="tuples in the hot set"),
    ])  # fmt: skip


def _growth(record: Record) -> str:
    parts = [_plot("growth")]
    if record.of("nodes"):
        parts.append(_nodes(record))
    for figure, head in (
        ("rows", "rows of the table"),
        ("clients", "clients"),
        ("bytes", "bytes of a transaction"),
    ):
        if record.of(figure):
            parts.append(grid(record, figure, _speed, head=head))
    return "\n\n".join(parts)


def _nodes(record: Record) -> str:
    """Return a line for each system: its size is the place."""
    updates, reads = record.of("nodes", "update"), record.of("nodes", "read")
    rows = [
        [label(system), *(_speed(own[system, x]) if (system, x) in own else "-"
                          for own in (updates, reads))]
        for system, x in dict.fromkeys([*updates, *reads])
    ]  # fmt: skip
    return table(["nodes", "updates of one row", "reads of one row"], rows)


def _speed(one: Measurement) -> str:
    mean = next(iter(one.mean_ms.values()), None)
    if mean is None:
        return "none ended"
    return f"{one.tps:,.1f}/s; {mean:,.1f} ms; {_cost(one)} µs"


def _costs(known: arithmetic.Costs) -> str:
    rows = []
    for n in SIZES:
        gains = [f"{known.gain(n, share):.2f}" for share in WRITE_SHARES]
        even = f"{known.break_even(n):.0%}" if n > 1 else "-"
        trips = " / ".join(map(str, arithmetic.round_trips(n)))
        copies = f"{arithmetic.copies(n):.1f}"
        rows.append([str(n), f"{known.herd_write(n):,.0f}", *gains, even, copies, trips])
    shares = [f"{share:.0%} writes" for share in WRITE_SHARES]
    header = ["n", "c(n), µs", *shares, "even at", "copies of a writeset", "round trips"]
    return (
        f"Measured here: r = {known.read:,.0f} µs, p = {known.plain_write:,.0f} µs, "
        f"c(1) = {known.write:,.0f} µs, m = {known.member:,.0f} µs. So on n machines, as a "
        f"multiple of one server's throughput:\n\n{table(header, rows)}"
    )


def _checks(compared: Sequence[arithmetic.Check], record: Record) -> str:
    rows = [
        [
            check.what,
            f"{check.computed:,.1f}",
            f"{check.measured:,.1f}",
            f"{check.measured / check.computed:.2f}" if check.computed else "-",
        ]
        for check in compared
    ]
    idle = ", ".join(f"{label(name)} {one.cores:.3f}" for name, one in record.idle.items())
    checked = table(["", "by the arithmetic", "measured", "measured / computed"], rows)
    return f"{checked}\n\nCores that an idle system uses, which is not in these costs: {idle}."
