"""What the applier sends, when it collects, and what it does with failures: without a server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, cast

import msgspec
import pytest
from pgherd_sidecar.agent.apply.applier import WRITER_SETTINGS, Applier
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.agent.base.errors import DivergedError, EntryFailedError
from pgherd_sidecar.core.commit.batches import TOKEN_WINDOW, Batches, Procedure, Work
from pgherd_sidecar.core.commit.chain import BatchLink, Chain, LocalLink
from pgherd_sidecar.core.replication.entries import FLAG_FINGERPRINT, Writeset, key_array
from pgherd_sidecar.core.replication.merge import Plan
from pgherd_sidecar.env.storage.segments import StorageError
from pgherd_sidecar.pg.failures import Trouble
from pgherd_sidecar.pg.pipeline import Prepared, RoundFailedError, ServerGoneError
from pgherd_sidecar.pg.rows import RowStatements, TableShape

FIRST_BATCH = 1 << 32


class Pipeline:
    """Keeps rounds; the test ends them."""

    backend_pid = 7

    def __init__(self) -> None:
        self.rounds: list[tuple[list[str], asyncio.Future[None]]] = []
        # One of those that the connection has from its beginning.
        self.texts: dict[bytes, bytes] = {b"pgherd_compare": b""}
        self.together: list[bool] = []
        self.parameters: list[list[bytes | None]] = []

    def knows(self, name: bytes) -> bool:
        return name in self.texts

    def prepare(self, name: bytes, query: bytes) -> None:
        self.texts[name] = query

    def provide(self, statements: Sequence[Prepared]) -> None:
        for statement in statements:
            if not self.knows(statement.name):
                self.prepare(statement.name, statement.query)

    def run(self, statements: Sequence[Prepared], *, more: bool = False) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rounds.append(([self._kind(statement) for statement in statements], future))
        self.together.append(more)
        self.parameters += [list(s.parameters) for s in statements if s.name == b"pgherd_compress"]
        return future

    def _kind(self, statement: Prepared) -> str:
        if b"pgherd.applied" in self.texts.get(statement.name, b""):
            return "rows"
        return statement.name.decode().removeprefix("pgherd_")

    @property
    def kinds(self) -> list[list[str]]:
        return [kinds for kinds, _ in self.rounds]

    async def end(self, number: int, error: RoundFailedError | None = None) -> None:
        future = self.rounds[number][1]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def writeset(gid: int) -> Writeset:
    body = b'[["t",[%d],["U01(%d,x)"]]]' % (gid * 4, gid)
    keys = b"".join(n.to_bytes(8, "big") for n in (0, 1, gid * 4 + 2))
    return Writeset(2, 1, gid, 1, gid, 0, keys, body)


class Node:
    """An applier with its chain, and who was repaired."""

    running: "asyncio.Future[None]"

    def __init__(self, collect_s: float = 0, singly_to: int = 0) -> None:
        self.pipeline = Pipeline()
        self.chain = Chain(10)
        self.repaired: list[int] = []
        self.tokens = 0
        self.batches = Batches(self.chain, FIRST_BATCH, collect_s=collect_s, singly_to=singly_to)
        self.applier = Applier(
            pipeline=cast(Any, self.pipeline),
            chain=self.chain,
            batches=self.batches,
            rows=RowStatements(self._describe),
            writers=Writers(),
            repair=self._repair,
            perform=self._perform,
            on_token=self._more,
        )

    async def _describe(self, table: str) -> TableShape:
        return TableShape(["id", "v"], [0], frozenset(), "o.id = n.id", False, table)

    async def _repair(self, link: LocalLink) -> None:
        self.repaired.append(link.gid)
        self.chain.settle_to(link.gid)

    async def _perform(self, work: Work) -> None:
        assert isinstance(work.task, Procedure)
        await work.task.run()

    def _more(self) -> None:
        self.tokens += 1

    def add(self, gid: int, one: Writeset) -> None:
        """Queue a writeset."""
        self.batches.add_writeset(gid, one, key_array(one.keys), monotonic())
        self.applier.wake()

    def add_alone(self, gid: int | None, run: Callable[[], Awaitable[None]]) -> None:
        """Queue a task."""
        self.batches.add_alone(gid, Procedure(run))
        self.applier.wake()

    def close(self) -> None:
        """Something follows."""
        self.batches.close_batch()
        self.applier.wake()

    def remote(self, *gids: int) -> None:
        for gid in gids:
            self.add(gid, writeset(gid))

    def local(self, gid: int) -> None:
        tail = self.chain.tail
        self.close()
        if isinstance(tail, BatchLink):
            tail.named = True
        self.chain.append(LocalLink(gid, self.chain.tail_gid, gid, 77, writeset(gid), 0.0))


@contextlib.asynccontextmanager
async def running(collect_s: float, singly_to: int = 0) -> AsyncIterator[Node]:
    node = Node(collect_s, singly_to)
    taking = asyncio.ensure_future(node.applier.take_tokens())
    await settled()
    await node.pipeline.end(0)
    await taking
    node.pipeline.rounds.clear()
    node.pipeline.together.clear()
    node.running = asyncio.ensure_future(node.applier.run())
    yield node
    node.running.cancel()
    with contextlib.suppress(asyncio.CancelledError, DivergedError, ServerGoneError, StorageError):
        await node.running


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(0) as node:
        yield node


@pytest.fixture
async def patient() -> AsyncIterator[Node]:
    async with running(3600) as node:
        yield node


async def test_a_batch_that_nobody_waits_for_collects(patient: Node) -> None:
    patient.remote(11)
    await settled()
    patient.remote(12)
    await settled()
    assert patient.pipeline.kinds == []
    patient.local(13)
    await settled()
    assert patient.pipeline.kinds == [["rows"], ["pass"]]
    await patient.pipeline.end(0)
    assert patient.chain.settled_gid == 12


def marked(gid: int, *, row: int, shared: int = 400, exclusive: bool = False) -> Writeset:
    """An update of a row that carries a fingerprint; its table's key is shared, or taken."""
    body = b'[["t",[%d],["U01(%d,x)"]],["=",[0],["[1]"]]]' % (row * 4, row)
    numbers = (0, 2, row * 4 + 2, shared + (3 if exclusive else 0))
    keys = b"".join(n.to_bytes(8, "big") for n in numbers)
    return Writeset(2, 1, gid, 1, gid, FLAG_FINGERPRINT, keys, body)


