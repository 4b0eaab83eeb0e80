"""Copies tables of a member as they were at a marker, each beside what the subscriber shows.

A table and the note that it was copied are one transaction of a plain subscriber, and some more of
a herd. So whoever goes on after a death copies only what is missing, at a marker of its own.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.subscribing.selecting.filtering import failure
from pgherd_sidecar.subscribing.state.errors import MemberError, StoppedError
from pgherd_sidecar.subscribing.state.herd import HerdTable, TableSelection, describe
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables.copying import column_names, read_pieces
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session, message_of

_READY_S = 60.0
_LEASE_S = 60.0


class CopyMissedError(Exception):
    """DDL or TRUNCATE came between the marker and the copy: try again with another marker."""


@contextmanager
def of_member(who: str = "the member's server") -> Iterator[None]:
    """What fails in here is the member's own, and not the subscriber's.

    Args:
        who: is meant, if it is no member.

    Raises:
        MemberError: instead of an error of the server.
    """
    try:
        yield
    except psycopg.Error as error:
        raise MemberError(f"{who} says: {message_of(error)}") from error


class Provider:
    """The member whose feeder this is.

    Args:
        name: its name.
        admin: its sidecar.
        conninfo: of its server, as superuser.
    """

    def __init__(self, name: str, admin: AdminClient, conninfo: str) -> None:
        self.name = name
        self.admin = admin
        self._conninfo = conninfo

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session that commits each statement.

        Raises:
            MemberError: the server is gone.
        """
        with of_member():
            session = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True, row_factory=dict_row
            )
        try:
            yield session
        finally:
            await session.close()


async def copy(
    member: Provider,
    subscriber: Subscriber,
    names: Sequence[str],
    selections: Sequence[TableSelection] = (),
) -> int:
    """Copy tables; return the GID of which the copies are.

    Args:
        member: whose rows these are.
        subscriber: gets them.
        names: of the tables.
        selections: of those that are not copied as a whole.

    Raises:
        CopyMissedError: begin again; tables that are done are done.
        StoppedError: a table is not there, or the subscriber does not take it.
        AdminError: the member can't hold a snapshot.
        MemberError: the member's server is gone, or says no.
        psycopg.Error: likewise the subscriber's.
    """
    marker = await member.admin.order_marker([member.name])
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(member.session())
        try:
            await member.admin.wait_marker(marker.id, _READY_S)
            lease = await member.admin.lease_marker(marker.id, _LEASE_S)
            with of_member():
                await here.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                await here.execute(
                    sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(lease.snapshot))
                )
        finally:  # the session has it now
            await member.admin.drop_marker(marker.id)
        now = await stack.enter_async_context(member.session())
        with of_member():
            known = await describe(here, names, selections)
        for name in names:
            if name not in known:
                raise StoppedError(
                    f"table {name} of the set is not there any more: `pgherd set remove`"
                )
            await _copy_table(here, now, subscriber, known[name], lease.gid)
        return lease.gid


async def _copy_table(
    here: Session, now: Session, subscriber: Subscriber, found: HerdTable, gid: int
) -> None:
    table = found.table
    with of_member():
        await here.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(
                sql.Identifier(table.schema, table.relation)
            )
        )
        present = (await describe(now, [table.name])).get(table.name)
    if present is None or present.image != found.image:
        raise CopyMissedError(f"table {table.name} was altered or emptied meanwhile")
    await copy_table(
        here, subscriber, found, gid, with_parts=found.parts, condition=found.chosen.condition
    )


