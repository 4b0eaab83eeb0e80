"""Plain servers that follow a set of tables: what they show is always the set at some GID."""

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from patience import wait_until
from pgherd_sidecar.subscribing.forwarder import farewell
from pgherd_sidecar.subscribing.ordering import subscriptions
from pgherd_sidecar.subscribing.state.connections import connect, require_schema
from pgherd_sidecar.subscribing.state.errors import MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import ForwardLog
from pgherd_sidecar.subscribing.state.herd import FENCED, HerdSequence, HerdTable, Subscription
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.numbering import Numbering
from pgherd_sidecar.subscribing.state.orders import HeldOrder, Report
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session
from pgherd_sidecar.tables.sessions import connect as connect_member

from .localherd import (
    LocalHerd,
    command_line,
    drop_schemas,
    error_of,
    home,
    pids_in,
    put,
    query,
    refuses_to,
    settle,
)
from .plainpostgres import PlainPostgres, forget_set

pytestmark = pytest.mark.timeout(600)

EVENT_AND_PART = """
CREATE TABLE {0}.event (what text, amount numeric);
CREATE TABLE {0}.part (id int, y int, v text, PRIMARY KEY (id, y)) PARTITION BY LIST (y);
CREATE TABLE {0}.part_1 PARTITION OF {0}.part FOR VALUES IN (1);
CREATE TABLE {0}.part_2 PARTITION OF {0}.part FOR VALUES IN (2);
INSERT INTO {0}.event VALUES ('a', 1), ('a', 1), (NULL, 2);
INSERT INTO {0}.part VALUES (1, 1, 'x'), (2, 2, 'y');
"""
"""One table without a key, and one that has partitions."""


@pytest.fixture
def name(herd: LocalHerd, subscriber: PlainPostgres) -> Iterator[str]:
    """A schema, a set and a subscription of this name, which are removed."""
    found = f"s_{random.getrandbits(32):x}"
    put(herd, herd.app_dsn("n1"), f"CREATE SCHEMA {found}")
    yield found
    forget_set(herd, subscriber, found)