async def test_rows_are_compared_with_their_fingerprint_when_all_of_the_batch_is_written(
    patient: Node,
) -> None:
    for one in (writeset(11), marked(12, row=1), marked(13, row=2), writeset(14)):
        patient.add(one.sequence, one)
    patient.local(15)
    await settled()
    assert patient.pipeline.kinds == [["rows", "compare", "compare"], ["pass"]]


@pytest.mark.parametrize(
    "later",
    [marked(12, row=1), marked(12, row=2, exclusive=True)],
    ids=["the same row", "all rows of the table"],
)
async def test_whoever_changes_a_row_with_a_fingerprint_again_is_of_a_later_batch(
    node: Node, later: Writeset
) -> None:
    for one in (marked(11, row=1), later):
        node.add(one.sequence, one)
    node.close()
    await settled()
    assert node.pipeline.kinds == [["rows", "compare"]]
    await node.pipeline.end(0)
    assert node.pipeline.kinds[1:] == [["rows", "compare"]]


async def test_a_fingerprint_may_follow_other_changes_of_its_row(patient: Node) -> None:
    for one in (writeset(11), marked(12, row=11)):
        patient.add(one.sequence, one)
    patient.local(13)
    await settled()
    assert patient.pipeline.kinds == [["rows", "compare"], ["pass"]]


