"""What the comparison tells sysbench and reads out of it."""

import pytest

from benchmarks import sysbench
from benchmarks.errors import BenchmarkError
from benchmarks.peers.base import Endpoint
from benchmarks.sysbench import Job, Result, add, deal_out, parse

FINISHED = """\
Threads started!

Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.500 |****************                         2
       1.759 |********************                     90
    1013.597 |**************************************** 8

SQL statistics:
    transactions:                        100    (49.38 per sec.)
    queries:                             277    (269.75 per sec.)
    ignored errors:                      6      (2.96 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          2.0000s
"""

STOPPED = """\
Threads started!

FATAL: PQexecPrepared() failed: 7 canceling statement due to user request
FATAL: `thread_run' function failed: /usr/share/sysbench/oltp_common.lua:438: SQL error
FATAL: PQexecPrepared() failed: 7 terminating connection due to administrator command
"""

JOB = Job(workload="oltp_insert", clients=8, seconds=10, tables=4, rows=20_000)


@pytest.mark.parametrize(
    ("clients", "nodes", "shares"),
    [(1, 3, [1, 0, 0]), (8, 3, [3, 3, 2]), (32, 3, [11, 11, 10]), (32, 1, [32])],
)
def test_clients_are_dealt_out_evenly(clients: int, nodes: int, shares: list[int]) -> None:
    assert deal_out(clients, nodes) == shares


def test_a_finished_run_is_read() -> None:
    result = parse(FINISHED)

    assert result.tps == 50
    assert result.aborts_per_s == 3
    assert result.histogram == {0.5: 2, 1.759: 90, 1013.597: 8}
    assert result.latency.p50_ms == 1.759
    assert result.latency.p95_ms == 1013.597
    assert result.fatal == ()


def test_a_run_that_an_error_ended_names_the_servers_error() -> None:
    result = parse(STOPPED)

    assert result.tps == 0
    assert result.fatal == ("PQexecPrepared() failed: 7 canceling statement due to user request",)


def test_output_of_a_run_that_never_began_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="invalid option"):
        parse("sysbench 1.0.20\ninvalid option: --nonsense\n")


def test_processes_add_up_and_their_histograms_merge() -> None:
    fast = Result(tps=90, aborts_per_s=1, histogram={1.0: 90})
    slow = Result(tps=10, aborts_per_s=2, histogram={1.0: 4, 9.0: 6}, fatal=("lost",))

    total = add([fast, slow])

    assert total.tps == 100
    assert total.aborts_per_s == 3
    assert total.histogram == {1.0: 94, 9.0: 6}
    assert total.latency.p95_ms == 9.0
    assert total.fatal == ("lost",)


@pytest.fixture
def _sysbench_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysbench, "program", lambda name, package: f"/usr/bin/{package}")


@pytest.mark.usefixtures("_sysbench_installed")
def test_both_drivers_repeat_the_same_conflicts() -> None:
    mysql = sysbench.command(JOB, Endpoint("mysql", "127.0.0.1", 1, "u", "", "d"), 3, 7)
    pgsql = sysbench.command(JOB, Endpoint("pgsql", "127.0.0.1", 2, "u", "p", "d"), 3, 7)

    assert "--mysql-ignore-errors=1213,1205,1020,1047,1062" in mysql
    assert not any(option.startswith("--mysql") for option in pgsql)
    # What is not about the connection must be the same, or the systems are not compared.
    own = ("--mysql", "--pgsql", "--db-driver")
    assert [o for o in mysql if not o.startswith(own)] == [
        o for o in pgsql if not o.startswith(own)
    ]
