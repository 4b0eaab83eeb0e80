"""Maintenance: work of one server each, in turns, and no node out of service for ever."""

import asyncio
import contextlib
import json
import random
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from patience import in_time, wait_until_async

from .localherd import LocalHerd, error_of, free_port_base, home, put, query, settle, standing
from .members import Connection, run

_FILE = "SELECT pg_relation_filenode('{}')"


@pytest.fixture
def table(mortal: LocalHerd) -> str:
    """A table with rows on all nodes."""
    name = f"public.m_{random.getrandbits(40):x}"
    query(mortal.app_dsn("n1"), f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    query(
        mortal.app_dsn("n1"),
        f"INSERT INTO {name} SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g",
    )
    settle(mortal)
    return name


@pytest.fixture
def five(work_directory: Any) -> Iterator[LocalHerd]:
    """A herd of five."""
    with standing(LocalHerd(work_directory / "five", free_port_base(5)), "--nodes", "5") as herd:
        yield herd


@pytest.fixture
def alone(work_directory: Any) -> Iterator[LocalHerd]:
    """A herd of one."""
    with standing(LocalHerd(work_directory / "alone", free_port_base(1)), "--nodes", "1") as herd:
        yield herd


def files(herd: LocalHerd, table: str) -> dict[str, int]:
    """The file of the table on each node: VACUUM FULL and CLUSTER give it another one."""
    return {node.name: query(node.dsn, _FILE.format(table))[0][0] for node in herd.nodes()}


def known(herd: LocalHerd, run: str) -> dict[str, Any]:
    """A run, as `pgherd maintenance --json` tells of it."""
    done = herd.top("maintenance", "--json")
    assert done.returncode == 0, done.stderr
    found = [one for one in json.loads(done.stdout)["runs"] if one["run"] == run]
    assert found, done.stdout
    one: dict[str, Any] = found[0]
    return one


def begun(herd: LocalHerd, *words: str) -> str:
    """Begin a run and do not wait for it; return its name."""
    done = herd.top("maintain", *words, "--no-wait")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


async def begun_to_work(herd: LocalHerd, table: str) -> str:
    """Begin a run on n2, which is drained for it, and return its name when it works there."""
    words = ("--vacuum-full", table, "--nodes", "n2", "--drain", "--grace", "0")
    name = await asyncio.to_thread(begun, herd, *words)
    await until(lambda: (herd.member("n2")["maintenance"] or {}).get("phase") == "works", "works")
    return name


def states(run: dict[str, Any]) -> dict[str, str]:
    return {part["member"]: part["state"] for part in run["parts"]}


async def until(look: Callable[[], object], what: str) -> None:
    await wait_until_async(lambda: asyncio.to_thread(look), told=lambda: what)


def answers(herd: LocalHerd, node: str, path: str) -> int:
    """The status code of a node's health port."""
    url = herd.member(node)["health"]
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@contextlib.asynccontextmanager
async def session(dsn: str) -> AsyncIterator[Connection]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


_WAITS = """SELECT count(*)::int FROM pg_stat_activity
 WHERE query LIKE 'VACUUM%' AND wait_event_type = 'Lock'"""


@contextlib.asynccontextmanager
async def held(herd: LocalHerd, node: str, table: str) -> AsyncIterator[Connection]:
    """Hold a table on a node in a session that maintenance takes for the sidecar's, and spares."""
    dsn = psycopg.conninfo.make_conninfo(herd.dsn(node), application_name="pgherd test")
    async with session(dsn) as connection:
        await run(connection, f"BEGIN; LOCK TABLE {table} IN ACCESS SHARE MODE")
        try:
            yield connection
        finally:
            with contextlib.suppress(psycopg.Error):
                await run(connection, "ROLLBACK")


@pytest.mark.long
def test_each_form_works_on_its_nodes_and_its_outcome_is_kept(
    mortal: LocalHerd, table: str
) -> None:
    before = files(mortal, table)
    done = mortal.top("maintain", "--vacuum-full", table, "--nodes", "n1,n3", "--one-by-one")
    assert done.returncode == 0, done
    after = files(mortal, table)
    assert {name for name, file in after.items() if file != before[name]} == {"n1", "n3"}
    index = f"{table}_pkey"
    before = files(mortal, index)
    done = mortal.top("maintain", "--reindex", table.split(".")[1], "--drain")
    assert done.returncode == 0, done
    after = files(mortal, index)
    assert {name for name, file in after.items() if file != before[name]} == {"n1", "n2", "n3"}
    bare = table.split(".")[1]
    sql = f"SET maintenance_work_mem = '8MB'; CLUSTER {bare} USING {index.split('.')[1]}"
    done = mortal.top("maintain", "--sql", sql, "--sql", f"ANALYZE {table}", "--nodes", "n2")
    assert done.returncode == 0, done
    shown = mortal.top("maintenance")
    assert "done" in shown.stdout, shown
    listed = json.loads(mortal.top("maintenance", "--json").stdout)["runs"]
    newest = listed[0]
    assert newest["statements"][1:] == [sql.split("; ")[1], f"ANALYZE {table}"]
    assert [part["member"] for part in newest["parts"]] == ["n2"]
    assert all(part["seconds"] >= 0 and part["begun"] for part in newest["parts"])
    mortal.must("verify")


@pytest.mark.long
def test_what_is_no_work_of_one_server_is_refused(mortal: LocalHerd, table: str) -> None:
    refused = {
        ("--sql", f"DELETE FROM {table}"): "it is no maintenance of one server",
        ("--sql", "CREATE TABLE x (i int)"): "it is no maintenance of one server",
        ("--sql", "SET default_transaction_read_only = off"): "this setting is pgherd's own",
        ("--sql", "VACUUM FULL tt tt tt"): "syntax error",
        ("--vacuum-full", "public.nowhere"): "there is no table public.nowhere",
        ("--vacuum-full", "nowhere"): "there is no table nowhere",
        ("--vacuum-full", "a.b.c"): "a.b.c",
        ("--vacuum-full", "no name at all"): "no name at all",
        ("--reindex", table, "--nodes", "n1,n9"): "n9 can't be maintained",
        ("--reindex", table, "--every", "61 * * * *"): "61 * * * *",
        ("--reindex", table, "--every", "1 1 * * *", "--time-zone", "Mars"): "no time zone Mars",
        (): "there is nothing to do",
    }
    for words, said in refused.items():
        assert said in error_of(mortal.top("maintain", *words)), words
    # What words don't tell PostgreSQL does: it runs in a read-only transaction.
    sneaky = f"WITH d AS (DELETE FROM {table} RETURNING id) SELECT count(*) FROM d"
    done = mortal.top("maintain", "--sql", sneaky, "--nodes", "n2")
    assert done.returncode == 1, done
    assert "25006" in done.stdout, done
    ends = f"DO $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; DELETE FROM {table}; END $$"
    done = mortal.top("maintain", "--sql", ends, "--nodes", "n2")
    assert done.returncode == 1, done
    assert "2D000" in done.stdout, done
    within = f"DO $$ BEGIN SET LOCAL transaction_read_only = off; DELETE FROM {table}; END $$"
    done = mortal.top("maintain", "--sql", within, "--nodes", "n2")
    assert done.returncode == 1, done
    assert "25001" in done.stdout, done
    for node in mortal.nodes():
        assert query(node.dsn, f"SELECT count(*) FROM {table}") == [(1000,)]


@pytest.mark.long
async def test_a_drained_node_is_out_of_service_until_it_has_caught_up(
    mortal: LocalHerd, table: str
) -> None:
    """Its work holds up its applier, and nobody else; it is back when it shows what was missed."""
    async with (
        session(mortal.app_dsn("n2")) as idle,
        session(mortal.app_dsn("n2")) as busy,
        session(mortal.app_dsn("n1")) as writer,
        held(mortal, "n2", table) as holder,
    ):
        await run(busy, f"BEGIN; UPDATE {table} SET v = 'before' WHERE id = 1")
        words = ("--vacuum-full", table, "--nodes", "n2", "--drain", "--grace", "60")
        name = await asyncio.to_thread(begun, mortal, *words)
        await until(lambda: mortal.member("n2")["state"] == "maintenance", "drains")
        assert (await asyncio.to_thread(mortal.member, "n2"))["maintenance"]["phase"] == "drains"
        await run(busy, "COMMIT")  # what was under way may end
        for path, code in (
            ("/ready", 503),
            ("/primary", 503),
            ("/readable", 503),
            ("/health", 200),
        ):
            assert await asyncio.to_thread(answers, mortal, "n2", path) == code, path
        await wait_until_async(lambda: _chosen(mortal, "n2,n3"), lambda chosen: chosen == "n3")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await run(idle, f"SET default_transaction_read_only = off; DELETE FROM {table}")
        await idle.close()
        await busy.close()
        await until(
            lambda: (mortal.member("n2")["maintenance"] or {}).get("phase") == "works", "works"
        )
        # VACUUM FULL waits for the holder, and the applier of n2 for VACUUM FULL.
        for id_ in range(2, 30):
            await run(writer, f"UPDATE {table} SET v = 'meanwhile' WHERE id = {id_}")
        await asyncio.sleep(3)  # far longer than our own watcher lets anybody stand in the way
        now = await asyncio.to_thread(known, mortal, name)
        assert states(now) == {"n2": "working"}
        await run(holder, "ROLLBACK")
        await until(lambda: known(mortal, name)["parts"][0]["state"] == "done", "done")
        async with session(mortal.dsn("n2")) as back:
            count = f"SELECT count(*) FROM {table} WHERE v = 'meanwhile'"
            assert await run(back, count) == [(28,)]
        assert await asyncio.to_thread(answers, mortal, "n2", "/ready") == 200
        await wait_until_async(lambda: _chosen(mortal, "n2,n3"), lambda chosen: chosen == "n2")
    await asyncio.to_thread(mortal.must, "verify")


async def _chosen(herd: LocalHerd, names: str) -> str:
    """The node that libpq takes of several, if it is to be one that takes writes."""
    parts = [psycopg.conninfo.conninfo_to_dict(herd.app_dsn(name)) for name in names.split(",")]
    both: dict[str, Any] = {
        **parts[0],
        "host": ",".join(str(part["host"]) for part in parts),
        "port": ",".join(str(part["port"]) for part in parts),
        "target_session_attrs": "read-write",
    }
    async with session(psycopg.conninfo.make_conninfo(**both)) as connection:
        ports = {
            str(part["port"]): name for part, name in zip(parts, names.split(","), strict=True)
        }
        return ports[str(connection.info.port)]


@pytest.mark.long
async def test_nobody_waits_for_a_drained_member(mortal: LocalHerd, table: str) -> None:
    """Neither an index that is built concurrently nor the vote on a command."""
    async with (
        session(mortal.app_dsn("n1")) as builder,
        session(mortal.dsn("n1")) as admin,
        held(mortal, "n2", table) as holder,
    ):
        name = await begun_to_work(mortal, table)
        await run(builder, f"UPDATE {table} SET v = 'in the way' WHERE id = 1")
        index = f"maintained_{random.getrandbits(30):x}"
        async with in_time():
            await run(builder, f"CREATE INDEX CONCURRENTLY {index} ON {table} (v)")
        collation = f"CREATE COLLATION {index} (provider = libc, locale = 'C.UTF-8')"
        log = home(mortal) / "n1" / "sidecar.log"
        before = len(log.read_text().splitlines())
        async with in_time():
            await run(admin, collation)
        told = log.read_text().splitlines()[before:]
        assert [line for line in told if "command.not_voted" in line] == []  # n2 was not asked
        assert states(await asyncio.to_thread(known, mortal, name)) == {"n2": "working"}
        await run(holder, "ROLLBACK")
    await until(lambda: states(known(mortal, name)) == {"n2": "done"}, "done")
    settle(mortal)
    valid = f"SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = '{index}'::regclass"
    for node in mortal.nodes():
        assert query(node.dsn, valid) == [(True,)]
    await asyncio.to_thread(mortal.must, "verify")


async def test_sessions_that_do_not_end_are_ended(mortal: LocalHerd, table: str) -> None:
    async with session(mortal.app_dsn("n3")) as idle:
        await run(idle, f"BEGIN; SELECT count(*) FROM {table}")
        words = ("--vacuum-full", table, "--nodes", "n3", "--drain", "--grace", "1")
        done = await asyncio.to_thread(mortal.top, "maintain", *words)
        assert done.returncode == 0, done
        with pytest.raises(psycopg.OperationalError):
            await run(idle, "SELECT 1")


@pytest.mark.long
async def test_what_is_not_drained_gives_way_to_what_others_commit(
    mortal: LocalHerd, table: str
) -> None:
    async with (
        session(mortal.app_dsn("n1")) as writer,
        held(mortal, "n2", table) as holder,
    ):
        name = await asyncio.to_thread(begun, mortal, "--vacuum-full", table, "--nodes", "n2")
        await until(lambda: query(mortal.dsn("n2"), _WAITS) == [(1,)], "waits for the holder")
        await run(writer, f"UPDATE {table} SET v = 'first' WHERE id = 1")
        await until(lambda: states(known(mortal, name)) == {"n2": "failed"}, "failed")
        error = (await asyncio.to_thread(known, mortal, name))["parts"][0]["error"]
        assert "drain the member" in error, error
        await run(holder, "ROLLBACK")
    assert (await asyncio.to_thread(mortal.member, "n2"))["state"] == "primary"


@pytest.mark.long
async def test_two_administrators_never_get_two_members_of_three(
    mortal: LocalHerd, table: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        holders = [
            await stack.enter_async_context(held(mortal, node, table))
            for node in ("n1", "n2", "n3")
        ]
        words = ("--vacuum-full", table, "--drain", "--grace", "0")
        names = await asyncio.gather(*(asyncio.to_thread(begun, mortal, *words) for _ in range(2)))
        for turn in range(6):
            await until(lambda: len(_working(mortal)) == 1, "one works")
            for _ in range(5):  # the others would have begun by now
                assert len(await asyncio.to_thread(_working, mortal)) <= 1
                await asyncio.sleep(0.3)
            if turn == 0:
                out = [one["name"] for one in mortal.members() if one["state"] == "maintenance"]
                assert len(out) == 1
                waits = [one["maintenance_waits"] for one in mortal.members()]
                assert sum("no majority" in one for one in waits) == 2, waits
                for holder in holders:
                    await run(holder, "ROLLBACK")
                break
        for name in names:
            await until(lambda name=name: _over(known(mortal, name)), "over")  # type: ignore[misc]
            assert set(states(known(mortal, name)).values()) == {"done"}


def _working(herd: LocalHerd) -> list[str]:
    """The members in maintenance, by the rows that the first node that takes writes has."""
    up = next(one for one in herd.members() if one["state"] == "primary")
    found = query(
        herd.dsn(up["name"]), "SELECT member FROM pgherd_maintenance.part WHERE state = 'working'"
    )
    return [name for (name,) in found]


def _over(run: dict[str, Any]) -> bool:
    return not {"waiting", "working"} & set(states(run).values())


@pytest.mark.long
async def test_nobody_is_taken_while_another_member_is_down(mortal: LocalHerd, table: str) -> None:
    await asyncio.to_thread(mortal.must, "kill", "n3", "--process", "node")
    try:
        words = ("--reindex", table, "--nodes", "n1", "--drain")
        name = await asyncio.to_thread(begun, mortal, *words)
        await until(lambda: "n3" in mortal.member("n1")["maintenance_waits"], "waits")
        shown = await asyncio.to_thread(mortal.top, "status")
        assert "n1: waits for maintenance: without n1 there would be no majority" in shown.stdout
    finally:
        await asyncio.to_thread(mortal.must, "start", "n3")
    await until(lambda: states(known(mortal, name)) == {"n1": "done"}, "done")


@pytest.mark.long
@pytest.mark.parametrize(
    "process", [*(pytest.param(p, marks=pytest.mark.long) for p in ("sidecar", "postgres")), "node"]
)
async def test_a_member_that_dies_meanwhile_is_in_service_again(
    mortal: LocalHerd, table: str, process: str
) -> None:
    async with held(mortal, "n2", table):
        name = await begun_to_work(mortal, table)
        await asyncio.to_thread(mortal.must, "kill", "n2", "--process", process)
        await asyncio.to_thread(mortal.must, "start", "n2")
    await until(lambda: mortal.member("n2")["state"] == "primary", "is back")
    await until(lambda: states(known(mortal, name)) == {"n2": "failed"}, "failed")
    error = (await asyncio.to_thread(known, mortal, name))["parts"][0]["error"]
    assert "interrupted" in error or "not heard of" in error, error
    leftover = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgherd maintenance'"
    assert query(mortal.dsn("n2"), leftover) == [(0,)]
    again = await asyncio.to_thread(mortal.top, "maintain", "--vacuum-full", table, "--drain")
    assert again.returncode == 0, again
    await asyncio.to_thread(mortal.must, "verify")


@pytest.mark.long
async def test_a_member_that_does_not_come_back_is_given_up(mortal: LocalHerd, table: str) -> None:
    async with held(mortal, "n2", table):
        name = await begun_to_work(mortal, table)
        await asyncio.to_thread(mortal.must, "kill", "n2", "--process", "node")
    await until(lambda: states(known(mortal, name)) == {"n2": "failed"}, "failed")
    assert "not heard of" in (await asyncio.to_thread(known, mortal, name))["parts"][0]["error"]
    await asyncio.to_thread(mortal.must, "start", "n2")


@pytest.mark.long
async def test_a_run_can_be_cancelled_although_its_work_is_in_the_way_of_the_order(
    mortal: LocalHerd, table: str
) -> None:
    async with (
        session(mortal.app_dsn("n1")) as writer,
        held(mortal, "n2", table),
    ):
        words = ("--vacuum-full", table, "--nodes", "n2,n3", "--one-by-one", "--drain")
        name = await asyncio.to_thread(begun, mortal, *words, "--grace", "0")
        await until(lambda: states(known(mortal, name))["n2"] == "working", "works")
        await run(writer, f"UPDATE {table} SET v = 'cancelled' WHERE id = 1")
        done = await asyncio.to_thread(mortal.top, "maintenance", "cancel", name)
        assert done.returncode == 0, done
        await until(lambda: _over(known(mortal, name)), "over")
        found = states(await asyncio.to_thread(known, mortal, name))
        assert found["n2"] == "cancelled"
        assert found["n3"] in ("cancelled", "done")
    await until(lambda: mortal.member("n2")["state"] == "primary", "is back")
    assert "no run nosuch" in error_of(mortal.top("maintenance", "cancel", "nosuch"))


@pytest.mark.long
async def test_a_schedule_is_kept_in_the_herd_and_done_by_its_members(
    mortal: LocalHerd, table: str
) -> None:
    words = ("--reindex", table, "--every", "* * * * *", "--name", "nightly", "--nodes", "n1,n2")
    done = await asyncio.to_thread(mortal.top, "maintain", *words, "--one-by-one", "--drain")
    assert done.returncode == 0, done
    try:
        shown = await asyncio.to_thread(mortal.top, "maintenance")
        assert "nightly" in shown.stdout
        assert "* * * * * UTC" in shown.stdout

        def runs() -> list[dict[str, Any]]:
            found = json.loads(mortal.top("maintenance", "--json").stdout)["runs"]
            return [one for one in found if one["schedule"] == "nightly"]

        await until(lambda: any(_over(one) for one in runs()), "a run")
        one = (await asyncio.to_thread(runs))[-1]
        assert states(one) == {"n1": "done", "n2": "done"}
        # One after the other: the second begins when the first has ended.
        first, second = sorted(one["parts"], key=lambda part: str(part["begun"]))
        assert first["ended"] <= second["begun"]
    finally:
        dropped = await asyncio.to_thread(mortal.top, "maintenance", "drop", "nightly")
    assert dropped.returncode == 0, dropped
    assert "no schedule nightly" in error_of(mortal.top("maintenance", "drop", "nightly"))


@pytest.mark.long
async def test_two_of_five_work_at_once_and_never_three(five: LocalHerd) -> None:
    put(five, five.app_dsn("n1"), "CREATE TABLE public.t (id int PRIMARY KEY)")
    async with contextlib.AsyncExitStack() as stack:
        holders = [
            await stack.enter_async_context(held(five, node.name, "public.t"))
            for node in five.nodes()
        ]
        words = ("--vacuum-full", "public.t", "--drain", "--grace", "0")
        name = await asyncio.to_thread(begun, five, *words)
        await until(lambda: len(_working(five)) == 2, "two work")
        for _ in range(10):
            assert len(await asyncio.to_thread(_working, five)) == 2
            await asyncio.sleep(0.3)
        for holder in holders:
            await run(holder, "ROLLBACK")
    await until(lambda: _over(known(five, name)), "over")
    assert set(states(known(five, name)).values()) == {"done"}


def test_only_superusers_write_what_superusers_execute(mortal: LocalHerd) -> None:
    assert mortal.top("maintain", "--sql", "ANALYZE", "--nodes", "n1").returncode == 0
    query(mortal.dsn("n1"), "GRANT pg_write_all_data, pg_read_all_data TO app")
    try:
        dsn = mortal.app_dsn("n1")
        assert query(dsn, "SELECT count(*) FROM pgherd_maintenance.run") == [(0,)]
        for statement in (
            "INSERT INTO pgherd_maintenance.run VALUES ('evil', '', '{}', now(), false)",
            "INSERT INTO pgherd_maintenance.part VALUES ('evil', 'n1', 'waiting', '')",
            "INSERT INTO pgherd_maintenance.schedule VALUES ('e', '', 'UTC', '{}', now(), '')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                query(dsn, statement)
        query(dsn, "UPDATE pgherd_maintenance.run SET work = '{}'")
        spoilt = "SELECT count(*) FROM pgherd_maintenance.run WHERE work = '{}'"
        assert query(mortal.dsn("n1"), spoilt) == [(0,)]
    finally:
        query(mortal.dsn("n1"), "REVOKE pg_write_all_data, pg_read_all_data FROM app")


@pytest.mark.long
def test_a_schema_of_a_user_s_is_not_read_and_one_member_is_not_drained(alone: LocalHerd) -> None:
    query(alone.dsn("n1"), "GRANT CREATE ON DATABASE app TO app")
    put(alone, alone.app_dsn("n1"), "CREATE SCHEMA pgherd_maintenance")
    said = error_of(alone.top("maintain", "--sql", "ANALYZE"))
    assert "is not a superuser's" in said
    query(alone.app_dsn("n1"), "DROP SCHEMA pgherd_maintenance")
    assert "would be no majority" in error_of(alone.top("maintain", "--sql", "ANALYZE", "--drain"))
    done = alone.top("maintain", "--sql", "ANALYZE")
    assert done.returncode == 0, done
