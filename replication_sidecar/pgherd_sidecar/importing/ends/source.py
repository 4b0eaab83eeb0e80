"""What is read from the source, and the little that is made there: publications, a slot, a stop.

Everything that is made has the import's name, and ``forget`` removes it.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends.connections import APPLICATION, SourceAddress
from pgherd_sidecar.importing.ends.errors import Changed, ImportFailed
from pgherd_sidecar.importing.ends.queries import query
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session, message_of

_TABLES_AT_A_TIME = 500
_SLOT_TRIES = 100


@dataclass(frozen=True, slots=True)
class Names:
    """What the import's things are called at the source."""

    slot: str

    @property
    def publication(self) -> str:
        """Of tables of which all changes can be told."""
        return self.slot

    @property
    def insertions(self) -> str:
        """Of tables of which only insertions can."""
        return f"{self.slot}_new_rows"

    @property
    def publications(self) -> tuple[str, str]:
        """Both."""
        return self.publication, self.insertions


@dataclass(frozen=True, slots=True)
class Exported:
    """A snapshot: what was committed before the position is in it, and nothing else."""

    name: str
    position: int


async def rows(session: Session, name: str, **values: Any) -> list[dict[str, Any]]:
    """What a statement of ``sql/source.sql`` gives."""
    return await (await session.execute(query("source", name), values or None)).fetchall()


async def identity(address: SourceAddress) -> tuple[str, str]:
    """The server's own number, which no other server has, and the database.

    Raises:
        ImportFailed: it can't be reached.
    """
    session = await address.replication()
    try:
        row = await (await session.execute("IDENTIFY_SYSTEM")).fetchone()
    except psycopg.Error as error:
        raise ImportFailed(f"the source says: {message_of(error)}") from error
    finally:
        await close_quietly([session])
    assert row is not None
    return str(row["systemid"]), str(row["dbname"])


async def tables(session: Session) -> tuple[SourceTable, ...]:
    """The tables whose rows are taken over."""
    return tuple(msgspec.convert(row, SourceTable) for row in await rows(session, "tables"))


async def definitions(session: Session) -> dict[str, str]:
    """Everything that is defined, each with a hash of how."""
    return {row["object"]: row["hash"] for row in await rows(session, "definitions")}


