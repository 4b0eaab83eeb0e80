"""The applier: writes what other members committed, in GID order, on one connection.

Work comes as *items* in chain order. Consecutive remote writesets collect in one batch until
something follows it that has to wait for it, a local transaction above all, or until some
milliseconds have passed and the connection is free; a batch is one round, one transaction
(Slony-II 13.4, "replication backend"). Items that stand alone (DDL, markers) bring their own
procedure.

Each item has a batch number whose token this connection holds in advance, so that a local verdict
can name a batch which has not begun. Once a batch is visible its token is handed on to those who
were told to wait for it; if nobody was, nobody will be, and a later batch takes it over.

Called by ``session``. Nothing survives: what was not applied is delivered again.
"""

import asyncio
import struct
from array import array
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from pgherd_sidecar.agent.applying import About, applying
from pgherd_sidecar.agent.chain import BatchLink, Chain, LocalLink
from pgherd_sidecar.agent.rowwriter import AGAIN_AT_ONCE, AT_ONCE_MAX, RowWriter
from pgherd_sidecar.agent.writers import Writers
from pgherd_sidecar.core.entries import FLAG_FINGERPRINT, Writeset
from pgherd_sidecar.core.merge import Item, decode_body, exclusive_keys, merge_writesets, slots
from pgherd_sidecar.pg import trusted
from pgherd_sidecar.pg.failures import Trouble, judge
from pgherd_sidecar.pg.pipeline import Pipeline, Prepared, RoundFailedError
from pgherd_sidecar.pg.rows import RowStatements

log = structlog.get_logger()

TOKEN_WINDOW = 32
COLLECT_S = 5e-3
"""About what a block takes: the end of one and the beginning of the next are one batch then."""
_BATCH_ROWS = 5_000
_BATCH_BYTES = 4 << 20
_BINARY = 1
_INT64 = struct.Struct("!q")

WRITER_SETTINGS = (
    "SET session_replication_role = replica",
    "SET synchronous_commit = off",
    # A merged statement joins a handful of keys to a table of any size: only index lookups scale.
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET enable_bitmapscan = off",
    "SET plan_cache_mode = force_generic_plan",
    "SET jit = off",
    # The records were written under these (CORRECTNESS C6). A connection begins with them, and with
    # the others of ``pg.settings``, already.
    "SET search_path = pg_catalog",
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SET TimeZone = 'UTC'",
    "SET lc_monetary = 'C'",
    "SET xmloption = 'content'",
    "SET client_min_messages = error",
    # Somebody else is to be the victim of a deadlock.
    "SET deadlock_timeout = '1h'",
    "SET default_transaction_isolation = 'read committed'",
    "SET default_transaction_read_only = off",
    "SET array_nulls = on",
    "SET lock_timeout = 0",
    "SET statement_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
    trusted.AFTERWARDS,  # and from PostgreSQL 17 on transaction_timeout
    # What just fitted the stack at the origin is some calls deeper here.
    """
    DO $$
    DECLARE
        usual pg_catalog.int8 := setting FROM pg_catalog.pg_settings WHERE name = 'max_stack_depth';
    BEGIN
        FOR more IN REVERSE 48 .. 1 LOOP
            BEGIN -- what the kernel allows can't be asked for
                PERFORM pg_catalog.set_config(
                    'max_stack_depth', (usual + usual * more / 16)::pg_catalog.text, false);
                EXIT;
            EXCEPTION WHEN invalid_parameter_value THEN
                NULL;
            END;
        END LOOP;
    END $$
    """,
)
# Written out, because a function of SQL or PL/pgSQL with settings of its own costs as much as the
# rest of a small batch.
_STATEMENTS = {
    # Wait until a local transaction of the chain has ended; it must have committed (C8).
    b"pgherd_wait": b"SELECT CASE WHEN pg_advisory_xact_lock_shared(pgherd.token_of_xid($1::xid8))"
    b" IS NOT NULL AND pg_xact_status($1::xid8) IS DISTINCT FROM 'committed'"
    b" THEN pgherd.not_committed($1::xid8) IS NULL END",
    # After the rows of a batch, before they are visible: do they look as at their origin?
    b"pgherd_compare": b"SELECT pgherd.check_fingerprint($1::int8, $2::text)",
    # After a batch: hand its token to whoever waits, and take that of one to come.
    b"pgherd_pass": b"SELECT pg_advisory_unlock(pgherd.token_of_batch($1::int8)),"
    b" pg_advisory_lock(pgherd.token_of_batch($2::int8))",
}


