"""``python -m benchmarks.evaluation``: section 6 of Postgres-R(SI) on this machine.

Each system is started once and all its points are run one after the other: a plain server, herds of
several sizes, Galera. Writes ``evaluation.json`` after every point, so an interrupted run leaves
what it has measured; at the end plots and the marked sections of ``evaluation.md``.
"""

import argparse
import asyncio
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from benchmarks import records, report
from benchmarks.commands import scratch
from benchmarks.errors import BenchmarkError, run_main
from benchmarks.evaluation import galera, load, plan, systems, tables, usage
from benchmarks.evaluation.plan import FIGURES, FULL, GALERA, PLAIN, QUICK, Point, Scale, nodes_of
from benchmarks.evaluation.record import Measurement, Record
from benchmarks.evaluation.record import load as load_record

IDLE_S = 2.0
SETTLE_S = 0.5
RECORD, PAGE = "evaluation.json", "evaluation.md"


def main() -> int:
    """Measure and publish; return 1 if a system could not be measured to the end."""
    given = parse_arguments(sys.argv[1:])
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchmarkError("matplotlib is not installed: run scripts/setup bench")
    if given.report:
        publish(load_record(given.output / RECORD), given.output)
        return 0
    scale = scale_of(given)
    every = plan.points(scale, given.figures)
    if given.systems:
        every = {name: points for name, points in every.items() if name in given.systems}
    count = sum(map(len, every.values()))
    minutes = plan.expected_s(every) / 60
    print(f"{count} points on {len(every)} systems, about {minutes:.0f} minutes", flush=True)
    record = new_record(scale)
    try:
        with scratch(given.dir) as base:
            for name, points in every.items():
                run_system(name, points, scale, record, base, given)
    finally:
        if record.measurements:
            publish(record, given.output)
    return 1 if record.failures else 0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short windows, fewer points")
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--systems", nargs="+", help="only these: plain, herd5, galera5, ...")
    parser.add_argument("--seconds", type=int, help="length of a window")
    parser.add_argument("--capture", choices=("auto", "native", "sql"), default="auto")
    parser.add_argument("--largest-rows", type=int, help="of the growth in rows, up to 10^8")
    parser.add_argument("--largest-bytes", type=int, help="of the growth in bytes, up to 10^8")
    parser.add_argument(
        "--customers", type=int, help="of TPC-W; 115,200 in its specification for 40 clients"
    )
    parser.add_argument("--report", action="store_true", help="publish the record that is there")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="directory of the report")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="disk to measure on")
    given = parser.parse_args(arguments)
    for directory in (given.output, given.dir):
        if not directory.is_dir():
            parser.error(f"{directory} is not a directory")
    if given.report and not (given.output / RECORD).is_file():
        parser.error(f"there is no {given.output / RECORD}: run without --report first")
    if given.seconds is not None and given.seconds < 1:
        parser.error("--seconds must be at least 1")
    if given.customers is not None and given.customers < 100:
        parser.error("--customers must be at least 100")
    known = plan.points(scale_of(given), given.figures)
    for name in given.systems or ():
        if name not in known:
            parser.error(f"no point is on {name}; there are: {', '.join(known)}")
    return given


def scale_of(given: argparse.Namespace) -> Scale:
    """Return the scale that the options ask for."""
    scale = QUICK if given.quick else FULL
    changes = {
        name: value
        for name in ("seconds", "customers")
        if (value := getattr(given, name)) is not None
    }
    return plan.with_bounds(
        replace(scale, **changes),
        largest_rows=given.largest_rows,
        largest_bytes=given.largest_bytes,
    )


def new_record(scale: Scale) -> Record:
    """Return a record without measurements."""
    names = ("seconds", "warm_s", "items", "customers", "rows")
    options = {name: str(getattr(scale, name)) for name in names}
    return Record(records.this_machine(), {"scale": scale.name, **options})


