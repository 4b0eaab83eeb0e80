"""Under a steady load nothing grows for ever: capture, log, ``applied``.

The limits are set low in the sidecars' configuration; the code is the real one.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from patience import wait_until_async
from pgherd_sidecar.pg.pipeline import Pipeline, Prepared

from .ledger import Ledger, new_ledger
from .localherd import LocalHerd, free_port_base, limited, query, standing

pytestmark = pytest.mark.long

NODES = ["n1", "n2", "n3"]
SEGMENT_BYTES = 1 << 18
RETENTION_BYTES = 4 * SEGMENT_BYTES
APPLIED_ENTRIES = 100

WASTE = """
CREATE TEMP TABLE waste (n int);
DO $$ BEGIN FOR i IN 1..132000 LOOP
    BEGIN INSERT INTO waste VALUES (i); EXCEPTION WHEN others THEN NULL; END;
END LOOP; END $$"""
"""Takes more transactions' ids than one side of the capture has: subtransactions count, too."""


@pytest.fixture(scope="module")
def tight(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd with low limits."""
    environment = limited(
        work_directory, "low_limits", segment_bytes=SEGMENT_BYTES,
        log_retention_bytes=RETENTION_BYTES, log_cache_bytes=SEGMENT_BYTES,
        applied_entries=APPLIED_ENTRIES, checkpoint_entries=200, checkpoint_ms=1000,
    )  # fmt: skip
    with standing(LocalHerd(work_directory / "tight", free_port_base(), environment)) as herd:
        yield herd


@pytest.fixture
def ledger(tight: LocalHerd) -> Ledger:
    return new_ledger(tight)


def log_bytes(herd: LocalHerd, node: str) -> int:
    """The size of a node's log on disk."""
    return sum(file.stat().st_size for file in (herd.directory / node / "sidecar/log").iterdir())


def log_is_small(herd: LocalHerd, node: str) -> bool:
    """Besides what is kept, one segment is being written, one is prepared, one is on its way."""
    return log_bytes(herd, node) <= RETENTION_BYTES + 3 * SEGMENT_BYTES


async def becomes(true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    await wait_until_async(lambda: asyncio.to_thread(true))


async def test_log_and_applied_stay_small_and_a_restart_needs_no_more(
    tight: LocalHerd, ledger: Ledger
) -> None:
    before = tight.members()[0]["log_position"]
    async with ledger.load(clients=3):
        await ledger.commits(4000)
        await asyncio.to_thread(tight.must, "kill", "n3", "--process", "node")
        await ledger.commits(300)
        await asyncio.to_thread(tight.must, "start", "n3")
        await ledger.commits(100, on=NODES)
    assert tight.members()[0]["log_position"] > before + 4000
    for node in NODES:
        await becomes(partial(log_is_small, tight, node))
    ledger.check()


async def test_capture_is_truncated_when_its_transactions_have_ended(
    tight: LocalHerd, ledger: Ledger
) -> None:
    async with ledger.load(clients=1):
        await ledger.commits(100, on=NODES)
        dsn = tight.dsn("n1")
        used = query(dsn, "SELECT pgherd.capture_side(pg_current_xact_id())")[0][0]
        size = f"SELECT pg_relation_size('pgherd.capture_{used}')"
        assert query(dsn, size)[0][0] > 0
        # 131,072 transactions later the other side is in use
        query(dsn, WASTE)
        await becomes(lambda: query(dsn, size)[0][0] == 0)
        await ledger.commits(100, on=NODES)
        applied = "SELECT count(*) FROM pgherd.applied WHERE gid < pgherd.last_gid() - 2000"
        await becomes(lambda: query(dsn, applied)[0][0] == 0)
    ledger.check()


async def test_a_transaction_that_is_open_for_long_keeps_what_it_has_captured_alone(
    tight: LocalHerd, ledger: Ledger
) -> None:
    dsn, app = tight.dsn("n1"), tight.app_dsn("n1")
    held = f"{ledger.schema}.held"
    query(app, f"CREATE TABLE {held} (id int PRIMARY KEY)")
    old = "SELECT count(*) FROM pgherd.applied WHERE gid < pgherd.last_gid() - 1200"
    side = "SELECT pgherd.capture_side(pg_current_xact_id())"
    async with ledger.load(clients=1):
        with psycopg.connect(app) as session:
            session.execute("SELECT pg_current_xact_id()")
            await ledger.commits(1500, on=["n1"])
            await becomes(lambda: query(dsn, old)[0][0] == 0)
            size = f"SELECT pg_relation_size('pgherd.capture_{query(dsn, side)[0][0]}')"
            query(dsn, WASTE)
            await becomes(lambda: query(dsn, size)[0][0] == 0)
        with psycopg.connect(app) as session:
            session.execute(f"INSERT INTO {held} VALUES (1)")
            size = f"SELECT pg_relation_size('pgherd.capture_{query(dsn, side)[0][0]}')"
            query(dsn, WASTE)
            process = f"process {session.info.backend_pid} of user"
            await becomes(lambda: process in " ".join(tight.members()[0]["capture_kept"]))
            assert query(dsn, size)[0][0] > 0
            session.rollback()
        await becomes(lambda: query(dsn, size)[0][0] == 0)
        await becomes(lambda: tight.members()[0]["capture_kept"] == [])
    query(app, f"DROP TABLE {held}")
    ledger.check()


async def test_a_sidecar_that_starts_anew_takes_no_certified_transaction_for_a_leak(
    tight: LocalHerd, ledger: Ledger
) -> None:
    """Its row in ``applied`` is pruned long before its captured rows are."""
    async with ledger.load(clients=2):
        await ledger.commits(1500, on=["n1"])
    dsn = tight.dsn("n1")
    old = "SELECT count(*) FROM pgherd.applied WHERE gid < pgherd.last_gid() - 1200"
    await becomes(lambda: query(dsn, old)[0][0] == 0)
    tight.must("kill", "n1", "--process", "sidecar")
    tight.must("start", "n1")
    async with ledger.load(clients=1):
        await ledger.commits(50, on=["n1"])
    assert '"event":"capture.leak"' not in (tight.directory / "n1/sidecar.log").read_text()
    ledger.check()


async def test_statements_for_rows_are_closed_at_the_server(
    tight: LocalHerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgherd_sidecar.pg.pipeline.KEPT_MAX", 3)
    pipeline = await Pipeline.connect(tight.dsn("n1"), ())
    count = b"SELECT 1 / (count(*) <= 4)::int FROM pg_prepared_statements"
    pipeline.prepare(b"counts", count)
    try:
        for number in range(20):
            row = Prepared(b"row_%d" % number, (), (), b"SELECT")
            statements = [row, Prepared(b"counts", (), ())]
            pipeline.provide(statements)
            await pipeline.run(statements)
    finally:
        pipeline.close()