def require_same(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that nobody has executed DDL at the source.

    Raises:
        Changed: somebody has.
    """
    different = sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )
    if not different:
        return
    name = different[0]
    how = "is gone" if name not in now else "is new" if name not in before else "has been altered"
    more = f", and {len(different) - 1} more" if len(different) > 1 else ""
    raise Changed(
        f"DDL at the source: {name} {how}{more}: undo it and repeat the command, or begin anew with"
        " `pgherd import abort`"
    )


async def publish(session: Session, names: Names, found: Iterable[SourceTable]) -> None:
    """Make the publications, in place of those that an earlier attempt has made."""
    every = list(found)
    async with session.transaction():
        await _unpublish(session, names)
        for name, these, how in (
            (names.publication, [one for one in every if one.identity != "none"], ""),
            (
                names.insertions,
                [one for one in every if one.identity == "none"],
                " WITH (publish = 'insert, truncate')",
            ),
        ):
            create = sql.SQL("CREATE PUBLICATION {}" + how).format(sql.Identifier(name))
            await session.execute(create)
            for first in range(0, len(these), _TABLES_AT_A_TIME):
                await session.execute(
                    sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(
                        sql.Identifier(name),
                        sql.SQL(", ").join(
                            sql.SQL("ONLY {}").format(sql.Identifier(one.schema, one.relation))
                            for one in these[first : first + _TABLES_AT_A_TIME]
                        ),
                    )
                )


async def _unpublish(session: Session, names: Names) -> None:
    for name in names.publications:
        await session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


@asynccontextmanager
async def make_slot(
    source: SourceAddress, name: str, *, temporary: bool
) -> AsyncIterator[Exported]:
    """Make a slot, with a snapshot that holds until the end of the context.

    Raises:
        ImportFailed: the server says no.
    """
    session = await source.replication()
    kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
    command = f'CREATE_REPLICATION_SLOT "{name}" {kind} pgoutput EXPORT_SNAPSHOT'
    try:
        try:
            made = await (await session.execute(command.encode())).fetchone()
        except psycopg.Error as error:
            raise ImportFailed(f"the source makes no slot: {message_of(error)}") from error
        assert made is not None
        yield Exported(made["snapshot_name"], pgoutput.lsn(made["consistent_point"]))
    finally:
        await session.close()


async def free_slot(session: Session, name: str) -> bool:
    """Have whoever reads the slot let it go: an earlier run of ours. Says whether there is one.

    Raises:
        ImportFailed: it does not, or may not be told to.
    """
    for _ in range(_SLOT_TRIES):
        found = await rows(session, "slot", slot=name)
        if not found:
            return False
        if not found[0]["active"]:
            return True
        try:
            await session.execute(
                "SELECT pg_terminate_backend(%s), pg_sleep(0.1)", (found[0]["active_pid"],)
            )
        except psycopg.Error as error:
            raise ImportFailed(
                f"slot {name} of the source is read by another process: {message_of(error)}"
            ) from error
    raise ImportFailed(f"slot {name} of the source stays in use: end the process that reads it")


async def forget(session: Session, names: Names) -> None:
    """Remove the publications and the slot.

    Raises:
        ImportFailed: the slot is in use.
    """
    if await free_slot(session, names.slot):
        await session.execute("SELECT pg_drop_replication_slot(%s)", (names.slot,))
    async with session.transaction():
        await _unpublish(session, names)


async def sequences(session: Session) -> list[tuple[str, int, bool]]:
    """Each sequence with its last value, and whether that was given out."""
    found = []
    for row in await rows(session, "sequences"):
        value = await (
            await session.execute(
                sql.SQL("SELECT last_value, is_called FROM {}").format(_raw(row["name"]))
            )
        ).fetchone()
        assert value is not None
        found.append((row["name"], value["last_value"], value["is_called"]))
    return found


def _raw(name: str) -> sql.SQL:
    """A name that is quoted already, by the server itself."""
    return sql.SQL(name)


async def require_no_changes(session: Session, before: Mapping[int, int]) -> None:
    """Check that no table whose rows have no identity had any changed.

    Args:
        session: at the source.
        before: the number of changes that the statistics told, by oid.

    Raises:
        Changed: one had.
    """
    for row in await rows(session, "changes_without_identity", relids=list(before)):
        if row["changed"] > before[row["relid"]]:
            name = await (
                await session.execute("SELECT %s::oid::regclass::text AS name", (row["relid"],))
            ).fetchone()
            assert name is not None
            raise Changed(
                f"rows of {name['name']} were changed at the source, which has no identity to tell"
                " them by: `pgherd import abort`, ALTER TABLE ... REPLICA IDENTITY FULL, begin anew"
            )


_PATIENCE = "SET LOCAL lock_timeout = '10s'"
_BRIEF, _TRIES = "SET LOCAL lock_timeout = '1s'", 60
"""Whoever comes behind us waits as long as we do."""
_READ_ONLY = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
_FENCE = sql.SQL(
    "CREATE TRIGGER pgherd_import BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {}"
    " FOR EACH STATEMENT EXECUTE FUNCTION pgherd_import.refuse()"
)
_OPEN = sql.SQL("DROP TRIGGER IF EXISTS pgherd_import ON {}")
_WRITABLE = sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only")


async def stop_writes(session: Session) -> None:
    """New transactions of new sessions only read; sessions that there are end.

    A transaction that asks to write is refused by the tables.

    Raises:
        ImportFailed: somebody does not end.
        psycopg.Error: the source says no, or somebody still writes.
    """
    database = sql.Identifier(session.info.dbname)
    await session.execute(_READ_ONLY.format(database))
    moment = await (await session.execute("SELECT clock_timestamp() AS since")).fetchone()
    assert moment is not None
    await rows(session, "end_sessions", ours=APPLICATION)
    left = 0
    for _ in range(50):
        found = await rows(session, "sessions_left", ours=APPLICATION, since=moment["since"])
        left = found[0]["sessions"]
        if not left:
            break
        await session.execute("SELECT pg_sleep(0.05)")
    else:
        raise ImportFailed(
            f"{left} sessions at the source do not end: end them and repeat the command"
        )
    async with session.transaction():
        await session.execute(_PATIENCE)
        await session.execute(query("source", "make_fence"))
        for one in await rows(session, "to_fence"):
            relation = sql.Identifier(one["schema"], one["relation"])
            await session.execute(_FENCE.format(relation))


async def allow_writes(session: Session) -> None:
    """Take back what ``stop_writes`` has done.

    Each table takes writes as soon as nobody reads it for a moment.

    Raises:
        ImportFailed: a table is read all the time.
        psycopg.Error: the source says no.
    """
    await session.execute(_WRITABLE.format(sql.Identifier(session.info.dbname)))
    left = await rows(session, "fenced")
    for _ in range(_TRIES):
        left = [one for one in left if not await _opened(session, one)]
        if not left:
            break
    else:
        raise ImportFailed(
            f"tables of the source stay locked ({left[0]['relation']} is one): end the sessions"
            " that use them"
        )
    await session.execute("DROP SCHEMA IF EXISTS pgherd_import CASCADE")


async def _opened(session: Session, table: Mapping[str, str]) -> bool:
    relation = sql.Identifier(table["schema"], table["relation"])
    try:
        async with session.transaction():
            await session.execute(_BRIEF)
            await session.execute(_OPEN.format(relation))
    except psycopg.errors.LockNotAvailable:
        return False
    return True


async def position(session: Session) -> int:
    """How far the source has written."""
    found = await rows(session, "position")
    return pgoutput.lsn(found[0]["lsn"])


async def mark(session: Session) -> int:
    """Write something that means nothing, and return where it is."""
    found = await rows(session, "mark")
    return pgoutput.lsn(found[0]["lsn"])


async def close_quietly(sessions: Sequence[Session]) -> None:
    """Close sessions that may be gone."""
    for session in sessions:
        with contextlib.suppress(psycopg.Error):
            await session.close()
