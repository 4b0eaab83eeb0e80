"""Rounds of the pipeline, on a connection that answers what the test says."""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pytest
from pgherd_sidecar.pg.pipeline import Pipeline, Prepared, RoundFailedError, ServerGoneError
from psycopg import pq

_OK, _SYNC = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.PIPELINE_SYNC
_COPY, _DONE = pq.ExecStatus.COPY_IN, pq.ExecStatus.COMMAND_OK
_FAILED, _SKIPPED = pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED


@dataclass
class Result:
    status: pq.ExecStatus
    sqlstate: bytes = b""
    command_tuples: int | None = None

    def error_field(self, field: pq.DiagnosticField) -> bytes:
        return self.sqlstate if field == pq.DiagnosticField.SQLSTATE else b"no"


class Connection:
    """Keeps what is sent; hands out results when the socket is readable."""

    backend_pid = 7
    status = pq.ConnStatus.OK

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.socket = self.near.fileno()
        self.unsent: list[str] = []
        self.messages: list[list[str]] = []
        self.results: deque[Result | None] = deque()
        self.broken = False

    def send_prepare(self, name: bytes, query: bytes) -> None:
        self.unsent.append(f"prepare {name.decode()}")

    def send_query_prepared(
        self, name: bytes, parameters: Sequence[bytes], param_formats: Sequence[int]
    ) -> None:
        if self.broken:
            raise psycopg.OperationalError("gone")
        self.unsent.append(name.decode())

    def send_query_params(self, query: bytes, parameters: None) -> None:
        self.unsent.append(query.decode())

    def send_query(self, query: bytes) -> None:
        self.unsent.append(query.decode())

    def exit_pipeline_mode(self) -> None:
        self.unsent.append("exit")

    def enter_pipeline_mode(self) -> None:
        self.unsent.append("enter")

    def put_copy_data(self, data: bytes) -> None:
        self.unsent.append(data.decode())

    def put_copy_end(self) -> None:
        self.unsent.append("end")

    def pipeline_sync(self) -> None:
        self.unsent.append("sync")

    def flush(self) -> int:
        self.messages.append(self.unsent)
        self.unsent = []
        return 0

    def consume_input(self) -> None:
        self.near.recv(100)

    def is_busy(self) -> int:
        return not self.results

    def get_result(self) -> Result | None:
        return self.results.popleft()

    def finish(self) -> None:
        self.near.close()

    async def answer(self, *results: Result | pq.ExecStatus) -> None:
        """Answer; after each statement's results comes a None, after a sync none."""
        for result in results:
            whole = result if isinstance(result, Result) else Result(result)
            self.results.append(whole)
            if whole.status is not _SYNC:
                self.results.append(None)
        self.far.send(b"x")
        await asyncio.sleep(0.02)


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    connection = Connection()
    yield connection
    connection.near.close()
    connection.far.close()


@pytest.fixture
async def pipeline(connection: Connection) -> AsyncIterator[Pipeline]:
    pipeline = Pipeline(cast(Any, connection)).attach()
    yield pipeline
    pipeline.close()


def call(*names: bytes) -> list[Prepared]:
    return [Prepared(name, (), ()) for name in names]


async def test_a_round_ends_with_its_sync(connection: Connection, pipeline: Pipeline) -> None:
    done = pipeline.run(call(b"a", b"b"))
    assert connection.messages == [["a", "b", "sync"]]
    await connection.answer(_OK, _OK)
    assert not done.done()
    assert not pipeline.idle
    await connection.answer(_SYNC)
    assert done.result() is None
    assert pipeline.idle


async def test_rounds_that_follow_each_other_are_one_message(
    connection: Connection, pipeline: Pipeline
) -> None:
    first = pipeline.run(call(b"a"), more=True)
    second = pipeline.run(call(b"b"))
    assert connection.messages == [["a", "sync", "b", "sync"]]
    await connection.answer(_OK, _SYNC, _OK, _SYNC)
    assert first.done()
    assert second.done()


async def test_a_failed_round_fails_no_other(connection: Connection, pipeline: Pipeline) -> None:
    first = pipeline.run(call(b"a", b"b", b"c"), more=True)
    second = pipeline.run(call(b"d"))
    await connection.answer(_OK, Result(_FAILED, b"40P01"), _SKIPPED, _SYNC, _OK, _SYNC)
    with pytest.raises(RoundFailedError) as failed:
        first.result()
    assert (failed.value.sqlstate, failed.value.statement) == ("40P01", 1)
    assert second.result() is None


