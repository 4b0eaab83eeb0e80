"""Transactions that committed uncertified (C1): ordered once, adopted, or a reason to stop."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pgherd_sidecar.agent.base.errors import DivergedError
from pgherd_sidecar.agent.commit.leaks import Leaks
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.commit.underway import TransactionLimits
from pgherd_sidecar.core.replication.entries import FLAG_DDL, Writeset, iter_entries
from pgherd_sidecar.core.replication.state import ReplicatedState

LIMITS = TransactionLimits(64 << 20, 32 << 20, 1000, 10_000, 100, wait_s=10.0)


def captured(tag: str, query: str) -> str:
    """A body with one command, as the server captures it."""
    context = "PL/pgSQL function pgherd.command_start() line 16 at GET DIAGNOSTICS"
    fields = {"tag": tag, "query": query, "message": "m1", "role": "app", "context": context}
    return msgspec.json.encode([["", [0], [msgspec.json.encode(fields).decode()]]]).decode()


class AuditedServer:
    """What the audit has found, and what was asked for."""

    def __init__(self, *, ddl: bool = False, body: str = '[["t",[4],["I(1)"]]]') -> None:
        self.asked: list[tuple[object, ...]] = []
        self._row = ("0:5", body, ddl)

    async def execute(self, query: str, parameters: tuple[object, ...] = ()) -> Any:
        self.asked.append(parameters)
        row = (["41", "42"],) if "audit" in query else self._row

        async def fetchone() -> Any:
            return row

        return SimpleNamespace(fetchone=fetchone)


def path() -> CommitPath:
    return CommitPath(1, 1, ReplicatedState((1, 2)), 0, LIMITS)


def submitted(to: CommitPath) -> list[Writeset]:
    parts = to.take_effects(0.0).submissions
    entries = [entry for part in parts for entry in iter_entries(part.data)]
    return [entry for entry in entries if isinstance(entry, Writeset)]


async def test_those_of_earlier_sessions_are_known_before_anything_is_delivered() -> None:
    commit_path = path()
    await Leaks(cast("Any", AuditedServer()), commit_path, LIMITS).look_back()
    assert commit_path.leaks == {41, 42}
    assert submitted(commit_path) == []


async def test_a_leak_is_ordered_once_and_forgotten_when_it_is_adopted() -> None:
    server, commit_path = AuditedServer(), path()
    leaks = Leaks(cast("Any", server), commit_path, LIMITS)
    await leaks.order_leak(41)
    await leaks.order_leak(41)
    [writeset] = submitted(commit_path)
    assert (writeset.xid, writeset.flags) == (41, 0)
    assert commit_path.leaks == {41}
    await leaks.adopt_leak(7, 6, 41)
    assert server.asked[-1] == (7, 6, "41")
    assert commit_path.leaks == set()
    await leaks.order_leak(41)  # of a look that had begun before
    assert not submitted(commit_path)


async def test_a_command_is_ordered_as_the_statement_that_it_was() -> None:
    commit_path = path()
    server = AuditedServer(ddl=True, body=captured("CREATE TABLE", "CREATE TABLE a ()"))
    await Leaks(cast("Any", server), commit_path, LIMITS).order_leak(41)
    [writeset] = submitted(commit_path)
    assert writeset.flags == FLAG_DDL
    assert b"CREATE TABLE a ()" in writeset.body and b"GET DIAGNOSTICS" not in writeset.body


async def test_a_command_that_the_others_could_not_execute_stops_the_node() -> None:
    text = r"CREATE TABLE a (x text); COMMIT; SELECT f('\'); CREATE TABLE a (x text)"
    server = AuditedServer(ddl=True, body=captured("CREATE TABLE", text))
    commit_path = path()
    with pytest.raises(DivergedError, match="transaction 41 was not certified"):
        await Leaks(cast("Any", server), commit_path, LIMITS).order_leak(41)
    assert submitted(commit_path) == []


async def test_a_command_that_its_reader_does_not_survive_stops_the_node() -> None:
    deep = "CREATE TABLE a (); COMMIT; SELECT " + "+".join(["1"] * 60_000)
    server, commit_path = AuditedServer(ddl=True, body=captured("CREATE TABLE", deep)), path()
    with pytest.raises(DivergedError, match=r"transaction 41 was not certified: .* too deeply"):
        await Leaks(cast("Any", server), commit_path, LIMITS).order_leak(41)
    assert submitted(commit_path) == []


async def test_a_leak_that_no_message_holds_stops_the_node_and_not_its_vote() -> None:
    commit_path, server = path(), AuditedServer()
    limits = replace(LIMITS, writeset=20)
    with pytest.raises(DivergedError, match=r"transaction 41 was not certified: .* 20 bytes"):
        await Leaks(cast("Any", server), commit_path, limits).order_leak(41)
    assert submitted(commit_path) == []
