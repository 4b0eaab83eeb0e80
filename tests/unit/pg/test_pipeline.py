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
_FAILED, _SKIPPED = pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED


@dataclass
class Result:
    status: pq.ExecStatus
    sqlstate: bytes = b""

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