async def test_a_copy_leaves_the_pipeline_and_comes_back(
    connection: Connection, pipeline: Pipeline
) -> None:
    done = pipeline.copy(b"COPY", b"1\n2\n")
    assert connection.messages == [["exit", "COPY"]]
    assert not pipeline.idle
    connection.results.append(Result(_COPY))
    await connection.answer()
    assert connection.messages[1:] == [["1\n2\n", "end"]]
    assert not done.done()
    await connection.answer(Result(_DONE, command_tuples=2))
    assert done.result() == 2
    assert pipeline.idle
    after = pipeline.run(call(b"a"))
    assert connection.messages[2:] == [["enter", "a", "sync"]]
    await connection.answer(_OK, _SYNC)
    assert after.done()


async def test_a_copy_fails_with_what_the_server_said(
    connection: Connection, pipeline: Pipeline
) -> None:
    done = pipeline.copy(b"COPY", b"1\n")
    connection.results.append(Result(_COPY))
    await connection.answer()
    await connection.answer(Result(_FAILED, b"23505"))
    with pytest.raises(RoundFailedError) as failed:
        done.result()
    assert failed.value.sqlstate == "23505"
    assert pipeline.idle


async def test_nobody_knows_of_a_copy_whose_connection_ends(
    connection: Connection, pipeline: Pipeline
) -> None:
    done = pipeline.copy(b"COPY", b"1\n")
    pipeline.close()
    with pytest.raises(ServerGoneError):
        done.result()
    with pytest.raises(ServerGoneError):
        pipeline.copy(b"COPY", b"1\n").result()


async def test_a_statement_is_prepared_with_the_round_that_needs_it(
    connection: Connection, pipeline: Pipeline
) -> None:
    pipeline.prepare(b"a", b"SELECT")
    assert pipeline.knows(b"a")
    done = pipeline.run(call(b"a"))
    assert connection.messages == [["prepare a", "a", "sync"]]
    await connection.answer(pq.ExecStatus.COMMAND_OK, Result(_FAILED, b"22012"), _SYNC)
    with pytest.raises(RoundFailedError) as failed:
        done.result()
    assert failed.value.statement == 0


async def test_statements_that_were_not_used_for_long_are_closed(
    connection: Connection, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgherd_sidecar.pg.pipeline.KEPT_MAX", 2)
    pipeline.prepare(b"stays", b"SELECT")
    rounds = ((b"a", b"stays"), (b"b",), (b"a",), (b"c", b"stays"), (b"d", b"e", b"f"), (b"c",))
    for names in rounds:
        stay = {b"stays": b""}
        statements = [Prepared(n, (), (), stay.get(n, b"SELECT")) for n in names]
        pipeline.provide(statements)
        done = pipeline.run(statements)
        sent = connection.messages[-1]
        await connection.answer(*[_OK] * (len(sent) - 1), _SYNC)
        assert done.done()
        assert done.exception() is None
        assert all(f"DEALLOCATE {name.decode()}" not in sent for name in names)
        assert sent[-1 - len(names) : -1] == [name.decode() for name in names]
    closed = [[word for word in sent if "DEALLOCATE" in word] for sent in connection.messages]
    assert closed[:4] == [[], [], [], ["DEALLOCATE b"]]
    assert connection.messages[3][:2] == ["DEALLOCATE b", "prepare c"], "no refusal keeps it"
    assert sorted(closed[4]) == ["DEALLOCATE a", "DEALLOCATE c"]
    assert len(closed[5]) == 2, "one of three stays beside the new one"
    assert pipeline.knows(b"stays")
    assert not pipeline.knows(b"a")


async def test_rounds_under_way_end_when_the_server_is_gone(
    connection: Connection, pipeline: Pipeline
) -> None:
    under_way = pipeline.run(call(b"a"))
    connection.broken = True
    broken = pipeline.run(call(b"b"))
    after = pipeline.run(call(b"c"))
    for round_ in (under_way, broken, after):
        with pytest.raises(ServerGoneError):
            await round_
    assert pipeline.closed


async def test_a_round_that_nobody_waits_for_any_more_does_no_harm(
    connection: Connection, pipeline: Pipeline
) -> None:
    pipeline.run(call(b"a")).cancel()
    second = pipeline.run(call(b"b"))
    await connection.answer(_OK, _SYNC, _OK, _SYNC)
    assert second.done()
