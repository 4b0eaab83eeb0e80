"""The lines that the demo shows while it runs and at its end."""

import io

from benchmarks.workload.parse import LatencyLog, Progress
from benchmarks.workload.pgbench import NodeResult
from benchmarks.workload.progress import LiveFigures
from benchmarks.workload.schema import Condition
from benchmarks.workload.summary import aborts, consistency, throughput


class Terminal(io.StringIO):
    """Output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def progress(at_s: float, tps: float, latency_ms: float = 1.0) -> Progress:
    return Progress(at_s=at_s, tps=tps, latency_ms=latency_ms, retries=1, failed=0)


def result(log: LatencyLog, *, lost: int = 0, error: str = "") -> NodeResult:
    return NodeResult(log=log, lost_clients=lost, last_error=error)


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    out = Terminal()
    figures = LiveFigures(["n1", "n2"], out)

    for second in (1, 2):
        figures.update(0, progress(second, 100))
        figures.update(1, progress(second, 300))
    figures.finish()

    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") == 2
    assert "400 tps" in out.getvalue()


def test_elsewhere_a_plain_line_comes_every_five_seconds() -> None:
    out = io.StringIO()
    figures = LiveFigures(["n1"], out)

    for second in range(1, 11):
        figures.update(0, progress(second, 100))
    figures.finish()

    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["5", "10"]
    assert "\r" not in out.getvalue()


def test_nothing_is_shown_before_every_node_has_reported() -> None:
    out = Terminal()
    figures = LiveFigures(["n1", "n2"], out)

    figures.update(0, progress(1, 100))
    figures.finish()

    assert out.getvalue() == ""


def test_latency_is_weighted_and_a_stalled_node_does_not_spoil_it() -> None:
    out = Terminal()
    figures = LiveFigures(["n1", "n2", "n3"], out)

    figures.update(0, progress(1, 100, latency_ms=1.0))
    figures.update(1, progress(1, 300, latency_ms=3.0))
    figures.update(2, progress(1, 0, latency_ms=float("nan")))

    assert "400 tps, 2.5 ms" in out.getvalue()


def test_throughput_adds_nodes_and_separates_scripts() -> None:
    logs = [LatencyLog(latencies_ms={0: [1.0] * 20, 1: [2.0] * 10}), LatencyLog({0: [3.0] * 30})]

    lines = throughput(["n1", "n2"], [result(log) for log in logs], seconds=10)

    rates = {" ".join(line.split()[:-4]): line.split()[-4] for line in lines[1:]}
    assert rates["node n1"] == "3"
    assert rates["tpcb"] == "5"
    assert rates["tpcc new order"] == "1"
    assert rates["all"] == "6"


def test_aborts_name_conflicts_failures_and_lost_clients() -> None:
    log = LatencyLog(latencies_ms={0: [1.0] * 90}, retries=10)
    log.failures["serialization"] = 2

    lines = aborts([result(log, lost=1, error="client 3 aborted: connection lost")])

    assert "90 transactions committed; 10 attempts" in lines[0]
    assert "(10.0 %)" in lines[0]
    assert "2 serialization" in lines[0]
    assert "1 clients stopped" in lines[1]
    assert "connection lost" in lines[1]


def test_a_condition_broken_on_one_node_is_named_with_the_node() -> None:
    good, bad = Condition("sums agree", 0), Condition("sums agree", 3)

    lines, holds = consistency({"n1": [good], "n2": [bad]})

    assert not holds
    assert lines == ["sums agree: BROKEN on n2"]


def test_conditions_that_hold_everywhere_are_good() -> None:
    lines, holds = consistency({"n1": [Condition("sums agree", 0)]})

    assert holds
    assert lines == ["sums agree: holds on all nodes"]