def must(herd: LocalHerd, *words: str) -> str:
    done = herd.top(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def end(herd: LocalHerd, name: str) -> None:
    """End a subscription, again as long as a feeder has not let go of it."""
    for _ in range(5):
        done = herd.top("unsubscribe", name)
        if done.returncode == 0:
            return
        assert "repeat `pgherd unsubscribe`" in done.stderr, done.stderr
    raise AssertionError(done.stderr)


def feeders(herd: LocalHerd) -> list[int]:
    return [
        pid
        for pid in pids_in(home(herd))
        if "pgherd_sidecar.subscribing.feeder" in command_line(pid)
    ]


def kill_feeders(herd: LocalHerd) -> None:
    for pid in feeders(herd):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def state(herd: LocalHerd, name: str) -> dict[str, Any]:
    found = json.loads(must(herd, "subscriptions", "--json"))
    return next(one for one in found if one["name"] == name)


def gid_of(server: PlainPostgres, subscription: str) -> int:
    """The GID that it shows; 0 if that is nothing yet."""
    statement = "SELECT gid FROM pgherd_subscriber.standing WHERE subscription = %s"
    with contextlib.suppress(psycopg.errors.UndefinedTable, psycopg.OperationalError):
        with psycopg.connect(server.dsn()) as session:
            found = session.execute(statement, (subscription,)).fetchone()
        return int(found[0] or 0) if found else 0
    return 0


def caught_up(herd: LocalHerd, server: PlainPostgres, subscription: str) -> int:
    """Wait until it shows all that the herd has committed by now; the GID of that."""
    wanted = max(query(node.dsn, "SELECT pgherd.last_gid()")[0][0] for node in herd.nodes())
    wait_until(
        partial(gid_of, server, subscription),
        lambda seen: seen >= wanted,
        told=lambda: (wanted, must(herd, "subscriptions")),
    )
    return int(wanted)


def stopped(herd: LocalHerd, name: str) -> str:
    found = wait_until(
        lambda: state(herd, name),
        lambda found: found["state"] == "stopped",
        told=lambda: must(herd, "subscriptions"),
    )
    reason: str = found["reason"]
    return reason


def heard(herd: LocalHerd, name: str) -> None:
    """Wait until all members know from where the subscriber needs the log: n3 may be its feeder."""
    known = f"SELECT confirmed FROM pgherd_subscriptions.subscription WHERE name = '{name}'"
    for node in herd.nodes():
        wait_until(partial(query, node.dsn, known), lambda seen: seen not in ([], [(None,)]))


def rows(dsn: str, table: str) -> list[tuple[Any, ...]]:
    return query(dsn, f"SELECT t::text FROM {table} t ORDER BY 1")


def follow(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")


def test_a_plain_server_shows_a_set_and_follows_it(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = herd.app_dsn("n1")
    query(
        dsn,
        f"CREATE TABLE {name}.item (id int PRIMARY KEY, note varchar(40), tags text[],"
        " at timestamptz DEFAULT now(), twice int GENERATED ALWAYS AS (id * 2) STORED);"
        f" INSERT INTO {name}.item (id, note, tags) SELECT i, 'n' || i, ARRAY[i::text, NULL]"
        "   FROM generate_series(1, 1000) i;" + EVENT_AND_PART.format(name),
    )
    settle(herd)
    follow(herd, subscriber, name)
    tables = [f"{name}.{one}" for one in ("item", "event", "part")]
    for table in tables:
        assert rows(subscriber.dsn(), table) == rows(dsn, table)
    query(herd.app_dsn("n2"), f"UPDATE {name}.item SET note = NULL, tags = '{{}}' WHERE id < 10")
    query(herd.app_dsn("n2"), f"UPDATE {name}.item SET id = id + 5000 WHERE id < 5")
    query(herd.app_dsn("n3"), f"DELETE FROM {name}.item WHERE id > 900 AND id < 1000")
    query(herd.app_dsn("n2"), f"DELETE FROM {name}.event WHERE what = 'a'")
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.event VALUES ('b', 3)")
    put(herd, herd.app_dsn("n2"), f"UPDATE {name}.part SET y = 2 WHERE y = 1")
    caught_up(herd, subscriber, name)
    for table in tables:
        assert rows(subscriber.dsn(), table) == rows(dsn, table)
    query(herd.app_dsn("n3"), f"TRUNCATE {name}.event")
    query(herd.app_dsn("n3"), f"CREATE INDEX ON {name}.item (note)")
    put(herd, herd.app_dsn("n3"), f"INSERT INTO {name}.item (id) VALUES (0)")
    caught_up(herd, subscriber, name)
    for table in tables:
        assert rows(subscriber.dsn(), table) == rows(dsn, table)
    found = state(herd, name)
    assert found["state"] == "following" and found["tables"] == [3, 3]


@pytest.mark.long
def test_rows_are_found_by_keys_of_types_of_users(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """Equal is what their own operators say, which are not in pg_catalog."""
    types = f"CREATE EXTENSION seg SCHEMA {name}; CREATE TYPE {name}.place AS (s text, n int)"
    query(subscriber.dsn(), f"CREATE SCHEMA {name} AUTHORIZATION app; {types}")
    query(
        herd.dsn("n1"),
        f"{types}; CREATE TABLE {name}.reading (s {name}.seg, p {name}.place, v text,"
        " PRIMARY KEY (p, s));"
        f" CREATE TABLE {name}.bag (s {name}.seg, p {name}.place, v text);"
        f" INSERT INTO {name}.reading VALUES ('1 .. 2', '(a,1)', 'a'), ('3', '(,)', 'b')",
    )
    settle(herd)
    follow(herd, subscriber, name)
    tables = [f"{name}.{one}" for one in ("reading", "bag")]
    dsn = herd.dsn("n2")
    query(dsn, f"INSERT INTO {name}.bag SELECT s, p, v FROM {name}.reading")
    query(dsn, f"UPDATE {name}.reading SET v = v || 'x'")
    query(dsn, f"UPDATE {name}.bag SET p = NULL WHERE v = 'a'")
    put(herd, dsn, f"DELETE FROM {name}.reading WHERE v = 'ax'")
    caught_up(herd, subscriber, name)
    for table in tables:
        assert rows(subscriber.dsn(), table) == rows(dsn, table) != []


@pytest.mark.long
def test_who_may_read_all_tables_sees_no_password(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    follow(herd, subscriber, name)
    asked = "SELECT dsn FROM pgherd_subscriptions.subscription"
    role = f"{name}_reader"
    query(herd.dsn("n1"), f"CREATE ROLE {role}; GRANT pg_read_all_data TO {role}")
    try:
        assert query(herd.dsn("n1"), asked)
        assert query(herd.dsn("n1"), f"SET ROLE {role}; {asked}") == []
    finally:
        query(herd.dsn("n1"), f"DROP ROLE {role}")


@pytest.mark.long
def test_a_name_is_used_again_that_was_ended_in_the_herd_only(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.item (id int PRIMARY KEY)")
    follow(herd, subscriber, name)
    to = ("--to", subscriber.dsn(user="app"))
    must(herd, "subscribe", name, *to, "--anew", "--wait")
    must(herd, "unsubscribe", name, "--herd-only")
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.item VALUES (1)")
    must(herd, "subscribe", name, *to, "--wait")
    settle(herd)
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.item") == [("(1)",)]


@pytest.mark.long
def test_rows_are_not_written_by_others_and_an_end_gives_the_tables_back(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.t (id int PRIMARY KEY); INSERT INTO {name}.t VALUES (1)",
    )
    settle(herd)
    follow(herd, subscriber, name)
    app = subscriber.dsn(user="app")
    for statement in (f"INSERT INTO {name}.t VALUES (2)", f"TRUNCATE {name}.t"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="follows a herd"):
            query(app, statement)
    must(herd, "unsubscribe", name)
    query(app, f"INSERT INTO {name}.t VALUES (2)")
    assert rows(app, f"{name}.t") == [("(1)",), ("(2)",)]
    assert query(app, "SELECT to_regnamespace('pgherd_subscriber')") == [(None,)]
    wait_until(
        lambda: all(
            "subscription" not in one["hold"]
            for node in herd.members()
            for one in node["log_holds"]
        )
    )


@pytest.mark.long
def test_tables_join_and_leave_a_set(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    dsn = herd.app_dsn("n1")
    put(herd, dsn, f"CREATE TABLE {name}.a (id int PRIMARY KEY); INSERT INTO {name}.a VALUES (1)")
    follow(herd, subscriber, name)
    put(herd, dsn, f"CREATE TABLE {name}.b (id int PRIMARY KEY); INSERT INTO {name}.b VALUES (2)")
    must(herd, "set", "add", name, "--tables", f"{name}.b")
    query(dsn, f"INSERT INTO {name}.a VALUES (3); INSERT INTO {name}.b VALUES (3)")
    must(herd, "set", "remove", name, "--tables", f"{name}.a")
    query(dsn, f"INSERT INTO {name}.b VALUES (4)")
    wait_until(
        lambda: query(subscriber.dsn(), "SELECT tab FROM pgherd_subscriber.tables"),
        lambda seen: seen == [(f"{name}.b",)],
        told=lambda: state(herd, name),
    )
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.b") == [("(2)",), ("(3)",), ("(4)",)]
    assert ("(1)",) in rows(subscriber.dsn(), f"{name}.a")
    query(subscriber.dsn(user="app"), f"DELETE FROM {name}.a")
    must(herd, "set", "create", f"{name}_2", "--tables", f"{name}.a,{name}.b")
    assert "twice" in error_of(herd.top("set", "merge", name, name))
    assert "subscribe to set" in error_of(herd.top("set", "merge", f"{name}_2", name))
    must(herd, "set", "merge", name, f"{name}_2")
    assert "there is no set" in error_of(herd.top("set", "drop", f"{name}_2"))
    wait_until(
        lambda: state(herd, name)["tables"],
        lambda seen: seen == [2, 2],
        told=lambda: state(herd, name),
    )
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.a") == rows(dsn, f"{name}.a")


@pytest.mark.long
def test_a_table_that_has_the_rows_is_not_copied(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """One that has followed to the same rows before goes on with them."""
    tables = ("same", "other", "empty")
    query(
        herd.app_dsn("n1"),
        f"CREATE TABLE {name}.same (id int PRIMARY KEY, v numeric, twice int"
        "  GENERATED ALWAYS AS (id * 2) STORED);"
        f" CREATE TABLE {name}.other (id int PRIMARY KEY, v text);"
        f" CREATE TABLE {name}.empty (id int PRIMARY KEY);"
        f" INSERT INTO {name}.same SELECT i, i / 7.0 FROM generate_series(1, 500) i;"
        f" INSERT INTO {name}.other SELECT i, 'v' FROM generate_series(1, 500) i",
    )
    settle(herd)
    follow(herd, subscriber, name)
    must(herd, "unsubscribe", name)
    query(subscriber.dsn(), f"UPDATE {name}.other SET v = 'w' WHERE id = 7")
    query(subscriber.dsn(), f"INSERT INTO {name}.empty VALUES (1)")
    versions = "SELECT DISTINCT xmin::text FROM {}.{}"
    before = {table: query(subscriber.dsn(), versions.format(name, table)) for table in tables}
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    after = {table: query(subscriber.dsn(), versions.format(name, table)) for table in tables}
    assert after["same"] == before["same"] and after["other"] != before["other"]
    query(herd.app_dsn("n2"), f"UPDATE {name}.same SET v = 0 WHERE id = 9")
    put(herd, herd.app_dsn("n2"), f"DELETE FROM {name}.other WHERE id = 9")
    caught_up(herd, subscriber, name)
    for table in tables:
        assert rows(subscriber.dsn(), f"{name}.{table}") == rows(herd.dsn("n1"), f"{name}.{table}")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            query(subscriber.dsn(user="app"), f"DELETE FROM {name}.{table}")
    must(herd, "unsubscribe", name)
    query(subscriber.dsn(user="app"), f"DELETE FROM {name}.same")


@pytest.mark.long
def test_a_copy_that_is_given_up_leaves_a_table_that_takes_writes(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    app = subscriber.dsn(user="app")
    query(herd.app_dsn("n1"), f"CREATE TABLE {name}.a (id int PRIMARY KEY)")
    query(herd.app_dsn("n1"), f"CREATE TABLE {name}.b (id int PRIMARY KEY)")
    query(herd.app_dsn("n1"), f"INSERT INTO {name}.a VALUES (1)")
    query(app, f"CREATE SCHEMA {name}; CREATE TABLE {name}.a (id int PRIMARY KEY)")
    query(app, f"INSERT INTO {name}.a VALUES (1)")
    query(app, f"CREATE TABLE {name}.b (other text)")  # so the copy never becomes whole
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    must(herd, "subscribe", name, "--to", app)
    assert "other columns" in stopped(herd, name)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query(app, f"INSERT INTO {name}.a VALUES (2)")
    must(herd, "unsubscribe", name)
    query(app, f"INSERT INTO {name}.a VALUES (2)")


@pytest.mark.long
@pytest.mark.parametrize(
    "shape",
    ["PARTITION BY LIST (id)", "child", "view", "UNLOGGED"],
    ids=["partitioned", "children", "view", "unlogged"],
)
def test_what_is_no_plain_table_is_refused(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, shape: str
) -> None:
    app = subscriber.dsn(user="app")
    query(herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    query(app, f"CREATE SCHEMA {name}")
    if shape == "view":
        query(app, f"CREATE VIEW {name}.t AS SELECT 1 AS id")
    elif shape == "UNLOGGED":
        query(app, f"CREATE UNLOGGED TABLE {name}.t (id int PRIMARY KEY)")
    elif shape == "child":
        query(
            app,
            f"CREATE TABLE {name}.t (id int PRIMARY KEY);"
            f" CREATE TABLE {name}.c () INHERITS ({name}.t)",
        )
    else:
        query(
            app,
            f"CREATE TABLE {name}.t (id int PRIMARY KEY) {shape};"
            f" CREATE TABLE {name}.p PARTITION OF {name}.t DEFAULT",
        )
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    must(herd, "subscribe", name, "--to", app)
    assert "plain tables only" in stopped(herd, name)


def test_another_value_of_a_unique_column_leaves_what_refers_to_the_row(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """The log has it as a delete and an insert of the row."""
    dsn, there = herd.app_dsn("n1"), subscriber.dsn(user="app")
    query(
        dsn,
        f"CREATE TABLE {name}.parent (id int PRIMARY KEY, code int UNIQUE);"
        f" INSERT INTO {name}.parent VALUES (1, 1), (2, 2), (3, 3)",
    )
    settle(herd)
    follow(herd, subscriber, name)
    query(
        there,
        f"CREATE TABLE {name}.child (parent int REFERENCES {name}.parent ON DELETE CASCADE);"
        f" ALTER TABLE {name}.parent ADD note text;"
        f" INSERT INTO {name}.child VALUES (1), (3)",
    )
    query(there, f"SET pgherd_subscriber.feeding = on; UPDATE {name}.parent SET note = 'mine'")
    query(dsn, f"UPDATE {name}.parent SET code = 10 WHERE id = 1")
    query(dsn, f"BEGIN; DELETE FROM {name}.parent WHERE id = 2;"
               f" INSERT INTO {name}.parent VALUES (2, 20), (4, 4); COMMIT")  # fmt: skip
    put(herd, dsn, f"DELETE FROM {name}.parent WHERE id = 3")
    caught_up(herd, subscriber, name)
    assert rows(there, f"{name}.parent") == [("(1,10,mine)",), ("(2,20,mine)",), ("(4,4,)",)]
    assert rows(there, f"{name}.child") == [("(1)",)]
    query(there, f"CREATE UNIQUE INDEX ON {name}.parent (code)")
    query(dsn, f"BEGIN; UPDATE {name}.parent SET code = 0 WHERE id = 2;"
               f" UPDATE {name}.parent SET code = 20 WHERE id = 4;"
               f" UPDATE {name}.parent SET code = 4 WHERE id = 2; COMMIT")  # fmt: skip
    settle(herd)
    caught_up(herd, subscriber, name)
    assert rows(there, f"{name}.parent") == [("(1,10,mine)",), ("(2,4,)",), ("(4,20,)",)]


def test_a_large_transaction_leaves_rows_that_come_again(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """The log has all that it deletes before what it inserts."""
    dsn, there = herd.app_dsn("n1"), subscriber.dsn(user="app")
    query(
        dsn,
        f"CREATE TABLE {name}.parent (id int PRIMARY KEY, fill text,"
        " code int UNIQUE DEFERRABLE INITIALLY DEFERRED);"
        f" INSERT INTO {name}.parent SELECT i, repeat('x', 200), i FROM generate_series(1, 9000) i",
    )
    query(  # in these keys other text may be equal
        dsn,
        f"CREATE TABLE {name}.price (amount numeric PRIMARY KEY, fill text);"
        f" INSERT INTO {name}.price SELECT i, repeat('x', 200) FROM generate_series(1, 9000) i",
    )
    settle(herd)
    follow(herd, subscriber, name)
    query(
        there,
        f"ALTER TABLE {name}.price ADD note text;"
        f" CREATE TABLE {name}.child (parent int REFERENCES {name}.parent ON DELETE CASCADE);"
        f" ALTER TABLE {name}.parent ADD note text DEFAULT 'mine';"
        f" INSERT INTO {name}.child VALUES (1), (7), (8999), (9000)",
    )
    query(
        dsn,
        f"BEGIN; UPDATE {name}.parent SET code = code + 100000;"
        f" DELETE FROM {name}.parent WHERE id = 7; COMMIT;"
        f" UPDATE {name}.price SET amount = amount + 0.00",
    )
    settle(herd)
    caught_up(herd, subscriber, name)
    prices = f"SELECT count(*), min(amount::text) FROM {name}.price"
    assert query(there, prices) == query(dsn, prices) == [(9000, "1.00")]
    found = f"SELECT count(*), min(code), max(code), count(note) FROM {name}.parent"
    assert query(there, found) == [(8999, 100001, 109000, 8999)]
    assert rows(there, f"{name}.child") == [("(1)",), ("(8999)",), ("(9000)",)]
    # Unique values move between rows, so that they are deleted after all; nothing else is lost.
    query(there, f"DROP TABLE {name}.child; CREATE UNIQUE INDEX ON {name}.parent (code)")
    put(herd, dsn, f"UPDATE {name}.parent SET code = 209001 - code")
    caught_up(herd, subscriber, name)
    assert query(there, f"SELECT count(*), sum(id * code::int8) FROM {name}.parent") == query(
        dsn, f"SELECT count(*), sum(id * code::int8) FROM {name}.parent"
    )


@pytest.mark.long
@pytest.mark.family(every=5)
@pytest.mark.parametrize(
    ("event", "work"),
    [
        ("INSERT", "INSERT INTO {0}.t VALUES (7, 'b')"),
        ("UPDATE", "UPDATE {0}.t SET v = 'b' WHERE id = 1"),
        ("DELETE", "DELETE FROM {0}.t WHERE id = 1"),
        ("DELETE", "TRUNCATE {0}.t"),
        ("DELETE", "DELETE FROM {0}.bag WHERE id = 1"),
    ],
)
def test_a_trigger_that_drops_rows_stops_it(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, event: str, work: str
) -> None:
    dsn, app = herd.app_dsn("n1"), subscriber.dsn(user="app")
    query(
        dsn,
        f"CREATE TABLE {name}.t (id int PRIMARY KEY, v text); CREATE TABLE {name}.bag (id int);"
        f" INSERT INTO {name}.t VALUES (1, 'a'), (2, 'a'); INSERT INTO {name}.bag VALUES (1), (1)",
    )
    settle(herd)
    follow(herd, subscriber, name)
    query(
        app,
        f"CREATE FUNCTION {name}.no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    for table in ("t", "bag"):
        query(
            app,
            f"CREATE TRIGGER no BEFORE {event} ON {name}.{table} FOR EACH ROW"
            f" EXECUTE FUNCTION {name}.no()",
        )
    before = rows(app, f"{name}.t")
    query(dsn, work.format(name))
    assert "trigger" in stopped(herd, name)
    assert rows(app, f"{name}.t") == before
    for table in ("t", "bag"):
        query(app, f"DROP TRIGGER no ON {name}.{table}")
    must(herd, "subscribe", name, "--to", app)
    caught_up(herd, subscriber, name)
    for table in ("t", "bag"):
        assert rows(app, f"{name}.{table}") == rows(dsn, f"{name}.{table}")


@pytest.mark.family(every=4)
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(
            "UPDATE pgherd_subscriber.tables SET definition = '{{}}' WHERE subscription = '{0}'",
            marks=pytest.mark.long,
        ),
        "UPDATE pgherd_subscriber.tables SET definition = jsonb_set(definition, '{{key}}', '[9]')"
        " WHERE subscription = '{0}'",
        pytest.param(
            "ALTER TABLE pgherd_subscriber.standing RENAME COLUMN gid TO other",
            marks=pytest.mark.long,
        ),
        "ALTER TABLE pgherd_subscriber.standing ALTER COLUMN gid TYPE text",
    ],
)
def test_a_damaged_schema_stops_its_subscriptions_only(
    herd: LocalHerd, subscriber: PlainPostgres, work_directory: Path, name: str, harm: str
) -> None:
    dsn, to = herd.app_dsn("n1"), subscriber.dsn(user="app")
    put(herd, dsn, f"CREATE TABLE {name}.t (id int PRIMARY KEY); INSERT INTO {name}.t VALUES (1)")
    follow(herd, subscriber, name)
    query(subscriber.dsn("postgres"), f"CREATE DATABASE {name} OWNER app")
    other = subscriber.dsn(name, user="app")
    try:
        must(herd, "subscribe", name, "--to", other, "--name", f"{name}_2", "--wait")
        before = wait_until(lambda: feeders(herd), lambda before: len(before) >= len(herd.nodes()))
        query(to, harm.format(name))
        query(
            subscriber.dsn(),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgherd subscription' AND datname = 'app'",
        )
        assert any(
            words in stopped(herd, name) for words in ("pgherd_subscriber", "subscriber says")
        )
        query(dsn, f"INSERT INTO {name}.t VALUES (2)")
        wait_until(lambda: rows(other, f"{name}.t"), lambda seen: seen == [("(1)",), ("(2)",)])
        assert feeders(herd) == before
        drop_schemas(to, "pgherd_subscriber")
        must(herd, "subscribe", name, "--to", to, "--anew", "--wait")
        assert rows(to, f"{name}.t") == rows(dsn, f"{name}.t")
    finally:
        must(herd, "unsubscribe", f"{name}_2")
        query(subscriber.dsn("postgres"), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.long
def test_a_member_that_can_not_feed_leaves_it_to_another(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """The members of the herd's own table say so; only when all do is it stopped."""
    dsn, to = herd.app_dsn("n1"), subscriber.dsn(user="app")
    put(herd, dsn, f"CREATE TABLE {name}.t (id int PRIMARY KEY, v text)")
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    must(herd, "subscribe", name, "--to", to, "--keep-bytes", "1M", "--wait")
    caught_up(herd, subscriber, name)
    heard(herd, name)
    herd.must("kill", "n3", "--process", "node")
    subscriber.stop()
    try:
        for number in range(1, 4):
            query(
                dsn,
                f"INSERT INTO {name}.t SELECT {number * 1000} + i, repeat(md5(i::text), 60)"
                " FROM generate_series(1, 500) i",
            )
        known = f"SELECT member FROM pgherd_subscriptions.unable WHERE subscription = '{name}'"
        wait_until(
            lambda: query(herd.dsn("n1"), f"{known} ORDER BY 1"),
            lambda seen: seen == [("n1",), ("n2",)],
            told=lambda: state(herd, name),
        )
        time.sleep(6)  # a member looks every five seconds
        assert state(herd, name)["state"] == "unreachable"  # n3 may have the log
    finally:
        subscriber.start()
        herd.must("start", "n3")
    caught_up(herd, subscriber, name)
    assert rows(to, f"{name}.t") == rows(dsn, f"{name}.t")
    assert state(herd, name)["state"] == "following"
    wait_until(lambda: not query(herd.dsn("n1"), known))


@pytest.mark.long
def test_a_connection_string_comes_from_stdin_or_the_environment(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    monkeypatch.setenv("PGHERD_SUBSCRIBER", subscriber.dsn(user="app"))
    must(herd, "subscribe", name, "--wait")
    assert state(herd, name)["state"] == "following"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("ALTER INDEX {0}.a RENAME TO z", marks=pytest.mark.long),
        pytest.param("ALTER TABLE {0}.a ADD n int DEFAULT 5", marks=pytest.mark.long),
        pytest.param("ALTER TABLE {0}.a RENAME TO z", marks=pytest.mark.long),
        pytest.param("DROP TABLE {0}.a", marks=pytest.mark.long),
        "ALTER TYPE {0}.mood RENAME VALUE 'sad' TO 'blue'",
        pytest.param("DROP TABLE {0}.part_1", marks=pytest.mark.long),
        pytest.param("TRUNCATE {0}.part_1", marks=pytest.mark.long),
    ],
)
def test_ddl_stops_it_before_its_gid_and_a_new_copy_goes_on(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, command: str
) -> None:
    dsn = herd.app_dsn("n1")
    query(
        dsn,
        f"CREATE TYPE {name}.mood AS ENUM ('sad');"
        f" CREATE TABLE {name}.a (id int PRIMARY KEY, m {name}.mood);"
        f" INSERT INTO {name}.a VALUES (1, 'sad')",
    )
    if "part_1" in command:
        query(
            dsn,
            f"CREATE TABLE {name}.part (id int PRIMARY KEY) PARTITION BY LIST (id);"
            f" CREATE TABLE {name}.part_1 PARTITION OF {name}.part FOR VALUES IN (1);"
            f" INSERT INTO {name}.part VALUES (1)",
        )
    query(
        subscriber.dsn(user="app"),
        f"CREATE SCHEMA {name}; CREATE TYPE {name}.mood AS ENUM ('sad', 'blue')",
    )
    settle(herd)
    follow(herd, subscriber, name)
    query(dsn, f"INSERT INTO {name}.a VALUES (2)")
    query(dsn, command.format(name))
    reason = stopped(herd, name)
    assert command.format(name)[:20] in reason and "--anew" in reason
    assert rows(subscriber.dsn(), f"{name}.a") == [("(1,sad)",), ("(2,)",)]
    if command == "DROP TABLE {0}.a" or "RENAME TO" in command:
        must(herd, "set", "remove", name, "--tables", f"{name}.a")
        put(herd, dsn, f"CREATE TABLE {name}.b (id int PRIMARY KEY)")
        must(herd, "set", "add", name, "--tables", f"{name}.b")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--anew", "--wait")
    for (table,) in query(
        herd.dsn("n1"), f"SELECT tab FROM pgherd_subscriptions.set_table WHERE set = '{name}'"
    ):
        assert rows(subscriber.dsn(), table) == rows(dsn, table)


def test_a_table_that_was_emptied_and_dropped_does_not_stop_a_set_with_partitions(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = herd.app_dsn("n1")
    query(dsn, EVENT_AND_PART.format(name))
    query(dsn, f"CREATE TABLE {name}.stage (id int); CREATE TABLE {name}.load (id int)")
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.part")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    waits = "relation = 'pgherd_subscriber.standing'::regclass AND NOT granted"
    with psycopg.connect(subscriber.dsn()) as session:
        session.execute("LOCK TABLE pgherd_subscriber.standing")
        wait_until(lambda: query(subscriber.dsn(), f"SELECT FROM pg_locks WHERE {waits}"))
        query(dsn, f"INSERT INTO {name}.stage VALUES (1)")
        query(dsn, f"TRUNCATE {name}.stage")
        query(dsn, f"DROP TABLE {name}.stage")
        query(dsn, f"TRUNCATE {name}.load; DROP TABLE {name}.load")
        put(herd, dsn, f"INSERT INTO {name}.part VALUES (3, 1, 'z')")
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.part") == rows(dsn, f"{name}.part")
    assert state(herd, name)["state"] == "following"


def test_a_column_that_becomes_computed_is_computed_after_a_new_copy(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = herd.app_dsn("n1")
    query(
        dsn,
        f"CREATE TABLE {name}.t (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (id) STORED);"
        f" INSERT INTO {name}.t VALUES (1, 10), (2, 20)",
    )
    settle(herd)
    follow(herd, subscriber, name)
    query(
        dsn,
        f"ALTER TABLE {name}.t DROP a, DROP b, ADD a int GENERATED ALWAYS AS (id * 3) STORED,"
        " ADD b int GENERATED ALWAYS AS (id * 4) STORED",
    )
    stopped(herd, name)
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--anew", "--wait")
    assert rows(subscriber.dsn(), f"{name}.t") == rows(dsn, f"{name}.t") != []


def assert_same_rows(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    """The subscriber follows, and its table ``t`` has the rows of the herd's."""
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.t") == rows(herd.app_dsn("n1"), f"{name}.t")
    assert state(herd, name)["state"] == "following"


@pytest.mark.long
def test_a_table_that_goes_by_other_words_than_its_name_stops_it(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = herd.app_dsn("n1")
    query(
        dsn,
        f"CREATE TABLE {name}.base (id int);"
        f" CREATE TABLE {name}.t (PRIMARY KEY (id)) INHERITS ({name}.base);"
        f" INSERT INTO {name}.t VALUES (1)",
    )
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    query(
        dsn,
        f"DROP TABLE {name}.base CASCADE; CREATE TABLE {name}.t (id int PRIMARY KEY);"
        f" INSERT INTO {name}.t VALUES (2)",
    )
    assert "DROP TABLE" in stopped(herd, name)
    assert rows(subscriber.dsn(), f"{name}.t") == [("(1)",)]
    must(herd, "subscribe", name, "--anew", "--wait")
    assert rows(subscriber.dsn(), f"{name}.t") == [("(2)",)]
    query(dsn, f"SELECT pgherd.set_local('{name}.t')")
    assert "set_local" in stopped(herd, name)


@pytest.mark.long
def test_a_column_more_comes_while_another_table_joins(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = herd.app_dsn("n1")
    put(herd, dsn, f"CREATE TABLE {name}.a (id int PRIMARY KEY); CREATE TABLE {name}.b (id int)")
    must(herd, "set", "create", name, "--tables", f"{name}.a")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--wait")
    with psycopg.connect(subscriber.dsn()) as before:
        before.execute(f"LOCK TABLE {name}.a IN SHARE MODE".encode())  # the feeder waits for it
        query(dsn, f"INSERT INTO {name}.a VALUES (1); INSERT INTO {name}.b VALUES (1)")
        query(dsn, f"ALTER TABLE {name}.a ADD COLUMN price numeric(10, 2)")
        put(herd, dsn, f"INSERT INTO {name}.a VALUES (2, 1.5)")
        must(herd, "set", "add", name, "--tables", f"{name}.b")
    wait_until(
        lambda: state(herd, name),
        lambda seen: seen["tables"] == [2, 2] and seen["state"] == "following",
        hopeless=lambda: state(herd, name)["state"] == "stopped",
    )
    put(herd, dsn, f"INSERT INTO {name}.b VALUES (2)")
    caught_up(herd, subscriber, name)
    for table in ("a", "b"):
        assert rows(subscriber.dsn(), f"{name}.{table}") == rows(dsn, f"{name}.{table}") != []


@pytest.mark.long
def test_who_writes_while_rows_come_into_their_place_leaves_none(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    table = f"CREATE TABLE {name}.t (id int PRIMARY KEY)"
    query(herd.app_dsn("n1"), f"{table}; INSERT INTO {name}.t VALUES (1)")
    put(herd, subscriber.dsn(user="app"), f"CREATE SCHEMA {name}; {table}")
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    with psycopg.connect(subscriber.dsn(user="app")) as writer:
        writer.execute(f"INSERT INTO {name}.t VALUES (2)".encode())
        must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"))
        waits = f"relation = '{name}.t'::regclass AND NOT granted"
        wait_until(lambda: query(subscriber.dsn(), f"SELECT FROM pg_locks WHERE {waits}"))
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.t") == [("(1)",)]


@pytest.mark.long
def test_a_column_more_comes_at_its_gid(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = herd.app_dsn("n1")
    put(herd, dsn, f"CREATE TABLE {name}.t (id int PRIMARY KEY); INSERT INTO {name}.t VALUES (1)")
    follow(herd, subscriber, name)
    query(dsn, f"INSERT INTO {name}.t VALUES (2)")
    query(dsn, f"ALTER TABLE {name}.t ADD COLUMN price numeric(10, 2)")
    query(dsn, f"INSERT INTO {name}.t VALUES (3, 1.5); UPDATE {name}.t SET price = 2 WHERE id = 1")
    assert_same_rows(herd, subscriber, name)


@pytest.mark.long
def test_ddl_after_many_rows_finds_none_of_them_missing_and_none_twice(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """Some of them are being written when the feeder comes to the command, and are rolled back."""
    dsn = herd.app_dsn("n1")
    put(herd, dsn, f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    follow(herd, subscriber, name)
    with psycopg.connect(subscriber.dsn()) as before:
        before.execute(f"LOCK TABLE {name}.t IN SHARE MODE".encode())  # the feeder waits for it
        for first in range(0, 18_000, 1000):
            added = f"generate_series({first}, {first} + 999)"
            query(dsn, f"INSERT INTO {name}.t SELECT {added}")
        query(dsn, f"ALTER TABLE {name}.t ADD COLUMN price numeric(10, 2)")
        query(dsn, f"UPDATE {name}.t SET price = id WHERE id % 2 = 0")
        query(dsn, f"DELETE FROM {name}.t WHERE id % 3 = 0")
    assert_same_rows(herd, subscriber, name)


@pytest.mark.long
def test_sequences_stand_behind_all_numbers_that_rows_have(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn, to = herd.app_dsn("n1"), subscriber.dsn(user="app")
    query(
        dsn,
        f"CREATE TABLE {name}.t (id serial PRIMARY KEY, n int);"
        f" CREATE TABLE {name}.d (id int GENERATED ALWAYS AS IDENTITY (INCREMENT -2), v text);"
        f" CREATE TABLE {name}.other (id serial PRIMARY KEY); CREATE SEQUENCE {name}.free;"
        f" CREATE TABLE {name}.zero (id serial PRIMARY KEY); INSERT INTO {name}.zero VALUES (0);"
        f" INSERT INTO {name}.t (n) SELECT 1 FROM generate_series(1, 20);"
        f" INSERT INTO {name}.d (v) VALUES ('a'), ('b')",
    )
    settle(herd)
    put(herd, herd.app_dsn("n3"), f"INSERT INTO {name}.t (n) SELECT 3 FROM generate_series(1, 50)")
    tables = f"{name}.t,{name}.d,{name}.zero"
    said = herd.top("set", "create", name, "--tables", tables, "--sequences", f"{name}.free")
    assert "OWNED BY" in error_of(said)
    said = herd.top("set", "create", name, "--tables", tables, "--sequences", f"{name}.other_*")
    assert "OWNED BY" in error_of(said)
    sequences = f"{name}.t_*,{name}.zero_*"
    must(herd, "set", "create", name, "--tables", tables, "--sequences", sequences)
    must(herd, "subscribe", name, "--to", to, "--wait")
    last = f"SELECT last_value FROM {name}.t_id_seq"
    assert query(to, last) == query(to, f"SELECT max(id) FROM {name}.t")
    must(herd, "set", "add", name, "--sequences", f"{name}.d_*")
    wait_until(
        lambda: query(to, f"SELECT to_regclass('{name}.d_id_seq') IS NULL"),
        lambda seen: seen != [(True,)],
        told=lambda: state(herd, name),
    )
    for number in range(30):
        node = random.choice(["n1", "n2", "n3"])
        query(
            herd.app_dsn(node),
            f"INSERT INTO {name}.t (n) VALUES ({100 + number});"
            f" INSERT INTO {name}.d (v) VALUES ('c')",
        )
        query(herd.app_dsn(node), f"DELETE FROM {name}.t WHERE n = {100 + number}")
        ((highest, place, lowest, least),) = query(
            to,
            f"SELECT (SELECT max(id) FROM {name}.t), (SELECT last_value FROM {name}.t_id_seq),"
            f" (SELECT min(id) FROM {name}.d), (SELECT last_value FROM {name}.d_id_seq)",
        )
        assert highest <= place and lowest >= least, number
    query(herd.app_dsn("n2"), f"INSERT INTO {name}.t (n) SELECT 5 FROM generate_series(1, 500)")
    ((highest,),) = query(herd.app_dsn("n2"), f"SELECT max(id) FROM {name}.t")
    put(herd, herd.app_dsn("n2"), f"DELETE FROM {name}.t WHERE n = 5")
    caught_up(herd, subscriber, name)
    assert query(to, last)[0][0] >= highest
    assert (
        query(to, f"SELECT nextval('{name}.d_id_seq')")[0][0]
        < query(to, f"SELECT min(id) FROM {name}.d")[0][0]
    )
    must(
        herd, "set", "create", f"{name}_2", "--tables", f"{name}.other", "--sequences", f"{name}.*"
    )
    must(herd, "set", "merge", name, f"{name}_2")
    must(herd, "set", "remove", name, "--tables", f"{name}.d")
    found = json.loads(must(herd, "set", "list", "--json"))
    (one,) = [one for one in found if one["name"] == name]
    names = [f"{name}.{one}_id_seq" for one in ("other", "t", "zero")]
    assert one["sequences"] == names


@pytest.mark.long
def test_the_log_is_kept_within_a_limit_and_then_a_new_copy_is_asked_for(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn, to = herd.app_dsn("n1"), subscriber.dsn(user="app")
    put(herd, dsn, f"CREATE TABLE {name}.t (id int PRIMARY KEY, v text)")
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    must(herd, "subscribe", name, "--to", to, "--keep-bytes", "2M", "--wait")
    query(dsn, f"INSERT INTO {name}.t VALUES (0, 'before')")
    caught_up(herd, subscriber, name)
    subscriber.stop()
    try:
        for number in range(1, 4):
            query(
                dsn,
                f"INSERT INTO {name}.t SELECT {number * 1000} + i, repeat(md5(i::text), 60)"
                " FROM generate_series(1, 500) i",
            )
        reason = stopped(herd, name)
    finally:
        subscriber.start()
    assert "bytes of the log behind" in reason and "--anew" in reason
    assert rows(to, f"{name}.t") == [("(0,before)",)]
    must(herd, "subscribe", name, "--to", to, "--keep-bytes", "2G", "--anew", "--wait")
    assert rows(to, f"{name}.t") == rows(dsn, f"{name}.t")


@pytest.mark.long
def test_a_subscription_goes_on_when_the_herd_is_up_again(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    dsn = herd.app_dsn("n1")
    put(herd, dsn, f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    follow(herd, subscriber, name)
    herd.must("down")
    herd.must("up")
    query(dsn, f"INSERT INTO {name}.t VALUES (1)")
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.t") == [("(1)",)]


def test_what_cannot_be_is_said(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    assert "no table is meant by nothing.*" in error_of(
        herd.top("set", "create", name, "--tables", "nothing.*")
    )
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    must(herd, "set", "create", name, "--tables", f"{name}.t")
    error = error_of(herd.top("subscribe", name, "--to", herd.dsn("n2")))
    assert "is a herd, and role postgres is a superuser there" in error
    assert "there is no set" in error_of(herd.top("subscribe", "absent", "--to", "host=x"))
    said = herd.top("subscribe", name, "--to", "host=x password='secret")
    assert "not one of libpq" in error_of(said) and "secret" not in said.stdout + said.stderr
    query(subscriber.dsn(), "CREATE ROLE stranger LOGIN")
    assert "GRANT CREATE ON DATABASE" in error_of(
        herd.top("subscribe", name, "--to", subscriber.dsn(user="stranger"))
    )
    query(subscriber.dsn(), "DROP ROLE stranger")


@pytest.mark.parametrize("end", ["leave", "take over", "succeed"])
async def test_no_guard_is_left_of_what_has_another_name_or_was_not_shown(
    subscriber: PlainPostgres, name: str, end: str
) -> None:
    """Another subscription keeps the function of all guards there."""
    dsn, places = subscriber.dsn(user="app"), ("filled", "renamed")
    query(dsn, f"CREATE SCHEMA {name}")
    ordered = Subscription(name, name, dsn, 1, 1, 1.0, None, None, (), revision=1)
    one = Subscriber(await connect(dsn), ordered)
    follows = msgspec.structs.replace(ordered, name=f"{name}_2", tables=(f"{name}.renamed",))
    other = Subscriber(await connect(dsn), follows)
    try:
        await one.attach("herd")
        for place in places:
            query(dsn, f"CREATE TABLE {name}.{place} (id int)")
            table = SourceTable(1, f"{name}.{place}", name, place, 0, (), "full", ())
            await one.placing.guard(table)
        await one.placing.note_staged(table, 1, HerdTable(table, False, "", "", ()))
        await one.placing.show(ShownTable(table, 1, 1), table, 1)
        query(dsn, f"ALTER TABLE {name}.renamed RENAME TO kept")
        if end == "succeed":
            fenced = msgspec.structs.replace(ordered, revision=FENCED)
            await Subscriber(one.session, fenced, "herd").claim()
        await other.attach("another herd")
        if end == "leave":
            await one.leave()
        elif end == "take over":
            await one.placing.unguard()
        for place in ("filled", "kept"):
            query(dsn, f"INSERT INTO {name}.{place} VALUES (1)")
    finally:
        await one.close()
        await other.close()


@pytest.mark.parametrize("comes", ["while it waits", "while it leaves"])
async def test_one_that_leaves_finds_a_later_order_that_came_meanwhile(
    subscriber: PlainPostgres, name: str, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """It took the standing and the guards of that one away."""
    dsn = subscriber.dsn(user="app")
    first = Subscription(name, name, dsn, 1, 1, 1.0, None, None, (), revision=1)
    later = msgspec.structs.replace(first, revision=2)
    waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with contextlib.AsyncExitStack() as stack:
        feeds, leaves, orders = [
            Subscriber(await connect(dsn), one, "herd") for one in (first, first, later)
        ]
        for one in (feeds, leaves, orders):
            stack.push_async_callback(one.close)
        assert await feeds.lock()
        await feeds.attach("herd")
        if comes == "while it leaves":
            drops = leaves.placing.drop_guards

            async def drop_guards() -> None:
                await orders.claim()
                await drops()

            monkeypatch.setattr(leaves.placing, "drop_guards", drop_guards)
        leaving = asyncio.create_task(leaves.leave())
        await asyncio.to_thread(wait_until, lambda: query(subscriber.dsn(), waits))
        if comes == "while it waits":
            await orders.claim()
        await feeds.close()
        with pytest.raises(MovedOnError):
            await leaving
    revisions = f"SELECT revision FROM pgherd_subscriber.standing WHERE subscription = '{name}'"
    assert query(subscriber.dsn(), revisions) == [(2,)]


@pytest.mark.long
async def test_one_that_somebody_orders_otherwise_while_it_ends_goes_on(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order was taken away, and it stayed as it was for ever."""
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    follow(herd, subscriber, name)

    async def leave(*_: object) -> None:
        await asyncio.to_thread(must, herd, "subscribe", name)

    monkeypatch.setattr(subscriptions, "_leave", leave)
    session = await connect_member(herd.dsn("n1"), "test")
    try:
        with pytest.raises(StoppedError, match="another order"):
            await subscriptions.end(session, name)
    finally:
        await session.close()
    put(herd, herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1)")
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.t") == [("(1)",)]


async def test_a_sequence_that_nobody_has_called_yet_does_not_go_back(
    subscriber: PlainPostgres, name: str
) -> None:
    dsn = subscriber.dsn(user="app")
    query(
        dsn,
        f"CREATE SCHEMA {name}; CREATE SEQUENCE {name}.up START 100;"
        f" CREATE SEQUENCE {name}.down INCREMENT -1 START -100",
    )
    session = await connect(dsn)
    try:
        for kind, step in (("up", 1), ("down", -1)):
            one = HerdSequence(
                f"{name}.{kind}", name, kind, f"{name}.t", "id", "bigint", step, -1000, 1000, None
            )
            numbers = []
            for value in (3, 99, 100, 250):
                await Numbering(session).set(one, step * value)
                numbers += query(dsn, f"SELECT nextval('{name}.{kind}')")
            assert numbers == [(step * given,) for given in (100, 101, 102, 251)]
    finally:
        await session.close()


async def test_who_takes_writes_goes_on_with_numbers_that_no_row_has(
    subscriber: PlainPostgres, name: str
) -> None:
    """Also where the set has no sequences."""
    dsn = subscriber.dsn(user="app")
    query(
        dsn,
        f"CREATE SCHEMA {name}; CREATE TABLE {name}.up (id serial PRIMARY KEY, v int);"
        f" CREATE TABLE {name}.down (id int GENERATED ALWAYS AS IDENTITY (INCREMENT -2), v int);"
        f" CREATE TABLE {name}.ahead (id serial PRIMARY KEY, v int);"
        f" CREATE TABLE {name}.none (id serial PRIMARY KEY, v int);"
        f" INSERT INTO {name}.up VALUES (5), (7); INSERT INTO {name}.ahead VALUES (9);"
        f" INSERT INTO {name}.down OVERRIDING SYSTEM VALUE VALUES (-6), (-9);"
        f" CREATE TABLE {name}.moved (id serial PRIMARY KEY, v int);"
        f" INSERT INTO {name}.moved VALUES (3); ALTER SEQUENCE {name}.moved_id_seq RESTART 100;"
        f" SELECT setval('{name}.ahead_id_seq', 20)",
    )
    places = ("up", "down", "ahead", "none", "moved")
    ordered = Subscription(name, name, dsn, 1, 1, 1.0, None, None, (), revision=1)
    one = Subscriber(await connect(dsn), ordered)
    try:
        await one.attach("herd")
        for place in places:
            table = SourceTable(1, f"{name}.{place}", name, place, 0, (), "full", ())
            await one.placing.note_staged(table, 1, HerdTable(table, False, "", "", ()))
            await one.placing.show(ShownTable(table, 1, 1), table, 1)
        await one.load()
        await one.persist(one.placing.unguard)
    finally:
        await one.close()
    given = [
        query(dsn, f"INSERT INTO {name}.{place} (v) VALUES (1) RETURNING id") for place in places
    ]
    assert given == [[(8,)], [(-11,)], [(21,)], [(1,)], [(100,)]]


@pytest.mark.long
async def test_another_herd_does_not_take_a_subscription_of_the_same_name(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    follow(herd, subscriber, name)
    dsn = subscriber.dsn(user="app")
    later = Subscription(name, name, dsn, 9, 1, 1.0, None, None, (f"{name}.t",), revision=1 << 40)
    other = Subscriber(await connect(dsn), later, "another herd")
    try:
        with pytest.raises(StoppedError, match="of another herd"):
            await other.lock()
        await other.claim()
        await other.leave()
    finally:
        await other.close()
    put(herd, herd.app_dsn("n2"), f"INSERT INTO {name}.t VALUES (1)")
    caught_up(herd, subscriber, name)
    assert rows(subscriber.dsn(), f"{name}.t") == [("(1)",)]
    # The other way round: this herd is the later one, and hears so at once.
    must(herd, "unsubscribe", name)
    first = Subscriber(await connect(dsn), later, "another herd")
    try:
        assert await first.lock()
        await first.attach("another herd")
        error = error_of(herd.top("subscribe", name, "--to", dsn))
        assert "of another herd" in error and "--name" in error
    finally:
        await first.close()


async def test_a_follower_with_a_fence_takes_writes_when_its_provider_hears_of_its_end(
    subscriber: PlainPostgres, name: str
) -> None:
    """The provider asked it again and again, and got for an answer that it has a fence."""
    dsn = subscriber.dsn(user="app")
    first = Subscription(f"{name}_a", name, dsn, 1, 1, 1.0, None, None, (), revision=1)
    last = msgspec.structs.replace(first, name=f"{name}_b", provider=first.name)
    fenced = msgspec.structs.replace(last, revision=FENCED)
    session = await connect(dsn)
    try:
        for one in (first, last):
            await Subscriber(session, one).attach("herd")
        async with session.transaction():
            log = ForwardLog(session, first.name)
            await log.make()
            await log.begin(1)
        await Subscriber(session, fenced, "herd").claim()
    finally:
        await session.close()
    ended = HeldOrder(first.name, last, Report(last.name, 1, None, "ended"))
    assert await farewell(dsn, ended) is None
    standing = query(subscriber.dsn(), "SELECT subscription FROM pgherd_subscriber.standing")
    assert standing == [(first.name,)]


@pytest.mark.long
def test_one_that_follows_another_herd_by_now_is_not_said_to_have_ended(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    """A part of a herd that goes on alone has another id, and the subscriptions of the whole."""
    put(herd, herd.app_dsn("n1"), f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    follow(herd, subscriber, name)
    query(subscriber.dsn(), "UPDATE pgherd_subscriber.standing SET cluster = 'the whole'")
    error = error_of(herd.top("unsubscribe", name))
    assert "of another herd" in error and "--herd-only" in error and "DROP SCHEMA" in error
    # Feeders stop it, as they find the same.
    assert "is to end" not in state(herd, name)["reason"]
    must(herd, "unsubscribe", name, "--herd-only")
    assert refuses_to(subscriber.dsn(user="app"), f"INSERT INTO {name}.t VALUES (1)")


@pytest.mark.parametrize("what", ["standing", "schema", "log"])
async def test_two_that_begin_at_once_in_one_database_both_do(
    subscriber: PlainPostgres, name: str, what: str
) -> None:
    """The second one was stopped, as both had made the same schema."""
    dsn = subscriber.dsn(user="app")
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND application_name = 'pgherd subscription'"
    )

    async def make(session: Session, one: str) -> None:
        order = Subscription(one, name, dsn, 1, 1, 1.0, None, None, (), revision=1)
        if what == "standing":
            await Subscriber(session, order).attach("herd")
        elif what == "schema":
            await require_schema(session, f"{name}_made")
        else:
            await ForwardLog(session, one).make()

    async def begin() -> None:
        async with sessions[1].transaction():
            await make(sessions[1], "second")

    sessions = [await connect(dsn), await connect(dsn)]
    try:
        if what == "log":
            order = Subscription("first", name, dsn, 1, 1, 1.0, None, None, (), revision=1)
            await Subscriber(sessions[0], order).attach("herd")
        async with sessions[0].transaction():
            await make(sessions[0], "first")
            beginning = asyncio.create_task(begin())
            await asyncio.to_thread(
                wait_until,
                lambda: query(subscriber.dsn(), waits) == [(1,)],
                hopeless=beginning.done,
            )
        await beginning
    finally:
        for session in sessions:
            await session.close()
        drop_schemas(subscriber.dsn(), "pgherd_subscriber", f"{name}_made")


@pytest.mark.long
def test_tables_may_have_the_names_of_those_that_a_subscriber_keeps(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    names = ("standing", "tables", "orders", "turn")
    for one in names:
        query(
            herd.app_dsn("n1"),
            f"CREATE TABLE {name}.{one} (id int PRIMARY KEY); INSERT INTO {name}.{one} VALUES (1)",
        )
    settle(herd)
    must(herd, "set", "create", name, "--tables", f"{name}.*")
    must(herd, "subscribe", name, "--to", subscriber.dsn(user="app"), "--forward", "--wait")
    for one in names:
        assert rows(subscriber.dsn(), f"{name}.{one}") == [("(1)",)]