async def test_what_stands_alone_ends_a_batch_that_collects(patient: Node) -> None:
    async def run() -> None:
        pass

    patient.remote(11)
    patient.add_alone(None, run)
    await settled()
    await patient.pipeline.end(0)
    assert patient.chain.settled_gid == 11


async def test_a_batch_and_its_token_are_one_message(node: Node) -> None:
    node.remote(11)
    node.local(12)
    await settled()
    assert node.pipeline.kinds == [["rows"], ["pass"]]
    assert node.pipeline.together == [True, False]
    await node.pipeline.end(0)
    assert node.chain.settled_gid == 11
    assert node.batches.queued_bytes == 0


async def test_what_comes_while_a_batch_is_under_way_is_one_batch(node: Node) -> None:
    node.remote(11)
    await settled()
    node.remote(12, 13, 15)
    await settled()
    assert len(node.pipeline.rounds) == 1
    await node.pipeline.end(0)
    assert node.pipeline.kinds[1:] == [["rows"]]
    await node.pipeline.end(1)
    assert node.chain.settled_gid == 15
    assert (node.applier.applied_batches, node.applier.applied_writesets) == (2, 4)


async def test_a_batch_is_bounded_however_much_waits(node: Node) -> None:
    node.remote(11)
    await settled()
    large = msgspec.structs.replace(
        writeset(12), body=b'[["t",[48],["U01(12,%b)"]]]' % (b"x" * (2 << 20))
    )
    for gid in range(12, 18):
        node.add(gid, large)
    assert node.batches.queued_bytes > 12 << 20
    for number in range(4):
        await node.pipeline.end(number)
    assert node.pipeline.kinds == [["rows"]] * 4
    assert node.chain.settled_gid == 17
    assert node.batches.queued_bytes == 0


async def test_a_batch_waits_for_the_local_transaction_before_it(node: Node) -> None:
    node.remote(11)
    node.local(12)
    node.remote(13)
    await settled()
    assert node.pipeline.kinds == [["rows"], ["pass"]]
    await node.pipeline.end(0)
    assert node.pipeline.kinds[2:] == [["wait", "rows"]]


