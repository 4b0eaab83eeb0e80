"""CPU and memory by kind of process, out of /proc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cpu import (
    PAGE_BYTES,
    TICKS_PER_S,
    Process,
    belonging_to,
    cpu_by_kind,
    kind_of,
    largest_rss_mb,
    parse_process,
    per_transaction_us,
    process_table,
    spent_s,
    usage,
)

DIRECTORY = Path("/var/tmp/bench/pgherd")
SIDECAR = f"/venv/bin/python /venv/bin/pgherd-sidecar --config {DIRECTORY}/herd/n1/node.json"
POSTMASTER = f"/usr/lib/postgresql/15/bin/postgres -D {DIRECTORY}/herd/n1/pgdata"


def process(pid: int, command: str, *, parent: int = 1, cpu_s: float = 0.0) -> Process:
    return Process(
        pid=pid, parent=parent, started=pid, command=command, cpu_s=cpu_s, rss_bytes=pid * 1_000_000
    )


def test_stat_is_read_behind_a_name_with_spaces_and_parentheses() -> None:
    fields = ["S", "7", *["0"] * 9, "300", "100", *["0"] * 6, "4242", "0", "25", *["0"] * 5]

    read = parse_process(f"12 (odd ) name) {' '.join(fields)}", "postgres: walwriter ")

    assert read == Process(
        pid=12,
        parent=7,
        started=4242,
        command="postgres: walwriter",
        cpu_s=400 / TICKS_PER_S,
        rss_bytes=25 * PAGE_BYTES,
    )


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (SIDECAR, "sidecars"),
        (POSTMASTER, "background"),
        ("postgres: checkpointer", "background"),
        ("postgres: app app 127.0.0.1(40312) UPDATE", "client backends"),
        ("postgres: postgres app [local] idle", "sidecars' sessions"),
        ("postgres: walsender postgres 127.0.0.1(34264) streaming 0/7", "streaming"),
        ("postgres: startup recovering 000000010000000000000007", "streaming"),
        ("/usr/sbin/mariadbd --defaults-file=/x/n1.cnf", "mariadbd"),
        ("sysbench oltp_insert", None),
        (f"tail -f {DIRECTORY}/log", None),
    ],
)
def test_processes_are_told_apart(command: str, kind: str | None) -> None:
    assert kind_of(process(1, command)) == kind


def test_a_system_is_its_servers_and_all_below_them_and_nothing_else() -> None:
    table = [
        process(10, SIDECAR),
        process(11, POSTMASTER),
        process(12, "postgres: checkpointer", parent=11),
        process(20, "/usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/15/main"),
        process(21, "postgres: checkpointer", parent=20),
        process(30, f"python -m benchmarks.compare --dir {DIRECTORY}/"),
    ]

    assert [p.pid for p in belonging_to(DIRECTORY, table)] == [10, 11, 12]


def test_a_neighbour_with_a_longer_name_is_not_of_the_system() -> None:
    other = process(10, f"/usr/sbin/mariadbd --defaults-file={DIRECTORY}-2/n1.cnf")

    assert belonging_to(DIRECTORY, [other]) == []


def test_use_is_the_difference_by_kind_and_new_processes_count_from_zero() -> None:
    before = [process(10, SIDECAR, cpu_s=5.0), process(11, POSTMASTER, cpu_s=1.0)]
    after = [
        process(10, SIDECAR, cpu_s=7.5),
        process(11, POSTMASTER, cpu_s=1.0),
        process(12, "postgres: app app 127.0.0.1(1) idle", cpu_s=0.5),
    ]

    assert cpu_by_kind(before, after) == {
        "sidecars": 2.5,
        "background": 0.0,
        "client backends": 0.5,
    }


def test_a_pid_that_came_again_counts_from_zero() -> None:
    old = Process(10, 1, started=100, command=SIDECAR, cpu_s=50.0, rss_bytes=0)
    new = Process(10, 1, started=900, command=SIDECAR, cpu_s=1.0, rss_bytes=0)

    assert cpu_by_kind([old], [new]) == {"sidecars": 1.0}


def test_cost_of_a_transaction_is_in_microseconds_largest_first() -> None:
    cost = per_transaction_us({"background": 0.5, "sidecars": 2.0}, interval_s=2.0, tps=1000)

    assert list(cost.items()) == [("sidecars", 1000.0), ("background", 250.0)]


def test_no_transaction_has_no_cost() -> None:
    assert per_transaction_us({"sidecars": 2.0}, interval_s=2.0, tps=0) == {}


def test_the_largest_sidecar_is_reported() -> None:
    assert largest_rss_mb([process(80, SIDECAR), process(120, SIDECAR)], "sidecars") == 120
    assert largest_rss_mb([process(11, POSTMASTER)], "sidecars") == 0


def test_the_real_process_table_holds_this_process() -> None:
    assert os.getpid() in {p.pid for p in process_table()}


def test_what_a_child_has_used_counts_when_it_has_ended(tmp_path: Path) -> None:
    before = usage(tmp_path)
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert spent_s(before, usage(tmp_path)) >= 0.28  # the kernel counts in ticks
