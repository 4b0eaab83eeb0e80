"""``verify`` on real nodes: clean under load, and it finds a single row that differs."""

import asyncio
import json
import random
from collections.abc import Iterator

import psycopg
import pytest

from .ledger import Ledger
from .localherd import LocalHerd


@pytest.fixture
def ledger(herd: LocalHerd) -> Iterator[Ledger]:
    ledger = Ledger(herd, f"l_{random.getrandbits(40):x}")
    ledger.create()
    yield ledger
    ledger.drop()


def write_behind_the_herd_s_back(herd: LocalHerd, node: str, statement: str) -> None:
    """What only a superuser can do."""
    with psycopg.connect(
        herd.member(node)["dsn"], autocommit=True, options="-c session_replication_role=replica"
    ) as connection:
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    ("damage", "repair"),
    [
        (
            "UPDATE {} SET balance = balance + 1 WHERE id = 42",
            "UPDATE {} SET balance = balance - 1 WHERE id = 42",
        ),
        ("DELETE FROM {} WHERE id = 42", "INSERT INTO {} VALUES (42, 1000)"),
    ],
    ids=["a changed row", "a missing row"],
)
def test_a_planted_difference_is_named_by_table_and_key(
    herd: LocalHerd, ledger: Ledger, damage: str, repair: str
) -> None:
    table = f"{ledger.schema}.account"
    write_behind_the_herd_s_back(herd, "n2", damage.format(table))
    done = herd.run("verify", "--json")
    assert done.returncode == 1
    (difference,) = json.loads(done.stdout)["differences"]
    assert difference["table"] == table
    assert "42" in difference["key"]
    write_behind_the_herd_s_back(herd, "n2", repair.format(table))
    herd.must("verify")


async def test_it_is_clean_at_every_moment_of_a_load(herd: LocalHerd, ledger: Ledger) -> None:
    async with ledger.load(clients=4):
        for _ in range(3):
            await ledger.commits(100)
            await asyncio.to_thread(herd.must, "verify")
    ledger.check()
