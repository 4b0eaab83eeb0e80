"""Row filters and column lists of a set's tables: what PostgreSQL's own publications would send."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until
from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.local import herd as herds

from .cascades import end, forwarding, three_servers
from .localherd import LocalHerd, error_of, home, put, query, settle
from .plainpostgres import PlainPostgres, forget_set
from .test_subscriptions import caught_up, gid_of, kill_feeders, must, rows, state, stopped

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def name(herd: LocalHerd, subscriber: PlainPostgres) -> Iterator[str]:
    """A schema with two tables; a set and subscriptions of this name are removed with it."""
    found = f"p_{random.getrandbits(32):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE SCHEMA {found};"
        f" CREATE TABLE {found}.item (id int PRIMARY KEY, region varchar(8), amount int,"
        "  secret text);"
        f" CREATE UNIQUE INDEX item_whole ON {found}.item (id, region);"
        f" CREATE TABLE {found}.other (id int PRIMARY KEY, v text);"
        f" INSERT INTO {found}.item SELECT i, CASE i % 3 WHEN 0 THEN 'EU' WHEN 1 THEN 'US' END,"
        "  i, 'secret' || i FROM generate_series(1, 300) i;"
        f" INSERT INTO {found}.other SELECT i, 'v' FROM generate_series(1, 100) i",
    )
    settle(herd)
    yield found
    forget_set(herd, subscriber, found)


def same(
    herd: LocalHerd,
    server: PlainPostgres,
    table: str,
    columns: str = "t::text",
    where: str = "true",
) -> None:
    """What the subscriber has is what a query says of the herd's table."""
    asked = f"SELECT {columns} FROM {table} t"
    wanted = query(herd.dsn("n2"), f"{asked} WHERE {where} ORDER BY 1")
    assert query(server.dsn(), f"{asked} ORDER BY 1") == wanted and wanted


@pytest.mark.long
def test_rows_move_into_a_filter_and_out_of_it(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.event (what text, amount numeric);"
        f" INSERT INTO {name}.event VALUES ('a', 1), ('a', 1), ('b', 2), (NULL, 3);"
        f" CREATE TABLE {name}.part (id int, y int, v text, PRIMARY KEY (id, y))"
        "  PARTITION BY LIST (y);"
        f" CREATE TABLE {name}.part_1 PARTITION OF {name}.part FOR VALUES IN (1);"
        f" CREATE TABLE {name}.part_2 PARTITION OF {name}.part FOR VALUES IN (2);"
        f" INSERT INTO {name}.part SELECT i, 1 + i % 2, 'x' FROM generate_series(1, 20) i",
    )
    settle(herd)
    item = f"{name}.item (id, region, amount) WHERE (region = 'EU' OR region LIKE 'A%')"
    must(
        herd, "set", "create", name, "--table", f"{name}.other WHERE (id < 60)", "--table", item,
        "--table", f"{name}.event WHERE (amount < 3), {name}.part WHERE (y = 1)",
    )  # fmt: skip
    assert "WHERE" in must(herd, "set", "list") and "(id, region, amount)" in must(
        herd, "set", "list"
    )
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    there = query(
        subscriber.dsn(),
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{name}.item'::regclass"
        " AND attnum > 0 ORDER BY attnum",
    )
    assert there == [("id",), ("region",), ("amount",)]

    def equal() -> None:
        settle(herd)
        caught_up(herd, subscriber, name)
        europe = "region = 'EU' OR region LIKE 'A%'"
        same(herd, subscriber, f"{name}.item", "id, region, amount", europe)
        same(herd, subscriber, f"{name}.part", "id, y, v", "y = 1")
        same(herd, subscriber, f"{name}.other", where="id < 60")

    equal()
    same(herd, subscriber, f"{name}.event", where="amount < 3")

    def write(node: str, statement: str) -> None:
        put(herd, herd.app_dsn(node), statement)

    one, two = "n1", "n2"
    write(one, f"UPDATE {name}.item SET region = 'EU' WHERE id IN (1, 4, 7, 10)")  # in
    write(two, f"UPDATE {name}.item SET region = 'US' WHERE id IN (3, 6, 9)")  # out
    write(one, f"UPDATE {name}.item SET region = 'Asia' WHERE id IN (12, 15)")  # stays
    write(two, f"UPDATE {name}.item SET amount = -amount")  # of rows that are there, and not
    write(one, f"UPDATE {name}.item SET secret = 'new'")  # of no column that is there
    write(two, f"UPDATE {name}.item SET region = NULL, amount = 0 WHERE id = 18")
    write(two, f"UPDATE {name}.item SET id = id + 1000 WHERE id BETWEEN 20 AND 30")
    write(one, f"DELETE FROM {name}.item WHERE id BETWEEN 40 AND 60")
    write(one, f"INSERT INTO {name}.item VALUES (2000, 'EU', 1), (2001, 'US', 1), (2002, NULL, 1)")
    write(one, f"UPDATE {name}.part SET y = 3 - y WHERE id < 9")
    write(two, f"UPDATE {name}.part SET v = 'y'")
    write(two, f"UPDATE {name}.event SET amount = amount + 1")
    write(one, f"DELETE FROM {name}.event WHERE what = 'a' AND ctid = (SELECT min(ctid) FROM"
          f" {name}.event WHERE what = 'a')")  # fmt: skip
    write(one, f"UPDATE {name}.other SET v = 'w' WHERE id = 1")
    equal()
    same(herd, subscriber, f"{name}.event", where="amount < 3")
    # Both at once, so that changes are folded; and one that moves out and in again.
    with psycopg.connect(herd.app_dsn(one)) as session:
        session.execute(f"UPDATE {name}.item SET region = 'US', amount = 1 WHERE id = 2000")
        session.execute(f"UPDATE {name}.item SET region = 'EU' WHERE id = 2001")
        session.commit()
        session.execute(f"UPDATE {name}.item SET region = 'EU', amount = 2 WHERE id = 2000")
        session.execute(f"UPDATE {name}.item SET amount = 3 WHERE id IN (2000, 2001, 2002)")
    equal()
    # A new column is not in the list, and is in a table that has none.
    write(one, f"ALTER TABLE {name}.item ADD COLUMN more text")
    write(one, f"ALTER TABLE {name}.other ADD COLUMN more text")
    write(one, f"UPDATE {name}.item SET more = 'm'")
    write(two, f"UPDATE {name}.other SET more = 'm' WHERE id > 50")
    write(one, f"INSERT INTO {name}.item VALUES (3000, 'EU', 1, 's', 'm')")
    write(one, f"INSERT INTO {name}.other VALUES (0, 's', 'm'), (3000, 's', 'm')")
    equal()
    write(one, f"TRUNCATE {name}.item; INSERT INTO {name}.item VALUES (1, 'EU', 1), (2, 'US', 2)")
    equal()
    assert state(herd, name)["state"] == "following"


