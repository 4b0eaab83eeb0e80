"""The old herd comes back: after a switchover or a failover it follows the new origin."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until

from .herds import as_subscriber, caught_up
from .localherd import (
    LocalHerd,
    drop_schemas,
    error_of,
    free_port_base,
    put,
    query,
    settle,
    standing,
)
from .plainpostgres import plain_postgres
from .test_subscriptions import caught_up as plain_caught_up
from .test_subscriptions import end, must, rows
from .test_switchover import refuses

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def west(work_directory: Path) -> Iterator[LocalHerd]:
    """The herd in the other region."""
    with standing(LocalHerd(work_directory / "west", free_port_base())) as found:
        yield found


@pytest.fixture
def name(herd: LocalHerd, west: LocalHerd) -> Iterator[str]:
    """A schema with two tables, which the herd in the west follows."""
    found = f"b_{random.getrandbits(32):x}"
    query(
        herd.app_dsn("n1"),
        f"CREATE SCHEMA {found};"
        f" CREATE TABLE {found}.t (id int PRIMARY KEY, v text);"
        f" CREATE TABLE {found}.still (id int PRIMARY KEY, v text);"
        f" INSERT INTO {found}.t SELECT i, 'v' || i FROM generate_series(1, 500) i;"
        f" INSERT INTO {found}.still SELECT i, 'v' || i FROM generate_series(1, 500) i",
    )
    settle(herd)
    must(herd, "set", "create", found, "--tables", f"{found}.*")
    must(herd, "subscribe", found, "--name", f"{found}_w", "--to", as_subscriber(west), "--wait")
    yield found
    for one in (herd, west):
        for subscription in (f"{found}_w", f"{found}_e", f"{found}_c"):
            one.top("unsubscribe", subscription, "--herd-only")
        one.top("set", "drop", found)
    for one in (herd, west):
        settle(one)
        drop_schemas(one.dsn("n1"), "pgherd_subscriber", found)
        settle(one)


def is_same(first: LocalHerd, second: LocalHerd, name: str) -> None:
    for one in (first, second):
        settle(one)
    for table in ("t", "still"):
        wanted = rows(first.dsn("n1"), f"{name}.{table}")
        for node in second.nodes():
            assert rows(node.dsn, f"{name}.{table}") == wanted, (node.name, table)


def versions(dsn: str, table: str) -> list[tuple[Any, ...]]:
    return query(dsn, f"SELECT id, xmin::text FROM {table} WHERE id > 100 ORDER BY id")


def all_refuse(herd: LocalHerd, name: str) -> bool:
    return all(refuses(node.app_dsn, name) for node in herd.nodes())


def who_only_writes_is_refused(dsn: str, name: str) -> None:
    """He may say that he feeds the table, and does not own it."""
    with (
        psycopg.connect(dsn) as session,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        session.execute("SET ROLE pg_write_all_data")
        session.execute("SET pgherd_subscriber.feeding = on")
        session.execute(f"INSERT INTO {name}.t (id) VALUES (-1)".encode())


def test_a_set_moves_to_another_herd_and_back(herd: LocalHerd, west: LocalHerd, name: str) -> None:
    """The old herd takes no writes at any time in between, and unchanged rows are not written."""
    must(herd, "switchover", name, "--to", f"{name}_w", "--yes")
    settle(west)
    assert all_refuse(herd, name)
    who_only_writes_is_refused(herd.dsn("n2"), name)
    for node in west.nodes():
        assert not refuses(node.app_dsn, name), node.name
    put(west, west.app_dsn("n2"), f"UPDATE {name}.t SET v = 'west' WHERE id < 9")
    before = [versions(herd.dsn("n2"), f"{name}.{one}") for one in ("t", "still")]
    must(west, "set", "create", name, "--tables", f"{name}.*")
    must(west, "subscribe", name, "--name", f"{name}_e", "--to", as_subscriber(herd), "--wait")
    is_same(west, herd, name)
    assert [versions(herd.dsn("n2"), f"{name}.{one}") for one in ("t", "still")] == before
    assert all_refuse(herd, name)
    # The rest of the move goes, and the old herd is a subscriber like others.
    end(herd, f"{name}_w")
    must(herd, "set", "drop", name)
    settle(herd)
    assert all_refuse(herd, name)
    query(west.app_dsn("n3"), f"INSERT INTO {name}.t VALUES (1000, 'more')")
    put(west, west.app_dsn("n1"), f"ALTER TABLE {name}.still ADD COLUMN more int")
    caught_up(west, herd, f"{name}_e")
    is_same(west, herd, name)
    must(west, "switchover", name, "--to", f"{name}_e", "--yes")
    settle(herd)
    assert all_refuse(west, name)
    for node in herd.nodes():
        assert not refuses(node.app_dsn, name), node.name
    is_same(herd, west, name)
    assert "there is nothing to undo" in error_of(west.top("switchover", name, "--undo"))


def test_numbers_go_on_behind_those_of_rows_after_each_move(
    herd: LocalHerd, west: LocalHerd, name: str
) -> None:
    """No set can have the sequences, as herds follow none. Each member deals its own numbers."""
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.n (id serial PRIMARY KEY, at text)")
    must(herd, "set", "add", name, "--tables", f"{name}.n")
    number(herd, name, 5)
    shown = f"SELECT FROM pgherd_subscriber.tables WHERE tab = '{name}.n' AND NOT staged"
    wait_until(lambda: query(west.dsn("n1"), shown))
    query(
        west.app_dsn("n1"),
        f"CREATE SEQUENCE {name}.n_id_seq OWNED BY {name}.n.id;"
        f" ALTER TABLE {name}.n ALTER id SET DEFAULT nextval('{name}.n_id_seq')",
    )
    settle(west)
    must(herd, "switchover", name, "--to", f"{name}_w", "--yes")
    settle(west)
    number(west, name, 20)
    must(west, "set", "create", name, "--tables", f"{name}.*")
    must(west, "subscribe", name, "--name", f"{name}_e", "--to", as_subscriber(herd), "--wait")
    end(herd, f"{name}_w")
    must(herd, "set", "drop", name)
    must(west, "switchover", name, "--to", f"{name}_e", "--yes")
    settle(herd)
    number(herd, name, 5)


def number(herd: LocalHerd, name: str, rows_each: int) -> None:
    """Rows that the default gives numbers, through each member."""
    for node in herd.nodes():
        for _ in range(rows_each):
            query(node.app_dsn, f"INSERT INTO {name}.n (at) VALUES ('{node.name}')")
    settle(herd)


@pytest.mark.long
def test_after_a_failover_all_follow_the_new_origin_herd(
    herd: LocalHerd, west: LocalHerd, name: str, work_directory: Path
) -> None:
    """A plain server without a copy; the old herd loses what it had beyond, which is named."""
    port = free_port_base() + 94
    with plain_postgres(work_directory / "third", port, herd.dsn("n1")) as third:
        third_to = ("--to", third.dsn(user="app"), "--wait")
        must(herd, "subscribe", name, "--name", f"{name}_c", *third_to)
        put(herd, herd.app_dsn("n2"), f"UPDATE {name}.t SET v = 'last' WHERE id = 1")
        caught_up(herd, west, f"{name}_w")
        plain_caught_up(herd, third, f"{name}_c")
        places = [f"--at={name}_w={as_subscriber(west)}", f"--at={name}_c={third.dsn(user='app')}"]
        done = herd.without_directory("failover", *places, "--yes")
        assert done.returncode == 0, done.stderr
        assert f"{name}_w takes writes" in done.stdout, done.stdout
        gid = done.stdout.partition("at GID ")[2].split()[0].rstrip(";,.")
        # The old herd lives, and does not know.
        put(herd, herd.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (2000, 'beyond')")
        settle(west)
        put(west, west.app_dsn("n3"), f"UPDATE {name}.t SET v = 'west' WHERE id = 2")
        still = versions(third.dsn(), f"{name}.still")
        must(west, "set", "create", name, "--tables", f"{name}.*")
        must(west, "subscribe", name, "--name", f"{name}_3", *third_to)
        plain_caught_up(west, third, f"{name}_3")
        assert versions(third.dsn(), f"{name}.still") == still
        for table in ("t", "still"):
            assert rows(third.dsn(), f"{name}.{table}") == rows(west.dsn("n1"), f"{name}.{table}")
        ((last,),) = query(herd.dsn("n1"), "SELECT pgherd.last_gid()")
        said = must(herd, "changes", "--after", gid, "--through", str(last))
        beyond = [json.loads(line) for line in said.splitlines()]
        assert [one["values"]["v"] for one in beyond if one["table"] == f"{name}.t"] == ["beyond"]
        must(west, "subscribe", name, "--name", f"{name}_e", "--to", as_subscriber(herd), "--wait")
        is_same(west, herd, name)
        assert all_refuse(herd, name)
        put(west, west.app_dsn("n1"), f"INSERT INTO {name}.t VALUES (3000, 'all')")
        caught_up(west, herd, f"{name}_e")
        is_same(west, herd, name)
        end(west, f"{name}_3")
