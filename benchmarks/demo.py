"""``python -m benchmarks.demo``: a herd of three, a real mixed load on all nodes, and the proof.

Starts or resumes a herd, creates the tables on one node, loads all three at once, shows progress,
then compares the nodes and checks the benchmarks' own consistency conditions on each. It leaves
the herd running. Called by ``make demo``; a second run resumes the same herd and tables.
"""

import argparse
import asyncio
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import BenchmarkError, run_main
from benchmarks.herd import Herd, Member
from benchmarks.workload import schema, summary
from benchmarks.workload.pgbench import Load, NodeResult, run_on_all
from benchmarks.workload.progress import LiveFigures


def default_directory() -> Path:
    """Return a place that the servers' account can reach: never the source tree of root."""
    if os.geteuid() == 0:
        return Path("/var/lib/pgherd-demo")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pgherd-demo"


def main() -> int:
    """Run the demo; return 0 if the nodes are identical and consistent, else 1."""
    options = parse_arguments(sys.argv[1:])
    if options.dsn:
        members = [Member(f"n{n}", "primary", dsn, dsn) for n, dsn in enumerate(options.dsn, 1)]
        return run(members, options, herd=None)
    herd = Herd(options.dir.absolute())
    print(f"Starting a herd of three in {herd.directory}")
    started = time.monotonic()
    try:
        herd.up(port_base=options.port_base, every=1)
    except BenchmarkError as error:
        remedy = "`make demo PORT_BASE=8500`"
        raise BenchmarkError(str(error).replace("choose another --port-base", remedy)) from error
    members = list(herd.members())
    print(f"All nodes take writes ({time.monotonic() - started:.1f} s)")
    print(f"Rows are captured by {' and '.join(captures(members))}")
    try:
        return run(members, options, herd=herd)
    except BenchmarkError as error:
        # What failed here is often only the first sign of a node that has stopped.
        raise BenchmarkError(herd.ailing() or str(error)) from error


def captures(members: Sequence[Member]) -> list[str]:
    """Return what captures rows on these nodes, as a reader knows it."""
    return sorted({"the native module" if m.capture == "native" else "SQL" for m in members})


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--dir", type=Path, default=default_directory(), help="the herd's place")
    parser.add_argument("--port-base", type=int, help="first port of a new herd")
    parser.add_argument("--seconds", type=int, default=30, help="length of the load")
    parser.add_argument("--clients", type=int, default=4, help="clients of each node")
    parser.add_argument(
        "--dsn", action="append", help="use these servers (repeat it) and start no herd"
    )
    options = parser.parse_args(arguments)
    if options.seconds < 1 or options.clients < 1:
        parser.error("--seconds and --clients must be at least 1")
    return options


def run(members: Sequence[Member], options: argparse.Namespace, *, herd: Herd | None) -> int:
    """Set up, load, prove, and say how to go on.

    Raises:
        BenchmarkError: A step could not be done.
    """
    scale = schema.Scale()
    prepare([member.app_dsn for member in members], scale)
    results = put_under_load(members, Load(options.seconds, options.clients, scale))
    print()
    for line in summary.throughput([m.name for m in members], results, options.seconds):
        print(f"  {line}")
    for line in summary.aborts(results):
        print(f"  {line}")
    good = prove(members, herd)
    if herd is not None:
        print_how_to_go_on(members, herd)
    return 0 if good else 1


def prepare(dsns: Sequence[str], scale: schema.Scale) -> None:
    """Create and fill the tables on the first node, unless an earlier run did."""
    print("Creating the TPC-B and TPC-C tables on the first node")
    started = time.monotonic()
    if not schema.set_up(dsns, scale):
        print("They are there already")
        return
    for dsn in dsns:
        schema.vacuum(dsn)
    print(f"Loaded, and present on all nodes ({time.monotonic() - started:.1f} s)")


def put_under_load(members: Sequence[Member], load: Load) -> list[NodeResult]:
    """Run the mix on all nodes at once, showing figures every second."""
    print(f"Mixed load on all nodes: {load.clients} clients each, {load.seconds} s")
    figures = LiveFigures([member.name for member in members])
    try:
        return asyncio.run(run_on_all([m.app_dsn for m in members], load, figures.update))
    except* BenchmarkError as errors:
        raise errors.exceptions[0] from None
    finally:
        figures.finish()


def prove(members: Sequence[Member], herd: Herd | None) -> bool:
    """Compare the nodes with each other and with what the benchmarks promise."""
    identical = True
    if herd is not None:
        print("\nComparing all nodes at one position of the total order")
        verdict = herd.verify()
        identical = verdict.identical
        print("\n".join(f"  {line}" for line in summary.comparison(verdict)))
        herd.require_no_trouble()  # a member that was rebuilt meanwhile is identical again
        if not identical:
            directory = shlex.quote(str(herd.directory))
            print(f"  The keys that differ: pgherd local verify --dir {directory}")
    print("\nConsistency conditions of TPC-B and TPC-C")
    checks = {member.name: schema.check(member.app_dsn) for member in members}
    lines, holds = summary.consistency(checks)
    print("\n".join(f"  {line}" for line in lines))
    return identical and holds


def print_how_to_go_on(members: Sequence[Member], herd: Herd) -> None:
    """Say how to connect to the herd that is left running, and how to stop it."""
    program = Path(sys.executable).with_name("pgherd")  # its directory may not be in the PATH
    pgherd, directory = shlex.quote(str(program)), shlex.quote(str(herd.directory))
    print("\nThe herd is still running; every node takes writes:")
    for member in members:
        print(f"  {pgherd} psql {member.name} --dir {directory}")
    print(f"Stop it with:   {pgherd} local down --dir {directory}")
    print(f"Remove it with: {pgherd} local destroy --dir {directory}")


if __name__ == "__main__":
    run_main(main)