def prepared_gids(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GIDs of the batches whose statements are made from now on, in that order."""
    made: list[int] = []
    prepared = RowStatements.prepared

    def noting(rows: RowStatements, plan: Plan, gid: int, prev: int) -> list[Prepared]:
        made.append(gid)
        return prepared(rows, plan, gid, prev)

    monkeypatch.setattr(RowStatements, "prepared", noting)
    return made


async def test_the_next_batch_is_merged_while_the_server_writes_this_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared_gids(node, monkeypatch)
    node.remote(11)
    await settled()
    node.remote(12)
    node.local(13)
    node.remote(14)  # it may still collect
    await settled()
    assert made == [11]  # nothing was closed when the round began
    await node.pipeline.end(0)
    node.local(15)
    node.remote(16)
    node.close()
    await node.pipeline.end(1, RoundFailedError("40P01", "deadlock", 0))
    assert made == [11, 12, 14]  # and only once
    assert node.chain.settled_gid == 11
    assert node.pipeline.kinds == [["rows"], ["rows"], ["pass"], ["rows"]]
    await node.pipeline.end(3)
    assert node.pipeline.kinds[4:] == [["wait", "rows"], ["pass"]]
    await node.pipeline.end(4)
    assert node.pipeline.kinds[6:] == [["wait", "rows"]]
    assert made == [11, 12, 14, 16]


async def test_what_follows_a_command_is_not_merged_before_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared_gids(node, monkeypatch)
    node.local(11)
    node.remote(12)
    node.local(13)
    node.batches.note_schema_change()  # 13 was one
    node.remote(14)
    node.close()
    await settled()
    assert made == [12]


async def test_a_writeset_that_cant_be_merged_stops_the_node_in_its_turn(node: Node) -> None:
    node.local(11)
    node.remote(12)
    node.local(13)
    node.add(14, msgspec.structs.replace(writeset(14), body=b'[["t",[56],["X(14,x)"]]]'))
    node.close()
    await settled()
    await node.pipeline.end(0)
    assert node.chain.settled_gid == 12
    assert node.pipeline.kinds == [["wait", "rows"], ["pass"], ["wait"]]
    await node.pipeline.end(2)
    with pytest.raises(DivergedError) as diverged:
        await node.running
    failure = diverged.value.failure
    assert failure is not None
    assert (failure.gid, failure.prev) == (14, 13)


async def test_a_local_transaction_that_did_not_commit_is_repaired_first(node: Node) -> None:
    node.local(11)
    node.remote(12)
    await settled()
    await node.pipeline.end(0, RoundFailedError("PH002", "it did not commit", 0))
    assert node.repaired == [11]
    assert node.pipeline.kinds == [["wait", "rows"], ["rows"]]
    await node.pipeline.end(1)
    assert node.chain.settled_gid == 12


async def test_what_a_users_function_raises_repairs_nothing(node: Node) -> None:
    node.local(11)
    node.remote(12)
    await settled()
    await node.pipeline.end(0, RoundFailedError("PH002", "a CHECK says so", 1, raised=True))
    assert node.repaired == []
    assert node.pipeline.kinds == [["wait", "rows"], ["wait"]]


async def test_a_token_is_passed_once_however_often_the_batch_is_tried(node: Node) -> None:
    node.remote(11)
    node.local(12)
    await settled()
    await node.pipeline.end(0, RoundFailedError("40P01", "deadlock", 0))
    await node.pipeline.end(2, RoundFailedError("57014", "cancelled", 0))
    assert node.pipeline.kinds == [["rows"], ["pass"], ["rows"], ["rows"]]


async def test_the_token_of_a_batch_that_nobody_waits_for_goes_to_a_later_one(node: Node) -> None:
    node.remote(11)
    await settled()
    await node.pipeline.end(0)
    node.remote(12)
    assert cast(BatchLink, node.chain.tail).number == FIRST_BATCH
    node.local(13)
    await settled()
    assert node.pipeline.kinds == [["rows"], ["rows"], ["pass"]]


async def test_tokens_are_held_again_after_a_backlog_of_more_batches_than_there_are(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgherd_sidecar.core.commit.batches._BATCH_ROWS", 0)  # each is a full batch
    backlog = 3 * TOKEN_WINDOW
    node.remote(*range(11, 11 + backlog))
    node.local(11 + backlog)
    last = node.batches._queue[-1].link
    assert last.named and last.number >= node.batches.token_limit
    await settled()
    for round_ in range(backlog):
        await node.pipeline.end(round_)
    assert node.applier.applied_batches == backlog
    assert last.number < node.batches.token_limit  # who has to wait for it is told now
    for gid in range(200, 200 + TOKEN_WINDOW):
        node.remote(gid)
        assert cast(BatchLink, node.chain.tail).number < FIRST_BATCH + TOKEN_WINDOW


async def test_who_is_told_to_wait_for_a_batch_under_way_gets_its_token(node: Node) -> None:
    node.remote(11)
    await settled()
    node.local(12)
    await settled()
    assert node.pipeline.kinds == [["rows"]]
    await node.pipeline.end(0)
    assert node.pipeline.kinds == [["rows"], ["pass"]]


async def test_a_batch_that_cannot_be_applied_stops_the_node(node: Node) -> None:
    node.remote(11)
    await settled()
    wrong = RoundFailedError("PH001", "0 rows affected instead of 1", 0)
    await node.pipeline.end(0, wrong)  # then alone, then row by row
    assert node.pipeline.kinds == [["rows"], ["rows"]]
    await node.pipeline.end(1, wrong)
    assert node.pipeline.kinds[2] == ["compress", "3", "rows"]
    await node.pipeline.end(2, RoundFailedError("PH001", "0 rows affected instead of 1", 1))
    with pytest.raises(DivergedError, match="GID 11: UPDATE t: PH001: 0 rows") as diverged:
        await node.running
    failure = diverged.value.failure
    assert failure is not None
    assert (failure.gid, failure.prev, failure.table, failure.row) == (11, 10, "t", "id = 11")


async def test_a_batch_that_fails_is_compared_writeset_by_writeset(patient: Node) -> None:
    for one in (marked(11, row=1), writeset(12), marked(13, row=2)):
        patient.add(one.sequence, one)
    patient.close()
    await settled()
    assert patient.pipeline.kinds == [["rows", "compare", "compare"]]
    differs = RoundFailedError("PH003", "a row is not the same", 1, table="t", detail="id = 2")
    await patient.pipeline.end(0, differs)
    await patient.pipeline.end(1)
    await patient.pipeline.end(2)
    assert patient.chain.settled_gid == 12
    assert patient.pipeline.kinds[1:] == [["rows", "compare"], ["rows"], ["rows", "compare"]]
    await patient.pipeline.end(3, differs)
    with pytest.raises(DivergedError, match="GID 13: t: PH003: a row is not the same") as diverged:
        await patient.running
    failure = diverged.value.failure
    assert failure is not None
    assert (failure.gid, failure.prev, failure.table, failure.row) == (13, 12, "t", "id = 2")


async def test_rows_that_are_written_one_by_one_are_compared(node: Node) -> None:
    one = marked(11, row=1)
    node.add(11, one)
    node.close()
    await settled()
    large = RoundFailedError("54000", "index row size exceeds the maximum", 0)
    await node.pipeline.end(0, large)
    await node.pipeline.end(1, large)
    assert node.pipeline.kinds[2] == ["compress", "3", "rows", "compare"]


async def test_of_a_batch_that_fails_the_writesets_before_the_one_to_blame_are_applied(
    node: Node,
) -> None:
    wrong = RoundFailedError("23505", "duplicate key value", 0, table="public.t", constraint="t_v")
    node.pipeline.run([])  # something is under way, so the next ones collect
    node.remote(11, 12)
    await settled()
    await node.pipeline.end(1, wrong)
    await node.pipeline.end(2)
    assert node.chain.settled_gid == 11
    await node.pipeline.end(3, wrong)
    await node.pipeline.end(4, RoundFailedError("23505", "duplicate", 1, constraint="t_v"))
    with pytest.raises(DivergedError) as diverged:
        await node.running
    failure = diverged.value.failure
    assert failure is not None
    assert (failure.gid, failure.prev, failure.key) == (12, 11, "t_v")


async def test_an_index_that_takes_a_value_compressed_otherwise_stops_nobody(node: Node) -> None:
    large = RoundFailedError("54000", "index row size 7368 exceeds maximum 2704", 1)
    node.remote(11)
    await settled()
    for number in range(3):
        await node.pipeline.end(number, large)
    assert node.pipeline.kinds[3] == ["compress", "3", "rows"]
    assert node.pipeline.parameters == [[b"pglz"], [b"lz4"]]
    await node.pipeline.end(3)
    assert node.chain.settled_gid == 11


@pytest.mark.parametrize("sqlstate", ["54000", "22023"])
async def test_a_row_that_no_compression_makes_small_enough_stops_the_node(
    node: Node, sqlstate: str
) -> None:
    node.remote(11)
    await settled()
    for number in range(3):
        await node.pipeline.end(number, RoundFailedError("54000", "index row size", 1))
    await node.pipeline.end(3, RoundFailedError(sqlstate, "again", 1))
    with pytest.raises(DivergedError, match="54000: index row size"):
        await node.running


async def test_a_deadlock_that_goes_on_does_not_keep_the_applier_busy_for_ever(node: Node) -> None:
    node.remote(11)
    await settled()
    for number in range(10):
        await node.pipeline.end(number, RoundFailedError("40P01", "deadlock", 0))
    with pytest.raises(EntryFailedError):
        await node.running


async def test_what_a_function_raises_as_a_deadlock_is_none(node: Node) -> None:
    node.remote(11)
    await settled()
    await node.pipeline.end(0, RoundFailedError("40P01", "as I like", 0, raised=True))
    with pytest.raises(EntryFailedError) as failed:
        await node.running
    assert failed.value.failure.trouble is Trouble.FAILED


async def test_an_exception_of_any_type_is_a_divergence_of_this_database(node: Node) -> None:
    async def run() -> None:
        raise TypeError("SQL values must be strings, got None instead")

    node.add_alone(11, run)
    with pytest.raises(DivergedError, match="GID 11: TypeError: SQL values") as diverged:
        await node.running
    assert isinstance(diverged.value.__cause__, TypeError)


async def test_a_log_that_cannot_be_read_is_no_divergence(node: Node) -> None:
    async def run() -> None:
        raise StorageError("the log does not hold position 7")

    node.add_alone(11, run)
    with pytest.raises(StorageError):
        await node.running


@pytest.mark.parametrize("sqlstate", ["53100", "53200", "55P03", "57P01", "58030"])
async def test_what_the_server_cannot_do_now_ends_the_session_and_is_no_divergence(
    node: Node, sqlstate: str
) -> None:
    node.remote(11)
    await settled()
    await node.pipeline.end(0, RoundFailedError(sqlstate, "not now", 0))
    with pytest.raises(ServerGoneError, match="GID 11"):
        await node.running


async def test_where_something_failed_before_each_writeset_is_a_batch() -> None:
    async with running(0, singly_to=12) as node:
        node.pipeline.run([])  # something is under way, so the next ones collect
        node.remote(11, 12, 13, 14)
        await settled()
        await node.pipeline.end(1)
        assert node.chain.settled_gid == 11
        await node.pipeline.end(2, RoundFailedError("58030", "could not read", 0))
        with pytest.raises(EntryFailedError) as failed:
            await node.running
        assert (failed.value.failure.gid, failed.value.failure.prev) == (12, 11)
        assert [work.gids for work in node.batches._queue] == [[13, 14]]


async def test_a_verdict_may_name_a_batch_only_when_its_token_is_held(node: Node) -> None:
    limit = FIRST_BATCH + TOKEN_WINDOW
    assert node.batches.token_limit == limit
    node.remote(11)
    node.local(12)
    await settled()
    await node.pipeline.end(0)
    assert node.batches.token_limit == limit
    await node.pipeline.end(1)
    assert node.batches.token_limit == limit + 1
    assert node.tokens == 1


async def test_what_stands_alone_is_done_between_the_batches_around_it(node: Node) -> None:
    seen: list[int] = []

    async def run() -> None:
        seen.append(node.chain.settled_gid)

    node.remote(11)
    node.add_alone(None, run)
    node.remote(12)
    await settled()
    assert seen == []
    await node.pipeline.end(0)
    assert seen == [11]
    await settled()
    assert node.pipeline.kinds == [["rows"], ["rows"]]
    await node.pipeline.end(1)
    assert node.chain.settled_gid == 12


@pytest.mark.parametrize(
    "timeout",
    ["lock", "statement", "idle_in_transaction_session", "transaction"],
)
def test_no_timeout_ends_a_writer(timeout: str) -> None:
    """The last one is not known to servers before PostgreSQL 17, so it can't simply be set."""
    switched_off = [s for s in WRITER_SETTINGS if f"{timeout}_timeout" in s.split("'") + s.split()]
    assert len(switched_off) == 1
    assert ("set_config" in switched_off[0]) == (timeout == "transaction")
