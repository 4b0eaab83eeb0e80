"""``pgherd local`` with the real sidecars: what only they can answer."""

import json
import threading
from typing import Any

import psycopg
import pytest

from .localherd import LocalHerd
from .members import caught_up

Connections = list[psycopg.AsyncConnection[Any]]


@pytest.fixture
async def accounts(connections: Connections, schema: str) -> str:
    """A table of a hundred rows, filled on the first node."""
    await connections[0].execute("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
    await connections[0].execute("INSERT INTO account SELECT i, 0 FROM generate_series(1, 100) i")
    await caught_up(connections)
    return f"{schema}.account"


class Load(threading.Thread):
    """Updates on one node until it is told to stop; conflicts and lost connections are tried again.

    Its node refuses writes while no proposer is elected.

    ``acknowledged`` counts the commits that the client has heard of.
    """

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._statement = f"UPDATE {table} SET balance = balance + 1 WHERE id = %s"
        self._stop_asked = threading.Event()
        self.acknowledged = 0
        self.unknown = 0

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    self._update(connection)
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
                self._stop_asked.wait(0.05)

    def _update(self, connection: psycopg.Connection[Any]) -> None:
        while not self._stop_asked.is_set():
            try:
                connection.execute(self._statement, (self.acknowledged % 100 + 1,))
                self.acknowledged += 1
            except psycopg.errors.SerializationFailure:
                pass
            except psycopg.Error:
                self.unknown += 1
                raise

    def finish(self) -> None:
        self._stop_asked.set()
        self.join()


async def test_what_is_written_on_one_node_is_identical_on_all(
    herd: LocalHerd, accounts: str
) -> None:
    answer = json.loads(herd.must("verify", "--json"))
    table = next(table for table in answer["tables"] if table["table"] == accounts)
    assert table["identical"]
    assert {name: node["rows"] for name, node in table["nodes"].items()} == {
        "n1": 100,
        "n2": 100,
        "n3": 100,
    }


@pytest.mark.long
async def test_verify_compares_one_state_while_every_node_writes(
    herd: LocalHerd, accounts: str
) -> None:
    loads = [Load(node.app_dsn, accounts) for node in herd.nodes()]
    for load in loads:
        load.start()
    try:
        gids = [json.loads(herd.must("verify", "--json"))["gid"] for _ in range(3)]
    finally:
        for load in loads:
            load.finish()
    assert gids == sorted(set(gids))
    assert all(load.acknowledged for load in loads)


@pytest.mark.long
@pytest.mark.parametrize("process", ["sidecar", "postgres", "node"])
async def test_a_killed_node_catches_up_and_no_acknowledged_commit_is_lost(
    herd: LocalHerd, accounts: str, connections: Connections, process: str
) -> None:
    load = Load(herd.app_dsn("n1"), accounts)
    load.start()
    try:
        herd.must("kill", "n3", "--process", process)
        before = load.acknowledged
        herd.must("start", "n3")
        assert load.acknowledged > before
    finally:
        load.finish()
    herd.must("verify")
    cursor = await connections[0].execute("SELECT sum(balance) FROM account")
    row = await cursor.fetchone()
    assert row is not None
    assert load.acknowledged <= row[0] <= load.acknowledged + load.unknown


@pytest.mark.long
async def test_a_herd_that_was_down_comes_up_with_everything(
    herd: LocalHerd, accounts: str
) -> None:
    herd.must("down")
    assert {member["state"] for member in herd.members()} == {"stopped"}
    assert herd.up().returncode == 0
    answer = json.loads(herd.must("verify", "--json"))
    assert accounts in {table["table"] for table in answer["tables"] if table["identical"]}
