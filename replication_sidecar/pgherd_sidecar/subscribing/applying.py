"""Writes changes at the subscriber, and shows them with the GID that they lead to.

A command of the log may have altered a table. This module finds that out, too, and stops before it.
"""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from pgherd_sidecar.client.stream.changes import LoggedChange
from pgherd_sidecar.subscribing.background import Background
from pgherd_sidecar.subscribing.sequences import FollowedSequences
from pgherd_sidecar.subscribing.sources import Source
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import ForwardLog
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.steps import (
    AlteredError,
    extended,
    step_of,
    suspicion,
)
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables.folding import Step
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.pending import Held, PendingTransactions, deletions
from pgherd_sidecar.tables.rowsql import Writer

_GONE = 1_000_000
"""So many deleted rows of a table wait for the end of a transaction, of 200 bytes or more each."""


@dataclass(slots=True)
class ChangeBatch:
    """Changes that were read and are not committed yet.

    Attributes:
        places: where changes are written, by name; what is not newer than a table's GID is in it.
        pending: not written yet.
        open: whether the transaction has begun.
        rows: how many changes were handed to the writer.
        numbers: the furthest of each sequence that they hold.
        kept: not written yet into the log for others; None if there is none.
        background: writes them while more of them are read; None: the caller waits.
        holds: tables whose rows are not deleted if they come again; None: not known yet.
    """

    places: Mapping[str, ShownTable]
    writer: Writer
    pending: PendingTransactions
    open: bool = False
    rows: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    kept: list[LoggedChange] | None = None
    background: Background | None = None
    holds: frozenset[str] | None = None


