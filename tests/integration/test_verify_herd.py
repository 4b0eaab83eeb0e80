"""``verify`` on real nodes: clean under load, and it finds a single row that differs."""

import asyncio
import json
import random
import sys
from collections.abc import Iterator

import psycopg
import pytest
from pgherd_operator import verifying
from pgherd_operator.verifying import PodClient
from pgherd_sidecar.cli.admin import AdminError
from pgherd_sidecar.cli.errors import HerdError
from pgherd_sidecar.cli.herd import load
from pgherd_sidecar.cli.verify import Options

from .ledger import Ledger
from .localherd import LocalHerd, home


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


RELAY = [sys.executable, "-m", "pgherd_sidecar.cli.main", "relay"]
"""In place of a kubectl that executes it in a pod."""


def pods(herd: LocalHerd, *names: str) -> dict[str, PodClient]:
    found = load(home(herd))
    sockets = {one.name: found.node(one).admin_socket for one in found.databases}
    return {name: PodClient([*RELAY, f"--admin={sockets[name]}"], name) for name in names}


async def test_members_in_pods_are_compared_by_requests_that_are_relayed(
    herd: LocalHerd, ledger: Ledger
) -> None:
    table, asked = f"{ledger.schema}.account", Options(False, 100, 60)
    found = await verifying.verify(pods(herd, "n1", "n2", "n3"), asked)
    assert found.identical
    assert table in {one.name for one in found.tables}
    damage = f"UPDATE {table} SET balance = balance {{}} 1 WHERE id = 42"
    write_behind_the_herd_s_back(herd, "n2", damage.format("+"))
    found = await verifying.verify(pods(herd, "n1", "n2", "n3"), asked)
    write_behind_the_herd_s_back(herd, "n2", damage.format("-"))
    (difference,) = found.differences
    assert difference.table == table
    assert set(difference.versions) == {"n1", "n2", "n3"}


async def test_a_member_without_a_pod_is_missed(herd: LocalHerd, ledger: Ledger) -> None:
    with pytest.raises(HerdError, match=r"not every member is up \(n2 does not answer\)"):
        await verifying.verify(pods(herd, "n1", "n3"), Options(False, 100, 60))
    found = await verifying.verify(pods(herd, "n1", "n3"), Options(True, 100, 60))
    assert found.identical
    assert found.skipped == ("n2",)
    assert f"{ledger.schema}.account" in {one.name for one in found.tables}


async def test_what_a_relay_complains_of_is_told() -> None:
    broken = PodClient(["sh", "-c", "echo 'error: no such pod' >&2; exit 1"], "herd-1")
    with pytest.raises(AdminError, match="no such pod"):
        await broken.status()
    with pytest.raises(HerdError, match="no sidecar answers"):
        await verifying.verify({"herd-1": broken}, Options(False, 100, 60))
