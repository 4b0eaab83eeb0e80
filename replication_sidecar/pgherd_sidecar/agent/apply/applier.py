"""The applier: writes what other members committed, in GID order, on one connection.

``core.commit.batches`` says what it writes, and which tokens it holds meanwhile. A batch is one
round of the connection. Nothing survives: all that was not applied is delivered again.
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from pgherd_sidecar.agent.apply.applying import About, applying
from pgherd_sidecar.agent.apply.rowwriter import AGAIN_AT_ONCE, AT_ONCE_MAX, RowWriter
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.core.commit.batches import Batches, Procedure, Work
from pgherd_sidecar.core.commit.chain import Chain, LocalLink
from pgherd_sidecar.core.replication.merge import merge_writesets
from pgherd_sidecar.pg import trusted
from pgherd_sidecar.pg.failures import Trouble, judge_error
from pgherd_sidecar.pg.pipeline import Pipeline, Prepared, RoundFailedError
from pgherd_sidecar.pg.rows import RowStatements

log = structlog.get_logger()

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
    # The records were written under these (C6). A connection begins with them, and with
    # the others of ``pg.settings``, already.
    "SET search_path = pg_catalog",
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SET TimeZone = 'UTC'",
    "SET lc_monetary = 'C'",
    "SET xmloption = 'content'",
    "SET client_min_messages = error",
    "SET log_parameter_max_length = 0",  # rows may hold secrets
    # Somebody else is to be the victim of a deadlock.
    "SET deadlock_timeout = '1h'",
    "SET default_transaction_isolation = 'read committed'",
    "SET default_transaction_read_only = off",
    "SET array_nulls = on",
    "SET lock_timeout = 0",
    "SET statement_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
    trusted.AFTERWARDS,  # and from PostgreSQL 17 on transaction_timeout
    # A statement that just fitted the stack at the origin is some calls deeper here.
    """
    DO $$
    DECLARE
        usual pg_catalog.int8 :=
            pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_stack_depth')) / 1024;
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


