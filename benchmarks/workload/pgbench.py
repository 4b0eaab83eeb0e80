"""Run the mix against all nodes at once: one pgbench a node, each at home in its own rows.

Starts the processes, hands on their progress, collects what they measured. Does not set up and
does not check. Called by the demo; nothing survives but the tables' rows.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.commands import client_environment, last_line, postgres_bin
from benchmarks.errors import BenchmarkError
from benchmarks.workload.parse import (
    LatencyLog,
    Progress,
    is_aborted_client,
    parse_log,
    parse_progress,
)
from benchmarks.workload.schema import Scale

SCRIPTS = Path(__file__).parent / "scripts"
MIX = {
    "tpcb": 50,
    "tpcc_new_order": 22,
    "tpcc_payment": 22,
    "tpcc_order_status": 2,
    "tpcc_delivery": 2,
    "tpcc_stock_level": 2,
}
"""Script and its weight; TPC-C's own proportions within its half."""
MAX_TRIES = 50


@dataclass(frozen=True, slots=True)
class Load:
    """How much to run."""

    seconds: int
    clients: int
    """Clients of each node."""
    scale: Scale


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What one node's clients saw."""

    log: LatencyLog
    lost_clients: int
    """Clients that met an error which is not to be retried, or lost their connection."""
    last_error: str


OnProgress = Callable[[int, Progress], None]


async def run_on_all(dsns: Sequence[str], load: Load, on_progress: OnProgress) -> list[NodeResult]:
    """Run the mix on every node at the same time.

    Args:
        dsns: One connection string a node.
        load: How much.
        on_progress: Told each second's figures with the index of the node.

    Raises:
        BenchmarkError: pgbench could not run at all on a node.
    """
    with tempfile.TemporaryDirectory(prefix="pgherd-demo-") as logs:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    _run_on_one(
                        command(load, node=node, nodes=len(dsns), logs=Path(logs) / f"n{node}"),
                        dsn,
                        partial(on_progress, node),
                    )
                )
                for node, dsn in enumerate(dsns)
            ]
        outcomes = [task.result() for task in tasks]
        return [
            NodeResult(
                log=read_logs(Path(logs), f"n{node}"), lost_clients=lost, last_error=last_error
            )
            for node, (lost, last_error) in enumerate(outcomes)
        ]


def command(load: Load, *, node: int, nodes: int, logs: Path) -> list[str]:
    """Return the command line of the pgbench for one node.

    Args:
        load: How much to run.
        node: Index of the node, which decides the rows its clients are at home in.
        nodes: Number of nodes.
        logs: Prefix of the latency logs.
    """
    variables = {**load.scale.variables(), "node": node, "nodes": nodes}
    return [
        str(postgres_bin() / "pgbench"),
        "--no-vacuum",
        f"--client={load.clients}",
        "--jobs=1",
        f"--time={load.seconds}",
        "--progress=1",
        f"--max-tries={MAX_TRIES}",
        "--failures-detailed",
        "--log",
        f"--log-prefix={logs}",
        *(f"--define={name}={value}" for name, value in variables.items()),
        *(f"--file={SCRIPTS / name}.sql@{weight}" for name, weight in MIX.items()),
    ]


async def _run_on_one(
    arguments: list[str], dsn: str, on_progress: Callable[[Progress], None]
) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *arguments,
        env=client_environment(dsn),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lost, progressed, last_error = 0, False, ""
    try:
        async for raw in process.stderr:
            line = raw.decode(errors="replace").strip()
            progress = parse_progress(line)
            if progress is not None:
                progressed = True
                on_progress(progress)
            elif is_aborted_client(line):
                lost, last_error = lost + 1, line
            elif "error:" in line.lower():
                last_error = line
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if status != 0 and not progressed:
        raise BenchmarkError(f"pgbench could not run: {last_line(last_error)}")
    return lost, last_error


def read_logs(directory: Path, prefix: str) -> LatencyLog:
    """Return the latency log of one pgbench; a run of no transaction leaves an empty one."""
    lines: list[str] = []
    for path in sorted(directory.glob(f"{prefix}.*")):
        lines.extend(path.read_text().splitlines())
    return parse_log(lines)