@pytest.mark.long
def test_a_changed_filter_has_that_table_copied_anew(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    must(
        herd, "set", "create", name, "--tables", f"{name}.other",
        "--table", f"{name}.item WHERE (region = 'EU')",
    )  # fmt: skip
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    same(herd, subscriber, f"{name}.item", where="region = 'EU'")
    query(subscriber.dsn(), f"CREATE INDEX mine ON {name}.item (amount)")
    before = query(subscriber.dsn(), f"SELECT xmin::text FROM {name}.other")
    assert "set alter" in error_of(
        herd.top("set", "add", name, "--table", f"{name}.item WHERE (region = 'US')")
    )
    said = must(herd, "set", "alter", name, "--table", f"{name}.item (id) WHERE (region = 'US')")
    assert "1 table otherwise" in said
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.item VALUES (900, 'US', 1, 's')")

    def becomes(columns: str, where: str) -> None:
        asked = f"SELECT {columns} FROM {name}.item t"
        wanted = query(herd.dsn("n1"), f"{asked} WHERE {where} ORDER BY 1")
        wait_until(
            lambda: query(subscriber.dsn(), f"{asked} ORDER BY 1"),
            lambda found: found == wanted,
            despite=(psycopg.errors.UndefinedColumn,),
            told=lambda: state(herd, name),
        )

    settle(herd)
    becomes("id", "region = 'US'")
    columns = (
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{name}.item'::regclass"
        " AND attnum > 0 AND NOT attisdropped"
    )
    assert query(subscriber.dsn(), columns) == [("id",)]
    assert query(subscriber.dsn(), f"SELECT xmin::text FROM {name}.other") == before
    must(herd, "set", "alter", name, "--table", f"{name}.item")
    becomes("t::text", "true")
    assert query(subscriber.dsn(), f"SELECT xmin::text FROM {name}.other") == before
    said = must(herd, "set", "alter", name, "--table", f"{name}.item")
    assert "nothing otherwise" in said
    caught_up(herd, subscriber, name)
    # One that leaves the set and comes back has all rows, though others were followed meanwhile.
    must(herd, "set", "alter", name, "--table", f"{name}.other WHERE (id < 60)")
    asked = f"SELECT * FROM {name}.other ORDER BY id"
    wanted = query(herd.dsn("n1"), f"SELECT * FROM {name}.other WHERE id < 60 ORDER BY id")
    wait_until(lambda: query(subscriber.dsn(), asked), lambda found: found == wanted)
    must(herd, "set", "remove", name, "--tables", f"{name}.other")
    kept = "SELECT tab FROM pgherd_subscriber.tables"
    wait_until(lambda: query(subscriber.dsn(), kept), lambda seen: seen == [(f"{name}.item",)])
    query(subscriber.dsn(), f"DELETE FROM {name}.other WHERE id = 1")  # it takes writes
    put(herd, herd.app_dsn("n1"), f"UPDATE {name}.other SET v = 'w'")
    caught_up(herd, subscriber, name)
    must(herd, "set", "add", name, "--table", f"{name}.other WHERE (id < 60)")
    wanted = query(herd.dsn("n1"), f"SELECT * FROM {name}.other WHERE id < 60 ORDER BY id")
    wait_until(lambda: query(subscriber.dsn(), asked), lambda found: found == wanted)


@pytest.mark.family(every=6)
@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("item (id) WHERE (amount > 1)", "(id, amount)"),
        ("item WHERE (nothing = 1)", '"nothing" does not exist'),
        ("item (region)", "column id is in the key"),
        ("item WHERE (region = 'EU'", "syntax error"),
        ("item WHERE (random() > 0.5)", "mutable functions are not allowed"),
        ("item WHERE ({name}.mine(id))", "User-defined"),
        ("item WHERE (EXISTS (SELECT))", "WHERE"),
        ("item; DROP TABLE {name}.item", "syntax error"),
        ("computed (id, twice)", "twice"),
        ("computed WHERE (twice > 1)", "computed from others"),
        ("loose (what)", "has no primary key"),
        ("item, TABLES IN SCHEMA {name}", "no table that the herd replicates"),
    ],
)
def test_what_can_not_be_followed_exactly_is_refused(
    herd: LocalHerd, name: str, table: str, error: str
) -> None:
    query(
        herd.app_dsn("n1"),
        f"CREATE FUNCTION {name}.mine(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true';"
        f" CREATE TABLE {name}.computed (id int PRIMARY KEY, twice int"
        "  GENERATED ALWAYS AS (id * 2) STORED);"
        f" CREATE UNIQUE INDEX ON {name}.computed (id, twice);"
        f" CREATE TABLE {name}.loose (what text, more text)",
    )
    settle(herd)
    said = error_of(herd.top("set", "create", name, "--table", f"{name}.{table.format(name=name)}"))
    assert error in said, said
    assert query(herd.dsn("n1"), "SELECT FROM pg_publication WHERE pubname ~ 'pgherd'") == []


