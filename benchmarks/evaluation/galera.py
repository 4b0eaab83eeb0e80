"""Run one point on Galera: one sysbench a node with the script of the ten updates.

pgbench does not speak to MariaDB. sysbench repeats a transaction that met a conflict and counts
it, and with a rate the time that it waited is in its response time, so the figures mean the same.
"""

import asyncio
import secrets
from pathlib import Path

from benchmarks import sysbench
from benchmarks.commands import program
from benchmarks.errors import BenchmarkError
from benchmarks.evaluation.load import SCRIPTS, UPDATES
from benchmarks.evaluation.plan import Point
from benchmarks.evaluation.record import Measurement
from benchmarks.evaluation.systems import GaleraOf
from benchmarks.evaluation.usage import Window
from benchmarks.peers.base import Endpoint


def command(point: Point, endpoint: Endpoint, *, clients: int, share: float) -> list[str]:
    """Return the command line of one node's sysbench.

    Args:
        point: The load: ``updates``.
        endpoint: The node.
        clients: Clients of this node.
        share: This node's part of the rate.
    """
    script: Path = SCRIPTS / f"{point.workload}.lua"
    rate = [] if point.rate is None else [f"--rate={max(1, round(point.rate * share))}"]
    return [
        program("sysbench", package="sysbench"),
        str(script),
        "--db-driver=mysql",
        f"--mysql-host={endpoint.host}",
        f"--mysql-port={endpoint.port}",
        f"--mysql-user={endpoint.user}",
        f"--mysql-db={endpoint.database}",
        f"--mysql-ignore-errors={','.join(map(str, sysbench.MYSQL_REPEATED))}",
        f"--rows={point.size}",
        # By the clock all nodes' clients would draw the same rows at the same time.
        f"--rand-seed={secrets.randbelow(2**31 - 1) + 1}",
        f"--threads={clients}",
        f"--time={point.warm_s + point.seconds}",
        "--report-interval=0",
        "--histogram=on",
        *rate,
        "run",
    ]


async def run(system: GaleraOf, point: Point) -> Measurement:
    """Run one point and return what was measured.

    The response times and the aborts are those of the whole run, the warm-up included; CPU is that
    of the window.

    Raises:
        BenchmarkError: sysbench could not run at all, or stopped at an error.
    """
    shares = zip(system.endpoints, sysbench.deal_out(point.clients, system.nodes), strict=True)
    commands = [
        command(point, endpoint, clients=own, share=own / point.clients)
        for endpoint, own in shares
        if own
    ]
    running = [asyncio.create_task(sysbench.run_one(one)) for one in commands]
    try:
        await asyncio.wait(running, timeout=point.warm_s)
        window = Window(system.directory, system.link_ports)
        await asyncio.wait(running, timeout=point.seconds)
        window.end()
        result = sysbench.add(await asyncio.gather(*running))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if result.fatal and not result.histogram:
        raise BenchmarkError(f"sysbench: {result.fatal[0]}")
    return measurement(system, point, result, window)


def measurement(
    system: GaleraOf, point: Point, result: sysbench.Result, window: Window
) -> Measurement:
    """Return what the processes of all nodes say of a point."""
    seconds = point.warm_s + point.seconds
    mean_ms = mean_of(result.histogram)
    return Measurement(
        figure=point.figure,
        system=system.name,
        series=point.series,
        x=point.x,
        clients=point.clients,
        offered_tps=point.rate,
        tps=result.tps,
        aborts=round(result.aborts_per_s * seconds),
        committed=sum(result.histogram.values()),
        mean_ms={} if mean_ms is None else {UPDATES: mean_ms},
        p95_ms={} if mean_ms is None else {UPDATES: result.latency.p95_ms},
        cpu_us=window.per_transaction_us(result.tps),
        lost=len(result.fatal),
        last_error=next(iter(result.fatal), ""),
    )


def mean_of(histogram: dict[float, int]) -> float | None:
    """Return the mean of a histogram of value to count; None if it is empty."""
    total = sum(histogram.values())
    return sum(ms * count for ms, count in histogram.items()) / total if total else None