class Applying:
    """Writes what one subscription gets.

    Args:
        source: of the changes.
        subscriber: attached; nobody else feeds it.
        sequences: of the set.
        kept: the log for others; None if there is none.
    """

    def __init__(
        self,
        source: Source,
        subscriber: Subscriber,
        sequences: FollowedSequences,
        kept: ForwardLog | None,
    ) -> None:
        self._source = source
        self._subscriber = subscriber
        self._sequences = sequences
        self._kept = kept

    def batch(
        self,
        places: Mapping[str, ShownTable],
        *,
        keeps: bool,
        background: Background | None = None,
    ) -> ChangeBatch:
        """A batch without changes.

        Args:
            places: see ``ChangeBatch``.
            keeps: its changes go into the log for others.
            background: see ``ChangeBatch``. Nothing else uses the session until it is settled.
        """
        keys = {name: one.table.key for name, one in places.items()}
        batch = ChangeBatch(
            places, _writer(places), PendingTransactions(keys), background=background
        )
        if keeps and self._kept is not None:
            batch.kept = []
        return batch

    async def take(self, changes: Iterable[LoggedChange], batch: ChangeBatch) -> None:
        """Have changes be written, now or with those that follow.

        Raises:
            AlteredError: one of them has altered one of the tables.
            psycopg.Error, RowsMissingError, RowsKeptError: see ``Writer``.
        """
        shown = self._subscriber.gid or 0
        counts = bool(self._sequences.known)
        for change in changes:
            if change.table is None:
                await self._judge(change, batch)
            elif (one := batch.places.get(change.table)) is not None:
                if change.gid > one.gid:
                    if change.gid != batch.pending.gid:
                        batch.pending.begin(change.gid)
                    batch.pending.add(step_of(change, one.table))
                    if counts:
                        self._sequences.count(change, batch.numbers)
                    if batch.kept is not None and change.gid > shown:
                        batch.kept.append(change)
            elif change.op == "truncate":
                await self._require_no_partition(change, batch)
            if batch.pending.is_full:
                await self._write_part(batch)

    async def _judge(self, change: LoggedChange, batch: ChangeBatch) -> None:
        """Look at a command.

        Raises:
            AlteredError: it has altered one of the tables.
        """
        tables = {name: one.table for name, one in batch.places.items() if change.gid > one.gid}
        wider = extended(change.command or "", tables)
        if wider is not None and batch.places[wider].selection.columns is not None:
            return  # its column list has not got the new column
        found = suspicion(change.command or "", tables)
        if found is None:
            return
        what, sure = found
        # Who drops a partition drops rows, and the log does not say of which table.
        parts = bool(_partitioned(change, batch))
        if sure or parts:
            raise AlteredError(change.gid, what, wider, change)
        now = await self._source.describe(tables)
        if not now.keys() >= tables.keys():
            raise AlteredError(change.gid, what)

    async def _require_no_partition(self, change: LoggedChange, batch: ChangeBatch) -> None:
        """Look at a table that was emptied and is none of ours.

        Raises:
            AlteredError: it is a partition, perhaps of one of ours.
        """
        tables = _partitioned(change, batch)
        if tables and await self._source.may_be_partition(change, tables):
            raise AlteredError(change.gid, f"TRUNCATE {change.table}, a partition")

    async def _write_part(self, batch: ChangeBatch) -> None:
        """Write what waits while the end of its last transaction may not be known.

        A large one has all that it deletes before what it inserts. So deletions wait for its end
        where a row that comes again would lose something.
        """
        pending = batch.pending
        if pending.is_torn and batch.holds is None:
            if batch.background is not None:
                await batch.background.settle()
            batch.holds = await self._subscriber.placing.dependent(
                one.table for one in batch.places.values()
            )
        steps = pending.part(batch.holds or frozenset())
        for name, keys in pending.gone.items():
            if len(keys) > _GONE:
                raise StoppedError(
                    f"GID {pending.gid} deletes more than {_GONE} rows of {name}, and may insert"
                    " them again; at the subscriber it has columns of its own, or others refer to"
                    " it: drop these there, and repeat `pgherd subscribe`"
                )
        await _do(batch, self._write(batch, *_handed(batch, steps), pending.held))

    async def write(self, batch: ChangeBatch) -> None:
        """Write what waits to be written, within the transaction of the batch."""
        await _do(batch, self._write(batch, *_taken(batch)))

    async def _write(
        self,
        batch: ChangeBatch,
        steps: Sequence[Step],
        kept: Sequence[LoggedChange],
        held: Held | None = None,
    ) -> None:
        session = self._subscriber.session
        if not batch.open:
            await session.execute("BEGIN")
            batch.open = True
        if held:
            try:
                async with session.transaction():
                    await batch.writer.write(session, steps)
            except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
                # Unique values move from rows that are held back: these have to go now.
                await batch.writer.write(session, [*deletions(held), *steps])
        else:
            await batch.writer.write(session, steps)
        if self._kept is not None:
            await self._kept.write(kept)

    async def commit(self, batch: ChangeBatch, gid: int, as_of: datetime | None) -> None:
        """Commit the rows with the GID that they lead to.

        Args:
            batch: its rows are written.
            gid: nothing before it is missing.
            as_of: the herd had nothing newer then; None if that is not known.

        Raises:
            MovedOnError: somebody else feeds the subscriber.
        """
        await _do(batch, self._commit(batch, *_taken(batch), gid, as_of))

    async def _commit(
        self,
        batch: ChangeBatch,
        steps: Sequence[Step],
        kept: Sequence[LoggedChange],
        gid: int,
        as_of: datetime | None,
    ) -> None:
        await self._write(batch, steps, kept)
        await self._sequences.set(batch.numbers)
        await self._subscriber.advance(gid, as_of)
        await self._subscriber.session.execute("COMMIT")
        self._subscriber.gid = gid


def _partitioned(change: LoggedChange, batch: ChangeBatch) -> dict[str, SourceTable]:
    """The tables with partitions of which a change is not in the copy already."""
    return {
        name: one.table for name, one in batch.places.items() if one.parts and change.gid > one.gid
    }


def _taken(batch: ChangeBatch) -> tuple[list[Step], list[LoggedChange]]:
    """Take the changes that wait to be written out of the batch."""
    return _handed(batch, batch.pending.take())


def _handed(batch: ChangeBatch, steps: list[Step]) -> tuple[list[Step], list[LoggedChange]]:
    kept = batch.kept or []
    batch.rows += len(steps)
    if batch.kept:
        batch.kept = []
    return steps, kept


async def _do(batch: ChangeBatch, work: Coroutine[Any, Any, None]) -> None:
    if batch.background is None:
        await work
    else:
        await batch.background.begin(work)


def _writer(places: Mapping[str, ShownTable]) -> Writer:
    """A delete in the log may be of a key that was not there: so it need not be."""
    tables = {name: one.table for name, one in places.items()}
    partial = {name for name, one in places.items() if one.is_partial}
    return Writer(tables, exact=False, truncates=False, partial=partial)
