"""The demo's closing figures, as lines of text. Pure; called by the demo."""

from collections.abc import Mapping, Sequence

from benchmarks.herd import Verdict
from benchmarks.percentiles import of_values
from benchmarks.workload.pgbench import MIX, NodeResult
from benchmarks.workload.schema import Condition


def throughput(names: Sequence[str], results: Sequence[NodeResult], seconds: int) -> list[str]:
    """Return a table of each node's, each transaction type's and the herd's figures."""
    by_script = {
        label: [ms for result in results for ms in result.log.latencies_ms.get(script, [])]
        for script, label in enumerate(MIX)
    }
    lines = [f"{'':24}{'tps':>8}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}"]
    for name, result in zip(names, results, strict=True):
        of_node = [ms for script in result.log.latencies_ms.values() for ms in script]
        lines.append(_row(f"node {name}", of_node, seconds))
    lines += [_row(label.replace("_", " "), values, seconds) for label, values in by_script.items()]
    lines.append(_row("all", [ms for values in by_script.values() for ms in values], seconds))
    return lines


def aborts(results: Sequence[NodeResult]) -> list[str]:
    """Return what became of the transactions that did not commit at once."""
    committed = sum(result.log.committed for result in results)
    retries = sum(result.log.retries for result in results)
    failures: dict[str, int] = {}
    for result in results:
        for kind, count in result.log.failures.items():
            failures[kind] = failures.get(kind, 0) + count
    given_up = ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items())) or "none"
    share = 100 * retries / max(committed + retries, 1)
    lines = [
        f"{committed} transactions committed; {retries} attempts ended in a conflict "
        f"({share:.1f} %) and were repeated; given up: {given_up}"
    ]
    lost = sum(result.lost_clients for result in results)
    if lost:
        reason = next(result.last_error for result in results if result.lost_clients)
        lines.append(f"{lost} clients stopped on an error that is not to be repeated: {reason}")
    return lines


def comparison(verdict: Verdict) -> list[str]:
    """Return a line for each table: rows and checksum if all nodes agree, else each node's."""
    lines = []
    for table in verdict.tables:
        if table.identical:
            rows, checksum = next(iter(table.rows.values())), next(iter(table.checksums.values()))
            nodes = ", ".join(table.rows)
            lines.append(f"{table.name:24}{rows:>9} rows  {checksum}  identical on {nodes}")
            continue
        lines.append(f"{table.name:24} DIFFERS")
        lines += [
            f"    {node}: "
            + ("missing" if rows is None else f"{rows} rows, {table.checksums[node]}")
            for node, rows in table.rows.items()
        ]
    outcome = "identical on all nodes" if verdict.identical else "the nodes DIFFER"
    lines.append(f"{len(verdict.tables)} tables at GID {verdict.gid}: {outcome}")
    return lines


def consistency(checks: Mapping[str, Sequence[Condition]]) -> tuple[list[str], bool]:
    """Return a line for each condition over all nodes, and whether all hold on all nodes."""
    lines, holds = [], True
    names = [condition.name for condition in next(iter(checks.values()))]
    for index, name in enumerate(names):
        broken = [node for node, conditions in checks.items() if conditions[index].violations]
        holds = holds and not broken
        verdict = f"BROKEN on {', '.join(broken)}" if broken else "holds on all nodes"
        lines.append(f"{name}: {verdict}")
    return lines, holds


def _row(label: str, values_ms: Sequence[float], seconds: int) -> str:
    latency = of_values(values_ms)
    return (
        f"{label:24}{len(values_ms) / seconds:8.0f}"
        f"{latency.p50_ms:9.2f}{latency.p95_ms:9.2f}{latency.p99_ms:9.2f}"
    )
