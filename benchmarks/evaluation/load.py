"""Run one point on PostgreSQL systems: one pgbench a node, the clients and the rate dealt out.

A run has a time to warm up, in which sessions connect and prepare, and a window. What ends in the
window is counted, and the CPU and the bytes between members are those of the window. Loads are
submitted as in the paper by a fixed number of clients at a rate (``pgbench --rate``): a transaction
that is due while its client is busy waits, and the wait is in its response time.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.commands import client_environment, last_line, postgres_bin
from benchmarks.errors import BenchmarkError
from benchmarks.evaluation import logs
from benchmarks.evaluation.plan import Point, Scale
from benchmarks.evaluation.record import Measurement
from benchmarks.evaluation.systems import PostgresSystem, System
from benchmarks.evaluation.usage import Window
from benchmarks.sysbench import deal_out
from benchmarks.workload.parse import is_aborted_client

SCRIPTS = Path(__file__).parent / "scripts"
QUERIES, UPDATES = "queries", "updates"
TPCW_MIX = {
    "home": (1600, QUERIES),
    "new_products": (500, QUERIES),
    "best_sellers": (500, QUERIES),
    "product_detail": (1700, QUERIES),
    "search_request": (2000, QUERIES),
    "search_results": (1700, QUERIES),
    "shopping_cart": (1160, UPDATES),
    "customer_registration": (300, QUERIES),
    "buy_request": (260, UPDATES),
    "buy_confirm": (120, UPDATES),
    "order_inquiry": (75, QUERIES),
    "order_display": (66, QUERIES),
    "admin_request": (10, QUERIES),
    "admin_confirm": (9, UPDATES),
}
"""Interactions in hundredths of a percent: the specification's mix of 80 % browsing, 20 % ordering.

