"""Tables and plot of a comparison."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.latency import PLAIN, table
from benchmarks.percentiles import Latency
from benchmarks.records import Cell, Record, drop_disturbed, over_rounds
from benchmarks.report import comparison, replace_section

MACHINE = {"cpus": "4", "cpu": "Some CPU", "kernel": "6.1"}
OPTIONS = {"seconds": "10", "rounds": "1", "tables": "4", "rows": "20000", "ids": "dense"}


def cell(system: str, tps: float, *, clients: int = 8, fatal: tuple[str, ...] = ()) -> Cell:
    return Cell(
        system=system,
        workload="oltp_insert",
        clients=clients,
        tps=tps,
        p50_ms=1.0,
        p95_ms=2.5,
        p99_ms=4.0,
        aborts_per_s=3.0,
        cpu_us={"sidecars": 100.0, "client backends": 250.0},
        sidecar_rss_mb=81.0 if system == "pgherd" else 0.0,
        fatal=fatal,
    )


def record(*cells: Cell) -> Record:
    return Record(machine=MACHINE, options=OPTIONS, cells=list(cells))


def rows_of(table: str) -> list[list[str]]:
    return [
        [field.strip() for field in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| insert")
    ]


def test_throughput_and_ratios_stand_in_one_row() -> None:
    text = comparison(record(cell("plain", 4000), cell("galera3", 1000), cell("pgherd", 1500)))

    assert rows_of(text)[0] == [
        "insert", "8",
        "1,500 (2.50 ms)", "1,000 (2.50 ms)", "4,000 (2.50 ms)",
        "1.50", "0.38",
    ]  # fmt: skip


def test_costs_are_split_by_kind_largest_first() -> None:
    costs = rows_of(comparison(record(cell("pgherd", 1500))))[1]

    assert costs == ["insert", "8", "pgherd", "3", "350", "client backends 250, sidecars 100", "81"]


def test_a_cell_that_is_missing_is_a_dash() -> None:
    text = comparison(record(cell("pgherd", 1500), cell("plain", 4000, clients=1)))

    assert rows_of(text)[0] == ["insert", "8", "1,500 (2.50 ms)", "-", "-"]


def test_cells_of_a_slow_machine_are_thrown_away_and_noted() -> None:
    slow, fast = (replace(cell("pgherd", 1500), control_tps=tps) for tps in (8400.0, 8600.0))
    measured = record(replace(cell("plain", 4000), control_tps=10000.0), slow, fast)

    assert drop_disturbed(measured, 0.15) == ["pgherd"]

    assert [one.control_tps for one in measured.cells] == [10000.0, 8600.0]
    assert "pgherd: a plain server made 8400 transactions a second" in comparison(measured)
    assert drop_disturbed(measured, 0.15) == []


def test_without_pgherd_there_are_no_ratios() -> None:
    assert "pgherd / " not in comparison(record(cell("plain", 4000), cell("galera3", 1000)))


def test_errors_and_failures_are_noted() -> None:
    failed = record(cell("pgherd", 1500, fatal=("connection closed",)))
    failed.failures["galera3"] = "node 2 did not join"

    text = comparison(failed)

    assert "sysbench stopped on `connection closed` (measured again)" in text
    assert "galera3 was not measured to the end: node 2 did not join" in text


def test_rounds_are_summed_up_by_their_medians() -> None:
    cells = over_rounds([cell("pgherd", tps) for tps in (900, 5000, 1000)])

    assert cells["pgherd", "oltp_insert", 8].tps == 1000


def test_a_section_is_replaced_and_the_rest_of_the_page_stays() -> None:
    page = "# Title\n<!-- x: begin -->\nold\n<!-- x: end -->\nlast words\n"

    new = replace_section(page, "x", "new")

    assert new == "# Title\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nlast words\n"
    assert replace_section(new, "x", "new") == new


def test_a_page_without_the_section_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="no section"):
        replace_section("# Title\n", "x", "new")


def test_the_performance_page_has_both_sections() -> None:
    page = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()

    for name in ("comparison", "latency"):
        assert "content" in replace_section(page, name, "content")


def test_the_plot_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import plot  # noqa: PLC0415

    drawn = record(cell("pgherd", 1500), cell("plain", 4000, clients=1))
    for name in ("one.svg", "two.svg"):
        plot.draw(drawn, tmp_path / name)

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_latency_table_shows_what_replication_adds() -> None:
    text = table({PLAIN: Latency(0.2, 0.3, 0.4), "pgherd, n1": Latency(1.0, 1.5, 2.0)})

    assert "| pgherd, n1 | 1.00 | 1.50 | 2.00 | 0.80 |" in text