class Applier:
    """Applies items one after the other.

    Args:
        pipeline: its connection, from `connect_pipeline`.
        chain: the node's commit chain.
        batches: what there is to do.
        rows: statements for rows.
        writers: where it says what it is about.
        repair: makes a certified local transaction good that did not commit.
        perform: does what is not a batch.
        on_token: called when more tokens are held.
    """

    def __init__(  # noqa: PLR0913 - what it works with, all by name
        self,
        *,
        pipeline: Pipeline,
        chain: Chain,
        batches: Batches,
        rows: RowStatements,
        writers: Writers,
        repair: Callable[[LocalLink], Awaitable[None]],
        perform: Callable[[Work], Awaitable[None]],
        on_token: Callable[[], None],
    ) -> None:
        self.applied_batches = 0
        self.applied_writesets = 0
        self._pipeline = pipeline
        self._chain = chain
        self._batches = batches
        self._rows = rows
        self._writers = writers
        self._repair = repair
        self._perform = perform
        self._on_token = on_token
        self._work = asyncio.Event()
        self._ahead: tuple[Work, list[Prepared]] | None = None
        self._ripening: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def queue(self, procedure: Callable[[], Awaitable[None]]) -> None:
        """Have a procedure run between what was delivered before and after it."""
        self._batches.add_alone(None, Procedure(procedure))
        self._work.set()

    def wake(self) -> None:
        """There may be something to do now: after all that adds to the queue or closes a batch."""
        ready_in_s = self._batches.ready_in_s(monotonic())
        if ready_in_s == 0.0:
            self._work.set()
        elif ready_in_s is not None and self._ripening is None:
            self._ripening = self._loop.call_later(ready_in_s, self._ripen)

    def _ripen(self) -> None:
        self._ripening = None
        self.wake()

    # ---- working it off ----------------------------------------------------------------------

    async def take_tokens(self) -> None:
        """Take the tokens of the first batches.

        Raises:
            ServerGoneError: the connection broke.
        """
        first, last = self._batches.first_tokens()
        self._pipeline.prepare(
            b"pgherd_tokens",
            b"SELECT pg_advisory_lock(pgherd.token_of_batch(b))"
            b" FROM generate_series($1::int8, $2::int8) b",
        )
        parameters = (b"%d" % first, b"%d" % last)
        await self._pipeline.run([Prepared(b"pgherd_tokens", parameters, (0, 0))])
        self._batches.hold_first()

    async def run(self) -> None:
        """Apply for ever.

        Raises:
            DivergedError: an item can't be applied.
            EntryFailedError: the connection broke, or the server can't do it now.
        """
        while True:
            await self._work.wait()
            self._work.clear()
            while (work := self._batches.pop_ready(monotonic())) is not None:
                with (
                    applying(work.link.gid, work.link.prev) as about,
                    self._writers.writing(self._pipeline.backend_pid, work.link.gid),
                ):
                    await self._do(work, about)
                self._finish(work)
            self.wake()

    async def _do(self, work: Work, about: About) -> None:
        if work.fresh_catalog or work.task is not None:
            await self._round(work, [])
            self._chain.settle_to(work.link.prev)
        if work.fresh_catalog:
            self._rows.forget_shapes()
        if work.task is not None:
            await self._perform(work)
        else:
            try:
                await self._round(work, await self._statements(work))
            except Exception as error:
                if judge_error(error).trouble is not Trouble.REFUSED:
                    raise
                log.warning("batch.refused", gid=work.link.gid, error=judge_error(error).cause)
                await self._one_by_one(work, about)

    async def _one_by_one(self, work: Work, about: About) -> None:
        """Apply the writesets of a batch one after the other: those before the one that fails are.

        The last one has the GID of the batch, so the chain is as long as if it were one.
        """
        await self._round(work, [])
        writer = RowWriter(self._pipeline, self._rows)
        for gid, (keys, items) in zip(work.gids, work.writesets, strict=True):
            about.gid = gid
            body = work.compared.get(gid)
            compare = [] if body is None else [comparison(gid, body)]
            await writer.write(about, keys, items, compare)
            self._chain.settle_to(gid)
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
            passes = bool(statements) and self._batches.may_pass(work)
            running = self._pipeline.run(round_, more=passes)
            if passes:
                self._pass_token(work)
            if statements:
                self._look_ahead()
            try:
                await running
                return
            except RoundFailedError as error:
                waited = round_ is not statements and error.statement == 0
                if error.sqlstate == "PH002" and waited and predecessor is not None:
                    await self._repair(predecessor)
                    work.predecessor = None
                elif error.raised or error.sqlstate not in AGAIN_AT_ONCE or tries == AT_ONCE_MAX:
                    raise

    async def _statements(self, work: Work) -> list[Prepared]:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] is work:
            statements = ahead[1]
        else:
            await self._rows.learn_tables(self._unknown_tables(work))
            statements = self._merged(work)
        self._pipeline.provide(statements)
        return statements + [comparison(gid, body) for gid, body in work.compared.items()]

    def _look_ahead(self) -> None:
        """Merge the next batch while the server writes rows of this one.

        Whatever is wrong with it is found once more in its turn, and told of it.
        """
        work = self._batches.next_closed()
        if work is None or (self._ahead is not None and self._ahead[0] is work):
            return
        if not self._unknown_tables(work):
            with contextlib.suppress(Exception):
                self._ahead = work, self._merged(work)

    def _unknown_tables(self, work: Work) -> list[str]:
        tables = {table for _, items in work.writesets for table, _, _ in items}
        return [table for table in tables if not self._rows.knows(table)]

    def _merged(self, work: Work) -> list[Prepared]:
        plan = merge_writesets(work.writesets, self._rows)
        return self._rows.prepared(plan, work.link.gid, work.link.prev)

    def _finish(self, work: Work) -> None:
        self.applied_batches += 1
        self.applied_writesets += len(work.writesets)
        limit = self._batches.token_limit
        if self._batches.finish_item(work):
            self._pass_token(work)
        elif self._batches.token_limit > limit:
            self._on_token()

    def _pass_token(self, work: Work) -> None:
        numbers = tuple(b"%d" % number for number in self._batches.pass_token(work))
        passing = self._pipeline.run([Prepared(b"pgherd_pass", numbers, (0, 0))])
        passing.add_done_callback(self._passed)

    def _passed(self, passing: "asyncio.Future[None]") -> None:
        if not passing.cancelled() and passing.exception() is None:
            self._batches.hold_next()
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


def comparison(gid: int, body: bytes) -> Prepared:
    """Return what comes after the rows of a writeset that carries a fingerprint.

    It fails with PH003 if they are not its origin's.
    """
    return Prepared(b"pgherd_compare", (_INT64.pack(gid), body), (_BINARY, _BINARY))


def awaited(xid: int) -> Prepared:
    """The statement that waits for a local transaction and fails with PH002 if it aborted."""
    return Prepared(b"pgherd_wait", (b"%d" % xid,), (0,))
