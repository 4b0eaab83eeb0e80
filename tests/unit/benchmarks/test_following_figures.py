"""The figures of servers that follow another one."""

from benchmarks.following import Run, lines, rates

SAID = """latency average = 2.101 ms
initial connection time = 11.512 ms
tps = 952.381000 (without initial connection time)
"""


def test_the_clients_of_all_members_count() -> None:
    assert sum(rates([SAID, SAID])) == 1904.762


def test_a_ratio_is_of_two_runs_of_one_turn() -> None:
    ours = [Run(1000, 10, (0.1,)), Run(4000, 20, (0.2, 0.3)), Run(2000, 30, (0.4, 9.0))]
    theirs = [Run(500, 40, (2.0,)), Run(1000, 50, (3.0,)), Run(4000, 60, (4.0,))]
    assert lines("update", {"slony": theirs, "pgherd": ours}) == [
        "update, slony: applies 1000 rows/s; under 50 transactions/s the lag is 3.00 s,"
        " at most 4.00 s; pgherd applies 2.00 times as fast",
        "update, pgherd: applies 2000 rows/s; under 20 transactions/s the lag is 0.30 s,"
        " at most 9.00 s",
    ]
