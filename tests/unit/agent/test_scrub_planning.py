"""What the proposer's scrub asks for next, of a server that is a Python object."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pgherd_sidecar.agent.snapshots.scrub.connection import ScrubConnection
from pgherd_sidecar.agent.snapshots.scrub.planning import ScrubPlanner
from pgherd_sidecar.core.replication.scrub.ledger import Ledger
from pgherd_sidecar.core.replication.scrub.messages import Kind, Subject
from pgherd_sidecar.core.replication.scrub.saved import Position, Saved
from pgherd_sidecar.pg.comparison import checksum
from pgherd_sidecar.pg.comparison.checksum import Table
from psycopg import errors, pq, sql

EXTENT = [("public.t", 20_000.0, 1)]


class Server:
    """A server and the session with it. It has one table, whose key is as a test says."""

    def __init__(self, *key: tuple[str, str]) -> None:
        self.turn = asyncio.Lock()
        self.work_s = 0.0
        self.info = SimpleNamespace(transaction_status=pq.TransactionStatus.IDLE)
        self._key = key
        self._rows: list[tuple[Any, ...]] = []

    async def connected(self) -> "Server":
        return self

    async def execute(self, query: str | sql.Composable, _: object = None) -> "Server":
        text = query if isinstance(query, str) else query.as_string(None)
        if "'4711'::uuid" in text:
            raise errors.InvalidTextRepresentation('invalid input syntax for type uuid: "4711"')
        self._rows = EXTENT if "reltuples" in text else [tuple("z" for _ in self._key)]
        return self

    async def fetchone(self) -> tuple[bool]:
        return (True,)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    async def find_table(self, *_: object) -> Table:
        rows = sql.Composed([sql.Identifier("public", "t")])
        names = tuple(name for name, _ in self._key)
        return Table("public.t", rows, False, True, "c", names, self._key, True, 1, "{}", None)


@pytest.mark.parametrize(
    "key", [[("tenant", "integer"), ("id", "bigint")], [("id", "uuid")]], ids=["columns", "type"]
)
async def test_a_table_is_begun_anew_whose_key_was_changed_in_the_middle_of_it(
    key: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(*key)
    monkeypatch.setattr(checksum, "find_table", server.find_table)
    long_ago_s = time.time() - 1000
    saved = Saved(began_s=long_ago_s, last_s=long_ago_s, position=Position("public.t", ("4711",)))
    planner = ScrubPlanner(1.0, Ledger(saved), cast(ScrubConnection, server))
    request = await planner.next_request() or await planner.next_request()
    assert request is not None
    assert request.subject == Subject(Kind.RANGE, "public.t", None, tuple("z" for _ in key))
