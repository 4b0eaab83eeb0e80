"""A node whose database is lost, wrong or too old comes back by a copy of another's, under load."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until_async

from .ledger import Ledger, new_ledger
from .localherd import LocalHerd, error_of, free_port_base, home, limited, query, standing
from .test_restart import run

NODES = ["n1", "n2", "n3"]
OTHERS = ["n1", "n2"]
_SLOW_MB_S = "1"
"""Slow enough that a copy of a fresh server (about 40 MB) outlasts a command or two."""
_ENDLESS_MB_S = "0.05"


@pytest.fixture(scope="module")
def mended(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd for these tests only: a failure must not spoil the others'."""
    with standing(LocalHerd(work_directory / "mended", free_port_base())) as herd:
        yield herd


@pytest.fixture(scope="module")
def forgetful(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd whose members trim their logs after a few hundred transactions."""
    environment = keeping_little(work_directory)
    with standing(LocalHerd(work_directory / "forgetful", free_port_base(), environment)) as herd:
        yield herd


def keeping_little(directory: Path) -> dict[str, str]:
    """The environment of a herd whose sidecars keep little of their logs."""
    return limited(
        directory, "forgetful", segment_bytes=65536, log_retention_bytes=65536,
        checkpoint_entries=100,
    )  # fmt: skip


@pytest.fixture
def ledger(mended: LocalHerd) -> Ledger:
    return new_ledger(mended)


def rebuilds(herd: LocalHerd, node: str) -> int:
    """How many rebuilds of a node were finished since its sidecar's log began."""
    return (home(herd) / node / "sidecar.log").read_text().count('"event":"rebuild.finished"')


async def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory with its owners."""
    copying = await asyncio.create_subprocess_exec("cp", "-a", source, target)
    assert await copying.wait() == 0


def progress(herd: LocalHerd, node: str) -> dict[str, Any]:
    """What the sidecar of a node has written down of its rebuild."""
    file = home(herd) / node / "sidecar" / "rebuild.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"phase": "idle"}
    return found


async def until(herd: LocalHerd, node: str, what: str, reached: Callable[[], bool]) -> None:
    """Wait until something is so."""

    def told() -> str:
        log = (home(herd) / node / "sidecar.log").read_text().splitlines()[-30:]
        return "\n".join([f"{node} is not {what}", *log])

    await wait_until_async(lambda: asyncio.to_thread(reached), brief=True, told=told)


async def copying(herd: LocalHerd, node: str) -> str:
    """Wait until a node copies another; return which."""
    copies = (home(herd) / node).glob
    await until(herd, node, "copying", lambda: any(copies("pgdata.copy-*/base")))
    assert progress(herd, node)["phase"] == "copying"
    return str(progress(herd, node)["partner"])


async def rebuilt(herd: LocalHerd, node: str, before: int) -> None:
    """Wait until a node takes writes again after one more rebuild."""
    await until(herd, node, "rebuilt", lambda: rebuilds(herd, node) > before)
    assert (await asyncio.to_thread(herd.member, node))["state"] == "primary"


@pytest.mark.long
@pytest.mark.expects_trouble("DivergedError", reason="a row of one node is deleted by hand")
async def test_a_diverged_node_rebuilds_itself(mended: LocalHerd, ledger: Ledger) -> None:
    before = rebuilds(mended, "n3")
    bait = f"{ledger.schema}.bait"
    query(
        mended.app_dsn("n1"),
        f"CREATE TABLE {bait} (id int PRIMARY KEY, v int);INSERT INTO {bait} VALUES (1, 1), (2, 2)",
    )
    mended.must("verify")
    async with ledger.load(clients=2):
        await ledger.commits(30, on=NODES)
        query(
            mended.dsn("n3"),
            f"SET session_replication_role = replica; DELETE FROM {bait} WHERE id = 1",
        )
        query(mended.app_dsn("n1"), f"UPDATE {bait} SET v = 3")
        await rebuilt(mended, "n3", before)
        await ledger.commits(30, on=NODES)
    ledger.check()


@pytest.mark.long
@pytest.mark.expects_trouble("LeftBehindError", reason="a database is removed")
async def test_a_node_without_data_directory_gets_a_copy(mended: LocalHerd, ledger: Ledger) -> None:
    async with ledger.load(clients=2):
        await ledger.commits(30, on=NODES)
        await run(mended, "kill", "n2", "--process", "node")
        shutil.rmtree(home(mended) / "n2" / "pgdata")
        await run(mended, "start", "n2")
        await ledger.commits(30, on=NODES)
    ledger.check()


@pytest.mark.long
@pytest.mark.expects_trouble("LeftBehindError", reason="a database is removed")
async def test_a_data_directory_removed_under_a_running_server_is_replaced(
    mended: LocalHerd, ledger: Ledger
) -> None:
    before = rebuilds(mended, "n2")
    async with ledger.load(clients=2):
        await ledger.commits(30, on=NODES)
        shutil.rmtree(home(mended) / "n2" / "pgdata")
        await run(mended, "kill", "n2", "--process", "sidecar")
        await run(mended, "start", "n2")
        await rebuilt(mended, "n2", before)
        await ledger.commits(30, on=NODES)
    ledger.surprises = [told for told in ledger.surprises if told[0] != "58P01"]  # no such file
    ledger.check()


@pytest.mark.long
@pytest.mark.expects_trouble("LeftBehindError", reason="an older database than the log's end")
async def test_an_older_data_directory_is_caught_up_or_replaced_but_never_believed(
    mended: LocalHerd, ledger: Ledger
) -> None:
    pgdata = home(mended) / "n3" / "pgdata"
    async with ledger.load(clients=2):
        await run(mended, "kill", "n3", "--process", "node")
        await copy_tree(pgdata, pgdata.with_name("older"))
        await run(mended, "start", "n3")
        await ledger.commits(100, on=NODES)
        await run(mended, "kill", "n3", "--process", "node")
        shutil.rmtree(pgdata)
        pgdata.with_name("older").rename(pgdata)
        await run(mended, "start", "n3")
        await ledger.commits(30, on=NODES)
    ledger.check()


@pytest.mark.long
@pytest.mark.parametrize(
    "process", ["sidecar", *(pytest.param(p, marks=pytest.mark.long) for p in ("postgres", "node"))]
)
async def test_the_joiner_is_killed_while_it_copies(
    mended: LocalHerd, ledger: Ledger, process: str
) -> None:
    before = rebuilds(mended, "n3")
    async with ledger.load(clients=2):
        await ledger.commits(20, on=NODES)
        asking = asyncio.create_task(
            asyncio.to_thread(mended.run, "rebuild", "n3", "--max-rate", _SLOW_MB_S)
        )
        await copying(mended, "n3")
        await run(mended, "kill", "n3", "--process", process)
        assert rebuilds(mended, "n3") == before
        await ledger.commits(20, on=OTHERS)
        await asking
        if process != "postgres":
            await run(mended, "start", "n3")
        await rebuilt(mended, "n3", before)
        await ledger.commits(20, on=NODES)
    ledger.check()
    left = (home(mended) / "n3").glob
    await until(mended, "n3", "tidy", lambda: not list(left("pgdata.*")))


@pytest.mark.long
async def test_the_partner_is_killed_while_it_is_copied(mended: LocalHerd, ledger: Ledger) -> None:
    before = rebuilds(mended, "n3")
    async with ledger.load(clients=2):
        await ledger.commits(20, on=NODES)
        asking = asyncio.create_task(
            asyncio.to_thread(mended.run, "rebuild", "n3", "--from", "n1", "--max-rate", _SLOW_MB_S)
        )
        assert await copying(mended, "n3") == "n1"
        await run(mended, "kill", "n1", "--process", "postgres")
        assert rebuilds(mended, "n3") == before
        await ledger.commits(20, on=["n2"])
        await run(mended, "start", "n1")
        await asking
        await rebuilt(mended, "n3", before)
        await ledger.commits(20, on=NODES)
    ledger.check()


@pytest.mark.long
async def test_while_it_is_rebuilt_a_node_votes_and_takes_no_writes(
    mended: LocalHerd, ledger: Ledger
) -> None:
    before = rebuilds(mended, "n3")
    member = mended.member("n3")
    asking = asyncio.create_task(
        asyncio.to_thread(mended.run, "rebuild", "n3", "--max-rate", _ENDLESS_MB_S)
    )
    partner = await copying(mended, "n3")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(member["app_dsn"], f"UPDATE {ledger.schema}.account SET balance = 0")
    # Without the third a majority needs the log of the node that is rebuilt.
    third = next(name for name in OTHERS if name != partner)
    await run(mended, "kill", third, "--process", "node")
    async with ledger.load(clients=1):
        await ledger.commits(5, on=[partner])
        assert rebuilds(mended, "n3") == before
        await run(mended, "start", third)
        await run(mended, "rebuild", "n3")  # again, at full speed
        assert (await asking).returncode == 0
        assert rebuilds(mended, "n3") == before + 1
    ledger.check()


@pytest.mark.long
async def test_sequences_go_on_where_the_lost_database_was(
    mended: LocalHerd, ledger: Ledger
) -> None:
    """Numbers that are in no row are known from the old server, or from beside the log."""
    query(mended.app_dsn("n3"), f"CREATE SEQUENCE {ledger.schema}.loose")
    mended.must("verify")
    given = [
        row[0]
        for row in query(
            mended.app_dsn("n3"),
            f"SELECT nextval('{ledger.schema}.loose') FROM generate_series(1, 100)",
        )
    ]
    await run(mended, "rebuild", "n3", "--from", "n2")  # whose numbers begin elsewhere
    (again,) = query(mended.app_dsn("n3"), f"SELECT nextval('{ledger.schema}.loose')")[0]
    assert again > max(given)
    assert again % 8 == given[0] % 8
    meant = f"SELECT start FROM pgherd.sequences WHERE relid = '{ledger.schema}.loose'::regclass"
    assert query(mended.dsn("n3"), meant) == [(1,)]


@pytest.mark.long
def test_it_is_refused_to_copy_from_nobody(mended: LocalHerd) -> None:
    assert "unknown node n9" in error_of(mended.run("rebuild", "n3", "--from", "n9"))
    assert "from itself" in error_of(mended.run("rebuild", "n3", "--from", "n3"))
    for node in OTHERS:
        mended.must("kill", node, "--process", "node")
    try:
        error = error_of(mended.run("rebuild", "n3"))
        assert "no other member takes writes" in error
        assert "n2 takes writes" in error_of(mended.run("rebuild", "n3", "--from", "n2"))
    finally:
        done = mended.up()
        assert done.returncode == 0, done.stderr
    assert mended.member("n3")["state"] == "primary"


async def trimmed_beyond(herd: LocalHerd, ledger: Ledger, node: str, position: int) -> None:
    """Have clients write until a node's log begins after a position."""
    log = home(herd) / node / "sidecar" / "log"
    while min(int(segment.stem) for segment in log.glob("*.seg")) <= position + 1:
        await ledger.commits(100, on=[node])


@pytest.mark.long
@pytest.mark.expects_trouble("LeftBehindError", reason="the log that it needs is trimmed")
@pytest.mark.parametrize("process", ["node", "sidecar"])
async def test_a_node_that_was_away_until_its_log_was_trimmed_gets_a_copy(
    forgetful: LocalHerd, process: str
) -> None:
    ledger = new_ledger(forgetful)
    before = rebuilds(forgetful, "n3")
    async with ledger.load(clients=2):
        await ledger.commits(20, on=NODES)
        await run(forgetful, "kill", "n3", "--process", process)
        ended = max(member["log_position"] or 0 for member in forgetful.members())
        for node in OTHERS:
            await trimmed_beyond(forgetful, ledger, node, ended)
        await run(forgetful, "start", "n3")
        assert rebuilds(forgetful, "n3") == before + 1
        await ledger.commits(50, on=NODES)
    ledger.check()


@pytest.mark.long
@pytest.mark.expects_trouble("LeftBehindError", reason="a database is removed")
async def test_a_copy_fits_to_a_log_that_is_trimmed_meanwhile(forgetful: LocalHerd) -> None:
    ledger = new_ledger(forgetful)
    async with ledger.load(clients=2):
        await ledger.commits(200, on=NODES)
        await run(forgetful, "kill", "n2", "--process", "node")
        shutil.rmtree(home(forgetful) / "n2" / "pgdata")
        await run(forgetful, "start", "n2")
        await ledger.commits(100, on=NODES)
    ledger.check()
