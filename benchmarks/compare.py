"""``python -m benchmarks.compare``: pgherd beside its peers, one after the other, with sysbench.

Each round starts each system afresh, alone on the machine, loads it and runs every workload with
every number of clients. A plain server is measured before and after each system: where it was more
than 15 % slower than at its best, the cells are thrown away, and the system is measured again.
Writes ``benchmark.json``, ``benchmark.svg`` and the tables of
``performance.md`` into the output directory. Called by ``make bench``. An interrupted or partly
failed run leaves the systems that were measured.
"""

import argparse
import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import control, cpu, records, report, sysbench
from benchmarks.commands import scratch
from benchmarks.control import Control
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.peers import READERS, SYSTEMS
from benchmarks.peers.base import Contents, Endpoint, System
from benchmarks.records import Cell, Record
from benchmarks.sysbench import Job

ATTEMPTS = 3
AGAIN = 2
"""So often systems are measured again whose cells the machine has spoilt."""
WARM_UP_S = 2
WARM_UP_CLIENTS = 8
TABLES = 4
ROWS = 20_000


def main() -> int:
    """Run the comparison; return 1 if a system could not be measured to the end."""
    options = parse_arguments(sys.argv[1:])
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchmarkError("matplotlib is not installed: pip install -e .[bench]")
    record = Record(
        machine=records.this_machine(),
        options={
            "seconds": str(options.seconds),
            "rounds": str(options.rounds),
            "tables": str(TABLES),
            "rows": str(options.rows),
            "ids": "with gaps" if options.gaps else "dense",
        },
    )
    try:
        with scratch(options.dir) as base:
            systems = {name: SYSTEMS[name](base / name) for name in options.systems}
            with control.started(base / "control") as beside:
                for number in range(options.rounds):
                    # The first one of a round is another one every time.
                    start = number % len(systems)
                    names = options.systems[start:] + options.systems[:start]
                    run_round(names, systems, beside, options, record)
                for _ in range(AGAIN):
                    names = records.drop_disturbed(record, control.LARGEST_LOSS)
                    run_round(names, systems, beside, options, record)
                records.drop_disturbed(record, control.LARGEST_LOSS)
    finally:
        if record.cells:
            publish(record, options.output)
    return 1 if record.failures else 0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="length of a cell")
    parser.add_argument("--rounds", type=int, default=1, help="medians over so many rounds")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of each of the tables")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument(
        "--workloads", nargs="+", choices=sysbench.WORKLOADS, default=list(sysbench.WORKLOADS)
    )
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument(
        "--gaps", action="store_true", help="ids as sysbench's prepare leaves them: see Contents"
    )
    parser.add_argument("--output", type=Path, default=Path("docs"), help="directory of the report")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    options = parser.parse_args(arguments)
    if min(options.seconds, options.rounds, *options.clients) < 1:
        parser.error("--seconds, --rounds and --clients must be at least 1")
    for directory in (options.output, options.dir):
        if not directory.is_dir():
            parser.error(f"{directory} is not a directory")
    return options


def run_round(
    names: Sequence[str],
    systems: dict[str, System],
    beside: Control,
    options: argparse.Namespace,
    record: Record,
) -> None:
    """Measure these systems once, one after the other, and the plain server between them."""
    for name in names:
        if name in record.failures:
            continue
        try:
            before = beside.tps()
            cells = measure_system(name, systems[name], options, record)
            slower = min(before, beside.tps())
        except BenchmarkError as error:
            record.failures[name] = str(error)
            print(f"{name}: {error}", file=sys.stderr)
        else:
            print(f"control: {slower:.0f} tps", flush=True)
            record.cells += [replace(cell, control_tps=slower) for cell in cells]
            record.save(options.output / "benchmark.json")


