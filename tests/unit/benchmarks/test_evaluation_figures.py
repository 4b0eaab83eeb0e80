"""The evaluation's arithmetic, what it finds of the paper's words, and its tables."""

import re
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.evaluation import arithmetic, findings, paper, record, tables
from benchmarks.evaluation.arithmetic import Costs
from benchmarks.evaluation.record import Idle, Measurement, Record

PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"
SECTIONS = {"run", "tpcw", "overhead", "updates", "conflicts", "growth", "costs", "checks"}


def measured(  # noqa: PLR0913 - each test names only what it is about
    figure: str,
    system: str,
    x: float,
    *,
    series: str = "",
    ms: float = 2.0,
    cpu_us: float = 100.0,
    aborts: int = 0,
    offered: float | None = None,
    tps: float = 100.0,
    link: float | None = None,
) -> Measurement:
    """A measurement of a thousand committed transactions."""
    times = {"queries": ms, "updates": 2 * ms} if figure == "tpcw" else {"updates": ms}
    return Measurement(
        figure=figure, system=system, series=series, x=x, clients=8, offered_tps=offered, tps=tps,
        aborts=aborts, committed=1000, mean_ms=times, p95_ms=times,
        cpu_us={"client backends": cpu_us}, link_bytes=link, link_segments=link,
    )  # fmt: skip


def of(*measurements: Measurement) -> Record:
    """A record of these."""
    machine = {"cpus": "2", "cpu": "model", "kernel": "6", "python": "3"}
    options = {"scale": "quick", "seconds": "4", "warm_s": "1", "items": "1000",
               "customers": "5760", "rows": "10000"}  # fmt: skip
    return Record(machine, options, measurements=list(measurements))


def growth() -> Record:
    """Reads of 50 µs; writes of 100 on one server, and of 500 + (n - 1) 200 in a herd."""
    writes = {1: 500.0, 3: 900.0, 5: 1300.0, 10: 2900.0}
    return of(
        measured("nodes", "plain", 1, series="read", cpu_us=50),
        measured("nodes", "plain", 1, series="update", cpu_us=100),
        *(measured("nodes", f"herd{n}", n, series="read", cpu_us=50) for n in writes),
        *(
            measured("nodes", f"herd{n}", n, series="update", cpu_us=us,
                     link=300 * arithmetic.copies(n) or None)
            for n, us in writes.items()
        ),
    )  # fmt: skip


def test_costs_come_from_herds_of_one_and_three() -> None:
    assert arithmetic.costs(growth()) == Costs(50, 100, 500, 200)


def test_what_an_idle_system_uses_is_not_in_the_costs() -> None:
    shown = growth()
    shown.idle["herd3"] = Idle(cores=0.02)  # 200 µs of each of 100 transactions a second
    assert arithmetic.costs(shown) == Costs(50, 100, 500, 100)


def test_costs_are_unknown_without_the_four_points() -> None:
    shown = growth()
    del shown.measurements[0]
    assert arithmetic.costs(shown) is None


def test_larger_herds_are_computed_and_compared() -> None:
    writes = [one for one in arithmetic.checks(growth()) if "an update, " in one.what]
    assert [(one.computed, one.measured) for one in writes if "CPU" in one.what] == [
        (1300, 1300), (2300, 2900)
    ]  # fmt: skip
    sent = {one.what: one for one in writes if "bytes" in one.what}
    assert len(sent) == 2
    assert all(one.computed == pytest.approx(one.measured) for one in sent.values())


def test_reads_of_n_machines_are_n_times_those_of_one() -> None:
    known = Costs(read=50, plain_write=100, write=500, member=200)
    assert known.gain(5, 0.0) == 5
    assert known.gain(1, 1.0) == pytest.approx(100 / 500)
    assert known.gain(10**6, 1.0) == pytest.approx(100 / 200, rel=1e-3)


def test_at_the_even_share_of_writes_a_herd_is_as_fast_as_one_server() -> None:
    known = Costs(read=50, plain_write=100, write=500, member=200)
    for nodes in (3, 5, 10):
        assert known.gain(nodes, known.break_even(nodes)) == pytest.approx(1.0)
    assert Costs(50, 1000, 500, 200).break_even(3) == 1.0


@pytest.mark.parametrize(("nodes", "copies"), [(1, 0), (2, 1.5), (3, 8 / 3), (10, 9.9)])
def test_copies_are_the_way_to_the_proposer_and_to_all_others(nodes: int, copies: float) -> None:
    origin_is_not_the_proposer = (nodes - 1) / nodes
    assert arithmetic.copies(nodes) == pytest.approx(copies)
    assert copies == pytest.approx(origin_is_not_the_proposer + nodes - 1)