@dataclass(slots=True, eq=False)
class Work:
    """One item.

    Attributes:
        link: its place in the chain.
        predecessor: the local transaction that must have committed first.
        writesets: keys and rows of a batch.
        gids: of its writesets.
        compared: what compares those of them that carry a fingerprint, by GID.
        guarded: the keys of these, without modes.
        alone: the procedure of an item that is not a batch.
        fresh_catalog: the schema has changed just before it.
        ripe: it has collected long enough.
        passed: its token was handed on.
    """

    link: BatchLink
    predecessor: LocalLink | None
    writesets: list[tuple["array[int]", list[Item]]] = field(default_factory=list)
    gids: list[int] = field(default_factory=list)
    compared: dict[int, list[Prepared]] = field(default_factory=dict)
    guarded: set[int] = field(default_factory=set)
    rows: int = 0
    bytes: int = 0
    alone: Callable[["Work"], Awaitable[None]] | None = None
    fresh_catalog: bool = False
    ripe: bool = False
    passed: bool = False


class Applier:
    """Applies items one after the other.

    Args:
        pipeline: its connection, from `connect_pipeline`.
        chain: the node's commit chain.
        rows: statements for rows.
        first_batch: number of the first batch; tokens from here on are free.
        writers: where it says what it is about.
        repair: makes a certified local transaction good that did not commit.
        on_token: called when more tokens are held.
        collect_s: how long a batch collects that nobody waits for. Others' writesets that come in
            the meantime cost next to nothing more, a batch of their own as much as this one.
        singly_to: up to this GID each writeset is a batch: one of them has failed before.
    """

    def __init__(  # noqa: PLR0913 - what it works with, all by name
        self,
        *,
        pipeline: Pipeline,
        chain: Chain,
        rows: RowStatements,
        first_batch: int,
        writers: Writers,
        repair: Callable[[LocalLink], Awaitable[None]],
        on_token: Callable[[], None],
        collect_s: float = COLLECT_S,
        singly_to: int = 0,
    ) -> None:
        self.pipeline = pipeline
        self.rows = rows
        self.token_limit = first_batch
        self.queued_bytes = 0
        self.batches = 0
        self.applied_writesets = 0
        self._chain = chain
        self._writers = writers
        self._next_batch = first_batch
        self._next_token = first_batch
        self._skip_to = first_batch
        self._unused: list[int] = []
        self._repair = repair
        self._on_token = on_token
        self._collect_s = collect_s
        self._singly_to = singly_to
        self._queue: deque[Work] = deque()
        self._open: Work | None = None
        self._work = asyncio.Event()
        self._fresh_catalog = False
        self._loop = asyncio.get_running_loop()

    # ---- filling the queue -------------------------------------------------------------------

    def add(self, gid: int, writeset: Writeset, keys: "array[int]") -> None:
        """Queue a committed writeset of another member, or one of ours that nobody waits for.

        Args:
            gid: its position.
            writeset: what to apply.
            keys: its ``key_array``.
        """
        items = decode_body(writeset.body)
        work = self._open
        if work is None or self._full(work) or _spoils(work, keys):
            self.close()
            work = self._open = self._append(gid)
            self._loop.call_later(self._collect_s, self._ripen, work)
        work.link.gid = gid
        work.writesets.append((keys, items))
        work.gids.append(gid)
        if compare := comparisons(gid, writeset):
            work.compared[gid] = compare
            work.guarded |= slots(keys)
        for _, _, records in items:
            work.rows += len(records)
        size = len(writeset.body)
        work.bytes += size
        self.queued_bytes += size

    def _full(self, work: Work) -> bool:
        large = work.rows > _BATCH_ROWS or work.bytes > _BATCH_BYTES
        return large or work.link.gid <= self._singly_to

    def add_alone(
        self, gid: int | None, run: Callable[[Work], Awaitable[None]], size: int = 0
    ) -> None:
        """Queue an item with a procedure of its own; ``gid`` None: it writes no link."""
        self.close()
        work = self._append(self._chain.tail_gid if gid is None else gid)
        work.link.closed = True
        self._work.set()
        work.link.pinned = gid is None
        work.alone = run
        work.bytes = size
        self.queued_bytes += size

    def close(self) -> None:
        """Something follows the batch that is collecting, if one is: apply it now."""
        if self._open is not None:
            self._open.link.closed = True
            self._open = None
            self._work.set()

    def _ripen(self, work: Work) -> None:
        work.ripe = True
        self._work.set()

    def schema_changes(self) -> None:
        """A local transaction with DDL was added to the chain: later items see another schema."""
        self._fresh_catalog = True

    def _append(self, gid: int) -> Work:
        tail = self._chain.tail
        if self._unused:
            number = self._unused.pop()
        else:
            number = self._next_batch
            self._next_batch += 1
        link = BatchLink(number, gid, self._chain.tail_gid)
        self._chain.append(link)
        work = Work(link, tail if isinstance(tail, LocalLink) else None)
        work.fresh_catalog, self._fresh_catalog = self._fresh_catalog, False
        self._queue.append(work)
        return work

    # ---- working it off ----------------------------------------------------------------------

    async def take_tokens(self) -> None:
        """Take the tokens of the first batches.

        Raises:
            ServerGoneError: the connection broke.
        """
        limit = self._next_token = self._next_batch + TOKEN_WINDOW
        self.pipeline.prepare(
            b"pgherd_tokens",
            b"SELECT pg_advisory_lock(pgherd.token_of_batch(b))"
            b" FROM generate_series($1::int8, $2::int8) b",
        )
        parameters = (b"%d" % self._next_batch, b"%d" % (limit - 1))
        await self.pipeline.run([Prepared(b"pgherd_tokens", parameters, (0, 0))])
        self.token_limit = limit

    async def run(self) -> None:
        """Apply for ever.

        Raises:
            DivergedError: an item can't be applied.
            EntryFailedError: the connection broke, or the server can't do it now.
        """
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue and (self._queue[0].link.closed or self._queue[0].ripe):
                work = self._queue.popleft()
                if work is self._open:
                    self.close()
                with (
                    applying(work.link.gid, work.link.prev) as about,
                    self._writers.writing(self.pipeline.backend_pid, work.link.gid),
                ):
                    await self._do(work, about)
                self._finish(work)

    async def _do(self, work: Work, about: About) -> None:
        if work.fresh_catalog or work.alone is not None:
            await self._round(work, [])
            self._chain.settle(work.link.prev)
        if work.fresh_catalog:
            self.rows.forget()
        if work.alone is not None:
            await work.alone(work)
        else:
            try:
                await self._round(work, await self._statements(work))
            except Exception as error:
                if judge(error).trouble is not Trouble.REFUSED:
                    raise
                log.warning("batch.refused", gid=work.link.gid, error=judge(error).cause)
                await self._one_by_one(work, about)

    async def _one_by_one(self, work: Work, about: About) -> None:
        """Apply the writesets of a batch one after the other: those before the one that fails are.

        The last one has the GID of the batch, so the chain is as long as if it were one.
        """
        await self._round(work, [])
        writer = RowWriter(self.pipeline, self.rows)
        for gid, (keys, items) in zip(work.gids, work.writesets, strict=True):
            about.gid = gid
            await writer.write(about, keys, items, work.compared.get(gid, ()))
            self._chain.settle(gid)
            about.prev = gid

    async def _round(self, work: Work, statements: list[Prepared]) -> None:
        """Execute these once the predecessor is visible, which is repaired if need be.

        The token is passed on in the same breath. Should the round fail, then too early: who has
        waited for it finds that the batch is not there, and asks the hook instead.
        """
        tries = 0
        while True:
            tries += 1
            predecessor = work.predecessor
            round_ = statements
            if predecessor is not None and predecessor.gid > self._chain.settled_gid:
                round_ = [awaited(predecessor.xid), *statements]
            if not round_:
                return
            held = work.link.named and work.link.number < self._next_token
            passes = bool(statements) and held and not work.passed
            running = self.pipeline.run(round_, more=passes)
            if passes:
                self._pass_token(work)
            try:
                await running
                return
            except RoundFailedError as error:
                if error.sqlstate == "PH002" and predecessor is not None:
                    await self._repair(predecessor)
                    work.predecessor = None
                elif error.raised or error.sqlstate not in AGAIN_AT_ONCE or tries == AT_ONCE_MAX:
                    raise

    async def _statements(self, work: Work) -> list[Prepared]:
        tables = {table for _, items in work.writesets for table, _, _ in items}
        unknown = [table for table in tables if not self.rows.knows(table)]
        if unknown:
            await self.rows.learn(unknown)
        plan = merge_writesets(work.writesets, self.rows.key_columns)
        statements = self.rows.prepared(plan, work.link.gid, work.link.prev)
        for statement in statements:
            if not self.pipeline.knows(statement.name):
                self.pipeline.prepare(statement.name, self.rows.query(statement.name))
        return statements + [one for compare in work.compared.values() for one in compare]

    def _finish(self, work: Work) -> None:
        self.batches += 1
        self.applied_writesets += len(work.writesets)
        self.queued_bytes -= work.bytes
        work.link.pinned = False
        self._chain.settle(work.link.gid)
        if work.passed:
            return
        if work.link.number >= self._next_token:
            self._skip_to = work.link.number + 1  # done without a token: there were too many
            self._skip()
        elif work.link.named:
            self._pass_token(work)
        else:
            self._unused.append(work.link.number)

    def _pass_token(self, work: Work) -> None:
        work.passed = True
        numbers = (b"%d" % work.link.number, b"%d" % self._next_token)
        self._next_token += 1
        passing = self.pipeline.run([Prepared(b"pgherd_pass", numbers, (0, 0))])
        passing.add_done_callback(self._passed)

    def _passed(self, passing: "asyncio.Future[None]") -> None:
        if not passing.cancelled() and passing.exception() is None:
            self.token_limit += 1
            self._skip()
            self._on_token()

    def _skip(self) -> None:
        """Leave out the tokens of batches that are done, once none is being taken before them."""
        if self.token_limit == self._next_token < self._skip_to:
            self.token_limit = self._next_token = self._skip_to
            self._on_token()