async def copy_table(
    here: Session,
    subscriber: Subscriber,
    found: HerdTable,
    gid: int,
    *,
    with_parts: bool,
    condition: str | None = None,
) -> None:
    """Copy a table as a transaction sees it, and note its GID; errors as of ``copy``.

    Args:
        here: sees the table at that GID.
        subscriber: gets it.
        found: what it is.
        gid: of the rows.
        with_parts: with the rows of its partitions.
        condition: of the rows; None: all that it has.

    Raises:
        StoppedError: the condition fails.
    """
    reading = _Reading(here, found, gid, with_parts, condition)
    if subscriber.is_herd:
        await _copy_to_herd(reading, subscriber)
        return
    async with subscriber.transaction():
        if await _adopted(reading, subscriber):
            return
        staged = await subscriber.placing.stage(found)
        async with (
            _copying(subscriber.session, staged) as into,
            aclosing(_rows(reading)) as pieces,
        ):
            async for piece in pieces:
                await into.write(piece)
        await subscriber.placing.note_staged(staged, gid, found)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A table as a transaction sees it; attributes as of ``copy_table``."""

    here: Session
    found: HerdTable
    gid: int
    parts: bool
    condition: str | None


@asynccontextmanager
async def _copying(session: Session, table: SourceTable) -> AsyncIterator[psycopg.AsyncCopy]:
    copy_in = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.schema, table.relation), column_names(table)
    )
    async with session.cursor() as cursor, cursor.copy(copy_in) as into:
        yield into


async def _copy_to_herd(reading: _Reading, subscriber: Subscriber) -> None:
    """Copy a table by many transactions, because those of a herd are limited in size.

    A feeder that goes on after a death begins the table anew.
    """
    found, placing = reading.found, subscriber.placing
    if await placing.may_be_copy(found.table):
        # After it no member takes writes, and what was written before is here. Rows are exchanged
        # later if they are other ones, so it stays in any case.
        await subscriber.persist(lambda: placing.make_room([found]))
        if await _is_same(reading, subscriber.session):
            await subscriber.persist(lambda: placing.note_staged(found.table, reading.gid, found))
            return
    staged: SourceTable | None = None

    async def make() -> None:
        nonlocal staged
        staged = await placing.stage(found)

    await subscriber.persist(make)
    assert staged is not None
    async with aclosing(_rows(reading)) as pieces:
        async for piece in pieces:
            await subscriber.persist(partial(_write_one, subscriber.session, staged, piece))
    await subscriber.persist(partial(placing.note_staged, staged, reading.gid, found))


async def _adopted(reading: _Reading, subscriber: Subscriber) -> bool:
    """Does the subscriber hold these very rows? Then nothing is copied.

    So it is with one that has followed another origin, to the same rows.
    """
    found = reading.found
    if not await subscriber.placing.may_be_copy(found.table):
        return False
    async with subscriber.session.transaction() as attempt:
        await subscriber.placing.lock_place(found.table)
        if await _is_same(reading, subscriber.session):
            await subscriber.placing.adopt(found, reading.gid)
            return True
        raise psycopg.Rollback(attempt)  # others may write there again
    return False


async def _is_same(reading: _Reading, session: Session) -> bool:
    table = reading.found.table
    mine = await _digest(session, table, parts=False, condition=None)
    try:
        theirs = await _digest(
            reading.here, table, parts=reading.parts, condition=reading.condition
        )
    except psycopg.Error as error:
        raise _of_source(reading, error) from error
    return mine == theirs


async def _digest(
    session: Session, table: SourceTable, *, parts: bool, condition: str | None
) -> tuple[int, int]:
    """How many rows there are, and the sum of their hashes, of 64 bits each."""
    # With the table before its name, a column that was just dropped may be a call of a function.
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    cursor = await session.execute(
        sql.SQL(
            "SELECT count(*) AS rows, coalesce(sum(hashtextextended(ROW({})::text"
            ' COLLATE pg_catalog."C", 0)::numeric), 0) AS hashes FROM {}{} AS t{}'
        ).format(
            columns,
            sql.SQL("" if parts else "ONLY "),
            sql.Identifier(table.schema, table.relation),
            sql.SQL("" if condition is None else f" WHERE ({condition})"),
        )
    )
    row = await cursor.fetchone()
    assert row is not None
    return row["rows"], int(row["hashes"])


def _of_source(reading: _Reading, error: psycopg.Error) -> MemberError | StoppedError:
    """What an error means of the server that provides the rows."""
    if reading.condition is not None:
        return failure(reading.found.chosen, error)
    return MemberError(f"the server that provides the rows says: {message_of(error)}")


async def _rows(reading: _Reading) -> AsyncGenerator[bytes, None]:
    table, condition = reading.found.table, reading.condition
    try:
        async with aclosing(
            read_pieces(reading.here, table, parts=reading.parts, condition=condition)
        ) as pieces:
            async for piece, _ in pieces:
                yield piece
    except psycopg.Error as error:
        raise _of_source(reading, error) from error


async def _write_one(session: Session, table: SourceTable, piece: bytes) -> None:
    async with _copying(session, table) as into:
        await into.write(piece)