def measure_system(
    name: str, system: System, options: argparse.Namespace, record: Record
) -> list[Cell]:
    """Start, load and measure one system, and stop it whatever happens.

    Raises:
        BenchmarkError: It could not be started, loaded or measured.
    """
    print(f"{name}: starting and loading", flush=True)
    cells = []
    try:
        endpoints = system.start()
        record.versions[name] = system.version()
        # As sysbench's own prepare would leave it: gaps where several nodes deal out numbers.
        step = len(endpoints) if options.gaps else 1
        system.load(Contents(TABLES, options.rows, step))
        os.sync()  # what was written to make it does not slow the first cells' flushes
        first = workloads_of(name, options.workloads)[:1] or [sysbench.READING[0]]
        warm_up = Job(first[0], WARM_UP_CLIENTS, WARM_UP_S, TABLES, options.rows)
        asyncio.run(sysbench.run(warm_up, endpoints))
        for workload in workloads_of(name, options.workloads):
            for clients in options.clients:
                job = Job(workload, clients, options.seconds, TABLES, options.rows)
                cell = measure(name, system, endpoints, job)
                cells.append(cell)
                print(describe(cell), flush=True)
    finally:
        system.stop()
    return cells


def workloads_of(name: str, wanted: Sequence[str]) -> list[str]:
    """Return the workloads that say something of a system."""
    return [one for one in wanted if name not in READERS or one in sysbench.READING]


def measure(name: str, system: System, endpoints: Sequence[Endpoint], job: Job) -> Cell:
    """Measure one cell; again when sysbench gives up on an error that it cannot repeat."""
    fatal: list[str] = []
    for _ in range(ATTEMPTS):
        cell, errors = asyncio.run(_measure_once(name, system, endpoints, job, tuple(fatal)))
        if not errors:
            return cell
        fatal.extend(errors)
    return cell


async def _measure_once(
    name: str, system: System, endpoints: Sequence[Endpoint], job: Job, fatal: tuple[str, ...]
) -> tuple[Cell, tuple[str, ...]]:
    running = asyncio.create_task(sysbench.run(job, endpoints))
    # The middle half: all clients are connected and none has finished.
    await asyncio.wait([running], timeout=job.seconds / 4)
    began, before = time.monotonic(), _processes(system)
    await asyncio.wait([running], timeout=job.seconds / 2)
    ended, after = time.monotonic(), _processes(system)
    result = await running
    used = cpu.cpu_by_kind(before, after)
    latency = result.latency
    cell = Cell(
        system=name,
        workload=job.workload,
        clients=job.clients,
        tps=result.tps,
        p50_ms=latency.p50_ms,
        p95_ms=latency.p95_ms,
        p99_ms=latency.p99_ms,
        aborts_per_s=result.aborts_per_s,
        cpu_us=cpu.per_transaction_us(used, interval_s=ended - began, tps=result.tps),
        sidecar_rss_mb=cpu.largest_rss_mb(after, "sidecars"),
        fatal=fatal + result.fatal,
        incomplete=bool(result.fatal),
    )
    return cell, result.fatal


def describe(cell: Cell) -> str:
    """Return a cell as a line of the run's own output."""
    errors = f"  stopped by: {cell.fatal[0]}" if cell.fatal else ""
    return (
        f"{cell.workload:18} {cell.clients:3} clients  {cell.system:9} {cell.tps:9.0f} tps  "
        f"p95 {cell.p95_ms:7.2f} ms  {cell.aborts_per_s:6.1f} aborts/s  "
        f"{sum(cell.cpu_us.values()):6.0f} µs CPU/tx{errors}"
    )


def publish(record: Record, output: Path) -> None:
    """Write the JSON, the plot and the tables of the page, and print the tables."""
    from benchmarks import plot  # noqa: PLC0415 (matplotlib takes a second that --help need not)

    record.save(output / "benchmark.json")
    plot.draw(record, output / "benchmark.svg")
    tables = report.comparison(record)
    page = output / "performance.md"
    if page.exists():
        page.write_text(report.replace_section(page.read_text(), "comparison", tables))
    print(f"\n{tables}\n\nWritten to {output}: benchmark.json, benchmark.svg, performance.md")


def _processes(system: System) -> list[cpu.Process]:
    return cpu.belonging_to(system.directory, cpu.process_table())


if __name__ == "__main__":
    run_main(main)
