"""Hazards of docs/hazards.md that no other module tests, on a herd of their own."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from .localherd import LocalHerd, free_port_base, pids_in, query

Connection = psycopg.AsyncConnection[Any]

_PATIENCE_S = 120


@pytest.fixture(scope="module")
def mortal(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd for these tests only: a failure must not spoil the others'."""
    herd = LocalHerd(work_directory / "hazards", free_port_base())
    done = herd.up()
    assert done.returncode == 0, done.stderr
    yield herd
    herd.must("destroy")


@pytest.fixture
def schema(mortal: LocalHerd) -> str:
    """A schema with an empty table ``t``, on the node it was made on and soon on all."""
    name = f"z_{random.getrandbits(40):x}"
    ddl = f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY, v int NOT NULL)"
    query(mortal.member("n1")["app_dsn"], ddl)
    mortal.must("verify")
    return name


def sidecars(herd: LocalHerd, node: str) -> list[int]:
    """The processes of a node's sidecar."""
    return [
        pid
        for pid in pids_in(herd.directory / node)
        if b"pgherd_sidecar.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """SIGSTOP for as long as the block lasts."""
    assert pids
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """A connection to a server that may still be starting."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
                break
            except psycopg.OperationalError:
                await asyncio.sleep(0.05)
    async with connection:
        yield connection


async def tokens(connection: Connection, number: int) -> list[str]:
    """The tokens of transactions, as far as the node gives any."""
    given = []
    for _ in range(number):
        with contextlib.suppress(psycopg.errors.ReadOnlySqlTransaction):
            cursor = await connection.execute("SELECT pgherd.current_token()")
            given += [token for (token,) in await cursor.fetchall()]
    return given


async def test_h19_no_token_names_two_transactions_when_xids_come_again_after_a_crash(
    mortal: LocalHerd,
) -> None:
    """The server is back with fewer xids than it had given; its sidecar has not noticed yet."""
    member = mortal.member("n2")
    query(member["dsn"], "ALTER SYSTEM SET wal_writer_delay = '10s'")
    query(member["dsn"], "SELECT pg_reload_conf()")
    with stopped(sidecars(mortal, "n2")):
        async with connected(member["app_dsn"]) as connection:
            given = await tokens(connection, 300)
        assert len(given) == 300
        await asyncio.to_thread(mortal.must, "kill", "n2", "--process", "postgres")
        starting = asyncio.create_task(asyncio.to_thread(mortal.must, "start", "n2"))
        async with connected(member["app_dsn"]) as connection:
            given += await tokens(connection, 300)
    await starting
    async with connected(member["app_dsn"]) as connection:
        given += await tokens(connection, 300)
    query(member["dsn"], "ALTER SYSTEM RESET wal_writer_delay")
    query(member["dsn"], "SELECT pg_reload_conf()")
    assert len(given) >= 600
    assert len(set(given)) == len(given)