@pytest.mark.long
def test_what_the_stream_does_not_tell_any_more_stops(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    must(herd, "set", "create", name, "--table", f"{name}.item (id, amount) WHERE (region = 'EU')")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    # What captures changes goes on to send whole rows until it is made anew, here by a new column.
    query(herd.app_dsn("n1"), f"DROP INDEX {name}.item_whole")
    put(herd, herd.app_dsn("n1"), f"ALTER TABLE {name}.item ADD COLUMN more text")
    put(herd, herd.app_dsn("n2"), f"UPDATE {name}.item SET amount = 7 WHERE id = 3")
    caught_up(herd, subscriber, name)
    same(herd, subscriber, f"{name}.item", "id, amount", "region = 'EU'")
    before = rows(subscriber.dsn(), f"{name}.item")
    query(herd.app_dsn("n2"), f"UPDATE {name}.item SET region = 'EU' WHERE id = 1")
    assert "no unique index" in stopped(herd, name)
    assert rows(subscriber.dsn(), f"{name}.item") == before
    put(herd, herd.app_dsn("n1"), f"CREATE UNIQUE INDEX ON {name}.item (id, region)")
    must(herd, "subscribe", name, "--anew", "--wait")
    caught_up(herd, subscriber, name)
    same(herd, subscriber, f"{name}.item", "id, amount", "region = 'EU'")
    query(herd.app_dsn("n1"), f"ALTER TABLE {name}.item DROP COLUMN amount")
    assert "alters a table of the set" in stopped(herd, name)
    must(herd, "subscribe", name, "--anew")
    assert "set alter" in stopped(herd, name)
    must(herd, "set", "alter", name, "--table", f"{name}.item (id, secret) WHERE (region = 'EU')")
    must(herd, "subscribe", name, "--wait")
    caught_up(herd, subscriber, name)
    same(herd, subscriber, f"{name}.item", "id, secret", "region = 'EU'")


@pytest.mark.long
def test_a_filter_that_fails_stops_before_the_row_on_which_it_does(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    must(herd, "set", "create", name, "--table", f"{name}.item WHERE (100 / id > 1)")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    same(herd, subscriber, f"{name}.item", where="100 / id > 1")
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.item VALUES (0)")
    reason = stopped(herd, name)
    assert "division by zero" in reason and "set alter" in reason
    query(herd.app_dsn("n2"), f"DELETE FROM {name}.item WHERE id = 0")
    must(herd, "set", "alter", name, "--table", f"{name}.item WHERE (id < 50)")
    must(herd, "subscribe", name, "--wait")
    settle(herd)
    caught_up(herd, subscriber, name)
    same(herd, subscriber, f"{name}.item", where="id < 50")


async def _write(dsn: str, table: str, until: asyncio.Event) -> int:
    """Random transactions; the number of those that were told committed."""
    done = 0
    while not until.is_set():
        with contextlib.suppress(psycopg.Error):
            async with await psycopg.AsyncConnection.connect(dsn) as session:
                while not until.is_set():
                    for _ in range(random.randint(1, 4)):
                        await session.execute(_statement(table).encode())
                    await session.commit()
                    done += 1
                    await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    return done


def _statement(table: str) -> str:
    key, region, v = random.randint(1, 40), random.randint(0, 5), random.randint(0, 99)
    return random.choice(
        [
            f"UPDATE {table} SET region = {region} WHERE id = {key}",
            f"UPDATE {table} SET region = {region}, v = {v} WHERE id = {key}",
            f"UPDATE {table} SET v = {v} WHERE id BETWEEN {key} AND {key + 3}",
            f"UPDATE {table} SET id = id + 20 WHERE id = {key} AND NOT EXISTS"
            f" (SELECT FROM {table} WHERE id = {key + 20})",
            f"DELETE FROM {table} WHERE id = {key}",
            f"INSERT INTO {table} VALUES ({key}, {region}, {v}, 's') ON CONFLICT DO NOTHING",
            f"INSERT INTO {table} VALUES ({key}, {region}, {v}, 's') ON CONFLICT (id) DO UPDATE"
            " SET region = excluded.region",
        ]
    )


async def _look(subscriber: PlainPostgres, name: str) -> tuple[int, set[tuple[int, int]]]:
    async with await psycopg.AsyncConnection.connect(subscriber.dsn()) as session:
        await session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor = await session.execute("SELECT gid FROM pgherd_subscriber.standing")
        ((gid,),) = await cursor.fetchall()
        cursor = await session.execute(f"SELECT id, v FROM {name}.move".encode())
        found = await cursor.fetchall()
    assert len(dict(found)) == len(found)
    return gid, set(found)


async def _states(herd: LocalHerd, table: str, begin: int, last: int) -> AsyncIterator[Any]:
    """The rows of the herd's table at each GID, by its log."""
    description = herds.load(home(herd))
    log = ChangeLog(
        [AdminClient(description.node(one).admin_socket) for one in description.databases]
    )
    found: dict[int, dict[str, int]] = {}
    gid = begin
    async for changes in log.between(begin, last):
        for one in changes:
            if one.table != table:
                continue
            if one.gid != gid:
                yield gid, found
                gid = one.gid
            key = int((one.key or {})["id"] or 0)
            values = {name: int(v or 0) for name, v in (one.values or {}).items() if name != "s"}
            if one.op == "delete":
                found.pop(key, None)
            elif one.op == "insert":
                found[key] = values
            else:
                found[key] |= values
    yield gid, found


@pytest.mark.long
async def test_each_state_is_the_filtered_table_at_its_gid_while_feeders_die(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.move (id int PRIMARY KEY, region int, v int, s text);"
        f" CREATE UNIQUE INDEX ON {name}.move (id, region)",
    )
    settle(herd)
    begin = query(herd.dsn("n1"), "SELECT pgherd.last_gid()")[0][0]
    must(herd, "set", "create", name, "--table", f"{name}.move (id, v) WHERE (region % 2 = 0)")
    enough = asyncio.Event()
    writers = [
        asyncio.create_task(_write(herd.app_dsn(node), f"{name}.move", enough))
        for node in ("n1", "n2", "n3")
    ]
    try:
        await asyncio.to_thread(
            must, herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait"
        )
        seen: dict[int, set[tuple[int, int]]] = {}
        for number in range(120):
            gid, found = await _look(subscriber, name)
            assert seen.setdefault(gid, found) == found and gid == max(seen)
            if number % 30 == 29:
                kill_feeders(herd)
            await asyncio.sleep(0.1)
    finally:
        enough.set()
        done = await asyncio.gather(*writers)
    settle(herd)
    await asyncio.to_thread(caught_up, herd, subscriber, name)
    gid, found = await _look(subscriber, name)
    seen[gid] = found
    assert sum(done) > 50 and len(seen) > 10
    waiting = sorted(seen)
    before: set[tuple[int, int]] = set()
    async for at, table in _states(herd, f"{name}.move", begin, gid):
        while waiting and waiting[0] < at:
            assert seen[waiting.pop(0)] == before, f"before GID {at}"
        before = {(key, row["v"]) for key, row in table.items() if row["region"] % 2 == 0}
    assert all(seen[left] == before for left in waiting)


@pytest.mark.long
def test_a_cascade_has_the_filter_and_a_failover_keeps_it(
    herd: LocalHerd, work_directory: Path, name: str
) -> None:
    item = f"{name}.item (id, amount) WHERE (region = 'EU')"
    with three_servers(herd, work_directory, ("sel-a", "sel-b", "sel-c")) as servers:
        a, b, _ = (server.dsn(user="app") for server in servers)
        hops = list(zip(servers[:2], (f"{name}_a", f"{name}_b"), strict=True))
        with forwarding(work_directory, a):
            must(herd, "set", "create", name, "--tables", f"{name}.other", "--table", item)
            must(herd, "subscribe", name, "--name", f"{name}_a", "--to", a, "--forward", "--wait")
            by = ("--name", f"{name}_b", "--to", b, "--provider", f"{name}_a", "--wait")
            must(herd, "subscribe", name, *by)

            def equal(where: str, columns: str = "id, amount") -> None:
                settle(herd)
                for server, hop in hops:
                    caught_up(herd, server, hop)
                    same(herd, server, f"{name}.item", columns, where)

            query(herd.app_dsn("n2"), f"UPDATE {name}.item SET region = 'EU' WHERE id < 5")
            query(herd.app_dsn("n2"), f"UPDATE {name}.item SET region = 'US' WHERE id = 6")
            query(herd.app_dsn("n2"), f"UPDATE {name}.item SET amount = 9 WHERE id < 50")
            equal("region = 'EU'")
            kept = query(servers[1].dsn(), f"SELECT xmin::text FROM {name}.other WHERE id = 1")
            new = f"{name}.item (id, amount, secret) WHERE (region = 'US')"
            must(herd, "set", "alter", name, "--table", new)
            there = (
                "SELECT FROM pg_attribute WHERE attname = 'secret' AND attrelid ="
                f" to_regclass('{name}.item')"
            )
            wait_until(
                lambda: all(query(server.dsn(), there) for server, _ in hops),
                told=lambda: must(herd, "subscriptions"),
            )
            query(herd.app_dsn("n3"), f"UPDATE {name}.item SET region = 'US' WHERE id < 3")
            equal("region = 'US'", "id, amount, secret")
            again = query(servers[1].dsn(), f"SELECT xmin::text FROM {name}.other WHERE id = 1")
            assert again == kept
        put(herd, herd.app_dsn("n3"), f"UPDATE {name}.item SET region = 'EU' WHERE id < 30")
        caught_up(herd, servers[0], f"{name}_a")
        places = ["--at", f"{name}_a={a}", "--at", f"{name}_b={b}", "--yes"]
        done = herd.without_directory("failover", *places)
        assert done.returncode == 0, done.stderr
        assert f"{name}_b is level" in done.stdout
        for server, _ in hops:
            same(herd, server, f"{name}.item", "id, amount, secret", "region = 'US'")
        query(a, f"INSERT INTO {name}.item VALUES (5000)")
        assert gid_of(servers[0], f"{name}_a") == gid_of(servers[1], f"{name}_b")
        end(herd, name, *servers)
