"""The evaluation on a herd of its own: each of its scripts, and one point, not for the speed."""

import asyncio
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from benchmarks.commands import client_environment, run
from benchmarks.evaluation import load, systems
from benchmarks.evaluation.plan import QUICK, Point
from benchmarks.herd import Herd

from .localherd import free_port_base

pytestmark = pytest.mark.long

NODES = 2
SCALE = replace(QUICK, items=100, customers=200, rows=50)
TPCW = Point("tpcw", "tpcw", 8, 100, 100, seconds=1)
UPDATES = Point("updates", "updates", 8, 60, 60, SCALE.rows)


def run_all(system: systems.HerdOf, point: Point, directory: Path) -> None:
    """Run the scripts of a workload one after the other, twice, whatever the time it takes."""
    load.write_scripts(point.workload, directory)
    scripts = [directory / f"{name}.sql" for name in load.mix(point.workload)]
    together = directory / "together"
    together.write_text("".join(script.read_text() for script in scripts))
    arguments = load.command(point, SCALE, node=0, clients=1, share=1.0, directory=directory)
    left_out = ("--time=", "--file=", "--rate=", "--log")
    common = [one for one in arguments if not one.startswith(left_out)]
    said = run(
        [*common, "--transactions=2", f"--file={together}"],
        environment=client_environment(system.dsns[0]),
    )
    assert "actually processed: 2/2" in said, said


def test_all_scripts_run_and_leave_the_nodes_identical(
    work_directory: Path, tmp_path: Path
) -> None:
    system = systems.HerdOf(work_directory / "evaluation", NODES, "sql", free_port_base())
    try:
        system.start()
        systems.fill_tpcw(system, SCALE)
        systems.fill_updates(system, SCALE)
        for point in (TPCW, UPDATES):
            run_all(system, point, tmp_path)
        shop = asyncio.run(load.run(system, TPCW, SCALE))
        assert (shop.lost, shop.last_error) == (0, "")
        with psycopg.connect(system.dsns[0]) as connection:
            assert connection.execute("SELECT count(*) FROM shopping_cart").fetchone() != (0,)
        system.settle()
        assert Herd(work_directory / "evaluation" / "herd").verify().identical
        assert system.proposer() in {f"n{number}" for number in range(1, NODES + 1)}
        assert "capture: sql" in system.version()
    finally:
        system.stop()
