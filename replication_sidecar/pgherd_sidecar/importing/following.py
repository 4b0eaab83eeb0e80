"""Applies what the slot tells: whole transactions of the source, in their order, exactly once.

Consecutive transactions are joined while more is at hand, and applied as one transaction of the
herd, which also moves the position: from the end of the last commit that is here to the end of
these. Whatever goes wrong on the way, the stream is read again from the position that the herd
has. A large transaction is written while it comes, and committed at its end; one that is too large
for the herd is committed in parts. Nobody relies on what is here before the cut-over, which waits
for the rest.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg

from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends.errors import Changed, ImportFailed
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.importing.ends.target import (
    NO_PART,
    Copied,
    SourcePart,
    Target,
    standing_values,
)
from pgherd_sidecar.importing.stream import Stream
from pgherd_sidecar.tables.folding import (
    Emptied,
    FoldingError,
    Key,
    RowChange,
)
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.pending import Pending
from pgherd_sidecar.tables.rowsql import RowsKeptError, RowsMissingError, Writer
from pgherd_sidecar.tables.sessions import Session, is_transient, message_of
from pgherd_sidecar.tables.values import UNCHANGED, Row, Value

_WAIT_S = 0.05
"""How long what has come waits for more."""
_ASK_S = 1.0
_PARTS = 32
"""So many are committed together: far less than a herd takes at once, in bytes and in keys."""
_CHANGES = pgoutput.Insert | pgoutput.Update | pgoutput.Delete | pgoutput.Truncate
"""A transaction that is read again has these again. Of a type a session hears once."""


@dataclass(slots=True)
class FollowFigures:
    """What was done, for whoever shows it.

    Attributes:
        position: all that the source committed before it is in the herd.
        committed_s: when the source committed what was applied last.
        end: how far the source has written, as it says.
        transactions: of the source, that were applied by this process.
    """

    position: int
    committed_s: float = 0
    end: int = 0
    transactions: int = 0
    changes: int = 0
    idle: bool = False

    @property
    def lag_bytes(self) -> int:
        """What the source has written and we have not applied."""
        return 0 if self.idle else max(self.end - self.position, 0)

    @property
    def lag_s(self) -> float:
        """How old what was applied last is; 0 if there is nothing left to apply."""
        if self.idle or not self.committed_s:
            return 0.0
        return max(time.time() - self.committed_s, 0.0)


class MoveOnError(Exception):
    """The herd has to be asked how far it is, and the stream to be read from there."""


@dataclass(slots=True)
class _RowBatch:
    """Whole transactions that were not applied yet, and the beginning of one."""

    pending: Pending = field(default_factory=Pending)
    end: int = 0
    committed_s: float = 0
    transactions: int = 0
    since: float = 0


class Following:
    """Applies a stream to the herd.

    Args:
        target: this process's run of the import.
        tables: with the positions since which they were copied.
        position: where the stream begins.
        part: of a transaction that comes again, and is here already.
    """

    def __init__(
        self, target: Target, tables: Sequence[Copied], position: int, part: SourcePart = NO_PART
    ) -> None:
        self._target = target
        self._tables = {one.table.relid: one for one in tables}
        self._writer = Writer({one.table.name: one.table for one in tables})
        self._begin: pgoutput.Begin | None = None
        self._skipped = False
        self._part = part
        self._changes = self._parts = 0  # of the transaction that comes
        self._batch = _RowBatch()
        self._open: Session | None = None  # in a transaction that has begun with a large one
        self.figures = FollowFigures(position)

    async def run(
        self, stream: Stream, *, until: int | None = None, watch: Callable[[], None] | None = None
    ) -> None:
        """Apply until everything before a position is in the herd; without one, for ever.

        Raises:
            MoveOnError: begin again.
            TakenOver: another process goes on.
            Changed: a table is not what it was.
            ImportFailed: a side says no, for good.
        """
        asked = 0.0
        try:
            while until is None or self.figures.position < until:
                frame = await self._next(stream)
                if frame is None:
                    await self._flush(stream)
                    if time.monotonic() - asked > (_ASK_S if until is None else _WAIT_S):
                        asked = time.monotonic()
                        stream.ask()
                    continue
                await self._take(frame, stream)
                if watch is not None:
                    watch()
        except (RowsKeptError, RowsMissingError) as error:
            await self._give_up()
            raise ImportFailed(
                f"{error} in the herd, which somebody else has written to: `pgherd import abort`,"
                " and begin anew"
            ) from error
        except (psycopg.Error, FoldingError) as error:
            await self._give_up()
            if isinstance(error, psycopg.Error) and is_transient(error):
                await self._target.recover(await self._target.session(), error)
                raise MoveOnError from error
            said = message_of(error) if isinstance(error, psycopg.Error) else str(error)
            raise ImportFailed(
                f"the herd does not take a change of the source ({said}): nothing is lost; change"
                " what is in the way, and repeat the command"
            ) from error
        except BaseException:
            await self._give_up()
            raise

    async def _give_up(self) -> None:
        if self._open is not None:
            self._open = None
            await self._target.drop()

    async def _next(self, stream: Stream) -> pgoutput.Data | pgoutput.Keepalive | None:
        """None: nothing has come for a moment, or what there is has waited long enough."""
        if not stream.pending and self._batch.transactions and self._begin is None:
            return None  # all that was read is applied at once
        try:
            async with asyncio.timeout(_WAIT_S):
                return await stream.next()
        except TimeoutError:
            return None

    async def _take(self, frame: pgoutput.Data | pgoutput.Keepalive, stream: Stream) -> None:
        if isinstance(frame, pgoutput.Keepalive):
            self.figures.end = max(self.figures.end, frame.end)
            # Those between transactions that wait for more say nothing: there are many.
            if self._begin is None and not self._batch.transactions:
                self._reached(frame.end, stream)
            return
        self.figures.end = max(self.figures.end, frame.end)
        message = pgoutput.decode(frame.payload)
        if isinstance(message, pgoutput.Begin):
            self._begin = message
            self._changes = self._parts = 0
            self.figures.idle = False
            # The herd has it: a server may send it once more.
            self._skipped = message.final_lsn < self.figures.position
        elif isinstance(message, pgoutput.SourceCommit):
            await self._commit(message, stream)
        elif isinstance(message, pgoutput.Relation):
            self._require_same(message)
        elif isinstance(message, _CHANGES) and not self._skipped:
            await self._change(message)

    async def _change(self, message: pgoutput.Message) -> None:
        assert self._begin is not None
        self._changes += 1
        if (
            self._begin.final_lsn == self._part.final_lsn and self._changes <= self._part.changes
        ):  # the herd has it
            return
        self._add(message)
        if self._batch.pending.is_full:
            await self._write_a_part()

    def _reached(self, position: int, stream: Stream) -> None:
        """Nothing of ours is before it, so that it need not be kept."""
        self.figures.position = max(self.figures.position, position)
        self.figures.idle = True
        stream.confirm(self.figures.position)

    def _require_same(self, found: pgoutput.Relation) -> None:
        copied = self._tables.get(found.relid)
        name = f"{found.schema}.{found.name}"
        if copied is None:
            raise Changed(
                f"DDL at the source: table {name} is new: `pgherd import abort`, and begin anew"
            )
        known = [(one.name, one.oid, one.modifier) for one in copied.table.stored]
        if known != [(one.name, one.type, one.modifier) for one in found.columns] or (
            (copied.table.schema, copied.table.relation) != (found.schema, found.name)
        ):
            raise Changed(
                f"DDL at the source: table {name} has been altered: undo it and repeat the command,"
                " or begin anew with `pgherd import abort`"
            )

    def _add(self, message: pgoutput.Message) -> None:
        steps = self._batch.pending
        if isinstance(message, pgoutput.Truncate):
            names = [table.name for relid in message.relids if (table := self._concerned(relid))]
            if names:
                steps.add(Emptied(tuple(names)))
        elif isinstance(message, pgoutput.Insert):
            if table := self._concerned(message.relid):
                steps.add(RowChange(table.name, None, message.new))
        elif isinstance(message, pgoutput.Update):
            if table := self._concerned(message.relid):
                old, new = _identity(table, message)
                steps.add(RowChange(table.name, old, new))
        elif isinstance(message, pgoutput.Delete) and (table := self._concerned(message.relid)):
            steps.add(RowChange(table.name, _key(table, message.key or message.old), None))

    def _concerned(self, relid: int) -> SourceTable | None:
        """The table, if the transaction was not copied with it."""
        assert self._begin is not None
        copied = self._tables[relid]
        return None if self._begin.final_lsn < (copied.since or 0) else copied.table

    async def _commit(self, message: pgoutput.SourceCommit, stream: Stream) -> None:
        begin, self._begin = self._begin, None
        if begin is None or begin.final_lsn != message.lsn:
            raise pgoutput.ProtocolError("a commit of another transaction")
        if self._skipped:
            return
        batch = self._batch
        batch.end, batch.committed_s = message.end_lsn, message.committed_s
        batch.transactions += 1
        if self._open is not None or batch.pending.is_full or not stream.pending:
            await self._flush(stream)

    async def _write_a_part(self) -> None:
        """Of a transaction that goes on."""
        batch = self._batch
        if self._open is None:
            self._open = await self._target.session()
            await self._open.execute("BEGIN")
        steps = batch.pending.take()
        self.figures.changes += len(steps)
        await self._writer.write(self._open, steps)
        self._parts += 1
        if self._parts < _PARTS:
            return
        assert self._begin is not None
        self._batch, self._parts = _RowBatch(), 0
        part = {"part": pgoutput.lsn_text(self._begin.final_lsn), "part_changes": self._changes}
        await self._commit_in_herd(self._open, "advance_part", batch, part)

    async def _flush(self, stream: Stream) -> None:
        """Commit all whole transactions that have come; none has begun since."""
        batch = self._batch
        if not batch.transactions or self._begin is not None:
            return
        self._batch = _RowBatch()
        steps = batch.pending.take()
        self.figures.changes += len(steps)
        session = self._open or await self._target.session()
        if self._open is None:
            await session.execute("BEGIN")
            self._open = session
        await self._writer.write(session, steps)
        await self._commit_in_herd(session, "advance", batch, {})
        self.figures.idle = not stream.pending and self.figures.end <= batch.end
        self.figures.end = max(self.figures.end, stream.received)
        stream.confirm(batch.end)

    async def _commit_in_herd(
        self, session: Session, name: str, batch: _RowBatch, part: dict[str, Any]
    ) -> None:
        """Tell how far it is, and commit."""
        told: dict[str, Any] = {}
        if batch.transactions:
            committed = datetime.fromtimestamp(batch.committed_s, UTC)
            told = {"position": batch.end, "committed": committed}
        values = standing_values(told) | part | {
            "run": self._target.run, "version": self._target.version,
        }  # fmt: skip
        cursor = await session.execute(query("state", name), values)
        if cursor.rowcount != 1:
            await self._target.is_beyond(session)  # says who
            await self._give_up()
            raise MoveOnError
        await session.execute("COMMIT")
        self._open = None
        self._target.version += 1
        self._target.progressed()
        if batch.transactions:
            self.figures.position, self.figures.committed_s = batch.end, batch.committed_s
            self.figures.transactions += batch.transactions


def _identity(table: SourceTable, message: pgoutput.Update) -> tuple[Key, Row]:
    """The old key of a row, or the whole old row, and the new row."""
    new = message.new
    if message.old is not None:  # large values that have not changed are in the old row
        new = tuple(
            old if value is UNCHANGED else value
            for value, old in zip(new, message.old, strict=True)
        )
    return _key(table, message.key or message.old or new), new


def _key(table: SourceTable, row: Row | None) -> tuple[Value, ...]:
    if row is None or table.identity == "none":
        raise Changed(
            f"a row of {table.name} was changed at the source, which has no identity to tell it"
            " by: `pgherd import abort`, ALTER TABLE ... REPLICA IDENTITY FULL, begin anew"
        )
    return row if table.identity == "full" else tuple(row[position] for position in table.key)
