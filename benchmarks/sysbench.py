"""Run sysbench against one system: one process a node, the clients dealt out, the results added.

Knows sysbench's command line and output, nothing of the systems. Called by the comparison.

sysbench's PostgreSQL driver repeats a transaction after 40001, 40P01 and 23505 and counts it as an
ignored error; any other error ends that process without figures, and a lost connection makes it
crash (version 1.0.20 looks into the SQLSTATE of an error that has none). The mysql driver is told
to repeat what corresponds to these, so both families are counted alike.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks import percentiles
from benchmarks.commands import last_line, program
from benchmarks.errors import BenchmarkError
from benchmarks.peers.base import Endpoint

WORKLOADS = ("oltp_update_index", "oltp_insert", "oltp_read_write", "oltp_point_select")
READING = ("oltp_point_select",)
"""Those of them that write nothing."""

MYSQL_REPEATED = (
    1213,  # deadlock, and Galera's certification failure
    1205,  # lock wait timeout
    1020,  # record has changed since last read
    1047,  # node not ready
    1062,  # duplicate key: 23505
)

TRANSACTIONS = re.compile(r"^\s*transactions:\s+(\d+)", re.MULTILINE)
IGNORED = re.compile(r"^\s*ignored errors:\s+(\d+)", re.MULTILINE)
TOTAL_TIME = re.compile(r"^\s*total time:\s+([\d.]+)s", re.MULTILINE)
HISTOGRAM = re.compile(r"^\s*([\d.]+) \|\**\s+(\d+)\s*$", re.MULTILINE)
FATAL = re.compile(r"^FATAL: (?!`)(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Job:
    """One cell of the comparison."""

    workload: str
    clients: int
    seconds: int
    tables: int
    rows: int


@dataclass(frozen=True, slots=True)
class Result:
    """What sysbench measured over all nodes."""

    tps: float
    aborts_per_s: float
    """Transactions that met a conflict and were repeated."""
    histogram: dict[float, int] = field(repr=False)
    """Milliseconds to number of transactions."""
    fatal: tuple[str, ...] = ()
    """Errors that ended a process; its figures are missing then."""

    @property
    def latency(self) -> percentiles.Latency:
        """Percentiles over all clients."""
        return percentiles.of_histogram(self.histogram)


def deal_out(clients: int, nodes: int) -> list[int]:
    """Return the number of clients of each node: as equal as can be, the first ones get more."""
    return [clients // nodes + (node < clients % nodes) for node in range(nodes)]


def command(job: Job, endpoint: Endpoint, clients: int, seed: int) -> list[str]:
    """Return the command line of one sysbench process.

    Args:
        job: What to run.
        endpoint: Where.
        clients: How many of the job's clients are this process's.
        seed: Of its random numbers, above 0. Without one sysbench takes the clock's seconds, and
            processes that start together write the same rows at the same time.
    """
    where = [
        f"--{endpoint.driver}-{option}={value}"
        for option, value in {
            "host": endpoint.host,
            "port": endpoint.port,
            "user": endpoint.user,
            "password": endpoint.password,
            "db": endpoint.database,
        }.items()
    ]
    if endpoint.driver == "mysql":
        where.append(f"--mysql-ignore-errors={','.join(map(str, MYSQL_REPEATED))}")
    return [
        program("sysbench", package="sysbench"),
        job.workload,
        f"--db-driver={endpoint.driver}",
        *where,
        f"--tables={job.tables}",
        f"--table-size={job.rows}",
        f"--threads={clients}",
        f"--time={job.seconds}",
        f"--rand-seed={seed}",
        "--report-interval=0",
        "--histogram=on",
        "run",
    ]


async def run(job: Job, endpoints: Sequence[Endpoint]) -> Result:
    """Run one job on all nodes at once and return the sum.

    Raises:
        BenchmarkError: sysbench could not run at all.
    """
    shares = zip(endpoints, deal_out(job.clients, len(endpoints)), strict=True)
    commands = [
        command(job, endpoint, clients, seed)
        for seed, (endpoint, clients) in enumerate(shares, 1)
        if clients
    ]
    return add(await asyncio.gather(*(run_one(one) for one in commands)))


async def run_one(arguments: Sequence[str]) -> Result:
    """Run one process of sysbench to its end, or until the caller is cancelled.

    Raises:
        BenchmarkError: It could not run at all.
    """
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        raw, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode is not None and process.returncode < 0:
        return failed(f"sysbench crashed (signal {-process.returncode}): a connection was lost")
    return parse(raw.decode(errors="replace"))


def failed(error: str) -> Result:
    """Return the result of a process that an error ended."""
    return Result(tps=0.0, aborts_per_s=0.0, histogram={}, fatal=(error,))


def parse(output: str) -> Result:
    """Return the result in the output of one process.

    Raises:
        BenchmarkError: It is no output of a sysbench that ran.
    """
    fatal = tuple(dict.fromkeys(FATAL.findall(output)))
    transactions, duration = TRANSACTIONS.search(output), TOTAL_TIME.search(output)
    if transactions is None or duration is None:
        if not fatal:
            raise BenchmarkError(f"sysbench: {last_line(output)}")
        return failed(fatal[0])
    seconds = float(duration[1])
    ignored = IGNORED.search(output)
    return Result(
        tps=int(transactions[1]) / seconds,
        aborts_per_s=(int(ignored[1]) if ignored else 0) / seconds,
        histogram={float(ms): int(count) for ms, count in HISTOGRAM.findall(output)},
        fatal=fatal[:1],
    )


def add(results: Sequence[Result]) -> Result:
    """Return the result of processes that ran side by side."""
    return Result(
        tps=sum(result.tps for result in results),
        aborts_per_s=sum(result.aborts_per_s for result in results),
        histogram=percentiles.merge(result.histogram for result in results),
        fatal=tuple(error for result in results for error in result.fatal),
    )