And whether the database part of each writes."""
CLASS_OF = {"read": QUERIES}
"""Of the workloads with a single script; the others update."""
STRAGGLERS_S = 120
"""How long a transaction may go on after the end of its run."""


def command(
    point: Point, scale: Scale, *, node: int, clients: int, share: float, directory: Path
) -> list[str]:
    """Return the command line of one node's pgbench.

    Args:
        point: The load.
        scale: Sizes of TPC-W's tables.
        node: Index of the node: its clients' carts are theirs alone.
        clients: Clients of this node.
        share: This node's part of the rate.
        directory: With the scripts, and for the logs of transactions.
    """
    variables = (
        {"items": scale.items, "customers": scale.customers, "first_cart": 1000 * node + 1,
         "cold": 1}
        if point.workload == "tpcw"
        else {"bytes" if point.workload == "bytes" else "rows": point.size}
    )  # fmt: skip
    return [
        str(postgres_bin() / "pgbench"),
        "--no-vacuum",
        f"--client={clients}",
        "--jobs=1",
        f"--time={point.warm_s + point.seconds + 1}",
        # A table's name can't be a parameter. And the paper's servers knew no prepared statements.
        "--protocol=simple",
        "--failures-detailed",
        "--log",
        f"--log-prefix={directory}/n{node}",
        *([] if point.rate is None else [f"--rate={point.rate * share:.4f}"]),
        *(f"--define={name}={value}" for name, value in variables.items()),
        *(
            f"--file={directory}/{name}.sql@{weight}"
            for name, weight in mix(point.workload).items()
        ),
    ]


def mix(workload: str) -> dict[str, int]:
    """Return the scripts of a workload with their weights."""
    if workload == "tpcw":
        return {name: weight for name, (weight, _) in TPCW_MIX.items()}
    return {workload: 1}


def write_scripts(workload: str, directory: Path) -> None:
    """Write the scripts of a workload as pgbench is to run them."""
    first = (SCRIPTS / "first.sql").read_text() if workload == "tpcw" else ""
    folder = SCRIPTS / "tpcw" if workload == "tpcw" else SCRIPTS
    for name in mix(workload):
        text = (folder / f"{name}.sql").read_text()
        (directory / f"{name}.sql").write_text(f"{first}{text}")


def classes_of(workload: str) -> list[str]:
    """Return the class of each script of a workload, in order."""
    if workload == "tpcw":
        return [kind for _, kind in TPCW_MIX.values()]
    return [CLASS_OF.get(workload, UPDATES)]


async def run(system: PostgresSystem, point: Point, scale: Scale) -> Measurement:
    """Run one point and return what was measured.

    Raises:
        BenchmarkError: pgbench could not run at all.
    """
    clients = deal_out(point.clients, system.nodes)
    with tempfile.TemporaryDirectory(prefix="pgherd-evaluation-") as directory:
        write_scripts(point.workload, Path(directory))
        running = [
            asyncio.create_task(
                _run_one(
                    command(
                        point, scale, node=node, clients=own, share=own / point.clients,
                        directory=Path(directory),
                    ),
                    system.dsns[node],
                )
            )
            for node, own in enumerate(clients)
            if own
        ]  # fmt: skip
        try:
            window = await _watch(system, point, running)
            ends = await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        lines = _read(Path(directory))
    lost, errors = sum(count for count, _ in ends), [error for _, error in ends if error]
    outcome = logs.collect(lines, classes_of(point.workload), window.began, window.ended)
    if not lines:
        raise BenchmarkError(f"pgbench committed nothing: {errors[0] if errors else 'no error'}")
    measured = measurement(system, point, outcome, window)
    return replace(measured, lost=lost, last_error=errors[0] if errors else "")


def measurement(system: System, point: Point, outcome: logs.Outcome, window: Window) -> Measurement:
    """Return what a window says of a point; lost clients are for the caller to add."""
    tps = outcome.committed / (window.ended - window.began)
    sent = window.traffic() if outcome.committed else None
    return Measurement(
        figure=point.figure,
        system=system.name,
        series=point.series,
        x=point.x,
        clients=point.clients,
        offered_tps=point.rate,
        tps=tps,
        aborts=outcome.aborts.total(),
        committed=outcome.committed,
        mean_ms=outcome.mean_ms(),
        p95_ms=outcome.p95_ms(),
        cpu_us=window.per_transaction_us(tps),
        link_bytes=sent.bytes / outcome.committed if sent else None,
        link_segments=sent.segments / outcome.committed if sent else None,
    )


def _read(directory: Path) -> list[str]:
    """Return the lines of all logs of transactions."""
    return [
        line
        for path in sorted(directory.glob("n[0-9]*.[0-9]*"))
        for line in path.read_text().splitlines()
    ]


async def _watch(
    system: PostgresSystem, point: Point, running: Sequence[asyncio.Task[tuple[int, str]]]
) -> Window:
    """Open the window after the warm-up, and close it; early, if all have ended."""
    await asyncio.wait(running, timeout=point.warm_s)
    window = Window(system.directory, system.link_ports)
    await asyncio.wait(running, timeout=point.seconds)
    window.end()
    return window


async def _run_one(arguments: Sequence[str], dsn: str) -> tuple[int, str]:
    """Return how many clients of one pgbench were lost, and its last error."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        # Snapshot isolation is what the paper is about: PostgreSQL's REPEATABLE READ.
        env={
            **client_environment(dsn),
            "PGOPTIONS": r"-c default_transaction_isolation=repeatable\ read",
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    seconds = next(int(one[7:]) for one in arguments if one.startswith("--time="))
    try:
        async with asyncio.timeout(seconds + STRAGGLERS_S):
            _, raw = await process.communicate()
    except TimeoutError as error:
        raise BenchmarkError(f"pgbench did not end within {STRAGGLERS_S} s of its time") from error
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    said = raw.decode(errors="replace").splitlines()
    lost = [line for line in said if is_aborted_client(line)]
    other = [line for line in said if "error:" in line.lower() or "fatal:" in line.lower()]
    if process.returncode != 0 and not lost:
        raise BenchmarkError(f"pgbench could not run: {last_line(other[-1] if other else '')}")
    return len(lost), (lost or other or [""])[-1]
