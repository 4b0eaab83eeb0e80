"""The change stream: hands out the log as it is, with what a reader needs to understand it.

A chunk is whole blocks of the log, and for each position whether it committed; taking the records
apart is the reader's work, because each microsecond here is one that transactions wait for. Handed
out is what is visible here, so that the columns of tables at each GID are known, too
(``pgherd.shape``).

A stream that wants to go on later holds the log: a lease, by name.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.core.replication.state import ReplicatedState

_TABLES = """
SELECT tab AS "table", gid, columns, types, key, generated
  FROM pgherd.shape WHERE gid IS NOT NULL ORDER BY gid, n
"""


class ChangeReader(Protocol):
    """A session of the replica, as far as it is needed here."""

    @property
    def visible(self) -> int:
        """Everything up to this position is decided, and what committed of it is visible here."""

    @property
    def state(self) -> ReplicatedState:
        """The state that follows from the log, as far as it was delivered."""

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """An administrative connection."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the log.

    Attributes:
        through: the last position that is handed out; the one that was asked for if there is none.
        visible: how far there is more.
        begins: the first position from which on all that committed is there as a whole.
        blocks: first position and size of each block; the first one may begin before, the last
            one end after what was asked for.
        committed: '1' or '0' for each position handed out.
        pieces: where those of a transaction begin that committed in pieces, by its GID.
        data: the blocks.
    """

    through: int
    visible: int
    begins: int
    blocks: list[tuple[int, int]]
    committed: str
    pieces: dict[int, int]
    data: bytes

    def encode(self) -> bytes:
        """A line of JSON, and the data."""
        head = {
            "through": self.through,
            "visible": self.visible,
            "begins": self.begins,
            "blocks": self.blocks,
            "committed": self.committed,
            "pieces": self.pieces,
        }
        return json.dumps(head).encode() + b"\n" + self.data


class Changes:
    """The log, as its readers are told it.

    Args:
        host: the log.
        verdicts: of its entries.
        reader: the session of the moment; raises ``Unavailable`` if there is none.
    """

    def __init__(
        self, host: LogHost, verdicts: Verdicts, reader: Callable[[], ChangeReader]
    ) -> None:
        self._host = host
        self._verdicts = verdicts
        self._reader = reader

    async def read(self, after: int, max_bytes: int) -> bytes:
        """Return committed blocks from ``after + 1`` on as a chunk: as many as fit; at least one.

        Raises:
            Refused: they are not there any more.
            Unavailable: this node is not ready.
        """
        visible = min(self._reader().visible, self._verdicts.last)
        first = max(self._host.extent.base + 1, self._verdicts.first)
        whole = self._verdicts.whole_from(first)
        if after >= visible:
            return Chunk(after, visible, whole, [], "", {}, b"").encode()
        blocks = await self._host.reader.read_apart(after + 1, max_bytes)
        if not blocks and after + 1 >= first:
            raise Unavailable("a part of the log is damaged here, and is being repaired")
        if not blocks or after + 1 < first:
            raise Refused(
                f"the log begins at position {first} here, what follows {after} is not there any "
                "more: begin anew with a snapshot"
            )
        through = min(blocks[-1].last, visible)
        return Chunk(
            through,
            visible,
            whole,
            [(block.first, len(block.data)) for block in blocks],
            self._verdicts.between(after + 1, through),
            self._verdicts.pieces(after, through),
            b"".join(block.data for block in blocks),
        ).encode()

    async def tables(self) -> dict[str, Any]:
        """The columns that tables had, each with the GID from which on, in their order.

        Everything up to ``visible`` is among them.

        Raises:
            Unavailable: the server is gone.
        """
        reader = self._reader()
        visible, connection = reader.visible, reader.connection
        try:
            await connection.execute("SELECT pgherd.number_shapes()")
            async with connection.cursor(row_factory=dict_row) as cursor:
                tables = await (await cursor.execute(_TABLES)).fetchall()
            return {"visible": visible, "tables": tables}
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error

    async def hold(self, stream: str, after: int, lease_s: float) -> None:
        """Keep the log after a position for so long, or until the next call.

        With it the pieces before that of transactions that commit later.

        Raises:
            Refused: it is not there any more.
            Unavailable: the server is gone.
        """
        reader = self._reader()
        begun = [*self._verdicts.pieces(after, self._verdicts.last).values()]
        undecided = reader.state.log_needed_from
        if undecided is not None:
            begun.append(undecided)
        after = min([after, *(first - 1 for first in begun)])
        if after < max(self._host.extent.base, self._verdicts.first - 1):
            raise Refused(f"the log after position {after} is not there any more")
        try:
            await reader.connection.execute(
                "SELECT pgherd.hold_for_stream($1, $2, $3)", (stream, after, lease_s)
            )
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error

    async def release(self, hold: str) -> bool:
        """Give a hold of the log back, whoever has it; False if there is none of this name.

        Raises:
            Unavailable: the server is gone.
        """
        connection = self._reader().connection
        try:
            rows = await connection.execute("SELECT pgherd.release_hold($1)", (hold,))
            return (await rows.fetchone()) == (True,)
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
