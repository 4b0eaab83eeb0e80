"""What a plain server gets that subscribes to one member: docs/leaving.md.

Publications are DDL, so all members have them. The slot of a subscription is its member's alone.
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from patience import wait_until

from .localherd import LocalHerd, free_port_base, query, settle, standing
from .plainpostgres import PlainPostgres, plain_postgres
from .shop import repeat

_TABLES = """
CREATE TABLE {0} (id bigint PRIMARY KEY, n int NOT NULL DEFAULT 0, t text);
CREATE TABLE {0}_log (id bigint, what text);
"""


@pytest.fixture(scope="module")
def herd(work_directory: Path) -> Iterator[LocalHerd]:
    with standing(LocalHerd(work_directory / "publishing", free_port_base(3))) as herd:
        for node in herd.nodes():
            query(node.dsn, "ALTER SYSTEM SET wal_level = logical")
        herd.must("down")
        assert herd.up().returncode == 0
        yield herd


@pytest.fixture(scope="module")
def subscriber(work_directory: Path, herd: LocalHerd) -> Iterator[PlainPostgres]:
    with plain_postgres(
        work_directory / "subscriber", free_port_base(1) + 1, herd.dsn("n1"),
        "wal_retrieve_retry_interval = '200ms'\n",
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def name(herd: LocalHerd, subscriber: PlainPostgres) -> Iterator[str]:
    """Of two published tables, which both have; the subscriptions end with the test."""
    name = f"t_{random.getrandbits(40):x}"
    for statement in _TABLES.format(name).split(";")[:2]:
        repeat(herd.app_dsn("n1"), statement)
    query(subscriber.dsn(user="app"), _TABLES.format(name))
    repeat(herd.dsn("n1"), f"CREATE PUBLICATION {name} FOR TABLE {name}, {name}_log")
    settle(herd)
    yield name
    for (found,) in query(subscriber.dsn(), "SELECT subname FROM pg_subscription"):
        with contextlib.suppress(psycopg.errors.ObjectNotInPrerequisiteState):
            query(subscriber.dsn(), f"ALTER SUBSCRIPTION {found} DISABLE")
        query(subscriber.dsn(), f"ALTER SUBSCRIPTION {found} SET (slot_name = NONE)")
        query(subscriber.dsn(), f"DROP SUBSCRIPTION {found}")
    for node in herd.nodes():
        drop_slots(node.dsn)
    repeat(herd.dsn("n1"), f"DROP PUBLICATION {name}")


def drop_slots(dsn: str) -> None:
    drop = (
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE slot_type = 'logical'"
    )
    in_use = (psycopg.errors.ObjectInUse,)
    wait_until(lambda: query(dsn, drop), lambda dropped: not dropped, despite=in_use)


def subscribe(herd: LocalHerd, subscriber: PlainPostgres, member: str, name: str) -> None:
    query(
        subscriber.dsn(),
        f"CREATE SUBSCRIPTION {name}_{member} CONNECTION '{herd.dsn(member)}' PUBLICATION {name}"
        f" WITH (slot_name = '{name}')",
    )


def rows(dsn: str, name: str) -> list[tuple[object, ...]]:
    both = f"SELECT id, n, t FROM {name} UNION ALL SELECT id, -1, what FROM {name}_log"
    return query(dsn, f"{both} ORDER BY 1, 2, 3")


def equal(herd: LocalHerd, subscriber: PlainPostgres, name: str) -> None:
    """Wait until the subscriber has the rows that all members have.

    It is wrong, and not late, when it has confirmed all that was written and has others.
    """
    settle(herd)
    wanted = rows(herd.dsn("n3"), name)
    inserted = "SELECT pg_current_wal_insert_lsn()"  # an applied commit may not be written yet
    written = {one.dsn: query(one.dsn, inserted)[0][0] for one in herd.nodes()}

    def confirmed() -> object:
        if query(subscriber.dsn(), "SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'"):
            return None  # a table is still copied
        slots = [
            slot
            for dsn, lsn in written.items()
            for (slot,) in query(
                dsn,
                f"SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots"
                " WHERE slot_type = 'logical'",
            )
        ]
        return slots and all(slots) and "it has confirmed all that was written"

    wait_until(
        lambda: rows(subscriber.dsn(), name), lambda found: found == wanted, hopeless=confirmed
    )


class Writers:
    """One for each of some members: inserts, updates and deletes rows, and logs each once."""

    def __init__(self, herd: LocalHerd, name: str, members: tuple[str, ...]) -> None:
        self._stop = threading.Event()
        self.committed = dict.fromkeys(members, 0)
        self._threads = [
            threading.Thread(target=self._write, args=(herd.app_dsn(one), one, number, name))
            for number, one in enumerate(members)
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, dsn: str, member: str, number: int, name: str) -> None:
        at = number
        while not self._stop.is_set():
            with contextlib.suppress(psycopg.Error), psycopg.connect(dsn) as connection:
                while not self._stop.is_set():
                    at += 10
                    self._transaction(connection, name, at)
                    self.committed[member] += 1

    def _transaction(self, connection: psycopg.Connection, name: str, at: int) -> None:
        for statement in (
            f"INSERT INTO {name} VALUES ({at}, 1, 'a')",
            f"UPDATE {name} SET n = n + 1 WHERE id IN ({at}, {at - 10})",
            f"DELETE FROM {name} WHERE id = {at - 50}",
            f"INSERT INTO {name}_log VALUES ({at}, 'by {connection.info.port}')",
        ):
            connection.execute(statement.encode())
        connection.commit()

    def more(self, number: int, *members: str) -> None:
        """Wait until each of them has committed so many more."""
        wanted = {one: self.committed[one] + number for one in members}
        wait_until(
            lambda: all(self.committed[one] >= at for one, at in wanted.items()),
            brief=True,
            told=lambda: self.committed,
        )


def test_it_gets_every_change_of_all_members_once(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    with Writers(herd, name, ("n1", "n2", "n3")) as writers:
        writers.more(20, "n1", "n2", "n3")
        subscribe(herd, subscriber, "n1", name)
        writers.more(50, "n1", "n2", "n3")
    equal(herd, subscriber, name)
    twice = f"SELECT id, what FROM {name}_log GROUP BY 1, 2 HAVING count(*) > 1"
    assert query(subscriber.dsn(), twice) == []


@pytest.mark.long
@pytest.mark.parametrize("process", ["postgres", "node"])
def test_it_goes_on_when_its_member_was_killed_and_is_back(
    herd: LocalHerd, subscriber: PlainPostgres, name: str, process: str
) -> None:
    subscribe(herd, subscriber, "n1", name)
    with Writers(herd, name, ("n2", "n3")) as writers:
        writers.more(30, "n2", "n3")
        herd.must("kill", "n1", "--process", process)
        writers.more(30, "n2", "n3")
        herd.must("start", "n1")
        writers.more(30, "n2", "n3")
    equal(herd, subscriber, name)
    twice = f"SELECT id, what FROM {name}_log GROUP BY 1, 2 HAVING count(*) > 1"
    assert query(subscriber.dsn(), twice) == []


@pytest.mark.long
def test_its_slot_is_on_its_member_alone_and_it_moves_by_a_new_copy(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    subscribe(herd, subscriber, "n1", name)
    with Writers(herd, name, ("n2", "n3")) as writers:
        writers.more(20, "n2", "n3")
        herd.must("kill", "n1", "--process", "node")
        writers.more(20, "n2", "n3")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'"
        assert query(herd.dsn("n2"), slots) == [(0,)]
        query(subscriber.dsn(), f"ALTER SUBSCRIPTION {name}_n1 DISABLE")
        query(subscriber.dsn(), f"ALTER SUBSCRIPTION {name}_n1 SET (slot_name = NONE)")
        query(subscriber.dsn(), f"DROP SUBSCRIPTION {name}_n1")
        query(subscriber.dsn(), f"TRUNCATE {name}, {name}_log")
        subscribe(herd, subscriber, "n2", name)
        writers.more(20, "n2", "n3")
    herd.must("start", "n1")
    equal(herd, subscriber, name)


def test_a_slot_does_not_come_with_a_rebuild(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    subscribe(herd, subscriber, "n1", name)
    equal(herd, subscriber, name)
    query(subscriber.dsn(), f"ALTER SUBSCRIPTION {name}_n1 DISABLE")
    herd.must("rebuild", "n1")
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'"
    assert query(herd.dsn("n1"), slots) == [(0,)]


def test_truncate_comes_and_ddl_and_sequences_do_not(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    repeat(herd.app_dsn("n1"), f"INSERT INTO {name} VALUES (1), (2)")
    subscribe(herd, subscriber, "n1", name)
    equal(herd, subscriber, name)
    settle(herd)
    repeat(herd.app_dsn("n2"), f"TRUNCATE {name}")
    repeat(herd.app_dsn("n3"), f"INSERT INTO {name} VALUES (3)")
    equal(herd, subscriber, name)
    settle(herd)
    repeat(herd.app_dsn("n2"), f"ALTER TABLE {name} ADD COLUMN more int")
    settle(herd)
    repeat(herd.app_dsn("n3"), f"INSERT INTO {name} VALUES (4)")
    time.sleep(2)
    assert query(subscriber.dsn(), f"SELECT FROM {name} WHERE id = 4") == []
    query(subscriber.dsn(user="app"), f"ALTER TABLE {name} ADD COLUMN more int")
    equal(herd, subscriber, name)


def test_rows_without_identity_are_refused_as_on_a_plain_server(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    subscribe(herd, subscriber, "n1", name)
    repeat(herd.app_dsn("n2"), f"INSERT INTO {name}_log VALUES (1, 'a'), (1, 'a'), (2, 'b')")
    settle(herd)
    for node in herd.nodes():
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            repeat(node.app_dsn, f"UPDATE {name}_log SET what = 'c' WHERE id = 2")
    repeat(herd.app_dsn("n1"), f"ALTER TABLE {name}_log REPLICA IDENTITY FULL")
    settle(herd)
    repeat(herd.app_dsn("n3"), f"UPDATE {name}_log SET what = 'c' WHERE id = 1")
    settle(herd)
    repeat(herd.app_dsn("n2"), f"DELETE FROM {name}_log WHERE id = 2")
    equal(herd, subscriber, name)


@pytest.mark.long
def test_all_tables_are_ours_too_and_the_herd_bears_it(
    herd: LocalHerd, subscriber: PlainPostgres, name: str
) -> None:
    repeat(herd.dsn("n1"), "CREATE PUBLICATION everything FOR ALL TABLES")
    settle(herd)
    with pytest.raises(psycopg.Error, match="pgherd"):
        subscribe(herd, subscriber, "n1", "everything")
    for node in herd.nodes():
        repeat(node.app_dsn, f"INSERT INTO {name} VALUES ({node.name[1:]}00)")
        repeat(node.app_dsn, f"CREATE TABLE {name}_{node.name} (id int PRIMARY KEY)")
        settle(herd)
        repeat(node.app_dsn, f"UPDATE {name} SET n = 7")
        repeat(node.app_dsn, f"DROP TABLE {name}_{node.name}")
        settle(herd)
    herd.must("down")
    assert herd.up().returncode == 0
    herd.must("verify")
    repeat(herd.dsn("n1"), "DROP PUBLICATION everything")
