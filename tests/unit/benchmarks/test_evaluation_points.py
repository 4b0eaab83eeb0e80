"""The points that the evaluation runs, and how it reads pgbench, sysbench and ss."""

from pathlib import Path

import pytest

from benchmarks.cpu import Process
from benchmarks.evaluation import galera, links, load, logs, plan, usage
from benchmarks.evaluation.plan import FULL, QUICK, Point
from benchmarks.peers.base import Endpoint

#: client, transaction, time or failure, script, second, microsecond, and the lag with a rate
LOG = """\
0 1 9000 0 99 999999 10
0 2 2000 0 100 0 10
1 1 4000 1 100 500000 12
1 2 serialization 1 101 0 0
0 3 deadlock 0 101 5 0
0 4 6000 0 101 999999 0
0 5 7000 0 102 0 0
0 6 80
"""


def test_only_what_ended_in_the_window_counts_by_its_class() -> None:
    outcome = logs.collect(LOG.splitlines(), ["queries", "updates"], 100.0, 102.0)
    assert outcome.times_ms == {"queries": [2.0, 6.0], "updates": [4.0]}
    assert outcome.committed == 3
    assert outcome.aborts == {"updates": 1, "queries": 1}
    assert outcome.mean_ms() == {"queries": 4.0, "updates": 4.0}
    assert outcome.p95_ms() == {"queries": 6.0, "updates": 4.0}


def test_the_sockets_of_all_links_are_added() -> None:
    shown = (
        "ESTAB 0 0 127.0.0.1:40000 127.0.0.1:8401 cubic bytes_sent:1000 bytes_acked:900 "
        "segs_out:9 segs_in:8 data_segs_out:7\n"
        "ESTAB 0 0 127.0.0.1:40002 127.0.0.1:8402 cubic bytes_sent:20 segs_out:3 data_segs_out:2\n"
        "ESTAB 0 0 127.0.0.1:40004 127.0.0.1:8402 cubic segs_out:1\n"
    )
    assert links.parse(shown) == links.Traffic(bytes=1020, segments=9)


def test_a_system_without_members_has_no_traffic() -> None:
    assert links.traffic([]) is None


def test_the_mix_is_that_of_the_specification() -> None:
    assert sum(weight for weight, _ in load.TPCW_MIX.values()) == 10_000
    browsing = ("home", "new_products", "best_sellers", "product_detail", "search_request",
                "search_results")  # fmt: skip
    assert sum(load.TPCW_MIX[name][0] for name in browsing) == 8000


def test_exactly_the_interactions_that_write_are_updates() -> None:
    words = ("INSERT INTO", "UPDATE ", "DELETE FROM")
    for name, (_, kind) in load.TPCW_MIX.items():
        text = (load.SCRIPTS / "tpcw" / f"{name}.sql").read_text()
        assert any(word in text for word in words) == (kind == load.UPDATES), name


def test_each_script_of_tpcw_is_in_the_mix() -> None:
    there = {path.stem for path in (load.SCRIPTS / "tpcw").glob("*.sql")}
    assert there == set(load.TPCW_MIX)


def test_a_node_submits_its_part_of_the_rate_and_has_carts_of_its_own() -> None:
    point = Point("tpcw", "tpcw", 40, 100, 100)
    arguments = load.command(point, QUICK, node=2, clients=8, share=0.2, directory=Path("/d"))
    assert "--rate=20.0000" in arguments
    assert "--client=8" in arguments
    assert "--define=first_cart=2001" in arguments
    assert len([one for one in arguments if one.startswith("--file=/d/")]) == 14
    assert "--log-prefix=/d/n2" in arguments


def test_each_client_of_tpcw_writes_before_its_first_interaction(tmp_path: Path) -> None:
    load.write_scripts("tpcw", tmp_path)
    load.write_scripts("read", tmp_path)
    texts = {path.stem: path.read_text() for path in tmp_path.glob("*.sql")}
    assert set(texts) == {*load.TPCW_MIX, "read"}
    assert "cold" not in texts.pop("read")
    assert all(text.count("\\set cold 0") == 1 for text in texts.values())


def test_the_warm_up_has_a_turn_of_each_client() -> None:
    assert plan.first_turn_s(Point("tpcw", "tpcw", 40, 20, 20)) == 2
    assert plan.first_turn_s(Point("clients", "update", 256, 256)) == 10
    assert plan.first_turn_s(Point("overhead", "updates", 1, 1)) == 0


def test_without_a_rate_clients_do_not_wait() -> None:
    point = Point("overhead", "updates", 1, 1, size=77)
    arguments = load.command(point, QUICK, node=0, clients=1, share=1.0, directory=Path("/d"))
    assert not [one for one in arguments if one.startswith("--rate")]
    assert "--define=rows=77" in arguments


def test_galera_gets_the_same_transaction_rate_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galera, "program", lambda name, package: f"/usr/bin/{package}")
    node = Endpoint("mysql", "127.0.0.1", 7621, "sbtest", "", "sbtest")
    point = Point("updates", "updates", 20, 60, 60, 10_000)
    arguments = galera.command(point, node, clients=4, share=0.2)
    assert "--rate=12" in arguments
    assert "--rows=10000" in arguments
    assert "--threads=4" in arguments


def test_the_mean_of_a_histogram_weighs_its_counts() -> None:
    assert galera.mean_of({1.0: 3, 5.0: 1}) == 2.0
    assert galera.mean_of({}) is None


def test_the_plain_server_comes_first_and_herds_by_size() -> None:
    assert list(plan.points(QUICK)) == ["plain", "herd1", "herd3", "herd5", "herd10", "galera5"]
    assert [f"herd{n}" in plan.points(FULL) for n in range(1, 11)] == [True] * 10


def test_figures_can_be_chosen() -> None:
    chosen = plan.points(QUICK, ["overhead"])
    assert {point.figure for points in chosen.values() for point in points} == {"overhead"}


def test_no_two_points_of_a_system_are_the_same() -> None:
    for points in plan.points(FULL).values():
        places = [(point.figure, point.series, point.x) for point in points]
        assert len(places) == len(set(places))


def test_the_quick_scale_takes_a_quarter_of_an_hour_at_most() -> None:
    assert plan.expected_s(plan.points(QUICK)) <= 15 * 60


def test_growth_goes_on_to_the_bounds_that_are_asked_for() -> None:
    larger = plan.with_bounds(QUICK, largest_rows=10**8, largest_bytes=10**8)
    assert larger.growth_rows == (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
    assert larger.growth_bytes[-1] == 10**8
    windows = [point.seconds for point in plan.points(larger, ["bytes"])["plain"]]
    assert windows[0] == QUICK.seconds and windows[-1] >= 50


def test_the_time_of_a_session_is_the_schedulers_and_finer(tmp_path: Path) -> None:
    session = Process(7, 1, 5, "postgres: app app 127.0.0.1(4) idle", 0.01, 0)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("1234567 99 3\n")
    assert usage.finer(session, tmp_path).cpu_s == pytest.approx(0.001234567)
    assert usage.finer(session, tmp_path / "ended") == session


@pytest.mark.parametrize(("rows", "fits"), [(10**6, True), (10**8, False)])
def test_tables_take_at_most_half_of_what_is_free(rows: int, fits: bool) -> None:
    assert plan.rows_that_fit(rows, 3, 70 * 10**9) == fits
