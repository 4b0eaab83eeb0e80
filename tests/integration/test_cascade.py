"""Subscribers that feed others, over several hops: each shows the set at a GID of the herd."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from patience import wait_until

from .cascades import Forward, end, forwarding, schema_to_follow, three_servers
from .localherd import LocalHerd, error_of, put, query, refuses_to, settle
from .plainpostgres import PlainPostgres
from .test_subscriptions import EVENT_AND_PART, caught_up, gid_of, must, rows, state, stopped

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def servers(herd: LocalHerd, work_directory: Path) -> Iterator[list[PlainPostgres]]:
    """Three: the first hop, the second one, the third one."""
    with three_servers(herd, work_directory, ("hop-a", "hop-b", "hop-c")) as found:
        yield found


@pytest.fixture
def forwards(servers: list[PlainPostgres], work_directory: Path) -> Iterator[list[Forward]]:
    """The processes beside the first two."""
    dsns = [server.dsn(user="app") for server in servers[:2]]
    with forwarding(work_directory, *dsns) as found:
        yield found


@pytest.fixture
def name(herd: LocalHerd, servers: list[PlainPostgres]) -> Iterator[str]:
    """A schema with a table, and a set of it."""
    with schema_to_follow(herd, servers, "c") as found:
        yield found


def chain(herd: LocalHerd, servers: list[PlainPostgres], name: str) -> None:
    """herd -> a -> b -> c, of a set that is there."""
    a, b, c = (server.dsn(user="app") for server in servers)
    must(herd, "subscribe", name, "--name", f"{name}_a", "--to", a, "--forward", "--wait")
    must(
        herd, "subscribe", name, "--name", f"{name}_b", "--to", b, "--provider", f"{name}_a",
        "--forward", "--wait",
    )  # fmt: skip
    must(
        herd, "subscribe", name, "--name", f"{name}_c", "--to", c, "--provider", f"{name}_b",
        "--wait",
    )  # fmt: skip


def equal(herd: LocalHerd, servers: list[PlainPostgres], name: str, *tables: str) -> None:
    settle(herd)
    for server, hop in zip(servers, "abc", strict=True):
        caught_up(herd, server, f"{name}_{hop}")
        for table in tables or ("t",):
            wanted = rows(herd.dsn("n2"), f"{name}.{table}")
            assert rows(server.dsn(), f"{name}.{table}") == wanted, (hop, table)


def age(server: PlainPostgres, name: str) -> list[tuple[object, ...]]:
    """Another one if the rows were copied anew."""
    return query(server.dsn(), f"SELECT xmin::text, ctid::text FROM {name}.t WHERE id = 50")


def test_all_that_a_set_has_comes_over_three_hops(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    dsn = herd.app_dsn("n1")
    query(
        dsn,
        f"CREATE TABLE {name}.item (id bigserial PRIMARY KEY, note varchar(40), tags text[],"
        " twice bigint GENERATED ALWAYS AS (id * 2) STORED);"
        f" INSERT INTO {name}.item (note, tags) SELECT 'n' || i, ARRAY[i::text, NULL]"
        "   FROM generate_series(1, 500) i;" + EVENT_AND_PART.format(name),
    )
    settle(herd)
    tables = ("t", "item", "event", "part")
    named = ",".join(f"{name}.{one}" for one in tables)
    must(herd, "set", "create", name, "--tables", named, "--sequences", f"{name}.*")
    chain(herd, servers, name)
    equal(herd, servers, name, *tables)
    work = (
        f"UPDATE {name}.item SET note = NULL, tags = '{{}}' WHERE id < 10",
        f"UPDATE {name}.item SET id = id + 5000 WHERE id < 5",
        f"DELETE FROM {name}.item WHERE id > 400 AND id < 450",
        f"DELETE FROM {name}.event WHERE what = 'a'",
        f"INSERT INTO {name}.event VALUES ('b', 3), ('b', 3)",
        f"UPDATE {name}.part SET y = 2 WHERE y = 1",
        f"CREATE INDEX ON {name}.item (note)",
        f"ALTER TABLE {name}.t ADD COLUMN more int",
    )
    for statement in work:
        settle(herd)
        query(herd.app_dsn("n2"), statement)
    settle(herd)
    query(herd.app_dsn("n3"), f"UPDATE {name}.t SET more = id WHERE id < 50")
    query(herd.app_dsn("n3"), f"TRUNCATE {name}.event")
    query(herd.app_dsn("n3"), f"INSERT INTO {name}.item (note) VALUES ('last')")
    equal(herd, servers, name, *tables)
    ((greatest,),) = query(dsn, f"SELECT max(id) FROM {name}.item WHERE id < 5000")
    for server in servers:
        last = query(server.dsn(), f"SELECT last_value FROM {name}.item_id_seq")
        assert last[0][0] >= greatest
    for hop, provider in (("a", ""), ("b", f"{name}_a"), ("c", f"{name}_b")):
        found = state(herd, f"{name}_{hop}")
        assert (found["state"], found["provider"]) == ("following", provider), found
        assert found["tables"] == [4, 4]


@pytest.mark.long
def test_a_large_transaction_goes_over_three_hops_as_one(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    chain(herd, servers, name)
    query(
        herd.app_dsn("n1"),
        f"INSERT INTO {name}.t SELECT i, repeat(i::text, 100) FROM generate_series(1000, 41000) i",
    )
    seen = set()
    wanted = caught_up(herd, servers[0], f"{name}_a")
    while gid_of(servers[2], f"{name}_c") < wanted:
        seen.add(query(servers[2].dsn(), f"SELECT count(*) FROM {name}.t")[0][0])
    assert seen <= {100, 100 + 40001}
    equal(herd, servers, name)


def test_tables_join_and_leave_the_set_of_a_whole_cascade(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    chain(herd, servers, name)
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.u (id int PRIMARY KEY); INSERT INTO {name}.u VALUES (1)",
    )
    settle(herd)
    must(herd, "set", "add", name, "--tables", f"{name}.u")
    query(herd.app_dsn("n1"), f"INSERT INTO {name}.u VALUES (2)")
    wait_until(
        lambda: all(state(herd, f"{name}_{hop}")["tables"] == [2, 2] for hop in "abc"),
        told=lambda: must(herd, "subscriptions"),
    )
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.u VALUES (3)")
    equal(herd, servers, name, "t", "u")
    must(herd, "set", "remove", name, "--tables", f"{name}.t")
    wait_until(
        lambda: all(state(herd, f"{name}_{hop}")["tables"] == [1, 1] for hop in "abc"),
        told=lambda: must(herd, "subscriptions"),
    )
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.u VALUES (4)")
    equal(herd, servers, name, "u")
    for server in servers:
        shown = "SELECT tab FROM pgherd_subscriber.tables"
        wait_until(partial(is_what, server.dsn(), shown, [(f"{name}.u",)]))
        query(server.dsn(user="app"), f"DELETE FROM {name}.t")  # it is free now


def is_what(dsn: str, statement: str, wanted: list[tuple[str]]) -> bool:
    return query(dsn, statement) == wanted


@pytest.mark.long
def test_one_server_forwards_two_sets(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    a, b = (server.dsn(user="app") for server in servers[:2])
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.u (id int PRIMARY KEY)")
    for table in "tu":
        one = f"{name}_{table}"
        must(herd, "set", "create", one, "--tables", f"{name}.{table}")
        must(herd, "subscribe", one, "--name", f"{one}_a", "--to", a, "--forward", "--wait")
        by = ("--name", f"{one}_b", "--to", b, "--provider", f"{one}_a", "--wait")
        must(herd, "subscribe", one, *by)
    try:
        refused = ("subscribe", f"{name}_u", "--name", f"{name}_u_b", "--provider", f"{name}_t_a")
        assert "there is no subscription" in error_of(herd.top(*refused))
        query(herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1000)")
        put(herd, herd.app_dsn("n3"), f"INSERT INTO {name}.u VALUES (1)")
        for table in "tu":
            caught_up(herd, servers[1], f"{name}_{table}_b")
            assert rows(b, f"{name}.{table}") == rows(herd.dsn("n1"), f"{name}.{table}")
        must(herd, "unsubscribe", f"{name}_u_b")  # the other one goes on
        query(herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1001)")
        query(servers[1].dsn(user="app"), f"INSERT INTO {name}.u VALUES (2)")
        caught_up(herd, servers[1], f"{name}_t_b")
        assert rows(b, f"{name}.t") == rows(herd.dsn("n2"), f"{name}.t")
    finally:
        for table in "tu":
            end(herd, f"{name}_{table}")


def test_providers_change_and_a_hop_leaves_without_a_copy(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    chain(herd, servers, name)
    before = [age(server, name) for server in servers]
    for number, provider in enumerate(("herd", f"{name}_a", f"{name}_b", "herd", f"{name}_b")):
        query(herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES ({1000 + number})")
        must(herd, "subscribe", name, "--name", f"{name}_c", "--provider", provider)
        query(herd.app_dsn("n2"), f"DELETE FROM {name}.t WHERE id = {number + 1}")
        equal(herd, servers, name)
    refused = error_of(herd.top("unsubscribe", f"{name}_b"))
    assert f"{name}_c are fed from {name}_b" in refused and "--followers-to" in refused
    refused = error_of(herd.top("subscribe", name, "--name", f"{name}_b", "--no-forward"))
    assert f"{name}_c are fed from {name}_b" in refused
    must(herd, "unsubscribe", f"{name}_b", "--followers-to", f"{name}_a")
    put(herd, herd.app_dsn("n3"), f"INSERT INTO {name}.t VALUES (2000)")
    caught_up(herd, servers[2], f"{name}_c")
    assert rows(servers[2].dsn(), f"{name}.t") == rows(herd.dsn("n2"), f"{name}.t")
    assert state(herd, f"{name}_c")["provider"] == f"{name}_a"
    assert [age(server, name) for server in servers] == before
    query(servers[1].dsn(user="app"), f"INSERT INTO {name}.t VALUES (1)")  # it is free now


def test_a_hop_is_lost_for_good_and_those_below_it_go_on(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    """The process beside b hears nothing of the order that takes c away from it."""
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    chain(herd, servers, name)
    equal(herd, servers, name)
    before = [age(server, name) for server in servers]
    servers[0].stop("immediate")
    try:
        query(herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (1000)")
        must(herd, "subscribe", name, "--name", f"{name}_c", "--provider", "herd")
        caught_up(herd, servers[2], f"{name}_c")
        assert query(servers[1].dsn(), f"SELECT id FROM {name}.t WHERE id = 1000") == []
        assert query(servers[2].dsn(), f"SELECT id FROM {name}.t WHERE id = 1000") == [(1000,)]
        must(herd, "subscribe", name, "--name", f"{name}_c", "--provider", f"{name}_b")
        must(herd, "unsubscribe", f"{name}_a", "--followers-to", "herd", "--herd-only")
        query(herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (1001)")
        for server, hop in ((servers[1], "b"), (servers[2], "c")):
            caught_up(herd, server, f"{name}_{hop}")
            assert rows(server.dsn(), f"{name}.t") == rows(herd.dsn("n2"), f"{name}.t")
    finally:
        servers[0].start()
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1002)")
    for server, hop in ((servers[1], "b"), (servers[2], "c")):  # a is back, with its old orders
        caught_up(herd, server, f"{name}_{hop}")
        assert rows(server.dsn(), f"{name}.t") == rows(herd.dsn("n2"), f"{name}.t")
    assert [age(server, name) for server in servers] == before


def test_a_provider_whose_log_begins_too_late_is_told_and_another_one_goes_on(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    a, c = servers[0], servers[2]
    for server, hop in ((a, "a"), (c, "c")):
        words = ("--name", f"{name}_{hop}", "--to", server.dsn(user="app"), "--wait")
        must(herd, "subscribe", name, *words)
    before = age(c, name)
    c.stop()
    try:
        query(herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (1000)")
        caught_up(herd, a, f"{name}_a")
        must(herd, "subscribe", name, "--name", f"{name}_a", "--forward", "--wait")
        must(herd, "subscribe", name, "--name", f"{name}_c", "--provider", f"{name}_a")
    finally:
        c.start()
    reason = stopped(herd, f"{name}_c")
    assert "begins after GID" in reason and "`herd` for the members" in reason
    must(herd, "subscribe", name, "--name", f"{name}_c", "--provider", "herd")
    caught_up(herd, c, f"{name}_c")
    must(herd, "subscribe", name, "--name", f"{name}_c", "--provider", f"{name}_a")
    query(herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (1001)")
    caught_up(herd, c, f"{name}_c")
    assert rows(c.dsn(), f"{name}.t") == rows(herd.dsn("n2"), f"{name}.t")
    assert age(c, name) == before


def follow(
    herd: LocalHerd, directory: Path, name: str, a: PlainPostgres, b: PlainPostgres
) -> tuple[str, ...]:
    """Have ``b`` follow ``a``, which forwards; return the words that name the follower."""
    by = ("--name", f"{name}_b", "--provider", f"{name}_a")
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    words = ("--to", a.dsn(user="app"), "--forward", "--wait")
    must(herd, "subscribe", name, "--name", f"{name}_a", *words)
    with forwarding(directory, a.dsn(user="app")):
        must(herd, "subscribe", name, *by, "--to", b.dsn(user="app"), "--wait")
    return by


def test_a_follower_that_was_out_of_reach_when_it_ended_takes_writes_when_it_is_back(
    herd: LocalHerd, servers: list[PlainPostgres], work_directory: Path, name: str
) -> None:
    """Its last order may not have reached it, and the process that hears of its end may be new."""
    a, b = servers[:2]
    by = follow(herd, work_directory, name, a, b)
    of_b = f"FROM pgherd_subscriber.orders WHERE ordered->>'name' = '{name}_b'"
    held, ordered = f"SELECT state {of_b}", f"SELECT ordered->'revision' {of_b}"
    before = query(a.dsn(), ordered)
    b.stop("immediate")
    try:
        must(herd, "subscribe", name, *by)
        wait_until(lambda: query(a.dsn(), ordered) != before)  # a later order
        must(herd, "unsubscribe", f"{name}_b")
        wait_until(lambda: query(a.dsn(), held) in ([], [("ended",)]))
        with forwarding(work_directory, a.dsn(user="app")) as (process,):
            wait_until(lambda: f"{name}_b" in process.said or query(a.dsn(), held) == [])
    finally:
        b.start()
    with forwarding(work_directory, a.dsn(user="app")):
        wait_until(lambda: query(a.dsn(), held) == [])
    query(b.dsn(user="app"), f"INSERT INTO {name}.t VALUES (1000)")


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_a_follower_hears_of_its_end_though_another_one_has_its_name(
    herd: LocalHerd, servers: list[PlainPostgres], work_directory: Path, name: str, *, seen: bool
) -> None:
    """The new order was written over the end, or over the order whose end nobody had seen."""
    a, b, c = servers
    by = follow(herd, work_directory, name, a, b)
    ended = "SELECT FROM pgherd_subscriber.orders WHERE state = 'ended'"
    again = f"SELECT FROM pgherd_subscriber.orders WHERE name = '{name}_b' AND state <> 'ended'"
    b.stop("immediate")
    try:
        if not seen:
            a.stop("immediate")
        must(herd, "unsubscribe", f"{name}_b")
        if seen:
            wait_until(lambda: query(a.dsn(), ended))
        must(herd, "subscribe", name, *by, "--to", c.dsn(user="app"))
        if seen:
            wait_until(lambda: query(a.dsn(), again))
    finally:
        b.start()
        if not seen:
            a.start()
    with forwarding(work_directory, a.dsn(user="app")):
        caught_up(herd, c, f"{name}_b")
        wait_until(lambda: not query(a.dsn(), ended))
        query(b.dsn(user="app"), f"INSERT INTO {name}.t VALUES (1000)")
        put(herd, herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (1001)")
        caught_up(herd, c, f"{name}_b")
    assert rows(c.dsn(), f"{name}.t") == rows(herd.dsn("n2"), f"{name}.t")


def test_a_follower_that_was_ended_in_the_herd_only_hears_nothing_of_it(
    herd: LocalHerd, servers: list[PlainPostgres], work_directory: Path, name: str
) -> None:
    """It took writes when it was back, beside the herd that had taken its move back."""
    a, b, c = servers
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    words = ("--to", a.dsn(user="app"), "--forward", "--wait")
    must(herd, "subscribe", name, "--name", f"{name}_a", *words)
    by, add = ("--provider", f"{name}_a"), f"INSERT INTO {name}.t VALUES (1000)"
    with forwarding(work_directory, a.dsn(user="app")):
        for hop, at in (("b", b), ("c", c)):
            to = ("--name", f"{name}_{hop}", "--to", at.dsn(user="app"), "--wait")
            must(herd, "subscribe", name, *to, *by)
    ended = "SELECT ordered->>'name' FROM pgherd_subscriber.orders WHERE state = 'ended'"
    b.stop("immediate")
    c.stop("immediate")
    try:
        must(herd, "unsubscribe", f"{name}_b", "--herd-only")
        must(herd, "unsubscribe", f"{name}_c")
        wait_until(lambda: (f"{name}_c",) in query(a.dsn(), ended))
    finally:
        b.start()
        c.start()
    with forwarding(work_directory, a.dsn(user="app")):
        wait_until(lambda: not query(a.dsn(), ended))
    query(c.dsn(user="app"), add)
    assert refuses_to(b.dsn(user="app"), add)


def test_only_neighbours_reach_each_other(
    herd: LocalHerd, servers: list[PlainPostgres], work_directory: Path, name: str
) -> None:
    """Names that libpq finds in the home directory of one process are known to that one alone."""
    homes = []
    for hop, port in (("b", servers[1].port), ("c", servers[2].port)):
        homes.append(work_directory / f"home-of-{hop}")
        homes[-1].mkdir(exist_ok=True)
        (homes[-1] / ".pg_service.conf").write_text(
            f"[hop-{hop}]\nhost=127.0.0.1\nport={port}\ndbname=app\nuser=app\n"
        )
    a, b = (server.dsn(user="app") for server in servers[:2])
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    assert "hop-b" in error_of(
        herd.top("subscribe", name, "--name", f"{name}_b", "--to", "service=hop-b")
    )
    with forwarding(work_directory, a, b, homes=(homes[0], homes[1])) as processes:
        must(herd, "subscribe", name, "--name", f"{name}_a", "--to", a, "--forward", "--wait")
        for hop, provider, more in (("b", "a", ["--forward"]), ("c", "b", [])):
            must(
                herd, "subscribe", name, "--name", f"{name}_{hop}", "--to", f"service=hop-{hop}",
                "--provider", f"{name}_{provider}", "--wait", *more,
            )  # fmt: skip
        query(herd.app_dsn("n3"), f"INSERT INTO {name}.t VALUES (2000)")
        equal(herd, servers, name)
        by_force = "SET pgherd_subscriber.feeding = on; "
        query(servers[2].dsn(), f"{by_force} INSERT INTO {name}.t VALUES (3000)")
        query(herd.app_dsn("n3"), f"INSERT INTO {name}.t VALUES (3000)")
        assert "duplicate key" in stopped(herd, f"{name}_c")
        query(servers[2].dsn(), f"{by_force} DELETE FROM {name}.t WHERE id = 3000")
        must(herd, "subscribe", name, "--name", f"{name}_c")
        equal(herd, servers, name)
        must(herd, "unsubscribe", f"{name}_c")
        there = "SELECT to_regclass('pgherd_subscriber.standing')"
        wait_until(lambda: query(servers[2].dsn(), there) == [(None,)])
        assert [one.end() for one in processes] == [0, 0]  # a signal is their orderly end
    query(servers[2].dsn(user="app"), f"INSERT INTO {name}.t VALUES (4000)")


def reaches(found: Callable[[], list[tuple[int]]], gid: int) -> bool:
    return found()[0][0] >= gid


def test_a_forwarder_keeps_what_is_needed_within_limits(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    chain(herd, servers, name)
    kept = "SELECT coalesce(sum(length(body)), 0) FROM pgherd_subscriber.log"
    begins = "SELECT begins FROM pgherd_subscriber.forwarding"
    equal(herd, servers, name)
    for server in servers[:2]:
        gid = caught_up(herd, servers[2], f"{name}_c")
        query(herd.app_dsn("n1"), f"UPDATE {name}.t SET v = v")
        found = partial(query, server.dsn(), begins)
        wait_until(partial(reaches, found, gid), told=found)
    must(herd, "subscribe", name, "--name", f"{name}_c", "--keep-bytes", "1M")
    equal(herd, servers, name)
    servers[2].stop()
    try:
        noise = "(SELECT string_agg(md5(random()::text || t.id || g), '')"
        noise += " FROM generate_series(1, 60) g)"
        for _ in range(40):
            query(herd.app_dsn("n1"), f"UPDATE {name}.t SET v = {noise}")
        caught_up(herd, servers[1], f"{name}_b")
        wait_until(lambda: query(servers[1].dsn(), kept)[0][0] < (1 << 20) + (1 << 18))
        wait_until(lambda: state(herd, f"{name}_c")["state"] == "unreachable")
    finally:
        servers[2].start()
    reason = stopped(herd, f"{name}_c")
    assert "begins after GID" in reason and "--anew" in reason
    again = ["--keep-bytes", "1G", "--anew", "--wait"]
    must(herd, "subscribe", name, "--name", f"{name}_c", *again)
    equal(herd, servers, name)


@pytest.mark.long
def test_a_damaged_log_of_a_forwarder_is_noticed(
    herd: LocalHerd, servers: list[PlainPostgres], forwards: list[Forward], name: str
) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    chain(herd, servers, name)
    equal(herd, servers, name)
    servers[2].stop()
    try:
        for number in (1000, 1001, 1002):
            query(herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES ({number})")
            caught_up(herd, servers[1], f"{name}_b")
        query(
            servers[1].dsn(),
            "DELETE FROM pgherd_subscriber.log WHERE n = (SELECT max(n) - 1 FROM"
            " pgherd_subscriber.log)",
        )
    finally:
        servers[2].start()
    assert "is damaged (row" in stopped(herd, f"{name}_c")
    must(herd, "subscribe", name, "--name", f"{name}_c", "--provider", f"{name}_a")
    equal(herd, servers, name)
