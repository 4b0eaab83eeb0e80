"""Reads what a logical slot of the source sends, by libpq's own functions.

Psycopg has no interface for logical replication, but its ``pq`` is libpq's, which has: the
connection is in COPY BOTH mode. Nothing is kept; what was confirmed the server need not keep.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

import psycopg
from psycopg import pq

from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends.connections import SourceAddress
from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.tables.sessions import Session

_STATUS_S = 2
"""Well below wal_sender_timeout, which is a minute."""
_QUEUED_BYTES = 64 << 20
"""What is read in advance: then the server has to wait."""

Frame = pgoutput.Data | pgoutput.Keepalive


class Stream:
    """The messages of a slot from a position on.

    A task of its own reads them and tells the server how far we are, also while what was read
    before is being applied.
    """

    def __init__(self, session: Session, position: int) -> None:
        self._session = session
        self._confirmed = position
        self._received = position
        self._queue: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._failure: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, source: SourceAddress, slot: str, publications: Sequence[str], position: int
    ) -> Self:
        """Begin to read.

        Args:
            source: of the messages.
            slot: it exists, and nobody reads it.
            publications: their tables are told.
            position: what was committed before is not sent.

        Raises:
            ImportFailed: the server says no.
        """
        session = await source.replication()
        names = ",".join(f'"{name}"' for name in publications)
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {pgoutput.lsn_text(position)}'
            f" (proto_version '1', publication_names '{names}')"
        )
        result = await asyncio.to_thread(session.pgconn.exec_, command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            said = result.error_message.decode(errors="replace").strip()
            await session.close()
            raise ImportFailed(f"the source does not send what is in slot {slot}: {said}")
        session.pgconn.nonblocking = 1
        found = cls(session, position)
        found._tasks = [asyncio.create_task(found._read()), asyncio.create_task(found._tell())]
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the slot."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(psycopg.Error):
            self._send(reply=False)
        await self._session.close()

    def confirm(self, position: int) -> None:
        """All before it is safe."""
        self._confirmed = max(self._confirmed, position)

    def ask(self) -> None:
        """Have the server say how far it is.

        Raises:
            ImportFailed: it is gone.
        """
        try:
            self._send(reply=True)
        except psycopg.Error as error:
            raise ImportFailed(f"the source is gone: {error}: repeat the command") from error

    async def frames(self) -> AsyncIterator[Frame]:
        """What comes, for ever.

        Raises:
            ImportFailed: the server has ended it.
            ProtocolError: it speaks in tongues.
        """
        while True:
            yield await self.next()

    async def next(self) -> Frame:
        """What comes next; as ``frames``. It may be cancelled, and nothing is lost."""
        frame = await self._queue.get()
        if frame is None:
            assert self._failure is not None
            self._queue.put_nowait(None)
            raise self._failure
        if isinstance(frame, pgoutput.Data):
            self._bytes -= len(frame.payload)
            self._room.set()
        return frame

    @property
    def received(self) -> int:
        """How far the server had written when it last said so."""
        return self._received

    @property
    def pending(self) -> bool:
        """Something has come already."""
        return not self._queue.empty()

    async def _read(self) -> None:
        try:
            await self._fill()
        except (ImportFailed, pgoutput.ProtocolError) as error:
            self._failure = error
        except psycopg.Error as error:
            said = " ".join(str(error).split())
            self._failure = ImportFailed(f"the source is gone ({said}): repeat the command")
        else:
            self._failure = ImportFailed("the source has ended its messages: repeat the command")
        self._queue.put_nowait(None)

    async def _fill(self) -> None:
        conn = self._session.pgconn
        while True:
            await self._room.wait()
            length, data = conn.get_copy_data(1)
            if length > 0:
                frame = pgoutput.frame(bytes(data))
                self._received = max(self._received, frame.end)
                if isinstance(frame, pgoutput.Data):
                    self._bytes += len(frame.payload)
                    if self._bytes > _QUEUED_BYTES:
                        self._room.clear()
                elif frame.reply:
                    self._send(reply=False)
                self._queue.put_nowait(frame)
            elif length == 0:
                await _readable(conn.socket)
                conn.consume_input()
            else:
                result = conn.get_result()
                said = result.error_message.decode(errors="replace") if result else ""
                if said:
                    raise ImportFailed(f"the source has ended its messages: {said.strip()}")
                return

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_STATUS_S)
            with contextlib.suppress(psycopg.Error):  # the reader hears of it
                self._send(reply=False)

    def _send(self, *, reply: bool) -> None:
        self._session.pgconn.put_copy_data(
            pgoutput.status(self._received, self._confirmed, time.time(), reply=reply)
        )
        self._session.pgconn.flush()


async def _readable(socket: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(socket, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(socket)