async def connect_pipeline(conninfo: str) -> Pipeline:
    """Open a connection that can write as the applier does.

    Raises:
        ServerGoneError: the server does not answer, or refuses.
    """
    pipeline = await Pipeline.connect(conninfo, WRITER_SETTINGS)
    for name, query in _STATEMENTS.items():
        pipeline.prepare(name, query)
    return pipeline


def _spoils(work: Work, keys: "array[int]") -> bool:
    """Whether a writeset would change rows whose fingerprint an earlier one of the batch carries.

    These are compared when all of the batch is written. Whoever changes a row takes its key
    exclusively, and whoever truncates a table takes the key that all its writers share.
    """
    return bool(work.guarded) and not work.guarded.isdisjoint(
        key & -4 for key in exclusive_keys(keys)
    )


def comparisons(gid: int, writeset: Writeset) -> list[Prepared]:
    """What comes after the rows of a writeset: it fails with PH003 if they are not its origin's.

    Empty if the writeset carries no fingerprint.
    """
    if not writeset.flags & FLAG_FINGERPRINT:
        return []
    return [Prepared(b"pgherd_compare", (_INT64.pack(gid), writeset.body), (_BINARY, _BINARY))]


def awaited(xid: int) -> Prepared:
    """The statement that waits for a local transaction and fails with PH002 if it aborted."""
    return Prepared(b"pgherd_wait", (b"%d" % xid,), (0,))
