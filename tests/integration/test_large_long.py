"""Large transactions: the others go on, and nobody needs much memory for a gigabyte."""

import asyncio
import re
from pathlib import Path

import pytest

from .ledger import new_ledger
from .localherd import LocalHerd, query, sidecar_pid

NODES = ["n1", "n2", "n3"]
ROWS = 1_000_000
MEMORY_KB = 400 << 10


def peak_memory_kb(herd: LocalHerd, node: str) -> int:
    """The most memory that a node's sidecar has had so far."""
    status = Path(f"/proc/{sidecar_pid(herd, node)}/status").read_text()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(peak)


@pytest.mark.long
async def test_a_gigabyte_commits_while_the_others_go_on(herd: LocalHerd) -> None:
    ledger = new_ledger(herd)
    app = herd.nodes()[0].app_dsn
    query(app, f"CREATE TABLE {ledger.schema}.bulk (id int PRIMARY KEY, t text)")
    herd.must("verify")
    async with ledger.load(clients=1):
        rows = f"SELECT g, repeat(md5(g::text), 32) FROM generate_series(1, {ROWS}) g"
        large = asyncio.create_task(
            asyncio.to_thread(query, app, f"INSERT INTO {ledger.schema}.bulk {rows}")
        )
        rounds = 0
        while not large.done():
            await ledger.commits(20, on=NODES)  # of each, again and again
            rounds += 1
        await large
        await ledger.commits(20, on=NODES)
    assert rounds > 1
    ledger.check()
    assert query(herd.nodes()[2].dsn, f"SELECT count(*) FROM {ledger.schema}.bulk") == [(ROWS,)]
    assert {node: peak_memory_kb(herd, node) < MEMORY_KB for node in NODES} == dict.fromkeys(
        NODES, True
    )
    assert {member["state"] for member in herd.members()} == {"primary"}
    ledger.drop()


@pytest.mark.long
def test_many_rows_beside_a_command_cost_no_election(herd: LocalHerd) -> None:
    """They come in one piece, and a member that is busy with it answers the others."""
    herd.must("verify")
    before = herd.summary()["term"]
    app = herd.nodes()[0].app_dsn
    for _ in range(3):
        query(
            app,
            "CREATE TABLE wide (id int NOT NULL, t text);"
            f" INSERT INTO wide SELECT g FROM generate_series(1, {ROWS}) g;"
            " ALTER TABLE wide ADD PRIMARY KEY (id)",
        )
        query(app, "DROP TABLE wide")
    assert herd.summary()["term"] == before
    assert {member["state"] for member in herd.members()} == {"primary"}