def test_messages_of_one_client_are_less_than_what_an_idle_herd_sends() -> None:
    shown = of(measured("overhead", "herd3", 1, tps=50, link=8), measured("overhead", "herd1", 1))
    shown.proposers["herd3"] = "n2"
    shown.idle["herd3"] = Idle(segments_per_s=100)
    assert [(one.computed, one.measured) for one in arithmetic.checks(shown)] == [(5, 6)]
    shown.proposers["herd3"] = "n1"
    assert [one.computed for one in arithmetic.checks(shown)] == [4]


def test_a_point_that_commits_less_than_was_submitted_is_saturated() -> None:
    assert measured("tpcw", "plain", 200, offered=200, tps=100).saturated
    assert measured("tpcw", "plain", 200, offered=200, tps=0).saturated
    assert not measured("tpcw", "plain", 100, offered=100, tps=97).saturated
    # What was aborted was not lost in a queue.
    assert not measured("updates", "plain", 100, offered=100, tps=80, aborts=250).saturated
    assert not measured("nodes", "plain", 1).saturated


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    shown = growth()
    shown.idle["herd3"] = Idle(0.1, 1000.0, 20.0)
    shown.save(tmp_path / "evaluation.json")
    assert record.load(tmp_path / "evaluation.json") == shown


def test_every_claim_of_the_paper_has_a_finding() -> None:
    nothing = of()
    for claim in paper.CLAIMS:
        assert findings.found(nothing, claim.name) == findings.MISSING


def test_findings_say_what_was_measured() -> None:
    shown = of(
        measured("tpcw", "plain", 20, ms=5), measured("tpcw", "herd5", 20, ms=3),
        measured("tpcw", "herd10", 20, ms=4), measured("tpcw", "plain", 60, ms=9, aborts=10),
        measured("tpcw", "herd5", 60, ms=8), measured("tpcw", "herd10", 60, ms=7),
        measured("overhead", "plain", 1, ms=3), measured("overhead", "herd5", 1, ms=11.25),
        measured("updates", "plain", 20, series="20 clients", ms=1, aborts=2),
        measured("updates", "herd5", 20, series="20 clients", ms=9, aborts=10),
        measured("updates", "plain", 120, series="20 clients", ms=90, aborts=70),
        measured("updates", "herd5", 120, series="20 clients", ms=9, aborts=15),
    )  # fmt: skip
    found = {claim.name: findings.found(shown, claim.name) for claim in paper.CLAIMS}
    assert (
        "one server 9.0 ms, 5 8.0 ms, 10 7.0 ms; updates: one server 18.0"
        in (found["plain-slowest"])
    )
    assert "10 were faster in queries at 1 of 2 loads" in found["ten-beats-five"]
    assert found["aborts"] == "at most 0.99%"
    assert found["overhead"] == "8.2 ms more"
    assert found["twenty-clients"] == "5 replicas were faster at 1 of 1 loads above 40 tps"
    assert found["five-clients"] == findings.MISSING
    assert found["herd-aborts"] == "1.0% to 1.5%"
    assert found["plain-aborts"] == "0.2% at 20 tps, 6.5% at 120 tps"


def test_a_cell_of_a_saturated_point_says_what_was_achieved() -> None:
    calm = measured("tpcw", "plain", 60, ms=2.5, offered=60, tps=60)
    full = measured("tpcw", "herd3", 60, ms=900, offered=60, tps=31.4)
    shown = tables.grid(
        of(calm, full), "tpcw", lambda one: tables.times(one, "queries"), head="interactions/s"
    )
    assert shown.splitlines() == [
        "| interactions/s | one server | 3 replicas |",
        "| --- | ---: | ---: |",
        "| 60 | 2.5 (2.5) | 900.0 (900.0) † 31 |",
    ]


def test_sections_are_made_of_what_was_measured_only() -> None:
    assert set(tables.sections(growth())) == {"run", "growth", "costs", "checks"}
    assert set(tables.sections(of(measured("overhead", "plain", 1)))) == {"run", "overhead"}


def test_troubles_are_told_beside_the_figures() -> None:
    shown = of(measured("overhead", "plain", 1))
    shown.failures["galera5"] = "Galera is not installed"
    shown.skipped.append("herd3: 100,000,000 rows do not fit on the disk")
    text = tables.circumstances(shown)
    assert "- galera5 was not measured to the end: Galera is not installed" in text
    assert "- herd3: 100,000,000 rows do not fit" in text


def test_the_page_has_a_place_for_each_section() -> None:
    page = PAGE.read_text()
    assert set(re.findall(r"<!-- (\w+): begin -->", page)) == SECTIONS
    for name in SECTIONS:
        assert "what was found" in report.replace_section(page, name, "what was found")
