"""The log that a subscriber keeps which forwards: the herd's changes of its tables, for others.

It is a table of the subscriber, written in the transaction that writes the rows themselves, as
Slony-I's ``sl_log`` ("Slony-I: A replication system for PostgreSQL", 1.10). So it can't have more
than the tables show, nor less, whatever dies. Changes are kept with their GIDs and are not folded:
a follower stands at a GID of the herd, which need not be one at which its provider has stopped.

Each row has a checksum, as the blocks of the members' segments have, and the numbers of rows have
no gap.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, LiteralString

import msgspec

from pgherd_sidecar.client.stream.changes import LoggedChange
from pgherd_sidecar.queries import statements
from pgherd_sidecar.subscribing.state.connections import lock_schema
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import HerdSequence, HerdTable
from pgherd_sidecar.subscribing.state.holdings import SCHEMA
from pgherd_sidecar.tables.sessions import Session

_ROW_BYTES = 1 << 20
_OVERHEAD_BYTES = 100
"""Of a change beside its values, about."""
_PARTS = ("make_forwarding", "make_log", "store_as_is", "make_orders")

_Told = tuple[
    int, int, int, int, str | None, str, dict[str, str | None] | None,
    dict[str, str | None] | None, str | None,
]  # fmt: skip


def forwarding_query(name: str) -> LiteralString:
    """A statement of ``sql/forwarding.sql``."""
    return statements("pgherd_sidecar.subscribing", "forwarding")[name]


async def rows_of(session: Session, name: str, /, **values: Any) -> list[dict[str, Any]]:
    """The rows of a statement of ``sql/forwarding.sql``."""
    cursor = await session.execute(forwarding_query(name), values or None)
    return await cursor.fetchall() if cursor.description else []


class _Body(msgspec.Struct, array_like=True):
    changes: list[_Told]
    extended: HerdTable | None = None


class KeptRow(msgspec.Struct, frozen=True):
    """A row of the log.

    Attributes:
        n: its number.
        first: GID of its first change.
        last: GID of its last one; that transaction may go on in the next row.
        crc: of the others.
        body: the changes.
    """

    n: int
    first: int
    last: int
    crc: int
    body: bytes


def checksum(subscription: str, first: int, last: int, body: bytes) -> int:
    """The checksum that a row must have."""
    return zlib.crc32(body, zlib.crc32(f"{subscription} {first} {last}".encode()))


def encode(
    changes: Sequence[LoggedChange], extended: HerdTable | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Rows for changes: the GIDs of the first and the last one, and the body.

    Args:
        changes: in their order, at least one.
        extended: what a table has become by them; it is in the last row.
    """
    told: list[_Told] = []
    size = 0
    for number, one in enumerate(changes):
        told.append(
            (
                one.gid, one.number, one.origin, one.xid, one.table, one.op, one.key, one.values,
                one.command,
            )
        )  # fmt: skip
        size += _OVERHEAD_BYTES + sum(
            len(value) for part in (one.key, one.values) for value in (part or {}).values() if value
        )
        is_last = number == len(changes) - 1
        if size >= _ROW_BYTES or is_last:
            body = msgspec.msgpack.encode(_Body(told, extended if is_last else None))
            yield told[0][0], told[-1][0], zlib.compress(body, 1)
            told, size = [], 0


def decode(subscription: str, row: KeptRow) -> tuple[list[LoggedChange], HerdTable | None]:
    """The changes of a row, and what a table has become by them.

    Raises:
        StoppedError: the row is damaged.
    """
    if checksum(subscription, row.first, row.last, row.body) != row.crc:
        raise damaged(subscription, f"row {row.n} is not what was written")
    body = msgspec.msgpack.decode(zlib.decompress(row.body), type=_Body)
    return [LoggedChange(*one) for one in body.changes], body.extended


def damaged(subscription: str, what: str) -> StoppedError:
    """The reason to give for a log that can't be right."""
    return StoppedError(
        f"the log of subscription {subscription} is damaged ({what}): give another --provider,"
        " or copy anew with `pgherd subscribe SET --anew`"
    )


class ForwardLog:
    """The log of one subscription at its subscriber, for the one that feeds it.

    Args:
        session: in whose transactions the rows are written.
        name: of the subscription.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    async def make(self) -> None:
        """Make the tables, as far as they are missing, within the caller's transaction."""
        if not (await rows_of(self._session, "is_made"))[0]["found"]:
            await lock_schema(self._session, SCHEMA)
            for part in _PARTS:
                await self._session.execute(forwarding_query(part))

    async def begins(self) -> int | None:
        """After which GID it has all; None if there is none."""
        if not (await rows_of(self._session, "is_made"))[0]["found"]:
            return None
        found = await rows_of(self._session, "forwarding", name=self._name)
        return int(found[0]["begins"]) if found else None

    async def begin(self, gid: int) -> None:
        """Begin it anew after a GID, within the caller's transaction."""
        await self._execute("clear_log")
        await self._execute("begin_log", gid=gid)

    async def end(self) -> None:
        """Have none any more, within the caller's transaction."""
        if await self.begins() is not None:
            await self._execute("end_log")
            await self._execute("end_orders")

    async def write(
        self, changes: Sequence[LoggedChange], extended: HerdTable | None = None
    ) -> None:
        """Keep changes, within the transaction that applies them.

        Raises:
            StoppedError: somebody has taken the log away.
        """
        if not changes:
            return
        for first, last, body in encode(changes, extended):
            crc = checksum(self._name, first, last, body)
            count = await self._execute(
                "write", first=first, last=last, size=len(body), crc=crc, body=body
            )
            if count != 1:
                raise damaged(self._name, "it is not there")

    async def note_sequences(self, known: Iterable[HerdSequence]) -> None:
        """Keep what a follower must know of the set's sequences."""
        text = msgspec.json.encode(list(known)).decode()
        await self._execute("note_sequences", sequences=text)

    async def floor(self, keep_bytes: int) -> int | None:
        """The GID to which it may be trimmed if so many bytes are enough; None: it has not more."""
        found = await rows_of(self._session, "floor", name=self._name, keep=keep_bytes)
        return int(found[0]["gid"]) if found else None

    async def trim(self, gid: int) -> None:
        """Remove what nobody needs: all up to a GID."""
        await self._execute("trim", gid=gid)

    async def _execute(self, name: str, /, **values: Any) -> int:
        values["name"] = self._name
        return (await self._session.execute(forwarding_query(name), values)).rowcount