def run_system(
    name: str,
    points: Sequence[Point],
    scale: Scale,
    record: Record,
    base: Path,
    given: argparse.Namespace,
) -> None:
    """Start a system, run its points, and stop it whatever happens; note why if it fails."""
    print(f"{name}: starting", flush=True)
    try:
        if name == GALERA:
            on_galera(points, scale, record, base, given.output)
        else:
            on_postgres(name, points, scale, record, base, given)
    except (BenchmarkError, psycopg.Error) as error:
        record.failures[name] = " ".join(str(error).split())
        print(f"{name}: {error}", file=sys.stderr)


def on_postgres(
    name: str,
    points: Sequence[Point],
    scale: Scale,
    record: Record,
    base: Path,
    given: argparse.Namespace,
) -> None:
    """Run the points of the plain server or of a herd; see ``run_system``."""
    system: systems.PostgresSystem = (
        systems.Plain(base / name)
        if name == PLAIN
        else systems.HerdOf(base / name, nodes_of(name), given.capture)
    )
    began = time.monotonic()
    try:
        system.start()
        record.versions[name] = system.version()
        record.proposers[name] = system.proposer()
        workloads = {point.workload for point in points}
        if "tpcw" in workloads:
            systems.fill_tpcw(system, scale)
        if workloads & {"updates", "update", "read"}:
            systems.fill_updates(system, scale)
        if "bytes" in workloads:
            systems.fill_bytes(system)
        os.sync()  # what was written to make it does not slow the first points' flushes
        time.sleep(SETTLE_S)
        print(f"{name}: filled after {time.monotonic() - began:.0f} s", flush=True)
        record.idle[name] = usage.idle(system.directory, system.link_ports, IDLE_S)
        for point in points:
            if point.workload == "rows":
                if not plan.rows_that_fit(point.size, system.nodes, shutil.disk_usage(base).free):
                    record.skipped.append(f"{name}: {point.size:,} rows do not fit on the disk")
                    continue
                systems.fill_rows(system, point.size)
            measured = asyncio.run(load.run(system, point, scale))
            keep(measured, record, given.output)
            system.settle()
            systems.tidy(system, point)
    finally:
        system.stop()


def on_galera(
    points: Sequence[Point], scale: Scale, record: Record, base: Path, output: Path
) -> None:
    """Run the points of Galera; see ``run_system``."""
    system = systems.GaleraOf(base / GALERA, nodes_of(GALERA))
    try:
        system.start()
        record.versions[GALERA] = system.version()
        system.fill(scale.rows)
        os.sync()
        time.sleep(SETTLE_S)
        record.idle[GALERA] = usage.idle(system.directory, system.link_ports, IDLE_S)
        for point in points:
            keep(asyncio.run(galera.run(system, point)), record, output)
    finally:
        system.stop()


def keep(measured: Measurement, record: Record, output: Path) -> None:
    """Add a measurement to the record and its file, and print it."""
    record.measurements.append(measured)
    record.save(output / RECORD)
    print(describe(measured), flush=True)


def describe(one: Measurement) -> str:
    """Return a measurement as a line of the run's own output."""
    means = ", ".join(f"{kind} {ms:.1f} ms" for kind, ms in one.mean_ms.items()) or "none ended"
    lost = f"  {one.lost} clients lost: {one.last_error}" if one.lost else ""
    return (
        f"{one.system:8} {one.figure:9} {one.series:10} {one.x:<9g} {one.tps:9.1f} tps  {means}  "
        f"{one.abort_rate:.1%} aborted  {one.cpu_all_us:.0f} µs CPU/tx{lost}"
    )


def publish(record: Record, output: Path) -> None:
    """Write the JSON, the plots and the sections of the page of which there are figures."""
    from benchmarks.evaluation import curves  # noqa: PLC0415 (matplotlib takes a second)

    record.save(output / RECORD)
    drawn = curves.draw(record, output)
    page = output / PAGE
    found = tables.sections(record)
    if page.exists():
        text = page.read_text()
        for name, content in found.items():
            text = report.replace_section(text, name, content)
        page.write_text(text)
    else:
        print("\n\n".join(found.values()))
    files = ", ".join([RECORD, *(path.name for path in drawn), *([PAGE] if page.exists() else [])])
    print(f"Written to {output}: {files}")


if __name__ == "__main__":
    run_main(main)
